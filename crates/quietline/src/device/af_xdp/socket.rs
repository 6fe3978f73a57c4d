//! An AF_XDP socket: its options, its mappings, its bind, and the system calls that wake the
//! kernel.
//!
//! Above: `queue`. Linux: net/xdp/xsk.c, Documentation/networking/af_xdp.rst.
//!
//! Not here: the rings themselves (`ring`), the program that directs frames to the socket
//! (`program`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, socket_error, xdp_mmap_offsets, xdp_options,
    xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset,
    XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::super::mapping::Mapping;
use super::super::sockopt::set_option;
use super::abi::{TX_METADATA_LEN, XDP_UMEM_TX_METADATA_LEN};
use super::config::BusyPoll;
use super::ring::{Consumer, Descriptor, Entry, Layout, Producer};
use super::umem::Umem;

/// Number of attempts to bind to a queue that is in use. The kernel releases the queue of a closed
/// socket a little later, on a kernel worker thread.
const BIND_TRIES: u32 = 50;

/// Time between two attempts.
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// An AF_XDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
}

/// Ends of the four rings in this process.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) receive: Consumer<Descriptor>,
    pub(super) transmit: Producer<Descriptor>,
    pub(super) completion: Consumer<u64>,
}

/// Result of a system call that wakes the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeResult {
    /// The kernel has processed some entries or all.
    Processed,
    /// The interface is down.
    Down,
    /// The interface was deleted or moved away.
    Gone,
}

impl Socket {
    /// Opens an unbound socket.
    pub(super) fn open() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        Ok(Self { fd })
    }

    /// Registers the UMEM. Returns whether sent frames may have metadata.
    pub(super) fn register(&self, umem: &Umem, chunk_len: u32) -> Result<bool, Errno> {
        let plain = XdpUmemReg {
            addr: umem.address(),
            len: umem.len() as u64,
            chunk_size: chunk_len,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        let with_metadata = XdpUmemReg {
            flags: XdpUmemRegFlags::from_bits_retain(XDP_UMEM_TX_METADATA_LEN),
            tx_metadata_len: TX_METADATA_LEN,
            ..plain
        };
        // Kernels before 6.8 refuse unknown flags.
        match set_xdp_umem_reg(&self.fd, with_metadata) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL) => set_xdp_umem_reg(&self.fd, plain).map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// Creates the rings, with `size` entries each.
    pub(super) fn make_rings(&self, size: u32) -> Result<Rings, Errno> {
        set_xdp_umem_fill_ring_size(&self.fd, size)?;
        set_xdp_umem_completion_ring_size(&self.fd, size)?;
        set_xdp_rx_ring_size(&self.fd, size)?;
        set_xdp_tx_ring_size(&self.fd, size)?;
        let offsets = xdp_mmap_offsets(&self.fd)?;
        let map = |at: &XdpRingOffset, page_offset, entry_bytes| {
            let offset_of = |offset: u64| usize::try_from(offset).map_err(|_| Errno::OVERFLOW);
            let layout = Layout {
                producer: offset_of(at.producer)?,
                consumer: offset_of(at.consumer)?,
                flags: offset_of(at.flags.ok_or(Errno::NOSYS)?)?,
                entries: offset_of(at.desc)?,
            };
            let len = layout.entries + size as usize * entry_bytes;
            Ok((Arc::new(Mapping::shared(self.fd.as_fd(), page_offset, len)?), layout))
        };
        let (memory, layout) = map(&offsets.fr, XDP_UMEM_PGOFF_FILL_RING, u64::BYTES)?;
        let fill = Producer::new(memory, layout, size);
        let (memory, layout) = map(&offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, u64::BYTES)?;
        let completion = Consumer::new(memory, layout, size);
        let (memory, layout) = map(&offsets.rx, XDP_PGOFF_RX_RING, Descriptor::BYTES)?;
        let receive = Consumer::new(memory, layout, size);
        let (memory, layout) = map(&offsets.tx, XDP_PGOFF_TX_RING, Descriptor::BYTES)?;
        let transmit = Producer::new(memory, layout, size);
        Ok(Rings { fill, receive, transmit, completion })
    }

    /// Binds the socket to a queue of an interface. `how` is XDP_COPY, XDP_ZEROCOPY or empty, which
    /// tries zero-copy first.
    pub(super) fn bind(
        &self,
        interface: u32,
        queue: u32,
        how: SocketAddrXdpFlags,
    ) -> Result<(), Errno> {
        let flags = how | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let address = SocketAddrXdp::new(flags, interface, queue);
        for _ in 1..BIND_TRIES {
            match bind(&self.fd, &address) {
                Err(Errno::BUSY) => std::thread::sleep(BIND_PAUSE),
                result => return result,
            }
        }
        bind(&self.fd, &address)
    }

    /// Returns whether the kernel accesses the UMEM without a copy.
    pub(super) fn is_zero_copy(&self) -> Result<bool, Errno> {
        Ok(xdp_options(&self.fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Enables busy polling: receives run the device's poll on the calling thread, and its
    /// interrupts stay off while calls continue.
    pub(super) fn set_busy_poll(&self, busy_poll: &BusyPoll) -> Result<(), Errno> {
        let set = |name, value: u32| set_option(self.fd.as_fd(), libc::SOL_SOCKET, name, &value);
        set(libc::SO_PREFER_BUSY_POLL, 1)?;
        set(libc::SO_BUSY_POLL, busy_poll.usecs)?;
        set(libc::SO_BUSY_POLL_BUDGET, busy_poll.budget)
    }

    /// Sets the send buffer to the size of the UMEM, so that the ring is the limit of frames in
    /// flight.
    pub(super) fn set_send_buffer(&self, bytes: usize) -> Result<(), Errno> {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
        set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
    }

    /// Makes the kernel send from the transmit ring.
    pub(super) fn wake_transmit(&self) -> WakeResult {
        match send(&self.fd, &[], SendFlags::DONTWAIT) {
            Err(Errno::NETDOWN) => WakeResult::Down,
            Err(Errno::NXIO | Errno::NODEV) => WakeResult::Gone,
            // EAGAIN: the kernel has sent a batch, or has no room. EBUSY, ENOBUFS: the device or
            // the kernel has no room.
            _ => WakeResult::Processed,
        }
    }

    /// Makes the kernel take chunks from the fill ring, and poll the device if busy polling is on.
    pub(super) fn wake_receive(&self) -> WakeResult {
        let mut nothing = [0u8; 0];
        match recv(&self.fd, &mut nothing[..], RecvFlags::DONTWAIT) {
            Err(Errno::NETDOWN) => WakeResult::Down,
            Err(Errno::NXIO | Errno::NODEV) => WakeResult::Gone,
            _ => WakeResult::Processed,
        }
    }

    /// Returns the kernel's counters of dropped frames.
    pub(super) fn statistics(&self) -> Result<XdpStatistics, Errno> {
        xdp_statistics(&self.fd)
    }

    /// Returns whether the kernel has unbound the socket from its interface. Reported once.
    pub(super) fn has_lost_interface(&self) -> bool {
        matches!(socket_error(&self.fd), Ok(Err(Errno::NETDOWN)))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
