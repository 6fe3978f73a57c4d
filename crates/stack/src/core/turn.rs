//! One turn of a core: all its network work, in a fixed order.
//!
//! Above: the owner of a `core::Core`. Below: [`napi`](crate::receive::napi), timers, devices.
//! Linux: `net_tx_action`, `net_rx_action` and, before both, `run_timer_softirq`.
//!
//! Not here: other cores to which a turn sends packets. The turn raises them (`cx::softirq`), and
//! they run after the turn, in `Cx::do_softirq`, so that turns do not nest.

use pkt::Instant;
use sync::{CoreGuard, rcu_map::Place};

use super::{BACKLOG, Core, CoreState, PollReport, Scope, admin_state, queues_in};
use crate::{
    base::counters::Counter,
    cx::Cx,
    receive::{napi::PollEnd, reassembly, rps::SoftnetCounts},
    socket::core_sockets::TimerEntry,
    socket::net::Net,
};

/// Runs one turn. The order matters: freed packets are collected before the receive polls need
/// memory; transmit completions, which release send memory, come before the senders resume; and
/// timers run after the received segments, which may cancel them.
pub(super) fn turn(
    net: &Net,
    core: &Core,
    state: &mut CoreGuard<'_, CoreState>,
    cx: &mut Cx,
    scope: Scope,
) -> PollReport {
    // The request to trim (free spare memory of connections) is taken before the settings are read
    // (`enter`), so that this turn also sees the setting whose change caused the request.
    let trims = net.tcp_memory().take_trim();
    // Time must not run backwards between two owners: the timestamps of a handshake, and those
    // that a device derives from the time of a poll, would be rejected as old.
    cx.advance_clock_to(state.latest);
    let entered = cx.enter(net);
    cx.count(Counter::CoreTurns, 1);
    if net.tcp_memory().is_check_due(cx.now) || cx.take_alloc_failure() {
        net.check_packet_memory(cx);
    }
    let again = admin_state::apply_pending(core, state, cx);
    if again != 0 {
        state.put_back(again);
    }
    collect_deferred_frees(cx);
    let trims_on = state.trim.step(trims, net, cx);
    complete_transmissions(state, cx);
    let around = cx.set_running(Some(core.id));
    let mut report = receive(net, core, state, cx, scope);
    resume_throttled(net, core, cx);
    expire_timers(net, core, state, cx);
    restart_transmissions(core, state, cx);
    state.outbox.kick(net, cx);
    quiesce(net, cx);
    if trims_on {
        // The bit keeps the core from being released before the walk ends, even if the caller
        // ignores the report.
        state.put_back(1 << BACKLOG);
        report = PollReport::Pending;
    }
    cx.set_running(around);
    cx.leave(entered);
    state.latest = cx.now;
    report
}

/// Collects packets of this context that other threads have freed.
fn collect_deferred_frees(cx: &mut Cx) {
    cx.pool.drain_returns();
}

/// Releases the send memory of packets that devices have sent.
fn complete_transmissions(state: &CoreState, cx: &mut Cx) {
    for index in queues_in(state.completing) {
        state.napis[index].complete_transmissions(cx);
    }
}

/// Restarts transmit queues whose deadline has passed.
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

/// Polls the due queues in round robin, up to a weight of frames each, until all are empty or
/// `net.core.netdev_budget` or `netdev_budget_usecs` is used up. Linux: `net_rx_action`.
///
/// The clock is read only after a poll that used its whole weight, because an empty queue ends the
/// loop anyway.
fn receive(
    net: &Net,
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
        let received = poll_queue(net, core, guard, cx, index, weight, scope);
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
            // All queues are empty, even if budget remains.
            break;
        }
        let bulk = guard.descriptors >> index & 1 != 0 && guard.napis[index].is_bulk();
        // A queue whose descriptor may be watched needs no bit: a polling thread or the worker
        // finds it again.
        let watchable = if bulk { guard.descriptors & !core.attendance.masked() } else { 0 };
        if bulk && due & !watchable == 0 && cx.leave_to_reader() {
            return PollReport::AllDone;
        }
        let over = budget == 0 || received == weight && (is_cycle && bulk || is_late(cx, begin));
        if over {
            if !is_cycle {
                cx.count(Counter::SoftnetTimeSqueeze, 1);
                SoftnetCounts::add(&core.backlog().counts().time_squeeze, 1);
            }
            // Queues without an arrival signal are polled in every turn and need no bit. A
            // busy-polling cycle stops after as many superframes (packets of several segments) as
            // fit in the caches of its CPU. The remaining superframes need no bit either, because
            // their descriptor stays readable.
            let found = guard.unannounced | if is_cycle { watchable } else { 0 };
            guard.put_back(due & !found);
            return PollReport::Pending;
        }
    }
    PollReport::AllDone
}

/// Polls the queue at `index`, or the backlog, for `weight` frames at most. Linux: `__napi_poll`,
/// `process_backlog`.
#[inline]
fn poll_queue(
    net: &Net,
    core: &Core,
    state: &mut CoreState,
    cx: &mut Cx,
    index: usize,
    weight: usize,
    scope: Scope,
) -> usize {
    let CoreState { napis, next_napi, backlog, outbox, last_flow, .. } = state;
    *next_napi = index + 1;
    let received = match index {
        BACKLOG => backlog.poll(net, cx, core.backlog(), last_flow, weight),
        _ => napis[index].poll(net, cx, last_flow, outbox, weight, poll_end(scope)),
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

/// Returns the queues that the turn polls, one bit each.
#[inline]
fn due_queues(core: &Core, guard: &mut CoreGuard<'_, CoreState>, cx: &Cx, scope: Scope) -> u64 {
    let mut due = guard.take_queues(!0 >> 3) | guard.unannounced;
    if scope != Scope::Scheduled {
        due |= guard.descriptors;
    }
    due |= match scope {
        // Packets held in GRO age even if nothing arrives, and an arrival in a ring sends no
        // signal. Expired deferral timers are left to the worker, which can also end the deferral.
        Scope::Busy(_) => guard.holding | guard.arrived(),
        _ => expire_deferrals(core, guard, cx),
    };
    if guard.backlog.is_pending(core.backlog()) {
        due |= 1 << BACKLOG;
    }
    due & !guard.applied.disabled()
}

/// Returns how a poll in a turn of this scope ends.
const fn poll_end(scope: Scope) -> PollEnd {
    match scope {
        Scope::Busy(_) => PollEnd::BusyCycle,
        _ => PollEnd::Softirq,
    }
}

/// Returns whether a turn that began at `begin` has used up `netdev_budget_usecs`.
fn is_late(cx: &mut Cx, begin: Instant) -> bool {
    let end = begin + cx.sysctls().netdev_budget_usecs;
    cx.read_clock() >= end
}

/// Returns the queues whose deferral timer has expired, one bit each. Linux: `napi_watchdog`.
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

/// Completes a poll that found its queue empty. Not called in busy polling, which polls again
/// anyway. Linux: `napi_complete_done`.
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

/// Publishes the earliest deferral timer for the worker.
pub(super) fn publish_deferrals(core: &Core, state: &mut CoreState) {
    let timers = state.napis.iter_mut().filter_map(|napi| napi.deferral().timer());
    core.attendance.set_napi_timer(timers.min().map(Instant::as_nanos));
}

/// Returns the first queue of `due` from index `first` on, with wrap-around, among `len` device
/// queues and the backlog.
fn next_in_turn(due: u64, first: usize, len: usize) -> Option<usize> {
    let devices = if len == 0 { 0 } else { !0 >> (64 - len) };
    let present = due & (devices | 1 << BACKLOG);
    let behind = present & (!0u64).checked_shl(u32::try_from(first).ok()?).unwrap_or(0);
    let candidates = if behind == 0 { present } else { behind };
    (candidates != 0).then(|| candidates.trailing_zeros() as usize)
}

/// Resumes sockets whose packets have left the queues below: TCP Small Queues. Linux:
/// `tcp_tasklet_func`.
fn resume_throttled(net: &Net, core: &Core, cx: &mut Cx) {
    core.tasklet.run(net, cx);
}

/// Delivers the packets that the queues hold back. Called when a thread stops busy polling, before
/// it releases the core: after the release, another thread may own these queues.
pub(super) fn stop_cycles(net: &Net, state: &mut CoreState, cx: &mut Cx) {
    if core::mem::take(&mut state.holding) == 0 {
        return;
    }
    let entered = cx.enter(net);
    let CoreState { napis, outbox, last_flow, .. } = state;
    for napi in napis {
        napi.flush(net, cx, last_flow, outbox);
    }
    cx.leave(entered);
}

/// Runs the due timers. The lock of the timer wheel is not held meanwhile, because a timer may arm
/// another.
fn expire_timers(net: &Net, core: &Core, state: &mut CoreState, cx: &mut Cx) {
    if !core.attendance.is_timer_due(cx.now.as_nanos()) {
        return;
    }
    let mut due = core::mem::take(&mut state.due);
    core.sockets.expire(cx.now, &mut due);
    cx.count(Counter::TimerExpired, due.len() as u64);
    cx.count(Counter::TimerRuns, u64::from(!due.is_empty()));
    for entry in due.drain(..) {
        on_timer(net, entry, cx);
    }
    state.due = due;
}

/// Runs one timer, if its object still exists.
fn on_timer(net: &Net, entry: TimerEntry, cx: &mut Cx) {
    match entry {
        TimerEntry::Stream(socket) => {
            if let Some(socket) = socket.upgrade() {
                socket.on_timer(net, cx);
            }
        }
        TimerEntry::Request(request) => {
            if let Some(request) = request.upgrade() {
                request.on_timer(net, cx);
            }
        }
        TimerEntry::TimeWait(time_wait) => {
            if let Some(time_wait) = time_wait.upgrade() {
                time_wait.on_timer(net, cx);
            }
        }
        TimerEntry::Neighbor(neighbor) => {
            if let Some(neighbor) = neighbor.upgrade() {
                neighbor.on_timer(cx);
            }
        }
        TimerEntry::Claims => net.on_claim_timer(cx),
        TimerEntry::Fragments(true) => reassembly::on_timer::<true>(net, cx),
        TimerEntry::Fragments(false) => reassembly::on_timer::<false>(net, cx),
        TimerEntry::Sessions(device) => net.flows().on_sessions_timer(net, cx, device),
        TimerEntry::GroupReports => net.on_group_timer(cx),
        TimerEntry::Autoconf => net.on_autoconf_timer(cx),
    }
}

/// Reports a quiescent state to RCU: at this point the core holds no reference that it looked up in
/// a table.
fn quiesce(net: &Net, cx: &Cx) {
    cx.reader().quiescent();
    net.output_routes().on_quiescent();
}

/// Walk over all connections to free spare memory, by the core that took the request to trim.
#[derive(Debug, Default)]
pub(super) struct TrimWalk {
    /// Position at which the next turn continues; `None` if no walk is under way.
    at: Option<Place>,
    /// Another request came during the walk: connections already passed may hold spare memory
    /// again.
    again: bool,
}

impl TrimWalk {
    /// Continues the walk, or begins one if it is `wanted`. Returns true if another turn is needed.
    pub(super) fn step(&mut self, wanted: bool, net: &Net, cx: &mut Cx) -> bool {
        if wanted {
            self.again = self.at.is_some();
            self.at = Some(self.at.unwrap_or_default());
        }
        let Some(from) = self.at else { return false };
        self.at = net.reclaim_stream_memory(cx, from);
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
    fn due_queues_are_polled_in_round_robin() {
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
        assert_eq!(order(0b1011, 0, 2), [0, 1], "a core with two queues has no queue 3");
        assert_eq!(order(!0 >> 3, 60, 61).len(), 61);
        assert_eq!(order(1, 0, 0), [0; 0], "a core whose host is gone has no queues");
    }
}
