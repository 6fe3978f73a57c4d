//! The clock of the product, read once per call or turn, and the running context of each thread.

use std::cell::Cell;

use pkt::Instant;
use rustix::time::{ClockId, clock_gettime};
use stack::Cx;

pub(crate) use crate::memory::memory;
use crate::{entropy, housekeeping};

thread_local! {
    static CX: Context = const { Context(Cell::new(None)) };
}

/// The running context of a thread, between its calls.
struct Context(Cell<Option<Box<Cx>>>);

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(cx) = self.0.take() {
            drop(cx);
            // Its packet memory waits for another thread, or to be released.
            housekeeping::request();
        }
    }
}

/// Monotonic time since boot.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// Runs `work` with the context of the calling thread, at the present time.
pub(crate) fn with_cx<R>(work: impl FnOnce(&mut Cx) -> R) -> R {
    with_cx_untimed(|cx| {
        cx.set_now(now());
        work(cx)
    })
}

/// As [`with_cx`], at the time that this thread read last: for what asks no time, or looks at the clock itself where it has to.
/// Such a look costs as much as half a packet.
///
/// A thread that is being torn down, or that calls the stack from inside the stack (from a [`Device`](stack::Device) of the
/// application's, which must not wait there), gets a context of its own for the call.
pub(crate) fn with_cx_untimed<R>(work: impl FnOnce(&mut Cx) -> R) -> R {
    let own = CX.try_with(|own| own.0.take()).ok().flatten();
    let mut cx = own.unwrap_or_else(new_cx);
    let result = work(&mut cx);
    // Or nothing that is taken out of a table would ever be freed.
    cx.rest();
    debug_assert!(!cx.softirq_pending(), "a core that this thread owes a run");
    // What a call inside this one has left there ends here.
    let _ = CX.try_with(|own| own.0.set(Some(cx)));
    result
}

fn new_cx() -> Box<Cx> {
    let cx = Cx::new(memory(), entropy::rng()).with_clock(now);
    cx.linger();
    Box::new(cx)
}
