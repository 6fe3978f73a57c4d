//! Sleep of the worker of a core: its deadline, the events that end it, and the times when the
//! worker leaves the queues to other threads.
//!
//! Above: the workers of crate `quietline`, and application threads that poll. Linux: ksoftirqd's
//! sleep, the hrtimer of `gro_flush_timeout`, `busy_poll_stop`.
//!
//! Not here: the sleep itself, which needs an operating system.

use std::{sync::PoisonError, time::Duration};

use pkt::Instant;
use sync::Sleep;

use super::{Core, CoreState};
use crate::{
    base::{counters::Counter, ids::NapiId},
    cx::Cx,
    socket::net::Net,
    sysctl::Sysctls,
};

/// Time for which the worker does not watch the descriptors after an application thread has polled
/// the core: threads that send or receive in bulk poll again sooner. Linux's counterpart is
/// `gro_flush_timeout` with `SO_PREFER_BUSY_POLL`.
const POLLED_MAX: Duration = Duration::from_micros(300);

/// Longest sleep of a worker that yields to another thread, unless a thread has asked for a longer
/// one (`SO_PREFER_BUSY_POLL`).
const YIELD_MAX: Duration = Duration::from_millis(1);

impl Core {
    /// Leaves arriving frames to a reader that the worker is about to wake. If the reader has not
    /// polled after [`POLLED_MAX`], the worker polls.
    pub(super) fn leave_to_reader(&self, cx: &Cx) {
        if self.has_descriptors() {
            self.attendance.leave_to_reader((cx.now + POLLED_MAX).as_nanos());
        }
    }

    /// Records whether the thread that is about to sleep has polled: such a thread polls again when
    /// it is woken. The value of the last caller is a hint for
    /// [`run_as_worker`](Self::run_as_worker).
    pub fn note_sleeper(&self, polls: bool) {
        self.attendance.note_sleeper(polls);
    }

    /// Returns whether a woken worker would have nothing to do: superframes (packets of several
    /// segments) arrive, an application thread polls for them, no run is owed and no timer is due.
    #[must_use]
    pub fn needs_no_worker(&self, now: Instant) -> bool {
        self.is_bulk()
            && self.is_polled(now)
            && self.next_deadline().is_none_or(|deadline| deadline > now)
    }

    /// Returns whether frames reach this core through descriptors, so that their senders do not run
    /// the core.
    #[must_use]
    pub fn has_descriptors(&self) -> bool {
        self.attendance.has_descriptors()
    }

    /// Returns whether superframes reach this core through descriptors. Then the CPU of the
    /// application should read them, so that they are in its caches afterwards.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.attendance.is_bulk()
    }

    /// Records after a poll of the queue at `index` whether it receives superframes.
    #[inline]
    pub(super) fn note_bulk(&self, state: &CoreState, index: usize) {
        if state.descriptors >> index & 1 != 0 {
            self.attendance.set_bulk(state.napis[index].is_bulk());
        }
    }

    /// Records that the calling thread has polled, and will most likely poll again.
    pub(super) fn note_poll(&self, cx: &mut Cx) {
        if self.has_descriptors() {
            self.attendance.note_poll(cx.poller(), (cx.now + POLLED_MAX).as_nanos());
            cx.note_polled(&self.this);
        }
    }

    /// Returns whether an application thread has polled the core recently, and will most likely
    /// poll again.
    #[must_use]
    pub fn is_polled(&self, now: Instant) -> bool {
        self.attendance.is_polled(now.as_nanos())
    }

    /// Records that a thread that has polled goes to sleep: the worker must watch the queues again.
    /// Nothing changes if another thread has polled since and will most likely poll again.
    ///
    /// With `prefer` (`SO_PREFER_BUSY_POLL`) the thread polls again soon, and the worker does not
    /// watch the descriptors for the longest `gro_flush_timeout` of the core's devices. If that is
    /// zero, `prefer` has no effect, as in Linux.
    pub fn stop_polling(&self, cx: &mut Cx, net: &Net, prefer: bool) {
        let timeout = if prefer { self.flush_timeout(cx.sysctls_of(net)) } else { Duration::ZERO };
        if !timeout.is_zero() {
            self.attendance.prefer_poll(cx.poller(), (cx.now + timeout).as_nanos());
            cx.note_polled(&self.this);
            return;
        }
        self.attendance.stop_polling(cx.poller(), cx.now.as_nanos());
    }

    /// Returns the longest `gro_flush_timeout` of the devices polled here.
    fn flush_timeout(&self, sysctls: &Sysctls) -> Duration {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let timeouts =
            places.iter().map(|place| sysctls.devices.of(place.device).gro_flush_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// Returns whether the queue is polled by timer (`napi_defer_hard_irqs`), so that its
    /// descriptor must not be watched.
    #[must_use]
    pub fn is_masked(&self, napi: NapiId) -> bool {
        self.attendance.masked() & napi.bit() != 0
    }

    /// Makes the worker yield to the calling thread, which begins to poll. A worker that sleeps on
    /// the descriptors would be woken by every superframe, find that the superframe was taken, and
    /// sleep again. Instead the worker is kicked once and then does not watch the descriptors.
    /// Single frames do not justify a kick, because a thread that waits for one polls only briefly.
    #[inline]
    pub(super) fn suspend_worker(&self, cx: &mut Cx) {
        if !self.is_bulk() {
            return;
        }
        let until = cx.now + POLLED_MAX;
        if self.attendance.suspend_worker(cx.poller(), until.as_nanos()) {
            cx.note_polled(&self.this);
        }
    }

    /// Makes a worker that has yielded watch its queues again. If this call does not see that the
    /// worker sleeps, the sleep ends after [`YIELD_MAX`] at the latest, or after the longer time
    /// that a thread has asked for.
    pub(super) fn resume_worker(&self) {
        self.attendance.resume_worker();
    }

    /// Wakes the worker. Returns false if the core has none.
    pub(super) fn kick_worker(&self) -> bool {
        self.attendance.kick_worker()
    }

    /// Hands a scheduled core to its worker. Returns false if the core has no worker or its host is
    /// shut down; the caller must then run the core.
    pub(crate) fn hand_to_worker(&self, cx: &mut Cx) -> bool {
        // The run stays owed (SCHED), and the worker's `try_own` takes it. The worker of a host
        // that is shut down ends only after it has taken all runs that were owed before the
        // shutdown.
        let Some(net) = self.net.upgrade().filter(|net| net.check_up().is_ok()) else {
            return false;
        };
        if !self.kick_worker() {
            return false;
        }
        let entered = cx.enter(&net);
        cx.count(Counter::CoreHandoffs, 1);
        cx.leave(entered);
        true
    }

    /// Kicks the worker if it sleeps past `deadline`.
    pub fn wake_before(&self, deadline: Instant) {
        self.attendance.wake_before(deadline.as_nanos());
    }

    /// Announces that the calling worker is about to sleep, and returns the time until which it may
    /// sleep (`None`: without limit). With `yielding` the worker sleeps because another thread runs
    /// the core or has polled it recently, and is kicked when that thread releases the core.
    ///
    /// The worker need not poll again after this call: frames from in-process devices ring the
    /// doorbell (the arrival signal of a device in this process) on their sender's thread, and the
    /// caller watches the descriptors.
    #[must_use]
    pub fn prepare_sleep(&self, now: Instant, yielding: bool) -> Option<Instant> {
        let sleep = match yielding {
            true => Sleep::Yielding { limit_ns: (now + YIELD_MAX).as_nanos() },
            false => Sleep::Watching,
        };
        let next = || self.next_deadline().map(Instant::as_nanos);
        let until = self.attendance.prepare_sleep(&self.lock, now.as_nanos(), sleep, next);
        until.map(Instant::from_nanos)
    }

    /// Returns whether no thread owns the core or owes it a run, and no thread has polled it since
    /// polling last stopped.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.attendance.is_free(&self.lock)
    }

    /// Records that the worker is awake.
    pub fn finish_sleep(&self) {
        self.attendance.finish_sleep();
    }

    /// Returns the time at which this core must run even if nothing arrives: at once if a run is
    /// owed or a throttled socket may send again, otherwise the earliest deadline of its timers and
    /// queues.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.tasklet.is_pending() || self.lock.is_owed() {
            return Some(Instant::ZERO);
        }
        let timer = self.attendance.next_timer().map(Instant::from_nanos);
        let net = self.net.upgrade()?;
        let device = net.queue_deadline(self.id);
        match (timer, device) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
