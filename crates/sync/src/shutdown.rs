//! The end of an object that threads register others with: none of these is left behind.
//!
//! Above: `stack::Host`, whose end closes the sockets in its tables while threads open more. Linux: `check_net`.
//!
//! ```text
//!   thread that registers                 thread that shuts down
//!   registers                             begin
//!   check_up → false: closes it itself    closes all that is registered
//! ```
//!
//! Each of the two writes, passes a fence, and then reads what the other has written: either the end finds what was
//! registered, or the thread that registered it finds the end.
//!
//! Not here: the tables, and what becomes of a thread that runs on.

use crate::shim::{AtomicBool, Ordering, fence};

/// Whether an object was shut down. See the module head.
#[derive(Debug)]
pub struct Shutdown {
    /// Written once, read by all threads. Relaxed: the fences of `begin` and `check_up` order it.
    down: AtomicBool,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { down: AtomicBool::new(false) }
    }
}

impl Shutdown {
    /// Begins the end. True for one caller, which then closes all that is registered.
    #[must_use]
    pub fn begin(&self) -> bool {
        let is_first = !self.down.swap(true, Ordering::Relaxed);
        // Pairs with the fence in `check_up`.
        fence(Ordering::SeqCst);
        is_first
    }

    /// Whether the end has begun: a hint for a thread that registers nothing.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Whether the end has not begun, for a caller that has registered something: it is found by the end then.
    #[must_use]
    pub fn check_up(&self) -> bool {
        // Pairs with the fence in `begin`: either the end finds what the caller has registered, or the caller finds the end.
        fence(Ordering::SeqCst);
        !self.is_down()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn one_thread_closes_what_is_registered() {
        let shutdown = Shutdown::default();
        assert!(shutdown.check_up() && !shutdown.is_down());
        assert!(shutdown.begin() && !shutdown.begin());
        assert!(!shutdown.check_up() && shutdown.is_down());
    }

    #[cfg(loom)]
    #[test]
    fn loom_what_is_registered_meanwhile_is_closed_by_one_of_the_two() {
        use loom::{sync::Arc, thread};

        crate::shim::model(|| {
            let world = Arc::new((Shutdown::default(), AtomicBool::new(false)));
            let opener = {
                let world = world.clone();
                thread::spawn(move || {
                    world.1.store(true, Ordering::Relaxed);
                    !world.0.check_up()
                })
            };
            assert!(world.0.begin());
            let found = world.1.load(Ordering::Relaxed);
            assert!(opener.join().unwrap() || found, "left behind");
        });
    }
}
