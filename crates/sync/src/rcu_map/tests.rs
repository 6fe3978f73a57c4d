//! The map compared with a plain one, its growth, and its readers during changes.

use super::*;

#[cfg(not(loom))]
mod threads {
    use std::collections::BTreeMap;
    use std::sync::Arc as Live;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn entries_are_inserted_replaced_and_removed() {
        let domain = Domain::new();
        let map = RcuMap::new(&domain, 0);
        let reader = domain.reader();
        let section = reader.pin();
        assert!(map.is_empty());
        assert_eq!(map.insert(1, "a", 1), Ok(()));
        assert_eq!(map.insert(1, "a", 2), Err(("a", 2)));
        // Two keys may have the same hash.
        assert_eq!(map.insert(1, "b", 3), Ok(()));
        let old = map.lookup(1, &"a", &section).unwrap();
        assert_eq!(map.replace_if(1, "a", 4, |present| *present == 9), Err(("a", 4)));
        assert_eq!(map.replace_if(1, "a", 4, |present| *present == 1), Ok(()));
        assert_eq!(map.replace_if(1, "c", 4, |_| true), Err(("c", 4)));
        assert_eq!((old, map.lookup(1, &"a", &section)), (&1, Some(&4)));
        assert!(map.insert_or_replace(1, "a", 5) && !map.insert_or_replace(7, "d", 6));
        assert_eq!(map.lookup_where(1, |key, value| *key > "a" && *value == 3, &section), Some(&3));
        assert_eq!(map.len(), 3);
        assert!(!map.remove_if(1, &"a", |present| *present == 4) && !map.remove(2, &"a"));
        assert!(map.remove(1, &"a") && !map.remove(1, &"a"));
        let mut rest = BTreeMap::new();
        map.for_each(&section, |key, value| assert_eq!(rest.insert(*key, *value), None));
        assert_eq!(rest, BTreeMap::from([("b", 3), ("d", 6)]));
        assert_eq!(old, &1);
    }

    #[test]
    fn a_growing_map_keeps_its_chains_short() {
        const ENTRIES: u32 = 100_000;
        let domain = Domain::new();
        let map = RcuMap::new(&domain, 16);
        let reader = domain.reader();
        for key in 0..ENTRIES {
            // A poor hash: only multiples of 16.
            map.insert(key * 16, key, key + 1).unwrap();
        }
        let section = reader.pin();
        assert!((0..ENTRIES).all(|key| map.lookup(key * 16, &key, &section) == Some(&(key + 1))));
        assert!(map.lookup(ENTRIES, &ENTRIES, &section).is_none());
        assert_eq!(map.len(), ENTRIES as usize);
        assert!(longest_chain(&map) <= 12);
        let mut sum = 0;
        map.for_each(&section, |_, value| sum += u64::from(*value));
        assert_eq!(sum, u64::from(ENTRIES) * u64::from(ENTRIES + 1) / 2);
        drop(section);
        assert!((0..ENTRIES).all(|key| map.remove(key * 16, &key)));
        assert!(map.is_empty() && domain.reclaim() == 0);
    }

    /// A walk between whose parts the table grows.
    #[test]
    fn a_walk_in_parts_misses_no_entry_while_the_table_grows() {
        const ENTRIES: u32 = 2000;
        let domain = Domain::new();
        let map = RcuMap::new(&domain, 16);
        (0..ENTRIES).for_each(|key| map.insert(key, key, ()).unwrap());
        let (reader, grown_from) = (domain.reader(), buckets(&map));
        let (mut seen, mut pieces, mut added) = (vec![0; ENTRIES as usize], 0, ENTRIES);
        let mut place = Some(Place::default());
        while let Some(from) = place {
            let mut visited = 0;
            place = map.for_each_from(&reader.pin(), from, 64, |key, _| {
                visited += 1;
                if let Some(times) = seen.get_mut(*key as usize) {
                    *times += 1;
                }
            });
            assert!(visited < 64 + 20, "{visited}: the requested number and the rest of a chain");
            pieces += 1;
            if added < 4 * ENTRIES {
                (0..500).for_each(|key| map.insert(added + key, added + key, ()).unwrap());
                added += 500;
            }
        }
        assert!(buckets(&map) > grown_from && pieces > 30);
        assert!(seen.iter().all(|times| *times > 0));
    }

    /// A section that stays open forbids all growth but the first, and has no other effect.
    #[test]
    fn a_stripe_grows_only_once_during_a_section() {
        let domain = Domain::new();
        let map = RcuMap::new(&domain, 1);
        let reader = domain.reader();
        let section = reader.pin();
        for key in 0..200 {
            map.insert(key, key, ()).unwrap();
        }
        assert!((0..200).all(|key| map.lookup(key, &key, &section).is_some()));
        assert_eq!(buckets(&map), 2);
        drop(section);
        for key in 200..400 {
            map.insert(key, key, ()).unwrap();
        }
        assert!(buckets(&map) > 2);
    }

    #[test]
    fn every_value_is_dropped_once() {
        let (domain, live) = (Domain::new(), Live::new(()));
        let map = RcuMap::new(&domain, 4);
        for key in 0..1000 {
            map.insert(key, key, Live::clone(&live)).unwrap();
            map.insert_or_replace(key, key, Live::clone(&live));
            assert!(key % 3 != 0 || map.remove(key, &key));
        }
        domain.reclaim();
        assert_eq!(Live::strong_count(&live), map.len() + 1);
        drop(map);
        assert_eq!(Live::strong_count(&live), 1);
    }

    /// The drop of a value may use the map: a child socket removes its request.
    #[test]
    fn a_dropped_value_may_use_the_map() {
        type Map = RcuMap<u32, Option<Child>>;
        struct Child(Live<std::sync::OnceLock<Map>>);
        impl Drop for Child {
            fn drop(&mut self) {
                self.0.get().unwrap().insert_or_replace(0, 0, None);
            }
        }
        let domain = Domain::new();
        let map = Live::new(std::sync::OnceLock::new());
        map.set(Map::new(&domain, 1)).unwrap();
        let shared = map.get().unwrap();
        for key in 1..500 {
            shared.insert(key, key, Some(Child(Live::clone(&map)))).map_err(drop).unwrap();
            assert!(shared.remove(key, &key));
        }
        while domain.reclaim() > 0 {}
        assert_eq!(shared.len(), 1);
    }

    #[test]
    fn stress_an_entry_that_stays_is_always_found() {
        const STAYING: u32 = 500;
        let domain = Domain::new();
        let map = RcuMap::new(&domain, 8);
        let done = AtomicBool::new(false);
        for key in 0..STAYING {
            map.insert(key, key, Box::new(key)).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (map, done, reader) = (&map, &done, domain.reader());
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        for key in 0..2 * STAYING {
                            let section = reader.pin();
                            let found = map.lookup(key, &key, &section);
                            assert!(found.map_or(key >= STAYING, |value| **value == key));
                        }
                    }
                });
            }
            let writers = [1, 2].map(|writer| {
                let map = &map;
                scope.spawn(move || {
                    // Grows, empties, and replaces, round after round.
                    for round in 0..4 {
                        let keys = (STAYING + writer..STAYING + 20_000).step_by(2);
                        for key in keys.clone() {
                            map.insert(key, key, Box::new(key)).unwrap();
                            let old = key % STAYING;
                            map.replace_if(old, old, Box::new(old), |_| round == 1).ok();
                        }
                        keys.for_each(|key| assert!(map.remove(key, &key)));
                    }
                })
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(map.len(), STAYING as usize);
    }

    fn tables<K, V>(map: &RcuMap<K, V>) -> impl Iterator<Item = &Table<K, V>> {
        // SAFETY: the callers have no concurrent writer.
        map.tables.iter().map(|table| unsafe { &*table.load(Ordering::Acquire) })
    }

    fn buckets<K, V>(map: &RcuMap<K, V>) -> usize {
        tables(map).map(|table| table.buckets.len()).sum()
    }

    fn longest_chain<K, V>(map: &RcuMap<K, V>) -> usize {
        let chain = |side: usize, bucket: &AtomicPtr<Node<K, V>>| {
            let first = bucket.load(Ordering::Acquire);
            // SAFETY: as in `tables`.
            let follow =
                |node: &*mut Node<K, V>| unsafe { (**node).next[side].load(Ordering::Acquire) };
            core::iter::successors(Some(first), |node| (!node.is_null()).then(|| follow(node)))
                .filter(|node| !node.is_null())
                .count()
        };
        let longest = |table: &Table<K, V>| {
            table.buckets.iter().map(|bucket| chain(table.side, bucket)).max()
        };
        tables(map).filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(loom)]
mod models {
    use loom::thread;

    use super::*;
    use crate::shim::{self, Arc};
    use crate::test_item::Watched;

    fn world(keys: &[u32]) -> (Domain, Arc<RcuMap<u32, Watched>>) {
        let domain = Domain::new();
        let map = RcuMap::new(&domain, 1);
        for &key in keys {
            assert!(map.insert(key, key, Watched::new(key)).is_ok());
        }
        (domain, Arc::new(map))
    }

    #[test]
    fn loom_lookup_against_remove_and_reclaim() {
        shim::model(|| {
            let (domain, map) = world(&[1]);
            let reader = {
                let (map, reader) = (map.clone(), domain.reader());
                thread::spawn(move || {
                    let section = reader.pin();
                    let found = map.lookup(1, &1, &section).map(Watched::read);
                    assert!(found.is_none_or(|value| value == 1));
                })
            };
            assert!(map.remove(1, &1));
            assert!(map.insert(1, 1, Watched::new(1)).is_ok());
            domain.reclaim();
            reader.join().unwrap();
        });
    }

    /// A replaced key is found at every moment, with the old value or the new one.
    #[test]
    fn loom_lookup_against_replace() {
        shim::model(|| {
            let (domain, map) = world(&[1]);
            let reader = {
                let (map, reader) = (map.clone(), domain.reader());
                thread::spawn(move || {
                    let section = reader.pin();
                    let found = map.lookup(1, &1, &section).map(Watched::read);
                    assert!(matches!(found, Some(1 | 2)));
                })
            };
            assert!(map.replace_if(1, 1, Watched::new(2), |_| true).is_ok());
            domain.reclaim();
            reader.join().unwrap();
        });
    }

    /// The chain is linked anew under the reader, twice if the grace period allows it. An entry
    /// that is present all the time is found, and so is an entry inserted before the reader's
    /// lookup.
    #[test]
    fn loom_lookup_against_growth() {
        shim::model(|| {
            let (domain, map) = world(&[1]);
            let reader = {
                let (map, reader) = (map.clone(), domain.reader());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let section = reader.pin();
                        assert_eq!(map.lookup(1, &1, &section).map(Watched::read), Some(1));
                    }
                })
            };
            for key in 2..4 {
                assert!(map.insert(key, key, Watched::new(key)).is_ok());
                domain.reclaim();
            }
            reader.join().unwrap();
            let reader = domain.reader();
            let section = reader.pin();
            for key in 1..4 {
                assert_eq!(map.lookup(key, &key, &section).map(Watched::read), Some(key));
            }
        });
    }

    /// One of two writers of the same key wins, and the other gets its entry back.
    #[test]
    fn loom_two_writers_of_one_key() {
        shim::model(|| {
            let (domain, map) = world(&[]);
            let other = {
                let map = map.clone();
                thread::spawn(move || map.insert(1, 1, Watched::new(1)).is_ok())
            };
            let won = map.insert(1, 1, Watched::new(1)).is_ok();
            assert!(won != other.join().unwrap());
            assert_eq!(map.len(), 1);
            let reader = domain.reader();
            assert!(map.lookup(1, &1, &reader.pin()).is_some());
        });
    }
}
