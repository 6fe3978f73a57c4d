//! Two fast paths of `output`: [`transmit`] sends one segment while nothing is in flight, and
//! [`output_nothing`] sends nothing.
//!
//! [`super::output_all`] is the slow path. Under the conditions of [`is_lone_write`] and
//! [`output_nothing`] most steps of the slow path change nothing, and this file contains the
//! remaining steps. `tests::fast_path` compares both paths. In Linux the second fast path
//! corresponds to the checks before tcp_push_pending_frames and tcp_data_snd_check.
//!
//! Not here: the headers of segments in general (`segment`).

use pkt::{Gso, Instant, Packet, TxChecksum};

use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    loss::tlp,
    segment::{self, pacing, window},
    tcb::{
        Tcb, TcbFlags,
        ecn::EcnState,
        send_queue::entry::{Entry, EntryFlags},
        timers::{self, RtxPurpose},
        totals,
    },
    wire::{
        header::{CHECKSUM_OFFSET, Flags, PlainHeader},
        pseudo,
    },
};

/// Handles the case that nothing is to be sent and no ACK is due before its timer: updates the
/// timers and totals. Returns false if the connection needs [`super::output`].
#[inline]
pub fn output_nothing(tcb: &mut Tcb, now: Instant) -> bool {
    const WATCHED: TcbFlags = TcbFlags::NO_FAST_PATH
        .union(TcbFlags::WRITE_SUPPRESSED)
        .union(TcbFlags::NO_SPACE)
        .union(TcbFlags::ORPHAN)
        .union(TcbFlags::THROTTLED);
    if tcb.state != State::Established
        || tcb.flags.intersects(WATCHED)
        || !tcb.send_queue.is_empty()
        || tcb.doubts_route
        || tcb.ack.is_now()
        || (tcb.ack.is_pending() && !super::leave_to_timer(tcb, now))
    {
        return false;
    }
    tcb.timers.stop_pacing();
    totals::on_idle(tcb, now);
    true
}

/// Sends the only queued entry, if it is at most a full segment and no mechanism delays it. Returns
/// false without a change if the slow path is needed.
#[inline]
pub(super) fn transmit(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    if !is_lone_write(tcb, cx) {
        return false;
    }
    let Some(entry) = tcb.send_queue.lone_unsent() else { return false };
    let clone = entry.packet.as_ref().and_then(|packet| segment::clone_to_send(packet, cx));
    let Some(packet) = clone else { return false };
    let (seq, len, end_seq) = (entry.seq, entry.len, entry.end_seq());
    let mut flags = Flags::ACK;
    flags.set(Flags::PSH, entry.flags.contains(EntryFlags::PSH));
    let window = window::select_window(tcb, cx);
    let timestamps = (tcb.ts_now(cx.now), tcb.ts_recent);
    let ack = tcb.rcv_nxt;
    emit(tcb, cx, packet, PlainHeader { ports: (0, 0), seq, ack, flags, window, timestamps });
    tcb.timers.stop_pacing();
    tcb.timers.stop_delack();
    tcb.ack.on_ack_sent();
    tcb.ack.on_data_sent(cx.now);
    tcb.last_sent_at = cx.now;
    let snapshot = tcb.rate.on_transmit(cx.now, true, len, tcb.send_queue.lost_total());
    tcb.send_queue.on_transmit(0, cx.now, snapshot, tcb.rate.is_app_limited());
    tcb.snd_nxt = end_seq;
    if len < tcb.mss.effective() {
        tcb.snd_sml = end_seq;
    }
    tcb.persist_backoff = 0;
    tcb.totals.bytes_sent += u64::from(len);
    tcb.totals.data_segs_out = tcb.totals.data_segs_out.wrapping_add(1);
    cx.count(Counter::TcpExtTCPOrigDataSent);
    cx.count(Counter::TcpOutSegs);
    tcb.flags -= TcbFlags::WRITTEN | TcbFlags::HOST_LIMITED | TcbFlags::CWND_LIMITED;
    arm_timer(tcb, cx);
    super::note_use(tcb, cx, false);
    totals::on_output(tcb, cx.now);
    true
}

/// Returns whether exactly one write of at most one segment is queued and can be sent at once.
/// Nothing is in flight, so neither Nagle nor the congestion window delays it. The peer's window
/// has room, no cork, pacing or limit of lower queues applies, and no urgent pointer, probe,
/// retransmission or SACK block must be sent with it. Timestamps are in use, ECN is not, and no
/// idle time requires a smaller window.
#[inline]
fn is_lone_write(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    const WATCHED: TcbFlags = TcbFlags::TIMESTAMPS
        .union(TcbFlags::NO_FAST_PATH)
        .union(TcbFlags::WRITE_SUPPRESSED)
        .union(TcbFlags::CORK)
        .union(TcbFlags::MORE)
        .union(TcbFlags::MID_WRITE)
        .union(TcbFlags::URGENT_OUT);
    let fits = |entry: &Entry| {
        entry.len > 0
            && entry.len <= tcb.mss.effective()
            && entry.len <= tcb.congestion.cwnd()
            && !entry.flags.contains(EntryFlags::FIN)
            && entry.end_seq().le(tcb.snd_una + tcb.snd_wnd)
    };
    tcb.flags & WATCHED == TcbFlags::TIMESTAMPS
        && tcb.send_queue.lone_unsent().is_some_and(fits)
        && tcb.state == State::Established
        && tcb.recovery.is_quiet()
        && tcb.recovery.timeouts() == 0
        && tcb.timers.rtx().is_none()
        && tcb.mtu_probing.is_none()
        && !tcb.ecn.contains(EcnState::AGREED)
        && tcb.reassembly.is_clear()
        && !tcb.sack_report.has_duplicate()
        && !tcb.ack_compression.is_waiting()
        && tcb.congestion.is_plain()
        && !cx.host_queue.completes
        && !cx.host_queue.paces
        && !pacing::is_needed(tcb)
        && cx.now.nanos_since(tcb.last_sent_at) <= u64::from(tcb.rtt.rto_us()) * 1_000
}

/// Adds the header to `packet` and enqueues the packet on `cx.out`.
#[inline]
fn emit(tcb: &mut Tcb, cx: &mut Cx<'_>, mut packet: Packet, header: PlainHeader) {
    cx.host_queue.bytes = cx.host_queue.bytes.saturating_add(packet.truesize());
    let ports = (tcb.tuple.local.port(), tcb.tuple.remote.port());
    let header = PlainHeader { ports, ..header };
    let sum = pseudo::pseudo_header(tcb.pseudo_sum, packet.len() + PlainHeader::BYTES);
    packet.push(PlainHeader::BYTES).copy_from_slice(&header.bytes(sum));
    let meta = packet.meta_mut();
    meta.flow_hash = tcb.flow_hash;
    meta.timestamp = tcb.pacing.departure(cx.now);
    meta.gso = Gso::default();
    let offset = u16::try_from(CHECKSUM_OFFSET).unwrap_or(u16::MAX);
    meta.tx_checksum = TxChecksum::Partial { start: 0, offset };
    tcb.totals.segs_out = tcb.totals.segs_out.wrapping_add(1);
    cx.out.push_back(packet);
}

/// Arms the tail loss probe for the first segment of a flight, or else the RTO.
#[inline]
fn arm_timer(tcb: &mut Tcb, cx: &Cx<'_>) {
    match tlp::deadline(tcb, cx, timers::rto_deadline(tcb, cx)) {
        Some(at) => tcb.timers.arm_rtx(RtxPurpose::LossProbe, at),
        None => timers::arm_rto(tcb, cx),
    }
}
