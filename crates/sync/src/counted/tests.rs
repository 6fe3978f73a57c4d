//! Entries stay allocated as long as a thread may access them, and their parts lie where the layout
//! says.

use super::*;

/// Counts its drops in a counter of the test.
#[derive(Debug)]
struct Marked(crate::shim::Arc<crate::shim::AtomicUsize>);

impl Drop for Marked {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Sample;

impl Parts for Sample {
    type Head = [u64; 6];
    type Tail = u32;
    type Cold = Marked;
    type Stats = u64;
}

type Drops = crate::shim::Arc<crate::shim::AtomicUsize>;

fn drops() -> Drops {
    Drops::new(crate::shim::AtomicUsize::new(0))
}

fn entry(drops: &Drops) -> Entry<Sample> {
    Entry { head: [7; 6], tail: 9, cold: Marked(Drops::clone(drops)), stats: 11 }
}

fn sample(domain: &Domain, layout: Layout, counting: Counting, drops: &Drops) -> Ref<Sample> {
    Ref::new(domain, layout, counting, entry(drops))
}

fn owned(domain: &Domain, layout: Layout, counting: Counting, drops: &Drops) -> Owner<Sample> {
    Owner::new(domain, layout, counting, entry(drops))
}

#[cfg(not(loom))]
mod threads {
    use super::*;

    const LAYOUTS: [Layout; 3] = [Layout::Packed, Layout::Padded, Layout::Filled];
    const COUNTINGS: [Counting; 3] = [Counting::CasIncNotZero, Counting::Rcuref, Counting::Sharded];

    fn dropped(drops: &Drops) -> usize {
        drops.load(Ordering::Relaxed)
    }

    #[derive(Debug)]
    struct Other;

    impl Parts for Other {
        type Head = ();
        type Tail = ();
        type Cold = ();
        type Stats = ();
    }

    #[test]
    fn parts_are_found_in_every_layout() {
        let (domain, drops) = (Domain::new(), drops());
        for layout in LAYOUTS {
            for counting in COUNTINGS {
                let entry = sample(&domain, layout, counting, &drops);
                assert_eq!((entry.layout(), entry.refs()), (layout, 1));
                assert_eq!((entry.head()[5], *entry.tail(), *entry.stats()), (7, 9, 11));
                assert_eq!(entry.header.addr().get() % 128, 0);
                let handle = entry.handle();
                assert_eq!((handle.head()[0], *handle.tail(), *handle.stats()), (7, 9, 11));
            }
        }
        assert_eq!(domain.reclaim(), 0);
        assert_eq!(dropped(&drops), 9);
    }

    /// DST1: the count is alone in its 128 bytes, except in the packed layout.
    #[test]
    fn the_count_is_apart_from_what_is_read() {
        for layout in LAYOUTS {
            let offsets = Offsets::of::<Sample>(layout);
            assert_eq!(offsets.count % 128, 0, "{layout:?}");
            assert!(offsets.is_apart(offsets.head, 48), "{layout:?}");
            assert!(offsets.is_apart(offsets.stats, 8), "{layout:?}");
            assert_eq!(offsets.is_apart(offsets.tail, 4), layout != Layout::Packed, "{layout:?}");
            assert_eq!(offsets.is_apart(offsets.cold, 8), layout != Layout::Filled, "{layout:?}");
        }
        let size = |layout| Offsets::of::<Sample>(layout).size;
        assert!(size(Layout::Filled) < size(Layout::Padded), "filling the gap saves memory");
    }

    /// The position of the count must not depend on the size of a pointer. With parts as a 32-bit
    /// build makes them, with almost empty ones, and with parts longer than a line, the count
    /// begins a line of its own.
    #[test]
    fn the_count_is_apart_for_parts_of_any_size() {
        struct Words;
        impl Parts for Words {
            type Head = [u32; 11];
            type Tail = [u32; 3];
            type Cold = [u8; 17];
            type Stats = [u32; 2];
        }
        struct Lines;
        impl Parts for Lines {
            type Head = [u64; 40];
            type Tail = [u64; 20];
            type Cold = u8;
            type Stats = [u64; 3];
        }
        fn check<P: Parts>() {
            for layout in LAYOUTS {
                let offsets = Offsets::of::<P>(layout);
                assert_eq!(offsets.count % 128, 0, "{layout:?}");
                assert!(offsets.is_apart(offsets.head, size_of::<P::Head>()), "{layout:?}");
                assert!(offsets.is_apart(offsets.stats, size_of::<P::Stats>()), "{layout:?}");
                let tail_apart = offsets.is_apart(offsets.tail, size_of::<P::Tail>());
                assert_eq!(tail_apart, layout != Layout::Packed, "{layout:?}");
            }
        }
        check::<Words>();
        check::<Lines>();
        check::<Sample>();
    }

    /// DST2: the last put makes an entry unreachable, and the grace period frees it, once.
    #[test]
    fn an_entry_is_freed_once_after_a_grace_period() {
        for counting in COUNTINGS {
            let (domain, drops) = (Domain::new(), drops());
            let reader = domain.reader();
            let slot = Slot::new(&domain);
            slot.publish(sample(&domain, Layout::Filled, counting, &drops)).unwrap();
            let section = reader.pin();
            let handle = slot.load(&section).expect("published");
            let held = handle.try_get().expect("alive");
            drop(slot.take());
            assert_eq!((held.refs(), slot.is_empty()), (1, true));
            held.release(&section);
            assert!(handle.try_get().is_none(), "no get succeeds at zero references");
            assert_eq!(domain.reclaim(), 1);
            assert_eq!(
                (dropped(&drops), *handle.tail()),
                (0, 9),
                "the section keeps the entry allocated"
            );
            drop(section);
            assert_eq!(domain.reclaim(), 0);
            assert_eq!(dropped(&drops), 1);
        }
    }

    #[test]
    fn a_reference_without_its_type_can_be_downcast() {
        let (domain, drops) = (Domain::new(), drops());
        let entry = sample(&domain, Layout::Padded, Counting::Rcuref, &drops);
        let any = AnyRef::from(entry.clone());
        assert_eq!(entry.refs(), 2);
        let any = any.downcast::<Other>().expect_err("the entry has other parts");
        let typed = any.downcast::<Sample>().expect("the entry's type");
        assert!(typed.is(&entry));
        drop(AnyRef::from(typed));
        assert_eq!(entry.refs(), 1);
    }

    #[test]
    fn a_full_slot_gives_the_entry_back() {
        let (domain, drops) = (Domain::new(), drops());
        let first = sample(&domain, Layout::Filled, Counting::Rcuref, &drops);
        let slot = Slot::new(&domain);
        slot.publish(first.clone()).unwrap();
        assert!(slot.publish(first.clone()).is_err());
        assert_eq!(first.refs(), 2);
        drop(slot);
        assert_eq!(first.refs(), 1);
    }

    #[test]
    #[should_panic(expected = "another domain")]
    fn a_section_of_another_domain_is_refused() {
        let slot = Slot::<Sample>::new(&Domain::new());
        let reader = Domain::new().reader();
        let _ = slot.load(&reader.pin());
    }

    /// DST3: the gets and puts of several threads add up.
    #[test]
    fn gets_and_puts_of_threads_add_up() {
        for counting in COUNTINGS {
            let (domain, drops) = (Domain::new(), drops());
            let entry = sample(&domain, Layout::Packed, counting, &drops);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let reader = domain.reader();
                        for turn in 0..10_000 {
                            let section = reader.pin();
                            let held = entry.handle().try_get().expect("alive");
                            if turn % 2 == 0 { held.release(&section) } else { drop(held) }
                        }
                    });
                }
            });
            assert_eq!((entry.refs(), dropped(&drops)), (1, 0));
        }
    }
}

#[cfg(not(loom))]
mod owners {
    use super::*;

    const COUNTINGS: [Counting; 3] = [Counting::CasIncNotZero, Counting::Rcuref, Counting::Sharded];
    const LAYOUTS: [Layout; 3] = [Layout::Packed, Layout::Padded, Layout::Filled];

    /// DST3: the gets and puts of several threads add up while the entry has an owner, afterwards,
    /// and across the end of the owner, in sections and outside of them.
    #[test]
    fn references_add_up_across_the_end_of_the_owner() {
        for counting in COUNTINGS {
            for layout in LAYOUTS {
                let (domain, drops) = (Domain::new(), drops());
                let owner = owned(&domain, layout, counting, &drops);
                let reader = domain.reader();
                let mut held: Vec<_> =
                    (0..5).map(|_| owner.handle().try_get().expect("alive")).collect();
                held.pop().unwrap().release(&reader.pin());
                drop(held.pop());
                held.push(held[0].clone());
                assert_eq!(owner.refs(), 5, "{counting:?}");
                let first = held.pop().unwrap();
                std::thread::scope(|scope| {
                    for held in held.drain(..2) {
                        scope.spawn(|| {
                            let reader = domain.reader();
                            held.release(&reader.pin());
                        });
                    }
                    drop(owner);
                });
                assert_eq!((first.refs(), held.len()), (2, 1), "{counting:?}");
                held.pop().unwrap().release(&reader.pin());
                let (handle, section) = (first.clone(), reader.pin());
                first.release(&section);
                let handle = handle.handle().try_get().expect("alive");
                assert_eq!(handle.refs(), 2, "{counting:?}");
                drop((handle, section));
                domain.reclaim();
                assert_eq!((domain.reclaim(), drops.load(Ordering::Relaxed)), (0, 0));
            }
        }
    }

    /// An entry that no table has published after all ends with its last reference.
    #[test]
    fn an_owner_becomes_a_reference() {
        for counting in COUNTINGS {
            let (domain, drops) = (Domain::new(), drops());
            let entry = owned(&domain, Layout::Filled, counting, &drops).into_ref();
            assert_eq!(entry.refs(), 1);
            drop(entry.clone());
            drop(entry);
            domain.reclaim();
            assert_eq!((domain.reclaim(), drops.load(Ordering::Relaxed)), (0, 1));
        }
    }

    /// Threads take and put references while the owner ends; afterwards the count is exact and the
    /// entry ends once.
    #[test]
    fn stress_an_owner_ends_while_threads_count() {
        for round in 0..200 {
            let (domain, drops) = (Domain::new(), drops());
            let owner = owned(&domain, Layout::Packed, Counting::Sharded, &drops);
            let kept = owner.clone();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let reader = domain.reader();
                        for turn in 0..50 {
                            let section = reader.pin();
                            let held = kept.handle().try_get().expect("alive");
                            if turn % 3 == 0 { drop(held) } else { held.release(&section) }
                        }
                    });
                }
                scope.spawn(move || drop(owner));
            });
            assert_eq!(kept.refs(), 1, "round {round}");
            drop(kept);
            domain.reclaim();
            assert_eq!((domain.reclaim(), drops.load(Ordering::Relaxed)), (0, 1));
        }
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::shim::model;

    /// One core loads a slot (early demux) while another invalidates it: clears it, then puts the
    /// reference. An entry that the first core finds is alive, and stays alive while the core holds
    /// it.
    fn demux_against_invalidation(counting: Counting) {
        model(move || {
            let (domain, drops) = (Domain::new(), drops());
            let slot = Arc::new(Slot::new(&domain));
            slot.publish(sample(&domain, Layout::Filled, counting, &drops)).unwrap();
            let other = {
                let (slot, domain) = (Arc::clone(&slot), domain.clone());
                thread::spawn(move || {
                    drop(slot.take());
                    domain.reclaim();
                })
            };
            let reader = domain.reader();
            let held = {
                let section = reader.pin();
                slot.load(&section).and_then(|handle| {
                    assert_eq!(*handle.tail(), 9);
                    let held = handle.try_get();
                    assert_eq!(drops.load(Ordering::Relaxed), 0, "freed under a section");
                    held
                })
            };
            if let Some(held) = &held {
                assert_eq!((held.refs() <= 2, *held.tail()), (true, 9));
                assert_eq!(drops.load(Ordering::Relaxed), 0, "freed under a reference");
            }
            drop(held);
            other.join().unwrap();
            domain.reclaim();
            domain.reclaim();
            assert_eq!(drops.load(Ordering::Relaxed), 1, "freed exactly once");
        });
    }

    #[test]
    fn early_demux_against_invalidation_by_cas() {
        demux_against_invalidation(Counting::CasIncNotZero);
    }

    #[test]
    fn early_demux_against_invalidation_by_rcuref() {
        demux_against_invalidation(Counting::Rcuref);
    }

    /// As above, with a sharded entry that its table drops: one core looks it up while another ends
    /// its owner.
    #[test]
    fn a_lookup_against_the_end_of_the_owner() {
        model(|| {
            let (domain, drops) = (Domain::new(), drops());
            let owner = owned(&domain, Layout::Filled, Counting::Sharded, &drops);
            let table = Arc::new(crate::rcu::RcuCell::new(&domain, Some(owner)));
            let other = {
                let (table, domain) = (Arc::clone(&table), domain.clone());
                thread::spawn(move || {
                    table.replace(None);
                    domain.reclaim();
                })
            };
            let reader = domain.reader();
            let held = {
                let section = reader.pin();
                table.load(&section).as_ref().and_then(|owner| owner.handle().try_get())
            };
            // One reference is released while the owner may end, the other one afterwards.
            if let Some(held) = &held {
                held.clone().release(&reader.pin());
                assert_eq!(drops.load(Ordering::Relaxed), 0, "freed under a reference");
            }
            other.join().unwrap();
            if let Some(held) = held {
                for _ in 0..3 {
                    domain.reclaim();
                }
                assert_eq!((held.refs(), *held.tail()), (1, 9), "the owner has ended");
                assert_eq!(drops.load(Ordering::Relaxed), 0, "freed under a reference");
                held.release(&reader.pin());
            }
            for _ in 0..3 {
                domain.reclaim();
            }
            assert_eq!(drops.load(Ordering::Relaxed), 1, "freed exactly once");
        });
    }

    /// A thread that finds an entry while it is published sees everything that was written to it
    /// before.
    #[test]
    fn a_published_entry_is_complete() {
        #[derive(Debug)]
        struct Written(crate::shim::UnsafeCell<u32>);
        // SAFETY: written before it is published and read after it was found; loom fails if these
        // are not ordered.
        unsafe impl Sync for Written {}
        #[derive(Debug)]
        struct Complete;
        impl Parts for Complete {
            type Head = Written;
            type Tail = ();
            type Cold = ();
            type Stats = ();
        }
        model(|| {
            let domain = Domain::new();
            let slot = Arc::new(Slot::<Complete>::new(&domain));
            let other = {
                let (slot, domain) = (Arc::clone(&slot), domain.clone());
                thread::spawn(move || {
                    let head = Written(crate::shim::UnsafeCell::new(0));
                    // SAFETY: no other thread has it yet.
                    head.0.with_mut(|value| unsafe { *value = 7 });
                    let entry = Entry { head, tail: (), cold: (), stats: () };
                    let entry = Ref::new(&domain, Layout::Filled, Counting::Rcuref, entry);
                    assert!(slot.publish(entry).is_ok(), "no other thread publishes");
                })
            };
            let reader = domain.reader();
            {
                let section = reader.pin();
                if let Some(handle) = slot.load(&section) {
                    // SAFETY: no thread writes it any more.
                    assert_eq!(handle.head().0.with(|value| unsafe { *value }), 7);
                }
            }
            other.join().unwrap();
            drop(slot.take());
            domain.reclaim();
            domain.reclaim();
        });
    }

    /// The order of Linux in 2014, which puts the reference before it clears the slot: a reader
    /// finds an entry without references.
    #[test]
    fn a_put_before_the_clear_exposes_an_entry_without_references() {
        use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};
        static DEAD_SEEN: AtomicBool = AtomicBool::new(false);
        model(|| {
            // The slot of that time: whether it is full, and the count of its entry.
            let slot =
                Arc::new((crate::shim::AtomicBool::new(true), RefCount::new(Counting::Rcuref)));
            let other = {
                let slot = Arc::clone(&slot);
                thread::spawn(move || {
                    let _ = slot.1.put_alone(Counting::Rcuref);
                    slot.0.store(false, Ordering::Release);
                })
            };
            if slot.0.load(Ordering::Acquire) && slot.1.refs(Counting::Rcuref) == 0 {
                DEAD_SEEN.store(true, StdOrdering::Relaxed);
            }
            other.join().unwrap();
        });
        assert!(DEAD_SEEN.load(StdOrdering::Relaxed), "a model finds the bug");
    }
}
