//! Order, wake-ups, and the guarantee of `done`.

use std::sync::Arc as Live;

use super::*;
use crate::test_item::Item;

fn items(sender: u32, numbers: core::ops::Range<u32>, live: &Live<()>) -> Chain<Item> {
    numbers.map(|number| Item::new(sender, number, live)).collect()
}

#[cfg(not(loom))]
#[test]
fn a_lane_is_fifo_and_only_the_first_push_wakes() {
    let live = Live::new(());
    let lanes = Lanes::new(3);
    assert_eq!(lanes.take_ready(), 0);
    assert!(!lanes.push(0, Chain::new(), 0), "no item was pushed");
    assert!(lanes.push(2, items(2, 0..2, &live), 2));
    assert!(!lanes.push(0, items(0, 0..1, &live), 1));
    assert!(!lanes.push(2, items(2, 2..3, &live), 1));
    assert_eq!((lanes.len(), lanes.take_ready(), lanes.take_ready()), (4, 0b101, 0));
    let order: Vec<_> = lanes.take(2).map(|item| item.id()).collect();
    assert_eq!(order, [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(lanes.done(2), 0, "a taken item is not finished");
    lanes.finish(2, 3);
    assert_eq!((lanes.done(2), lanes.done(0), lanes.len()), (3, 0, 1));
    assert!(lanes.push(2, items(2, 3..4, &live), 1), "all bits were taken");
    drop(lanes);
    assert_eq!(Live::strong_count(&live), 1);
}

/// Two senders, and a receiver that checks only when it was woken: it gets every item.
#[cfg(loom)]
#[test]
fn loom_no_item_waits_for_the_next_push() {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    crate::shim::model(|| {
        let live = Live::new(());
        let (lanes, wakes) = (Arc::new(Lanes::new(2)), Arc::new(AtomicUsize::new(0)));
        let senders = [0, 1].map(|sender| {
            let (lanes, wakes, live) = (lanes.clone(), wakes.clone(), live.clone());
            loom::thread::spawn(move || {
                if lanes.push(sender, items(sender as u32, 0..1, &live), 1) {
                    wakes.fetch_add(1, Ordering::Release);
                }
            })
        });
        let mut seen = 0;
        let mut looked = 0;
        let mut look = |wakes: usize| {
            if wakes > looked {
                looked = wakes;
                let ready = lanes.take_ready();
                for sender in (0..2).filter(|sender| ready & (1 << sender) != 0) {
                    let count = lanes.take(sender).count() as u32;
                    lanes.finish(sender, count);
                    seen += count;
                }
            }
        };
        look(wakes.load(Ordering::Acquire));
        for sender in senders {
            sender.join().unwrap();
        }
        look(wakes.load(Ordering::Acquire));
        assert_eq!(seen, 2);
        assert!(lanes.is_empty());
    });
}

/// The reason for `done`: a sender that sees its first item finished by one receiver may give the
/// second to another receiver, which sees the effects of the first. Otherwise loom reports the
/// receivers' plain accesses as racing.
#[cfg(loom)]
#[test]
fn loom_a_flow_that_changes_its_receiver_stays_in_order() {
    use crate::shim::UnsafeCell;
    use loom::sync::Arc;

    struct Stream(UnsafeCell<Vec<u32>>);
    // SAFETY: that no two accesses overlap is the property that the model checks.
    unsafe impl Sync for Stream {}
    // SAFETY: as above.
    unsafe impl Send for Stream {}

    fn receive(lanes: &Lanes<Item>, stream: &Stream) {
        if lanes.take_ready() == 0 {
            return;
        }
        let mut count = 0;
        for item in lanes.take(0) {
            // SAFETY: as above.
            stream.0.with_mut(|stream| unsafe { (*stream).push(item.id().1) });
            count += 1;
        }
        lanes.finish(0, count);
    }

    crate::shim::model(|| {
        let live = Live::new(());
        let lanes = Arc::new([Lanes::new(1), Lanes::new(1)]);
        let stream = Arc::new(Stream(UnsafeCell::new(Vec::new())));
        let sender = {
            let (lanes, live) = (lanes.clone(), live.clone());
            loom::thread::spawn(move || {
                let _ = lanes[0].push(0, items(0, 0..1, &live), 1);
                let moved = lanes[0].done(0) == 1;
                let _ = lanes[usize::from(moved)].push(0, items(0, 1..2, &live), 1);
            })
        };
        let receiver = {
            let (lanes, stream) = (lanes.clone(), stream.clone());
            loom::thread::spawn(move || receive(&lanes[0], &stream))
        };
        // Only a flow that has moved gets here, and the second lanes have no other receiver.
        receive(&lanes[1], &stream);
        sender.join().unwrap();
        receiver.join().unwrap();
        for lanes in &*lanes {
            receive(lanes, &stream);
        }
        // SAFETY: the other threads have ended.
        stream.0.with(|stream| assert_eq!(unsafe { &*stream }, &[0, 1]));
    });
}
