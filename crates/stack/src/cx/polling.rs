//! The core that a thread has polled last: its worker leaves the descriptors to the thread until that says otherwise.
//!
//! A thread says so when it goes to sleep in a call (`core::Core::stop_polling`). Here is what else ends its polling: it polls another
//! core, it closes a socket, or it ends. A thread that computes, or waits for something that is not the stack's, says
//! nothing; then the worker comes back by time.

use std::sync::Weak;

use sync::Poller;

use super::softirq::RunCore;

/// Which context this is among those that poll, and where its last note is.
#[derive(Debug)]
pub(super) struct Polling {
    poller: Poller,
    /// None: it has polled nowhere since it left the last core.
    core: Option<Weak<dyn RunCore>>,
}

impl Polling {
    pub(super) fn new(number: u64) -> Self {
        Self { poller: Poller::new(number), core: None }
    }

    pub(super) const fn poller(&self) -> Poller {
        self.poller
    }

    /// It has left a note at this core, and will not be back at another one.
    pub(super) fn note(&mut self, core: &Weak<dyn RunCore>) {
        if !self.core.as_ref().is_some_and(|known| Weak::ptr_eq(known, core)) {
            self.leave();
            self.core = Some(Weak::clone(core));
        }
    }

    /// It will not be back.
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
