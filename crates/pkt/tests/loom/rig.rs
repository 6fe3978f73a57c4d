//! Setup shared by the models.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::sync::atomic::AtomicUsize;
use pkt::{Domain, DomainConfig, FreeMode, Packet, Pool};

/// Minimum of interleavings that every model has: fewer mean that loom does not see where its
/// threads interact.
pub(crate) const ORDERS_MIN: u32 = 15;

/// Runs a model with at most three preemptions per execution, so that it ends in seconds.
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    let tried = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&tried);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let tried = tried.load(Ordering::Relaxed);
    assert!(tried >= ORDERS_MIN, "only {tried} orders were tried");
}

/// A point that threads pass in any order, all of which loom tries. Without it, loom misses orders
/// in which one thread only reads a word and another reads it before it writes it: of two reads
/// loom remembers the later one, which is the second thread's own.
#[derive(Clone)]
pub(crate) struct Crossing(loom::sync::Arc<AtomicUsize>);

impl Crossing {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Arc::new(AtomicUsize::new(0)))
    }

    pub(crate) fn pass(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the same crossing for each of two threads.
pub(crate) fn crossings() -> (Crossing, Crossing) {
    let crossing = Crossing::new();
    (crossing.clone(), crossing)
}

/// Descriptors in one slab of a model.
pub(crate) const DESCRIPTORS: usize = 4;

/// Bytes of a page of a model; two pages make a slab.
pub(crate) const PAGE_BYTES: usize = 4096;

pub(crate) fn domain() -> Domain {
    Domain::new(DomainConfig::default())
}

/// Checks that all descriptors have returned: the pool can allocate them at once, without another
/// slab.
pub(crate) fn assert_complete(domain: &Domain, pool: &mut Pool) {
    assert_eq!(domain.balance(), 0);
    let slabs = pool.stats().slab_refill;
    let held: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
    assert_eq!((held.len(), pool.stats().slab_refill), (DESCRIPTORS, slabs));
    held.into_iter().for_each(|packet| pool.free(packet));
}

/// Makes two pools that free by `mode`.
pub(crate) fn pools(domain: &Domain, mode: FreeMode) -> (Pool, Pool) {
    let (mut here, mut there) = (domain.pool(), domain.pool());
    here.set_free_mode(mode);
    there.set_free_mode(mode);
    (here, there)
}

pub(crate) fn read(packet: &Packet) -> usize {
    packet.slices().map(|part| usize::from(part[0])).sum()
}
