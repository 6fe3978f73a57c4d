//! Retransmission: the timer, its limits, and the transmission of entries marked lost.
//!
//! Above: `close::timer`, `output` and `input::icmp`. Below: `segment::transmit`. RFC 6298 §5,
//! RFC 9293 §3.8.1 and §3.8.3 (R1, R2), RFC 5482 (user timeout); Linux: tcp_retransmit_timer,
//! tcp_xmit_retransmit_queue, tcp_write_timeout.
//!
//! Not here: loss detection (`recovery`), the deadline itself (`tcb::timers`), zero window probes
//! (`close::timer`).

use core::time::Duration;

use pkt::Packet;

use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    cx::{Cx, config::TcpConfig},
    loss::{recovery, tlp},
    open::syn,
    segment::{
        self, next, pacing,
        small_queue::{self, Kind},
    },
    tcb::{
        Tcb, TcbFlags, fast_open, mtu_probe,
        recovery::CaState,
        send_queue::entry::EntryFlags,
        timers::{MEMORY_RETRY, RtxPurpose, arm_rto, rto_deadline},
    },
};

/// Retries of an orphan (R2) if `tcp_orphan_retries` is 0 and the peer may be alive.
const ORPHAN_RETRIES_DEFAULT: u8 = 8;

/// Number of timeouts of a thin stream that do not double its RTO (Linux
/// `TCP_THIN_LINEAR_RETRIES`).
const THIN_LINEAR_RETRIES: u8 = 6;

/// Number of packets in flight from which on a stream is not thin.
const THIN_SEGMENTS: usize = 4;

/// Handles the expiry of the retransmission timer.
pub(crate) fn on_rto(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.timers.stop_rtx();
    match tcb.state {
        State::SynSent | State::SynRecv => on_handshake_timeout(tcb, cx),
        _ if tcb.send_queue.sent_count() > 0 => on_data_timeout(tcb, cx),
        _ => {}
    }
}

/// Handles a timeout of the SYN or SYN-ACK (RFC 6298 §5.4–5.7).
///
/// Differs from RFC 6298 §5.5 as Linux does: the first `tcp_syn_linear_timeouts` of a SYN do not
/// double the timeout.
fn on_handshake_timeout(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let active = tcb.state == State::SynSent;
    let retries = match tcb.syn_retries {
        Some(own) => own,
        None if active => cx.config.tcp_syn_retries,
        None => cx.config.tcp_synack_retries,
    };
    let linear = if active { cx.config.tcp_syn_linear_timeouts } else { 0 };
    let limit = retries.saturating_add(linear);
    cx.count(Counter::TcpExtTCPTimeouts);
    let waited = tcb.recovery.timeouts() > 0 && cx.now - tcb.recovery.since() >= MEMORY_RETRY;
    let user = tcb.user_timeout.is_some_and(|t| waited && cx.now - tcb.recovery.since() >= t);
    let gives_up = tcb.recovery.timeouts() >= limit || user;
    fast_open::on_timeout(tcb, gives_up);
    if gives_up {
        give_up(tcb, cx);
        return;
    }
    tcb.totals.on_timeout(tcb.recovery.timeouts() == 0, cx.now);
    tcb.recovery.count_timeout(cx.now);
    tcb.recovery.on_handshake_timeout();
    fast_open::on_syn_timeout(tcb);
    tcb.doubts_route = true;
    if tcb.recovery.timeouts() > linear {
        tcb.rtt.on_rto();
    }
    cx.count(Counter::TcpExtTCPSynRetrans);
    cx.count(Counter::TcpRetransSegs);
    tcb.totals.total_retrans += 1;
    syn::send_syn(tcb, cx);
}

/// Handles a timeout of data or FIN (RFC 6298 §5.4–5.6).
fn on_data_timeout(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    cx.count(Counter::TcpExtTCPTimeouts);
    if timed_out(tcb, cx, cx.config.tcp_retries1) {
        // R1 of RFC 9293 §3.8.3 is exceeded.
        tcb.doubts_route = true;
        mtu_probe::on_black_hole(tcb, cx);
    }
    let gives_up = r2_exceeded(tcb, cx);
    fast_open::on_timeout(tcb, gives_up);
    if gives_up {
        give_up(tcb, cx);
        return;
    }
    tcb.totals.on_timeout(tcb.recovery.timeouts() == 0, cx.now);
    let thin = is_thin(tcb);
    if tcb.recovery.timeouts() == 0 {
        count_failure(tcb, cx);
    }
    if tcb.send_queue.head().is_some_and(|head| head.flags.contains(EntryFlags::SACKED)) {
        // RFC 2018 §8: the peer should have acknowledged the SACKed data by now, so it has dropped
        // that data (reneging).
        cx.count(Counter::TcpExtTCPSACKReneging);
        tcb.send_queue.renege();
    }
    recovery::enter_loss(tcb, cx.config);
    tcb.recovery.count_timeout(cx.now);
    let linear = cx.config.tcp_thin_linear_timeouts || tcb.thin_linear_timeouts;
    if linear && thin && tcb.recovery.timeouts() <= THIN_LINEAR_RETRIES {
        tcb.rtt.reset_backoff();
    } else {
        tcb.rtt.on_rto();
    }
    send_lost(tcb, cx, false);
    if tcb.timers.rtx().is_none() {
        // Packet memory ran out, and no segment was sent: the retry does not wait for an RTO.
        tcb.timers.arm_rtx(RtxPurpose::Retransmit, cx.now + MEMORY_RETRY.min(tcb.rtt.rto()));
    }
}

/// Counts the first timeout of a series, by the recovery state that it interrupted.
fn count_failure(tcb: &Tcb, cx: &Cx<'_>) {
    let sack = tcb.flags.contains(TcbFlags::SACK);
    cx.count(match tcb.recovery.state() {
        CaState::Recovery if sack => Counter::TcpExtTCPSackRecoveryFail,
        CaState::Recovery => Counter::TcpExtTCPRenoRecoveryFail,
        CaState::Loss => Counter::TcpExtTCPLossFailures,
        CaState::Open | CaState::Disorder | CaState::Cwr if !has_reported_arrivals(tcb) => return,
        _ if sack => Counter::TcpExtTCPSackFailures,
        _ => Counter::TcpExtTCPRenoFailures,
    });
}

/// Returns whether the peer has reported segments behind a hole, by SACK or by duplicate ACKs.
fn has_reported_arrivals(tcb: &Tcb) -> bool {
    tcb.recovery.state() == CaState::Disorder
        || tcb.send_queue.sacked_bytes() > 0
        || tcb.recovery.dup_acks() > 0
}

/// Returns whether few segments are in flight: too few segments follow a lost one to report it
/// (Linux: tcp_stream_is_thin).
fn is_thin(tcb: &Tcb) -> bool {
    let flight = tcb.snd_nxt.since(tcb.snd_una);
    let few = tcb.send_queue.sent_count() < THIN_SEGMENTS && flight < 4 * tcb.mss.effective();
    few && tcb.state == State::Established
}

/// Sends entries marked lost, oldest first, as the windows allow. The windows never delay the
/// segments at SND.UNA: the reduction for their loss has made room (RFC 5681 §3.2 step 3).
pub(crate) fn transmit_lost(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    send_lost(tcb, cx, true);
}

/// Sends lost entries. Retransmissions wait for their departure times, but if `paced` is false,
/// which is the case after a timeout, the first one does not wait.
fn send_lost(tcb: &mut Tcb, cx: &mut Cx<'_>, mut paced: bool) {
    if tcb.recovery.wants_new_data() {
        if tcb.recovery.has_new_data(tcb.snd_nxt) || next::has_sendable(tcb, cx) {
            return;
        }
        tcb.recovery.stop_frto();
    }
    if tcb.send_queue.next_lost().is_none() {
        return;
    }
    let burst = pacing::burst_bytes(tcb, cx);
    while let Some(index) = tcb.send_queue.next_lost() {
        let mss = tcb.mss.effective();
        if still_in_host_queue(tcb, cx, index) {
            // The packet's completion triggers the retransmission, or else an ACK or the timer.
            small_queue::wait_for_completion(tcb, cx);
            break;
        }
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
        // The first and the last entry are split at any memory cost, so that a tiny send buffer
        // never stalls the connection.
        let inner = index > 0 && index + 1 < tcb.send_queue.sent_count();
        if len > limit && inner && tcb.send_queue.is_too_big(tcb.sndbuf) {
            cx.count(Counter::TcpExtTCPWqueueTooBig);
            cx.count(Counter::TcpExtTCPRetransFail);
            break;
        }
        if paced && !pacing::admit(tcb, cx) {
            break;
        }
        if paced && small_queue::is_full(tcb, cx, index, len.min(limit), Kind::Retransmission) {
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

/// Returns whether the last copy of entry `index` is still in a queue of this host. Another copy
/// behind it would only lengthen that queue (Linux: skb_still_in_host_queue).
pub(crate) fn still_in_host_queue(tcb: &Tcb, cx: &Cx<'_>, index: usize) -> bool {
    let busy = tcb.send_queue.entry(index).packet.as_ref().is_some_and(Packet::clone_busy);
    if busy {
        cx.count(Counter::TcpExtTCPSpuriousRtxHostQueues);
    }
    busy
}

pub(crate) fn count_retransmission(tcb: &mut Tcb, cx: &Cx<'_>, index: usize) {
    mtu_probe::on_retransmitted(tcb);
    let len = tcb.send_queue.entry(index).len;
    let segments = len.div_ceil(tcb.mss.effective()).max(1);
    tcb.totals.total_retrans += segments;
    if len > 0 {
        tcb.totals.data_segs_out = tcb.totals.data_segs_out.wrapping_add(segments);
    }
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

/// Arms the timer that supervises the flight: the reordering timer if `reorder` is set, else a tail
/// loss probe or the RTO. `restart` restarts the RTO from now, because new data was acknowledged
/// (RFC 6298 §5.3).
pub(crate) fn arm_flight_timer(
    tcb: &mut Tcb,
    cx: &Cx<'_>,
    reorder: Option<Duration>,
    restart: bool,
) {
    let rto_at =
        if restart { cx.now.plus_micros(tcb.rtt.rto_us().into()) } else { rto_deadline(tcb, cx) };
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

/// Returns whether R2 of RFC 9293 §3.8.3 is exceeded: no progress for too long.
fn r2_exceeded(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    if tcb.recovery.timeouts() == 0 {
        return false;
    }
    if let Some(limit) = tcb.user_timeout {
        return cx.now - tcb.recovery.since() >= limit;
    }
    if tcb.snd_wnd == 0 && cx.now - tcb.last_received_at < tcb.rtt.rto_max() * 2 {
        // The peer closed its window with data in flight, and still answers.
        return false;
    }
    if !tcb.flags.contains(TcbFlags::ORPHAN) {
        return timed_out(tcb, cx, cx.config.tcp_retries2);
    }
    let alive = tcb.rtt.rto() < tcb.rtt.rto_max();
    timed_out(tcb, cx, orphan_retries(tcb, cx.config, alive))
}

/// Returns whether no data was acknowledged for as long as `retries` retransmissions take (Linux:
/// retransmits_timed_out).
fn timed_out(tcb: &Tcb, cx: &Cx<'_>, retries: u8) -> bool {
    tcb.recovery.timeouts() > 0
        && cx.now - tcb.recovery.since() >= time_of_retries(retries, cx.config, tcb.rtt.rto_max())
}

/// Returns the number of retries of an orphan. `alive` says that its RTO is still below the
/// maximum; once the RTO has reached the maximum, a reported ICMP error ends the retries (Linux:
/// tcp_orphan_retries).
pub(crate) fn orphan_retries(tcb: &Tcb, config: &TcpConfig, alive: bool) -> u8 {
    match config.tcp_orphan_retries {
        _ if tcb.soft_error.is_some() && !alive => 0,
        0 if alive => ORPHAN_RETRIES_DEFAULT,
        retries => retries,
    }
}

/// Returns the time that `retries` retransmissions take if the RTO starts at its minimum and
/// doubles up to its maximum: 15 retries from 200 ms take 924.6 s.
fn time_of_retries(retries: u8, config: &TcpConfig, rto_max: Duration) -> Duration {
    let mut total = Duration::ZERO;
    let mut wait = config.tcp_rto_min;
    for _ in 0..=retries {
        total += wait;
        wait = (wait * 2).min(rto_max);
    }
    total
}

impl Tcb {
    /// Returns and clears whether timeouts made the route doubtful since the last call. Then the
    /// caller looks for another route (RFC 9293 §3.8.3; Linux: dst_negative_advice).
    pub fn take_negative_advice(&mut self) -> bool {
        core::mem::take(&mut self.doubts_route)
    }
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
    fn fifteen_retries_take_924_seconds_and_eight_take_102() {
        let config = TcpConfig::default();
        assert_eq!(
            time_of_retries(15, &config, config.tcp_rto_max),
            Duration::from_millis(924_600)
        );
        assert_eq!(time_of_retries(8, &config, config.tcp_rto_max), Duration::from_millis(102_200));
    }
}
