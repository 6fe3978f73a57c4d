//! Treatment of packets freed by another pool than their home, mode by mode.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::packet::{PARCEL_LEN, PacketOwner};

/// Makes two pools that free by `mode`.
fn pools(mode: FreeMode) -> (Domain, Pool, Pool) {
    let domain = Domain::new(DomainConfig::default());
    let (mut here, mut there) = (domain.pool(), domain.pool());
    here.set_free_mode(mode);
    there.set_free_mode(mode);
    (domain, here, there)
}

#[derive(Default)]
struct Kicks(AtomicU64);

impl PoolKick for Kicks {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Owner(AtomicU64);

impl PacketOwner for Owner {
    fn on_complete(&self, _: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn home_mode_returns_every_descriptor_by_itself() {
    let (domain, mut here, mut there) = pools(FreeMode::Home);
    for round in 1..=10 {
        there.free(here.alloc().expect("memory"));
        assert!(here.has_returns());
        assert_eq!(here.drain_returns(), 1);
        assert_eq!((there.stats().free_remote, here.stats().returns_drained), (round, round));
    }
    assert_eq!(domain.balance(), 0);
}

/// Each of two cores allocates the packets that the other frees.
#[test]
fn unified_mode_takes_no_lock_when_two_cores_free_each_others_packets() {
    let (domain, mut here, mut there) = pools(FreeMode::Unified);
    let exchange = |here: &mut Pool, there: &mut Pool| {
        let (request, response) = (here.alloc().expect("memory"), there.alloc().expect("memory"));
        there.free(request);
        here.free(response);
    };
    exchange(&mut here, &mut there);
    let (before_here, before_there) = (here.stats(), there.stats());
    for _ in 0..10_000 {
        exchange(&mut here, &mut there);
    }
    for (pool, before) in [(&here, before_here), (&there, before_there)] {
        let stats = pool.stats();
        assert_eq!(stats.adopted - before.adopted, 10_000);
        assert_eq!((stats.free_remote, stats.returned, stats.returns_drained), (0, 0, 0));
        assert_eq!((stats.magazine_flushes, stats.magazine_refills), (0, 0));
        assert_eq!(stats.slab_shares, 1);
        assert_eq!((stats.locks - before.locks, stats.locks_contended), (0, 0), "no lock at all");
    }
    assert_eq!(domain.balance(), 0);
}

/// Packets freed without a pool return to the pool that allocated them; at the limit another pool
/// takes them from there.
#[test]
fn at_the_limit_a_pool_takes_descriptors_returned_to_another() {
    let domain = Domain::new(DomainConfig { max_bytes: 4 * 64 * 1024 });
    let (mut here, mut there) = (domain.pool(), domain.pool());
    let held: Vec<_> = core::iter::from_fn(|| here.alloc()).collect();
    assert!(held.len() > 300 && there.alloc().is_none());
    drop(held);
    let packet = there.alloc().expect("it was returned to the other pool");
    there.free(packet);
    drop((here, there));
    assert_eq!(domain.balance(), 0);
}

#[test]
fn descriptors_of_one_way_traffic_pass_the_depot_in_parcels() {
    let (domain, mut here, mut there) = pools(FreeMode::Unified);
    for _ in 0..10_000 {
        there.free(here.alloc().expect("memory"));
    }
    let (here_stats, there_stats) = (here.stats(), there.stats());
    let parcels = 10_000 / PARCEL_LEN as u64;
    assert!(
        (parcels - 10..=parcels + 1).contains(&there_stats.magazine_flushes),
        "{there_stats:?}"
    );
    assert!(here_stats.magazine_refills >= parcels - 12, "{here_stats:?}");
    assert!(here_stats.slab_refill <= 4, "a magazine and what is on its way: {here_stats:?}");
    assert_eq!((there_stats.free_remote, there_stats.adopted), (0, 10_000));
    // One lock per parcel and one per share of a slab. A new slab takes one more, which reserves
    // room for its descriptors in the depot.
    assert_eq!(there_stats.locks, there_stats.magazine_flushes);
    let for_slabs = here_stats.slab_shares + here_stats.slab_refill;
    assert_eq!(here_stats.locks, here_stats.magazine_refills + for_slabs);
    assert_eq!(here_stats.locks_contended + there_stats.locks_contended, 0);
    drop((here, there));
    assert_eq!(domain.balance(), 0);
    assert_eq!(domain.stats().descriptors_free.unsigned_abs(), here_stats.slab_refill * 93);
}

/// With a limit of 128, the packet after half of the limit kicks the home, and packets from number
/// 128 on are freed by the sender.
#[test]
fn the_65th_of_128_packets_kicks_and_the_128th_is_freed_by_the_sender() {
    let (domain, mut here, mut there) = pools(FreeMode::Defer { max: 128 });
    let kicks = Arc::new(Kicks::default());
    here.set_kick(Some(Arc::<Kicks>::clone(&kicks)));
    let packets: Vec<_> = (0..200).map(|_| here.alloc().expect("memory")).collect();
    for (pushed, packet) in (1..).zip(packets) {
        there.free(packet);
        assert_eq!(kicks.0.load(Ordering::Relaxed), u64::from(pushed >= 65), "{pushed}");
    }
    let stats = there.stats();
    assert_eq!((stats.defer_pushed, stats.defer_overflow), (127, 73));
    assert_eq!((stats.free_remote, stats.defer_kicks), (73, 1));
    assert_eq!(domain.stats().packets_deferred, 127);
    there.drain_returns();
    assert_eq!(here.drain_returns(), 200);
    assert_eq!((here.stats().defer_drained, here.stats().free_local), (127, 127));
    // The drain has reset the count.
    there.free(here.alloc().expect("memory"));
    assert_eq!((there.stats().defer_pushed, there.stats().defer_overflow), (128, 73));
    here.drain_returns();
    assert_eq!((domain.balance(), domain.stats().packets_deferred), (0, 0));
}

/// SC4, TSQ: the end of a packet is reported before its home frees the packet.
#[test]
fn a_deferred_packet_notifies_its_owner_and_its_original_at_once() {
    let (domain, mut here, mut there) = pools(FreeMode::Defer { max: 64 });
    let owner = Arc::new(Owner::default());
    let original = here.alloc_fclone().expect("memory");
    let mut clone = original.clone_in(&mut here).expect("memory");
    clone.set_owner(Arc::<Owner>::clone(&owner));
    there.free(clone);
    assert_eq!(there.stats().defer_pushed, 1);
    assert_eq!(owner.0.load(Ordering::Relaxed), 1);
    assert!(!original.clone_busy());
    here.free(original);
    here.drain_returns();
    assert_eq!(domain.balance(), 0);
}

/// An original that is freed before its clone leaves no free descriptor, so its drain must not
/// count as one.
#[test]
fn an_empty_pool_grows_if_the_drained_original_leaves_no_descriptor() {
    let (domain, mut here, mut there) = pools(FreeMode::Defer { max: 64 });
    let original = here.alloc_fclone().expect("memory");
    let clone = original.clone_in(&mut here).expect("memory");
    // Allocates the rest of a slab of 93.
    let mut held: Vec<_> = (0..91).map(|_| here.alloc().expect("memory")).collect();
    assert_eq!(here.stats().slab_refill, 1, "the first slab is used up, and no more");
    there.free(original);
    assert!(here.has_deferred());
    held.push(here.alloc().expect("there is plenty of memory"));
    let stats = here.stats();
    assert_eq!((stats.defer_drained, stats.slab_refill, stats.alloc_failed), (1, 2, 0));
    there.free(clone);
    held.into_iter().for_each(|packet| here.free(packet));
    here.drain_returns();
    assert_eq!(domain.balance(), 0);
}

/// A packet that may wait for long waits without its payload. If its home can be kicked, it does
/// not wait for long.
#[test]
fn a_deferred_packet_keeps_its_payload_only_if_its_home_can_be_kicked() {
    let (domain, mut here, mut there) = pools(FreeMode::Defer { max: 64 });
    there.free(here.alloc_from(&[7; 40_000]).expect("memory"));
    let opened = domain.stats().pages_live;
    assert!(opened <= 1, "only the page being filled: {opened}");
    here.set_kick(Some(Arc::new(Kicks::default())));
    there.free(here.alloc_from(&[7; 40_000]).expect("memory"));
    assert!(domain.stats().pages_live > opened);
    here.drain_returns();
    drop((here, there));
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
}

/// A thread that leaves keeps no memory that other threads could use.
#[test]
fn a_dropped_pool_keeps_one_magazine_in_every_mode() {
    for mode in [FreeMode::Home, FreeMode::Defer { max: 64 }, FreeMode::Unified] {
        let (domain, mut here, mut there) = pools(mode);
        let held: Vec<_> = (0..2000).map(|_| here.alloc().expect("memory")).collect();
        held.into_iter().for_each(|packet| here.free(packet));
        let bytes = domain.live_bytes();
        drop(here);
        let depot = domain.stats().descriptors_depot;
        assert!(depot >= 2000 - 8 * PARCEL_LEN, "{mode:?}: {depot}");
        let held: Vec<_> = (0..depot).map(|_| there.alloc().expect("memory")).collect();
        assert_eq!(domain.live_bytes(), bytes, "{mode:?}: the memory left is used");
        held.into_iter().for_each(|packet| there.free(packet));
        drop(there);
        assert_eq!(domain.balance(), 0);
    }
}

/// The thread that allocated the packets has exited.
#[test]
fn no_packet_is_sent_to_a_pool_without_a_thread() {
    let (domain, mut here, mut there) = pools(FreeMode::Defer { max: 64 });
    let packets: Vec<_> = (0..10).map(|_| here.alloc().expect("memory")).collect();
    let mut packets = packets.into_iter();
    there.free(packets.next().expect("ten"));
    drop(here);
    assert_eq!(domain.stats().packets_deferred, 0, "the packet was freed by the thread that left");
    packets.for_each(|packet| there.free(packet));
    let stats = there.stats();
    assert_eq!((stats.defer_pushed, stats.defer_overflow, stats.free_remote), (1, 9, 9));
    assert_eq!(domain.balance(), 0);
}

/// The mode changes while packets sent under every earlier mode are on their way.
#[test]
fn the_mode_can_change_while_packets_are_on_their_way() {
    let (domain, mut here, mut there) = pools(FreeMode::Home);
    let modes = [
        FreeMode::Home,
        FreeMode::Unified,
        FreeMode::Defer { max: 16 },
        FreeMode::Unified,
        FreeMode::Defer { max: 1 },
        FreeMode::Home,
    ];
    for round in 0..600 {
        let mode = modes[round / 7 % modes.len()];
        here.set_free_mode(mode);
        there.set_free_mode(modes[round / 11 % modes.len()]);
        let held: Vec<_> = (0..100).map(|_| here.alloc_from(&[1; 300]).expect("memory")).collect();
        held.into_iter().for_each(|packet| there.free(packet));
        if round % 5 == 0 {
            here.drain_returns();
        }
    }
    here.drain_returns();
    there.drain_returns();
    here.drain_returns();
    assert_eq!(domain.balance(), 0);
    assert!(domain.live_bytes() < 4 << 20, "{domain:?}");
    drop((here, there));
    assert_eq!(domain.stats().pages_live, 0);
}

/// SC2 and SC8: a renewed packet has no state of its earlier use, and a packet is not renewed while
/// its clone is alive.
#[test]
fn a_renewed_packet_equals_a_new_one() {
    let (domain, mut here, mut there) = pools(FreeMode::Unified);
    let owner = Arc::new(Owner::default());
    let mut packet = here.alloc_fclone().expect("memory");
    packet.append(&mut here, &[7; 5000]);
    packet.push(20).fill(1);
    packet.meta_mut().flow_hash = 77;
    packet.meta_mut().rx_device = 3;
    packet.set_owner(Arc::<Owner>::clone(&owner));
    let clone = packet.clone_in(&mut here).expect("memory");
    let packet = there.renew(packet).expect_err("its clone is alive");
    assert_eq!((packet.len(), owner.0.load(Ordering::Relaxed)), (5020, 0), "untouched");
    here.free(clone);
    let address = packet.head_from(0).as_ptr();
    let before = (here.stats().free_local, there.stats());
    let packet = there.renew(packet).expect("no clone is left");
    assert_eq!((here.stats().free_local, there.stats()), before, "neither freed nor allocated");
    assert_eq!(owner.0.load(Ordering::Relaxed), 1);
    let fresh = there.alloc_fclone().expect("memory");
    assert_eq!(packet.meta(), fresh.meta());
    assert_eq!((packet.len(), packet.headroom()), (0, fresh.headroom()));
    assert_eq!(
        packet.truesize() as usize,
        DESCRIPTOR_BYTES,
        "charged for its capacity, not for its former content"
    );
    assert!(!packet.is_cloned() && !packet.has_owner() && packet.frag_count() == 0);
    assert_eq!(packet.head_from(0).as_ptr().wrapping_sub(128), address.wrapping_sub(128));
    // The next clone of the renewed packet is tracked again.
    let clone = packet.clone_in(&mut here).expect("memory");
    assert!(packet.clone_busy());
    here.free(clone);
    here.free(packet);
    there.free(fresh);
    assert_eq!(domain.balance(), 0);
}

#[test]
fn a_pool_keeps_no_descriptor_of_another_domain() {
    let (ours, mut here, _) = pools(FreeMode::Unified);
    let (theirs, mut there, _) = pools(FreeMode::Defer { max: 64 });
    here.free(there.alloc().expect("memory"));
    there.free(here.alloc().expect("memory"));
    here.drain_returns();
    there.drain_returns();
    assert_eq!((here.stats().adopted, there.stats().defer_pushed), (0, 0));
    assert_eq!((here.drain_returns(), there.drain_returns()), (1, 0));
    assert_eq!((ours.balance(), theirs.balance()), (0, 0));
}
