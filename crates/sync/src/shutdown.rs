//! Shutdown of an object with which threads register others: no registered object is left open.
//!
//! Above: `stack::Host`, whose shutdown closes the sockets in its tables while threads open more.
//! Linux: `check_net`.
//!
//! ```text
//!   thread that registers                 thread that shuts down
//!   registers                             begin
//!   check_up → false: closes it itself    closes all registered objects
//! ```
//!
//! Each of the two writes, passes a fence, and then reads what the other has written: either the
//! shutdown finds the registered object, or the thread that registered it finds the shutdown.
//!
//! Not here: the tables, and threads that continue after the shutdown.

use crate::shim::{AtomicBool, Ordering, fence};

/// Whether an object was shut down.
#[derive(Debug)]
pub struct Shutdown {
    /// True after the shutdown. Written once, read by all threads. Relaxed: the fences of `begin`
    /// and `check_up` order it.
    down: AtomicBool,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { down: AtomicBool::new(false) }
    }
}

impl Shutdown {
    /// Begins the shutdown. Returns true to one caller, which then closes all registered objects.
    #[must_use]
    pub fn begin(&self) -> bool {
        let is_first = !self.down.swap(true, Ordering::Relaxed);
        // Pairs with the fence in `check_up`.
        fence(Ordering::SeqCst);
        is_first
    }

    /// Returns whether the shutdown has begun: a hint for a thread that registers nothing.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Returns whether the shutdown has not begun, for a caller that has registered an object: then
    /// the shutdown will find that object.
    #[must_use]
    pub fn check_up(&self) -> bool {
        // Pairs with the fence in `begin`: either the shutdown finds the object that the caller has
        // registered, or the caller finds the shutdown.
        fence(Ordering::SeqCst);
        !self.is_down()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn one_thread_closes_all_registered_objects() {
        let shutdown = Shutdown::default();
        assert!(shutdown.check_up() && !shutdown.is_down());
        assert!(shutdown.begin() && !shutdown.begin());
        assert!(!shutdown.check_up() && shutdown.is_down());
    }

    #[cfg(loom)]
    #[test]
    fn loom_an_object_registered_meanwhile_is_closed_by_one_of_the_two() {
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
            assert!(opener.join().unwrap() || found, "the object is left open");
        });
    }
}
