//! The rules of both counts: step by step, at their limits, and in every interleaving of three
//! threads.

use super::*;

#[cfg(not(loom))]
mod steps {
    use super::*;
    use crate::epoch::Domain;

    const BOTH: [Counting; 2] = [Counting::CasIncNotZero, Counting::Rcuref];

    fn at(word: u32) -> RefCount {
        RefCount { word: AtomicU32::new(word) }
    }

    fn word(count: &RefCount) -> u32 {
        count.word.load(Ordering::Relaxed)
    }

    /// The subtraction of a put, to be completed later by `rcuref_put_slow`.
    fn subtract(count: &RefCount) -> u32 {
        count.word.fetch_sub(1, Ordering::Release).wrapping_sub(1)
    }

    #[test]
    fn a_count_has_one_last_put() {
        let domain = Domain::new();
        let reader = domain.reader();
        for counting in BOTH {
            let count = RefCount::new(counting);
            assert_eq!(count.refs(counting), 1);
            assert!(count.try_get(counting));
            assert_eq!(count.refs(counting), 2);
            assert_eq!(count.put(counting, &reader.pin()), Put::Shared);
            assert_eq!(count.put(counting, &reader.pin()), Put::Last);
            assert_eq!(count.refs(counting), 0);
        }
    }

    /// A get on a count that has reached zero fails, however often it is tried.
    #[test]
    fn no_get_succeeds_after_the_last_put() {
        for counting in BOTH {
            let count = RefCount::new(counting);
            assert_eq!(count.put_alone(counting), Put::Last);
            for _ in 0..5 {
                assert!(!count.try_get(counting));
                assert_eq!(count.refs(counting), 0);
            }
        }
    }

    /// A get of one thread revives the object between the subtraction and the swap of another
    /// thread's put. The test checks the value of the word after each step.
    #[test]
    fn a_get_may_revive_an_object_before_its_put_completes() {
        let count = RefCount::new(Counting::Rcuref);
        assert_eq!(word(&count), 0);
        assert!(count.rcuref_get(), "T2 gets");
        assert_eq!(word(&count), 1);
        assert_eq!(count.rcuref_put(), Put::Shared, "T1 puts");
        assert_eq!(word(&count), 0);
        let left = subtract(&count);
        assert_eq!((left, word(&count)), (NOREF, NOREF), "T2 puts, and has not swapped yet");
        assert!(count.rcuref_get(), "T1 gets, which revives the object");
        assert_eq!(word(&count), 0);
        assert_eq!(count.rcuref_put_slow(left), Put::Shared, "T2's swap fails");
        assert_eq!(word(&count), 0);
        assert_eq!(count.rcuref_put(), Put::Last, "T1 puts the last reference");
        assert_eq!(word(&count), DEAD);
        let raised = count.word.fetch_add(1, Ordering::Relaxed) + 1;
        assert_eq!((raised, word(&count)), (DEAD + 1, DEAD + 1), "T2 tries to get");
        assert!(!count.rcuref_get_slow(raised));
        assert_eq!(word(&count), DEAD);
    }

    /// The slow path as it was up to Linux 6.12: it reads the count again.
    fn put_slow_rereading(count: &RefCount) -> Put {
        let word = count.word.load(Ordering::Relaxed);
        count.rcuref_put_slow(word)
    }

    /// T1 puts and is interrupted, T2 revives the object and puts; T1 then releases it. With the
    /// word read again, T2 reports one put too many; with the word that its subtraction left, it
    /// does not.
    #[test]
    fn a_put_completed_by_another_thread_is_no_imbalance() {
        let interrupted = |finish: fn(&RefCount, u32) -> Put| {
            let count = RefCount::new(Counting::Rcuref);
            let first = subtract(&count);
            assert!(count.rcuref_get());
            let second = subtract(&count);
            assert_eq!((first, second), (NOREF, NOREF));
            assert_eq!(count.rcuref_put_slow(first), Put::Last);
            finish(&count, second)
        };
        assert_eq!(interrupted(|count, _| put_slow_rereading(count)), Put::Imbalanced);
        assert_eq!(interrupted(RefCount::rcuref_put_slow), Put::Shared);
    }

    #[test]
    fn a_put_too_many_is_reported_and_changes_nothing() {
        let domain = Domain::new();
        let reader = domain.reader();
        for counting in BOTH {
            let count = RefCount::new(counting);
            assert_eq!(count.put(counting, &reader.pin()), Put::Last);
            assert_eq!(count.put(counting, &reader.pin()), Put::Imbalanced);
            assert_eq!(count.put_alone(counting), Put::Imbalanced);
            assert!(!count.try_get(counting));
        }
    }

    /// The 2^31st reference saturates the count; the object leaks and is never freed.
    #[test]
    fn a_count_that_overflows_saturates() {
        let count = at(MAXREF);
        assert!(count.rcuref_get());
        assert_eq!(word(&count), SATURATED);
        for _ in 0..3 {
            assert_eq!(count.rcuref_put(), Put::Shared);
            assert_eq!(word(&count), SATURATED);
            assert_eq!(count.rcuref_put_alone(), Put::Shared);
        }
        assert!(count.rcuref_get());
        let count = at(MAXREF);
        assert!(count.cas_get() && count.cas_get());
        assert_eq!(count.cas_put(), Put::Shared);
        assert_eq!(word(&count), SATURATED);
        assert!(count.cas_get());
    }

    #[test]
    fn the_zones_are_where_rcuref_has_them() {
        assert_eq!(NOREF.wrapping_add(1), 0);
        assert_eq!(SATURATED, MAXREF + 1 + (RELEASED - MAXREF - 1) / 2);
        assert_eq!(DEAD, RELEASED + (NOREF - RELEASED) / 2 + 1);
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;
    use crate::shim::model;

    struct Object {
        count: RefCount,
        /// Number of puts that returned `Last`.
        released: AtomicUsize,
        imbalanced: AtomicUsize,
    }

    impl Object {
        fn new(counting: Counting) -> Arc<Self> {
            let count = RefCount::new(counting);
            Arc::new(Self { count, released: AtomicUsize::new(0), imbalanced: AtomicUsize::new(0) })
        }

        fn get(&self, counting: Counting) -> bool {
            let got = self.count.try_get(counting);
            if got {
                self.check_alive();
            }
            got
        }

        /// Checks that the object of a held reference has not been released.
        fn check_alive(&self) {
            assert_eq!(
                self.released.load(Ordering::Relaxed),
                0,
                "a reference to a released object"
            );
        }

        fn note(&self, put: Put) {
            match put {
                Put::Shared => {}
                Put::Last => {
                    self.released.fetch_add(1, Ordering::Relaxed);
                }
                Put::Imbalanced => {
                    self.imbalanced.fetch_add(1, Ordering::Relaxed);
                }
            }
        }

        fn put(&self, counting: Counting) {
            self.check_alive();
            self.note(match counting {
                Counting::CasIncNotZero => self.count.cas_put(),
                Counting::Rcuref | Counting::Sharded => self.count.rcuref_put(),
            });
        }

        fn put_alone(&self, counting: Counting) {
            self.check_alive();
            self.note(self.count.put_alone(counting));
        }

        fn check_end(&self) {
            assert_eq!(self.released.load(Ordering::Relaxed), 1);
            assert_eq!(self.imbalanced.load(Ordering::Relaxed), 0);
        }
    }

    /// DST6: three threads, three operations each: get, put, and a get that may come after the last
    /// put. One of the threads puts the creator's reference.
    fn three_threads(counting: Counting) {
        model(move || {
            let object = Object::new(counting);
            let mut threads = Vec::new();
            for number in 0..2 {
                let object = Arc::clone(&object);
                threads.push(thread::spawn(move || {
                    if object.get(counting) {
                        if number == 0 {
                            object.put(counting);
                        } else {
                            object.put_alone(counting);
                        }
                    }
                    if object.get(counting) {
                        object.put(counting);
                    }
                }));
            }
            object.put(counting);
            if object.get(counting) {
                object.put(counting);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            object.check_end();
            assert!(!object.get(counting), "a get after the last put");
        });
    }

    #[test]
    fn cas_inc_not_zero_has_exactly_one_last_put() {
        three_threads(Counting::CasIncNotZero);
    }

    #[test]
    fn rcuref_has_exactly_one_last_put() {
        three_threads(Counting::Rcuref);
    }

    /// The last put comes after all accesses of other holders.
    fn last_put_comes_last(counting: Counting, put: fn(&RefCount) -> Put) {
        struct Used(RefCount, crate::shim::UnsafeCell<u32>);
        // SAFETY: read with a reference, and written by the thread of the last put; loom fails if
        // these are not ordered.
        unsafe impl Sync for Used {}
        // SAFETY: as above.
        unsafe impl Send for Used {}
        let finish = move |used: &Used| {
            // SAFETY: no thread writes while there is a reference.
            assert_eq!(used.1.with(|value| unsafe { *value }), 7);
            if put(&used.0) == Put::Last {
                // SAFETY: there is no reference any more.
                used.1.with_mut(|value| unsafe { *value = 0 });
            }
        };
        model(move || {
            let used = Arc::new(Used(RefCount::new(counting), crate::shim::UnsafeCell::new(7)));
            assert!(used.0.try_get(counting));
            let other = {
                let used = Arc::clone(&used);
                thread::spawn(move || finish(&used))
            };
            finish(&used);
            other.join().unwrap();
        });
    }

    #[test]
    fn the_last_put_comes_after_all_accesses() {
        last_put_comes_last(Counting::Rcuref, RefCount::rcuref_put);
        last_put_comes_last(Counting::Rcuref, RefCount::rcuref_put_alone);
        last_put_comes_last(Counting::CasIncNotZero, RefCount::cas_put);
    }

    /// In some interleaving of two threads, the slow path of Linux 6.12 and before reports one put
    /// too many.
    #[test]
    fn rereading_the_count_reports_false_imbalances() {
        use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};
        static SEEN: AtomicBool = AtomicBool::new(false);
        fn put(count: &RefCount) -> Put {
            let word = count.word.fetch_sub(1, Ordering::Release).wrapping_sub(1);
            if word <= MAXREF {
                return Put::Shared;
            }
            let word = count.word.load(Ordering::Relaxed);
            if word <= MAXREF { Put::Shared } else { count.rcuref_put_slow(word) }
        }
        model(|| {
            let count = Arc::new(RefCount::new(Counting::Rcuref));
            let other = {
                let count = Arc::clone(&count);
                thread::spawn(move || {
                    if count.try_get(Counting::Rcuref) && put(&count) == Put::Imbalanced {
                        SEEN.store(true, StdOrdering::Relaxed);
                    }
                })
            };
            if put(&count) == Put::Imbalanced {
                SEEN.store(true, StdOrdering::Relaxed);
            }
            other.join().unwrap();
        });
        assert!(SEEN.load(StdOrdering::Relaxed), "a model finds the bug");
    }
}
