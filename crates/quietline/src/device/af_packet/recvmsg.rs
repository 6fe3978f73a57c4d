//! The receive path without a ring: frames that wait in the kernel's socket are copied directly
//! into packet memory, several per system call.
//!
//! Above: `device`. Linux: `packet_rcv`, `packet_recvmsg`.
//!
//! The kernel queues the frame itself without a copy; the receiving thread copies it once. With a
//! ring, the sender or the NIC's interrupt copies the frame, and the receiver copies it again.
//!
//! The number of frames that one call asks for follows the results of earlier calls: memory must be
//! allocated before the length of a frame is known, and unused memory is returned. A call that
//! receives fewer frames than it asked for has emptied the queue.
//!
//! Not here: the meaning of the frame (`stack::receive::link_input`).

use std::io::IoSliceMut;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use libc::c_int;
use pkt::{Instant, Pool, RxSlot};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::super::sockopt::last_errno;
use super::receive::{FrameInfo, PACKET_VNET_HDR_LEN, Received, vnet_header};

/// Maximum number of frames of one system call: half a megabyte of superframes, a second-level
/// cache.
pub(super) const BURST_MAX: usize = 8;

/// Minimum number of frames of one system call: one more than a request or its answer, so that the
/// call also shows that no further frame waits.
const BURST_MIN: usize = 2;

/// Largest frame, plus one byte by which a larger one is detected.
const LEN_MAX: usize = 65_535 + 14 + 4 + 1;

/// Pieces of the memory offered for a frame: offload header, and at most four of a slot.
const PIECES_MAX: usize = 1 + 4;

/// `PACKET_AUXDATA`: each frame has a control message `struct tpacket_auxdata`.
pub(super) const PACKET_AUXDATA: c_int = 8;

/// `SO_RXQ_OVFL`: each frame has a control message with the number of dropped frames.
pub(super) const SO_RXQ_OVFL: c_int = 40;

/// Bytes of the control messages of one frame: `struct cmsghdr`, `struct tpacket_auxdata`,
/// `struct cmsghdr`, a count.
const CONTROL_BYTES: usize = 16 + 24 + 16 + 8;

/// Buffer for the control messages of one frame.
#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Receive path of one queue.
#[derive(Debug)]
pub(super) struct RxCalls {
    vnet_hdr: bool,
    /// Number of frames that the next call asks for.
    burst: usize,
    /// Number of frames dropped since the socket was created, as the last frame reported it.
    dropped: u32,
    /// Set after the kernel has reported that it dropped frames.
    pub(super) losing: bool,
}

/// Frames of one call.
pub(super) type Frames = ArrayVec<Received, BURST_MAX>;

impl RxCalls {
    pub(super) const fn new(vnet_hdr: bool) -> Self {
        Self { vnet_hdr, burst: BURST_MIN, dropped: 0, losing: false }
    }

    /// Takes at most `limit` of the oldest frames into `frames`. Returns true if there may be more.
    ///
    /// # Errors
    /// If the interface is down (reported once) or gone.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &mut Pool,
        now: Instant,
        limit: usize,
        frames: &mut Frames,
    ) -> Result<bool, Errno> {
        let wanted = self.burst.min(limit);
        let mut slots = ArrayVec::<RxSlot, BURST_MAX>::new();
        while slots.len() < wanted
            && let Some(slot) = pool.rx_slot(LEN_MAX)
        {
            slots.push(slot);
        }
        if slots.is_empty() {
            return Ok(false);
        }
        let offered = slots.len();
        let mut headers = [[0; PACKET_VNET_HDR_LEN]; BURST_MAX];
        let mut controls = [const { Control([0; CONTROL_BYTES]) }; BURST_MAX];
        let mut lens = [0; BURST_MAX];
        let headers_offered = self.vnet_hdr.then_some(&mut headers);
        let result = receive_into(fd, &mut slots, headers_offered, &mut controls, &mut lens);
        let count = *result.as_ref().unwrap_or(&0);
        let header_len = if self.vnet_hdr { PACKET_VNET_HDR_LEN } else { 0 };
        for (index, slot) in slots.into_iter().enumerate() {
            if index >= count {
                slot.cancel(pool);
                continue;
            }
            let mut packet = slot.finish(pool, lens[index].saturating_sub(header_len));
            packet.meta_mut().timestamp = now;
            let info = self.read_control(&controls[index].0, packet.len());
            let header = self.vnet_hdr.then(|| vnet_header(headers[index]));
            frames.push(Received::of(&info, header, packet));
        }
        if count == offered {
            self.burst = (2 * self.burst).min(BURST_MAX);
        } else if 2 * count < self.burst {
            self.burst = (self.burst / 2).max(BURST_MIN);
        }
        match result {
            Ok(_) => Ok(count == offered),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Drops all waiting frames unread.
    pub(super) fn discard(fd: BorrowedFd<'_>) {
        // The kernel returns an error if there is less room than for an offload header
        // (`packet_rcv_vnet`).
        let room = &mut [0; PACKET_VNET_HDR_LEN];
        while recv(fd, &mut *room, RecvFlags::DONTWAIT | RecvFlags::TRUNC).is_ok() {}
    }

    /// Parses the control messages of a frame, of which `here` bytes were received.
    fn read_control(&mut self, control: &[u8], here: usize) -> FrameInfo {
        let mut info = FrameInfo { len: here, status: 0, vlan_tci: 0 };
        let mut rest = control;
        // `struct cmsghdr`: length including the header, level, kind.
        loop {
            let len = usize::from_ne_bytes(chunk(rest, 0));
            let level = c_int::from_ne_bytes(chunk(rest, 8));
            let kind = c_int::from_ne_bytes(chunk(rest, 12));
            // The zeros after the last message end the loop.
            let Some(data) = rest.get(CMSG_HEADER_BYTES..len) else { break };
            match (level, kind) {
                (libc::SOL_PACKET, PACKET_AUXDATA) => {
                    info.status = u32::from_ne_bytes(chunk(data, 0));
                    let len = u32::from_ne_bytes(chunk(data, 4));
                    info.len = usize::try_from(len).unwrap_or(usize::MAX);
                    info.vlan_tci = u32::from(u16::from_ne_bytes(chunk(data, 16)));
                }
                (libc::SOL_SOCKET, SO_RXQ_OVFL) => {
                    let dropped = u32::from_ne_bytes(chunk(data, 0));
                    self.losing |= dropped != self.dropped;
                    self.dropped = dropped;
                }
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        info
    }
}

const CMSG_HEADER_BYTES: usize = 16;
const _: () = assert!(size_of::<libc::cmsghdr>() == CMSG_HEADER_BYTES);

/// Returns the bytes from `at` on; zeros if there are none.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// Makes one system call. Returns how many of the first `slots` it has filled, each after its
/// offload header, and stores the lengths, header included, in `lens`.
fn receive_into(
    fd: BorrowedFd<'_>,
    slots: &mut [RxSlot],
    headers: Option<&mut [[u8; PACKET_VNET_HDR_LEN]; BURST_MAX]>,
    controls: &mut [Control; BURST_MAX],
    lens: &mut [usize; BURST_MAX],
) -> Result<usize, Errno> {
    let mut headers = headers.map(|headers| headers.iter_mut());
    let count = slots.len().min(BURST_MAX);
    let mut pieces = ArrayVec::<IoSliceMut<'_>, { BURST_MAX * PIECES_MAX }>::new();
    let mut ends = ArrayVec::<usize, BURST_MAX>::new();
    for slot in slots.iter_mut().take(count) {
        if let Some(header) = headers.as_mut().and_then(Iterator::next) {
            pieces.push(IoSliceMut::new(header));
        }
        slot.io_slices(&mut pieces);
        ends.push(pieces.len());
    }
    // SAFETY: a structure of integers and pointers, for which zero is a valid value.
    let mut messages: [libc::mmsghdr; BURST_MAX] = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut rest = &mut pieces[..];
    let mut begin = 0;
    for ((message, end), control) in messages.iter_mut().zip(ends).zip(controls.iter_mut()) {
        let (these, later) = rest.split_at_mut(end - begin);
        message.msg_hdr.msg_iov = these.as_mut_ptr().cast();
        message.msg_hdr.msg_iovlen = these.len();
        message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        message.msg_hdr.msg_controllen = CONTROL_BYTES;
        (rest, begin) = (later, end);
    }
    let vlen = u32::try_from(count).unwrap_or(0);
    let taken = loop {
        // SAFETY: `vlen` messages, each with pieces (`IoSliceMut` is `struct iovec`) and a control
        // buffer that are mutably borrowed, disjoint, and of the given lengths; the kernel writes
        // only there and into the messages, and keeps no pointer.
        let result = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                messages.as_mut_ptr(),
                vlen,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(result) {
            Ok(taken) => break taken,
            Err(_) => match last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    };
    for ((message, len), control) in messages.iter().zip(lens).zip(controls).take(taken) {
        *len = usize::try_from(message.msg_len).unwrap_or(usize::MAX);
        let written = message.msg_hdr.msg_controllen.min(CONTROL_BYTES);
        control.0[written..].fill(0);
    }
    Ok(taken)
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn control_messages_of_a_frame_are_read_and_invalid_ones_ignored() {
        let mut calls = RxCalls::new(true);
        let mut data = [0; 20];
        data[..4].copy_from_slice(&libc::TP_STATUS_VLAN_VALID.to_ne_bytes());
        data[4..8].copy_from_slice(&1500u32.to_ne_bytes());
        data[16..18].copy_from_slice(&7u16.to_ne_bytes());
        let mut control = message(libc::SOL_PACKET, PACKET_AUXDATA, &data);
        control.extend(message(libc::SOL_SOCKET, SO_RXQ_OVFL, &5u32.to_ne_bytes()));
        assert_eq!(control.len(), CONTROL_BYTES);
        let info = calls.read_control(&control, 1000);
        assert_eq!((info.len, info.vlan_tci), (1500, 7));
        assert_eq!(info.status, libc::TP_STATUS_VLAN_VALID);
        assert!(std::mem::take(&mut calls.losing));
        let again = calls.read_control(&control, 1000);
        assert!(again.len == 1500 && !calls.losing, "the drop count is still five");
        for control in [&[0; CONTROL_BYTES][..], &[0xff; CONTROL_BYTES], &[]] {
            let info = calls.read_control(control, 60);
            assert_eq!((info.len, info.status), (60, 0));
        }
        let short = message(libc::SOL_PACKET, PACKET_AUXDATA, &[]);
        assert_eq!(calls.read_control(&short, 60).status, 0);
    }
}
