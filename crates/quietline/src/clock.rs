//! The monotonic clock, read once per call or turn, and the running context of each thread.

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
            // Another thread may use the context's packet memory, or the keeper releases it.
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

/// As [`with_cx`], at the time that this thread read last. For calls that need no time or read the
/// clock themselves; reading the clock costs half as much as processing a packet.
///
/// Creates a context for the call if the thread is being torn down, or if it calls the stack from
/// inside the stack (from a [`Device`](stack::Device) of the application, which must not block
/// there).
pub(crate) fn with_cx_untimed<R>(work: impl FnOnce(&mut Cx) -> R) -> R {
    let own = CX.try_with(|own| own.0.take()).ok().flatten();
    let mut cx = own.unwrap_or_else(new_cx);
    let result = work(&mut cx);
    // Without this, no object removed from an RCU table would ever be freed.
    cx.rest();
    debug_assert!(!cx.softirq_pending(), "this thread must run a core before it returns");
    // Drops the context that a nested call has left in the cell.
    let _ = CX.try_with(|own| own.0.set(Some(cx)));
    result
}

fn new_cx() -> Box<Cx> {
    let cx = Cx::new(memory(), entropy::rng()).with_clock(now);
    cx.linger();
    Box::new(cx)
}
