//! Readiness of a connection, published to threads that do not own the socket, and wakeups when the
//! readiness changes.
//!
//! Above: `settle`, which publishes the readiness, and waiting threads. Linux: `tcp_poll`,
//! `sk_data_ready`, `sk_stream_write_space`.

use std::sync::{Arc, atomic::Ordering};

use sync::{EventCount, NewlyReady, Watch, WatchKey, Watchers};
use tcp::{Readiness, State, Tcb};

use super::{BACKLOG_EXTRA_BYTES, Connection, StreamState};
use crate::{base::counters::Counter, cx::Cx};

/// Bit of `Published::ready` in addition to those of [`Readiness`]: packets wait in the prequeue
/// for the reader (`modes::prequeue`).
const PREQUEUED: u8 = 1 << 7;
const _: () = assert!(Readiness::all().bits() & PREQUEUED == 0);

impl Connection {
    /// Returns the readiness without owning the socket.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.published.ready.load())
    }

    /// Returns the event count of threads that wait for data (or the end of the stream), or for
    /// space to write. See [`sync_with_owner`](Self::sync_with_owner).
    #[must_use]
    pub const fn waiters(&self, interest: Readiness) -> &EventCount {
        if interest.contains(Readiness::WRITE) { &self.writers } else { &self.readers }
    }

    /// Synchronizes a waiting thread with the owner of the socket. A thread registered at
    /// [`waiters`](Self::waiters) calls this before each check of its condition, so that a change
    /// after the check wakes the thread. Without this call, the thread may miss both the change and
    /// the wake.
    pub fn sync_with_owner(&self) {
        self.lock.pass();
    }

    /// Returns the registry of the tasks and event loops that the socket notifies. An event loop
    /// registers by [`watch`](Self::watch) instead. A task that has registered calls
    /// [`sync_with_owner`](Self::sync_with_owner) and then checks the readiness.
    #[must_use]
    pub const fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Registers an event loop: `watch` is called when a condition becomes true, when data arrives
    /// while other data is readable, and when there is space again after a write that found none.
    /// After this call the caller checks the readiness. Returns false if a loop has this key
    /// already.
    pub fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        let added = self.watchers.add(key, watch);
        self.published.watched.store(true, Ordering::Relaxed);
        self.sync_with_owner();
        added
    }

    /// Returns whether the FIN of this side is queued or sent, and not acknowledged: a lingering
    /// close waits for its acknowledgment (`sk_stream_wait_close`). HUP is set earlier, as soon as
    /// both directions are shut down.
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

    /// Whether a watcher has ever been added.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.published.watched.load(Ordering::Relaxed)
    }

    /// Publishes the state that is read without the lock, and notes the conditions that have become
    /// true.
    #[inline]
    pub(super) fn publish(&self, tcb: &Tcb, prequeued: bool, newly_ready: &mut NewlyReady) {
        self.published.rcvlowat.store(tcb.rcvlowat(), Ordering::Relaxed);
        // The backlog may hold the limit less the unread data. Linux (`sk_rcvqueues_full`) instead
        // compares the limit with the sum of backlog and `sk_rmem_alloc`. While a thread owns the
        // socket, the published value is that of the last `settle`.
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

    /// Records that a write has found no space, so that waiting threads are notified of space, even
    /// if it appears before the end of the call. Under the lock.
    #[cold]
    pub(super) fn note_full(&self) {
        self.published.ready.retract(Readiness::WRITE.bits());
    }

    /// Wakes the threads that wait for the conditions in `newly_ready`, which the caller has taken
    /// from the state. Called without the lock, because a wake is a system call and the woken
    /// thread takes the lock. A thread that finds its condition true does not sleep, so conditions
    /// that were true before need no second wake.
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
        notify_watchers(&self.watchers, cx, newly_ready & self.readiness());
    }
}

/// Notifies the tasks and event loops of a socket of conditions that have become true and are still
/// true. Called without the lock.
#[inline]
pub(in crate::socket) fn notify_watchers(watchers: &Watchers, cx: &Cx, ready: Readiness) {
    let notified = watchers.notify(ready.bits());
    if notified > 0 {
        cx.count(Counter::SocketWatchCalls, notified as u64);
    }
}

impl StreamState {
    /// Notes data that arrived behind readable data, so that event loops are notified of it, too.
    #[cold]
    #[inline(never)]
    pub(super) fn note_arrivals(&mut self) {
        let arrived =
            core::mem::replace(&mut self.watched_nxt, self.tcb.rcv_nxt()) != self.tcb.rcv_nxt();
        if arrived && self.tcb.readiness().contains(Readiness::READ) {
            self.newly_ready.note(Readiness::READ.bits());
        }
    }

    /// Records that packets wait for the reader. The thread that releases the socket wakes the
    /// reader.
    pub(in crate::socket) fn publish_prequeued(&mut self, socket: &Connection) {
        socket.published.ready.announce(PREQUEUED, &mut self.newly_ready);
    }

    /// Cancels a wake of the reader that is recorded and not yet taken, because no packet waits any
    /// more. The next `publish` clears the published bit.
    pub(in crate::socket) const fn retract_prequeued(&mut self) {
        self.newly_ready.retract(PREQUEUED);
    }
}
