//! How a model is run, and what it is made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::sync::atomic::AtomicUsize;
use pkt::{Domain, DomainConfig, FreeMode, Packet, Pool};

/// Orders that every model has at least: fewer mean that loom does not see where its threads meet.
pub(crate) const ORDERS_MIN: u32 = 15;

/// At most three pre-emptions per execution, so that each model ends in seconds.
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

/// Threads pass here in any order, and loom tries them all. It does not where one thread only looks at a word and another looks at it
/// before it changes it: of two looks loom remembers the later one, which is the second thread's own.
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

/// One for each of two threads.
pub(crate) fn crossings() -> (Crossing, Crossing) {
    let crossing = Crossing::new();
    (crossing.clone(), crossing)
}

/// Descriptors in one slab, in models.
pub(crate) const DESCRIPTORS: usize = 4;

/// Bytes of a page, in models; two make a slab.
pub(crate) const PAGE_BYTES: usize = 4096;

pub(crate) fn domain() -> Domain {
    Domain::new(DomainConfig::default())
}

/// All descriptors are at home: they can be had at once, without another slab.
pub(crate) fn assert_complete(domain: &Domain, pool: &mut Pool) {
    assert_eq!(domain.balance(), 0);
    let slabs = pool.stats().slab_refill;
    let held: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
    assert_eq!((held.len(), pool.stats().slab_refill), (DESCRIPTORS, slabs));
    held.into_iter().for_each(|packet| pool.free(packet));
}

/// Two pools that free by `mode`.
pub(crate) fn pools(domain: &Domain, mode: FreeMode) -> (Pool, Pool) {
    let (mut here, mut there) = (domain.pool(), domain.pool());
    here.set_free_mode(mode);
    there.set_free_mode(mode);
    (here, there)
}

pub(crate) fn read(packet: &Packet) -> usize {
    packet.slices().map(|part| usize::from(part[0])).sum()
}
