//! Seventh and eighth step: payload and FIN.
//!
//! RFC 9293 §3.10.7.4 seventh and eighth, RFC 5681 §4.2; Linux: tcp_data_queue, tcp_ofo_queue,
//! tcp_fin.
//!
//! The segment starts at RCV.NXT or later and lies inside the window (first step). In-order data
//! goes to the receive queue or directly to a waiting reader, followed by queued data that becomes
//! contiguous. Out-of-order data is queued in `reassembly` and answered by duplicate ACKs
//! (`ack_compression`), of which fast retransmit needs three.

use arrayvec::ArrayVec;
use pkt::{DropReason, Packet};

use super::{Segment, ecn, prune};
use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    segment::{ack_compression, reset, sack_report, window},
    tcb::{
        Tcb, TcbFlags, delayed_ack::DataSeen, memory::PRESSURE_SEGMENTS, reassembly::Insert,
        receive_buffer::GROW_BYTES_MIN,
    },
    wire::{header::Flags, seq::SeqNum},
};

/// Upper bound of D-SACKs for one superframe (a packet of several segments). Each segment of a
/// superframe would have been answered by its own D-SACK; the bound limits the ACKs that one packet
/// of a hostile peer causes.
const DUPLICATES_MAX: usize = 4;

pub(super) fn process(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    if segment.seq_len() == 0 {
        return Ok(());
    }
    if !tcb.state.may_receive() {
        // Data after the peer's FIN is ignored.
        return Err(DropReason::TcpClosed);
    }
    if segment.len > 0 && tcb.flags.contains(TcbFlags::SHUT_READ) && tcb.state != State::Established
    {
        return abort_on_data(tcb, segment, cx);
    }
    cut_behind_fin(tcb, segment);
    if segment.seq != tcb.rcv_nxt {
        queue_out_of_order(tcb, segment, cx)
    } else if segment.len > 0 {
        queue_in_order(tcb, segment, cx)
    } else {
        Ok(())
    }
}

/// Trims data after a FIN that arrived earlier, because such data is not part of the stream.
fn cut_behind_fin(tcb: &Tcb, segment: &mut Segment<'_>) {
    let Some(fin) = tcb.reassembly.fin() else { return };
    if segment.seq.lt(fin) && (segment.seq + segment.len).gt(fin) {
        segment.len = fin.since(segment.seq);
        if let Some(packet) = segment.packet.as_mut() {
            packet.truncate(segment.len as usize);
        }
    }
}

/// Resets a connection that receives data after its reader has closed, except in ESTABLISHED, so
/// that the peer does not count the data as delivered (RFC 1122 §4.2.2.13). The reset takes its
/// sequence number from the segment's ACK, which the peer expects; SND.NXT would be wrong if our
/// FIN was lost.
#[cold]
fn abort_on_data(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) -> Result<(), DropReason> {
    cx.count(Counter::TcpExtTCPAbortOnData);
    reset::reply(cx, &tcb.tuple, segment.header, segment.len);
    tcb.finish(cx, None);
    Err(DropReason::TcpAbortOnData)
}

fn queue_in_order(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    // The announced window promised room for these bytes, so the memory of small packets may exceed
    // the buffer. Differs from Linux: it may reach twice the buffer, because a drop would force the
    // peer into loss recovery.
    let limit = tcb.receive_buffer.rcvbuf().saturating_mul(2);
    if !prune::has_room(tcb, cx, segment.seq, limit) && !tcb.receive_queue.is_empty() {
        cx.count(Counter::TcpExtTCPRcvQDrop);
        tcb.ack.schedule_now();
        return Err(DropReason::TcpRcvQueueFull);
    }
    on_data(tcb, segment, cx);
    if tcb.reassembly.is_clear() {
        queue_next(tcb, segment, cx);
        schedule_ack(tcb);
        return Ok(());
    }
    let segments = segment.segments();
    queue_next(tcb, segment, cx);
    queue_contiguous(tcb, cx, segments - u32::from(segment.reported));
    Ok(())
}

/// Queues a segment that starts at RCV.NXT, and advances RCV.NXT to its end.
#[inline]
fn queue_next(tcb: &mut Tcb, segment: &mut Segment<'_>, cx: &mut Cx<'_>) {
    if let Some(packet) = segment.packet.take() {
        match copy_to_reader(tcb, segment, packet) {
            Ok(read) => take_read(tcb, cx, read, segment.len),
            Err(packet) => accept(tcb, cx, packet, segment.len),
        }
    }
}

/// Queues the out-of-order data that a segment in order has made contiguous. Queued data that this
/// packet repeats is reported by D-SACK: at most one range for each of the `reports` segments of
/// the packet without a D-SACK yet (RFC 2883 §4 allows one range per segment), and at most
/// [`DUPLICATES_MAX`].
#[inline(never)]
fn queue_contiguous(tcb: &mut Tcb, cx: &mut Cx<'_>, reports: u32) {
    let repeated: ArrayVec<_, DUPLICATES_MAX> = tcb
        .reassembly
        .ranges_before(tcb.rcv_nxt)
        .take(DUPLICATES_MAX.min(reports as usize))
        .collect();
    let mut ready = tcb.reassembly.take_contiguous(tcb.rcv_nxt);
    while let Some(packet) = ready.packets.pop_front() {
        let len = u32::try_from(packet.len()).expect("a packet is shorter than 2^32 bytes");
        accept(tcb, cx, packet, len);
    }
    debug_assert_eq!(tcb.rcv_nxt, ready.rcv_nxt);
    ready.stale.free_all(cx.pool);
    if tcb.reassembly.is_clear() {
        tcb.sack_report.on_in_order();
    }
    for range in repeated {
        // Counted as in Linux: the bytes are below RCV.NXT by now.
        sack_report::on_duplicate(tcb, cx, range, Counter::TcpExtTCPDSACKOldSent);
    }
    // RFC 5681 §4.2: a segment that fills a hole is acknowledged at once.
    tcb.ack.schedule_now();
}

/// Schedules one ACK for every second full segment (RFC 5681 §4.2) if that ACK can advance the
/// right edge of the window. Otherwise the next read of the application or the delayed-ACK timer
/// causes the ACK. While less than `SO_RCVLOWAT` bytes are queued, the ACK is scheduled in any
/// case, because the application does not read yet.
fn schedule_ack(tcb: &mut Tcb) {
    let unacked = tcb.rcv_nxt.since(tcb.rcv_wup);
    let useful = unacked <= tcb.ack.rcv_mss()
        || tcb.receive_queue.bytes() < tcb.receive_buffer.lowat()
        || window::wanted_window(tcb) >= tcb.rcv_wnd;
    tcb.ack.schedule(unacked, useful);
}

/// Copies the payload to the reader that runs this call, if there is a reader, all earlier data was
/// read, and there is no urgent mark. The part that does not fit stays in the packet. `Err` returns
/// a packet of which nothing was copied and which must be queued. Linux: tcp_copy_to_iovec,
/// tcp_data_queue.
fn copy_to_reader(
    tcb: &Tcb,
    segment: &mut Segment<'_>,
    mut packet: Packet,
) -> Result<Packet, Packet> {
    let may = !segment.user.is_empty()
        && tcb.receive_queue.is_empty()
        && !tcb.flags.contains(TcbFlags::URGENT_IN);
    if !may {
        return Err(packet);
    }
    let copied = packet.copy_to(0, segment.user);
    packet.advance(copied);
    segment.copied = u32::try_from(copied).expect("a packet is shorter than 2^32 bytes");
    Ok(packet)
}

/// Accepts a segment whose front was copied to the reader; the rest is queued.
fn take_read(tcb: &mut Tcb, cx: &mut Cx<'_>, rest: Packet, len: u32) {
    if !rest.is_empty() {
        return accept(tcb, cx, rest, len);
    }
    tcb.rcv_nxt += len;
    tcb.totals.bytes_received += u64::from(len);
    cx.pool.free(rest);
}

fn accept(tcb: &mut Tcb, cx: &mut Cx<'_>, mut packet: Packet, len: u32) {
    tcb.rcv_nxt += len;
    tcb.totals.bytes_received += u64::from(len);
    if tcb.receive_queue.is_behind() || !cx.memory.is_plenty() {
        packet.condense(cx.pool);
    }
    if tcb.receive_queue.push(cx.pool, packet) {
        cx.count(Counter::TcpExtTCPRcvCoalesce);
    }
}

#[inline(never)]
fn queue_out_of_order(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    let rcvbuf = tcb.receive_buffer.rcvbuf();
    if !prune::has_room(tcb, cx, segment.seq, rcvbuf) {
        cx.count(Counter::TcpExtTCPOFODrop);
        ack_compression::answer(tcb, cx);
        return Err(DropReason::TcpOfoQueueFull);
    }
    if segment.len > 0 {
        on_data(tcb, segment, cx);
        tcb.totals.rcv_ooopack = tcb.totals.rcv_ooopack.wrapping_add(segment.segments());
        cx.count(Counter::TcpExtTCPOFOQueue);
    }
    let Some(mut packet) = segment.packet.take() else { return Ok(()) };
    // A hostile peer could keep a small packet queued for long, and with it the page that it was
    // received in.
    packet.condense(cx.pool);
    let limit = rcvbuf as usize * 2;
    let end = segment.seq + segment.len;
    let repeats_fin = segment.fin && tcb.reassembly.fin() == Some(end);
    let inserted = tcb.reassembly.insert(segment.seq, packet, segment.fin, limit);
    report(tcb, cx, &inserted, (segment.seq, end + u32::from(repeats_fin)));
    ack_compression::answer(tcb, cx);
    match inserted {
        Insert::Queued(mut queued) => {
            queued.redundant.free_all(cx.pool);
            Ok(())
        }
        Insert::FinNoted(packet) => {
            segment.packet = Some(packet);
            Ok(())
        }
        Insert::Refused(reason, packet) => {
            cx.count(match reason {
                DropReason::TcpOfoQueueFull => Counter::TcpExtTCPOFODrop,
                _ => Counter::TcpExtTCPOFOMerge,
            });
            segment.packet = Some(packet);
            Err(reason)
        }
    }
}

/// Records the blocks that the next ACK reports by SACK. `range` is the segment, including its FIN
/// if that was received earlier.
fn report(tcb: &mut Tcb, cx: &mut Cx<'_>, inserted: &Insert, range: (SeqNum, SeqNum)) {
    let (block, duplicate) = match inserted {
        Insert::Queued(queued) => (Some(queued.block), queued.duplicate),
        Insert::Refused(DropReason::TcpOfoDuplicate, _) => {
            (tcb.reassembly.block_of(range.0), Some(range))
        }
        // The range is empty, and not reported, unless the FIN was received earlier.
        Insert::FinNoted(_) => (tcb.reassembly.block_of(range.0), Some(range)),
        Insert::Refused(..) => (None, None),
    };
    if let Some(range) = duplicate {
        sack_report::on_duplicate(tcb, cx, range, Counter::TcpExtTCPDSACKOfoSent);
    }
    if let Some(block) = block {
        if tcb.ack_compression.is_waiting() && tcb.sack_report.is_full_for(block) {
            ack_compression::release(tcb, cx);
        }
        tcb.sack_report.on_block(block);
    }
}

/// Updates the estimates that depend on accepted segments with payload.
#[inline]
fn on_data(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) {
    if let Some(packet) = &segment.packet {
        ecn::on_data(tcb, cx, segment.header, packet.meta().ecn);
    }
    let segment_bytes = segment.segment_bytes();
    let advmss = tcb.mss.advertised();
    tcb.ack.on_data(&DataSeen {
        now: cx.now,
        segment_bytes,
        pushed: segment.header.flags.intersects(Flags::PSH | Flags::FIN | Flags::URG),
        advmss,
        rcv_wnd: tcb.rcv_wnd,
        rto_us: tcb.rtt.rto_us(),
    });
    grow_window(tcb, segment, cx);
    match segment.header.options.timestamps {
        Some((_, echo)) if tcb.flags.contains(TcbFlags::TIMESTAMPS) && echo != 0 => {
            if segment_bytes >= tcb.ack.rcv_mss() {
                let ms = tcb.ts_now(cx.now).wrapping_sub(echo);
                tcb.receive_buffer.on_rtt_timestamp(echo, ms);
            }
        }
        _ => tcb.receive_buffer.on_rtt_window(tcb.rcv_nxt, tcb.rcv_wnd, cx.now),
    }
    tcb.last_received_at = cx.now;
}

/// Adapts the limit of the announced window to the arriving data and its memory cost.
fn grow_window(tcb: &mut Tcb, segment: &Segment<'_>, cx: &Cx<'_>) {
    let Some(packet) = &segment.packet else { return };
    let (truesize, rcv_mss) = (packet.truesize(), tcb.ack.rcv_mss());
    if segment.segment_bytes() >= rcv_mss {
        tcb.receive_buffer.on_packet(segment.len, truesize);
    }
    let scarce = !cx.memory.is_plenty();
    tcb.receive_buffer.note_scarcity(scarce, PRESSURE_SEGMENTS);
    if scarce {
        return;
    }
    if segment.len < GROW_BYTES_MIN {
        // Small segments do not increase the limit.
        return;
    }
    let free = window::free_window(tcb);
    if tcb.receive_buffer.on_arrival(segment.len, truesize, rcv_mss, free, cx.config) {
        tcb.ack.on_window_grown();
    }
}

/// Processes the FIN once all data before it has arrived.
pub(super) fn process_fin(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) {
    let is_next = (segment.fin && segment.end_seq() == tcb.rcv_nxt + 1)
        || tcb.reassembly.is_fin_next(tcb.rcv_nxt);
    if !tcb.state.may_receive() || !is_next {
        return;
    }
    tcb.rcv_nxt += 1;
    tcb.flags |= TcbFlags::FIN_RECEIVED | TcbFlags::SHUT_READ;
    tcb.idle.note_progress(cx.now);
    tcb.reassembly.clear().free_all(cx.pool);
    tcb.ack.schedule_now();
    match tcb.state {
        State::Established => tcb.set_state(cx, State::CloseWait),
        State::FinWait1 => tcb.set_state(cx, State::Closing),
        State::FinWait2 => tcb.enter_time_wait(cx),
        _ => {}
    }
}
