//! Busy polling by a thread that waits for a socket: the three socket options, and the settings
//! that apply where no option is set.
//!
//! Linux: `sk_ll_usec`, `sk_prefer_busy_poll` and `sk_busy_poll_budget`; `napi_busy_loop`. Above:
//! the waiting threads. Below: `core::Core::busy_poll`.

use core::{
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
    time::Duration,
};

use crate::sysctl::Sysctls;

/// Default number of frames that a thread polls in one cycle, before it checks whether the awaited
/// event has occurred (`BUSY_POLL_BUDGET`).
pub const BUSY_POLL_BUDGET: u16 = 8;

/// Busy polling options that the application has set on a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`: time that a read polls before it sleeps, in microseconds. `None` selects
    /// `net.core.busy_read`.
    pub usecs: Option<u32>,
    /// `SO_PREFER_BUSY_POLL`: the application promises that a thread that stops polling will poll
    /// again soon. Until then, the file descriptors of the core's queues are not watched, for at
    /// most `gro_flush_timeout`.
    pub prefer: bool,
    /// `SO_BUSY_POLL_BUDGET`: frames per cycle. `None` is [`BUSY_POLL_BUDGET`].
    pub budget: Option<u16>,
}

/// Parameters of one wait: the options, or the settings where no option is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPollParams {
    /// Maximum polling time; with zero, the thread sleeps without polling.
    pub time: Duration,
    /// True if the thread will poll again soon after it stops polling.
    pub prefer: bool,
    /// Frames per cycle.
    pub budget: usize,
}

impl BusyPoll {
    /// Returns the parameters of a wait for data.
    #[must_use]
    pub fn for_read(self, sysctls: &Sysctls) -> BusyPollParams {
        self.params(self.usecs.unwrap_or(sysctls.busy_read))
    }

    /// Returns the parameters of a wait for another event: space to send, an incoming connection,
    /// or the end of a connection.
    #[must_use]
    pub fn for_event(self, sysctls: &Sysctls) -> BusyPollParams {
        self.params(sysctls.busy_poll)
    }

    fn params(self, usecs: u32) -> BusyPollParams {
        BusyPollParams {
            time: Duration::from_micros(u64::from(usecs)),
            prefer: self.prefer,
            budget: usize::from(self.budget.unwrap_or(BUSY_POLL_BUDGET)).max(1),
        }
    }
}

/// Value of `usecs` if the option is not set.
const USECS_NONE: u32 = u32::MAX;
/// Value of `budget` if the option is not set. A budget of zero counts as not set.
const BUDGET_NONE: u16 = 0;

/// Busy polling options of a connection or datagram socket, which calls read without owning the
/// socket. The accesses are relaxed, because the options order no other data.
#[derive(Debug)]
pub(crate) struct BusyPollCell {
    usecs: AtomicU32,
    prefer: AtomicBool,
    budget: AtomicU16,
}

impl Default for BusyPollCell {
    fn default() -> Self {
        Self {
            usecs: AtomicU32::new(USECS_NONE),
            prefer: AtomicBool::new(false),
            budget: AtomicU16::new(BUDGET_NONE),
        }
    }
}

impl BusyPollCell {
    pub(crate) fn set(&self, options: BusyPoll) {
        self.usecs.store(options.usecs.unwrap_or(USECS_NONE), Ordering::Relaxed);
        self.prefer.store(options.prefer, Ordering::Relaxed);
        self.budget.store(options.budget.unwrap_or(BUDGET_NONE), Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> BusyPoll {
        let usecs = self.usecs.load(Ordering::Relaxed);
        let budget = self.budget.load(Ordering::Relaxed);
        BusyPoll {
            usecs: (usecs != USECS_NONE).then_some(usecs),
            prefer: self.prefer.load(Ordering::Relaxed),
            budget: (budget != BUDGET_NONE).then_some(budget),
        }
    }
}
