//! One queue of the device: a socket, its receive and transmit halves, and the time of its next
//! completion poll.
//!
//! Above: `AfXdp`, `device`. Linux: one `struct xdp_sock` for each queue of an interface.
//!
//! Not here: the order in which sockets, program and map are created (`AfXdp::open`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use pkt::Instant;
use rustix::net::xdp::SocketAddrXdpFlags;
use stack::device::Doorbell;
use sync::Padded;

use super::super::interface::{Interface, raw_socket_error};
use super::super::presence::CheckTimer;
use super::super::setup_error::SetupError;
use super::config::AfXdpConfig;
use super::receive::RxQueue;
use super::socket::{Rings, Socket, WakeResult};
use super::transmit::TxQueue;
use super::umem::{Frames, Umem};

/// Time after which pending completions are polled. The kernel does not announce completions;
/// usually an acknowledgment arrives first, and its turn polls them, too.
const COMPLETION_POLL: Duration = Duration::from_micros(250);

/// A socket with its memory, not bound to a queue yet.
#[derive(Debug)]
pub(super) struct Unbound {
    socket: Socket,
    rings: Rings,
    umem: Umem,
    ring: u32,
    metadata: bool,
}

/// A queue of the device.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Socket,
    /// Locked only by the holder of the queue's core, so never contended.
    rx: Padded<Mutex<RxQueue>>,
    tx: Padded<Mutex<TxQueue>>,
    /// Time of the next completion poll, in nanoseconds; `u64::MAX` if no frame is in flight.
    /// Written under the lock of `tx`. Read without the lock by the queue's core, whose doorbell
    /// rings after the write.
    due_ns: AtomicU64,
    /// Timer of the reads of the kernel's counters.
    check_timer: CheckTimer,
    doorbell: OnceLock<Doorbell>,
}

impl Unbound {
    /// Opens a socket with rings and memory.
    pub(super) fn new(config: &AfXdpConfig, chunk_len: u32) -> Result<Self, SetupError> {
        let socket = Socket::open().map_err(|e| {
            let error = raw_socket_error("open an AF_XDP socket", e.raw_os_error());
            match e.raw_os_error() {
                libc::EAFNOSUPPORT => {
                    error.with_hint("the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
                }
                _ => error,
            }
        })?;
        let umem = Umem::new(2 * config.ring, chunk_len as usize)
            .map_err(|e| SetupError::system("map memory for frames", e.raw_os_error()))?;
        let metadata = socket.register(&umem, chunk_len).map_err(|e| {
            let error = SetupError::system("register memory for frames", e.raw_os_error());
            match e.raw_os_error() {
                libc::ENOBUFS => {
                    error.with_hint("the limit of locked memory is too low (ulimit -l)")
                }
                _ => error,
            }
        })?;
        let rings = socket.make_rings(config.ring).map_err(|e| {
            let error = SetupError::system("make AF_XDP rings", e.raw_os_error());
            match e.raw_os_error() {
                libc::ENOSYS => error.with_hint("needs Linux 5.9 or newer"),
                _ => error,
            }
        })?;
        let bytes = umem.len();
        socket
            .set_send_buffer(bytes)
            .map_err(|e| SetupError::system("set an AF_XDP send buffer", e.raw_os_error()))?;
        if let Some(busy_poll) = &config.busy_poll {
            socket.set_busy_poll(busy_poll).map_err(|e| {
                SetupError::system("set busy polling (SO_PREFER_BUSY_POLL)", e.raw_os_error())
            })?;
        }
        Ok(Self { socket, rings, umem, ring: config.ring, metadata })
    }

    /// Binds the socket to queue `number` of the interface.
    pub(super) fn bind(
        self,
        interface: &Interface,
        number: u32,
        how: SocketAddrXdpFlags,
    ) -> Result<(Queue, BoundAs), SetupError> {
        let refused = |e: rustix::io::Errno| {
            let step = format!("take queue {number} of \"{}\"", interface.name);
            let error = SetupError::system(step, e.raw_os_error());
            match e.raw_os_error() {
                libc::EBUSY => error.with_hint("another AF_XDP socket uses it"),
                libc::EINVAL => error.with_hint(format!(
                    "there is no such queue (ethtool -l {}), or its driver requires larger rings",
                    interface.name
                )),
                libc::EOPNOTSUPP => error.with_hint("the driver has no zero-copy mode"),
                _ => error,
            }
        };
        self.socket.bind(interface.index, number, how).map_err(refused)?;
        let zero_copy = self.socket.is_zero_copy().map_err(refused)?;
        // The copying path completes checksums for every driver. Without copies it depends on the
        // driver.
        let tx_checksum = self.metadata && !zero_copy;
        let [receive, transmit] = Frames::halves(self.umem, self.ring);
        let ((rx_frames, rights), (tx_frames, free)) = (receive, transmit);
        let Rings { fill, receive: rx, transmit: tx, completion } = self.rings;
        let queue = Queue {
            socket: self.socket,
            rx: Padded::new(Mutex::new(RxQueue::new(rx, fill, rx_frames, rights))),
            tx: Padded::new(Mutex::new(TxQueue::new(tx, completion, tx_frames, free, tx_checksum))),
            due_ns: AtomicU64::new(u64::MAX),
            check_timer: CheckTimer::default(),
            doorbell: OnceLock::new(),
        };
        Ok((queue, BoundAs { zero_copy, tx_checksum }))
    }
}

/// Properties of a bound socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundAs {
    pub(super) zero_copy: bool,
    /// The kernel completes partial checksums.
    pub(super) tx_checksum: bool,
}

impl Queue {
    /// Returns the socket.
    pub(super) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the doorbell of the queue's core, which completions ring.
    pub(super) const fn doorbell(&self) -> &OnceLock<Doorbell> {
        &self.doorbell
    }

    pub(super) fn receiver(&self) -> MutexGuard<'_, RxQueue> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sender(&self) -> MutexGuard<'_, TxQueue> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the transmit half, unless another thread is sending.
    pub(super) fn try_sender(&self) -> Option<MutexGuard<'_, TxQueue>> {
        match self.tx.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Makes the kernel send the published frames. Repeats the system call, because each call sends
    /// one batch, but stops after a call that made no progress.
    pub(super) fn kick(&self, tx: &TxQueue) -> WakeResult {
        let mut waiting = tx.waiting();
        while waiting > 0 && tx.needs_wakeup() {
            let result = self.socket.wake_transmit();
            let left = tx.waiting();
            if result != WakeResult::Processed || left == waiting {
                return result;
            }
            waiting = left;
        }
        WakeResult::Processed
    }

    /// Sets the time of the next completion poll, according to the frames that `tx` has in flight.
    pub(super) fn note_outstanding(&self, tx: &TxQueue, now: Instant) {
        let due = match tx.outstanding() {
            0 => u64::MAX,
            _ => (now + COMPLETION_POLL).as_nanos(),
        };
        self.due_ns.store(due, Ordering::Relaxed);
    }

    /// Cancels completion polls: no frame will be completed any more.
    pub(super) fn forget_outstanding(&self) {
        self.due_ns.store(u64::MAX, Ordering::Relaxed);
    }

    /// Returns the time of the next completion poll; `None` if no frame is in flight.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.due_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// Returns whether it is time to read the kernel's counters, which happens rarely.
    pub(super) fn is_check_due(&self, now: Instant) -> bool {
        self.check_timer.is_due(now)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
