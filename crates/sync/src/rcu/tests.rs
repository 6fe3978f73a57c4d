//! A loaded value stays allocated and unchanged, and no update is lost.

use super::*;

#[cfg(not(loom))]
mod threads {
    use super::*;

    #[test]
    fn a_section_keeps_the_value_it_loaded() {
        let domain = Domain::new();
        let mut cell = RcuCell::new(&domain, String::from("one"));
        let reader = domain.reader();
        let section = reader.pin();
        let first = cell.load(&section);
        cell.update(|present| format!("{present}, two"));
        assert_eq!((first.as_str(), cell.load(&section).as_str()), ("one", "one, two"));
        cell.replace(String::from("three"));
        assert_eq!(domain.reclaim(), 2);
        assert_eq!(first, "one");
        drop(section);
        assert_eq!(domain.reclaim(), 0);
        assert_eq!(cell.get_mut(), "three");
    }

    #[test]
    fn an_exchanged_value_is_retired_when_the_result_is_dropped() {
        let domain = Domain::new();
        let mut cell = RcuCell::new(&domain, 1);
        let replaced = cell.exchange(2);
        assert_eq!((domain.pending(), domain.reclaim()), (0, 0));
        drop(replaced);
        assert_eq!((domain.pending(), domain.reclaim()), (1, 0));
        assert_eq!(*cell.get_mut(), 2);
    }

    #[test]
    #[should_panic(expected = "another domain")]
    fn a_section_of_another_domain_is_refused() {
        let cell = RcuCell::new(&Domain::new(), 0);
        let reader = Domain::new().reader();
        cell.load(&reader.pin());
    }

    #[test]
    fn stress_pairs_stay_equal() {
        let domain = Domain::new();
        let cell = RcuCell::new(&domain, (0_u64, Box::new(0_u64)));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        cell.update(|present| (present.0 + 1, Box::new(present.0 + 1)));
                    }
                });
            }
            let reader = domain.reader();
            let mut last = 0;
            while last < 40_000 {
                let section = reader.pin();
                let pair = cell.load(&section);
                assert!(pair.0 == *pair.1 && pair.0 >= last);
                last = pair.0;
            }
        });
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::shim;
    use crate::test_item::Watched;

    /// The readers' value is complete and never goes back; neither writer's update is lost.
    #[test]
    fn loom_load_against_updates() {
        shim::model(|| {
            let domain = Domain::new();
            let cell = Arc::new(RcuCell::new(&domain, Watched::new(0)));
            let increase = |cell: &RcuCell<Watched>| {
                cell.update(|present| Watched::new(present.read() + 1));
            };
            let reader = {
                let (cell, reader) = (cell.clone(), domain.reader());
                thread::spawn(move || {
                    let section = reader.pin();
                    let (first, second) = (cell.load(&section), cell.load(&section));
                    assert!(first.read() <= second.read());
                })
            };
            let writer = {
                let cell = cell.clone();
                thread::spawn(move || increase(&cell))
            };
            increase(&cell);
            domain.reclaim();
            reader.join().unwrap();
            writer.join().unwrap();
            let reader = domain.reader();
            assert_eq!(cell.load(&reader.pin()).read(), 2);
        });
    }
}
