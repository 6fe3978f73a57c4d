use pkt::{Domain, DomainConfig, Pool};
use proptest::{collection::vec, prelude::*};

use super::*;

const HEADER: u16 = 20;

const LIMITS: FragmentLimits =
    FragmentLimits { high_thresh: 4 << 20, time: Duration::from_secs(30), max_dist: 64 };

struct Bench {
    table: FragmentTable,
    pool: Pool,
    now: Instant,
    limits: FragmentLimits,
}

impl Bench {
    fn new() -> Self {
        let domain = Domain::new(DomainConfig { max_bytes: 64 << 20 });
        let pool = domain.pool();
        let now = Instant::from_secs(1000);
        Self { table: FragmentTable::default(), pool, now, limits: LIMITS }
    }

    /// Gives the bytes `offset..end` of a datagram.
    fn give(&mut self, key: DatagramKey, offset: u16, end: u32, more: bool) -> Effect {
        self.give_as(key, Place { offset, more, ..place() }, end)
    }

    fn give_as(&mut self, key: DatagramKey, place: Place, end: u32) -> Effect {
        let mut bytes = vec![0xee; usize::from(place.header_len)];
        bytes.extend((u32::from(place.offset)..end).map(|at| pattern(&key, at)));
        let mut packet = self.pool.alloc().expect("the pool has memory");
        assert_eq!(packet.append(&mut self.pool, &bytes), bytes.len());
        let effect = self.table.insert(key, place, packet, &self.limits, self.now);
        self.table.check_all();
        effect
    }
}

fn place() -> Place {
    Place {
        offset: 0,
        more: false,
        header_len: HEADER,
        counted_len: HEADER,
        ecn: Ecn::NotEct,
        dont: false,
    }
}

fn key(source: u8, id: u32) -> DatagramKey {
    let ip = |tail| IpAddr::V4([10, 0, 0, tail].into());
    DatagramKey { src: ip(source), dst: ip(200), id, protocol: 17, device: 0 }
}

fn key_v6(source: u16, id: u32) -> DatagramKey {
    let ip = |tail| IpAddr::V6([0x2001, 0xdb8, 0, 0, 0, 0, 0, tail].into());
    DatagramKey { src: ip(source), dst: ip(200), id, protocol: 0, device: 0 }
}

/// Byte of a datagram at an offset.
fn pattern(key: &DatagramKey, at: u32) -> u8 {
    (at.wrapping_mul(7) ^ key.id ^ (at >> 8)).to_le_bytes()[0]
}

/// Returns the payload of a complete datagram.
fn joined(whole: &Whole) -> Vec<u8> {
    let part = |(skip, packet): &(u16, Packet)| packet.to_vec()[usize::from(*skip)..].to_vec();
    whole.pieces.iter().flat_map(part).collect()
}

fn reasons(effect: &Effect) -> Vec<DropReason> {
    effect.ended.iter().map(|ended| ended.reason).collect()
}

fn refused(effect: &Effect) -> Option<DropReason> {
    effect.refused.as_ref().map(|(reason, _)| *reason)
}

#[test]
fn fragments_in_any_order_complete_the_datagram() {
    let parts = [(0, 800, true), (800, 1600, true), (1600, 2000, false)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut bench = Bench::new();
        for (number, part) in order.into_iter().enumerate() {
            let (offset, end, more) = parts[part];
            let effect = bench.give(key(1, 7), offset, end, more);
            assert_eq!(effect.whole.is_some(), number == 2, "{order:?}");
            assert_eq!((reasons(&effect), refused(&effect)), (vec![], None));
            if let Some(whole) = effect.whole {
                let expected: Vec<_> = (0..2000).map(|at| pattern(&key(1, 7), at)).collect();
                assert_eq!((joined(&whole), whole.payload_len), (expected, 2000));
            }
        }
        assert_eq!((bench.table.len(), bench.table.truesize()), (0, 0));
    }
}

#[test]
fn datagrams_differ_by_each_field_of_their_key() {
    let mut bench = Bench::new();
    let base = key(1, 7);
    let other = IpAddr::V4([10, 0, 0, 201].into());
    let keys = [
        base,
        key(2, 7),
        key(1, 8),
        DatagramKey { dst: other, ..base },
        DatagramKey { protocol: 1, ..base },
        DatagramKey { device: 3, ..base },
    ];
    for key in keys {
        assert!(bench.give(key, 0, 8, true).whole.is_none());
    }
    assert_eq!(bench.table.len(), 6);
    for key in keys {
        let whole = bench.give(key, 8, 16, false).whole.expect("the datagram is complete");
        assert_eq!(joined(&whole), (0..16).map(|at| pattern(&key, at)).collect::<Vec<_>>());
    }
}

#[test]
fn a_duplicate_is_dropped_and_its_datagram_stays() {
    let mut bench = Bench::new();
    bench.give(key(1, 7), 0, 800, true);
    for (offset, end) in [(0, 800), (0, 400), (400, 800), (80, 160)] {
        let effect = bench.give(key(1, 7), offset, end, true);
        assert_eq!(refused(&effect), Some(DropReason::FragmentDuplicate));
        assert_eq!(reasons(&effect), []);
    }
    // A copy of parts of two adjacent fragments is a duplicate, too.
    bench.give(key(1, 7), 800, 1600, true);
    let effect = bench.give(key(1, 7), 400, 1200, true);
    assert_eq!((refused(&effect), reasons(&effect)), (Some(DropReason::FragmentDuplicate), vec![]));
    assert!(bench.give(key(1, 7), 1600, 1700, false).whole.is_some());
}

/// RFC 8200 §4.5: only an exact copy is a duplicate; every other overlap ends the datagram.
#[test]
fn of_ipv6_only_exact_copies_are_duplicates() {
    let mut bench = Bench::new();
    bench.give(key_v6(1, 7), 0, 800, true);
    let effect = bench.give(key_v6(1, 7), 0, 800, true);
    assert_eq!((refused(&effect), reasons(&effect)), (Some(DropReason::FragmentDuplicate), vec![]));
    for (offset, end) in [(0, 400), (400, 800), (0, 808), (792, 1600)] {
        let mut bench = Bench::new();
        bench.give(key_v6(1, 7), 0, 800, true);
        let effect = bench.give(key_v6(1, 7), offset, end, true);
        assert_eq!(reasons(&effect), [DropReason::FragmentOverlap], "{offset}..{end}");
        assert_eq!(bench.table.len(), 0);
    }
}

/// The length field of IPv6 does not count the fixed header and the Fragment header.
#[test]
fn the_largest_datagram_of_ipv6_is_complete() {
    let mut bench = Bench::new();
    let place = Place { header_len: 48, counted_len: 0, more: true, ..place() };
    for offset in (0..65_520_u16).step_by(1456) {
        let end = u32::from(offset) + 1456;
        assert!(bench.give_as(key_v6(1, 7), Place { offset, ..place }, end).whole.is_none());
    }
    let last = Place { offset: 65_520, more: false, ..place };
    let whole = bench.give_as(key_v6(1, 7), last, 65_535).whole.expect("the datagram is complete");
    assert_eq!(whole.payload_len, 65_535);
}

#[test]
fn any_other_overlap_ends_the_whole_datagram() {
    for (offset, end) in [(792, 1600), (0, 808), (0, 1600), (1592, 2400), (392, 1208)] {
        let mut bench = Bench::new();
        bench.give(key(1, 7), 400, 800, true);
        bench.give(key(1, 7), 1200, 1600, true);
        let effect = bench.give(key(1, 7), offset, end, true);
        assert_eq!(reasons(&effect), [DropReason::FragmentOverlap], "{offset}..{end}");
        assert_eq!(effect.ended[0].packets.len(), 2);
        assert_eq!(refused(&effect), Some(DropReason::FragmentOverlap));
        assert_eq!(bench.table.len(), 0);
    }
}

/// Teardrop: the second fragment ends before the first one does.
#[test]
fn a_teardrop_ends_its_datagram() {
    let mut bench = Bench::new();
    bench.give(key(1, 242), 0, 36 & !7, true);
    let effect = bench.give(key(1, 242), 24, 28, false);
    assert_eq!(reasons(&effect), [DropReason::FragmentMalformed]);
    assert_eq!(bench.table.len(), 0);
}

#[test]
fn fragments_that_disagree_about_the_length_end_their_datagram() {
    // The end is known; a fragment reaches beyond it, or ends the datagram earlier or later.
    for (offset, end, more) in [(1600, 2400, true), (800, 1200, false), (1600, 2400, false)] {
        let mut bench = Bench::new();
        bench.give(key(1, 7), 1200, 1600, false);
        let effect = bench.give(key(1, 7), offset, end, more);
        assert_eq!(reasons(&effect), [DropReason::FragmentMalformed], "{offset}..{end} {more}");
    }
    // The end lies before bytes that have arrived.
    let mut bench = Bench::new();
    bench.give(key(1, 7), 1200, 1600, true);
    let effect = bench.give(key(1, 7), 0, 800, false);
    assert_eq!(reasons(&effect), [DropReason::FragmentMalformed]);
}

#[test]
fn an_empty_fragment_ends_its_datagram() {
    for more in [false, true] {
        let mut bench = Bench::new();
        bench.give(key(1, 7), 0, 800, true);
        // Seven bytes that others follow are cut to none.
        let end = if more { 807 } else { 800 };
        let effect = bench.give(key(1, 7), 800, end, more);
        assert_eq!(reasons(&effect), [DropReason::FragmentMalformed]);
    }
}

#[test]
fn bytes_behind_a_multiple_of_eight_are_cut_if_fragments_follow() {
    let mut bench = Bench::new();
    bench.give(key(1, 7), 0, 805, true);
    let whole = bench.give(key(1, 7), 800, 810, false).whole.expect("the datagram is complete");
    assert_eq!(joined(&whole).len(), 810);
}

/// The last fragment reaches beyond the largest packet.
#[test]
fn a_ping_of_death_ends_its_datagram() {
    let mut bench = Bench::new();
    for offset in (0..65_520).step_by(1480) {
        let end = u32::from(offset) + 1480;
        let effect = bench.give(key(1, 7), offset, end, true);
        if end + u32::from(HEADER) > 65_535 {
            assert_eq!(reasons(&effect), [DropReason::FragmentTooBig]);
            assert_eq!(bench.table.len(), 0);
            return;
        }
        assert_eq!(reasons(&effect), []);
    }
    unreachable!("one of them is too long");
}

/// The first fragment's options make the datagram too long, although every fragment has room.
#[test]
fn a_datagram_with_the_options_of_its_first_fragment_must_fit() {
    let mut bench = Bench::new();
    let last = Place { offset: 65_504, ..place() };
    assert!(bench.give_as(key(1, 7), last, 65_512).whole.is_none());
    for offset in (8192..65_504_u32).step_by(8192) {
        bench.give(key(1, 7), u16::try_from(offset).unwrap(), (offset + 8192).min(65_504), true);
    }
    let first = Place { header_len: 60, counted_len: 60, more: true, ..place() };
    let effect = bench.give_as(key(1, 7), first, 8192);
    assert_eq!(reasons(&effect), [DropReason::FragmentTooBig]);
    assert!(effect.whole.is_none());
}

#[test]
fn an_incomplete_datagram_ends_when_its_time_is_over() {
    let mut bench = Bench::new();
    let effect = bench.give(key(1, 7), 0, 800, true);
    let deadline = bench.now + LIMITS.time;
    assert_eq!(effect.arm, Some(deadline));
    bench.now += Duration::from_secs(10);
    assert_eq!(bench.give(key(1, 8), 800, 1600, true).arm, None, "an armed timer is armed again");
    let (ended, next) = bench.table.expire(bench.now);
    assert!(ended.is_empty() && next == Some(deadline));
    let (ended, next) = bench.table.expire(deadline);
    assert_eq!((ended.len(), ended[0].reason), (1, DropReason::FragmentTimeout));
    assert!(ended[0].has_first);
    assert_eq!(next, Some(deadline + Duration::from_secs(10)));
    let (ended, next) = bench.table.expire(next.unwrap());
    assert!(!ended[0].has_first && next.is_none());
    bench.table.check_all();
}

/// The identification is reused after many fragments of other datagrams.
#[test]
fn fragments_too_far_apart_belong_to_different_datagrams() {
    for (others, fits) in [(63, true), (64, false)] {
        let mut bench = Bench::new();
        bench.give(key(1, 7), 0, 8, true);
        for id in 0..others {
            bench.give(key(1, 100 + id), 0, 8, true);
        }
        let effect = bench.give(key(1, 7), 8, 16, false);
        assert_eq!(effect.whole.is_some(), fits);
        let expected = if fits { vec![] } else { vec![DropReason::FragmentTooFar] };
        assert_eq!(reasons(&effect), expected);
    }
    let mut bench = Bench::new();
    bench.give(key(1, 7), 0, 8, true);
    for id in 0..100 {
        bench.give(key(2, id), 0, 8, true);
    }
    assert!(
        bench.give(key(1, 7), 8, 16, false).whole.is_some(),
        "fragments of another source were counted"
    );
}

#[test]
fn a_flood_of_one_source_ends_its_own_datagrams() {
    let mut bench = Bench::new();
    bench.limits.high_thresh = 64 << 10;
    bench.give(key(1, 7), 0, 1480, true);
    let mut ended = 0;
    for id in 0..1000 {
        let effect = bench.give(key(2, id), 0, 1480, true);
        assert!(bench.table.truesize() <= 64 << 10);
        for datagram in effect.ended {
            assert_eq!(datagram.reason, DropReason::FragmentMemory);
            ended += 1;
        }
    }
    assert!(ended > 900);
    assert!(
        bench.give(key(1, 7), 1480, 1500, false).whole.is_some(),
        "the first source's datagram was dropped"
    );
    // The oldest datagrams of the flood were dropped first.
    assert!(bench.give(key(2, 999), 1480, 1500, false).whole.is_some());
    assert!(bench.give(key(2, 0), 1480, 1500, false).whole.is_none());
}

/// Fragments of eight bytes count their descriptors, so that they cannot fill the memory.
#[test]
fn tiny_fragments_are_bounded_by_their_memory() {
    let mut bench = Bench::new();
    bench.limits = FragmentLimits { high_thresh: 64 << 10, max_dist: 0, ..LIMITS };
    let mut most = 0;
    let mut ended = 0;
    for index in 0..4000_u16 {
        let effect = bench.give(key(1, 7), index * 16, u32::from(index) * 16 + 8, true);
        ended += effect.ended.len();
        most = most.max(bench.table.truesize());
    }
    assert!(most <= 64 << 10 && ended > 0, "{most} bytes, {ended} ended");
}

/// Tiny fragments split the header of the transport protocol; the result has it whole.
#[test]
fn tiny_fragments_complete_their_datagram() {
    let mut bench = Bench::new();
    for index in (1..8_u16).rev() {
        assert!(
            bench.give(key(1, 7), index * 8, u32::from(index) * 8 + 8, index < 7).whole.is_none()
        );
    }
    let whole = bench.give(key(1, 7), 0, 8, true).whole.expect("the datagram is complete");
    assert_eq!(joined(&whole).len(), 64);
}

#[test]
fn the_limit_zero_refuses_fragments() {
    let mut bench = Bench::new();
    bench.limits.high_thresh = 0;
    assert_eq!(refused(&bench.give(key(1, 7), 0, 8, true)), Some(DropReason::FragmentMemory));
    assert_eq!(bench.table.len(), 0);
}

#[test]
fn the_ecn_field_of_the_whole_is_that_of_rfc_3168() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    for (fields, expected) in [
        ([NotEct, NotEct], Some(NotEct)),
        ([Ect0, Ect0], Some(Ect0)),
        ([Ect0, Ce], Some(Ce)),
        ([Ce, Ect1], Some(Ce)),
        ([NotEct, Ce], None),
        ([Ect0, NotEct], None),
    ] {
        let mut bench = Bench::new();
        let [first, second] = fields;
        bench.give_as(key(1, 7), Place { ecn: first, more: true, ..place() }, 8);
        let effect = bench.give_as(key(1, 7), Place { ecn: second, offset: 8, ..place() }, 16);
        assert_eq!(effect.whole.as_ref().map(|whole| whole.ecn), expected);
        let reason = expected.is_none().then_some(DropReason::FragmentEcn);
        assert_eq!(reasons(&effect), reason.into_iter().collect::<Vec<_>>());
    }
}

/// Offset, end, and whether more follow.
type Part = (u32, u32, bool);

/// A fragment of a random history.
#[derive(Clone, Copy, Debug)]
struct Step {
    source: u8,
    id: u32,
    /// In units of 8 bytes.
    offset: u16,
    units: u16,
    more: bool,
    wait_ms: u64,
}

fn step() -> impl Strategy<Value = Step> {
    (0..3_u8, 0..3_u32, 0..6_u16, 1..4_u16, prop::bool::weighted(0.7), 0..4000_u64).prop_map(
        |(source, id, offset, units, more, wait_ms)| Step {
            source,
            id,
            offset,
            units,
            more,
            wait_ms,
        },
    )
}

proptest! {
    /// The table agrees with a list of the fragments of each datagram.
    #[test]
    fn reassembly_agrees_with_a_list_of_fragments(steps in vec(step(), 0..200)) {
        let mut bench = Bench::new();
        bench.limits.max_dist = 0;
        let mut model: BTreeMap<DatagramKey, (Instant, Vec<Part>)> = BTreeMap::new();
        for Step { source, id, offset, units, more, wait_ms } in steps {
            bench.now += Duration::from_millis(wait_ms);
            let now = bench.now;
            let (expired, _) = bench.table.expire(now);
            let before = model.len();
            model.retain(|_, (deadline, _)| *deadline > now);
            prop_assert_eq!(expired.len(), before - model.len());
            let key = key(source, id);
            let (offset, end) = (offset * 8, u32::from(offset + units) * 8);
            let effect = bench.give(key, offset, end, more);
            let entry = model.entry(key).or_insert_with(|| (now + LIMITS.time, Vec::new()));
            let known = &mut entry.1;
            let start = u32::from(offset);
            let last = known.iter().find(|part| !part.2).map(|part| part.1);
            let most = known.iter().map(|part| part.1).max().unwrap_or(0);
            let contradicts = match (more, last) {
                (true, Some(last)) => end > last,
                (true, None) => false,
                (false, Some(last)) => end != last,
                (false, None) => end < most,
            };
            let is_known = |at: u32| known.iter().any(|part| part.0 <= at && at < part.1);
            let within = (start..end).step_by(8).all(is_known);
            let overlaps = known.iter().any(|part| part.0 < end && start < part.1);
            let expected = if contradicts {
                Some(DropReason::FragmentMalformed)
            } else if within {
                Some(DropReason::FragmentDuplicate)
            } else {
                overlaps.then_some(DropReason::FragmentOverlap)
            };
            prop_assert_eq!(refused(&effect), expected);
            match expected {
                Some(DropReason::FragmentDuplicate) => {}
                Some(_) => drop(model.remove(&key)),
                None => {
                    known.push((start, end, more));
                    let sum: u32 = known.iter().map(|part| part.1 - part.0).sum();
                    let is_whole = known.iter().any(|part| !part.2 && part.1 == sum);
                    prop_assert_eq!(effect.whole.is_some(), is_whole);
                    if let Some(whole) = &effect.whole {
                        let bytes: Vec<_> = (0..sum).map(|at| pattern(&key, at)).collect();
                        prop_assert_eq!(joined(whole), bytes);
                        model.remove(&key);
                    }
                }
            }
            prop_assert_eq!(bench.table.len(), model.len());
        }
    }
}
