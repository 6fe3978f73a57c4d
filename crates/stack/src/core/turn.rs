//! One turn of a core: everything a core does for the network, in one fixed order.
//!
//! Above: `core::Core`, for whoever owns it. Below: [`napi`](super::napi), timers, devices. Linux: `net_tx_action`,
//! `net_rx_action`, `run_timer_softirq`, in that order.
//!
//! Not here: what a turn raises on other cores. They run after it, in `Cx::do_softirq`, so that a turn never nests in a
//! turn.

use std::sync::{PoisonError, atomic::Ordering};

use super::{Core, CoreState, PollReport, TimerEntry};
use crate::{counters::Counter, cx::Cx, host::Host};

/// One turn. The order is part of what the mechanisms measure: memory that came home is there for the receive polls,
/// completions free the senders before they are polled, and timers see what has just been received.
pub(super) fn turn(host: &Host, core: &Core, state: &mut CoreState, cx: &mut Cx) -> PollReport {
    let entered = cx.enter(host);
    cx.count(Counter::CoreTurns, 1);
    collect_deferred_frees(cx);
    complete_transmissions(state, cx);
    let report = receive(host, state, cx);
    expire_timers(host, core, state, cx);
    quiesce(cx);
    cx.leave(entered);
    report
}

/// Packets of this context that others have freed come home.
fn collect_deferred_frees(cx: &mut Cx) {
    cx.pool.drain_returns();
}

/// Packets that devices have sent pay their senders back.
fn complete_transmissions(state: &CoreState, cx: &mut Cx) {
    for napi in &state.napis {
        napi.complete_transmissions(cx);
    }
}

/// Polls every queue once in round robin, a weight of frames at most each, until `net.core.netdev_budget` is used.
/// Linux: `net_rx_action`.
fn receive(host: &Host, state: &mut CoreState, cx: &mut Cx) -> PollReport {
    let CoreState { napis, next_napi, flow, .. } = state;
    let mut report = PollReport::AllDone;
    let mut budget = cx.sysctls().netdev_budget as usize;
    for _ in 0..napis.len() {
        if budget == 0 {
            cx.count(Counter::SoftnetTimeSqueeze, 1);
            return PollReport::Pending;
        }
        *next_napi = (*next_napi + 1) % napis.len();
        let napi = &mut napis[*next_napi];
        let weight = super::WEIGHT.min(budget);
        let received = napi.poll(host, flow, cx, weight);
        budget -= received;
        if received == weight {
            report = PollReport::Pending;
        }
    }
    report
}

/// Runs the timers that are due. The lock is not held while they run: a timer may arm another.
fn expire_timers(host: &Host, core: &Core, state: &mut CoreState, cx: &mut Cx) {
    if core.next_timer_ns.load(Ordering::Relaxed) > cx.now.as_nanos() {
        return;
    }
    let mut due = core::mem::take(&mut state.due);
    {
        let mut timers = core.timers.lock().unwrap_or_else(PoisonError::into_inner);
        timers.expire(cx.now, |entry| due.push(entry));
        let _ = core.publish_next_timer(&timers);
    }
    cx.count(Counter::TimerExpired, due.len() as u64);
    for entry in due.drain(..) {
        on_timer(host, entry, cx);
    }
    state.due = due;
}

/// Runs one timer, if what it belongs to is still there.
fn on_timer(host: &Host, entry: TimerEntry, cx: &mut Cx) {
    match entry {
        TimerEntry::Stream(socket) => {
            if let Some(socket) = socket.upgrade() {
                socket.on_timer(host, cx);
            }
        }
        TimerEntry::Request(request) => {
            if let Some(request) = request.upgrade() {
                request.on_timer(host, cx);
            }
        }
        TimerEntry::TimeWait(time_wait) => {
            if let Some(time_wait) = time_wait.upgrade() {
                time_wait.on_timer(host, cx);
            }
        }
        TimerEntry::Neighbor(neighbor) => {
            if let Some(neighbor) = neighbor.upgrade() {
                neighbor.on_timer(host, cx);
            }
        }
    }
}

/// Nothing that was looked up in a table is held any more.
fn quiesce(cx: &Cx) {
    cx.reader().quiescent();
}
