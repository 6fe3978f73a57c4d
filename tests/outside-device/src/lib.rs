//! A device of another project: Ethernet frames on a file descriptor that keeps the boundaries of frames.
//!
//! Such a descriptor is one end of a socket pair of datagrams or packets, or a tap without virtio header. The workers of the
//! stack sleep on it. One queue, no offloads: a frame is one read or one write.
//!
//! This crate uses only the public API of `quietline`, so that a change which breaks devices of others breaks its build.

use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use quietline::{
    Attachment, MacAddr, PollFd,
    device::{
        Batch, Capabilities, Cx, Device, Doorbell, DropReason, LinkType, PacketList, QueueId,
        RxChecksum, RxSignal,
    },
};

/// Largest frame: an MTU of 9000, an Ethernet header and a VLAN tag.
const FRAME_MAX: usize = 9000 + 14 + 4;

/// See the crate's head.
#[derive(Debug)]
pub struct FdDevice {
    caps: Capabilities,
    file: File,
    doorbell: OnceLock<Doorbell>,
    /// Set by the core that reads the end, read by the worker. Relaxed: it orders nothing.
    gone: AtomicBool,
}

impl FdDevice {
    /// A device that reads and writes frames on `fd`, which becomes non-blocking.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be made non-blocking.
    pub fn new(name: &str, mtu: u32, mac: [u8; 6], fd: OwnedFd) -> io::Result<Arc<Self>> {
        set_nonblocking(fd.as_fd())?;
        let caps = Capabilities::plain(name, mtu, LinkType::Ethernet { mac: MacAddr(mac) });
        let (doorbell, gone) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Arc::new(Self { caps, file: fd.into(), doorbell, gone }))
    }

    /// The device as a stack takes it.
    pub fn attach(self: &Arc<Self>) -> Attachment {
        Attachment::new(Arc::clone(self)).poll_fds(Arc::clone(self))
    }
}

impl Device for FdDevice {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut frame = [0; FRAME_MAX];
        let mut taken = 0;
        while taken < budget && out.room() > 0 {
            let count = match (&self.file).read(&mut frame) {
                // A socket whose other end is closed, or a tap whose interface was deleted.
                Ok(0) => {
                    self.gone.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {
                    self.gone.store(true, Ordering::Relaxed);
                    break;
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            taken += 1;
            // Without memory the frame is lost, as in a ring that has overflowed.
            let Some(mut packet) = cx.pool.alloc_from(&frame[..count]) else { continue };
            let meta = packet.meta_mut();
            (meta.timestamp, meta.rx_checksum) = (cx.now, RxChecksum::None);
            if let Err(packet) = out.push(packet) {
                cx.drop_packet(DropReason::QueueLimit, packet);
            }
        }
        taken
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            match (&self.file).write(&packet.to_vec()) {
                Ok(_) => cx.pool.free(packet),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return list.push_front(packet);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => list.push_front(packet),
                Err(_) => cx.drop_packet(DropReason::DeviceTxError, packet),
            }
        }
    }

    /// A full socket refuses frames.
    fn needs_qdisc(&self) -> bool {
        true
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.doorbell.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.doorbell.get().is_some()
    }
}

impl PollFd for FdDevice {
    fn poll_fd(&self, _queue: u16) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
    // SAFETY: F_GETFL and F_SETFL take and return flags by value.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
