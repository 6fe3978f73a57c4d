//! Answers of a call that may block.

use stack::Errno;

/// Progress of a call after one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// The call has returned this value.
    Ready(T),
    /// The calling thread has to sleep, and to try again when the socket's readiness has changed.
    Blocks,
}

/// Result of one step: an error ends the call.
pub type Answer<T> = Result<Step<T>, Errno>;

/// Reason for which a driver ends a call that blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// The time limit of the call is over.
    TimedOut,
    /// A signal has arrived. Whether the call is restarted (`SA_RESTART`) is the driver's decision.
    Interrupted,
}

impl GiveUp {
    /// The errno of a call that has moved no byte; `timed_out` is the one for a time limit.
    pub(crate) const fn errno(self, timed_out: Errno) -> Errno {
        match self {
            Self::TimedOut => timed_out,
            Self::Interrupted => Errno::EINTR,
        }
    }
}
