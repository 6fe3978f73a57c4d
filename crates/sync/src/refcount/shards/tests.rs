//! The words count exactly while they are open, and nothing afterwards.

use super::*;
use crate::refcount::{Put, RefCount, SPREAD};

#[cfg(not(loom))]
mod steps {
    use super::*;
    use crate::refcount::Counting::Sharded;

    /// References taken in one word and put in another cancel out.
    #[test]
    fn the_sum_of_the_words_is_exact() {
        let shards = Shards::of(4);
        for slot in 0..10 {
            assert!(shards.get(slot));
        }
        assert_eq!(shards.sum(), 10);
        for _ in 0..7 {
            assert!(shards.put(3), "more puts than gets in one word");
        }
        assert_eq!(shards.sum(), 3);
        assert_eq!(shards.close(), 3);
    }

    /// Operations on a closed word count nothing, however many there are.
    #[test]
    fn a_closed_word_counts_nothing() {
        let shards = Shards::of(2);
        assert!(shards.get(0));
        assert_eq!(shards.close(), 1);
        for slot in 0..100 {
            assert!(!shards.put(slot) && !shards.put(slot) && !shards.get(slot));
        }
        assert_eq!((shards.sum(), shards.close()), (0, 0));
    }

    #[test]
    fn the_zones_do_not_touch() {
        assert_eq!(references(OPEN), 0);
        assert_eq!([OPEN - LOWEST, LOWEST], [LOWEST, 1 << 61]);
        for far in [LOWEST, 3 * LOWEST] {
            assert!(is_open(far), "{far:x}");
        }
        for far in [CLOSED, CLOSED.wrapping_sub(1), LOWEST - 1, 3 * LOWEST + 1] {
            assert!(!is_open(far), "{far:x}");
        }
    }

    /// The words are closed while references exist: the central word continues with the sum.
    #[test]
    fn the_central_word_continues_with_the_sum() {
        let (count, shards) = (RefCount::new_spread(), Shards::of(2));
        assert_eq!(count.refs_spread(shards.sum()), 1);
        assert!(shards.get(0) && shards.get(1) && shards.get(0));
        assert_eq!(count.refs_spread(shards.sum()), 4);
        // A put outside of a section.
        assert_eq!(count.put_alone(Sharded), Put::Shared);
        assert_eq!(count.refs_spread(shards.sum()), 3);
        count.gather(shards.close());
        assert_eq!(count.refs_spread(shards.sum()), 3);
        assert_eq!(count.put_alone(Sharded), Put::Shared);
        assert_eq!(count.put_alone(Sharded), Put::Shared);
        assert_eq!(count.put_alone(Sharded), Put::Last);
        assert_eq!(count.refs_spread(shards.sum()), 0);
        assert!(!count.try_get(Sharded));
    }

    /// All references but the owner's are put where they were not taken.
    #[test]
    fn a_central_word_below_its_start_recovers() {
        let (count, shards) = (RefCount::new_spread(), Shards::of(2));
        for _ in 0..1000 {
            assert!(shards.get(1));
            assert_eq!(count.put_alone(Sharded), Put::Shared);
        }
        assert_eq!(count.refs_spread(shards.sum()), 1);
        count.gather(shards.close());
        assert_eq!(count.put_alone(Sharded), Put::Last);
    }

    /// More references than the central word can count: the object leaks.
    #[test]
    fn a_sum_that_overflows_saturates() {
        let (count, shards) = (RefCount::new_spread(), Shards::of(1));
        shards.words[0].store(OPEN + (1 << 40), Ordering::Relaxed);
        count.gather(shards.close());
        assert_eq!(count.put_alone(Sharded), Put::Shared);
        let (count, shards) = (RefCount::new_spread(), Shards::of(1));
        shards.words[0].store(OPEN + u64::from(SPREAD) * 2, Ordering::Relaxed);
        count.gather(shards.close());
        assert_eq!(count.put_alone(Sharded), Put::Shared);
        assert_eq!(count.put_alone(Sharded), Put::Shared);
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;
    use crate::refcount::Counting;
    use crate::shim::{UnsafeCell, model};

    /// An object with both counts. Its content is read with a reference, and written by the thread
    /// of the last put; loom fails if these are not ordered.
    struct Object {
        count: RefCount,
        shards: Shards,
        content: UnsafeCell<u32>,
        released: AtomicUsize,
    }

    // SAFETY: as the type says.
    unsafe impl Sync for Object {}
    // SAFETY: as above.
    unsafe impl Send for Object {}

    impl Object {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                count: RefCount::new_spread(),
                shards: Shards::new(),
                content: UnsafeCell::new(7),
                released: AtomicUsize::new(0),
            })
        }

        fn get(&self, slot: usize) -> bool {
            let got = self.shards.get(slot) || self.count.try_get(Counting::Sharded);
            if got {
                self.read();
            }
            got
        }

        fn read(&self) {
            assert_eq!(self.released.load(Ordering::Relaxed), 0, "a released object");
            // SAFETY: no thread writes while there is a reference.
            assert_eq!(self.content.with(|value| unsafe { *value }), 7);
        }

        fn put(&self, slot: usize) {
            self.read();
            if !self.shards.put(slot) {
                self.note(self.count.put_alone(Counting::Sharded));
            }
        }

        /// Puts the owner's reference.
        fn end(&self) {
            self.read();
            self.count.gather(self.shards.close());
            self.note(self.count.put_alone(Counting::Sharded));
        }

        fn note(&self, put: Put) {
            assert_ne!(put, Put::Imbalanced);
            if put == Put::Last {
                // SAFETY: there is no reference any more.
                self.content.with_mut(|value| unsafe { *value = 0 });
                self.released.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn check_end(&self) {
            assert_eq!(self.released.load(Ordering::Relaxed), 1, "released exactly once");
            assert_eq!(self.count.refs_spread(self.shards.sum()), 0);
            assert!(!self.get(0), "a get after the last put");
        }
    }

    /// DST6: one thread gets in its word and puts in it, the owner ends meanwhile.
    #[test]
    fn sharded_has_exactly_one_last_put() {
        model(|| {
            let object = Object::new();
            let other = {
                let object = Arc::clone(&object);
                thread::spawn(move || {
                    if object.get(1) {
                        object.put(1);
                    }
                    if object.get(1) {
                        object.put(1);
                    }
                })
            };
            object.end();
            other.join().unwrap();
            object.check_end();
        });
    }

    /// A reference is taken in one word and put in the other by another thread, while the owner
    /// ends.
    #[test]
    fn a_reference_put_in_another_word_is_counted_once() {
        model(|| {
            let object = Object::new();
            assert!(object.get(0));
            let other = {
                let object = Arc::clone(&object);
                thread::spawn(move || object.put(1))
            };
            let third = {
                let object = Arc::clone(&object);
                thread::spawn(move || {
                    if object.get(0) {
                        object.put(0);
                    }
                })
            };
            object.end();
            other.join().unwrap();
            third.join().unwrap();
            object.check_end();
        });
    }

    /// A central word that is not raised until the sum has been added reaches zero too early: the
    /// put of a reference that is still part of the sum finds no other, although the owner has one.
    #[test]
    #[should_panic(expected = "a released object")]
    fn a_central_word_that_is_not_raised_ends_too_early() {
        model(|| {
            let object = Object::new();
            assert!(object.get(0) && object.get(1));
            let threads = [0, 1].map(|slot| {
                let object = Arc::clone(&object);
                thread::spawn(move || {
                    // Without the content, whose write loom would report first.
                    let in_word = object.shards.put(slot);
                    if !in_word && object.count.put_alone(Counting::Sharded) == Put::Last {
                        object.released.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            // The raise is taken back before the words are closed.
            object.count.gather(0);
            let sum = object.shards.close();
            assert_eq!(object.released.load(Ordering::Relaxed), 0, "a released object");
            object.count.gather(sum + i64::from(SPREAD));
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}
