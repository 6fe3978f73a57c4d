//! Readiness of a connection, published to threads that do not own it, and wakeups when it changes.
//!
//! Above: `settle`, which publishes it; threads that wait. Linux: `tcp_poll`, `sk_data_ready`,
//! `sk_stream_write_space`.

use std::sync::atomic::Ordering;

use sync::{EventCount, NewlyReady};
use tcp::{Readiness, State, Tcb};

use super::{BACKLOG_EXTRA_BYTES, Connection, StreamState};
use crate::{base::counters::Counter, cx::Cx};

/// Bit of `Published::ready` beside those of [`Readiness`]: packets wait for the reader.
const PREQUEUED: u8 = 1 << 7;
const _: () = assert!(Readiness::all().bits() & PREQUEUED == 0);

impl Connection {
    /// Returns the readiness without owning the socket.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.published.ready.load())
    }

    /// Returns the event count of threads that wait for data (or the end of the stream), or for
    /// space to write. See [`pass_as_waiter`](Self::pass_as_waiter).
    #[must_use]
    pub const fn waiters(&self, interest: Readiness) -> &EventCount {
        if interest.contains(Readiness::WRITE) { &self.writers } else { &self.readers }
    }

    /// Orders a waiting thread with the owner: a thread registered at [`waiters`](Self::waiters)
    /// calls this before each check of its condition, so that a change after the check wakes it.
    /// Without this call, the thread may miss both the change and the wake.
    pub fn pass_as_waiter(&self) {
        self.lock.pass();
    }

    /// Returns whether our FIN is sent and unacknowledged: a lingering close waits for its
    /// acknowledgment (`sk_stream_wait_close`). HUP is set earlier, as soon as both directions are
    /// shut down.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        self.published.finishing.load(Ordering::Acquire)
    }

    /// Returns `SO_RCVLOWAT`, the bytes that a blocking read waits for.
    #[must_use]
    pub fn rcvlowat(&self) -> u32 {
        self.published.rcvlowat.load(Ordering::Relaxed)
    }

    /// Returns whether packets wait for the installed reader.
    pub(in crate::socket) fn has_prequeued(&self) -> bool {
        self.published.ready.load() & PREQUEUED != 0
    }

    /// Publishes the state that is read without the lock, and notes the conditions that have become
    /// true.
    #[inline]
    pub(super) fn publish(&self, tcb: &Tcb, prequeued: bool, newly_ready: &mut NewlyReady) {
        self.published.rcvlowat.store(tcb.rcvlowat(), Ordering::Relaxed);
        // Linux: `sk_rcvqueues_full`, which instead adds `sk_rmem_alloc` to the backlog. While a
        // thread owns the socket, the value is that of the last settling.
        let limit = tcb
            .rcvbuf()
            .saturating_mul(2)
            .saturating_add(tcb.sndbuf() / 2)
            .saturating_add(BACKLOG_EXTRA_BYTES);
        self.published
            .backlog_limit
            .store(limit.saturating_sub(tcb.rmem_alloc()), Ordering::Relaxed);
        let prequeued = if prequeued { PREQUEUED } else { 0 };
        self.published.ready.publish(tcb.readiness().bits() | prequeued, newly_ready);
        let finishing = matches!(tcb.state(), State::FinWait1 | State::Closing | State::LastAck);
        if self.published.finishing.load(Ordering::Relaxed) != finishing {
            if !finishing {
                // A lingering close waits for this change.
                newly_ready.note(Readiness::HUP.bits());
            }
            self.published.finishing.store(finishing, Ordering::Release);
        }
    }

    /// Wakes the threads that wait for the bits in `newly_ready`, taken from the state. Called
    /// outside the lock: a wake is a system call, and the woken thread wants the socket. A thread
    /// that finds its condition true does not sleep, so conditions that were true before need no
    /// second wake.
    #[inline]
    pub(in crate::socket) fn wake(&self, cx: &mut Cx, newly_ready: u8) {
        if newly_ready != 0 {
            self.wake_for(cx, newly_ready);
        }
    }

    fn wake_for(&self, cx: &mut Cx, newly_ready: u8) {
        let prequeued = newly_ready & PREQUEUED != 0;
        let newly_ready = Readiness::from_bits_truncate(newly_ready);
        let ended = Readiness::HUP | Readiness::ERROR;
        let read = Readiness::READ | Readiness::PRI | Readiness::RDHUP;
        if newly_ready.intersects(read | ended) && cx.notify_all(&self.readers, true) {
            cx.count(Counter::SocketWakes, 1);
        }
        if prequeued && cx.notify_all(&self.readers, true) {
            cx.count(Counter::PrequeueWakes, 1);
        }
        if newly_ready.intersects(Readiness::WRITE | ended) && cx.notify_all(&self.writers, false) {
            cx.count(Counter::SocketWakes, 1);
        }
    }
}

impl StreamState {
    /// Records that packets wait for the reader. The thread that releases the socket wakes the
    /// reader.
    pub(in crate::socket) fn publish_prequeued(&mut self, socket: &Connection) {
        socket.published.ready.announce(PREQUEUED, &mut self.newly_ready);
    }

    /// Records that no packet waits for the reader, so that it need not be woken.
    pub(in crate::socket) const fn retract_prequeued(&mut self) {
        self.newly_ready.retract(PREQUEUED);
    }
}
