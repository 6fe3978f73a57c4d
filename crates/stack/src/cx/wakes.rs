//! Threads that a worker wakes only after it has released the core.
//!
//! Wakes are deferred because the first thing a woken thread does is try to own the core. If such a
//! thread waits to read superframes (packets of several segments), the worker also leaves it the
//! frames that arrive meanwhile, so that these are loaded into the caches of the reader's CPU
//! (`Core::run_as_worker`).
//!
//! Not here: when to defer wakes (`core::run`), and which thread fetches the frames left to a
//! reader (`core::sleep`).

use sync::{EventCount, Wakes};

use super::Cx;

/// Threads to wake after the release of the core.
#[derive(Debug, Default)]
pub(super) struct HeldWakes {
    wakes: Wakes,
    /// True while wakes are deferred.
    holds: bool,
    /// True if a deferred thread waits to read.
    reader: bool,
    /// True if frames that arrived after the deferral are left to that reader.
    left: bool,
}

impl Cx {
    /// Defers the wakes of threads that wait for a stream until
    /// [`release_wakes`](Self::release_wakes).
    pub(crate) const fn hold_wakes(&mut self) {
        self.wakes.holds = true;
    }

    /// Wakes the deferred threads after the core was released.
    pub(crate) fn release_wakes(&mut self) {
        self.wake_held();
        self.wakes.holds = false;
    }

    /// Wakes the deferred threads although the core is not released, because its owner will keep it
    /// for a while. No frames are left to these threads.
    pub(crate) fn wake_held(&mut self) {
        (self.wakes.reader, self.wakes.left) = (false, false);
        self.wakes.wakes.wake();
    }

    /// Leaves the frames not yet received to a reader whose wake is deferred. Returns false if
    /// there is no such reader.
    pub(crate) const fn leave_to_reader(&mut self) -> bool {
        self.wakes.left |= self.wakes.reader;
        self.wakes.reader
    }

    /// Returns whether frames have been left to a reader that is still to be woken.
    pub(crate) const fn has_left(&self) -> bool {
        self.wakes.left
    }

    /// Wakes all `waiters` of a socket, at once or after the release of the core. `read` says that
    /// they wait to read, not to write. The caller has released the lock of the socket since the
    /// event. Returns true if there were waiters.
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
    fn no_frames_are_left_to_a_reader_that_is_woken_before_the_core_is_released() {
        let memory = Memory::new(1 << 20);
        let mut cx = Cx::replay(&memory, 1);
        let (readers, writers) = (EventCount::new(), EventCount::new());
        cx.hold_wakes();
        let _writer = writers.prepare();
        assert!(cx.notify_all(&writers, false) && !cx.leave_to_reader() && !cx.has_left());
        let _reader = readers.prepare();
        assert!(cx.notify_all(&readers, true) && cx.leave_to_reader() && cx.has_left());
        cx.wake_held();
        assert!(
            !cx.has_left(),
            "frames were left to a woken reader, which may sleep again before the release"
        );
        assert!(!cx.leave_to_reader());
        cx.release_wakes();
    }
}
