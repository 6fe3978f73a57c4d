//! Reset segments in answer to segments that belong to no connection, or that a handshake or a
//! closed reader rejects.
//!
//! Above: the stack's demux, `open::request`, and `input`. RFC 9293 §3.5.2 and §3.10.7.1; Linux:
//! tcp_v4_send_reset.
//!
//! A reset is never answered by a reset, so two stacks cannot reset each other endlessly.
//!
//! Not here: resets that abort a connection (`segment::send_reset`), received resets
//! (`input::reset`).

use crate::{
    base::counters::Counter,
    cx::Cx,
    segment,
    wire::{
        four_tuple::FourTuple,
        header::{Flags, SegmentHeader},
        pseudo,
        seq::SeqNum,
    },
};

/// Answers a segment that is no reset by a reset. `tuple.local` is the end on this host;
/// `payload_len` is the length of the segment's data. Puts at most one segment on `cx.out`.
pub fn reply(cx: &mut Cx<'_>, tuple: &FourTuple, received: &SegmentHeader, payload_len: u32) {
    if received.has(Flags::RST) {
        return;
    }
    let Some(mut packet) = cx.pool.alloc() else {
        cx.count(Counter::TcpExtTCPAbortFailed);
        return;
    };
    let (seq, ack, flags) = if received.has(Flags::ACK) {
        (received.ack, SeqNum(0), Flags::RST)
    } else {
        let end = received.seq + received.segment_len(payload_len);
        (SeqNum(0), end, Flags::RST | Flags::ACK)
    };
    let header = SegmentHeader {
        src_port: tuple.local.port(),
        dst_port: tuple.remote.port(),
        seq,
        ack,
        flags,
        ..SegmentHeader::default()
    };
    segment::push_header(&mut packet, &header, pseudo::pseudo_sum(tuple));
    cx.count(Counter::TcpOutSegs);
    cx.count(Counter::TcpOutRsts);
    cx.out.push_back(packet);
}
