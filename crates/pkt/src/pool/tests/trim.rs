//! Memory held by pools that send little, and memory left when threads end.

use super::*;
use crate::packet::DESCRIPTOR_BYTES;
use crate::page::PAGE_BYTES;

const PAGE_SLAB: usize = 8 * PAGE_BYTES;
const DESCRIPTOR_SLAB: usize = 64 * 1024;

/// Trims until nothing more can be released.
fn trim_all(domain: &Domain) {
    while domain.trim() {}
}

#[test]
fn pools_that_send_little_share_slabs() {
    const POOLS: usize = 400;
    let domain = Domain::new(DomainConfig::default());
    let pools: Vec<_> = (0..POOLS)
        .map(|_| {
            let mut pool = domain.pool();
            for _ in 0..3 {
                let packet = pool.alloc_from(&[1; 2000]).expect("memory");
                pool.free(packet);
            }
            pool
        })
        .collect();
    let each = domain.live_bytes() / POOLS;
    assert!(each <= PAGE_BYTES + 8 * DESCRIPTOR_BYTES + 1024, "{each} bytes for each pool");
    drop(pools);
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
}

#[test]
fn a_pool_that_sends_much_takes_whole_slabs() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let packets: Vec<_> = (0..1000).map(|_| pool.alloc_from(&[1; 3000]).expect("memory")).collect();
    let stats = pool.stats();
    assert!(stats.slab_shares <= stats.slab_refill + 8, "few shares for much memory: {stats:?}");
    packets.into_iter().for_each(|packet| pool.free(packet));
}

#[test]
fn memory_of_ended_threads_is_released_to_the_system() {
    let domain = Domain::new(DomainConfig::default());
    let mut pools: Vec<_> = (0..50).map(|_| domain.pool()).collect();
    let packets: Vec<_> = pools
        .iter_mut()
        .flat_map(|pool| (0..20).map(|_| pool.alloc_from(&[1; 9000])).collect::<Vec<_>>())
        .map(|packet| packet.expect("memory"))
        .collect();
    let peak = domain.live_bytes();
    drop(pools);
    trim_all(&domain);
    assert_eq!(domain.live_bytes(), peak, "packets still hold all of it");
    // The packets return to pools that no thread has.
    drop(packets);
    assert_eq!(domain.balance(), 0);
    trim_all(&domain);
    let left = domain.live_bytes();
    assert!(left <= PAGE_SLAB + DESCRIPTOR_SLAB, "of {peak} bytes {left} are kept");
    let stats = domain.stats();
    assert_eq!((stats.pages_live, stats.pools, stats.pools_idle), (0, 50, 50));
    let mut pool = domain.pool();
    let packet = pool.alloc_from(&[2; 60_000]).expect("memory");
    assert!(packet.slices().flatten().all(|&byte| byte == 2));
    pool.free(packet);
}

#[test]
fn a_growing_domain_releases_no_memory() {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let packets: Vec<_> = (0..1000).map(|_| pool.alloc().expect("memory")).collect();
    drop(packets);
    drop(pool);
    let before = domain.live_bytes();
    assert!(domain.trim(), "slabs were taken since the last trim");
    assert_eq!(domain.live_bytes(), before);
    assert!(domain.trim(), "half of the releasable slabs was released");
    let after = domain.live_bytes();
    assert!(after < before && after > before / 3, "{before} before, {after} after");
}

/// Memory that packets hold is never released.
#[test]
fn packets_keep_their_bytes_while_memory_is_released_around_them() {
    let domain = Domain::new(DomainConfig::default());
    let mut held: Vec<(Packet, u8, usize)> = Vec::new();
    let mut random = 1_u32;
    for round in 0..300_u32 {
        let mut pool = domain.pool();
        for _ in 0..20 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (fill, len) = (random.to_be_bytes()[0], 1 + random as usize % 40_000);
            held.push((pool.alloc_from(&vec![fill; len]).expect("memory"), fill, len));
        }
        while held.len() > 200 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (packet, fill, len) = held.swap_remove(random as usize % held.len());
            assert_eq!(packet.len(), len);
            assert!(packet.slices().flatten().all(|&byte| byte == fill));
            if round % 2 == 0 { pool.free(packet) } else { drop(packet) }
        }
        drop(pool);
        let _ = domain.trim();
        let _ = domain.trim();
    }
    for (packet, fill, _) in held.drain(..) {
        assert!(packet.slices().flatten().all(|&byte| byte == fill));
    }
    trim_all(&domain);
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    assert!(domain.live_bytes() <= PAGE_SLAB + DESCRIPTOR_SLAB, "{domain:?}");
}
