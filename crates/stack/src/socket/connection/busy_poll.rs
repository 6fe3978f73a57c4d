//! How a thread that waits for a socket polls: the three options and the settings behind them.
//!
//! Linux: `sk_ll_usec`, `sk_prefer_busy_poll` and `sk_busy_poll_budget`; `napi_busy_loop`. Above: whoever has threads that
//! wait. Below: `core::Core::busy_poll`.

use core::{
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
    time::Duration,
};

use crate::sysctl::Sysctls;

/// Frames one cycle takes before it looks whether it is done, where no option says otherwise (`BUSY_POLL_BUDGET`).
pub const BUSY_POLL_BUDGET: u16 = 8;

/// What the application has set on a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`: how many microseconds a read polls before it sleeps. `None` leaves it to `net.core.busy_read`.
    pub usecs: Option<u32>,
    /// `SO_PREFER_BUSY_POLL`: a thread that stops polling will be back. Its device's queue is left alone meanwhile, for
    /// `gro_flush_timeout` of the device at most.
    pub prefer: bool,
    /// `SO_BUSY_POLL_BUDGET`: frames of one cycle. `None` is [`BUSY_POLL_BUDGET`].
    pub budget: Option<u16>,
}

/// How one wait polls: the options with the settings where there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPollParams {
    /// How long; zero sleeps at once.
    pub time: Duration,
    /// The thread will be back.
    pub prefer: bool,
    /// Frames of one cycle.
    pub budget: usize,
}

impl BusyPoll {
    /// Of a wait for data.
    #[must_use]
    pub fn for_read(self, sysctls: &Sysctls) -> BusyPollParams {
        self.params(self.usecs.unwrap_or(sysctls.busy_read))
    }

    /// Of a wait for anything else: room to send, a connection, its end.
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

/// No option: the marker for `usecs`.
const USECS_NONE: u32 = u32::MAX;
/// No option: the marker for `budget`, as which a budget of nothing counts.
const BUDGET_NONE: u16 = 0;

/// The options of a connection, which calls look at without holding it. Relaxed: an option orders nothing.
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
