//! Receive path: processing of one arriving segment.
//!
//! Above: `stack::socket`. Below: the receive queue. RFC 9293 §3.10.7; Linux: tcp_rcv_established,
//! tcp_rcv_state_process.
//!
//! The caller has verified the checksum and parsed the TCP header: the packet contains only the
//! payload, and the header is passed separately. A packet may be a superframe of 64 KB or more
//! (several segments that GRO or a local sender has put into one packet). A superframe is processed
//! as one segment, and limits in segments are computed from bytes.
//!
//! The steps follow the RFC's order, one call each. A step that ends the processing returns the
//! drop reason of the packet. If an answer is required, the step schedules it (`ack.schedule_now`),
//! and `output` sends it. A step itself sends only segments that must not be merged with a later
//! ACK: duplicate ACKs, the ACK that DCTCP needs when marks begin or end, resets, SYN-ACKs, the ACK
//! in TIME-WAIT, and the retransmission that an ICMP error makes due.
//!
//! Not here: LISTEN (`open::request`), TIME-WAIT after the control block is freed
//! (`close::time_wait`), segments without a connection (`segment::reset`).

mod ack;
mod data;
mod ecn;
pub(crate) mod icmp;
mod prune;
mod reset;
mod sequence;
mod syn_sent;
mod urgent;

use pkt::{DropReason, GsoKind, Packet, Verdict};

use crate::{
    base::{counters::Counter, state::State},
    close::time_wait,
    cx::{Cx, SegmentVerdict},
    segment::window,
    tcb::{Tcb, TcbFlags},
    wire::{
        header::{Flags, SegmentHeader},
        option::is_older,
        seq::SeqNum,
    },
};

/// A segment during its processing. Its front and tail may be trimmed to the window.
#[derive(Debug)]
pub(crate) struct Segment<'h> {
    pub(crate) header: &'h SegmentHeader,
    /// Payload, until a queue takes it.
    packet: Option<Packet>,
    /// Sequence number of the first remaining payload byte; a SYN precedes it.
    pub(crate) seq: SeqNum,
    /// Remaining bytes of payload.
    pub(crate) len: u32,
    /// Whether a FIN follows the remaining payload.
    pub(crate) fin: bool,
    /// Buffer of the reader that runs this call; empty if no reader waits.
    user: &'h mut [u8],
    /// Bytes copied to `user`.
    copied: u32,
    /// Whether the front of the segment was a duplicate and was recorded for a D-SACK.
    reported: bool,
}

impl<'h> Segment<'h> {
    fn new(header: &'h SegmentHeader, packet: Packet, user: &'h mut [u8]) -> Self {
        let len = u32::try_from(packet.len()).expect("a packet is shorter than 2^32 bytes");
        let seq = header.seq + u32::from(header.has(Flags::SYN));
        let fin = header.has(Flags::FIN);
        Self { header, packet: Some(packet), seq, len, fin, user, copied: 0, reported: false }
    }

    /// Returns SEG.LEN of the remaining segment, without the SYN.
    fn seq_len(&self) -> u32 {
        self.len + u32::from(self.fin)
    }

    fn end_seq(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// Returns the number of received segments: the segments of a superframe are counted
    /// individually.
    fn segments(&self) -> u32 {
        if self.packet.as_ref().is_none_or(|packet| packet.meta().gso.kind == GsoKind::None) {
            return 1;
        }
        self.len.div_ceil(self.segment_bytes().max(1)).max(1)
    }

    /// Returns the size of one segment of the packet: the MSS of a superframe.
    fn segment_bytes(&self) -> u32 {
        match &self.packet {
            Some(packet) if packet.meta().gso.kind != GsoKind::None => {
                u32::from(packet.meta().gso.size).min(self.len)
            }
            _ => self.len,
        }
    }
}

/// Processes one segment of this connection. The verdict is `Consumed`, or `Drop` with the reason
/// and the packet.
pub fn input(
    tcb: &mut Tcb,
    header: &SegmentHeader,
    packet: Packet,
    cx: &mut Cx<'_>,
) -> SegmentVerdict {
    let mut segment = Segment::new(header, packet, &mut []);
    process(tcb, &mut segment, cx)
}

/// Like [`input`], run by a reader that waits for `user.len()` bytes (Linux: `ucopy`): the next
/// bytes of the stream are copied directly to `user` and bypass the receive queue. The number of
/// copied bytes is returned, too; the caller passes it to [`Tcb::on_direct_read`] at the end of a
/// batch.
///
/// The direct copy requires data in order, an empty receive queue and no urgent mark; otherwise all
/// data is queued.
pub fn input_to_user(
    tcb: &mut Tcb,
    header: &SegmentHeader,
    packet: Packet,
    cx: &mut Cx<'_>,
    user: &mut [u8],
) -> (SegmentVerdict, usize) {
    let mut segment = Segment::new(header, packet, user);
    let verdict = process(tcb, &mut segment, cx);
    (verdict, segment.copied as usize)
}

fn process(tcb: &mut Tcb, segment: &mut Segment<'_>, cx: &mut Cx<'_>) -> SegmentVerdict {
    let segments = segment.segments();
    tcb.totals.segs_in = tcb.totals.segs_in.wrapping_add(segments);
    if segment.len > 0 {
        tcb.totals.data_segs_in = tcb.totals.data_segs_in.wrapping_add(segments);
    }
    let result = match tcb.state {
        State::Established if is_fast_path(tcb, segment) => established_fast(tcb, segment, cx),
        State::SynSent => syn_sent::process(tcb, segment, cx),
        State::TimeWait => time_wait_in_place(tcb, segment, cx),
        State::Close | State::Listen => Err(DropReason::TcpClosed),
        _ => synchronized(tcb, segment, cx),
    };
    match (result, segment.packet.take()) {
        (Ok(()), None) => Verdict::Consumed,
        (Ok(()), Some(packet)) => {
            cx.pool.free(packet);
            Verdict::Consumed
        }
        (Err(reason), Some(packet)) => Verdict::Drop(reason, packet),
        (Err(_), None) => unreachable!("a step that rejects a segment leaves its packet"),
    }
}

/// Performs the steps of RFC 9293 §3.10.7.4 for every state from SYN-RECEIVED on, except TIME-WAIT.
#[inline(never)]
fn synchronized(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    if sequence::is_repeated_syn(tcb, cx, segment) {
        return Err(DropReason::TcpInvalidSyn);
    }
    // First: the sequence number, and the timestamp (RFC 7323 §5.3). Data outside the window is
    // trimmed.
    sequence::check(tcb, segment, cx)?;
    // Second: the RST bit (RFC 5961 §3).
    reset::check_rst(tcb, segment, cx)?;
    // Third: security. No supported option carries it.
    // Fourth: the SYN bit (RFC 5961 §4).
    reset::check_syn(tcb, segment, cx)?;
    // Fifth: the ACK field (RFC 5961 §5).
    ack::check(tcb, segment, cx)?;
    // Sixth: the URG bit.
    urgent::on_segment(tcb, cx, segment.header, segment.seq, segment.packet.as_ref());
    // Seventh: the payload.
    data::process(tcb, segment, cx)?;
    // Eighth: the FIN bit.
    data::process_fin(tcb, segment, cx);
    Ok(())
}

/// Header prediction: returns whether the segment is the next one in order, with only an ACK and
/// perhaps data.
///
/// Entry conditions (the caller has checked ESTABLISHED):
/// - The flags are ACK, or ACK and PSH. No option that this stack uses in such a segment is
///   present, except the negotiated timestamps; in particular there is no SACK block.
/// - SEG.SEQ is RCV.NXT, and the payload fits into the window.
/// - SEG.ACK is neither below SND.UNA nor beyond SND.NXT.
/// - The window field is unchanged and not zero.
/// - The timestamp is not older than TS.Recent.
/// - No data or FIN is queued out of order, and there is no urgent mark that the application has
///   not read past.
/// - Header prediction is not switched off ([`Tcb::set_header_prediction`]).
///
/// Under these conditions only the timestamp and the fifth and seventh step of `synchronized`
/// change anything, so [`established_fast`] performs only these. The fifth step has a fast path of
/// its own (`ack::predicted`). `tests::fast_path` runs the same traffic with and without header
/// prediction and compares the complete state after every exchange.
fn is_fast_path(tcb: &Tcb, segment: &Segment<'_>) -> bool {
    let header = segment.header;
    let plain = header.flags.difference(Flags::PSH) == Flags::ACK;
    let timestamps = match header.options.timestamps {
        Some((value, _)) => {
            tcb.flags.contains(TcbFlags::TIMESTAMPS) && !is_older(value, tcb.ts_recent)
        }
        None => !tcb.flags.contains(TcbFlags::TIMESTAMPS),
    };
    plain
        && timestamps
        && header.options.sack_blocks.is_empty()
        && segment.seq == tcb.rcv_nxt
        && segment.len <= window::receive_window(tcb)
        && header.ack.between(tcb.snd_una, tcb.snd_nxt)
        && tcb.snd_wnd != 0
        && u32::from(header.window) << tcb.snd_wscale == tcb.snd_wnd
        && tcb.reassembly.is_clear()
        && !tcb.flags.contains(TcbFlags::URGENT_IN)
        && !tcb.no_fast_path()
}

/// Takes the timestamp and performs the fifth and seventh step for a segment that passed
/// [`is_fast_path`].
fn established_fast(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    sequence::take_timestamp(tcb, segment, cx.now);
    let advances = segment.header.ack != tcb.snd_una;
    // Counted as in Linux: an ACK that advances SND.UNA counts as predicted, with data or without.
    // A segment that neither advances SND.UNA nor has data counts as a pure ACK.
    if advances {
        cx.count(Counter::TcpExtTCPHPAcks);
    } else if segment.len == 0 {
        cx.count(Counter::TcpExtTCPPureAcks);
    }
    if !ack::process_predicted(tcb, segment, cx) {
        ack::process(tcb, segment, cx);
    }
    if segment.len == 0 {
        return Ok(());
    }
    let result = data::process(tcb, segment, cx);
    // Counted as in Linux, once per segment: HPHitsToUser if the whole payload was copied to the
    // reader, otherwise HPHits.
    if segment.copied > 0 && segment.copied == segment.len {
        cx.count(Counter::TcpExtTCPHPHitsToUser);
    } else {
        cx.count(Counter::TcpExtTCPHPHits);
    }
    result
}

/// Handles TIME-WAIT before the stack has replaced the connection by a
/// [`TimeWait`](time_wait::TimeWait), with the code of that type.
#[inline(never)]
fn time_wait_in_place(
    tcb: &mut Tcb,
    segment: &Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    let mut small = time_wait::TimeWait::from_tcb(tcb, cx.now);
    let len = segment.len;
    match small.on_segment(cx, segment.header, len) {
        time_wait::TimeWaitVerdict::Keep => tcb.timers.arm_keep(small.deadline()),
        // The engine cannot look up the listener of a new connection. The peer retransmits its SYN,
        // and by then the stack has replaced the connection.
        time_wait::TimeWaitVerdict::Reopen { .. } => {}
        time_wait::TimeWaitVerdict::Closed => tcb.finish(cx, None),
    }
    Err(DropReason::TcpTimeWait)
}
