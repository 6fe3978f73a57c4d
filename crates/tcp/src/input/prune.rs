//! Room in the receive buffer, and the packets that are dropped for it.
//!
//! Above: `data`, before it queues anything; `stack`, when the host looks for memory. Below:
//! `tcb::reassembly`. RFC 2018 §8 (what SACK reported may be dropped); Linux:
//! tcp_try_rmem_schedule, tcp_prune_queue, tcp_prune_ofo_queue.
//!
//! Data in order was acknowledged and is kept; the peer can send data out of order again. It is
//! dropped from its far end, which the reader needs last, and an eighth of the buffer at a time, so
//! that many segments share the cost of one walk (CVE-2018-5390, SegmentSmack).
//!
//! Not here: how far the buffer may grow (`tcb::receive_buffer`), whether memory is scarce
//! (`tcb::memory`), small packets in order (`tcb::receive_queue` copies them).

use crate::{
    base::{counters::Counter, memory::MemoryPressure},
    cx::Cx,
    tcb::{
        Tcb,
        memory::{self, rmem_alloc},
    },
    wire::seq::SeqNum,
};

impl Tcb {
    /// The host looks for memory (`stack` calls it when packet memory runs low): what the connection keeps for later goes, small
    /// payloads that wait are copied together, and when memory is exhausted everything out of order goes, whether or not the peer
    /// sends. Answers whether it gave anything up. Linux: none; there only a segment that comes makes room (`tcp_prune_queue`).
    pub fn relieve(&mut self, cx: &mut Cx<'_>) -> bool {
        self.trim_packet_cache(cx);
        if cx.memory.is_plenty() {
            return false;
        }
        self.receive_queue.condense(cx.pool);
        if cx.memory.pressure != MemoryPressure::Exhausted || self.reassembly.is_empty() {
            return false;
        }
        cx.count(Counter::TcpExtOfoPruned);
        self.reassembly.prune(0).free_all(cx.pool);
        self.announce_room();
        true
    }
}

/// Whether a segment at `seq` may be queued: no more than `limit` bytes are held before it.
#[inline]
pub(super) fn has_room(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum, limit: u32) -> bool {
    let scarce = memory::suppresses_receive(tcb, cx);
    if rmem_alloc(tcb) <= tcb.receive_buffer.rcvbuf() && !scarce {
        return true;
    }
    make_room(tcb, cx, seq, limit, scarce)
}

#[cold]
fn make_room(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum, limit: u32, scarce: bool) -> bool {
    relieve(tcb, cx, seq);
    if scarce && give_all_up(tcb, cx, seq) {
        return rmem_alloc(tcb) <= limit;
    }
    rmem_alloc(tcb) <= limit && !scarce
}

/// The host has no memory left: everything out of order goes, unless the segment comes behind it all. Answers whether
/// that made room.
fn give_all_up(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum) -> bool {
    if tcb.reassembly.highest_end().is_some_and(|end| seq.lt(end)) {
        cx.count(Counter::TcpExtOfoPruned);
        tcb.reassembly.prune(0).free_all(cx.pool);
    }
    let left = memory::suppresses_receive(tcb, cx);
    if left {
        cx.count(Counter::TcpExtRcvPruned);
    }
    !left
}

/// The buffer overran: what is out of order shrinks, and the window stops growing.
///
/// Differs from Linux: the buffer grows for data in order only. That was promised; what is out of order may be a peer's
/// attempt to make us hold it.
fn relieve(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum) {
    cx.count(Counter::TcpExtPruneCalled);
    tcb.ack.stop_quick();
    collapse(tcb, cx);
    let held = rmem_alloc(tcb);
    if held <= tcb.receive_buffer.rcvbuf() {
        return;
    }
    let may_grow = seq == tcb.rcv_nxt && cx.memory.is_plenty();
    tcb.receive_buffer.on_overrun(held, may_grow, cx.config);
    if rmem_alloc(tcb) > tcb.receive_buffer.rcvbuf() && !prune_far_end(tcb, cx, seq) {
        cx.count(Counter::TcpExtRcvPruned);
    }
}

/// Small packets that wait out of order are copied together.
fn collapse(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let worth = tcb.receive_buffer.rcvbuf() / 8;
    let saved = tcb.reassembly.collapse(cx.pool, worth as usize);
    cx.counters.add(Counter::TcpExtTCPRcvCollapsed, saved as u64);
}

/// Drops from the far end until an eighth of the buffer is free; `false` when that did not help. A segment that would be
/// the furthest itself drops nothing.
fn prune_far_end(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum) -> bool {
    let rcvbuf = tcb.receive_buffer.rcvbuf();
    if tcb.reassembly.highest_end().is_none_or(|end| seq.ge(end)) {
        return false;
    }
    let goal = (rcvbuf - rcvbuf / 8).saturating_sub(tcb.receive_queue.rmem_alloc());
    cx.count(Counter::TcpExtOfoPruned);
    tcb.reassembly.prune(goal as usize).free_all(cx.pool);
    rmem_alloc(tcb) <= rcvbuf
}
