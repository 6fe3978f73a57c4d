//! Threads that a worker wakes only when it has let go of the core.
//!
//! What a woken thread does first is to want the core that the worker still has. One that reads superframes is also left what has
//! arrived meanwhile, for it is in its caches that it matters (`Core::run_as_worker`).
//!
//! Not here: when that is worth it (`core::run`), and what becomes of what is left (`core::sleep`).

use sync::{EventCount, Wakes};

use super::Cx;

/// Threads that are woken when the core is free: what they do next is to want it.
#[derive(Debug, Default)]
pub(super) struct HeldWakes {
    wakes: Wakes,
    /// They are held back now.
    holds: bool,
    /// One of them waits to read.
    reader: bool,
    /// What has arrived since is left to it.
    left: bool,
}

impl Cx {
    /// Those who wait for a stream are woken by [`release_wakes`](Self::release_wakes) from here on.
    pub(crate) const fn hold_wakes(&mut self) {
        self.wakes.holds = true;
    }

    /// The core is free: wakes those who were held back.
    pub(crate) fn release_wakes(&mut self) {
        self.wake_held();
        self.wakes.holds = false;
    }

    /// The core will not be free soon: they need not wait for it, and nothing is left to them.
    pub(crate) fn wake_held(&mut self) {
        (self.wakes.reader, self.wakes.left) = (false, false);
        self.wakes.wakes.wake();
    }

    /// If a reader is held back, what has not been fetched yet is left to it. True if so.
    pub(crate) const fn leave_to_reader(&mut self) -> bool {
        self.wakes.left |= self.wakes.reader;
        self.wakes.reader
    }

    /// Something has been left to a reader who is still to be woken.
    pub(crate) const fn has_left(&self) -> bool {
        self.wakes.left
    }

    /// Wakes all `waiters` of a socket whose lock has been left since they have something to wake for, and who wait to `read` or to
    /// write: now, or when the core is free. True if there were any.
    #[inline]
    pub(crate) fn notify_all(&mut self, waiters: &EventCount, read: bool) -> bool {
        let HeldWakes { wakes, holds, reader, .. } = &mut self.wakes;
        if !*holds {
            return waiters.notify_all_behind();
        }
        let any = waiters.notify_all_later(wakes);
        *reader |= any && read;
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn nothing_is_left_to_a_reader_who_is_woken_before_the_core_is_free() {
        let memory = Memory::new(1 << 20);
        let mut cx = Cx::replay(&memory, 1);
        let (readers, writers) = (EventCount::new(), EventCount::new());
        cx.hold_wakes();
        let _writer = writers.prepare();
        assert!(cx.notify_all(&writers, false) && !cx.leave_to_reader() && !cx.has_left());
        let _reader = readers.prepare();
        assert!(cx.notify_all(&readers, true) && cx.leave_to_reader() && cx.has_left());
        cx.wake_held();
        assert!(!cx.has_left(), "the core was not free: it may have gone to sleep again");
        assert!(!cx.leave_to_reader());
        cx.release_wakes();
    }
}
