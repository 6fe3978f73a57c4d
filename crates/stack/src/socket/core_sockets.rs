//! What the sockets of one core share: the timer wheel, and the list of connections that may send again.
//!
//! Above: a turn of the core, which expires the timers and runs the list. Below: connections, requests and remnants, which arm, and
//! completions of packets, which list. Linux: the per-CPU timer base, `struct tsq_tasklet`; `mod_timer`, `timer_delete`,
//! `__run_timers`.
//!
//! Not here: which thread runs the core (`core`).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    vec::Vec,
};

use pkt::Instant;
use sync::Attendance;

use super::{
    connection::wmem::{StreamTimer, Tasklet},
    listener::request::RequestSocket,
    time_wait::TimeWaitSocket,
};
use crate::{
    base::{
        ids::CoreId,
        timer::{TimerHandle, TimerWheel},
    },
    transmit::neighbor::table::NeighborEntry,
};

/// A timer that is due belongs to one of these. Weak: a timer keeps nothing alive.
#[derive(Debug)]
pub(crate) enum TimerEntry {
    Stream(StreamTimer),
    Request(Weak<RequestSocket>),
    TimeWait(Weak<TimeWaitSocket>),
    Neighbor(Weak<NeighborEntry>),
    /// Addresses that the host claims (RFC 5227).
    Claims,
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct CoreSockets {
    core: CoreId,
    timers: Mutex<TimerWheel<TimerEntry>>,
    /// Of the core, which a deadline may have to wake.
    attendance: Arc<Attendance>,
    /// Sockets that TCP Small Queues have stopped and that may go on.
    tasklet: Arc<Tasklet>,
}

impl CoreSockets {
    /// Of `core`, whose worker and pollers are those of `attendance`.
    pub(crate) fn new(core: CoreId, attendance: Arc<Attendance>) -> Self {
        Self {
            core,
            timers: Mutex::new(TimerWheel::new(Instant::ZERO)),
            tasklet: Arc::new(Tasklet::new(Arc::clone(&attendance))),
            attendance,
        }
    }

    pub(crate) const fn tasklet(&self) -> &Arc<Tasklet> {
        &self.tasklet
    }

    /// Arms a timer. Any context may call it.
    pub(crate) fn arm(&self, deadline: Instant, entry: TimerEntry) -> TimerHandle {
        let (key, next) = {
            let mut timers = self.timers();
            let key = timers.insert(deadline, entry);
            (key, self.publish_next_timer(&timers))
        };
        // What a sleeper compares with: the wheel's moment, not the exact one, or it would be woken for nothing.
        self.attendance.wake_before(next.as_nanos());
        TimerHandle { core: self.core, key }
    }

    /// Takes a timer out of the wheel, if it has not fired. A worker that sleeps until then wakes for nothing. Any context may call
    /// it.
    pub(crate) fn disarm(&self, handle: TimerHandle) {
        debug_assert_eq!(handle.core, self.core);
        let removed = {
            let mut timers = self.timers();
            let removed = timers.remove(handle.key);
            let _ = self.publish_next_timer(&timers);
            removed
        };
        // Outside of the lock: the entry may be the last one to know of its owner.
        drop(removed);
    }

    /// Takes the entries that are due at `now` into `due`.
    pub(crate) fn expire(&self, now: Instant, due: &mut Vec<TimerEntry>) {
        let mut timers = self.timers();
        timers.expire(now, |entry| due.push(entry));
        let _ = self.publish_next_timer(&timers);
    }

    /// Entries in the timer wheel, those included that nobody waits for any more.
    pub(crate) fn timers_armed(&self) -> usize {
        self.timers().len()
    }

    /// Forgets every timer: the host is gone.
    pub(crate) fn forget_timers(&self) {
        let mut timers = self.timers();
        if !timers.is_empty() {
            *timers = TimerWheel::new(Instant::ZERO);
        }
    }

    fn timers(&self) -> MutexGuard<'_, TimerWheel<TimerEntry>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish_next_timer(&self, timers: &TimerWheel<TimerEntry>) -> Instant {
        let next = timers.next_deadline();
        self.attendance.set_timer(next.map(Instant::as_nanos));
        next.unwrap_or(Instant::FAR_FUTURE)
    }
}
