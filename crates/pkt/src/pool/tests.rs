//! Memory returns to its home pool from wherever it is freed.

use std::sync::mpsc;
use std::thread;

use arrayvec::ArrayVec;

use super::*;
use crate::list::PacketList;
use crate::packet::DESCRIPTOR_BYTES;

#[test]
fn alloc_reuses_the_descriptor_freed_last() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let packet = pool.alloc().expect("memory");
    let address = packet.linear().as_ptr();
    pool.free(packet);
    assert_eq!(pool.alloc().expect("memory").linear().as_ptr(), address);
    assert_eq!(pool.stats().slab_refill, 1);
}

#[test]
fn the_limit_of_a_domain_is_kept() {
    let domain = Domain::new(DomainConfig { max_bytes: 100_000 });
    let mut pool = domain.pool();
    let mut packets: Vec<_> = core::iter::from_fn(|| pool.alloc()).collect();
    assert!(packets.len() > 50);
    assert!(domain.live_bytes() <= 100_000);
    let last = packets.last_mut().expect("not empty");
    assert_eq!(last.append(&mut pool, &[0; 1000]), 0, "no room for a slab of pages");
    assert!(pool.alloc_from(&[0; 1000]).is_none() && pool.rx_slot(1500).is_none());
    assert!(pool.stats().alloc_failed > 0);
    packets.pop();
    assert!(pool.alloc().is_some(), "a freed packet is found on the return list");
    drop(packets);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn packets_freed_by_another_pool_return_to_their_home() {
    let domain = Domain::new(DomainConfig::default());
    let (mut here, mut there) = (domain.pool(), domain.pool());
    there.set_free_mode(FreeMode::Defer { max: 0 });
    for _ in 0..1000 {
        let packet = here.alloc_from(&[7; 3000]).expect("memory");
        there.free(packet);
    }
    assert_eq!(there.stats().free_remote, 1000);
    assert_eq!(there.stats().slab_refill, 0);
    assert_eq!(here.stats().returned, 1000);
    assert_eq!(here.stats().slab_refill, 2, "{here:?}");
    assert_eq!(domain.balance(), 0);
    assert!(here.has_returns());
    assert!(here.drain_returns() > 0 && !here.has_returns());
}

mod modes;
mod trim;

#[test]
fn every_page_returns_from_clones_freed_anywhere() {
    let domain = Domain::new(DomainConfig::default());
    let (mut here, mut there) = (domain.pool(), domain.pool());
    let mut held = PacketList::new();
    for round in 0..200_usize {
        let packet = here.alloc_from(&vec![1; 1 + round * 331 % 60_000]).expect("memory");
        let clone = packet.clone_in(&mut there).expect("memory");
        held.push_back(packet);
        held.push_back(clone);
        if round % 7 == 0 {
            while let Some(packet) = held.pop_front() {
                match held.len() % 3 {
                    0 => here.free(packet),
                    1 => there.free(packet),
                    _ => drop(packet),
                }
            }
        }
    }
    held.free_all(&mut here);
    assert_eq!(domain.balance(), 0);
    drop((here, there));
    let stats = domain.stats();
    assert_eq!((stats.packets_live, stats.pages_live), (0, 0));
    assert_eq!((stats.pools, stats.pools_idle), (2, 2));
}

#[test]
fn a_thread_reuses_the_pool_that_an_ended_thread_left() {
    let domain = Domain::new(DomainConfig::default());
    let (send, receive) = mpsc::channel::<Packet>();
    for _ in 0..8 {
        let (in_worker, send) = (domain.clone(), send.clone());
        let worker = thread::spawn(move || {
            let mut pool = in_worker.pool();
            for len in 0..500 {
                send.send(pool.alloc_from(&vec![9; len * 10]).expect("memory")).expect("receiver");
            }
        });
        worker.join().expect("worker");
        receive.try_iter().for_each(drop);
        assert_eq!(domain.balance(), 0);
    }
    let stats = domain.stats();
    assert_eq!((stats.pools, stats.pools_idle, stats.pages_live), (1, 1, 0));
    let one_round = (500 * DESCRIPTOR_BYTES).next_multiple_of(64 * 1024)
        + (500 * 2500_usize).next_multiple_of(256 * 1024);
    assert!(stats.bytes <= one_round + 512 * 1024, "{stats:?}");
}

#[test]
fn packets_sent_to_another_thread_keep_their_bytes() {
    let domain = Domain::new(DomainConfig::default());
    let (send, receive) = mpsc::sync_channel::<Packet>(100);
    let consumer = {
        let domain = domain.clone();
        thread::spawn(move || {
            let mut pool = domain.pool();
            let mut bytes = 0;
            for packet in receive {
                let first = packet.copy_to(0, &mut [0]);
                bytes += packet.len() * first;
                assert!(packet.slices().flatten().all(|&byte| byte == 0x5a));
                match bytes % 3 {
                    0 => drop(packet),
                    _ => pool.free(packet),
                }
            }
            bytes
        })
    };
    let mut pool = domain.pool();
    let mut expected = 0;
    for round in 0..20_000_usize {
        let len = 1 + round * 7919 % 4000;
        expected += len;
        let packet = if round % 2 == 0 { pool.alloc_fclone() } else { pool.alloc() };
        let mut packet = packet.expect("memory");
        assert_eq!(packet.append(&mut pool, &vec![0x5a; len]), len);
        if round % 2 == 0 {
            send.send(packet.clone_in(&mut pool).expect("memory")).expect("consumer");
        } else {
            send.send(packet).expect("consumer");
        }
    }
    drop(send);
    assert_eq!(consumer.join().expect("consumer"), expected);
    assert_eq!(domain.balance(), 0);
    assert!(domain.live_bytes() < 8 << 20, "memory is reused: {domain:?}");
    drop(pool);
    assert_eq!(domain.stats().pages_live, 0);
}

#[test]
fn packets_stay_valid_after_their_domain_is_dropped() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let mut packet = pool.alloc_from(&[3; 2000]).expect("memory");
    let clone = packet.clone_in(&mut pool).expect("memory");
    drop((pool, domain));
    assert!(packet.require_linear(100));
    packet.advance(200);
    assert!(packet.slices().flatten().all(|&byte| byte == 3));
    drop(packet);
    assert_eq!(clone.len(), 2000);
    drop(clone);
}

#[test]
fn a_packet_of_a_slot_holds_the_received_bytes() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    for (max, len) in [
        (1514, 60),
        (1514, 224),
        (1514, 225),
        (1514, 1514),
        (65_562, 0),
        (65_562, 65_562),
        (65_562, 40_000),
    ] {
        let mut slot = pool.rx_slot(max).expect("memory");
        let mut io = ArrayVec::<_, 6>::new();
        slot.io_slices(&mut io);
        assert_eq!(io.iter().map(|part| part.len()).sum::<usize>(), max);
        let mut next = 0..=u8::MAX;
        let mut expected = Vec::new();
        for byte in io.iter_mut().flat_map(|part| part.iter_mut()).take(len) {
            *byte = next.next().unwrap_or_else(|| {
                next = 0..=u8::MAX;
                255
            });
            expected.push(*byte);
        }
        drop(io);
        let mut packet = slot.finish(&mut pool, len);
        assert_eq!(packet.to_vec(), expected);
        assert_eq!(packet.linear().len(), if len <= 224 { len } else { 0 });
        assert!(packet.require_linear(len.min(100)));
        assert_eq!(packet.to_vec(), expected);
        pool.free(packet);
    }
    drop(pool);
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
}

#[test]
fn a_slot_returns_its_unused_memory() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    // Two queues keep a slot each and fill them in turn.
    let mut slots =
        [pool.rx_slot(65_562).expect("memory"), pool.rx_slot(65_562).expect("memory")].map(Some);
    let mut packets = Vec::new();
    for round in 0..40 {
        let slot = &mut slots[round % 2];
        packets.push(slot.take().expect("kept").finish(&mut pool, 1500));
        *slot = pool.rx_slot(65_562);
    }
    let opened = domain.stats().pages_live;
    assert!(opened <= 10, "60 kB of packets and two slots: {opened} pages");
    let [first, second] = slots.map(|slot| slot.expect("kept"));
    first.cancel(&mut pool);
    drop(second);
    drop(packets);
    drop(pool);
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
}
