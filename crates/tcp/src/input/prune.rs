//! Limits of the receive buffer, and pruning of packets that exceed them.
//!
//! Above: `data`, before it queues a segment; `stack`, when packet memory runs low. Below:
//! `tcb::reassembly`. RFC 2018 §8 (SACKed data may be dropped); Linux: tcp_try_rmem_schedule,
//! tcp_prune_queue, tcp_prune_ofo_queue.
//!
//! Data in order may have been acknowledged and is kept. Data out of order may be dropped, because
//! the peer retransmits it. Dropping begins at the highest sequence number, which the reader needs
//! last. It frees an eighth of the buffer at a time, so that many segments share the cost of one
//! scan (CVE-2018-5390, SegmentSmack).
//!
//! Not here: the growth of the buffer (`tcb::receive_buffer`), memory pressure (`tcb::memory`),
//! small packets in order (`tcb::receive_queue` copies them).

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
    /// Releases memory (called by `stack` when memory is scarce or the setting of the packet caches
    /// changes): frees packets that may not stay cached, and under pressure copies small payloads
    /// in order together. When memory is exhausted, it also drops all data out of order, even if
    /// the peer is silent. Returns whether it dropped data. Linux has no counterpart; there only an
    /// arriving segment triggers pruning (`tcp_prune_queue`).
    pub fn reclaim_memory(&mut self, cx: &mut Cx<'_>) -> bool {
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
        self.schedule_window_update();
        true
    }
}

/// Returns whether a segment at `seq` may be queued: at most `limit` bytes are already held, and
/// the host has memory. Prunes the queues if necessary.
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
    prune_queues(tcb, cx, seq);
    if scarce && drop_out_of_order(tcb, cx, seq) {
        return rmem_alloc(tcb) <= limit;
    }
    rmem_alloc(tcb) <= limit && !scarce
}

/// Drops all data out of order because the host's memory is scarce, unless the segment starts after
/// all of it. Returns whether the connection may then hold more memory.
fn drop_out_of_order(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum) -> bool {
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

/// Reduces the memory of data out of order after the buffer was exceeded or while memory is scarce:
/// copies packets together, then drops data if the buffer is still exceeded. Also ends quick-ACK
/// mode, and limits the window to two segments if the buffer is still exceeded.
///
/// Differs from Linux: the buffer grows only for data in order. The announced window promised room
/// for that data; data out of order may be a peer's attempt to consume memory.
fn prune_queues(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum) {
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

/// Copies small out-of-order packets together.
fn collapse(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let worth = tcb.receive_buffer.rcvbuf() / 8;
    let saved = tcb.reassembly.collapse(cx.pool, worth as usize);
    cx.counters.add(Counter::TcpExtTCPRcvCollapsed, saved as u64);
}

/// Drops data with the highest sequence numbers until an eighth of the buffer is free. Returns
/// whether the buffer's limit is then met. Drops nothing if the segment follows all queued data.
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
