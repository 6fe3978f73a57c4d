//! Receive: one segment arrives.
//!
//! Above: `stack::socket`. Below: the receive queue. RFC 9293 §3.10.7; Linux: tcp_rcv_established,
//! tcp_rcv_state_process.
//!
//! The IP layer has verified the checksum and pulled the TCP header: the packet is payload alone,
//! the header arrives as values. A packet may be a superframe of 64 KB and more; it is one segment
//! here, and everything that counts segments counts bytes.
//!
//! The steps stand in the RFC's order, one call each. A step that ends the processing returns the
//! drop reason of the packet; an answer that it owes the peer is noted before (`ack.schedule_now`)
//! and leaves with `output`. Only duplicate ACKs and resets leave from here, because they must not
//! be merged with others.
//!
//! Not here: LISTEN (`open::request`), TIME-WAIT once it is its own small object
//! (`close::time_wait`), segments for no connection (`segment::reset`).

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

/// A segment on its way through the steps: its front and tail may be trimmed to the window.
#[derive(Debug)]
pub(crate) struct Segment<'h> {
    pub(crate) header: &'h SegmentHeader,
    /// The payload, until a queue takes it.
    packet: Option<Packet>,
    /// Sequence number of the payload left: a SYN comes before it.
    pub(crate) seq: SeqNum,
    /// Bytes of payload left.
    pub(crate) len: u32,
    /// A FIN follows the payload left.
    pub(crate) fin: bool,
    /// Room in the buffer of the reader that runs this call; empty when nobody waits.
    user: &'h mut [u8],
    /// Bytes copied there.
    copied: u32,
    /// Its front had arrived before, and was noted for a D-SACK.
    reported: bool,
}

impl<'h> Segment<'h> {
    fn new(header: &'h SegmentHeader, packet: Packet, user: &'h mut [u8]) -> Self {
        let len = u32::try_from(packet.len()).expect("a packet is shorter than 2^32");
        let seq = header.seq + u32::from(header.has(Flags::SYN));
        let fin = header.has(Flags::FIN);
        Self { header, packet: Some(packet), seq, len, fin, user, copied: 0, reported: false }
    }

    /// SEG.LEN of what is left, SYN not counted.
    fn seq_len(&self) -> u32 {
        self.len + u32::from(self.fin)
    }

    fn end_seq(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// How many segments came: those of a superframe are counted one by one.
    fn segments(&self) -> u32 {
        if self.packet.as_ref().is_none_or(|packet| packet.meta().gso.kind == GsoKind::None) {
            return 1;
        }
        self.len.div_ceil(self.segment_bytes().max(1)).max(1)
    }

    /// Size of one segment of the packet: the MSS of a superframe.
    fn segment_bytes(&self) -> u32 {
        match &self.packet {
            Some(packet) if packet.meta().gso.kind != GsoKind::None => {
                u32::from(packet.meta().gso.size).min(self.len)
            }
            _ => self.len,
        }
    }
}

/// Processes one segment of this connection. The verdict is `Consumed`, or `Drop` with the reason and the packet.
pub fn input(
    tcb: &mut Tcb,
    header: &SegmentHeader,
    packet: Packet,
    cx: &mut Cx<'_>,
) -> SegmentVerdict {
    let mut segment = Segment::new(header, packet, &mut []);
    process(tcb, &mut segment, cx)
}

/// As [`input`], run by a reader that waits for `user.len()` bytes (Linux: `ucopy`): what is next in the stream goes to
/// `user`, past the receive queue. Also answers how many bytes did; tell them to [`Tcb::on_direct_read`] at the end of a
/// batch.
///
/// That needs an empty receive queue and no urgent mark; else everything is queued as ever.
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
        State::Established if fast_path(tcb, segment) => established_fast(tcb, segment, cx),
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
        (Err(_), None) => unreachable!("a step that refuses a segment leaves its packet"),
    }
}

/// RFC 9293 §3.10.7.4, for every state from SYN-RECEIVED on.
#[inline(never)]
fn synchronized(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    if sequence::is_repeated_syn(tcb, cx, segment) {
        return Err(DropReason::TcpInvalidSyn);
    }
    // First: the sequence number, and the timestamp (RFC 7323 §5.3). What lies outside the window is cut off.
    sequence::check(tcb, segment, cx)?;
    // Second: the RST bit (RFC 5961 §3).
    reset::check_rst(tcb, segment, cx)?;
    // Third: security, which no option of ours carries.
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

/// Header prediction: the segment is the next one, with nothing in it but an ACK and perhaps data.
///
/// Entry conditions (the caller has checked ESTABLISHED):
/// - flags are ACK, or ACK and PSH; no option but the timestamps that were agreed on, above all no SACK block;
/// - SEG.SEQ is RCV.NXT, and the payload fits into the window;
/// - SEG.ACK is neither old nor beyond SND.NXT;
/// - the window field is what it was, and not zero;
/// - the timestamp is not older than TS.Recent;
/// - nothing waits out of order, not even a FIN, and no urgent byte is looked for.
///
/// Under these `synchronized` would pass steps one to four and six unchanged, so [`established_fast`] starts at the
/// fifth, which has a short form of its own (`ack::predicted`). `tests::fast_path` runs the same traffic both ways and
/// compares the complete state after every exchange.
fn fast_path(tcb: &Tcb, segment: &Segment<'_>) -> bool {
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

/// The fifth and seventh step for a segment that [`fast_path`] let through.
fn established_fast(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    sequence::take_timestamp(tcb, segment, cx.now);
    let advances = segment.header.ack != tcb.snd_una;
    // Counted as Linux does: an ACK that moves SND.UNA is predicted whatever comes with it, one that does not is none.
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
    // Counted as Linux does: once, by where all of it went.
    if segment.copied > 0 && segment.copied == segment.len {
        cx.count(Counter::TcpExtTCPHPHitsToUser);
    } else {
        cx.count(Counter::TcpExtTCPHPHits);
    }
    result
}

/// TIME-WAIT before the stack has moved it into its own small object: the same rules, the same code.
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
        // A reopening needs the listener, which only the stack can look up: the peer repeats its SYN.
        time_wait::TimeWaitVerdict::Reopen { .. } => {}
        time_wait::TimeWaitVerdict::Closed => tcb.finish(cx, None),
    }
    Err(DropReason::TcpTimeWait)
}
