use std::sync::Arc;

use crate::{Domain, DomainConfig, FRAGS_MAX, FreeMode, Packet, Pages, Payload, Pool, PoolKick};

const LEN: usize = 100_000;

fn filled(pool: &mut Pool) -> Pages {
    let mut pages = Pages::new(pool, LEN).expect("memory");
    fill(&mut pages, 0);
    pages
}

fn byte_at(at: usize, salt: u8) -> u8 {
    u8::try_from(at % 251).expect("below 251") ^ salt
}

fn fill(pages: &mut Pages, salt: u8) {
    let mut at = 0;
    for chunk in pages.chunks_mut().expect("no packet holds a page") {
        for byte in chunk {
            *byte = byte_at(at, salt);
            at += 1;
        }
    }
    assert_eq!(at, LEN);
}

fn expected(start: usize, end: usize) -> Vec<u8> {
    (start..end).map(|at| byte_at(at, 0)).collect()
}

fn packet_of(pool: &mut Pool, pages: &Pages, start: usize, end: usize) -> Packet {
    let mut packet = pool.alloc_fclone().expect("memory");
    assert_eq!(pages.range(start..end).append_to(&mut packet, pool), end - start);
    packet
}

#[test]
fn new_pages_are_zeroed_even_if_their_memory_was_used() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    drop(filled(&mut pool));
    // More bytes than the slab has in pages that were never used.
    let pages = Pages::new(&mut pool, 2 * LEN).expect("memory");
    assert!(pages.chunks().flatten().all(|byte| *byte == 0));
}

#[test]
fn a_packet_shares_any_range_without_copying() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let pages = filled(&mut pool);
    let addresses: Vec<_> = pages.chunks().map(|chunk| chunk.as_ptr_range()).collect();
    for (start, end) in [(0, 1), (31_000, 33_000), (1, LEN), (LEN - 1, LEN), (40_000, 40_000)] {
        let packet = packet_of(&mut pool, &pages, start, end);
        assert_eq!(packet.to_vec(), expected(start, end), "{start}..{end}");
        for part in packet.slices() {
            assert!(addresses.iter().any(|range| range.contains(&part.as_ptr())), "copied");
        }
        pool.free(packet);
    }
    drop(pages);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn adjacent_ranges_take_one_frag() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let pages = filled(&mut pool);
    let mut packet = pool.alloc().expect("memory");
    for at in (0..30_000).step_by(1000) {
        assert_eq!(pages.range(at..at + 1000).append_to(&mut packet, &mut pool), 1000);
    }
    assert_eq!((packet.frag_count(), packet.len()), (1, 30_000));
    assert_eq!(packet.to_vec(), expected(0, 30_000));
}

#[test]
fn a_packet_with_all_its_frags_refuses_a_range() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let pages = filled(&mut pool);
    let mut packet = pool.alloc().expect("memory");
    for at in 0..FRAGS_MAX {
        assert_eq!(pages.range(at * 2..at * 2 + 1).append_to(&mut packet, &mut pool), 1);
    }
    assert_eq!(pages.range(90..91).append_to(&mut packet, &mut pool), 0);
    pool.free(packet);
    assert!(pages.is_idle(), "a refused range holds no page");
}

#[test]
fn pages_held_by_a_packet_cannot_be_written() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut pages = filled(&mut pool);
    let packet = packet_of(&mut pool, &pages, 10, 20);
    let clone = packet.clone_in(&mut pool).expect("memory");
    pool.free(packet);
    assert!(!pages.is_idle() && pages.chunks_mut().is_none(), "the clone holds the page");
    pool.free(clone);
    fill(&mut pages, 0xff);
}

#[test]
fn recalled_pages_are_collected_in_order_with_their_bytes() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut pages = filled(&mut pool);
    // The packets are freed last to first, so that the pages return in another order than they lie.
    let packets: Vec<_> =
        (0..10).map(|i| packet_of(&mut pool, &pages, i * 10_000, (i + 1) * 10_000)).collect();
    pages.recall();
    assert!(!pages.is_idle() && !pages.collect());
    for packet in packets.into_iter().rev() {
        assert!(!pages.collect(), "{packet:?} still holds pages");
        pool.free(packet);
    }
    assert!(pages.collect() && pages.is_idle());
    assert_eq!(pages.chunks().flatten().copied().collect::<Vec<_>>(), expected(0, LEN));
    fill(&mut pages, 1);
    drop(pages);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn recalled_pages_can_be_written_once_all_are_returned() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut pages = filled(&mut pool);
    let packet = packet_of(&mut pool, &pages, 0, LEN);
    pages.recall();
    assert!(!pages.is_idle() && pages.chunks_mut().is_none());
    pool.free(packet);
    assert!(pages.is_idle() && pages.is_recalled());
    fill(&mut pages, 1);
    assert!(pages.is_idle() && !pages.is_recalled());
}

struct NoKick;

impl PoolKick for NoKick {
    fn kick(&self) {}
}

/// With `FreeMode::Defer`, a pool returns foreign packets to the pool that allocated them, which
/// frees them later. A lent page does not wait with its packet, because the owner of the page may
/// be waiting for it.
#[test]
fn the_return_of_lent_pages_is_not_deferred() {
    let domain = Domain::new(DomainConfig::default());
    let (mut here, mut there) = (domain.pool(), domain.pool());
    here.set_kick(Some(Arc::new(NoKick)));
    there.set_free_mode(FreeMode::Defer { max: 64 });
    let mut pages = filled(&mut here);
    let packet = packet_of(&mut here, &pages, 0, LEN);
    pages.recall();
    there.free(packet);
    assert!(pages.collect(), "the deferred packet holds no payload");
    drop(pages);
    here.drain_returns();
}

#[test]
fn a_waiting_thread_is_notified_when_the_last_packet_is_freed() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut pages = filled(&mut pool);
    let packet = packet_of(&mut pool, &pages, 0, LEN);
    let other = std::thread::spawn(move || drop(packet));
    pages.recall();
    while !pages.is_back() {
        let token = pages.events().prepare();
        if pages.is_back() {
            pages.events().cancel(token);
        } else {
            let _ = pages.events().wait(token, None);
        }
    }
    assert!(pages.collect());
    other.join().expect("no panic");
}

#[test]
fn dropped_pages_return_to_their_pool_with_the_last_packet() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut pages = filled(&mut pool);
    let packets =
        [packet_of(&mut pool, &pages, 0, LEN), packet_of(&mut pool, &pages, 50_000, 60_000)];
    pages.recall();
    assert!(!pages.collect());
    drop(pages);
    assert_ne!(domain.stats().pages_live, 0);
    packets.into_iter().for_each(|packet| pool.free(packet));
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
}

#[test]
#[should_panic(expected = "exceeds the pages")]
fn a_range_beyond_the_end_is_refused() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let pages = filled(&mut pool);
    let _ = pages.range(LEN..LEN + 1);
}

#[test]
fn a_read_ends_at_the_end_of_the_source() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let source = expected(0, LEN);
    let mut at = 0;
    let mut read = |room: &mut [u8]| {
        let got = room.len().min(source.len() - at);
        room[..got].copy_from_slice(&source[at..at + got]);
        at += got;
        Ok::<_, ()>(got)
    };
    let first = Pages::read_from(&mut pool, 70_000, &mut read).expect("no error").expect("bytes");
    let second = Pages::read_from(&mut pool, 70_000, &mut read).expect("no error").expect("bytes");
    assert_eq!((first.len(), second.len()), (70_000, 30_000));
    let both: Vec<_> = first.chunks().chain(second.chunks()).flatten().copied().collect();
    assert_eq!(both, source);
    assert!(Pages::read_from(&mut pool, 70_000, &mut read).expect("no error").is_none());
    drop((first, second));
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
}

#[test]
fn an_error_of_the_source_follows_the_bytes_before_it() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut calls = 0;
    let mut read = |room: &mut [u8]| {
        calls += 1;
        if calls == 1 { Ok(room.len()) } else { Err("broken") }
    };
    let pages = Pages::read_from(&mut pool, LEN, &mut read).expect("bytes first").expect("bytes");
    assert!(pages.len() < LEN);
    assert_eq!(Pages::read_from(&mut pool, LEN, &mut read).map(|_| ()), Err("broken"));
    drop(pages);
    assert_eq!(domain.stats().pages_live, 0);
}
