//! An object stays allocated under a section that may have seen it, and is dropped in the end.

use super::*;

#[cfg(not(loom))]
mod threads {
    use std::sync::Arc as Live;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

    use super::*;

    fn retire(domain: &Domain, live: &Live<()>) {
        domain.retire(Box::new(Live::clone(live)));
    }

    #[test]
    fn without_readers_one_reclaim_drops_all_objects() {
        let (domain, live) = (Domain::new(), Live::new(()));
        retire(&domain, &live);
        assert_eq!((domain.pending(), Live::strong_count(&live)), (1, 2));
        assert_eq!((domain.reclaim(), Live::strong_count(&live)), (0, 1));
    }

    #[test]
    fn the_first_retirement_after_each_settlement_notifies() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let notified = Live::new(AtomicU64::new(0));
        let count = Live::clone(&notified);
        assert!(domain.set_on_waiting(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        assert!(!domain.set_on_waiting(|| ()), "a domain has one such function for good");
        assert!(!domain.is_waiting());
        for round in 1..4 {
            retire(&domain, &live);
            retire(&domain, &live);
            assert_eq!(notified.load(Ordering::Relaxed), round);
            assert!(domain.is_waiting());
            assert!(!domain.settle());
            assert!(!domain.is_waiting());
            assert_eq!(Live::strong_count(&live), 1);
        }
    }

    #[test]
    fn a_settlement_delayed_by_readers_must_be_repeated() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let reader = domain.reader();
        let section = reader.pin();
        retire(&domain, &live);
        assert!(domain.settle() && domain.is_waiting());
        drop(section);
        assert!(!domain.settle() && !domain.is_waiting());
        assert_eq!(Live::strong_count(&live), 1);
    }

    #[test]
    fn a_section_keeps_objects_retired_while_it_is_open() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let (reader, other) = (domain.reader(), domain.reader());
        let outer = reader.pin();
        let inner = reader.pin();
        retire(&domain, &live);
        drop(outer);
        assert_eq!(domain.reclaim(), 1);
        drop(other.pin());
        assert_eq!(domain.reclaim(), 1);
        drop(inner);
        assert_eq!((domain.reclaim(), Live::strong_count(&live)), (0, 1));
    }

    #[test]
    fn an_online_reader_releases_objects_when_it_is_quiescent() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let reader = domain.reader();
        reader.stay_online();
        retire(&domain, &live);
        drop(reader.pin());
        assert_eq!(domain.reclaim(), 1);
        let section = reader.pin();
        assert!(!reader.quiescent());
        drop(section);
        // Each turn lets the epoch advance by one.
        assert!(reader.quiescent());
        domain.reclaim();
        assert!(reader.quiescent());
        assert_eq!((domain.reclaim(), Live::strong_count(&live)), (0, 1));
        retire(&domain, &live);
        reader.go_offline();
        assert_eq!(domain.reclaim(), 0);
        // Repeated calls to go online or offline count once; going offline inside a section takes
        // effect at the section's end.
        reader.stay_online();
        reader.stay_online();
        let section = reader.pin();
        reader.go_offline();
        reader.go_offline();
        retire(&domain, &live);
        assert_eq!(domain.reclaim(), 1);
        drop(section);
        assert_eq!(domain.reclaim(), 0);
    }

    #[test]
    fn a_lingering_reader_keeps_objects_until_it_rests() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let reader = domain.reader();
        reader.linger();
        retire(&domain, &live);
        assert_eq!(domain.reclaim(), 0, "the reader has opened no section yet");
        drop(reader.pin());
        retire(&domain, &live);
        assert_eq!(domain.reclaim(), 1);
        let section = reader.pin();
        reader.rest();
        assert_eq!(domain.reclaim(), 1, "a section is open");
        drop(section);
        assert_eq!(domain.reclaim(), 1);
        reader.rest();
        assert_eq!((domain.reclaim(), Live::strong_count(&live)), (0, 1));
        // `quiescent` and `go_offline` end the announcement too.
        for end in [|reader: &Reader| assert!(reader.quiescent()), Reader::go_offline] {
            drop(reader.pin());
            retire(&domain, &live);
            assert_eq!(domain.reclaim(), 1);
            end(&reader);
            assert_eq!(domain.reclaim(), 0);
        }
        reader.stay_online();
        reader.go_offline();
        retire(&domain, &live);
        assert_eq!(domain.reclaim(), 0);
    }

    #[test]
    fn retirements_reclaim_earlier_objects() {
        let (domain, live) = (Domain::new(), Live::new(()));
        for _ in 0..100 * RECLAIM_EVERY {
            retire(&domain, &live);
        }
        assert!(domain.pending() < 5 * RECLAIM_EVERY as usize);
        assert_eq!(domain.pending() + 1, Live::strong_count(&live));
        drop(domain);
        assert_eq!(Live::strong_count(&live), 1);
    }

    #[test]
    fn dropping_a_reader_releases_its_leaked_section() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let reader = domain.reader();
        core::mem::forget(reader.pin());
        retire(&domain, &live);
        assert_eq!(domain.reclaim(), 1);
        drop(reader);
        assert_eq!(domain.reclaim(), 0);
    }

    /// The drop of an object may retire others, as a socket does with the objects it owns.
    #[test]
    fn a_drop_may_retire_further_objects() {
        struct Parent(Domain, Live<()>);
        impl Drop for Parent {
            fn drop(&mut self) {
                retire(&self.0, &self.1);
            }
        }
        let (domain, live) = (Domain::new(), Live::new(()));
        for _ in 0..3 * RECLAIM_EVERY {
            domain.retire(Box::new(Parent(domain.clone(), Live::clone(&live))));
        }
        while domain.reclaim() > 0 {}
        assert_eq!(Live::strong_count(&live), 1);
    }

    #[test]
    fn stress_a_reader_never_sees_a_dropped_object() {
        const ALIVE: u64 = 0x600d;
        struct Object(AtomicU64);
        impl Drop for Object {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        let make = || Box::into_raw(Box::new(Object(AtomicU64::new(ALIVE))));
        let domain = Domain::new();
        let (shared, done) = (AtomicPtr::new(make()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for core in [false, true] {
                let (shared, done, reader) = (&shared, &done, domain.reader());
                scope.spawn(move || {
                    if core {
                        reader.stay_online();
                    }
                    while !done.load(Ordering::Relaxed) {
                        let section = reader.pin();
                        for _ in 0..10 {
                            // SAFETY: an object is unlinked before it is retired, and this thread
                            // has a section.
                            let object = unsafe { &*shared.load(Ordering::Acquire) };
                            assert_eq!(object.0.load(Ordering::Relaxed), ALIVE);
                        }
                        drop(section);
                        assert!(reader.quiescent());
                    }
                });
            }
            for _ in 0..50_000 {
                let old = NonNull::new(shared.swap(make(), Ordering::AcqRel)).unwrap();
                // SAFETY: the swap took the only pointer to it.
                unsafe { domain.retire_raw(old) };
            }
            done.store(true, Ordering::Relaxed);
        });
        // SAFETY: the readers have ended.
        drop(unsafe { Box::from_raw(shared.into_inner()) });
        assert_eq!(domain.reclaim(), 0);
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::atomic::AtomicPtr;
    use loom::thread;

    use super::*;
    use crate::test_item::Watched;

    struct World {
        domain: Domain,
        shared: AtomicPtr<Watched>,
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self { domain: Domain::new(), shared: AtomicPtr::new(Self::leak()) })
        }

        fn leak() -> *mut Watched {
            Box::into_raw(Box::new(Watched::new(1)))
        }

        fn read(&self, _: &Section<'_>) -> u32 {
            // SAFETY: an object is unlinked before it is retired, and the caller has a section.
            unsafe { &*self.shared.load(Ordering::Acquire) }.read()
        }

        fn replace(&self) {
            let old = self.shared.swap(Self::leak(), Ordering::AcqRel);
            // SAFETY: the swap took the only pointer to it.
            unsafe { self.domain.retire_raw(NonNull::new(old).unwrap()) };
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            // SAFETY: this is the last holder of the world.
            drop(unsafe { Box::from_raw(self.shared.load(Ordering::Relaxed)) });
        }
    }

    #[test]
    fn loom_section_against_retire_and_reclaim() {
        shim::model(|| {
            let world = World::new();
            let reader = {
                let (world, reader) = (world.clone(), world.domain.reader());
                thread::spawn(move || {
                    assert_eq!(world.read(&reader.pin()), 1);
                    assert_eq!(world.read(&reader.pin()), 1);
                })
            };
            world.replace();
            world.domain.reclaim();
            world.domain.reclaim();
            reader.join().unwrap();
            assert_eq!(world.domain.reclaim(), 0);
        });
    }

    #[test]
    fn loom_lingering_sections_against_retire_and_reclaim() {
        shim::model(|| {
            let world = World::new();
            let reader = {
                let (world, reader) = (world.clone(), world.domain.reader());
                thread::spawn(move || {
                    reader.linger();
                    assert_eq!(world.read(&reader.pin()), 1);
                    assert_eq!(world.read(&reader.pin()), 1);
                    reader.rest();
                    assert_eq!(world.read(&reader.pin()), 1);
                    reader.rest();
                })
            };
            world.replace();
            world.domain.reclaim();
            world.domain.reclaim();
            reader.join().unwrap();
            assert_eq!(world.domain.reclaim(), 0);
        });
    }

    #[test]
    fn loom_core_online_against_retire_and_reclaim() {
        shim::model(|| {
            let world = World::new();
            let core = {
                let (world, reader) = (world.clone(), world.domain.reader());
                thread::spawn(move || {
                    reader.stay_online();
                    assert_eq!(world.read(&reader.pin()), 1);
                    assert!(reader.quiescent());
                    assert_eq!(world.read(&reader.pin()), 1);
                    reader.go_offline();
                })
            };
            world.replace();
            world.domain.reclaim();
            world.domain.reclaim();
            core.join().unwrap();
            assert_eq!(world.domain.reclaim(), 0);
        });
    }

    /// Two threads advance the epoch while a reader opens and closes a section.
    #[test]
    fn loom_two_reclaimers() {
        shim::model(|| {
            let world = World::new();
            let reader = {
                let (world, reader) = (world.clone(), world.domain.reader());
                thread::spawn(move || assert_eq!(world.read(&reader.pin()), 1))
            };
            let reclaimer = {
                let world = world.clone();
                thread::spawn(move || world.domain.reclaim())
            };
            world.replace();
            world.domain.reclaim();
            reader.join().unwrap();
            reclaimer.join().unwrap();
        });
    }
}
