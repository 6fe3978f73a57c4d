//! Transmit: what may be sent, and the segment that carries it.
//!
//! Above: `stack::socket`, once per batch. Below: `stack::ip::output` takes `cx.out`. RFC 9293 §3.8; Linux:
//! tcp_write_xmit, tcp_transmit_skb, __tcp_send_ack.
//!
//! Order of one run: what is lost, what is new, then the ACK that is owed if no data carried it.
//!
//! A segment leaves as a clone of its queue entry: own header space, shared payload. The header's checksum field
//! holds the pseudo-header sum (`TxChecksum::Partial`, counted from the TCP header; the IP layer adds its header).
//!
//! Not here: what is lost (`retransmit`), the window we announce (`receive_window`), IP.

use pkt::{Gso, GsoKind, Instant, Packet, TxChecksum, checksum};

use crate::{
    congestion::SendSample,
    counters::Counter,
    cx::Cx,
    header::{self, CHECKSUM_OFFSET, Flags, SegmentHeader},
    option::Options,
    receive_window::{hold_window, select_window},
    retransmit,
    send_queue::EntryFlags,
    seq::SeqNum,
    state::State,
    tcb::{Tcb, TcbFlags},
    timer::{self, RtxPurpose},
};

/// Protocol number of TCP in a pseudo-header.
const PROTOCOL_TCP: u8 = 6;

/// Sends everything that may leave: retransmissions, new data, and the ACK that is owed.
///
/// The caller runs it once after a batch of `input`, `on_timer` and application calls, and again when packet memory
/// or transmit room came back.
pub fn output(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.state.may_transmit() && !tcb.send_queue.is_empty() {
        retransmit::transmit_lost(tcb, cx);
        transmit_new(tcb, cx);
        arm_timers(tcb, cx);
    }
    if tcb.ack.is_pending() {
        send_owed_ack(tcb, cx);
    }
}

/// An ACK that no data carried: at once, or by the delayed-ACK timer.
fn send_owed_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.state == State::Close || tcb.state == State::SynSent {
        tcb.ack.cancel();
        return;
    }
    if tcb.ack.is_now() {
        if !send_ack(tcb, cx) {
            // No memory: the timer tries again.
            tcb.timers.arm_delack(cx.now + cx.config.tcp_delack_min);
        }
    } else {
        let deadline = cx.now + tcb.ack.delay(tcb.rtt.srtt());
        if tcb.timers.delack().is_none_or(|armed| deadline < armed) {
            tcb.timers.arm_delack(deadline);
        }
    }
}

/// In flight: RTO. Held back with nothing in flight: the persist timer, whatever holds it (Linux
/// tcp_check_probe_timer).
fn arm_timers(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.send_queue.sent_count() > 0 {
        if tcb.timers.rtx() != Some(RtxPurpose::Retransmit) {
            retransmit::arm_rto(tcb, cx);
        }
    } else if tcb.send_queue.first_unsent().is_some() && tcb.timers.rtx().is_none() {
        timer::arm_persist(tcb, cx);
    }
}

/// Why transmission of new data stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// Nothing is left to send.
    Nothing,
    /// `cwnd` is full.
    Congestion,
    /// The peer's window is full, or holds back a small segment (RFC 9293 §3.8.6.2.1).
    Window,
    /// Nagle, cork, or waiting for a fuller superframe.
    Hold,
    /// No packet memory.
    Memory,
}

fn transmit_new(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.send_queue.first_unsent().is_none() {
        return;
    }
    restart_after_idle(tcb, cx);
    let before = tcb.snd_nxt;
    let blocked = loop {
        match next_len(tcb, cx) {
            Ok((index, len)) => {
                if !send_first(tcb, cx, index, len) {
                    break Blocked::Memory;
                }
            }
            Err(blocked) => break blocked,
        }
    };
    let cwnd_limited = blocked == Blocked::Congestion;
    tcb.flags.set(TcbFlags::CWND_LIMITED, cwnd_limited);
    let open =
        matches!(tcb.recovery.state(), retransmit::CaState::Open | retransmit::CaState::Disorder);
    if (tcb.snd_nxt != before || cwnd_limited) && open {
        tcb.congestion.on_sent(&SendSample {
            now: cx.now,
            in_flight: tcb.pipe(),
            cwnd_limited,
            snd_una: tcb.snd_una,
            snd_nxt: tcb.snd_nxt,
            rto: tcb.rtt.rto(),
        });
    }
}

/// RFC 5681 §4.1: a window nobody used for an RTO is no longer known to fit the path.
fn restart_after_idle(tcb: &mut Tcb, cx: &Cx<'_>) {
    let idle = cx.now - tcb.last_sent_at;
    let rto = tcb.rtt.rto();
    if cx.config.tcp_slow_start_after_idle && tcb.send_queue.sent_count() == 0 && idle > rto {
        tcb.congestion.on_idle(idle, rto, cx.now);
        tcb.last_sent_at = cx.now;
    }
}

/// Index of the next new entry and how many of its payload bytes may leave in one packet.
fn next_len(tcb: &Tcb, cx: &Cx<'_>) -> Result<(usize, u32), Blocked> {
    let Some((index, entry)) = tcb.send_queue.first_unsent() else { return Err(Blocked::Nothing) };
    let mss = tcb.mss.effective();
    let window = window_left(tcb, entry.seq);
    let limited = tcb.recovery.limited_transmit_segments() * mss;
    let congestion = (tcb.congestion.cwnd() + limited).saturating_sub(tcb.pipe());
    let limit = window.min(congestion).min(tcb.mss.transmit_max());
    let fin = entry.flags.contains(EntryFlags::FIN);
    if entry.len <= limit && entry.seq_len() <= window {
        return hold_small(tcb, cx, index, entry.len, fin);
    }
    if entry.len <= limit && entry.len > 0 {
        // The data fits and its FIN does not: the FIN follows alone.
        return Ok((index, entry.len));
    }
    let whole = limit - limit % mss;
    if whole == 0 {
        // RFC 9293 §3.8.6.2.1 (3): less than a segment only if it is half of the largest window seen.
        if window < mss && window > 0 && window >= tcb.max_window / 2 && congestion >= window {
            return Ok((index, window));
        }
        return Err(if window < mss { Blocked::Window } else { Blocked::Congestion });
    }
    if whole < tcb.mss.transmit_max() && defer_superframe(tcb, cx, window.min(congestion)) {
        return Err(if congestion <= window { Blocked::Congestion } else { Blocked::Hold });
    }
    Ok((index, whole))
}

/// Bytes of the peer's window from `seq` on.
fn window_left(tcb: &Tcb, seq: SeqNum) -> u32 {
    let end = tcb.snd_una + tcb.snd_wnd;
    if end.gt(seq) { end.since(seq) } else { 0 }
}

/// Nagle's rule with Minshall's reading (RFC 9293 §3.7.4): a small segment waits while an earlier small one is not
/// acknowledged; with `TCP_CORK` or `MSG_MORE` it waits anyway. Only the tail can be small, and a FIN ends all waiting.
fn hold_small(
    tcb: &Tcb,
    cx: &Cx<'_>,
    index: usize,
    len: u32,
    fin: bool,
) -> Result<(usize, u32), Blocked> {
    let mss = tcb.mss.effective();
    let _ = cx;
    let small = len % mss;
    if small == 0 || fin || !tcb.send_queue.is_tail(index) {
        return Ok((index, len));
    }
    let unacked_small = tcb.snd_sml.gt(tcb.snd_una) && tcb.snd_sml.le(tcb.snd_nxt);
    let cork = tcb.flags.intersects(TcbFlags::CORK | TcbFlags::MORE);
    let nagle =
        !tcb.flags.contains(TcbFlags::NODELAY) && tcb.send_queue.sent_count() > 0 && unacked_small;
    if !cork && !nagle {
        return Ok((index, len));
    }
    if len > small { Ok((index, len - small)) } else { Err(Blocked::Hold) }
}

/// A part of a superframe waits for the next ACK when that will let a fuller one go: cutting it now would turn the
/// rest of the transfer into small packets. Linux: tcp_tso_should_defer.
fn defer_superframe(tcb: &Tcb, cx: &Cx<'_>, limit: u32) -> bool {
    let divisor = u32::from(cx.config.tcp_tso_win_divisor);
    let open = matches!(tcb.recovery.state(), retransmit::CaState::Open);
    if divisor == 0 || !open || tcb.send_queue.sent_count() == 0 {
        return false;
    }
    if cx.now - tcb.last_sent_at > core::time::Duration::from_millis(1) {
        return false;
    }
    limit < tcb.snd_wnd.min(tcb.congestion.cwnd()) / divisor
}

/// First transmission of `len` payload bytes of entry `index`, which is cut when it holds more.
fn send_first(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize, len: u32) -> bool {
    let entry = tcb.send_queue.entry(index);
    let fin_fits = entry.seq_len() <= window_left(tcb, entry.seq);
    let cut = entry.len > len || (entry.seq_len() > len && !fin_fits);
    if cut && !tcb.send_queue.split(cx.pool, index, len) {
        return false;
    }
    if !transmit(tcb, cx, index) {
        return false;
    }
    let entry = tcb.send_queue.entry(index);
    let segments = entry.len.div_ceil(tcb.mss.effective()).max(1);
    if !entry.len.is_multiple_of(tcb.mss.effective()) {
        tcb.snd_sml = entry.end_seq();
    }
    tcb.snd_nxt = entry.end_seq();
    tcb.persist_backoff = 0;
    tcb.totals.bytes_sent += u64::from(entry.len);
    if entry.len > 0 {
        cx.counters.add(Counter::TcpExtTCPOrigDataSent, u64::from(segments));
    }
    cx.counters.add(Counter::TcpOutSegs, u64::from(segments));
    if tcb.timers.rtx() != Some(RtxPurpose::Retransmit) {
        retransmit::arm_rto(tcb, cx);
    }
    true
}

/// Sends what Nagle, a cork or a small window holds back, as far as the window has room; `false` when it has none.
/// The persist timer calls it: nothing waits for ever.
pub(crate) fn send_held(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    let Some((index, entry)) = tcb.send_queue.first_unsent() else { return false };
    let window = window_left(tcb, entry.seq);
    let len = entry.len.min(window).min(tcb.mss.effective());
    if window == 0 || (len == 0 && entry.len > 0) {
        return false;
    }
    send_first(tcb, cx, index, len)
}

/// Clones entry `index` with a header in front into `cx.out`: a first transmission or a repetition. `false` when
/// there is no memory.
pub(crate) fn transmit(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize) -> bool {
    let entry = tcb.send_queue.entry(index);
    let clone = match &entry.packet {
        Some(packet) => packet.clone_in(cx.pool),
        None => cx.pool.alloc(),
    };
    let Some(packet) = clone else { return false };
    let mut flags = Flags::ACK;
    flags.set(Flags::FIN, entry.flags.contains(EntryFlags::FIN));
    flags.set(Flags::PSH, entry.flags.contains(EntryFlags::PSH) && entry.len > 0);
    let header = SegmentHeader { seq: entry.seq, flags, ..SegmentHeader::default() };
    let len = entry.len;
    let window = select_window(tcb, cx);
    emit(tcb, cx, packet, SegmentHeader { window, ..header }, len);
    tcb.send_queue.on_transmit(index, cx.now);
    tcb.ack.on_data_sent(cx.now);
    tcb.last_sent_at = cx.now;
    true
}

/// A segment without data: `<SEQ=SND.NXT><ACK=RCV.NXT>`. `false` when there is no memory.
pub(crate) fn send_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    send_bare(tcb, cx, tcb.snd_nxt, Flags::ACK, select_window)
}

/// The answer to a segment out of order. `false` when there is no memory.
pub(crate) fn send_duplicate_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    send_bare(tcb, cx, tcb.snd_nxt, Flags::ACK, hold_window)
}

/// A segment the peer cannot accept and must answer: SEG.SEQ is one before SND.UNA (keepalive and window probe).
pub(crate) fn send_probe(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    send_bare(tcb, cx, tcb.snd_una - 1, Flags::ACK, select_window);
}

/// Aborts: `<SEQ=SND.NXT><CTL=RST,ACK>` (RFC 9293 §3.10.5).
pub(crate) fn send_reset(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if send_bare(tcb, cx, tcb.snd_nxt, Flags::RST | Flags::ACK, select_window) {
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
    emit(tcb, cx, packet, SegmentHeader { seq, flags, window, ..SegmentHeader::default() }, 0);
    cx.count(Counter::TcpOutSegs);
    true
}

/// Completes the header of a synchronized connection, puts it in front of `packet` and the packet on `cx.out`.
fn emit(tcb: &mut Tcb, cx: &mut Cx<'_>, packet: Packet, mut header: SegmentHeader, len: u32) {
    if tcb.flags.contains(TcbFlags::TIMESTAMPS) {
        header.options.timestamps = Some((tcb.ts_now(cx.now), tcb.ts_recent));
    }
    header.ack = tcb.rcv_nxt;
    tcb.ack.on_ack_sent();
    tcb.timers.stop_delack();
    send_packet(tcb, cx, packet, header, len);
}

/// The SYN of an active open, or the SYN-ACK once the peer's SYN crossed ours; arms its retransmission.
pub(crate) fn send_syn(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    retransmit::arm_rto(tcb, cx);
    let Some(packet) = cx.pool.alloc() else { return };
    let crossed = tcb.state == State::SynRecv;
    let mut options = Options { mss: Some(tcb.mss.advertised()), ..Options::new() };
    // The first SYN offers, the crossed one agrees to what the peer offered.
    let (timestamps, scaling) = if crossed {
        let flags = tcb.flags;
        (flags.contains(TcbFlags::TIMESTAMPS), flags.contains(TcbFlags::WINDOW_SCALING))
    } else {
        (cx.config.tcp_timestamps, cx.config.tcp_window_scaling)
    };
    options.timestamps = timestamps.then(|| (tcb.ts_now(cx.now), tcb.ts_recent));
    options.window_scale = scaling.then_some(tcb.rcv_wscale);
    let flags = if crossed { Flags::SYN | Flags::ACK } else { Flags::SYN };
    let window = u16::try_from(tcb.rcv_wnd).unwrap_or(u16::MAX);
    let ack = if crossed { tcb.rcv_nxt } else { SeqNum(0) };
    let header =
        SegmentHeader { seq: tcb.iss, ack, flags, window, options, ..SegmentHeader::default() };
    tcb.last_sent_at = cx.now;
    tcb.ack.on_ack_sent();
    if tcb.recovery.timeouts() == 0 {
        cx.count(Counter::TcpOutSegs);
    }
    send_packet(tcb, cx, packet, header, 0);
}

fn send_packet(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    mut packet: Packet,
    mut header: SegmentHeader,
    len: u32,
) {
    let mss = tcb.mss.effective();
    let meta = packet.meta_mut();
    meta.flow_hash = tcb.flow_hash;
    meta.gso = Gso::default();
    if len > mss {
        meta.gso = Gso {
            kind: if tcb.tuple.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 },
            ecn: false,
            size: u16::try_from(mss).unwrap_or(u16::MAX),
            segs: u16::try_from(len.div_ceil(mss)).unwrap_or(u16::MAX),
        };
    }
    header.src_port = tcb.tuple.local.port();
    header.dst_port = tcb.tuple.remote.port();
    push_header(&mut packet, &header, &tcb.tuple);
    tcb.totals.segs_out += len.div_ceil(mss).max(1);
    cx.out.push_back(packet);
}

/// The millisecond clock of TSval, shifted by a connection's `offset` (RFC 7323 §5.4, §7.1).
#[expect(clippy::cast_possible_truncation, reason = "the timestamp clock wraps")]
pub(crate) fn ts_clock(now: Instant, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

/// Writes `header` in front of `packet` with the pseudo-header sum where the checksum belongs.
pub(crate) fn push_header(packet: &mut Packet, header: &SegmentHeader, tuple: &crate::FourTuple) {
    let header_bytes = header.header_bytes();
    let bytes = packet.push(header_bytes);
    header.emit(bytes);
    let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    let sum =
        checksum::pseudo_header(tuple.local.ip(), tuple.remote.ip(), PROTOCOL_TCP, len).fold();
    let linear = packet.linear_mut();
    header::write_checksum(&mut linear[..header_bytes], sum);
    let offset = u16::try_from(CHECKSUM_OFFSET).unwrap_or(u16::MAX);
    packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 0, offset };
}
