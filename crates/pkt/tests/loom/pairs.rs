//! An original and its companion: the fclone pair.

use loom::thread;
use pkt::FreeMode;

use crate::rig::{DESCRIPTORS, assert_complete, crossings, domain, model, pools};

/// The companion's descriptor moves to another home than the original's.
#[test]
fn the_pool_that_frees_a_pair_last_keeps_its_descriptors() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Unified);
        let packet = here.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut here).expect("memory");
        let (crossing, crossed) = crossings();
        let other = thread::spawn(move || {
            crossed.pass();
            there.free(clone);
            crossed.pass();
            let mut reused = there.alloc().expect("memory");
            reused.push(20).fill(1);
            there.free(reused);
        });
        crossing.pass();
        here.free(packet);
        crossing.pass();
        let mut reused = here.alloc().expect("memory");
        reused.push(20).fill(2);
        here.free(reused);
        other.join().expect("no panic");
        drop(here);
        assert_eq!(domain.balance(), 0);
    });
}

#[test]
fn both_halves_of_a_pair_are_freed_at_once() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        assert!(packet.clone_busy());
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(clone);
            there.pass();
        });
        crossing.pass();
        pool.free(packet);
        crossing.pass();
        other.join().expect("no panic");
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_pair_is_used_again_once_the_clone_is_freed() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(clone);
            there.pass();
        });
        crossing.pass();
        let busy = packet.clone_busy();
        crossing.pass();
        let again = packet.clone_in(&mut pool).expect("memory");
        crossing.pass();
        assert!(busy || packet.clone_busy(), "not busy, so the next clone is the companion");
        other.join().expect("no panic");
        pool.free(packet);
        drop(again);
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_clone_is_orphaned_while_its_original_is_freed() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let mut clone = packet.clone_in(&mut pool).expect("memory");
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            // The thread of the peer: the clone has been sent and is still read.
            there.pass();
            clone.orphan();
            there.pass();
            clone.push(20).fill(1);
            drop(clone);
        });
        crossing.pass();
        pool.free(packet);
        crossing.pass();
        other.join().expect("no panic");
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_pair_is_used_again_once_the_clone_mark_is_dropped() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let mut clone = packet.clone_in(&mut pool).expect("memory");
        let mark = clone.take_clone_mark();
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(mark);
            there.pass();
        });
        crossing.pass();
        let busy = packet.clone_busy();
        crossing.pass();
        let again = packet.clone_in(&mut pool).expect("memory");
        crossing.pass();
        assert!(busy || packet.clone_busy(), "not busy, so the next clone is the companion");
        other.join().expect("no panic");
        pool.free(packet);
        drop((clone, again));
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_pair_is_freed_by_two_other_threads() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut packets: Vec<_> = (2..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
        let mut packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        let first = thread::spawn(move || {
            packet.push(20).fill(1);
            drop(packet);
        });
        let second = thread::spawn(move || drop(clone));
        let mut reused = pool.alloc().expect("memory");
        reused.push(20).fill(2);
        packets.push(reused);
        first.join().expect("no panic");
        second.join().expect("no panic");
        packets.into_iter().for_each(|packet| pool.free(packet));
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}
