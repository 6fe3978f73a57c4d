//! State shared by the sockets of one core: the timer wheel, and the list of sockets that may send
//! again.
//!
//! Above: a turn of the core (`turn::turn`: one pass of its softirq work), which expires the timers
//! and resumes the sockets in the list. Below: the owners of timers (`TimerEntry`), and completions
//! of packets, which add to the list. Linux: the per-CPU timer base, `struct tsq_tasklet`;
//! `mod_timer`, `timer_delete`, `__run_timers`.
//!
//! Not here: which thread runs the core (`core`).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    vec::Vec,
};

use pkt::Instant;
use sync::Attendance;

use super::{
    listener::request::RequestSocket,
    time_wait::TimeWaitSocket,
    wmem::{StreamTimer, Tasklet},
};
use crate::{
    base::{
        ids::{CoreId, DeviceIndex},
        timer::{TimerHandle, TimerWheel},
    },
    transmit::neighbor::table::NeighborEntry,
};

/// Owner of a timer. Weak, so that a timer keeps no object alive.
#[derive(Debug)]
pub(crate) enum TimerEntry {
    Stream(StreamTimer),
    Request(Weak<RequestSocket>),
    TimeWait(Weak<TimeWaitSocket>),
    Neighbor(Weak<NeighborEntry>),
    /// Addresses that the host claims (RFC 5227, RFC 4862).
    Claims,
    /// Fragments of incomplete datagrams, of IPv4 if true, otherwise of IPv6.
    Fragments(bool),
    /// UDP sessions of a device that intercepts.
    Sessions(DeviceIndex),
    /// Reports of multicast groups.
    GroupReports,
    /// Routers, prefixes and addresses that a link has announced (RFC 4862).
    Autoconf,
}

/// Timers of one core, and its sockets that may send again.
#[derive(Debug)]
pub(crate) struct CoreSockets {
    core: CoreId,
    timers: Mutex<TimerWheel<TimerEntry>>,
    /// Record of the threads that run or watch the core. An earlier deadline must wake its worker.
    attendance: Arc<Attendance>,
    /// Sockets throttled by TCP Small Queues that may send again.
    tasklet: Arc<Tasklet>,
}

impl CoreSockets {
    /// Creates the state of `core`. `attendance` tracks the core's worker and the threads that poll
    /// the core.
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
        // A worker sleeps until the next time of the wheel, and this time is compared. The exact
        // deadline is earlier, and a comparison with it would cause needless wakeups.
        self.attendance.wake_before(next.as_nanos());
        TimerHandle { core: self.core, key }
    }

    /// Removes from the wheel a timer that has not fired. A worker that sleeps until the time of
    /// the timer wakes up once without work. Any context may call this.
    pub(crate) fn disarm(&self, handle: TimerHandle) {
        debug_assert_eq!(handle.core, self.core);
        let removed = {
            let mut timers = self.timers();
            let removed = timers.remove(handle.key);
            let _ = self.publish_next_timer(&timers);
            removed
        };
        // Dropped outside the lock: the entry may hold the last reference to its owner's memory.
        drop(removed);
    }

    /// Moves the entries that are due at `now` into `due`.
    pub(crate) fn expire(&self, now: Instant, due: &mut Vec<TimerEntry>) {
        let mut timers = self.timers();
        timers.expire(now, |entry| due.push(entry));
        let _ = self.publish_next_timer(&timers);
    }

    /// Returns the number of entries in the timer wheel, including stale ones.
    pub(crate) fn timers_armed(&self) -> usize {
        self.timers().len()
    }

    /// Removes every timer, because the host is dropped.
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
