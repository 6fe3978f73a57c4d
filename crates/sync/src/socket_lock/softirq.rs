//! The guards of a core in softirq: [`Softirq`] while it holds the lock, [`Admitted`] while another
//! thread does.

use core::fmt;
use core::ops::{Deref, DerefMut};

use super::{BACKLOG, Queued, SocketLock, Work, held::Held};
use crate::llist::Linked;

/// The socket, held by a core in softirq. Call [`run_older`](Self::run_older), run the item, and
/// end with [`leave`](Self::leave).
///
/// Dropping it frees the lock but runs no work, as for [`Owned`](super::Owned).
#[must_use = "leave it, so that the backlog is run"]
pub struct Softirq<'a, T, P: Linked> {
    held: Held<'a, T, P>,
    /// Whether the backlog has items that are older than the caller's.
    older: bool,
}

impl<'a, T, P: Linked> Softirq<'a, T, P> {
    pub(super) const fn new(held: Held<'a, T, P>, older: bool) -> Self {
        Self { held, older }
    }

    /// Runs the items that an earlier holder has left, before the caller runs its own.
    #[inline]
    pub fn run_older(&mut self, run: &mut impl FnMut(&mut T, Work<P>)) {
        if self.older {
            self.held.drain(run);
        }
    }

    /// Runs all work that has arrived, and frees the lock.
    #[inline]
    pub fn leave(self, run: &mut impl FnMut(&mut T, Work<P>)) {
        self.held.leave(run);
    }
}

impl<T, P: Linked> Deref for Softirq<'_, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, and `&self` admits only shared references to the
        // value.
        unsafe { &*self.held.lock.value.with(|value| value) }
    }
}

impl<T, P: Linked> DerefMut for Softirq<'_, T, P> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.value_mut()
    }
}

impl<T: fmt::Debug, P: Linked> fmt::Debug for Softirq<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Softirq").field(&**self).finish()
    }
}

/// Room for one item in the backlog of a lock that another thread holds. Its bytes stay admitted
/// until the backlog is next empty, also if this is dropped.
#[must_use = "queue the item"]
pub struct Admitted<'a, T, P: Linked> {
    lock: &'a SocketLock<T, P>,
}

impl<'a, T, P: Linked> Admitted<'a, T, P> {
    pub(super) const fn new(lock: &'a SocketLock<T, P>) -> Self {
        Self { lock }
    }

    /// Queues `item`. It runs later, possibly on another thread, and must own everything it needs.
    /// If the holder has left meanwhile, `run` runs the backlog here.
    pub fn queue(self, item: P, run: &mut impl FnMut(&mut T, Work<P>)) -> Queued {
        self.lock.backlog.push(item);
        self.lock.mark(BACKLOG, run)
    }
}

impl<T, P: Linked> fmt::Debug for Admitted<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").finish_non_exhaustive()
    }
}
