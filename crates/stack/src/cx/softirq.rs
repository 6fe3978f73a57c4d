//! Raised cores: the cores that a context must run before its thread returns to the application.
//!
//! Linux: the softirq pending mask, and the CPU's `poll_list`. Here a context may already own the
//! raised cores. If its thread panics before these cores have run, the context releases them,
//! because no other thread could run a core that is still owned.

use core::fmt::Debug;
use std::{collections::VecDeque, sync::Arc};

use sync::{Claim, Poller};

use super::{Cx, event::Event};
use crate::base::ids::NapiId;

/// Core, as seen by code that raises or runs it: doorbells (arrival signals of devices in this
/// process), the hand-over of packets to the backlog of another core, and contexts. A raise is one
/// virtual call; no virtual call is made per packet.
pub(crate) trait RunCore: Debug + Send + Sync {
    /// Signals a frame on `napi`. If no thread owned the core, the caller owns it now and raises it
    /// in its context.
    fn own_or_schedule(&self, napi: NapiId) -> Option<Claim>;

    /// Signals a frame on `napi` for a caller without a running context: the worker runs the core,
    /// unless another thread runs it. A core without a worker keeps the queue's bit, so that its
    /// next deadline is due at once and the next thread that runs the core polls the queue.
    fn schedule_on_worker(&self, napi: NapiId);

    /// Signals packets in the backlog, which was empty. Returns true if no other thread will run
    /// the core, so that the caller must raise it in its context. Linux: `napi_schedule_rps`.
    fn schedule_backlog(&self) -> bool;

    /// Runs a core that was raised in this context.
    fn run_scheduled(&self, cx: &mut Cx, owed: Owed);

    /// Hands a core that was raised in this context to another thread, because the context has run
    /// cores for long enough.
    fn hand_over(&self, cx: &mut Cx, owed: Owed);

    /// Releases a run that a context owes, because the context ends by a panic of its thread. The
    /// worker runs the core, or the next thread that rings its doorbell.
    fn disown(&self, owed: Owed);

    /// Runs a turn (one pass of a core's softirq work), and more if that turn leaves work, if no
    /// other thread owns the core and the core has queues with descriptors.
    fn poll_in_passing(&self, cx: &mut Cx);

    /// Ends the polling of `poller`: the worker watches the queues again, unless another thread has
    /// polled since.
    fn leave_polling(&self, poller: Poller);

    /// Removes the device queues of a core whose host is gone.
    fn remove_queues(&self);

    /// Passes an event to the host, unless the host is gone.
    fn report(&self, event: Event);
}

/// Obligation of a context to run a core.
#[derive(Debug)]
pub(crate) enum Owed {
    /// The core was idle; this context owns it.
    Claim(Claim),
    /// A run is owed, and the first thread that claims the core begins it.
    Run,
}

/// Cores raised in a context.
#[derive(Debug)]
pub(super) struct Softirq {
    /// Cores to run, as indices into `cores`.
    raised: VecDeque<(usize, Owed)>,
    /// Cores raised in this context before. They are kept so that raising one again writes no
    /// shared reference count. An entry is `None` while its core runs.
    cores: Vec<Option<Arc<dyn RunCore>>>,
}

impl Default for Softirq {
    fn default() -> Self {
        Self { raised: VecDeque::with_capacity(8), cores: Vec::with_capacity(8) }
    }
}

impl Softirq {
    /// Returns whether a core is to be run.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        !self.raised.is_empty()
    }

    /// Adds `core` to the cores to run.
    #[inline]
    pub(super) fn raise(&mut self, core: &Arc<dyn RunCore>, owed: Owed) {
        let is_core = |known: &Option<Arc<dyn RunCore>>| matches!(known, Some(known) if Arc::ptr_eq(known, core));
        let place = match self.cores.iter().position(is_core) {
            Some(place) => place,
            None => self.place_for(Arc::clone(core)),
        };
        self.raised.push_back((place, owed));
    }

    /// Returns an index for a core that is not in `cores`: that of a core to which no other
    /// reference exists, or a new one.
    #[cold]
    fn place_for(&mut self, core: Arc<dyn RunCore>) -> usize {
        let is_left = |place: usize, known: &Option<Arc<dyn RunCore>>| {
            known.as_ref().is_none_or(|known| Arc::strong_count(known) == 1)
                && self.raised.iter().all(|(raised, _)| *raised != place)
        };
        let left = self.cores.iter().enumerate().position(|(place, known)| is_left(place, known));
        let place = left.unwrap_or(self.cores.len());
        if left.is_none() {
            self.cores.push(None);
        }
        self.cores[place] = Some(core);
        place
    }

    /// Takes the next core to run. Its entry is `None` until [`put_back`](Self::put_back). If the
    /// core is raised again during its run, it gets another index, and its old index may get
    /// another core.
    #[inline]
    pub(super) fn take_next(&mut self) -> Option<Raised> {
        let (place, owed) = self.raised.pop_front()?;
        let core = self.cores[place].take().expect("the entry of a raised core holds the core");
        Some(Raised { core, place, owed })
    }

    /// Puts back `core` after its run.
    #[inline]
    pub(super) fn put_back(&mut self, place: usize, core: Arc<dyn RunCore>) {
        self.cores[place].get_or_insert(core);
    }
}

/// A core to run, taken from its entry in the list.
pub(super) struct Raised {
    pub(super) core: Arc<dyn RunCore>,
    pub(super) place: usize,
    pub(super) owed: Owed,
}

impl Drop for Softirq {
    fn drop(&mut self) {
        for (place, owed) in self.raised.drain(..) {
            // An entry is `None` if the panic came out of the turn of its core; the turn has
            // released that core.
            if let Some(core) = &self.cores[place] {
                core.disown(owed);
            }
        }
    }
}
