//! SYN of an active open, and SYN-ACK of a connection that has received the peer's SYN.
//!
//! Above: `open::active`, `open::fast_open`, `loss::retransmit`, `input` and `output`. Below:
//! `segment`. RFC 9293 §3.5, RFC 7413 §4; Linux: tcp_connect, tcp_send_syn_data, tcp_send_synack.
//!
//! With Fast Open data the first SYN is held until the first write. A retransmitted SYN carries no
//! data.
//!
//! Not here: the SYN-ACK of a connection request (`open::request`).

use pkt::{Ecn, Packet};

use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    segment,
    tcb::{
        Tcb, TcbFlags,
        ecn::{self, EcnState},
        fast_open::SynPhase,
        timers,
    },
    wire::{
        header::{Flags, SegmentHeader},
        option::Options,
        seq::SeqNum,
    },
};

/// Sends the SYN of an active open, or the SYN-ACK of a simultaneous open or of a passive Fast
/// Open, and arms its retransmission.
pub(crate) fn send_syn(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    timers::arm_rto(tcb, cx);
    let crossed = tcb.state == State::SynRecv;
    let mut options = Options { mss: Some(tcb.mss.advertised()), ..Options::new() };
    let Some((mut packet, len)) = syn_packet(tcb, cx, &mut options) else { return };
    // A SYN offers options; a SYN-ACK agrees to the options that the peer offered.
    let has = |agreed, offered| tcb.flags.contains(if crossed { agreed } else { offered });
    options.sack_permitted = has(TcbFlags::SACK, TcbFlags::OFFERS_SACK);
    options.timestamps = has(TcbFlags::TIMESTAMPS, TcbFlags::OFFERS_TIMESTAMPS)
        .then(|| (tcb.ts_now(cx.now), tcb.ts_recent));
    options.window_scale =
        has(TcbFlags::WINDOW_SCALING, TcbFlags::OFFERS_SCALING).then_some(tcb.rcv_wscale);
    let flags = if crossed {
        let echo = tcb.ecn.contains(EcnState::AGREED);
        Flags::SYN | Flags::ACK | if echo { Flags::ECE } else { Flags::empty() }
    } else {
        let again = tcb.recovery.timeouts() > 0;
        Flags::SYN | ecn::offer(tcb, cx.config, again)
    };
    if tcb.ecn.contains(EcnState::AGREED) && tcb.congestion.algorithm().needs_ecn() {
        packet.meta_mut().ecn = Ecn::Ect0;
    }
    let window = u16::try_from(tcb.rcv_wnd).unwrap_or(u16::MAX);
    let ack = if crossed { tcb.rcv_nxt } else { SeqNum(0) };
    let header =
        SegmentHeader { seq: tcb.iss, ack, flags, window, options, ..SegmentHeader::default() };
    tcb.last_sent_at = cx.now;
    tcb.ack.on_ack_sent();
    if tcb.recovery.timeouts() == 0 {
        cx.count(Counter::TcpOutSegs);
    }
    segment::send_packet(tcb, cx, packet, header, (len, u32::MAX));
    on_syn_sent(tcb, cx, len);
}

impl Tcb {
    /// Sends a held SYN now, with any queued data: the caller will not wait for the first write.
    pub fn release_syn(&mut self, cx: &mut Cx<'_>) {
        if self.is_syn_held() {
            send_syn(self, cx);
            if let Some(state) = &mut self.fast_open {
                state.phase = SynPhase::Left;
            }
        }
    }
}

/// Sends a held SYN as soon as data is queued, and retransmits a SYN that was too large for the
/// network path, without data.
pub(crate) fn poll_syn(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.state != State::SynSent {
        return;
    }
    match tcb.fast_open.as_mut() {
        Some(state) if state.phase == SynPhase::TooLarge => {
            state.phase = SynPhase::Plain;
            // The SYN was not lost to congestion, but an RTT sample would be ambiguous: either SYN
            // may be answered.
            tcb.recovery.on_unsampled_handshake();
            tcb.totals.total_retrans += 1;
            cx.count(Counter::TcpExtTCPSynRetrans);
            cx.count(Counter::TcpRetransSegs);
            send_syn(tcb, cx);
        }
        Some(_) if !tcb.send_queue.is_empty() => tcb.release_syn(cx),
        _ => {}
    }
}

/// Returns the packet of a SYN or SYN-ACK and its payload length, and sets the Fast Open option.
/// Only the first SYN carries data: a retransmitted SYN is plain, in case the path drops SYNs with
/// data.
fn syn_packet(tcb: &mut Tcb, cx: &mut Cx<'_>, options: &mut Options) -> Option<(Packet, u32)> {
    let Some(state) = &mut tcb.fast_open else { return Some((cx.pool.alloc()?, 0)) };
    if state.passive {
        options.fast_open = state.cookie;
        return Some((cx.pool.alloc()?, 0));
    }
    if tcb.recovery.timeouts() > 0 || state.phase == SynPhase::Plain || tcb.state != State::SynSent
    {
        return Some((cx.pool.alloc()?, 0));
    }
    options.fast_open = state.cookie;
    let held = state.phase == SynPhase::Held;
    let entry = tcb.send_queue.first_unsent().filter(|_| held);
    let Some(packet) = entry.and_then(|(_, entry)| entry.packet.as_ref()) else {
        return Some((cx.pool.alloc()?, 0));
    };
    let packet = packet.clone_in(cx.pool)?;
    let len = u32::try_from(packet.len()).ok()?;
    state.syn_data = len;
    Some((packet, len))
}

/// Accounts for the data that the first SYN carried.
fn on_syn_sent(tcb: &mut Tcb, cx: &Cx<'_>, len: u32) {
    if len == 0 {
        return;
    }
    let snapshot = tcb.rate.on_transmit(cx.now, true, len, tcb.send_queue.lost_total());
    tcb.send_queue.on_transmit(0, cx.now, snapshot, tcb.rate.is_app_limited());
    tcb.snd_nxt = tcb.send_queue.entry(0).end_seq();
    tcb.totals.bytes_sent += u64::from(len);
    cx.count(Counter::TcpExtTCPOrigDataSent);
}
