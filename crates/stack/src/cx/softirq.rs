//! The cores that a context has to run before its thread returns to the application.
//!
//! Linux: the softirq pending mask, and the CPU's `poll_list`. Here a context may own the cores in it already, so a list that ends
//! with its context, because the thread panics, gives them back: nobody else could run them.

use core::fmt::Debug;
use std::{collections::VecDeque, sync::Arc};

use sync::{Claim, Poller};

use super::{Cx, event::Event};
use crate::base::ids::NapiId;

/// A core, to code below it that makes it run: doorbells, packets for another core's backlog, contexts. One virtual call for each of
/// these, none for a packet.
pub(crate) trait RunCore: Debug + Send + Sync {
    /// A frame arrived on `napi`. The caller owns the core from here on if nobody did, and raises it in its context.
    fn own_or_schedule(&self, napi: NapiId) -> Option<Claim>;

    /// A frame arrived on `napi`, and the caller has no running context: the worker runs the core,
    /// unless another thread runs it. A core without a worker keeps the queue's bit, so that its next
    /// deadline is due at once and the next thread that runs the core polls the queue.
    fn schedule_on_worker(&self, napi: NapiId);

    /// Packets have been put into the backlog, which was empty. True if nobody else will run the core, so that the caller has to
    /// raise it in its context. Linux: `napi_schedule_rps`.
    fn schedule_backlog(&self) -> bool;

    /// Runs a core that was raised in this context.
    fn run_scheduled(&self, cx: &mut Cx, owed: Owed);

    /// As [`run_scheduled`](Self::run_scheduled), for a context that has run cores for long enough: another thread will run it.
    fn hand_over(&self, cx: &mut Cx, owed: Owed);

    /// A context that owes this core a run ends before it runs the core, because its thread panics. The worker runs it, or the next
    /// thread that rings its doorbell.
    fn disown(&self, owed: Owed);

    /// One turn on the way, if nobody else runs the core and its queues have descriptors.
    fn poll_in_passing(&self, cx: &mut Cx);

    /// The thread of `poller` will not poll here again soon: from here on the worker watches the queues, unless another thread has
    /// polled since.
    fn leave_polling(&self, poller: Poller);

    /// Passes an event to the host, unless that is gone.
    fn report(&self, event: Event);
}

/// Why a core has to be run.
#[derive(Debug)]
pub(crate) enum Owed {
    /// It was nobody's, and is this context's from then on.
    Claim(Claim),
    /// A run is owed, to be begun by who comes first.
    Run,
}

/// See the module head.
#[derive(Debug)]
pub(super) struct Softirq {
    /// Cores to be run, by their places among those known.
    raised: VecDeque<(usize, Owed)>,
    /// Cores that were raised here, so that raising one again writes no count that others write. `None` while it is run.
    cores: Vec<Option<Arc<dyn RunCore>>>,
}

impl Default for Softirq {
    fn default() -> Self {
        Self { raised: VecDeque::with_capacity(8), cores: Vec::with_capacity(8) }
    }
}

impl Softirq {
    /// Whether a core is to be run.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        !self.raised.is_empty()
    }

    /// Remembers `core`.
    #[inline]
    pub(super) fn raise(&mut self, core: &Arc<dyn RunCore>, owed: Owed) {
        let is_core = |known: &Option<Arc<dyn RunCore>>| matches!(known, Some(known) if Arc::ptr_eq(known, core));
        let place = match self.cores.iter().position(is_core) {
            Some(place) => place,
            None => self.place_for(Arc::clone(core)),
        };
        self.raised.push_back((place, owed));
    }

    /// A place for a core that was not raised here lately: that of one that nobody else has any more, or a new one.
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

    /// The core to be run next, with its place, which is empty meanwhile: raised again from inside, it gets another, and this one
    /// may get another core.
    #[inline]
    pub(super) fn take_next(&mut self) -> Option<(Arc<dyn RunCore>, usize, Owed)> {
        let (place, owed) = self.raised.pop_front()?;
        let core = self.cores[place].take().expect("a raised core is in its place");
        Some((core, place, owed))
    }

    /// `core` has been run.
    #[inline]
    pub(super) fn put_back(&mut self, place: usize, core: Arc<dyn RunCore>) {
        self.cores[place].get_or_insert(core);
    }
}

impl Drop for Softirq {
    fn drop(&mut self) {
        for (place, owed) in self.raised.drain(..) {
            // A place is empty if the panic came out of the turn of its core, which has been let go then.
            if let Some(core) = &self.cores[place] {
                core.disown(owed);
            }
        }
    }
}
