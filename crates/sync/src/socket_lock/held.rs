//! Release of the lock, the same for both kinds of holder.

use core::marker::PhantomData;

use super::{BACKLOG, DEFERRED, DEFERRED_SHIFT, SocketLock, WAITERS, Work};
use crate::llist::Linked;
use crate::shim::Ordering;

/// The held lock, of either kind. Dropping it (a panic in `run`) frees the lock and leaves the work
/// marked.
pub(super) struct Held<'a, T, P: Linked> {
    pub(super) lock: &'a SocketLock<T, P>,
    /// `OWNED` or `SOFTIRQ_BUSY`, whichever this holder has set.
    holder: u64,
    /// Marker: for `Send` and `Sync`, a guard is like a `&mut T`.
    owns: PhantomData<&'a mut T>,
}

impl<'a, T, P: Linked> Held<'a, T, P> {
    /// Makes the guard of a caller that has just set `holder` in a word that was free.
    pub(super) fn new(lock: &'a SocketLock<T, P>, holder: u64) -> Self {
        Self { lock, holder, owns: PhantomData }
    }

    pub(super) fn value_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and `&mut self` makes this the only reference through
        // it.
        unsafe { &mut *self.lock.value.with_mut(|value| value) }
    }

    /// Runs all work and frees the lock.
    #[inline]
    pub(super) fn leave(self, run: &mut impl FnMut(&mut T, Work<P>)) {
        match self.lock.exchange(self.holder, 0, Ordering::AcqRel) {
            Ok(_) => core::mem::forget(self),
            Err(word) => self.leave_disturbed(word, run),
        }
    }

    /// As [`leave`](Self::leave), if there is work, or threads sleep.
    #[cold]
    fn leave_disturbed(mut self, mut word: u64, run: &mut impl FnMut(&mut T, Work<P>)) {
        loop {
            while let Some(left) = self.run_some(word, run) {
                word = left;
            }
            match self.lock.exchange(word, 0, Ordering::AcqRel) {
                Ok(_) => break,
                Err(found) => word = found,
            }
        }
        if word & WAITERS != 0 {
            self.lock.sleepers.notify_one();
        }
        core::mem::forget(self);
    }

    /// Runs one round of the backlog, or of deferred work if there is no backlog; `None` if `word`
    /// shows neither. Returns the word as last seen, which may be out of date.
    pub(super) fn run_some(
        &mut self,
        word: u64,
        run: &mut impl FnMut(&mut T, Work<P>),
    ) -> Option<u64> {
        if word & BACKLOG != 0 {
            return Some(self.drain(run));
        }
        if word & DEFERRED == 0 {
            return None;
        }
        // Acquire: the data that a bit stands for is visible to the work.
        let before = self.lock.word.fetch_and(!DEFERRED, Ordering::AcqRel);
        let bits = (before & DEFERRED) >> DEFERRED_SHIFT;
        let bits = u8::try_from(bits).expect("masked to eight bits");
        run(self.value_mut(), Work::Deferred(bits));
        Some(before & !DEFERRED)
    }

    /// Runs one round of the backlog: the items in it now.
    #[cold]
    pub(super) fn drain(&mut self, run: &mut impl FnMut(&mut T, Work<P>)) -> u64 {
        // The bit is cleared before the list is taken: an item pushed after that sets the bit
        // again.
        let before = self.lock.word.fetch_and(!BACKLOG, Ordering::AcqRel);
        for item in self.lock.backlog.take_all() {
            run(self.value_mut(), Work::Item(item));
        }
        before & !BACKLOG
    }
}

impl<T, P: Linked> Drop for Held<'_, T, P> {
    fn drop(&mut self) {
        let before = self.lock.word.fetch_and(!(self.holder | WAITERS), Ordering::AcqRel);
        if before & WAITERS != 0 {
            self.lock.sleepers.notify_one();
        }
    }
}
