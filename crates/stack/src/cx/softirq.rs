//! The cores that a context has to run before its thread returns to the application.
//!
//! Linux: the softirq pending mask, and the CPU's `poll_list`. Here a context may own the cores in it already, so a list that ends
//! with its context, because the thread panics, gives them back: nobody else could run them.

use std::{collections::VecDeque, sync::Arc};

use sync::Claim;

use crate::core::Core;

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
    cores: Vec<Option<Arc<Core>>>,
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
    pub(super) fn raise(&mut self, core: &Arc<Core>, owed: Owed) {
        let is_core =
            |known: &Option<Arc<Core>>| matches!(known, Some(known) if Arc::ptr_eq(known, core));
        let place = match self.cores.iter().position(is_core) {
            Some(place) => place,
            None => self.place_for(Arc::clone(core)),
        };
        self.raised.push_back((place, owed));
    }

    /// A place for a core that was not raised here lately: that of one that nobody else has any more, or a new one.
    #[cold]
    fn place_for(&mut self, core: Arc<Core>) -> usize {
        let is_left = |place: usize, known: &Option<Arc<Core>>| {
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
    pub(super) fn take_next(&mut self) -> Option<(Arc<Core>, usize, Owed)> {
        let (place, owed) = self.raised.pop_front()?;
        let core = self.cores[place].take().expect("a raised core is in its place");
        Some((core, place, owed))
    }

    /// `core` has been run.
    #[inline]
    pub(super) fn put_back(&mut self, place: usize, core: Arc<Core>) {
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
