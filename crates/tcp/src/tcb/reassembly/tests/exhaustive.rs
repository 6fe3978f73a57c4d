//! Tests of every possible queue within nine bytes of stream and every range that may arrive,
//! compared with a model of one bit per byte.
//!
//! The stream crosses the wrap of sequence numbers.
//!
//! Not here: longer streams and memory limits (`tests`).

use std::vec::Vec;

use super::{Bench, Insert, UNBOUNDED};
use crate::{
    tcb::reassembly::{Reassembly, place::Place, run::Run},
    wire::seq::SeqNum,
};

/// Bytes of the stream.
const BYTES: u32 = 9;

/// Sequence number of the first byte: numbers wrap in the middle of the stream.
const BASE: SeqNum = SeqNum(u32::MAX - 3);

/// Returns the ranges of the bytes that are present.
fn ranges(present: u32) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for at in (0..BYTES).filter(|at| present >> at & 1 != 0) {
        match found.last_mut() {
            Some(last) if last.1 == at => last.1 = at + 1,
            _ => found.push((at, at + 1)),
        }
    }
    found
}

/// Returns a queue with these ranges but without packets: `place` reads only sequence numbers.
fn queue(ranges: &[(u32, u32)]) -> Reassembly {
    let mut queue = Reassembly::new();
    let run = |&(start, end): &(u32, u32)| Run {
        start: BASE + start,
        end: BASE + end,
        packets: pkt::PacketList::default(),
        truesize: 0,
    };
    queue.runs.extend(ranges.iter().map(run));
    queue
}

/// Returns the bits of the bytes `start..end`.
fn bits(start: u32, end: u32) -> u32 {
    (1 << end) - (1 << start)
}

/// Calls `visit` with the bits of the queued bytes and a range, for all combinations of both.
fn for_every_range(mut visit: impl FnMut(u32, u32, u32)) {
    for present in 0..1 << BYTES {
        for start in 0..BYTES {
            for end in start + 1..=BYTES {
                visit(present, start, end);
            }
        }
    }
}

#[test]
fn place_finds_the_neighbors_and_overlaps_of_every_range() {
    for_every_range(|present, start, end| {
        let ranges = ranges(present);
        let place = queue(&ranges).place(BASE + start, BASE + end);
        let wanted = bits(start, end);
        assert_eq!(
            place.is_duplicate,
            wanted & !present == 0,
            "queued {present:b}, range {start}..{end}"
        );
        if !place.is_duplicate {
            check(&place, &ranges, present, (start, end));
        }
    });
}

fn check(place: &Place, ranges: &[(u32, u32)], present: u32, (start, end): (u32, u32)) {
    let why = std::format!("queued {present:b}, range {start}..{end}: {place:?}");
    let (from, to) = (place.start.since(BASE), place.end.since(BASE));
    assert!(start <= from && from < to && to <= end, "{why}");

    // The inserted range minus the runs that it covers consists exactly of the missing bytes.
    let covered = &ranges[place.index..place.covered_end];
    let covered_bits: u32 = covered.iter().map(|&(start, end)| bits(start, end)).sum();
    assert_eq!(covered_bits & !bits(from, to), 0, "{why}");
    assert_eq!(bits(from, to) & !covered_bits, bits(start, end) & !present, "{why}");

    // Runs stay sorted.
    assert!(ranges[..place.index].iter().all(|run| run.1 <= from), "{why}");
    assert!(ranges[place.covered_end..].iter().all(|run| run.0 >= to), "{why}");

    // Neighbors that would touch are joined.
    let touches_left = place.index > 0 && ranges[place.index - 1].1 == from;
    let right = ranges.get(place.covered_end);
    assert_eq!(place.joins_left, touches_left, "{why}");
    assert_eq!(place.joins_right, right.is_some_and(|run| run.0 == to), "{why}");
    let alone = !place.joins_left && !place.joins_right && covered.is_empty();
    assert_eq!(place.is_new_run(), alone, "{why}");

    let first = self::ranges(present & bits(start, end)).first().copied();
    let duplicate = place.duplicate.map(|(start, end)| (start.since(BASE), end.since(BASE)));
    assert_eq!(duplicate, first, "{why}");
}

#[test]
fn an_insertion_adds_exactly_the_missing_bytes_of_every_range() {
    let mut bench = Bench::new();
    for_every_range(|present, start, end| {
        // Offset 38 of `Bench` also lies just before the wrap. Offset 0 is unsuitable: it is
        // RCV.NXT, which is never in the queue.
        for (start, end) in ranges(present) {
            bench.insert(start + 38, end + 38);
        }
        let after = present | bits(start, end);
        match bench.offer(start + 38, end + 38, false, UNBOUNDED) {
            Insert::Queued(mut queued) => {
                let new = (bits(start, end) & !present).count_ones();
                assert_eq!(queued.new_bytes, new, "queued {present:b}, range {start}..{end}");
                while let Some(packet) = queued.redundant.pop_front() {
                    bench.pool.free(packet);
                }
            }
            Insert::Refused(_, packet) => {
                assert_eq!(after, present, "queued {present:b}, range {start}..{end}");
                bench.pool.free(packet);
            }
            Insert::FinNoted(_) => panic!("a FIN was noted, although no packet carries one"),
        }
        let expected: Vec<_> =
            ranges(after).iter().map(|&(start, end)| (start + 38, end + 38)).collect();
        assert_eq!(bench.blocks(), expected, "queued {present:b}, range {start}..{end}");
        let mut all = bench.queue.clear();
        while let Some(packet) = all.pop_front() {
            bench.pool.free(packet);
        }
    });
    bench.finish();
}
