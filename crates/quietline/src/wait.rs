//! Waiting of application threads: a thread first runs the stack itself for a short time, then
//! sleeps.
//!
//! A thread that waits for a packet polls its connection's core, as Linux does with
//! `net.core.busy_read`. One thread polls a core; other threads that wait for the same core sleep
//! at once. A thread that shares its CPU with its peer sleeps at once, too (`polling`): the sender
//! then processes the frame and wakes this thread. On a core with descriptors a thread polls in any
//! case, because otherwise the worker would have to be woken to process the frame.
//!
//! Before a thread sleeps in a read, it yields its CPU once if that has paid lately: a peer on the
//! same CPU answers meanwhile, and neither thread sleeps or has to be woken.

use std::time::Duration;

use pkt::Instant;
use stack::{Cx, base::ids::CoreId, socket::BusyPollParams, sysctl::Sysctls};
use sync::{EventCount, WaitResult};

use crate::{
    clock,
    handle::{Stack, until},
    polling::{self, YieldTimer},
};

/// Parameters of one wait.
pub(crate) struct Wait<'a, P> {
    pub(crate) stack: &'a Stack,
    /// Core that receives the awaited event.
    pub(crate) core: CoreId,
    /// Event count notified when the condition may have become true.
    pub(crate) events: &'a EventCount,
    /// Time at which the wait began.
    pub(crate) began: Instant,
    /// Time at which the wait ends without success.
    pub(crate) deadline: Option<Instant>,
    /// Function from the host's settings to the time and budget of the polling stage.
    pub(crate) polling: P,
}

/// Waits until `ready` returns true. Returns false at the deadline.
pub(crate) fn wait_until(
    wait: &Wait<'_, impl Fn(&Sysctls) -> BusyPollParams>,
    ready: impl Fn() -> bool,
) -> bool {
    poll_first(wait, &ready) || sleep_until(wait, ready)
}

/// Stage 2, after `poll_first` found nothing: one `sched_yield`, so that a peer on this CPU can
/// run. Never sleeps.
pub(crate) fn yield_first<P>(wait: &Wait<'_, P>, ready: &impl Fn() -> bool) -> bool {
    // Without workers the peer may wait for this thread, which drives the stack, so it must not
    // yield.
    !wait.stack.is_manual() && polling::yield_once(ready)
}

/// Stage 3: sleeps until `ready`. Returns false at the deadline.
pub(crate) fn sleep_until<P>(wait: &Wait<'_, P>, ready: impl Fn() -> bool) -> bool {
    sleep_for(wait.stack, wait.events, wait.deadline, ready)
}

/// Sleeps until `events` is notified and `ready` returns true. Returns false at the deadline.
pub(crate) fn sleep_for(
    stack: &Stack,
    events: &EventCount,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool,
) -> bool {
    loop {
        let token = events.prepare();
        if ready() {
            events.cancel(token);
            return true;
        }
        let timeout = deadline.map(|deadline| until(clock::now(), deadline));
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            events.cancel(token);
            return false;
        }
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

/// Stage 1 of [`wait_until`]: polls the core of the awaited connection for a limited time and never
/// sleeps. Does nothing if another thread polls the core or polling has not paid lately. If it
/// finds nothing, it leaves the core to the worker again.
pub(crate) fn poll_first(
    wait: &Wait<'_, impl Fn(&Sysctls) -> BusyPollParams>,
    ready: &impl Fn() -> bool,
) -> bool {
    let Wait { stack, core, deadline, began, polling, .. } = wait;
    let host = stack.host();
    let core = &host.cores()[usize::from(core.0)];
    // On a core with descriptors always poll: waking the worker for each frame costs more than
    // yielding the CPU repeatedly. The rule is per core, so it also covers a peer within the
    // process whose connection is on a core with descriptors.
    let watched = core.has_descriptors();
    let pays = watched || polling::should_poll();
    clock::with_cx_untimed(|cx| {
        cx.set_now(*began);
        let params = polling(cx.sysctls_of(host));
        let rests = |cx: &mut Cx| {
            core.note_sleeper(pays && !params.time.is_zero());
            if !stack.is_manual() {
                if params.prefer {
                    cx.set_now(clock::now());
                }
                core.stop_polling(cx, host, params.prefer);
            }
            false
        };
        if params.time.is_zero() || !pays {
            return rests(cx);
        }
        let end = deadline.map_or(cx.now + params.time, |at| at.min(cx.now + params.time));
        let mut yield_timer = YieldTimer::new(cx.now);
        let mut shared = false;
        core.busy_poll(host, cx, params.budget, |cx| {
            if ready() {
                match (shared, watched) {
                    (true, false) => polling::on_shared_cpu(),
                    // Frames from a descriptor do not tell whether a peer within the process shares
                    // the CPU.
                    (true, true) => {}
                    (false, _) => polling::on_own_cpu(),
                }
                return true;
            }
            cx.now = clock::now();
            shared = yield_timer.yield_if_due(&mut cx.now);
            cx.now >= end
        });
        ready() || rests(cx)
    })
}

/// Runs a stack without workers on the waiting thread, which sleeps until the next timer.
fn drive(stack: &Stack, timeout: Option<Duration>) {
    /// Interval between two polls. Frames of in-process devices arrive without it: their sender
    /// schedules the core.
    const LOOK_AGAIN: Duration = Duration::from_micros(50);
    let next = stack.poll().unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
    let sleep = timeout.map_or(next, |timeout| timeout.min(next));
    if !sleep.is_zero() {
        std::thread::sleep(sleep);
    }
}
