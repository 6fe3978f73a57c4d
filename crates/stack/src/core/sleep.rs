//! How the worker of a core sleeps: until when, what ends it, and when it leaves the queues to others.
//!
//! Above: the workers of crate `quietline`, and application threads that poll. Linux: ksoftirqd's sleep, the hrtimer of
//! `gro_flush_timeout`, `busy_poll_stop`.
//!
//! Not here: the sleep itself, which needs an operating system.

use std::{sync::PoisonError, time::Duration};

use pkt::Instant;
use sync::Sleep;

use super::{Core, CoreState};
use crate::{
    base::{counters::Counter, ids::NapiId},
    cx::Cx,
    host::Host,
    sysctl::Sysctls,
};

/// How long the worker leaves the descriptors alone after an application thread has polled the core: threads that send or
/// receive in bulk come back sooner. Linux's counterpart is `gro_flush_timeout` beside `SO_PREFER_BUSY_POLL`.
const POLLED_MAX: Duration = Duration::from_micros(300);

/// Longest sleep of a worker whose core is run by another thread.
const YIELD_MAX: Duration = Duration::from_millis(1);

impl Core {
    /// The worker leaves what arrives to a reader that it is about to wake. If that has not polled by then, it looks itself.
    pub(super) fn leave_to_reader(&self, cx: &Cx) {
        if self.has_descriptors() {
            self.attendance.leave_to_reader((cx.now + POLLED_MAX).as_nanos());
        }
    }

    /// A thread is about to sleep that has polled and will again when it is woken, or one that has not. A hint for
    /// [`run_as_worker`](Self::run_as_worker): the last word of them all counts.
    pub fn note_sleeper(&self, polls: bool) {
        self.attendance.note_sleeper(polls);
    }

    /// Superframes come, which an application thread polls for and will be back, nothing is owed and no timer is due: a worker that
    /// wakes has nothing to do.
    #[must_use]
    pub fn is_left_alone(&self, now: Instant) -> bool {
        self.is_bulk()
            && self.is_polled(now)
            && self.next_deadline().is_none_or(|deadline| deadline > now)
    }

    /// Frames come to this core by descriptors: their senders do not run it.
    #[must_use]
    pub fn has_descriptors(&self) -> bool {
        self.attendance.has_descriptors()
    }

    /// Superframes come to this core by descriptors: it matters in whose caches they are.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.attendance.is_bulk()
    }

    /// The owner has polled the queue at `index`.
    #[inline]
    pub(super) fn note_bulk(&self, state: &CoreState, index: usize) {
        if state.descriptors >> index & 1 != 0 {
            self.attendance.set_bulk(state.napis[index].is_bulk());
        }
    }

    /// The calling thread has polled, and will most likely again.
    pub(super) fn note_poll(&self, cx: &mut Cx) {
        if self.has_descriptors() {
            self.attendance.note_poll(cx.poller(), (cx.now + POLLED_MAX).as_nanos());
            cx.note_polled(&self.this);
        }
    }

    /// An application thread has polled the core a moment ago, and will most likely again.
    #[must_use]
    pub fn is_polled(&self, now: Instant) -> bool {
        self.attendance.is_polled(now.as_nanos())
    }

    /// The thread that has polled goes to sleep: from here on the worker must look at the queues. Not so if another thread has
    /// polled since, or this one has never had the core: the other one will be back, or say that it is not.
    ///
    /// With `prefer` (`SO_PREFER_BUSY_POLL`) it will be back soon, and the worker leaves the descriptors alone for the longest
    /// `gro_flush_timeout` of the core's devices; where there is none the wish has no effect, as in Linux.
    pub fn stop_polling(&self, cx: &mut Cx, host: &Host, prefer: bool) {
        let timeout = if prefer { self.flush_timeout(cx.sysctls_of(host)) } else { Duration::ZERO };
        if !timeout.is_zero() {
            self.attendance.prefer_poll(cx.poller(), (cx.now + timeout).as_nanos());
            cx.note_polled(&self.this);
            return;
        }
        self.attendance.stop_polling(cx.poller(), cx.now.as_nanos());
    }

    /// The longest `gro_flush_timeout` of the devices polled here.
    fn flush_timeout(&self, sysctls: &Sysctls) -> Duration {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let timeouts =
            places.iter().map(|(device, _)| sysctls.devices.of(*device).gro_flush_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// The queue is polled by time for now (`napi_defer_hard_irqs`): its descriptor is not to be watched.
    #[must_use]
    pub fn is_masked(&self, napi: NapiId) -> bool {
        self.attendance.masked() & napi.bit() != 0
    }

    /// The calling thread polls from here on. A worker that sleeps on the descriptors meanwhile is woken by every superframe, on
    /// the caller's CPU or its sender's, and sleeps again at once because it is gone: instead it is woken once, and leaves
    /// them alone. Single frames are not worth a kick: who waits for one polls for a moment only.
    #[inline]
    pub(super) fn relieve_worker(&self, cx: &mut Cx) {
        if !self.is_bulk() {
            return;
        }
        let until = cx.now + POLLED_MAX;
        if self.attendance.relieve_worker(cx.poller(), until.as_nanos()) {
            cx.note_polled(&self.this);
        }
    }

    /// A worker that has yielded looks at its queues again. If that it sleeps is missed here, its sleep ends
    /// after [`YIELD_MAX`].
    pub(super) fn resume_worker(&self) {
        self.attendance.resume_worker();
    }

    /// Wakes the worker. False if the core has none.
    pub(super) fn kick_worker(&self) -> bool {
        self.attendance.kick_worker()
    }

    /// Gives a scheduled core to its worker. False if it has none: then the caller must run it.
    pub(crate) fn hand_to_worker(&self, cx: &mut Cx) -> bool {
        // The run stays owed (SCHED), and the worker's `try_own` takes it. The workers of a host that is shut down end,
        // but not before they have taken what was owed when it was still up.
        let Some(host) = self.host.upgrade().filter(|host| host.check_up().is_ok()) else {
            return false;
        };
        if !self.kick_worker() {
            return false;
        }
        let entered = cx.enter(&host);
        cx.count(Counter::CoreHandoffs, 1);
        cx.leave(entered);
        true
    }

    /// Kicks the worker if it sleeps past `deadline`.
    pub fn wake_before(&self, deadline: Instant) {
        self.attendance.wake_before(deadline.as_nanos());
    }

    /// Called by a worker about to park: announces it and returns until when it may sleep (`None`: for ever). With
    /// `yielding` it sleeps because another thread runs the core, or has polled it a moment ago, and is kicked when that
    /// thread lets go.
    ///
    /// Frames that in-process devices deliver after this call ring their own sender; a descriptor is watched by the
    /// caller. So nothing is looked for again.
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

    /// Nobody runs the core, nor has polled it a moment ago.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.attendance.is_free(&self.lock)
    }

    /// The worker is awake again.
    pub fn finish_sleep(&self) {
        self.attendance.finish_sleep();
    }

    /// When this core has something to do although nothing arrives. `None` when nothing is armed.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.sockets.tasklet().is_pending() || self.lock.is_owed() {
            return Some(Instant::ZERO);
        }
        let timer = self.attendance.next_timer().map(Instant::from_nanos);
        let host = self.host.upgrade()?;
        let device = host.queue_deadline(self.id);
        match (timer, device) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
