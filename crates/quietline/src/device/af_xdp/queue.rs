//! One queue of the device: a socket, its two halves, and when somebody must look at it although nothing arrives.
//!
//! Above: `AfXdp`, `device`. Linux: one `struct xdp_sock` for each queue of an interface.
//!
//! Not here: the order in which sockets, program and map are put together (`AfXdp::open`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use pkt::Instant;
use rustix::net::xdp::SocketAddrXdpFlags;
use stack::device::Doorbell;
use sync::Padded;

use super::super::interface::{Interface, raw_socket_error};
use super::super::presence::LookTimer;
use super::super::setup_error::SetupError;
use super::config::AfXdpConfig;
use super::receive::RxQueue;
use super::socket::{Looked, Rings, Socket};
use super::transmit::TxQueue;
use super::umem::{Frames, Umem};

/// When completions are looked for that did not come at once. Nobody announces them; what waits for them usually hears of an
/// acknowledgement first, whose turn looks too.
const COMPLETION_POLL: Duration = Duration::from_micros(250);

/// A socket with its memory, bound to no queue yet.
#[derive(Debug)]
pub(super) struct Unbound {
    socket: Socket,
    rings: Rings,
    umem: Umem,
    ring: u32,
    metadata: bool,
}

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Socket,
    /// Taken by the holder of the queue's core alone, so it is always free.
    rx: Padded<Mutex<RxQueue>>,
    tx: Padded<Mutex<TxQueue>>,
    /// When completions are to be looked for, in nanoseconds; `u64::MAX` when nothing is on its way. Written under the lock of
    /// `tx`; read without by the queue's core, which is rung after the write.
    due_ns: AtomicU64,
    /// When the kernel is asked for its counts.
    look_timer: LookTimer,
    doorbell: OnceLock<Doorbell>,
}

impl Unbound {
    /// A socket with rings and memory.
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

    /// Takes queue `number` of the interface.
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
                libc::EBUSY => error.with_hint("another AF_XDP socket has it"),
                libc::EINVAL => error.with_hint(format!(
                    "there is no such queue (ethtool -l {}), or its driver wants larger rings",
                    interface.name
                )),
                libc::EOPNOTSUPP => error.with_hint("the driver has no zero-copy mode"),
                _ => error,
            }
        };
        self.socket.bind(interface.index, number, how).map_err(refused)?;
        let zero_copy = self.socket.is_zero_copy().map_err(refused)?;
        // The copying path finishes checksums for every driver; without copies each has its own say.
        let tx_checksum = self.metadata && !zero_copy;
        let [receive, transmit] = Frames::halves(self.umem, self.ring);
        let Rings { fill, receive: rx, transmit: tx, completion } = self.rings;
        let queue = Queue {
            socket: self.socket,
            rx: Padded::new(Mutex::new(RxQueue::new(rx, fill, receive))),
            tx: Padded::new(Mutex::new(TxQueue::new(tx, completion, transmit, tx_checksum))),
            due_ns: AtomicU64::new(u64::MAX),
            look_timer: LookTimer::default(),
            doorbell: OnceLock::new(),
        };
        Ok((queue, BoundAs { zero_copy, tx_checksum }))
    }
}

/// What a bind has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundAs {
    pub(super) zero_copy: bool,
    /// Checksums may be left to the kernel.
    pub(super) tx_checksum: bool,
}

impl Queue {
    /// The socket.
    pub(super) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Who to tell of completions.
    pub(super) const fn doorbell(&self) -> &OnceLock<Doorbell> {
        &self.doorbell
    }

    pub(super) fn receiver(&self) -> MutexGuard<'_, RxQueue> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sender(&self) -> MutexGuard<'_, TxQueue> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sender's side, unless somebody sends just now.
    pub(super) fn try_sender(&self) -> Option<MutexGuard<'_, TxQueue>> {
        match self.tx.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Makes the kernel send what was published: as many calls as it takes, since each sends a batch, but none after one that
    /// got nowhere.
    pub(super) fn kick(&self, tx: &TxQueue) -> Looked {
        let mut waiting = tx.waiting();
        while waiting > 0 && tx.needs_wakeup() {
            let looked = self.socket.wake_transmit();
            let left = tx.waiting();
            if looked != Looked::Yes || left == waiting {
                return looked;
            }
            waiting = left;
        }
        Looked::Yes
    }

    /// Says when completions are to be looked for, from what `tx` still waits for.
    pub(super) fn note_outstanding(&self, tx: &TxQueue, now: Instant) {
        let due = match tx.outstanding() {
            0 => u64::MAX,
            _ => (now + COMPLETION_POLL).as_nanos(),
        };
        self.due_ns.store(due, Ordering::Relaxed);
    }

    /// Nothing will be completed any more.
    pub(super) fn forget_outstanding(&self) {
        self.due_ns.store(u64::MAX, Ordering::Relaxed);
    }

    /// When completions are to be looked for; `None` when there are none to come.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.due_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// Whether it is time to ask the kernel for its counts, which is not often.
    pub(super) fn is_time_to_look(&self, now: Instant) -> bool {
        self.look_timer.is_due(now)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
