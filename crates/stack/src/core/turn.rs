//! One turn of a core: everything a core does for the network, in one fixed order.
//!
//! Above: `core::Core`, for whoever owns it. Below: [`napi`](crate::receive::napi), timers, devices. Linux: `net_tx_action`,
//! `net_rx_action`, `run_timer_softirq`, in that order.
//!
//! Not here: what a turn raises on other cores. They run after it, in `Cx::do_softirq`, so that a turn never nests in a
//! turn.

use pkt::Instant;
use sync::{CoreGuard, rcu_map::Place};

use super::{BACKLOG, Core, CoreState, PollReport, Scope, power, queues_in};
use crate::{
    base::counters::Counter,
    cx::Cx,
    host::Host,
    receive::{napi::PollEnd, rps::SoftnetCounts},
    socket::core_sockets::TimerEntry,
};

/// One turn. The order is part of what the mechanisms measure: memory that came home is there for the receive polls,
/// completions free the senders before they are polled, and timers see what has just been received.
pub(super) fn turn(
    host: &Host,
    core: &Core,
    state: &mut CoreGuard<'_, CoreState>,
    cx: &mut Cx,
    scope: Scope,
) -> PollReport {
    // Before the settings are looked at: who is told of a change finds it.
    let trims = host.tcp_memory().take_trim();
    let entered = cx.enter(host);
    cx.count(Counter::CoreTurns, 1);
    if host.tcp_memory().is_look_due(cx.now) || cx.has_lacked_memory() {
        host.look_at_packet_memory(cx);
    }
    let again = power::follow(core, state, cx);
    if again != 0 {
        state.put_back(again);
    }
    collect_deferred_frees(cx);
    let trims_on = state.trim.step(trims, host, cx);
    complete_transmissions(state, cx);
    let around = cx.set_running(Some(core.id));
    let mut report = receive(host, core, state, cx, scope);
    resume_throttled(host, core, cx);
    expire_timers(host, core, state, cx);
    restart_transmissions(core, state, cx);
    state.outbox.kick(host, cx);
    quiesce(host, cx);
    if trims_on {
        // Not let go before the walk is at its end, whatever the runner makes of the report.
        state.put_back(1 << BACKLOG);
        report = PollReport::Pending;
    }
    cx.set_running(around);
    cx.leave(entered);
    report
}

/// Packets of this context that others have freed come home.
fn collect_deferred_frees(cx: &mut Cx) {
    cx.pool.drain_returns();
}

/// Packets that devices have sent pay their senders back.
fn complete_transmissions(state: &CoreState, cx: &mut Cx) {
    for index in queues_in(state.completing) {
        state.napis[index].complete_transmissions(cx);
    }
}

/// Transmit queues that wait for a moment are run when it has come.
#[inline]
fn restart_transmissions(core: &Core, state: &CoreState, cx: &mut Cx) {
    if core.attendance.is_transmit_due(cx.now.as_nanos()) {
        run_due(core, state, cx);
    }
}

#[cold]
fn run_due(core: &Core, state: &CoreState, cx: &mut Cx) {
    core.attendance.take_transmit_deadline();
    for napi in &state.napis {
        napi.restart_transmissions(cx);
        if let Some(at) = napi.transmit_deadline() {
            core.attendance.note_transmit_deadline(at.as_nanos());
        }
    }
}

/// Polls the queues that have something in round robin, a weight of frames at a time, until none has or
/// `net.core.netdev_budget` or `netdev_budget_usecs` is used up. Linux: `net_rx_action`.
///
/// The clock is asked only after a poll that took all it may: whoever finds its queue empty is done anyway.
fn receive(
    host: &Host,
    core: &Core,
    guard: &mut CoreGuard<'_, CoreState>,
    cx: &mut Cx,
    scope: Scope,
) -> PollReport {
    let mut due = due_queues(core, guard, cx, scope);
    let is_cycle = matches!(scope, Scope::Busy(_));
    let (weight, mut budget) = match scope {
        Scope::Busy(budget) => (budget.min(crate::base::limits::WEIGHT), budget),
        _ => (cx.sysctls().dev_weight, cx.sysctls().netdev_budget as usize),
    };
    let begin = cx.now;
    while due != 0
        && let Some(index) = next_in_turn(due, guard.next_napi, guard.napis.len())
    {
        let weight = guard.napis.get(index).map_or(weight, |napi| napi.weight(weight));
        let received = poll_queue(host, core, guard, cx, (index, weight), scope);
        budget = budget.saturating_sub(received);
        if received < weight {
            due &= !(1 << index);
        }
        if index != BACKLOG {
            guard.note_held(index);
            core.note_bulk(guard, index);
            if received < weight && !is_cycle {
                complete(core, guard, index, received, cx);
            }
        }
        if due == 0 {
            // Nothing is left, however much of the budget is.
            break;
        }
        let bulk = guard.descriptors >> index & 1 != 0 && guard.napis[index].is_bulk();
        // A queue whose descriptor may be watched needs no bit to be found again, by whoever polls or by the worker.
        let told = if bulk { guard.descriptors & !core.attendance.masked() } else { 0 };
        if bulk && due & !told == 0 && cx.leave_to_reader() {
            return PollReport::AllDone;
        }
        let over = budget == 0 || received == weight && (is_cycle && bulk || is_late(cx, begin));
        if over {
            if !is_cycle {
                cx.count(Counter::SoftnetTimeSqueeze, 1);
                SoftnetCounts::add(&core.backlog().counts().time_squeeze, 1);
            }
            // Those that nobody announces are polled in every turn. Of superframes a cycle takes as many as its thread will
            // still find in its caches: the others stay where the descriptor tells of them.
            let found = guard.unannounced | if is_cycle { told } else { 0 };
            guard.put_back(due & !found);
            return PollReport::Pending;
        }
    }
    PollReport::AllDone
}

/// Polls the queue at `index`, or the backlog, for `weight` frames at most. Linux: `__napi_poll`, `process_backlog`.
#[inline]
fn poll_queue(
    host: &Host,
    core: &Core,
    state: &mut CoreState,
    cx: &mut Cx,
    (index, weight): (usize, usize),
    scope: Scope,
) -> usize {
    let CoreState { napis, next_napi, backlog, outbox, last_flow, .. } = state;
    *next_napi = index + 1;
    let received = match index {
        BACKLOG => backlog.poll(host, &core.backlog(), last_flow, cx, weight),
        _ => napis[index].poll(host, last_flow, outbox, cx, weight, poll_end(scope)),
    };
    let handed_on = outbox.take_handed_on();
    SoftnetCounts::add(
        &core.backlog().counts().processed,
        (received as u64).saturating_sub(handed_on),
    );
    cx.on_received(received);
    if matches!(scope, Scope::Busy(_)) {
        cx.counters().tcp.add(tcp::Counter::TcpExtBusyPollRxPackets, received as u64);
    }
    received
}

/// The queues that a turn polls, one bit each.
#[inline]
fn due_queues(core: &Core, guard: &mut CoreGuard<'_, CoreState>, cx: &Cx, scope: Scope) -> u64 {
    let mut due = guard.take_queues(!0 >> 3) | guard.unannounced;
    if scope != Scope::Scheduled {
        due |= guard.descriptors;
    }
    due |= match scope {
        // What a queue holds grows old although nothing more comes, and what comes by a ring is not told of.
        // Timers are left to the worker, who can also end them.
        Scope::Busy(_) => guard.holding | guard.arrived(),
        _ => expire_deferrals(core, guard, cx),
    };
    if guard.backlog.is_pending(&core.backlog()) {
        due |= 1 << BACKLOG;
    }
    due & !guard.powered.disabled()
}

/// What follows a poll of such a turn.
const fn poll_end(scope: Scope) -> PollEnd {
    match scope {
        Scope::Busy(_) => PollEnd::BusyCycle,
        _ => PollEnd::Softirq,
    }
}

/// Whether a turn that began at `begin` has lasted as long as it may.
fn is_late(cx: &mut Cx, begin: Instant) -> bool {
    let end = begin + cx.sysctls().netdev_budget_usecs;
    cx.read_clock() >= end
}

/// The queues whose time has come, one bit each. Linux: `napi_watchdog`.
fn expire_deferrals(core: &Core, state: &mut CoreState, cx: &Cx) -> u64 {
    if !core.attendance.is_napi_timer_due(cx.now.as_nanos()) {
        return 0;
    }
    let mut due = 0;
    for (index, napi) in state.napis.iter_mut().enumerate() {
        due |= u64::from(napi.deferral().expire(cx.now)) << index;
    }
    publish_deferrals(core, state);
    due
}

/// A queue was found empty by a thread that may let the core go. Busy polling does not come here: it looks again anyway.
/// Linux: `napi_complete_done`.
fn complete(core: &Core, state: &mut CoreState, index: usize, received: usize, cx: &Cx) {
    let napi = &mut state.napis[index];
    if napi.is_prompt(cx) && core.attendance.masked() & (1 << index) == 0 {
        return;
    }
    let had_timer = napi.deferral().timer();
    let watch = napi.complete(cx, received);
    let timer = napi.deferral().timer();
    if timer != had_timer {
        publish_deferrals(core, state);
    }
    let masked = core.attendance.masked();
    let next = if watch { masked & !(1 << index) } else { masked | 1 << index };
    if next != masked {
        core.attendance.set_masked(next);
    }
    if let Some(timer) = timer {
        core.wake_before(timer);
    }
}

/// The earliest of all timers, for whoever sleeps.
pub(super) fn publish_deferrals(core: &Core, state: &mut CoreState) {
    let timers = state.napis.iter_mut().filter_map(|napi| napi.deferral().timer());
    core.attendance.set_napi_timer(timers.min().map(Instant::as_nanos));
}

/// The first queue in `due` of `len` and the backlog from `first` on, with wrap-around.
fn next_in_turn(due: u64, first: usize, len: usize) -> Option<usize> {
    let devices = if len == 0 { 0 } else { !0 >> (64 - len) };
    let present = due & (devices | 1 << BACKLOG);
    let behind = present & (!0u64).checked_shl(u32::try_from(first).ok()?).unwrap_or(0);
    let candidates = if behind == 0 { present } else { behind };
    (candidates != 0).then(|| candidates.trailing_zeros() as usize)
}

/// Sockets whose packets have left the queues below send on: TCP Small Queues. Linux: `tcp_tasklet_func`.
fn resume_throttled(host: &Host, core: &Core, cx: &mut Cx) {
    core.sockets.tasklet().run(host, cx);
}

/// Nothing stays behind when a thread stops busy polling, before it lets the core go: afterwards the core may run elsewhere,
/// and what it holds is not this thread's any more. The borrow ends with the ownership, so that it cannot be touched then.
pub(super) fn stop_cycles(host: &Host, state: &mut CoreState, cx: &mut Cx) {
    if core::mem::take(&mut state.holding) == 0 {
        return;
    }
    let entered = cx.enter(host);
    let CoreState { napis, outbox, last_flow, .. } = state;
    for napi in napis {
        napi.flush(host, last_flow, outbox, cx);
    }
    cx.leave(entered);
}

/// Runs the timers that are due. The lock is not held while they run: a timer may arm another.
fn expire_timers(host: &Host, core: &Core, state: &mut CoreState, cx: &mut Cx) {
    if !core.attendance.is_timer_due(cx.now.as_nanos()) {
        return;
    }
    let mut due = core::mem::take(&mut state.due);
    core.sockets.expire(cx.now, &mut due);
    cx.count(Counter::TimerExpired, due.len() as u64);
    cx.count(Counter::TimerRuns, u64::from(!due.is_empty()));
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
                neighbor.on_timer(cx);
            }
        }
        TimerEntry::Claims => host.on_claim_timer(cx),
    }
}

/// Nothing that was looked up in a table is held any more.
fn quiesce(host: &Host, cx: &Cx) {
    cx.reader().quiescent();
    host.output_routes().on_quiescent();
}

/// A walk over all connections, by the core that was the first to hear that it is wanted.
#[derive(Debug, Default)]
pub(super) struct TrimWalk {
    /// Where the next turn goes on; `None` when nobody wants it.
    at: Option<Place>,
    /// It was wanted anew since it began: those that it has passed may keep something by now.
    again: bool,
}

impl TrimWalk {
    /// Goes on, or begins when it is `wanted`. True when another turn is needed.
    pub(super) fn step(&mut self, wanted: bool, host: &Host, cx: &mut Cx) -> bool {
        if wanted {
            self.again = self.at.is_some();
            self.at = Some(self.at.unwrap_or_default());
        }
        let Some(from) = self.at else { return false };
        self.at = host.relieve_streams(cx, from);
        if self.at.is_none() && core::mem::take(&mut self.again) {
            self.at = Some(Place::default());
        }
        self.at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_take_turns() {
        let order = |due, first, len| {
            let (mut left, mut first) = (due, first);
            std::iter::from_fn(|| {
                let index = next_in_turn(left, first, len)?;
                left &= !(1 << index);
                first = index + 1;
                Some(index)
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(order(0b1011, 0, 4), [0, 1, 3]);
        assert_eq!(order(0b1011, 1, 4), [1, 3, 0]);
        assert_eq!(order(0b1011, 2, 4), [3, 0, 1]);
        assert_eq!(order(0b1011, 4, 4), [0, 1, 3]);
        assert_eq!(order(0b1011, 0, 2), [0, 1], "there is no queue 3");
        assert_eq!(order(!0 >> 3, 60, 61).len(), 61);
        assert_eq!(order(1, 0, 0), [0; 0], "the host is gone");
    }
}
