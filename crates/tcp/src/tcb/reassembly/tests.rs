//! Tests of the out-of-order queue, with fixed packets and against a model that has one flag per
//! byte. Most of them also check packet memory for leaks.

use std::vec::Vec;

use pkt::{Domain, DomainConfig, DropReason, Packet, PacketList, Pool};
use proptest::prelude::*;

use super::{Insert, Queued, RUNS_MAX, Ready, Reassembly};
use crate::wire::seq::SeqNum;

mod exhaustive;

/// A memory limit that is never reached.
const UNBOUNDED: usize = usize::MAX / 2;

/// A queue with its packet memory, and a stream whose byte at offset `i` is `byte_at(i)`.
struct Bench {
    queue: Reassembly,
    rcv_nxt: SeqNum,
    /// Sequence number of offset 0, near the wrap of sequence numbers.
    base: SeqNum,
    pool: Pool,
    domain: Domain,
}

fn byte_at(offset: u32) -> u8 {
    u8::try_from((offset.wrapping_mul(2_654_435_761)) >> 24).unwrap()
}

fn data(start: u32, end: u32) -> Vec<u8> {
    (start..end).map(byte_at).collect()
}

fn content(packets: &mut PacketList) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(packet) = packets.pop_front() {
        assert!(!packet.is_empty());
        let mut chunk = std::vec![0; packet.len()];
        assert_eq!(packet.copy_to(0, &mut chunk), chunk.len());
        bytes.extend(chunk);
    }
    bytes
}

impl Bench {
    fn new() -> Self {
        let domain = Domain::new(DomainConfig::default());
        let base = SeqNum(u32::MAX - 40);
        Self { queue: Reassembly::new(), rcv_nxt: base, base, pool: domain.pool(), domain }
    }

    fn packet(&mut self, start: u32, end: u32) -> Packet {
        let mut packet = self.pool.alloc().unwrap();
        let bytes = data(start, end);
        assert_eq!(packet.append(&mut self.pool, &bytes), bytes.len());
        packet
    }

    /// Inserts a packet and checks the invariants of the queue.
    fn offer(&mut self, start: u32, end: u32, fin: bool, limit_bytes: usize) -> Insert {
        let packet = self.packet(start, end);
        let insert = self.queue.insert(self.base + start, packet, fin, limit_bytes);
        self.queue.check(self.rcv_nxt);
        insert
    }

    /// Inserts a packet that must be queued.
    fn insert(&mut self, start: u32, end: u32) -> Queued {
        match self.offer(start, end, false, UNBOUNDED) {
            Insert::Queued(queued) => queued,
            other => panic!("{start}..{end} was not queued: {other:?}"),
        }
    }

    /// Removes the contiguous packets after all data up to `offset` was received in order.
    fn take(&mut self, offset: u32) -> Ready {
        let ready = self.queue.take_contiguous(self.base + offset);
        self.rcv_nxt = ready.rcv_nxt;
        self.queue.check(self.rcv_nxt);
        ready
    }

    fn blocks(&self) -> Vec<(u32, u32)> {
        self.queue.blocks().map(|(start, end)| self.offsets((start, end))).collect()
    }

    fn offsets(&self, (start, end): (SeqNum, SeqNum)) -> (u32, u32) {
        (start.since(self.base), end.since(self.base))
    }

    /// Checks that every packet was returned.
    fn finish(mut self) {
        drop(self.queue);
        self.pool.drain_returns();
        assert_eq!(self.domain.balance(), 0);
    }
}

fn refused(insert: Insert) -> DropReason {
    match insert {
        Insert::Refused(reason, _) => reason,
        other => panic!("the packet was not refused: {other:?}"),
    }
}

#[test]
fn segments_after_one_loss_form_one_run() {
    let mut bench = Bench::new();
    for start in [10, 20, 30] {
        let queued = bench.insert(start, start + 10);
        assert_eq!((queued.new_bytes, queued.duplicate), (10, None));
        assert!(queued.redundant.is_empty());
        assert_eq!(bench.offsets(queued.block), (10, start + 10));
    }
    assert_eq!(bench.blocks(), [(10, 40)]);
    assert_eq!(bench.queue.bytes(), 30);
    assert!(bench.take(0).packets.is_empty());
    let mut ready = bench.take(10);
    assert_eq!(ready.rcv_nxt, bench.base + 40);
    assert_eq!(content(&mut ready.packets), data(10, 40));
    assert!(ready.stale.is_empty() && bench.queue.is_empty());
    assert_eq!(bench.queue.truesize(), 0);
    drop(ready);
    bench.finish();
}

#[test]
fn runs_stay_sorted_and_are_joined() {
    let mut bench = Bench::new();
    for (start, end, expected) in [
        (50, 60, &[(50, 60)][..]),
        (10, 20, &[(10, 20), (50, 60)]),
        (30, 40, &[(10, 20), (30, 40), (50, 60)]),
        // Touches the right neighbor only, then the left only, then both.
        (45, 50, &[(10, 20), (30, 40), (45, 60)]),
        (20, 25, &[(10, 25), (30, 40), (45, 60)]),
        (40, 45, &[(10, 25), (30, 60)]),
        (25, 30, &[(10, 60)]),
    ] {
        let queued = bench.insert(start, end);
        assert_eq!(queued.duplicate, None);
        assert_eq!(bench.blocks(), expected, "after {start}..{end}");
        assert!(bench.blocks().contains(&bench.offsets(queued.block)));
    }
    let mut ready = bench.take(10);
    assert_eq!(content(&mut ready.packets), data(10, 60));
}

#[test]
fn overlapping_packets_are_trimmed_and_reported() {
    let mut bench = Bench::new();
    drop(bench.insert(20, 30));
    drop(bench.insert(40, 50));
    // Overlaps the end of one run and the start of the next.
    let queued = bench.insert(25, 45);
    assert_eq!(queued.new_bytes, 10);
    assert_eq!(queued.duplicate.map(|range| bench.offsets(range)), Some((25, 30)));
    assert_eq!(bench.blocks(), [(20, 50)]);
    // Overlaps the front only.
    let queued = bench.insert(15, 25);
    assert_eq!(queued.new_bytes, 5);
    assert_eq!(queued.duplicate.map(|range| bench.offsets(range)), Some((20, 25)));
    let mut ready = bench.take(15);
    assert_eq!(content(&mut ready.packets), data(15, 50));
}

#[test]
fn covered_runs_are_replaced() {
    let mut bench = Bench::new();
    for start in [10, 20, 30] {
        drop(bench.insert(start, start + 5));
    }
    let mut queued = bench.insert(8, 32);
    assert_eq!(queued.redundant.len(), 2);
    assert_eq!(queued.new_bytes, 12);
    assert_eq!(queued.duplicate.map(|range| bench.offsets(range)), Some((10, 15)));
    assert_eq!(bench.blocks(), [(8, 35)]);
    assert_eq!(content(&mut queued.redundant).len(), 10);
    let mut ready = bench.take(8);
    assert_eq!(content(&mut ready.packets), data(8, 35));
}

#[test]
fn packets_without_new_bytes_are_refused() {
    let mut bench = Bench::new();
    drop(bench.insert(10, 30));
    for (start, end) in [(10, 30), (10, 20), (20, 30), (15, 16)] {
        let insert = bench.offer(start, end, false, UNBOUNDED);
        assert_eq!(refused(insert), DropReason::TcpOfoDuplicate);
    }
    assert_eq!(bench.queue.block_of(bench.base + 29), Some((bench.base + 10, bench.base + 30)));
    assert_eq!(bench.queue.block_of(bench.base + 30), None);
    assert_eq!(bench.queue.block_of(bench.base + 9), None);
    bench.finish();
}

#[test]
fn queued_packets_before_rcv_nxt_are_stale() {
    let mut bench = Bench::new();
    drop(bench.insert(10, 15));
    drop(bench.insert(20, 25));
    drop(bench.insert(25, 30));
    drop(bench.insert(30, 35));
    // A retransmission that reaches into the second packet of the second run.
    let mut ready = bench.take(27);
    assert_eq!(ready.stale.len(), 2);
    assert_eq!(ready.rcv_nxt, bench.base + 35);
    assert_eq!(content(&mut ready.packets), data(27, 35));
    assert!(bench.queue.is_empty());
    assert_eq!(bench.queue.truesize(), 0);
}

#[test]
fn a_packet_beyond_the_limit_of_truesize_is_refused() {
    let mut bench = Bench::new();
    drop(bench.insert(10, 20));
    let one = bench.queue.truesize();
    assert!(one > 0);
    let insert = bench.offer(30, 40, false, 2 * one - 1);
    assert_eq!(refused(insert), DropReason::TcpOfoQueueFull);
    assert!(matches!(bench.offer(30, 40, false, 2 * one), Insert::Queued(_)));
    assert_eq!(bench.queue.truesize(), 2 * one);
    bench.finish();
}

#[test]
fn the_number_of_gaps_is_bounded() {
    let mut bench = Bench::new();
    let runs = u32::try_from(RUNS_MAX).unwrap();
    for index in 0..runs {
        let packet = bench.packet(2 * index + 1, 2 * index + 2);
        let insert = bench.queue.insert(bench.base + 2 * index + 1, packet, false, UNBOUNDED);
        assert!(matches!(insert, Insert::Queued(_)));
    }
    let insert = bench.offer(2 * runs + 1, 2 * runs + 2, false, UNBOUNDED);
    assert_eq!(refused(insert), DropReason::TcpOfoQueueFull);
    // A packet that joins a run opens no gap.
    assert!(matches!(bench.offer(2 * runs, 2 * runs + 1, false, UNBOUNDED), Insert::Queued(_)));
    drop(bench.queue.clear());
    assert!(bench.queue.runs.capacity() <= super::RUNS_KEPT);
    bench.finish();
}

#[test]
fn pruning_removes_the_highest_sequence_numbers_first() {
    let mut bench = Bench::new();
    for start in [10, 20, 30, 50, 60, 80] {
        drop(bench.insert(start, start + 10));
    }
    let one = bench.queue.truesize() / 6;
    // Two packets do not fit: the last run, and the end of the run before it.
    let pruned = bench.queue.prune(4 * one);
    assert_eq!(pruned.len(), 2);
    assert_eq!(bench.blocks(), [(10, 40), (50, 60)]);
    bench.queue.check(bench.rcv_nxt);
    assert_eq!(bench.queue.prune(3 * one - 1).len(), 2);
    assert_eq!(bench.blocks(), [(10, 30)]);
    assert!(bench.queue.prune(UNBOUNDED).is_empty());
    assert_eq!(bench.queue.prune(0).len(), 2);
    assert!(bench.queue.is_empty());
    drop(pruned);
    bench.finish();
}

#[test]
fn a_fin_waits_for_the_data_before_it() {
    let mut bench = Bench::new();
    assert!(matches!(bench.offer(10, 20, true, UNBOUNDED), Insert::Queued(_)));
    assert_eq!(bench.queue.fin(), Some(bench.base + 20));
    assert!(!bench.queue.is_fin_next(bench.base + 10));
    let ready = bench.take(10);
    assert!(bench.queue.is_fin_next(ready.rcv_nxt));
    drop(ready);
    bench.finish();
}

#[test]
fn a_fin_without_data_is_recorded_once() {
    let mut bench = Bench::new();
    drop(bench.insert(10, 20));
    assert!(matches!(bench.offer(30, 30, true, UNBOUNDED), Insert::FinNoted(_)));
    // A FIN at another number is ignored, and so is data behind the FIN.
    assert!(matches!(bench.offer(25, 25, true, UNBOUNDED), Insert::FinNoted(_)));
    assert_eq!(bench.queue.fin(), Some(bench.base + 30));
    let insert = bench.offer(30, 40, false, UNBOUNDED);
    assert_eq!(refused(insert), DropReason::TcpOfoDuplicate);
    // Data that reaches beyond the FIN is trimmed.
    assert_eq!(bench.insert(15, 50).new_bytes, 10);
    assert_eq!(bench.blocks(), [(10, 30)]);
    bench.finish();
}

#[test]
fn a_fin_below_queued_data_is_ignored() {
    let mut bench = Bench::new();
    drop(bench.insert(10, 20));
    assert!(matches!(bench.offer(15, 15, true, UNBOUNDED), Insert::FinNoted(_)));
    assert_eq!(bench.queue.fin(), None);
    // A duplicate segment may still carry the real FIN.
    let insert = bench.offer(15, 20, true, UNBOUNDED);
    assert_eq!(refused(insert), DropReason::TcpOfoDuplicate);
    assert_eq!(bench.queue.fin(), Some(bench.base + 20));
    bench.finish();
}

#[test]
fn clear_returns_all_packets() {
    let mut bench = Bench::new();
    drop(bench.insert(10, 20));
    drop(bench.offer(30, 40, true, UNBOUNDED));
    assert_eq!(bench.queue.clear().len(), 2);
    assert_eq!((bench.queue.truesize(), bench.queue.fin()), (0, None));
    bench.finish();
}

/// Model of the queue: one flag per byte that has arrived.
struct Model {
    present: Vec<bool>,
    rcv_nxt: u32,
}

impl Model {
    fn blocks(&self) -> Vec<(u32, u32)> {
        let mut blocks: Vec<(u32, u32)> = Vec::new();
        for (offset, &present) in (0u32..).zip(&self.present) {
            match blocks.last_mut() {
                _ if !present || offset < self.rcv_nxt => {}
                Some(last) if last.1 == offset => last.1 += 1,
                _ => blocks.push((offset, offset + 1)),
            }
        }
        blocks
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive { ahead: u32, len: u32 },
    Advance { by: u32 },
    Prune { percent: usize },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1u32..120, 1u32..30).prop_map(|(ahead, len)| Step::Arrive { ahead, len }),
        2 => (0u32..40).prop_map(|by| Step::Advance { by }),
        1 => (0usize..120).prop_map(|percent| Step::Prune { percent }),
    ]
}

proptest! {
    /// The queue holds, reports and delivers the same bytes as the model.
    #[test]
    fn the_queue_behaves_as_a_naive_model(steps in proptest::collection::vec(any_step(), 1..120)) {
        let mut bench = Bench::new();
        let mut model = Model { present: std::vec![false; 6_000], rcv_nxt: 0 };
        for step in steps {
            match step {
                Step::Arrive { ahead, len } => {
                    let start = model.rcv_nxt + ahead;
                    arrive(&mut bench, &mut model, start, start + len);
                }
                Step::Advance { by } => advance(&mut bench, &mut model, by),
                Step::Prune { percent } => {
                    let limit = bench.queue.truesize() * percent / 100;
                    drop(bench.queue.prune(limit));
                    prop_assert!(bench.queue.truesize() <= limit);
                    // Only the end may be removed: the rest is a prefix of the former content.
                    let keep = bench.queue.highest_end().map_or(0, |end| end.since(bench.base));
                    model.present[keep as usize..].fill(false);
                }
            }
            prop_assert_eq!(bench.blocks(), model.blocks());
            bench.queue.check(bench.rcv_nxt);
        }
        bench.finish();
    }
}

/// Delivers a segment to the queue and the model.
fn arrive(bench: &mut Bench, model: &mut Model, start: u32, end: u32) {
    let range = start as usize..end as usize;
    let already = model.present[range.clone()].iter().filter(|&&present| present).count();
    let first = model.present[range.clone()].iter().position(|&present| present);
    match bench.offer(start, end, false, UNBOUNDED) {
        Insert::Queued(queued) => {
            assert_eq!(queued.new_bytes as usize, range.len() - already);
            let duplicate = queued.duplicate.map(|range| bench.offsets(range));
            let first = first.map(|at| start + u32::try_from(at).unwrap());
            assert_eq!(duplicate.map(|(from, _)| from), first);
            let (from, to) = bench.offsets(queued.block);
            assert!(from <= start && end <= to);
        }
        insert => {
            assert_eq!(refused(insert), DropReason::TcpOfoDuplicate);
            assert_eq!(already, range.len());
        }
    }
    model.present[range].fill(true);
}

/// Delivers in-order data to the queue and the model, and checks the data that becomes deliverable.
fn advance(bench: &mut Bench, model: &mut Model, by: u32) {
    let arrived = model.rcv_nxt + by;
    let mut ready = bench.take(arrived);
    let mut next = arrived;
    while model.present[next as usize] {
        next += 1;
    }
    assert_eq!(ready.rcv_nxt, bench.base + next);
    assert_eq!(content(&mut ready.packets), data(arrived, next));
    model.present[..next as usize].fill(true);
    model.rcv_nxt = next;
}
