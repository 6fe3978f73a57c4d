//! Order, ownership and races of the intrusive lists.

use std::sync::Arc as Live;

use super::*;
use crate::test_item::Item;

#[cfg(not(loom))]
#[test]
fn chain_keeps_order_and_drops_the_rest() {
    let live = Live::new(());
    let mut chain: Chain<_> = (1..4).map(|n| Item::new(0, n, &live)).collect();
    let mut other: Chain<_> = (4..6).map(|n| Item::new(0, n, &live)).collect();
    chain.push_front(Item::new(0, 0, &live));
    chain.append(&mut other);
    assert!(other.is_empty());
    other.push_back(Item::new(0, 6, &live));
    chain.append(&mut other);
    let first: Vec<_> = chain.by_ref().take(5).map(|item| item.id().1).collect();
    assert_eq!(first, [0, 1, 2, 3, 4]);
    assert_eq!(Live::strong_count(&live), 3);
    drop(chain);
    assert_eq!(Live::strong_count(&live), 1);
}

#[cfg(not(loom))]
#[test]
fn take_all_is_fifo_over_pushes_and_chains() {
    let live = Live::new(());
    let list = Llist::new();
    assert!(list.push(Item::new(0, 0, &live)));
    assert!(!list.push_chain((1..4).map(|n| Item::new(0, n, &live)).collect()));
    assert!(!list.push(Item::new(0, 4, &live)));
    assert!(!list.is_empty());
    let order: Vec<_> = list.take_all().map(|item| item.id().1).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    assert!(list.is_empty() && list.take_all().is_empty());
    assert!(!list.push_chain(Chain::new()));
    list.push(Item::new(0, 5, &live));
    drop(list);
    assert_eq!(Live::strong_count(&live), 1);
}

#[cfg(not(loom))]
#[test]
fn stress_each_producer_stays_in_order() {
    const PRODUCERS: u32 = 3;
    const EACH: u32 = 20_000;
    let live = Live::new(());
    let list = Llist::new();
    let mut expected = [0; PRODUCERS as usize];
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (list, live) = (&list, &live);
            scope.spawn(move || {
                for sequence in (0..EACH).step_by(2) {
                    if sequence % 3 == 0 {
                        let two = [sequence, sequence + 1].map(|n| Item::new(producer, n, live));
                        list.push_chain(two.into_iter().collect());
                    } else {
                        list.push(Item::new(producer, sequence, live));
                        list.push(Item::new(producer, sequence + 1, live));
                    }
                }
            });
        }
        while expected != [EACH; PRODUCERS as usize] {
            for item in list.take_all() {
                let (producer, sequence) = item.id();
                assert_eq!(
                    std::mem::replace(&mut expected[producer as usize], sequence + 1),
                    sequence
                );
            }
            std::thread::yield_now();
        }
    });
    assert_eq!(Live::strong_count(&live), 1);
}

/// Two pushers and a taker: no item is lost or doubled, each pusher's items stay in order, and the
/// taker sees the items' contents (loom checks the plain accesses to the links).
#[cfg(loom)]
#[test]
fn loom_push_against_take_all() {
    use loom::sync::Arc;

    crate::shim::model(|| {
        let live = Live::new(());
        let list = Arc::new(Llist::new());
        let pusher = {
            let (list, live) = (list.clone(), live.clone());
            loom::thread::spawn(move || {
                list.push(Item::new(1, 0, &live));
                list.push(Item::new(1, 1, &live));
            })
        };
        let chain_pusher = {
            let (list, live) = (list.clone(), live.clone());
            loom::thread::spawn(move || {
                list.push_chain((0..2).map(|n| Item::new(2, n, &live)).collect());
            })
        };
        let mut seen: Vec<_> = list.take_all().map(|item| item.id()).collect();
        pusher.join().unwrap();
        chain_pusher.join().unwrap();
        seen.extend(list.take_all().map(|item| item.id()));
        for producer in [1, 2] {
            let order: Vec<_> = seen.iter().filter(|id| id.0 == producer).map(|id| id.1).collect();
            assert_eq!(order, [0, 1]);
        }
        drop(list);
        assert_eq!(Live::strong_count(&live), 1);
    });
}
