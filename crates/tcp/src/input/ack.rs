//! Fifth step: the ACK field and the send window.
//!
//! RFC 9293 §3.10.7.4 fifth, RFC 5961 §5, RFC 6298 §3; Linux: tcp_ack, tcp_clean_rtx_queue,
//! tcp_ack_update_window.
//!
//! Not here: the entries that SACK blocks mark (`loss::scoreboard`), the reaction to duplicate ACKs
//! (`loss::recovery`).

mod predicted;

pub(super) use predicted::process as process_predicted;

use core::time::Duration;

use pkt::{DropReason, Instant};

use super::{Segment, reset, sequence};
use crate::{
    base::{counters::Counter, state::State},
    congestion::ModelSample,
    cx::Cx,
    loss::{recovery, retransmit, scoreboard},
    segment::pacing,
    segment::reset as reset_segment,
    tcb::{
        Tcb, TcbFlags,
        acked::Acked,
        delivery_rate, ecn, mtu_probe,
        packet_cache::CacheCx,
        timers::{self, RtxPurpose},
        urgent,
    },
    wire::{header::Flags, seq::SeqNum},
};

/// Checks whether the ACK is acceptable, and processes it.
///
/// TS.Recent is updated only for an acceptable ACK. RFC 7323 §5.3 takes the timestamp of every
/// segment in the window (R3). A blind attacker can guess a number in the window more easily than
/// SND.UNA, and could then inject a timestamp that makes PAWS reject all segments of the peer.
/// Linux goes further: it ignores the timestamp of a late ACK even if the segment carries data.
pub(super) fn check(
    tcb: &mut Tcb,
    segment: &Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    if !segment.header.has(Flags::ACK) {
        return Err(DropReason::TcpFlags);
    }
    let ack = segment.header.ack;
    if tcb.state == State::SynRecv {
        establish(tcb, segment, cx)?;
    }
    if ack.gt(tcb.snd_nxt) {
        // RFC 9293 requires an answer to an ACK of unsent data. Differs from the RFC in
        // ESTABLISHED, as Linux does: there is no answer, because a peer sends no such segment, and
        // an answer would reveal the window to an attacker.
        if tcb.state != State::Established {
            reset::challenge(tcb, cx);
        }
        return Err(DropReason::TcpAckUnsentData);
    }
    if ack.lt(tcb.snd_una) {
        // RFC 5961 §5: an ACK older than the largest window, or than all acknowledged data, is a
        // blind injection.
        let acked = u32::try_from(tcb.totals.bytes_acked).unwrap_or(u32::MAX);
        if ack.lt(tcb.snd_una - tcb.mss.max_window().min(acked)) {
            reset::challenge(tcb, cx);
            return Err(DropReason::TcpTooOldAck);
        }
        sequence::take_timestamp(tcb, segment, cx.now);
        // A late ACK acknowledges no new data, but the segment may carry data, and its SACK blocks
        // may be new.
        note_alive(tcb, cx.now);
        process_old_blocks(tcb, segment, cx);
        return Ok(());
    }
    sequence::take_timestamp(tcb, segment, cx.now);
    if segment.seq_len() == 0 {
        cx.count(Counter::TcpExtTCPPureAcks);
    }
    process(tcb, segment, cx);
    after_fin_acked(tcb, cx)
}

/// Completes a passive open (SYN-RECEIVED): an ACK of our SYN establishes the connection, and any
/// other ACK is answered by a reset.
fn establish(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) -> Result<(), DropReason> {
    let ack = segment.header.ack;
    if ack.le(tcb.snd_una) || ack.gt(tcb.snd_nxt) {
        reset_segment::reply(cx, &tcb.tuple, segment.header, segment.seq_len());
        return Err(DropReason::TcpInvalidAck);
    }
    tcb.snd_wnd = scaled_window(tcb, segment);
    tcb.snd_wl1 = segment.header.seq;
    note_window(tcb, tcb.snd_wnd);
    on_syn_acked(tcb, segment, cx);
    if tcb.send_queue.sent_count() > 0 {
        // Until now the SYN-ACK's timer supervised the data that Fast Open has sent.
        timers::arm_rto(tcb, cx);
    }
    Ok(())
}

/// Completes the handshake: its round trip is the first RTT sample.
pub(super) fn on_syn_acked(tcb: &mut Tcb, segment: &Segment<'_>, cx: &Cx<'_>) {
    // Only the SYN is acknowledged here, even if data was sent with it or after it.
    tcb.snd_una = tcb.iss + 1;
    let rtt = if tcb.recovery.handshake_is_unsampled() {
        None
    } else if tcb.recovery.handshake_was_lossy()
        || (tcb.state == State::SynRecv && tcb.snd_nxt != tcb.iss + 1)
    {
        // The SYN was sent more than once, or data was sent since.
        timestamp_rtt(tcb, segment, cx.now)
    } else {
        Some(cx.now - tcb.last_sent_at)
    };
    if let Some(rtt) = rtt {
        tcb.rtt.on_sample(cx.now, rtt, tcb.snd_una, tcb.snd_nxt);
    }
    tcb.establish(cx);
    if tcb.flags.contains(TcbFlags::SHUT_WRITE) {
        tcb.start_close(cx);
    }
}

/// Processes an ACK from SND.UNA to SND.NXT.
pub(super) fn process(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) {
    let ack = segment.header.ack;
    let in_flight = tcb.send_queue.sent_count() > 0;
    // `MSG_MORE` holds its segment until the next ACK at most, as in Linux.
    tcb.flags -= TcbFlags::MORE;
    delivery_rate::check_app_limited(tcb);
    let window_changed = update_window(tcb, segment);
    let mut acked = Acked::new(cx.now, tcb.rtt.min_rtt());
    acked.not_duplicate = window_changed || segment.seq_len() > 0;
    acked.echo = segment.header.options.timestamps.map(|(_, echo)| echo).filter(|&echo| echo != 0);
    acked.marked = ecn::is_echo(tcb, segment.header);
    scoreboard::process(tcb, cx, segment.header, &mut acked);
    advance(tcb, cx, ack, &mut acked);
    mtu_probe::on_ack(tcb, cx);
    let rtt = sample_rtt(tcb, cx, segment, &acked);
    note_alive(tcb, cx.now);
    // RFC 5681 §2: data is outstanding; the segment has no payload, SYN or FIN, acknowledges no new
    // data, and does not change the window.
    let duplicate = in_flight && acked.bytes == 0 && !acked.not_duplicate;
    let reorder = recovery::on_ack(tcb, cx, &acked, rtt, duplicate);
    if in_flight {
        measure(tcb, cx, &acked, rtt);
    }
    update_timer(tcb, cx, &acked, reorder);
    if acked.bytes > 0 {
        tcb.grow_sndbuf(cx);
    }
}

/// Takes a delivery rate sample after loss detection, passes it to the congestion control
/// algorithm, and updates the pacing rate.
fn measure(tcb: &mut Tcb, cx: &mut Cx<'_>, acked: &Acked, rtt: Option<Duration>) {
    let lost = tcb.send_queue.lost_total();
    let rate = tcb.rate.on_ack(cx.now, acked, lost, tcb.rtt.min_rtt_us());
    if acked.delivered > 0 {
        let segments = u64::from(acked.delivered.div_ceil(tcb.mss.effective()));
        cx.counters.add(Counter::TcpExtTCPDelivered, segments);
        if acked.marked {
            cx.counters.add(Counter::TcpExtTCPDeliveredCE, segments);
        }
    }
    let sample = ModelSample {
        now: cx.now,
        rate: &rate,
        delivered: tcb.rate.delivered(),
        rtt,
        srtt: tcb.rtt.srtt(),
        in_flight: tcb.pipe(),
        marked: acked.marked,
        in_recovery: tcb.recovery.state().is_repairing(),
        is_cwnd_limited: tcb.congestion.was_window_full(),
        excessive_loss: tcb.send_queue.take_excessive_loss(),
        loss_thresh: tcb.send_queue.loss_thresh(),
        initial_window: tcb.congestion.initial_window(),
        snd_una: tcb.snd_una,
        snd_nxt: tcb.snd_nxt,
    };
    tcb.congestion.on_model_sample(&sample, cx.rng);
    if tcb.congestion.limits_itself() {
        tcb.rate.mark_app_limited(sample.in_flight);
    }
    pacing::update(tcb, cx);
}

/// Processes the SACK blocks of an ACK that later ACKs have overtaken: the reported data has
/// arrived nevertheless (Linux tcp_ack, old_ack).
fn process_old_blocks(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) {
    if segment.header.options.sack_blocks.is_empty() || tcb.send_queue.sent_count() == 0 {
        return;
    }
    let mut acked = Acked::new(cx.now, tcb.rtt.min_rtt());
    acked.not_duplicate = true;
    scoreboard::process(tcb, cx, segment.header, &mut acked);
    let reorder = recovery::on_ack(tcb, cx, &acked, None, false);
    measure(tcb, cx, &acked, None);
    update_timer(tcb, cx, &acked, reorder);
}

/// Updates SND.WND from the newest segment (RFC 9293 §3.10.7.4: SND.WL1, SND.WL2). Returns whether
/// the window changed.
fn update_window(tcb: &mut Tcb, segment: &Segment<'_>) -> bool {
    let header = segment.header;
    let window = scaled_window(tcb, segment);
    let newer = header.ack.gt(tcb.snd_una)
        || header.seq.gt(tcb.snd_wl1)
        || (header.seq == tcb.snd_wl1 && (window > tcb.snd_wnd || window == 0));
    if !newer {
        return false;
    }
    tcb.snd_wl1 = header.seq;
    let changed = window != tcb.snd_wnd;
    tcb.snd_wnd = window;
    note_window(tcb, window);
    changed
}

/// Updates MAX.WND, which bounds the segment size.
fn note_window(tcb: &mut Tcb, window: u32) {
    if tcb.mss.on_window(window) {
        tcb.congestion.set_mss(tcb.mss.effective());
    }
}

fn scaled_window(tcb: &Tcb, segment: &Segment<'_>) -> u32 {
    let shift = if segment.header.has(Flags::SYN) { 0 } else { tcb.snd_wscale };
    u32::from(segment.header.window) << shift
}

/// Advances SND.UNA to `ack` and removes the acknowledged data from the queue.
fn advance(tcb: &mut Tcb, cx: &mut Cx<'_>, ack: SeqNum, acked: &mut Acked) {
    if ack == tcb.snd_una {
        return;
    }
    let (pool, _, cache_cx) = CacheCx::split(cx);
    let cache = &mut tcb.packet_cache;
    tcb.send_queue.ack_to(ack, acked, |packet| cache.put_tx(pool, &cache_cx, packet));
    tcb.snd_una = ack;
    urgent::on_acked(tcb);
    tcb.totals.bytes_acked += u64::from(acked.bytes);
    tcb.totals.on_progress(cx.now);
}

/// Takes an RTT sample (RFC 6298 §3): from the transmission time if the segment was sent once
/// (Karn's algorithm), else from the echoed timestamp.
fn sample_rtt(
    tcb: &mut Tcb,
    cx: &Cx<'_>,
    segment: &Segment<'_>,
    acked: &Acked,
) -> Option<Duration> {
    if acked.bytes == 0 && acked.sacked_sent_at.is_none() {
        return None;
    }
    let rtt = match acked.sent_at.or(acked.sacked_sent_at) {
        Some(sent_at) if !acked.retransmitted => Some(cx.now - sent_at),
        _ => timestamp_rtt(tcb, segment, cx.now),
    }?;
    tcb.rtt.on_sample(cx.now, rtt, tcb.snd_una, tcb.snd_nxt);
    Some(rtt)
}

/// Returns the round-trip time from TSecr in our millisecond clock, at least one tick.
fn timestamp_rtt(tcb: &Tcb, segment: &Segment<'_>, now: Instant) -> Option<Duration> {
    let (_, echo) = segment.header.options.timestamps?;
    if !tcb.flags.contains(TcbFlags::TIMESTAMPS) || echo == 0 {
        return None;
    }
    let ms = tcb.ts_now(now).wrapping_sub(echo);
    // An echo from the future is invalid.
    (ms < u32::MAX / 2).then(|| Duration::from_millis(u64::from(ms.max(1))))
}

/// Records that the peer is alive: probes are counted from zero again, and an earlier ICMP error is
/// no longer the reason for a timeout.
pub(super) fn note_alive(tcb: &mut Tcb, now: Instant) {
    tcb.last_received_at = now;
    tcb.probes_out = 0;
    tcb.soft_error = None;
}

/// Updates the timer that an ACK affects: the retransmission timer (RFC 6298 §5.2–5.3), or the
/// persist timer, which runs only while the window is closed or sending is held back.
fn update_timer(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked, reorder: Option<Duration>) {
    match tcb.timers.rtx() {
        Some(RtxPurpose::Persist) => {
            let held = tcb.send_queue.first_unsent().is_some();
            // No probe was sent: a cork or missing memory holds the data, and an ACK does not
            // change that. Restarting the timer would let frequent ACKs postpone it forever.
            if held && tcb.snd_wnd > 0 && tcb.persist_backoff == 0 {
                return;
            }
            tcb.timers.stop_rtx();
            if held && tcb.snd_wnd == 0 {
                timers::arm_persist(tcb, cx);
            }
        }
        Some(_) if tcb.send_queue.sent_count() == 0 => tcb.timers.stop_rtx(),
        Some(purpose) => {
            let probing = purpose == RtxPurpose::LossProbe && acked.delivered > 0;
            let progress = acked.bytes > 0;
            if progress || probing || purpose == RtxPurpose::Reorder || reorder.is_some() {
                retransmit::arm_flight_timer(tcb, cx, reorder, progress);
            }
        }
        None => {}
    }
}

/// Makes the transitions of RFC 9293, figure 5, that require the ACK of our FIN.
fn after_fin_acked(tcb: &mut Tcb, cx: &mut Cx<'_>) -> Result<(), DropReason> {
    let closing = matches!(tcb.state, State::FinWait1 | State::Closing | State::LastAck);
    if !closing || tcb.snd_una != tcb.send_queue.write_seq() {
        return Ok(());
    }
    match tcb.state {
        State::FinWait1 => {
            tcb.set_state(cx, State::FinWait2);
            tcb.enter_fin_wait_2(cx);
            if tcb.state == State::Close {
                return Err(DropReason::TcpClosed);
            }
        }
        State::Closing => tcb.enter_time_wait(cx),
        _ => {
            tcb.finish(cx, None);
            return Err(DropReason::TcpClosed);
        }
    }
    Ok(())
}
