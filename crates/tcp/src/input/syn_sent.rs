//! SYN-SENT: processing of the SYN-ACK, or of the peer's own SYN.
//!
//! RFC 9293 §3.10.7.3; Linux: tcp_rcv_synsent_state_process.
//!
//! Data in a SYN-ACK is dropped, and the peer retransmits it, unless the handshake used Fast Open.

use pkt::DropReason;

use super::{Segment, ack, data, ecn, reset};
use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    open::{fast_open, syn},
    segment::reset as reset_segment,
    tcb::{
        Tcb, TcbFlags,
        fast_open::{is_writer_waiting, takes_syn_ack_data},
    },
    wire::{header::Flags, option::is_older},
};

#[inline(never)]
pub(super) fn process(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    let header = segment.header;
    let has_ack = header.has(Flags::ACK);
    // First: the ACK bit.
    if has_ack {
        check_ack(tcb, segment, cx)?;
    }
    // Second: the RST bit. A reset without an acceptable ACK may be a blind injection.
    if header.has(Flags::RST) {
        if !has_ack {
            return Err(DropReason::TcpResetInvalid);
        }
        reset::on_reset(tcb, cx);
        return Err(DropReason::TcpReset);
    }
    // Third: security. Fourth: the SYN bit.
    if !header.has(Flags::SYN) {
        return Err(DropReason::TcpFlags);
    }
    take_syn(tcb, segment, cx);
    ecn::on_answer(tcb, header);
    if has_ack {
        return on_syn_ack(tcb, segment, cx);
    }
    // Simultaneous open: the SYNs have crossed.
    tcb.set_state(cx, State::SynRecv);
    syn::send_syn(tcb, cx);
    Ok(())
}

/// Checks that the ACK acknowledges our SYN and that the segment belongs to this connection.
fn check_ack(tcb: &Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) -> Result<(), DropReason> {
    let header = segment.header;
    if !header.ack.between(tcb.iss + 1, tcb.snd_nxt) {
        reset_segment::reply(cx, &tcb.tuple, header, segment.len);
        return Err(DropReason::TcpInvalidAck);
    }
    if header.has(Flags::RST) {
        return Ok(());
    }
    if has_invalid_tsecr(tcb, segment, cx) {
        cx.count(Counter::TcpExtPAWSActive);
        reset_segment::reply(cx, &tcb.tuple, header, segment.len);
        return Err(DropReason::TcpPaws);
    }
    if is_from_earlier_connection(tcb, segment) {
        cx.count(Counter::TcpExtPAWSActive);
        return Err(DropReason::TcpPaws);
    }
    Ok(())
}

/// Enters ESTABLISHED after a SYN-ACK, and processes its acknowledged and received data.
fn on_syn_ack(tcb: &mut Tcb, segment: &mut Segment<'_>, cx: &mut Cx<'_>) -> Result<(), DropReason> {
    let header = segment.header;
    ack::on_syn_acked(tcb, segment, cx);
    fast_open::on_syn_ack(tcb, cx, header);
    if header.ack.gt(tcb.snd_una) {
        ack::process(tcb, segment, cx);
    }
    // Data that our SYN carried and the peer has not accepted is retransmitted at once
    // (RFC 7413 §4.2.1).
    tcb.send_queue.mark_all_lost();
    if tcb.send_queue.head().is_some() {
        // The retransmission carries the ACK (Linux: tcp_rcv_fastopen_synack). A bare ACK would
        // start after bytes that a server with SYN cookies has not kept, and the server would find
        // no connection for it.
    } else if is_writer_waiting(tcb) {
        tcb.ack.on_awaited_syn_ack(tcb.rcv_wnd, cx.now);
    } else {
        tcb.ack.schedule_now();
    }
    if takes_syn_ack_data(tcb) && segment.len <= tcb.rcv_wnd {
        data::process(tcb, segment, cx)?;
        data::process_fin(tcb, segment, cx);
    }
    Ok(())
}

/// Takes the peer's ISS and options from its SYN.
fn take_syn(tcb: &mut Tcb, segment: &Segment<'_>, cx: &Cx<'_>) {
    let header = segment.header;
    let options = &header.options;
    tcb.irs = header.seq;
    tcb.rcv_nxt = header.seq + 1;
    tcb.rcv_wup = tcb.rcv_nxt;
    let offers = |option| tcb.flags.contains(option);
    let scale = options.window_scale.filter(|_| offers(TcbFlags::OFFERS_SCALING));
    let timestamps = options.timestamps.filter(|_| offers(TcbFlags::OFFERS_TIMESTAMPS));
    let sack = options.sack_permitted && offers(TcbFlags::OFFERS_SACK);
    tcb.flags.set(TcbFlags::WINDOW_SCALING, scale.is_some());
    match scale {
        Some(shift) => tcb.snd_wscale = shift,
        None => (tcb.snd_wscale, tcb.rcv_wscale) = (0, 0),
    }
    tcb.flags.set(TcbFlags::SACK, sack);
    tcb.flags.set(TcbFlags::TIMESTAMPS, timestamps.is_some());
    if let Some((value, _)) = timestamps {
        tcb.ts_recent = value;
        tcb.ts_recent_at = cx.now;
    }
    // The window of a SYN is never scaled (RFC 7323 §2.2).
    tcb.snd_wnd = u32::from(header.window);
    tcb.mss.on_window(tcb.snd_wnd);
    tcb.snd_wl1 = header.seq;
    tcb.mss.on_handshake(options.mss, timestamps.is_some());
    tcb.congestion.set_mss(tcb.mss.effective());
}

/// Returns whether the segment belongs to the earlier connection whose TIME-WAIT was reused: its
/// timestamp is older than the last one of that connection (RFC 6191 §2).
fn is_from_earlier_connection(tcb: &Tcb, segment: &Segment<'_>) -> bool {
    match segment.header.options.timestamps {
        Some((value, _)) => tcb.ts_recent != 0 && is_older(value, tcb.ts_recent),
        None => false,
    }
}

/// Returns whether the segment echoes a timestamp that we cannot have sent (RFC 7323 §5.2 leaves
/// this check to the implementation).
fn has_invalid_tsecr(tcb: &Tcb, segment: &Segment<'_>, cx: &Cx<'_>) -> bool {
    match segment.header.options.timestamps {
        Some((_, echo)) if tcb.flags.contains(TcbFlags::OFFERS_TIMESTAMPS) && echo != 0 => {
            is_older(tcb.ts_now(cx.now), echo)
        }
        _ => false,
    }
}
