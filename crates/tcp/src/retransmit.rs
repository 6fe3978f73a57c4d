//! Sending again: the retransmission timer, its limits, and what is marked lost.
//!
//! Above: `timer` and `output`. Below: `segment::transmit`. RFC 6298 §5, RFC 9293 §3.8.1 and §3.8.3 (R1, R2), RFC 5482
//! (user timeout); Linux: tcp_retransmit_timer, tcp_xmit_retransmit_queue, tcp_write_timeout.
//!
//! Not here: what counts as lost (`recovery`), probes of a closed window (`timer`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    api::TcpError,
    config::TcpConfig,
    counters::Counter,
    cx::Cx,
    output, pacing,
    recovery::{self, CaState},
    segment,
    send_queue::EntryFlags,
    state::State,
    tcb::{Tcb, TcbFlags},
    timer::RtxPurpose,
    tlp,
};

/// R2 of an orphan when `tcp_orphan_retries` is 0.
const ORPHAN_RETRIES_DEFAULT: u8 = 8;

/// How long to wait before trying again when packet memory ran out (Linux `TCP_RESOURCE_PROBE_INTERVAL`).
pub(crate) const MEMORY_RETRY: Duration = Duration::from_millis(500);

/// The retransmission timer ran out.
pub(crate) fn on_rto(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.timers.stop_rtx();
    match tcb.state {
        State::SynSent | State::SynRecv => on_handshake_timeout(tcb, cx),
        _ if tcb.send_queue.sent_count() > 0 => on_data_timeout(tcb, cx),
        _ => {}
    }
}

/// RFC 6298 §5.4–5.7 for the SYN or SYN-ACK.
fn on_handshake_timeout(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let limit = if tcb.state == State::SynSent {
        cx.config.tcp_syn_retries
    } else {
        cx.config.tcp_synack_retries
    };
    let waited = tcb.recovery.timeouts() > 0 && cx.now - tcb.recovery.since() >= MEMORY_RETRY;
    let user = tcb.user_timeout.is_some_and(|t| waited && cx.now - tcb.recovery.since() >= t);
    if tcb.recovery.timeouts() >= limit || user {
        give_up(tcb, cx);
        return;
    }
    tcb.recovery.count_timeout(cx.now);
    tcb.recovery.on_handshake_timeout();
    tcb.rtt.on_rto();
    cx.count(Counter::TcpExtTCPTimeouts);
    cx.count(Counter::TcpExtTCPSynRetrans);
    cx.count(Counter::TcpRetransSegs);
    tcb.totals.total_retrans += 1;
    segment::send_syn(tcb, cx);
}

/// RFC 6298 §5.4–5.6 for data and FIN.
fn on_data_timeout(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if r2_exceeded(tcb, cx) {
        give_up(tcb, cx);
        return;
    }
    cx.count(Counter::TcpExtTCPTimeouts);
    match tcb.recovery.state() {
        CaState::Recovery if tcb.flags.contains(TcbFlags::SACK) => {
            cx.count(Counter::TcpExtTCPSackFailures);
        }
        CaState::Recovery => cx.count(Counter::TcpExtTCPRenoFailures),
        CaState::Loss => cx.count(Counter::TcpExtTCPLossFailures),
        CaState::Open | CaState::Disorder | CaState::Cwr => {}
    }
    if tcb.send_queue.head().is_some_and(|head| head.flags.contains(EntryFlags::SACKED)) {
        // RFC 2018 §8: what the peer reported it should have acknowledged by then, so it dropped it.
        cx.count(Counter::TcpExtTCPSACKReneging);
        tcb.send_queue.renege();
    }
    recovery::enter_loss(tcb, cx.config);
    tcb.recovery.count_timeout(cx.now);
    tcb.rtt.on_rto();
    send_lost(tcb, cx, false);
    if tcb.timers.rtx().is_none() {
        // Memory ran out: nothing left, so nothing to wait an RTO for.
        tcb.timers.arm_rtx(RtxPurpose::Retransmit, cx.now + MEMORY_RETRY.min(tcb.rtt.rto()));
    }
}

/// Sends what is marked lost, oldest first, as the windows allow. The hole at the head may always leave: its loss
/// paid for it (RFC 5681 §3.2 step 3).
pub(crate) fn transmit_lost(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    send_lost(tcb, cx, true);
}

/// `paced` retransmissions wait for their moment; the one that answers a timeout does not.
fn send_lost(tcb: &mut Tcb, cx: &mut Cx<'_>, mut paced: bool) {
    if tcb.recovery.wants_new_data() {
        if tcb.recovery.has_new_data(tcb.snd_nxt) || output::has_sendable(tcb, cx) {
            return;
        }
        tcb.recovery.stop_frto();
    }
    let burst = pacing::burst_bytes(tcb, cx);
    while let Some(index) = tcb.send_queue.next_lost() {
        let mss = tcb.mss.effective();
        let entry = tcb.send_queue.entry(index);
        let (seq, len) = (entry.seq, entry.len);
        let window = (tcb.snd_una + tcb.snd_wnd) - seq;
        let mut room = tcb.congestion.available(tcb.pipe());
        if index == 0 {
            room = room.max(tcb.recovery.head_segments() * mss);
        } else if window <= 0 {
            break;
        }
        if room < mss.min(len) {
            break;
        }
        let limit = ((room / mss).max(1) * mss).min(burst);
        // The first and the last entry are cut whatever they cost, so that a tiny send buffer stalls nothing.
        let inner = index > 0 && index + 1 < tcb.send_queue.sent_count();
        if len > limit && inner && tcb.send_queue.is_too_big(tcb.sndbuf) {
            cx.count(Counter::TcpExtTCPWqueueTooBig);
            cx.count(Counter::TcpExtTCPRetransFail);
            break;
        }
        if paced && !pacing::admit(tcb, cx) {
            break;
        }
        paced = true;
        if len > limit && !tcb.send_queue.split(cx.pool, index, limit) {
            cx.count(Counter::TcpExtTCPRetransFail);
            break;
        }
        if !segment::transmit(tcb, cx, index) {
            cx.count(Counter::TcpExtTCPRetransFail);
            break;
        }
        count_retransmission(tcb, cx, index);
        if index == 0 && tcb.timers.rtx() != Some(RtxPurpose::Reorder) {
            arm_rto(tcb, cx);
        }
    }
}

pub(crate) fn count_retransmission(tcb: &mut Tcb, cx: &Cx<'_>, index: usize) {
    let len = tcb.send_queue.entry(index).len;
    let segments = len.div_ceil(tcb.mss.effective()).max(1);
    tcb.totals.total_retrans += segments;
    tcb.totals.bytes_retrans += u64::from(len);
    recovery::on_retransmitted(tcb, cx, tcb.send_queue.entry(index).seq_len());
    cx.counters.add(Counter::TcpRetransSegs, u64::from(segments));
    let kind = match tcb.recovery.state() {
        CaState::Loss => Counter::TcpExtTCPSlowStartRetrans,
        _ => Counter::TcpExtTCPFastRetrans,
    };
    if tcb.recovery.timeouts() == 0 || index > 0 {
        cx.counters.add(kind, u64::from(segments));
    }
}

/// RFC 6298 §5.1–5.3: runs while anything is in flight, an RTO from now.
pub(crate) fn arm_rto(tcb: &mut Tcb, cx: &Cx<'_>) {
    let mut wait = tcb.rtt.rto();
    if let Some(limit) = tcb.user_timeout
        && tcb.recovery.timeouts() > 0
    {
        let left = limit.saturating_sub(cx.now - tcb.recovery.since());
        wait = wait.min(left.max(Duration::from_millis(1)));
    }
    tcb.timers.arm_rtx(RtxPurpose::Retransmit, cx.now + wait);
}

/// When the RTO of what is in flight is due, counted from the last transmission of the oldest.
pub(crate) fn rto_deadline(tcb: &Tcb, cx: &Cx<'_>) -> Instant {
    let head = tcb.send_queue.head().map_or(cx.now, |entry| entry.sent_at);
    (head + tcb.rtt.rto()).max(cx.now + Duration::from_millis(1))
}

/// Arms what watches the flight: the reordering timer when it has to run, else a tail loss probe or the RTO. `restart`
/// counts the RTO from now, because something was acknowledged (RFC 6298 §5.3).
pub(crate) fn arm_watch(tcb: &mut Tcb, cx: &Cx<'_>, reorder: Option<Duration>, restart: bool) {
    let rto_at = if restart { cx.now + tcb.rtt.rto() } else { rto_deadline(tcb, cx) };
    if let Some(wait) = reorder {
        tcb.timers.arm_rtx(RtxPurpose::Reorder, (cx.now + wait).min(rto_at));
    } else if let Some(at) = tlp::deadline(tcb, cx, rto_at) {
        tcb.timers.arm_rtx(RtxPurpose::LossProbe, at);
    } else if restart {
        arm_rto(tcb, cx);
    } else if tcb.timers.rtx() != Some(RtxPurpose::Retransmit) {
        tcb.timers.arm_rtx(RtxPurpose::Retransmit, rto_at);
    }
}

/// R2 of RFC 9293 §3.8.3: too long without progress.
fn r2_exceeded(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    if tcb.recovery.timeouts() == 0 {
        return false;
    }
    let elapsed = cx.now - tcb.recovery.since();
    if let Some(limit) = tcb.user_timeout {
        return elapsed >= limit;
    }
    if tcb.snd_wnd == 0 && cx.now - tcb.last_received_at < cx.config.tcp_rto_max * 2 {
        // The peer closed its window over data in flight, and still answers.
        return false;
    }
    let orphan = tcb.flags.contains(TcbFlags::ORPHAN);
    let retries = if orphan { orphan_retries(cx.config) } else { cx.config.tcp_retries2 };
    elapsed >= time_of_retries(retries, cx.config)
}

/// Retries of a connection nobody holds.
pub(crate) fn orphan_retries(config: &TcpConfig) -> u8 {
    if config.tcp_orphan_retries == 0 { ORPHAN_RETRIES_DEFAULT } else { config.tcp_orphan_retries }
}

/// How long `retries` retransmissions take when the RTO starts at its minimum and doubles up to its maximum:
/// 15 retries of 200 ms are 924.6 s.
fn time_of_retries(retries: u8, config: &TcpConfig) -> Duration {
    let mut total = Duration::ZERO;
    let mut wait = config.tcp_rto_min;
    for _ in 0..=retries {
        total += wait;
        wait = (wait * 2).min(config.tcp_rto_max);
    }
    total
}

fn give_up(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    cx.count(Counter::TcpExtTCPAbortOnTimeout);
    let error = tcb.soft_error.unwrap_or(TcpError::TimedOut);
    tcb.finish(cx, Some(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_retries_are_924_seconds() {
        let config = TcpConfig::default();
        assert_eq!(time_of_retries(15, &config), Duration::from_millis(924_600));
        assert_eq!(time_of_retries(8, &config), Duration::from_millis(102_200));
    }
}
