//! The segments of a connection: header, options, metadata.
//!
//! Above: `output`, and every other step that sends a segment. Below: `cx.out`.
//! RFC 9293 §3.1, §3.10; Linux: tcp_transmit_skb, tcp_options_write, __tcp_send_ack.
//!
//! A segment with payload is a clone of its queue entry that shares the payload's pages and has
//! header space of its own. The checksum field holds the pseudo-header sum (`TxChecksum::Partial`,
//! whose `start` counts from the TCP header). Every segment with ACK cancels the owed ACK, unless a
//! D-SACK did not fit into it.
//!
//! The files of `segment/` answer the questions that precede every transmission: which bytes of the
//! stream form the next segment (`next`), which window it announces (`window`), and whether pacing
//! (`pacing`) or the packets below TCP (`small_queue`) defer it.
//!
//! Not here: the order of segments (`output`), retransmissions (`loss::retransmit`), the SYN
//! (`open::syn`).

pub(crate) mod ack_compression;
pub(crate) mod next;
pub(crate) mod pacing;
pub mod reset;
pub(crate) mod sack_report;
pub(crate) mod small_queue;
pub(crate) mod window;

use pkt::{Gso, GsoKind, Packet, TxChecksum};

use crate::{
    base::counters::Counter,
    cx::Cx,
    segment::window::{hold_window, select_window},
    tcb::{Tcb, TcbFlags, ecn, send_queue::entry::EntryFlags, urgent},
    wire::{
        header::{self, CHECKSUM_OFFSET, Flags, SegmentHeader},
        pseudo::pseudo_header,
        seq::SeqNum,
    },
};

/// Puts a clone of entry `index` with a header in front on `cx.out`, as a first transmission or a
/// retransmission. Returns `false` when there is no memory.
pub(crate) fn transmit(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize) -> bool {
    let mss = tcb.mss.effective();
    transmit_in(tcb, cx, index, mss)
}

/// As [`transmit`], but sends the entry as one segment of any size: a path MTU probe.
pub(crate) fn transmit_whole(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize) -> bool {
    transmit_in(tcb, cx, index, u32::MAX)
}

fn transmit_in(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize, mss: u32) -> bool {
    let entry = tcb.send_queue.entry(index);
    let clone = match &entry.packet {
        Some(packet) => clone_to_send(packet, cx),
        None => cx.pool.alloc(),
    };
    let Some(packet) = clone else { return false };
    let mut flags = Flags::ACK;
    flags.set(Flags::FIN, entry.flags.contains(EntryFlags::FIN));
    // PSH on the last segment of a superframe (a packet of several segments, for GSO) ends the
    // peer's GRO merge, as in Linux, even if the application did not push.
    let pushed = entry.flags.contains(EntryFlags::PSH) && entry.len > 0;
    flags.set(Flags::PSH, pushed || entry.len > tcb.mss.effective());
    let header = SegmentHeader { seq: entry.seq, flags, ..SegmentHeader::default() };
    let (len, seq_len) = (entry.len, entry.seq_len());
    let window = select_window(tcb, cx);
    let new_data = len > 0 && index >= tcb.send_queue.sent_count();
    emit(tcb, cx, packet, SegmentHeader { window, ..header }, (len, mss), new_data);
    let idle = tcb.send_queue.sent_count() == 0;
    if idle {
        tcb.congestion.on_restart(cx.now, tcb.rate.is_app_limited());
    }
    let in_flight = tcb.pipe() + seq_len;
    let departs = pacing::departure(tcb, cx);
    let snapshot = tcb.rate.on_transmit(departs, idle, in_flight, tcb.send_queue.lost_total());
    tcb.send_queue.on_transmit(index, departs, snapshot, tcb.rate.is_app_limited());
    tcb.congestion.on_transmitted(len);
    pacing::on_transmit(tcb, cx, len);
    tcb.ack.on_data_sent(cx.now);
    tcb.last_sent_at = cx.now;
    true
}

/// Clones a queued packet for sending. If a layer below may keep the clone, the queued packet
/// records how long (`loss::retransmit::still_in_host_queue`).
#[inline]
pub(crate) fn clone_to_send(packet: &Packet, cx: &mut Cx<'_>) -> Option<Packet> {
    if cx.host_queue.direct { packet.clone_apart(cx.pool) } else { packet.clone_in(cx.pool) }
}

/// Returns SEG.SEQ of a segment without data: SND.NXT, or the end of the peer's window if the peer
/// has moved this end back to a number before SND.NXT. The peer refuses segments beyond the end of
/// its window, ACKs included. A difference that rounding by the window scale explains is ignored
/// (RFC 7323 §2.4, the second rule for senders; Linux: tcp_acceptable_seq).
fn acceptable_seq(tcb: &Tcb) -> SeqNum {
    let end = tcb.snd_una + tcb.snd_wnd;
    let scaled = tcb.flags.contains(TcbFlags::WINDOW_SCALING);
    let is_inside = end.ge(tcb.snd_nxt) || (scaled && tcb.snd_nxt.since(end) < 1 << tcb.rcv_wscale);
    if is_inside { tcb.snd_nxt } else { end }
}

/// Sends a segment without data, `<SEQ=SND.NXT><ACK=RCV.NXT>`; `acceptable_seq` may lower SEQ.
/// Returns `false` when there is no memory.
pub(crate) fn send_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    send_bare(tcb, cx, acceptable_seq(tcb), Flags::ACK, select_window)
}

/// Sends the answer to an out-of-order segment: an ACK with an unchanged window, so that the peer
/// counts it as a duplicate. Returns `false` when there is no memory.
pub(crate) fn send_duplicate_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    send_bare(tcb, cx, acceptable_seq(tcb), Flags::ACK, hold_window)
}

/// Sends a segment that the peer cannot accept and must answer: SEG.SEQ is one before SND.UNA
/// (keepalive and window probe). In urgent mode a segment that carries the urgent pointer is sent
/// before the probe, so that the peer receives the mark although its window is closed
/// (RFC 9293 §3.8.5).
pub(crate) fn send_probe(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if urgent::wants_probe(tcb) {
        send_bare(tcb, cx, tcb.snd_una, Flags::ACK, select_window);
    }
    send_bare(tcb, cx, tcb.snd_una - 1, Flags::ACK, select_window);
}

/// Sends the segment of an abort, `<SEQ=SND.NXT><CTL=RST,ACK>` (RFC 9293 §3.10.5).
pub(crate) fn send_reset(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if send_bare(tcb, cx, acceptable_seq(tcb), Flags::RST | Flags::ACK, select_window) {
        cx.count(Counter::TcpOutRsts);
    } else {
        cx.count(Counter::TcpExtTCPAbortFailed);
    }
}

fn send_bare(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    seq: SeqNum,
    flags: Flags,
    window: fn(&mut Tcb, &Cx<'_>) -> u16,
) -> bool {
    let Some(packet) = cx.pool.alloc() else { return false };
    let window = window(tcb, cx);
    let header = SegmentHeader { seq, flags, window, ..SegmentHeader::default() };
    emit(tcb, cx, packet, header, (0, u32::MAX), false);
    cx.count(Counter::TcpOutSegs);
    true
}

/// Completes the header of a synchronized connection, pushes it in front of `packet` and puts the
/// packet on `cx.out`. The `len` bytes of payload are sent in segments of `mss`.
fn emit(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    mut packet: Packet,
    mut header: SegmentHeader,
    (len, mss): (u32, u32),
    new_data: bool,
) {
    if tcb.flags.contains(TcbFlags::TIMESTAMPS) {
        header.options.timestamps = Some((tcb.ts_now(cx.now), tcb.ts_recent));
    }
    header.ack = tcb.rcv_nxt;
    urgent::mark(tcb, &mut header);
    ecn::set_bits(tcb, &mut packet, &mut header, new_data);
    report_blocks(tcb, &mut header, len);
    if !tcb.sack_report.has_duplicate() {
        tcb.ack.on_ack_sent();
        count_compressed(tcb, cx);
        tcb.timers.stop_delack();
    }
    send_packet(tcb, cx, packet, header, (len, mss));
}

/// Adds SACK blocks, where they fit. A duplicate that does not fit stays pending, and so does the
/// ACK that is owed for it.
///
/// Differs from Linux: a full segment carries no blocks, because segments would have to shrink for
/// as long as the peer has holes. Segments that arrive out of order or twice are answered by pure
/// ACKs.
fn report_blocks(tcb: &mut Tcb, header: &mut SegmentHeader, len: u32) {
    if tcb.reassembly.is_clear() && !tcb.sack_report.has_duplicate() {
        return;
    }
    if !tcb.flags.contains(TcbFlags::SACK) {
        return;
    }
    let before = header.options.encoded_len();
    header.options.sack_blocks = tcb.sack_report.blocks(&tcb.reassembly);
    let added = u32::try_from(header.options.encoded_len() - before).unwrap_or(u32::MAX);
    if len > 0 && len + added > tcb.mss.effective() {
        header.options.sack_blocks.clear();
    } else {
        tcb.sack_report.on_sent();
    }
}

/// Counts the compressed ACKs that a sent segment with ACK makes unnecessary.
fn count_compressed(tcb: &mut Tcb, cx: &Cx<'_>) {
    let saved = tcb.ack_compression.on_ack_sent();
    if saved > 0 {
        cx.counters.add(Counter::TcpExtTCPAckCompressed, u64::from(saved));
    }
}

/// Completes the metadata and ports of a segment with `len` bytes of payload, pushes its header in
/// front of `packet`, and puts the packet on `cx.out`.
pub(crate) fn send_packet(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    mut packet: Packet,
    mut header: SegmentHeader,
    (len, mss): (u32, u32),
) {
    if len > 0 {
        cx.host_queue.bytes = cx.host_queue.bytes.saturating_add(packet.truesize());
    }
    let meta = packet.meta_mut();
    meta.flow_hash = tcb.flow_hash;
    meta.timestamp = tcb.pacing.departure(cx.now);
    meta.gso = Gso::default();
    if len > mss {
        meta.gso = Gso {
            kind: if tcb.tuple.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 },
            // Only the first segment of a superframe carries CWR.
            ecn: header.has(Flags::CWR),
            fixed_id: false,
            size: u16::try_from(mss).unwrap_or(u16::MAX),
            segs: u16::try_from(len.div_ceil(mss)).unwrap_or(u16::MAX),
        };
    }
    header.src_port = tcb.tuple.local.port();
    header.dst_port = tcb.tuple.remote.port();
    push_header(&mut packet, &header, tcb.pseudo_sum);
    tcb.totals.segs_out = tcb.totals.segs_out.wrapping_add(len.div_ceil(mss).max(1));
    cx.out.push_back(packet);
}

/// Writes `header` in front of `packet`, and the pseudo-header sum, made from `pseudo_sum`, into
/// the checksum field.
pub(crate) fn push_header(packet: &mut Packet, header: &SegmentHeader, pseudo_sum: u16) {
    let header_bytes = header.header_bytes();
    let bytes = packet.push(header_bytes);
    header.emit(bytes);
    let sum = pseudo_header(pseudo_sum, packet.len());
    let linear = packet.linear_mut();
    header::write_checksum(&mut linear[..header_bytes], sum);
    let offset = u16::try_from(CHECKSUM_OFFSET).unwrap_or(u16::MAX);
    packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 0, offset };
}
