//! How an application thread waits: it runs the stack itself for a little while, then sleeps.
//!
//! A thread that waits for a packet has nothing better to do than to look for it: it polls its connection's core, as
//! Linux does with `net.core.busy_read`. One thread polls a core; others that wait for it sleep at once.

use std::time::Duration;

use pkt::Instant;
use stack::core::CoreId;
use sync::{EventCount, WaitResult};

use crate::{clock, running::Stack};

/// Waits on `events` until `ready`, at most until `deadline`. False when time ran out.
pub(crate) fn wait_until(
    stack: &Stack,
    core: CoreId,
    events: &EventCount,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool,
) -> bool {
    if poll_core(stack, core, &ready) {
        return true;
    }
    if !stack.is_manual() {
        stack.host().cores()[usize::from(core.0)].stop_polling();
    }
    loop {
        let token = events.prepare();
        if ready() {
            events.cancel(token);
            return true;
        }
        let now = clock::now();
        let timeout = match deadline {
            Some(deadline) if deadline <= now => {
                events.cancel(token);
                return false;
            }
            Some(deadline) => deadline.checked_duration_since(now),
            None => None,
        };
        if stack.is_manual() {
            events.cancel(token);
            drive(stack, timeout);
            if ready() {
                return true;
            }
            continue;
        }
        if events.wait(token, timeout) == WaitResult::TimedOut {
            return ready();
        }
        if ready() {
            return true;
        }
    }
}

/// How long a thread polls before it offers its CPU to others, again and again: the thread it waits for may be waiting
/// for this very CPU. Well above the 1.3 µs of a request and its answer between two CPUs: at 2 µs one late answer
/// makes both ends yield, and then every answer is late.
const YIELD_EVERY: Duration = Duration::from_micros(5);

/// Runs the core of the awaited connection for `net.core.busy_read` µs, unless somebody else does.
fn poll_core(stack: &Stack, core: CoreId, ready: &impl Fn() -> bool) -> bool {
    let host = stack.host();
    clock::with_cx(|cx| {
        let budget = Duration::from_micros(u64::from(cx.sysctls_of(host).busy_read));
        if budget.is_zero() {
            return;
        }
        let end = cx.now + budget;
        let mut next_yield = cx.now + YIELD_EVERY;
        host.cores()[usize::from(core.0)].busy_poll(host, cx, |cx| {
            if ready() {
                return true;
            }
            cx.now = clock::now();
            if cx.now >= next_yield {
                next_yield = cx.now + YIELD_EVERY;
                std::thread::yield_now();
            }
            cx.now >= end
        });
    });
    ready()
}

/// A stack without workers: the waiting thread is the one that runs it, sleeping until its next timer.
fn drive(stack: &Stack, timeout: Option<Duration>) {
    /// In-process devices ring the caller; anything else is looked at this often.
    const LOOK_AGAIN: Duration = Duration::from_micros(50);
    let next = stack.poll().unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
    let sleep = timeout.map_or(next, |timeout| timeout.min(next));
    if !sleep.is_zero() {
        std::thread::sleep(sleep);
    }
}
