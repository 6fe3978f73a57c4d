//! Order, limits, and the drop of items that are not received.

use std::sync::Arc as Live;

use super::*;

#[cfg(not(loom))]
#[test]
fn a_ring_is_fifo_and_full_at_its_limit() {
    let ring = Arc::new(Ring::new(3));
    let mut receiver = Ring::receiver(&ring).expect("the first");
    assert!(Ring::receiver(&ring).is_none(), "there is one receiver at a time");
    for round in 0..10 {
        let mut sender = ring.sender();
        let sent: Vec<_> = (0..4).map(|n| sender.push(round * 10 + n)).collect();
        assert_eq!(sent, [Ok(()), Ok(()), Ok(()), Err(round * 10 + 3)]);
        assert_eq!(receiver.pop(), None, "no item is visible before the sender is dropped");
        drop(sender);
        assert!(!ring.is_empty() && !receiver.is_empty());
        let received: Vec<_> = std::iter::from_fn(|| receiver.pop()).collect();
        assert_eq!(received, [round * 10, round * 10 + 1, round * 10 + 2]);
        assert!(ring.is_empty() && receiver.is_empty());
    }
    drop(receiver);
    assert!(Ring::receiver(&ring).is_some());
}

#[cfg(not(loom))]
#[test]
fn items_not_received_are_dropped_with_the_ring() {
    let live = Live::new(());
    let ring = Arc::new(Ring::new(4));
    for _ in 0..3 {
        ring.sender().push(live.clone()).expect("room");
    }
    let mut receiver = Ring::receiver(&ring).expect("the first");
    drop(receiver.pop());
    assert_eq!(Live::strong_count(&live), 3);
    drop((receiver, ring));
    assert_eq!(Live::strong_count(&live), 1);
}

#[cfg(not(loom))]
#[test]
fn a_small_ring_keeps_each_senders_order() {
    const ITEMS: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let ring = Arc::new(Ring::new(8));
    let senders: Vec<_> = (0..2usize)
        .map(|sender| {
            let ring = ring.clone();
            std::thread::spawn(move || {
                for number in 0..ITEMS {
                    while ring.sender().push((sender, number)).is_err() {
                        shim::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut receiver = Ring::receiver(&ring).expect("the first");
    let mut next = [0; 2];
    while next != [ITEMS; 2] {
        match receiver.pop() {
            Some((sender, number)) => {
                assert_eq!(number, next[sender]);
                next[sender] += 1;
            }
            None => shim::yield_now(),
        }
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

/// Two senders of two items each, a ring of two, and a receiver: each item arrives once, those of
/// one sender in order, and an item that does not fit is given back.
#[cfg(loom)]
#[test]
fn loom_every_item_arrives_once_and_in_order() {
    shim::model(|| {
        let live = Live::new(());
        let ring = Arc::new(Ring::new(2));
        let senders = [0, 1].map(|name| {
            let (ring, live) = (ring.clone(), live.clone());
            loom::thread::spawn(move || {
                let mut sender = ring.sender();
                (0..2).filter(|number| sender.push((name, *number, live.clone())).is_ok()).count()
            })
        });
        let mut receiver = Ring::receiver(&ring).expect("the first");
        let mut next = [0, 0];
        let mut take = |receiver: &mut Receiver<(usize, usize, Live<()>)>| {
            while let Some((name, number, _)) = receiver.pop() {
                assert!(number >= next[name], "an item overtook another, or arrived twice");
                next[name] = number + 1;
            }
        };
        let mut received = 0;
        take(&mut receiver);
        let sent: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        take(&mut receiver);
        received += next[0] + next[1];
        assert!(received >= sent, "an item was lost");
        drop((receiver, ring));
        assert_eq!(Live::strong_count(&live), 1);
    });
}

/// A second thread becomes the receiver after the first, and sees everything the first has seen.
#[cfg(loom)]
#[test]
fn loom_receivers_follow_each_other() {
    shim::model(|| {
        let ring = Arc::new(Ring::new(2));
        {
            let mut sender = ring.sender();
            assert!(sender.push(1).is_ok() && sender.push(2).is_ok());
        }
        let other = {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                Ring::receiver(&ring).and_then(|mut receiver| receiver.pop()).unwrap_or(0)
            })
        };
        let here = Ring::receiver(&ring).and_then(|mut receiver| receiver.pop()).unwrap_or(0);
        let sum = here + other.join().unwrap();
        let rest: u32 = {
            let mut receiver = Ring::receiver(&ring).expect("no other receiver");
            core::iter::from_fn(|| receiver.pop()).sum()
        };
        assert_eq!(sum + rest, 3);
    });
}
