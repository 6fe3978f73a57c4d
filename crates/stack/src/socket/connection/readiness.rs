//! What a connection is ready for, as it is published for those who do not hold it, and who is woken when that changes.
//!
//! Above: `settle`, which publishes; threads that wait. Linux: `tcp_poll`, `sk_data_ready`, `sk_stream_write_space`.

use std::sync::atomic::Ordering;

use sync::{EventCount, News};
use tcp::{Readiness, State, Tcb};

use super::{BACKLOG_EXTRA_BYTES, StreamState, TcpSocket};
use crate::{base::counters::Counter, cx::Cx};

/// In `TcpSocket::ready` beside the bits of [`Readiness`]: packets wait for the reader.
const PREQUEUED: u8 = 1 << 7;
const _: () = assert!(Readiness::all().bits() & PREQUEUED == 0);

impl TcpSocket {
    /// What the socket is ready for, without taking it.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.published.ready.load())
    }

    /// Where threads wait for something to read (or for the end), and where for room to write. See
    /// [`pass_as_waiter`](Self::pass_as_waiter).
    #[must_use]
    pub const fn waiters(&self, interest: Readiness) -> &EventCount {
        if interest.contains(Readiness::WRITE) { &self.writers } else { &self.readers }
    }

    /// For a thread that has announced itself at [`waiters`](Self::waiters), before each look at what it waits for: what comes true
    /// behind that look wakes it. Without this it may see neither.
    pub fn pass_as_waiter(&self) {
        self.lock.pass();
    }

    /// Whether the end of our stream has still to be acknowledged: what a lingering close waits for
    /// (`sk_stream_wait_close`). HUP comes earlier, as soon as both directions are shut.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        self.published.finishing.load(Ordering::Acquire)
    }

    /// `SO_RCVLOWAT`: bytes that a blocking read waits for, if it wants as many.
    #[must_use]
    pub fn rcvlowat(&self) -> u32 {
        self.published.rcvlowat.load(Ordering::Relaxed)
    }

    /// Packets wait for whoever is installed as the reader.
    pub(in crate::socket) fn has_prequeued(&self) -> bool {
        self.published.ready.load() & PREQUEUED != 0
    }

    /// Publishes what other threads read without the lock, and notes the conditions that have become true.
    #[inline]
    pub(super) fn publish(&self, tcb: &Tcb, prequeued: bool, news: &mut News) {
        self.published.rcvlowat.store(tcb.rcvlowat(), Ordering::Relaxed);
        // Linux: `sk_rcvqueues_full`, which adds `sk_rmem_alloc` to the backlog on the other side of the comparison. While
        // somebody owns the socket that is what it was when they last settled.
        let limit = tcb
            .rcvbuf()
            .saturating_mul(2)
            .saturating_add(tcb.sndbuf() / 2)
            .saturating_add(BACKLOG_EXTRA_BYTES);
        self.published
            .backlog_limit
            .store(limit.saturating_sub(tcb.rmem_alloc()), Ordering::Relaxed);
        let prequeued = if prequeued { PREQUEUED } else { 0 };
        self.published.ready.publish(tcb.readiness().bits() | prequeued, news);
        let finishing = matches!(tcb.state(), State::FinWait1 | State::Closing | State::LastAck);
        if self.published.finishing.load(Ordering::Relaxed) != finishing {
            if !finishing {
                // A lingering close waits for this.
                news.note(Readiness::HUP.bits());
            }
            self.published.finishing.store(finishing, Ordering::Release);
        }
    }

    /// Wakes those for whom something has come true: `news`, which was taken from the state. Outside the lock: a wake is a
    /// system call, and the woken thread wants the socket. Who finds its condition true does not sleep, so what was true
    /// before needs no second wake.
    #[inline]
    pub(in crate::socket) fn wake(&self, cx: &mut Cx, news: u8) {
        if news != 0 {
            self.wake_for(cx, news);
        }
    }

    fn wake_for(&self, cx: &mut Cx, news: u8) {
        let prequeued = news & PREQUEUED != 0;
        let news = Readiness::from_bits_truncate(news);
        let ended = Readiness::HUP | Readiness::ERROR;
        let read = Readiness::READ | Readiness::PRI | Readiness::RDHUP;
        if news.intersects(read | ended) && cx.notify_all(&self.readers, true) {
            cx.count(Counter::SocketWakes, 1);
        }
        if prequeued && cx.notify_all(&self.readers, true) {
            cx.count(Counter::PrequeueWakes, 1);
        }
        if news.intersects(Readiness::WRITE | ended) && cx.notify_all(&self.writers, false) {
            cx.count(Counter::SocketWakes, 1);
        }
    }
}

impl StreamState {
    /// Packets wait for the reader, who is to be woken by whoever lets the socket go.
    pub(in crate::socket) fn publish_prequeued(&mut self, socket: &TcpSocket) {
        socket.published.ready.announce(PREQUEUED, &mut self.news);
    }

    /// Nothing waits for the reader any more, so that it need not be woken.
    pub(in crate::socket) const fn retract_prequeued(&mut self) {
        self.news.retract(PREQUEUED);
    }
}
