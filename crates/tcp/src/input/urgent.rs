//! Sixth step: the URG bit, and the byte that the urgent pointer addresses.
//!
//! RFC 9293 §3.8.5 and §3.10.7.4 sixth; Linux: tcp_urg, tcp_check_urg.
//!
//! Not here: the fields for the urgent marks of both directions (`tcb::urgent`).

use pkt::Packet;

use crate::{
    cx::Cx,
    tcb::{
        Tcb, TcbFlags,
        urgent::{UrgentByte, copied_seq},
    },
    wire::{
        header::{Flags, SegmentHeader},
        seq::SeqNum,
    },
};

/// Processes the URG bit (RFC 9293 §3.10.7.4, sixth). `packet` is the remaining payload, `seq` the
/// number of its first byte.
pub(super) fn on_segment(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    header: &SegmentHeader,
    seq: SeqNum,
    packet: Option<&Packet>,
) {
    if header.has(Flags::URG) {
        announce(tcb, cx, header);
    }
    if !tcb.has_mark() || tcb.urgent.byte != UrgentByte::Announced || tcb.urgent.seq.lt(seq) {
        return;
    }
    let mut byte = [0];
    let offset = tcb.urgent.seq.since(seq) as usize;
    if let Some(packet) = packet
        && offset < packet.len()
        && packet.copy_to(offset, &mut byte) == 1
    {
        tcb.urgent.byte = UrgentByte::Valid(byte[0]);
    }
}

/// Processes an urgent pointer. A pointer that is not newer than the known one, or that points to
/// received data, is ignored (RFC 9293 §3.8.5).
fn announce(tcb: &mut Tcb, cx: &mut Cx<'_>, header: &SegmentHeader) {
    let behind = u32::from(header.urgent);
    let at = header.seq + if cx.config.tcp_stdurg { behind } else { behind.saturating_sub(1) };
    let copied = copied_seq(tcb);
    if copied.gt(at) || at.lt(tcb.rcv_nxt) {
        return;
    }
    if tcb.has_mark() && at.le(tcb.urgent.seq) {
        return;
    }
    // The old urgent byte is next in the queue: the stream was not read past it. The byte is
    // removed, so that it does not become part of the stream.
    if tcb.skips_urgent_byte() {
        tcb.receive_queue.skip(1, &mut |packet| cx.pool.free(packet));
    }
    tcb.urgent.seq = at;
    tcb.urgent.byte = UrgentByte::Announced;
    tcb.flags |= TcbFlags::URGENT_IN;
}
