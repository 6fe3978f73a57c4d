//! Packet ports: devices whose other end is the program. No call sleeps, except `ql_port_wait`.

use std::{
    ffi::{c_char, c_int, c_void},
    os::fd::AsRawFd as _,
    time::Duration,
};

use libc::{iovec, ssize_t};
use posix::limit_of_ms;
use ql::device::{PacketPort, PortConfig};

use crate::{
    boundary::{Failure, answer, bytes, count, elements, handle, one, string},
    stack::{QlBuilder, add_device, free},
};

/// Largest number of parts of one frame: the head and 17 fragments.
const PARTS_MAX: usize = 18;

/// The program's end of a device.
#[derive(Debug)]
pub struct QlPort {
    port: PacketPort,
}

/// Function that `ql_port_drain` lends a frame to. `parts` are `part_count` pieces of memory with
/// `len` bytes together, valid until the function returns. `gso_size` is the payload of each TCP
/// segment of a superframe, otherwise 0. Returns 0 if the frame is done, or an errno that ends the
/// call and leaves the frame in the port. The function must return: no longjmp, no C++ exception.
pub type QlFrameFn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        parts: *const iovec,
        part_count: usize,
        len: usize,
        gso_size: u16,
    ) -> c_int,
>;

/// Adds a device for IP packets to the builder, and returns the port that has its packets. A `name`
/// of NULL is "port0", an `mtu` of 0 is 1500, `queue_bytes` of 0 is 1 MiB: the bytes that wait in
/// each direction. The port outlives the stack, and must be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_port(
    builder: *mut QlBuilder,
    name: *const c_char,
    mtu: u32,
    queue_bytes: usize,
) -> *mut QlPort {
    handle(|| {
        let mut config = PortConfig::default();
        if !name.is_null() {
            // SAFETY: (d).
            unsafe { string(name) }?.clone_into(&mut config.name);
        }
        if mtu != 0 {
            config.mtu = mtu;
        }
        if queue_bytes != 0 {
            config.queue_bytes = queue_bytes;
        }
        let (device, port) = PacketPort::ip(&config)?;
        // SAFETY: (a).
        unsafe { add_device(builder, device) }?;
        Ok(Box::new(QlPort { port }))
    })
}

/// Gives frames to the stack, and processes them. Returns the number of frames taken; those that
/// found no room have to be given again when the descriptor of the port is readable. `EPIPE` if the
/// stack has ended, `ENOBUFS` without packet memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_port_inject(
    port: *const QlPort,
    frames: *const iovec,
    frame_count: usize,
) -> ssize_t {
    answer(|| {
        // SAFETY: (a).
        let port = unsafe { one(port) }?;
        let mut taken = 0;
        // SAFETY: (b).
        for chunk in unsafe { elements(frames, frame_count) }?.chunks(64) {
            let frame = |frame: &iovec| {
                // SAFETY: (b) holds for each element.
                unsafe { bytes(frame.iov_base, frame.iov_len) }
            };
            let frames: Vec<&[u8]> = chunk.iter().map(frame).collect::<Result<_, _>>()?;
            match port.port.inject(&frames) {
                Ok(some) => {
                    taken += some;
                    if some < frames.len() {
                        break;
                    }
                }
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count(taken))
    })
}

/// Lends up to `max` frames of the stack to `each`. Returns the number of frames that are done, or
/// -1 with the errno that `each` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_port_drain(
    port: *const QlPort,
    max: usize,
    each: QlFrameFn,
    user: *mut c_void,
) -> ssize_t {
    answer(|| {
        // SAFETY: (a).
        let port = unsafe { one(port) }?;
        let each = each.ok_or(Failure::number(libc::EFAULT))?;
        let drained = port.port.drain(max, |frame| {
            let mut parts = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
            let mut part_count = 0;
            for (part, slice) in parts.iter_mut().zip(frame.slices()) {
                // The function gets a pointer to constant bytes by its contract.
                part.iov_base = slice.as_ptr().cast_mut().cast();
                part.iov_len = slice.len();
                part_count += 1;
            }
            let gso_size = frame.gso_size().unwrap_or(0);
            // SAFETY: the caller promises a function that may be called with these arguments, and
            // `parts` has `part_count` elements that lie in the frame, which outlives the call.
            match unsafe { each(user, parts.as_ptr(), part_count, frame.len(), gso_size) } {
                0 => Ok(()),
                errno => Err(errno),
            }
        });
        drained.map(count).map_err(Failure::number)
    })
}

/// Sleeps until frames wait in the port, there is room again, or the stack has ended; at most
/// `timeout_ms` milliseconds, without limit for a negative number. Returns 1, or 0 after that time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_port_wait(port: *const QlPort, timeout_ms: c_int) -> c_int {
    answer(|| {
        // SAFETY: (a).
        let port = unsafe { one(port) }?;
        let limit: Option<Duration> = limit_of_ms(timeout_ms);
        Ok(c_int::from(port.port.wait(limit)?))
    })
}

/// Returns a descriptor of the kernel that is readable when `ql_port_wait` would return 1. It
/// belongs to the port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_port_fd(port: *const QlPort) -> c_int {
    answer(|| {
        // SAFETY: (a).
        Ok(unsafe { one(port) }?.port.as_raw_fd())
    })
}

/// Returns 1 if the stack has ended or has removed the device, otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_port_is_closed(port: *const QlPort) -> c_int {
    answer(|| {
        // SAFETY: (a).
        Ok(c_int::from(unsafe { one(port) }?.port.is_closed()))
    })
}

/// Frees a port: its device disappears from the stack. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_port_free(port: *mut QlPort) {
    // SAFETY: (a), and this is the last call with the handle.
    unsafe { free(port) }
}
