//! Sums computed by the copy, and packets cut into pieces, compared with the bytes themselves.

use super::*;
use proptest::prelude::*;

use crate::pages::{Pages, Payload};

/// Checks every sum that the packet has against its bytes.
fn check_sums(packet: &Packet, what: &str) {
    let bytes = packet.to_vec();
    let headers = packet.linear().len();
    let size = usize::from(packet.body().piece);
    if let Some(sum) = packet.sum_of_pieces() {
        assert_eq!(sum, Sum::of(&bytes[headers..]), "{what}");
        for (index, piece) in bytes[headers..].chunks(size).enumerate() {
            assert_eq!(packet.piece_sum(index), Sum::of(piece), "{what}, piece {index}");
        }
    }
}

fn summed(packet: &Packet) -> bool {
    packet.sum_of_pieces().is_some()
}

#[test]
fn full_segments_are_summed_by_the_copy() {
    let (domain, mut pool) = pool();
    let mut packet = pool.alloc_fclone().expect("memory");
    let bytes = pattern(63_712);
    for part in bytes.chunks(5000) {
        assert_eq!(packet.append_in_pieces(&mut pool, part, 1448), part.len());
        check_sums(&packet, "growing");
    }
    assert!(summed(&packet) && packet.to_vec() == bytes);
    let mut clone = packet.clone_in(&mut pool).expect("memory");
    clone.push(54).fill(7);
    assert!(summed(&clone));
    check_sums(&clone, "a clone with headers");
    let received = clone.clone_range(&mut pool, 54, 3000).expect("memory");
    assert!(!summed(&received), "the clone of a range has no sums");
    for packet in [packet, clone, received] {
        pool.free(packet);
    }
    assert_eq!(domain.balance(), 0);
}

/// A call that finds no room does not change the sum of the piece that an earlier call began.
#[test]
fn a_packet_without_room_keeps_the_sum_of_its_last_piece() {
    let (domain, mut pool) = pool();
    let mut packet = pool.alloc().expect("memory");
    let mut other = pool.alloc().expect("memory");
    let bytes = pattern(5000);
    assert_eq!(packet.append_in_pieces(&mut pool, &bytes[..1000], 48), 1000);
    let mut end = 1000;
    // Each part gets a slice of its own, because another packet has taken the bytes behind the
    // previous one.
    for part in bytes[1000..].chunks(61) {
        assert_eq!(other.append(&mut pool, &[7; 200]), 200);
        if other.frag_count() == FRAGS_MAX {
            let full = core::mem::replace(&mut other, pool.alloc().expect("memory"));
            pool.free(full);
        }
        let taken = packet.append_in_pieces(&mut pool, part, 48);
        end += taken;
        check_sums(&packet, "one slice more, or none");
        if taken == 0 {
            break;
        }
    }
    assert!(packet.frag_count() == FRAGS_MAX && !end.is_multiple_of(48), "{packet:?}");
    assert!(summed(&packet) && packet.to_vec() == bytes[..end]);
    for packet in [packet, other] {
        pool.free(packet);
    }
    assert_eq!(domain.balance(), 0);
}

#[test]
fn payload_in_the_head_moves_to_pages_to_make_room_for_sums() {
    let (domain, mut pool) = pool();
    let mut packet = pool.alloc().expect("memory");
    let bytes = pattern(4000);
    for part in [&bytes[..101], &bytes[101..120], &bytes[120..4000]] {
        assert_eq!(packet.append_in_pieces(&mut pool, part, 1448), part.len());
    }
    assert!(summed(&packet) && packet.to_vec() == bytes);
    check_sums(&packet, "from the head");
    assert_eq!(packet.truesize() as usize, DESCRIPTOR_BYTES + 4000);
    pool.free(packet);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn without_memory_payload_stays_in_the_head() {
    let domain = Domain::new(DomainConfig { max_bytes: 100_000 });
    let mut pool = domain.pool();
    let mut packet = pool.alloc().expect("memory");
    assert_eq!(packet.append_in_pieces(&mut pool, &[1; 100], 1448), 100);
    assert_eq!(packet.append_in_pieces(&mut pool, &[2; 200], 1448), 0, "no slab of pages fits");
    assert_eq!(packet.to_vec(), [1; 100]);
    assert_eq!(packet.truesize() as usize, DESCRIPTOR_BYTES);
    pool.free(packet);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn sums_of_another_size_or_of_too_many_pieces_are_discarded() {
    let (domain, mut pool) = pool();
    let mut packet = pool.alloc().expect("memory");
    assert_eq!(packet.append_in_pieces(&mut pool, &pattern(2000), 1000), 2000);
    assert!(summed(&packet));
    assert_eq!(packet.append_in_pieces(&mut pool, &pattern(2000), 900), 2000);
    assert!(!summed(&packet), "the segment size changed");
    pool.free(packet);
    let mut packet = pool.alloc().expect("memory");
    assert_eq!(packet.append_in_pieces(&mut pool, &pattern(6400), 100), 6400);
    assert!(summed(&packet), "64 of them fit");
    assert_eq!(packet.append_in_pieces(&mut pool, &[1], 100), 1);
    assert!(!summed(&packet), "the 65th does not");
    assert_eq!(packet.len(), 6401);
    pool.free(packet);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn the_references_of_pieces_are_taken_once_and_returned() {
    let (domain, mut pool) = pool();
    let bytes = pattern(40_000);
    let mut packet = in_frags(&mut pool, &bytes, 7000);
    packet.push(20).fill(1);
    let mut cutter = packet.cut(&mut pool, 20, 1000);
    let mut pieces = Vec::new();
    for _ in 0..25 {
        pieces.push(cutter.next_piece(&mut pool).expect("memory").0);
    }
    assert_eq!(cutter.left(), 15_000);
    // The payload that was not cut is freed with the packet.
    pool.free(packet);
    let mut whole = pieces.remove(0);
    for piece in pieces {
        whole.append_frags_of(&mut pool, piece).expect("as many frags as before");
    }
    assert_eq!(whole.to_vec(), bytes[..25_000]);
    assert_eq!(whole.frag_count(), 4, "the parts of one slice are joined again");
    drop(whole);
    drop(pool);
    assert_eq!(domain.balance(), 0);
}

proptest! {
    #[test]
    fn cut_pieces_are_the_bytes_of_the_packet(
        parts in prop::collection::vec(1..4000usize, 1..12),
        summed in 1..2000u16,
        size in 1..2000u16,
        same: bool,
        headers in 0..100usize,
    ) {
        let (domain, mut pool) = pool();
        let mut packet = pool.alloc().expect("memory");
        let bytes = pattern(parts.iter().sum());
        let size = usize::from(if same { summed } else { size });
        let mut at = 0;
        for part in parts {
            prop_assert_eq!(packet.append_in_pieces(&mut pool, &bytes[at..at + part], summed), part);
            at += part;
        }
        check_sums(&packet, "as it was filled");
        packet.push(headers).fill(9);
        let mut cutter = packet.cut(&mut pool, headers, size);
        let mut out = Vec::new();
        while let Some((piece, sum)) = cutter.next_piece(&mut pool) {
            let part = piece.to_vec();
            if let Some(sum) = sum {
                prop_assert_eq!(sum, Sum::of(&part));
            }
            prop_assert!(part.len() == size || cutter.left() == 0);
            out.extend(part);
            pool.free(piece);
        }
        prop_assert_eq!(out, bytes);
        pool.free(packet);
        prop_assert_eq!(domain.balance(), 0);
    }

    /// After any operation on a packet, the sums it still has are right.
    #[test]
    fn sums_are_right_or_discarded(
        piece in 1..700u16,
        steps in prop::collection::vec((0..7u8, 0..4000usize), 1..20),
    ) {
        let (domain, mut pool) = pool();
        let mut packet = pool.alloc().expect("memory");
        let mut expected = Vec::new();
        for (step, n) in steps {
            let aligned = n / usize::from(piece) * usize::from(piece);
            match step {
                0..=2 => {
                    let bytes = pattern(n);
                    let taken = packet.append_in_pieces(&mut pool, &bytes, piece);
                    expected.extend(&bytes[..taken]);
                }
                3 => {
                    let at = if n % 2 == 0 { aligned } else { n }.min(expected.len());
                    packet.advance(at);
                    expected.drain(..at);
                }
                4 => {
                    let at = if n % 2 == 0 { aligned } else { n }.min(expected.len());
                    let rest = packet.split_off(&mut pool, at).expect("memory");
                    check_sums(&rest, "the rest");
                    let rest_bytes = expected.split_off(at);
                    prop_assert_eq!(rest.to_vec(), &rest_bytes[..]);
                    if n % 3 == 0 {
                        pool.free(core::mem::replace(&mut packet, rest));
                        expected = rest_bytes;
                    } else {
                        pool.free(rest);
                    }
                }
                5 => {
                    packet.truncate(n);
                    expected.truncate(n);
                }
                _ => {
                    let taken = packet.append(&mut pool, &[7; 300]);
                    expected.extend(&[7; 300][..taken]);
                }
            }
            check_sums(&packet, "after a step");
            prop_assert_eq!(packet.to_vec(), &expected[..]);
        }
        pool.free(packet);
        prop_assert_eq!(domain.balance(), 0);
    }
}

/// A packet and its expected bytes.
type Known = (Packet, Vec<u8>);

/// Applies operation `step` with parameter `n` to one packet of `set`: headers are pushed and
/// pulled, pages lent, packets cloned, split, joined and cut up.
fn change(pool: &mut Pool, pages: &Pages, set: &mut Vec<Known>, (step, n): (u8, usize)) {
    let (mut packet, mut bytes) = set.swap_remove(n % set.len());
    match step {
        0 => {
            let count = (n % 60).min(packet.headroom());
            packet.push(count).fill(3);
            bytes.splice(..0, vec![3; count]);
        }
        1 if packet.pull(n % 100) => drop(bytes.drain(..n % 100)),
        2 => {
            // The bytes are the same whether or not there is room in the head.
            let _ = packet.require_linear(n % 140);
        }
        3 => {
            let taken = pages.range(n..n + n % 300).append_in_pieces(&mut packet, pool, 100);
            bytes.resize(bytes.len() + taken, 0);
        }
        4 => {
            let clone = packet.clone_in(pool).expect("memory");
            set.push((clone, bytes.clone()));
        }
        5 if !set.is_empty() => {
            let (mut front, mut front_bytes) = set.swap_remove(n % set.len());
            match front.append_packet(pool, packet) {
                Ok(()) => {
                    front_bytes.extend(bytes);
                    return set.push((front, front_bytes));
                }
                Err(back) => packet = back,
            }
            set.push((front, front_bytes));
        }
        6 => {
            let headers = packet.linear().len().min(50);
            let size = if n.is_multiple_of(2) { 100 } else { n % 700 + 1 };
            let mut cutter = packet.cut(pool, headers, size);
            let (piece, sum) = cutter.next_piece(pool).unzip();
            let end = bytes.len().min(headers + size);
            if let Some(sum) = sum.flatten() {
                assert_eq!(sum, Sum::of(&bytes[headers..end]));
            }
            set.extend(piece.map(|piece| (piece, bytes[headers..end].to_vec())));
        }
        7 => {
            let at = if n.is_multiple_of(2) { n / 100 * 100 } else { n }.min(bytes.len());
            // If the linear bytes would need a frag too many, the packet is not split.
            if let Some(rest) = packet.split_off(pool, at) {
                set.push((rest, bytes.split_off(at)));
            }
        }
        _ => {
            let new = pattern(n);
            let taken = packet.append_in_pieces(pool, &new, 100);
            bytes.extend(&new[..taken]);
        }
    }
    set.push((packet, bytes));
}

proptest! {
    /// The same property for packets that share pages, when any of them changes.
    #[test]
    fn sums_of_packets_that_share_pages_are_right_or_discarded(
        steps in prop::collection::vec((0..12u8, 0..3000usize), 1..40),
    ) {
        let (domain, mut pool) = pool();
        let pages = Pages::new(&mut pool, 4000).expect("memory");
        let mut set: Vec<Known> = vec![(pool.alloc().expect("memory"), Vec::new())];
        for step in steps {
            change(&mut pool, &pages, &mut set, step);
            for (packet, bytes) in &set {
                prop_assert_eq!(&packet.to_vec(), bytes);
                check_sums(packet, "one packet of the set has changed");
            }
        }
        set.into_iter().for_each(|(packet, _)| pool.free(packet));
        prop_assert!(pages.is_idle());
        drop(pages);
        pool.drain_returns();
        prop_assert_eq!(domain.balance(), 0);
    }
}
