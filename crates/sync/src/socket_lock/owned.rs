//! The guard of an application thread that owns a socket.

use core::fmt;
use core::ops::{Deref, DerefMut};

use super::{
    BACKLOG, DEFERRED, DEFERRED_SHIFT, FLAGS, HELD, WAITERS, Work, backlog_bytes, held::Held,
};
use crate::llist::Linked;
use crate::shim::Ordering;

/// The socket, owned by an application thread. End with [`release`](Self::release).
///
/// Dropping it frees the lock but runs no work: backlog and deferred work wait for the next holder,
/// however late that comes. That is meant for unwinding.
#[must_use = "release it, so that the backlog is run"]
pub struct Owned<'a, T, P: Linked> {
    pub(super) held: Held<'a, T, P>,
}

impl<T, P: Linked> Owned<'_, T, P> {
    /// Runs backlog and deferred work, and frees the lock at a moment when there is none.
    #[inline]
    pub fn release(self, mut run: impl FnMut(&mut T, Work<P>)) {
        self.held.leave(&mut run);
    }

    /// Runs backlog and deferred work without releasing the lock, so that a long call processes
    /// packets.
    pub fn run_backlog(&mut self, mut run: impl FnMut(&mut T, Work<P>)) {
        let lock = self.held.lock;
        let mut word = lock.word.load(Ordering::Relaxed);
        loop {
            word = if let Some(left) = self.held.run_some(word, &mut run) {
                left
            } else if backlog_bytes(word) == 0 {
                return;
            } else {
                match lock.exchange(word, word & FLAGS, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(found) => found,
                }
            };
        }
    }

    /// Returns the deferred work that waits for this holder, as the bits given to
    /// [`SocketLock::defer`](super::SocketLock::defer). A hint: more may arrive at once.
    pub fn deferred(&self) -> u8 {
        let bits = (self.held.lock.word.load(Ordering::Relaxed) & DEFERRED) >> DEFERRED_SHIFT;
        u8::try_from(bits).expect("masked to eight bits")
    }

    /// Returns whether no work has arrived since the lock was taken, or all of it was processed:
    /// `run_backlog` would find no work and no bytes to reset. A hint: more may arrive at once.
    #[inline]
    pub fn is_undisturbed(&self) -> bool {
        self.held.lock.word.load(Ordering::Relaxed) & !(HELD | WAITERS) == 0
    }

    /// Returns true if `run_backlog` would find work.
    pub fn has_backlog(&self) -> bool {
        self.held.lock.word.load(Ordering::Relaxed) & (BACKLOG | DEFERRED) != 0
    }
}

impl<T, P: Linked> Deref for Owned<'_, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, and `&self` admits only shared references to the
        // value.
        unsafe { &*self.held.lock.value.with(|value| value) }
    }
}

impl<T, P: Linked> DerefMut for Owned<'_, T, P> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.value_mut()
    }
}

impl<T: fmt::Debug, P: Linked> fmt::Debug for Owned<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&**self).finish()
    }
}
