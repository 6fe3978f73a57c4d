//! Core that a thread has polled last. The worker of that core does not watch the descriptors until
//! the thread ends its polling.
//!
//! A thread ends its polling when it goes to sleep in a call (`core::Core::stop_polling`). This
//! module ends it in the other cases: the thread polls another core, closes a socket, or exits. A
//! thread that computes, or waits for an event outside the stack, does not report the end of its
//! polling; then the worker watches the descriptors again after a timeout.

use std::sync::Weak;

use sync::Poller;

use super::softirq::RunCore;

/// Polling state of one context.
#[derive(Debug)]
pub(super) struct Polling {
    /// Number of this context among those that poll.
    poller: Poller,
    /// Core polled last. `None` if the polling has ended.
    core: Option<Weak<dyn RunCore>>,
}

impl Polling {
    pub(super) fn new(number: u64) -> Self {
        Self { poller: Poller::new(number), core: None }
    }

    pub(super) const fn poller(&self) -> Poller {
        self.poller
    }

    /// Records that the thread polls `core`, and ends its polling of another core.
    pub(super) fn note(&mut self, core: &Weak<dyn RunCore>) {
        if !self.core.as_ref().is_some_and(|known| Weak::ptr_eq(known, core)) {
            self.leave();
            self.core = Some(Weak::clone(core));
        }
    }

    /// Ends the polling.
    pub(super) fn leave(&mut self) {
        if let Some(core) = self.core.take().and_then(|core| core.upgrade()) {
            core.leave_polling(self.poller);
        }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.leave();
    }
}
