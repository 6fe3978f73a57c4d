//! How an application thread waits: it runs the stack itself for a little while, then sleeps.
//!
//! A thread that waits for a packet has nothing better to do than to look for it: it polls its connection's core, as
//! Linux does with `net.core.busy_read`. One thread polls a core; others that wait for it sleep at once. So does a thread
//! whose peer wants this very CPU (`patience`): the frame is then processed by its sender, and the wake hands the CPU over. Not
//! so where descriptors bring the frames: nobody but a worker, who would have to be woken, processes those.
//!
//! A thread that is about to sleep in a read lends its CPU once before it does, where that pays: a peer that runs on it answers meanwhile,
//! and neither of the two sleeps or is woken.

use std::time::Duration;

use pkt::Instant;
use stack::{Cx, base::ids::CoreId, socket::BusyPollParams, sysctl::Sysctls};
use sync::{EventCount, WaitResult};

use crate::{
    clock,
    patience::{self, Offer},
    running::{Stack, until},
};

/// What a thread waits for, and how.
pub(crate) struct Wait<'a, P> {
    pub(crate) stack: &'a Stack,
    /// The core that brings it.
    pub(crate) core: CoreId,
    /// Who is told.
    pub(crate) events: &'a EventCount,
    /// When it began.
    pub(crate) began: Instant,
    /// When to give up.
    pub(crate) deadline: Option<Instant>,
    /// How long to poll first, by the settings of the host.
    pub(crate) polling: P,
}

/// Waits until `ready`. False when time ran out.
pub(crate) fn wait_until(
    wait: &Wait<'_, impl Fn(&Sysctls) -> BusyPollParams>,
    ready: impl Fn() -> bool,
) -> bool {
    poll_first(wait, &ready) || sleep_until(wait, ready)
}

/// Behind it, for a thread that has polled in vain: lends the CPU to whoever may bring what it waits for, and does not sleep.
pub(crate) fn lend_first<P>(wait: &Wait<'_, P>, ready: &impl Fn() -> bool) -> bool {
    // Without workers it may be this thread that is waited for: it drives the stack.
    !wait.stack.is_manual() && patience::lend(ready)
}

/// The second half, for a thread for which that was in vain.
pub(crate) fn sleep_until<P>(wait: &Wait<'_, P>, ready: impl Fn() -> bool) -> bool {
    sleep_for(wait.stack, wait.events, wait.deadline, ready)
}

/// Sleeps until `events` tell of what makes it `ready`. False when time ran out.
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

/// The first half of [`wait_until`]: runs the core of the awaited connection for a while, unless somebody else does or it would
/// not pay, and does not sleep. When it has not helped, the worker looks after the core again.
pub(crate) fn poll_first(
    wait: &Wait<'_, impl Fn(&Sysctls) -> BusyPollParams>,
    ready: &impl Fn() -> bool,
) -> bool {
    let Wait { stack, core, deadline, began, polling, .. } = wait;
    let host = stack.host();
    let core = &host.cores()[usize::from(core.0)];
    // Dearer than a CPU that is offered again and again is a worker that is woken for each frame. It is asked of the core: a peer
    // within the process that has its connections on a core with descriptors is waited for like one behind them.
    let watched = core.has_descriptors();
    let pays = watched || patience::should_poll();
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
        let mut offer = Offer::new(cx.now);
        let mut shared = false;
        core.busy_poll(host, cx, params.budget, |cx| {
            if ready() {
                match (shared, watched) {
                    (true, false) => patience::on_shared_cpu(),
                    // Whose frames those were says nothing about peers within the process.
                    (true, true) => {}
                    (false, _) => patience::on_own_cpu(),
                }
                return true;
            }
            cx.now = clock::now();
            shared = offer.at(&mut cx.now);
            cx.now >= end
        });
        ready() || rests(cx)
    })
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
