//! Properties of a packet, one per test.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::*;
use crate::checksum::Sum;
use crate::pool::{Domain, DomainConfig, Pool};

mod condense;
mod pieces;

fn pool() -> (Domain, Pool) {
    let domain = Domain::new(DomainConfig::default());
    let pool = domain.pool();
    (domain, pool)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + i / 251) % 256).expect("modulo")).collect()
}

/// Makes a packet whose bytes are all in frags of `frag` bytes.
fn in_frags(pool: &mut Pool, bytes: &[u8], frag: usize) -> Packet {
    let mut packet = pool.alloc().expect("memory");
    for part in bytes.chunks(frag) {
        packet.append_to_pages(pool, part, |to, from| to.copy_from_slice(from));
        // A slice of another packet in between prevents the next slice from extending this one.
        let mut other = pool.alloc().expect("memory");
        other.append_to_pages(pool, b"x", |to, from| to.copy_from_slice(from));
        pool.free(other);
    }
    assert_eq!(packet.len(), bytes.len());
    packet
}

#[test]
fn headers_are_pushed_and_pulled() {
    let (domain, mut pool) = pool();
    let mut packet = pool.alloc_from(b"payload").expect("memory");
    assert_eq!(packet.headroom(), usize::from(HEADROOM));
    assert_eq!(packet.tailroom(), COPYBREAK - 7);
    packet.push(4).copy_from_slice(b"tcp:");
    packet.set_transport_header();
    packet.push(3).copy_from_slice(b"ip:");
    packet.set_network_header();
    assert_eq!(packet.linear(), b"ip:tcp:payload");
    assert!(packet.pull(7));
    assert!(!packet.pull(8));
    assert_eq!(packet.linear(), b"payload");
    assert_eq!(packet.network_header(), b"ip:tcp:payload");
    assert_eq!(packet.transport_header(), b"tcp:payload");
    packet.linear_mut()[0] = b'P';
    assert_eq!(packet.to_vec(), b"Payload");
    assert_eq!(packet.head_from(300), b"");
    pool.free(packet);
    assert_eq!(domain.balance(), 0);
}

#[test]
#[should_panic(expected = "headroom")]
fn push_without_headroom_panics() {
    let (_domain, mut pool) = pool();
    let mut packet = pool.alloc().expect("memory");
    packet.push(usize::from(HEADROOM) + 1);
}

#[test]
fn put_fills_the_tailroom() {
    let (_domain, mut pool) = pool();
    let mut packet = pool.alloc().expect("memory");
    packet.put(COPYBREAK).expect("room").fill(1);
    assert!(packet.put(1).is_none());
    assert_eq!(packet.append(&mut pool, &[2]), 1);
    assert_eq!((packet.frag_count(), packet.len()), (1, COPYBREAK + 1));
    packet.truncate(10);
    assert!(packet.put(1).is_some(), "without frags the tailroom can be used again");
}

#[test]
fn appended_bytes_extend_the_last_frag() {
    let (_domain, mut pool) = pool();
    let bytes = pattern(60_000);
    let mut packet = pool.alloc().expect("memory");
    for part in bytes.chunks(1000) {
        assert_eq!(packet.append(&mut pool, part), part.len());
    }
    assert_eq!(packet.to_vec(), bytes);
    assert!(packet.frag_count() <= 3, "{packet:?}");
    assert_eq!(packet.truesize() as usize, DESCRIPTOR_BYTES + 60_000);
}

#[test]
fn append_stops_at_the_last_frag() {
    let (_domain, mut pool) = pool();
    let mut packet = in_frags(&mut pool, &pattern(FRAGS_MAX), 1);
    assert_eq!(packet.frag_count(), FRAGS_MAX);
    assert_eq!(packet.append(&mut pool, b"more"), 0);
    assert_eq!(packet.to_vec(), pattern(FRAGS_MAX));
}

#[test]
fn append_and_copy_return_the_sum_of_the_bytes() {
    let (_domain, mut pool) = pool();
    for len in [0, 1, 100, 129, 1461, 40_001] {
        let bytes = pattern(len);
        let mut packet = pool.alloc().expect("memory");
        let (taken, sum) = packet.append_and_sum(&mut pool, &bytes);
        assert_eq!((taken, sum.fold()), (len, Sum::of(&bytes).fold()));
        let mut copy = vec![0; len];
        let (copied, sum) = packet.copy_to_and_sum(0, &mut copy);
        assert_eq!((copied, sum.fold(), &copy), (len, Sum::of(&bytes).fold(), &bytes));
    }
}

#[test]
fn require_linear_copies_only_the_requested_bytes() {
    let (_domain, mut pool) = pool();
    let bytes = pattern(500);
    let mut packet = in_frags(&mut pool, &bytes, 30);
    assert!(packet.require_linear(66));
    assert_eq!(packet.linear(), &bytes[..66]);
    assert_eq!(packet.to_vec(), bytes);
    assert!(packet.require_linear(20));
    assert!(!packet.require_linear(501), "longer than the packet");
    assert!(!packet.require_linear(COPYBREAK + 1), "longer than the head");
    assert_eq!(packet.linear().len(), 66);
}

#[test]
fn advance_and_truncate_cross_frags() {
    let (_domain, mut pool) = pool();
    let bytes = pattern(300);
    for from in 0..=300 {
        for to in [from, (from + 300) / 2, 300] {
            let mut packet = in_frags(&mut pool, &bytes, 40);
            assert!(packet.require_linear(10));
            let truesize = packet.truesize();
            packet.truncate(to);
            packet.advance(from);
            assert_eq!(packet.to_vec(), &bytes[from..to]);
            assert_eq!(packet.len(), to - from);
            assert_eq!(packet.truesize(), truesize);
            pool.free(packet);
        }
    }
}

#[test]
fn a_split_moves_the_charge_of_the_moved_pages() {
    let (domain, mut pool) = pool();
    let bytes = pattern(300);
    for at in 0..=300 {
        let mut packet = in_frags(&mut pool, &bytes, 40);
        assert!(packet.require_linear(10));
        packet.meta_mut().flow_hash = 7;
        let truesize = packet.truesize() as usize;
        let tail = packet.split_off(&mut pool, at).expect("memory");
        assert_eq!(packet.to_vec(), &bytes[..at]);
        assert_eq!(tail.to_vec(), &bytes[at..]);
        assert_eq!((packet.truesize() + tail.truesize()) as usize, truesize + DESCRIPTOR_BYTES);
        assert_eq!(tail.meta().flow_hash, 7);
        assert!(packet.split_off(&mut pool, at + 1).is_none());
        pool.free(packet);
        pool.free(tail);
    }
    assert_eq!(domain.balance(), 0);
}

#[test]
fn clones_have_their_own_headers() {
    let (domain, mut pool) = pool();
    let bytes = pattern(5000);
    let mut packet = pool.alloc_from(&bytes).expect("memory");
    packet.push(3).copy_from_slice(b"one");
    packet.meta_mut().flow_hash = 9;
    assert!(!packet.is_cloned());
    let mut clone = packet.clone_in(&mut pool).expect("memory");
    assert!(packet.is_cloned() && clone.is_cloned() && !packet.clone_busy());
    clone.linear_mut().copy_from_slice(b"two");
    assert_eq!(packet.linear(), b"one");
    assert_eq!(clone.meta(), packet.meta());
    assert_eq!(clone.truesize(), packet.truesize());
    drop(packet);
    assert_eq!(clone.to_vec()[3..], bytes);
    let copy = clone.deep_copy(&mut pool).expect("memory");
    assert!(!copy.is_cloned());
    assert_eq!(copy.to_vec(), clone.to_vec());
    drop((clone, copy));
    assert_eq!(domain.balance(), 0);
}

#[test]
fn clones_of_ranges_share_the_payload() {
    let (domain, mut pool) = pool();
    let bytes = pattern(200);
    let mut packet = in_frags(&mut pool, &bytes, 37);
    assert!(packet.require_linear(5));
    for offset in 0..=200 {
        for len in [0, 1, 36, 37, 38, 200 - offset] {
            let clone = packet.clone_range(&mut pool, offset, len);
            let expected = bytes.get(offset..offset + len);
            assert_eq!(clone.map(|clone| clone.to_vec()).as_deref(), expected);
        }
    }
    assert!(packet.clone_range(&mut pool, usize::MAX, 2).is_none());
    drop(packet);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn merging_moves_the_frags() {
    let (domain, mut pool) = pool();
    let mut packet = in_frags(&mut pool, b"abc", 1);
    let mut other = in_frags(&mut pool, b"-def", 2);
    assert!(other.require_linear(1));
    let mut other = packet.append_frags_of(&mut pool, other).expect_err("a linear byte");
    assert!(other.pull(1));
    packet.append_frags_of(&mut pool, other).expect("merged");
    assert_eq!(packet.to_vec(), b"abcdef");
    assert_eq!(packet.truesize() as usize, DESCRIPTOR_BYTES + 6);
    let full = in_frags(&mut pool, &pattern(FRAGS_MAX), 1);
    assert!(packet.append_frags_of(&mut pool, full).is_err());
    drop(packet);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn merged_pieces_of_a_packet_take_no_more_frags_than_the_packet() {
    let (domain, mut pool) = pool();
    let bytes = pattern(64_000);
    let mut whole = pool.alloc().expect("memory");
    assert_eq!(whole.append(&mut pool, &bytes), bytes.len());
    let mut merged = whole.clone_range(&mut pool, 0, 1000).expect("a piece");
    for at in (1000..64_000).step_by(1000) {
        let piece = whole.clone_range(&mut pool, at, 1000).expect("a piece");
        merged.append_frags_of(&mut pool, piece).expect("contiguous");
    }
    assert_eq!(merged.to_vec(), bytes);
    assert_eq!(merged.frag_count(), whole.frag_count());
    pool.free(whole);
    assert_eq!(merged.to_vec(), bytes, "the merged packet holds the pages it covers");
    pool.free(merged);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn a_piece_that_does_not_continue_the_last_frag_takes_a_new_one() {
    let (domain, mut pool) = pool();
    let mut whole = pool.alloc().expect("memory");
    assert_eq!(whole.append(&mut pool, &pattern(3000)), 3000);
    let mut merged = whole.clone_range(&mut pool, 0, 1000).expect("a piece");
    let truesize = merged.truesize();
    for (at, frags) in [(1000, 1), (0, 2), (1000, 2), (2000, 2), (2000, 3)] {
        let piece = whole.clone_range(&mut pool, at, 1000).expect("a piece");
        merged.append_frags_of(&mut pool, piece).expect("room");
        assert_eq!(merged.frag_count(), frags, "from {at} on");
    }
    assert_eq!(merged.truesize(), truesize + 5000);
    let expected: Vec<u8> = [0, 1, 0, 1, 2, 2]
        .iter()
        .flat_map(|part| pattern(3000)[part * 1000..][..1000].to_vec())
        .collect();
    assert_eq!(merged.to_vec(), expected);
    drop((whole, merged));
    assert_eq!(domain.balance(), 0);
}

#[test]
fn append_packet_merges_or_changes_nothing() {
    let (domain, mut pool) = pool();
    let mut packet = in_frags(&mut pool, b"abc", 1);
    let mut mixed = in_frags(&mut pool, b"-def", 2);
    assert!(mixed.require_linear(1));
    packet.append_packet(&mut pool, mixed).expect("merged");
    assert_eq!(packet.to_vec(), b"abc-def");
    let small = pool.alloc_from(b"ghi").expect("memory");
    packet.append_packet(&mut pool, small).expect("merged");
    assert_eq!(packet.to_vec(), b"abc-defghi");
    let truesize = packet.truesize();
    let mut full = in_frags(&mut pool, &pattern(FRAGS_MAX), 1);
    assert!(full.require_linear(1));
    let full = packet.append_packet(&mut pool, full).expect_err("too many frags");
    assert_eq!(full.to_vec(), pattern(FRAGS_MAX));
    assert_eq!((packet.to_vec().as_slice(), packet.truesize()), (&b"abc-defghi"[..], truesize));
    drop((packet, full));
    assert_eq!(domain.balance(), 0);
}

#[test]
fn either_half_of_an_fclone_pair_can_be_freed_first() {
    let (domain, mut pool) = pool();
    for (through_pool, original_first) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let mut packet = pool.alloc_fclone().expect("memory");
        packet.append(&mut pool, &pattern(1000));
        assert!(!packet.clone_busy());
        let clone = packet.clone_in(&mut pool).expect("memory");
        assert!(packet.clone_busy() && packet.is_cloned() && !clone.clone_busy());
        let second = packet.clone_in(&mut pool).expect("a stand-alone clone");
        let of_clone = clone.clone_in(&mut pool).expect("memory");
        assert!(!of_clone.clone_busy() && !second.clone_busy());
        let mut free = |packet| if through_pool { pool.free(packet) } else { drop(packet) };
        free(second);
        free(of_clone);
        if original_first {
            free(packet);
            assert_eq!(clone.to_vec(), pattern(1000));
            free(clone);
        } else {
            free(clone);
            assert!(!packet.clone_busy());
            free(packet);
        }
        assert_eq!(domain.balance(), 0);
    }
    pool.drain_returns();
    let held: Vec<_> = core::iter::repeat_with(|| pool.alloc()).take(93).collect();
    assert!(held.iter().all(Option::is_some));
    assert_eq!(
        pool.stats().slab_refill,
        2,
        "one slab of descriptors and one of pages: no descriptor was lost"
    );
}

#[test]
fn a_clone_apart_equals_a_clone_but_does_not_make_the_original_busy() {
    let (domain, mut pool) = pool();
    let mut original = pool.alloc_fclone().expect("memory");
    original.append(&mut pool, &[7; 3000]);
    let apart = original.clone_apart(&mut pool).expect("memory");
    assert_eq!((apart.to_vec(), apart.truesize()), (original.to_vec(), original.truesize()));
    assert!(original.is_cloned() && !original.clone_busy());
    let companion = original.clone_in(&mut pool).expect("memory");
    assert!(original.clone_busy(), "the clone becomes the companion");
    for packet in [apart, original, companion] {
        pool.free(packet);
    }
    assert_eq!(domain.balance(), 0);
}

#[test]
fn an_orphaned_clone_does_not_keep_its_original_busy() {
    let (domain, mut pool) = pool();
    let mut packet = pool.alloc_fclone().expect("memory");
    packet.append(&mut pool, &pattern(1000));
    let mut first = packet.clone_in(&mut pool).expect("memory");
    first.orphan();
    assert!(!packet.clone_busy() && packet.is_cloned(), "the pages are still shared");
    let mut second = packet.clone_in(&mut pool).expect("memory");
    assert!(packet.clone_busy(), "the next clone is the companion");
    first.orphan();
    pool.free(first);
    assert!(packet.clone_busy(), "a half is released only once");
    let mark = second.take_clone_mark();
    assert!(second.take_clone_mark().is_none() && packet.take_clone_mark().is_none());
    pool.free(second);
    assert!(packet.clone_busy(), "the device has not completed");
    drop(mark);
    assert!(!packet.clone_busy());
    let mut third = packet.clone_in(&mut pool).expect("memory");
    let mark = third.take_clone_mark();
    pool.free(packet);
    assert_eq!(third.to_vec(), pattern(1000));
    pool.free(third);
    drop(mark);
    pool.drain_returns();
    assert_eq!(domain.balance(), 0);
}

#[derive(Default)]
struct Owner(AtomicU32);

impl PacketOwner for Owner {
    fn on_complete(&self, truesize: u32) {
        self.0.fetch_add(truesize, Ordering::Relaxed);
    }
}

#[test]
fn the_owner_gets_back_the_amount_it_was_charged() {
    let (_domain, mut pool) = pool();
    let owner = Arc::new(Owner::default());
    let mut packet = pool.alloc_from(&pattern(1000)).expect("memory");
    let charge = packet.truesize();
    packet.set_owner(Arc::<Owner>::clone(&owner));
    let clone = packet.clone_in(&mut pool).expect("memory");
    assert!(packet.has_owner() && !clone.has_owner());
    drop(clone);
    packet.append(&mut pool, &pattern(1000));
    assert_eq!(owner.0.load(Ordering::Relaxed), 0);
    packet.orphan();
    assert_eq!(owner.0.swap(0, Ordering::Relaxed), charge);
    packet.set_owner(Arc::<Owner>::clone(&owner));
    pool.free(packet);
    assert_eq!(owner.0.swap(0, Ordering::Relaxed), charge + 1000);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn a_reused_descriptor_keeps_no_state() {
    let (_domain, mut pool) = pool();
    let mut packet = pool.alloc_from(&pattern(1000)).expect("memory");
    packet.push(20);
    packet.meta_mut().flow_hash = 3;
    packet.meta_mut().gso.segs = 3;
    pool.free(packet);
    let packet = pool.alloc().expect("memory");
    assert_eq!(packet.meta(), &PacketMeta::default());
    assert_eq!(
        (packet.len(), packet.frag_count(), packet.headroom()),
        (0, 0, usize::from(HEADROOM))
    );
    assert_eq!(packet.truesize() as usize, DESCRIPTOR_BYTES);
    assert!(!packet.is_cloned() && !packet.clone_busy() && !packet.has_owner());
}

#[test]
fn debug_is_one_line() {
    let (_domain, mut pool) = pool();
    let packet = pool.alloc_from(b"abc").expect("memory");
    assert_eq!(format!("{packet:?}"), "Packet(3 bytes, 3 linear at 128, 0 frags, truesize 704)");
}
