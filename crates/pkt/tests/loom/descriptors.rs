//! Descriptors that move between pools, homes, the depot and the domain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use pkt::{FreeMode, PacketOwner, PoolKick};

use crate::rig::{DESCRIPTORS, assert_complete, crossings, domain, model, pools};

#[test]
fn packets_dropped_by_another_thread_are_reused_by_their_pool() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut packets: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
        let (first, second) = (packets.pop(), packets.pop());
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            first.expect("memory").push(20).fill(1);
            there.pass();
            second.expect("memory").push(20).fill(2);
            there.pass();
        });
        crossing.pass();
        // The pool is empty: it takes descriptors from the return list, or else a slab.
        let mut reused = pool.alloc().expect("memory");
        reused.push(20).fill(3);
        crossing.pass();
        pool.free(reused);
        other.join().expect("no panic");
        packets.into_iter().for_each(|packet| pool.free(packet));
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_packet_freed_through_another_pool_returns() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Home);
        let packet = here.alloc().expect("memory");
        let mine = there.alloc().expect("memory");
        let other = thread::spawn(move || {
            there.free(packet);
            there.drain_returns();
            there
        });
        here.free(mine);
        here.drain_returns();
        let mut there = other.join().expect("no panic");
        here.drain_returns();
        there.drain_returns();
        assert_complete(&domain, &mut here);
        assert_complete(&domain, &mut there);
    });
}

#[test]
fn a_parcel_returns_to_its_home() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Defer { max: 0 });
        let packets: Vec<_> = (0..DESCRIPTORS).filter_map(|_| here.alloc()).collect();
        let (crossing, crossed) = crossings();
        let other = thread::spawn(move || {
            // In models three descriptors fill a parcel; the fourth starts another one, which the
            // drop of the pool sends.
            for mut packet in packets {
                packet.push(20).fill(1);
                there.free(packet);
                crossed.pass();
            }
        });
        crossing.pass();
        let mut reused = here.alloc().expect("memory");
        reused.push(20).fill(2);
        crossing.pass();
        here.free(reused);
        other.join().expect("no panic");
        here.drain_returns();
        assert_complete(&domain, &mut here);
    });
}

#[derive(Default)]
struct Kicks(AtomicU32);

impl PoolKick for Kicks {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// SC9: two cores send packets to their home while the home drains. Each packet is freed, either by
/// its home or, above the limit, by the sender, and there is at most one kick between two drains.
#[test]
fn deferred_packets_of_two_cores_are_all_freed() {
    model(|| {
        let domain = domain();
        let (mut here, mut first) = pools(&domain, FreeMode::Defer { max: 3 });
        let mut second = domain.pool();
        second.set_free_mode(FreeMode::Defer { max: 3 });
        let kicks = Arc::new(Kicks::default());
        here.set_kick(Some(Arc::<Kicks>::clone(&kicks)));
        let mut packets: Vec<_> = (0..3).filter_map(|_| here.alloc()).collect();
        let (one, two) = (packets.pop(), packets.pop());
        let other = thread::spawn(move || {
            first.free(one.expect("memory"));
            first.free(two.expect("memory"));
            first
        });
        second.free(packets.pop().expect("memory"));
        here.drain_returns();
        let mut first = other.join().expect("no panic");
        first.drain_returns();
        second.drain_returns();
        here.drain_returns();
        assert!(kicks.0.load(Ordering::Relaxed) <= 2, "at most once for each drain");
        assert_complete(&domain, &mut here);
    });
}

/// The home's thread drops its pool while a packet is sent to it. Either that thread frees the
/// packet, or the sender does.
#[test]
fn a_pool_is_dropped_while_packets_are_sent_to_it() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Defer { max: 64 });
        let packet = here.alloc().expect("memory");
        let other = thread::spawn(move || {
            there.free(packet);
            there.drain_returns();
        });
        drop(here);
        other.join().expect("no panic");
        assert_eq!(
            domain.stats().packets_deferred,
            0,
            "no packet waits for a pool without a thread"
        );
        assert_eq!(domain.balance(), 0);
    });
}

/// A descriptor changes its home with every pool that frees it, and the depot passes it on.
#[test]
fn descriptors_move_through_the_depot() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Unified);
        let packets: Vec<_> = (0..2 * DESCRIPTORS).filter_map(|_| here.alloc()).collect();
        let (crossing, crossed) = crossings();
        let other = thread::spawn(move || {
            // More descriptors than a magazine holds: some go to the depot.
            for mut packet in packets {
                packet.push(20).fill(1);
                there.free(packet);
                crossed.pass();
            }
            there
        });
        crossing.pass();
        // The pool is empty: it takes descriptors from the depot if there are some, or else a slab.
        let mut packet = here.alloc().expect("memory");
        packet.push(20).fill(2);
        here.free(packet);
        drop(other.join().expect("no panic"));
        assert_eq!(domain.balance(), 0);
    });
}

#[test]
fn a_pool_is_reused_while_its_packets_return() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut packets: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
        let packet = packets.pop();
        let in_other = domain.clone();
        drop(pool);
        let other = thread::spawn(move || {
            let mut pool = in_other.pool();
            let packet = pool.alloc().expect("memory");
            pool.free(packet);
        });
        drop(packet);
        drop(packets);
        other.join().expect("no panic");
        assert_eq!((domain.balance(), domain.stats().pools), (0, 1));
    });
}

#[derive(Default)]
struct Owner(AtomicU32);

impl PacketOwner for Owner {
    fn on_complete(&self, _truesize: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_domain_is_dropped_while_a_packet_is_freed() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let owner = Arc::new(Owner::default());
        let mut packet = pool.alloc_from(&[1; 200]).expect("memory");
        packet.set_owner(Arc::<Owner>::clone(&owner));
        // If all memory has been returned when the domain is dropped, it is freed; otherwise it is
        // leaked. In both cases the memory exists that the packet's return accesses.
        let other = thread::spawn(move || drop(packet));
        drop((pool, domain));
        other.join().expect("no panic");
        assert_eq!(owner.0.load(Ordering::Relaxed), 1);
    });
}
