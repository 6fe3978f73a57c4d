//! Both ends of a ring in ordinary memory: the test uses the opposite end in place of the kernel.

use std::thread;

use super::*;

/// Returns both ends of a ring of `size` entries whose indices begin at `index`.
pub(in super::super) fn pair<E: Entry>(
    size: u32,
    index: u32,
) -> (Producer<E>, Consumer<E>, Arc<Mapping>) {
    let layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };
    let memory = Arc::new(Mapping::anonymous(192 + size as usize * E::BYTES).expect("memory"));
    memory.word(layout.producer).store(index, Ordering::Relaxed);
    memory.word(layout.consumer).store(index, Ordering::Relaxed);
    let producer = Producer::new(Arc::clone(&memory), layout, size);
    let consumer = Consumer::new(Arc::clone(&memory), layout, size);
    (producer, consumer, memory)
}

#[test]
fn entries_arrive_in_order_once_published() {
    let (mut producer, mut consumer, _) = pair::<u64>(4, 0);
    assert_eq!(consumer.peek(), None);
    producer.push(10).expect("room");
    producer.push(11).expect("room");
    assert_eq!((consumer.peek(), consumer.ready()), (None, 0), "the entries are not published");
    producer.publish();
    assert_eq!((consumer.ready(), producer.waiting()), (2, 2));
    assert_eq!((consumer.pop(), consumer.peek()), (Some(10), Some(11)));
    assert_eq!(producer.waiting(), 2, "the slots are not released");
    consumer.release();
    assert_eq!((producer.waiting(), consumer.ready()), (1, 1));
    assert_eq!((consumer.pop(), consumer.pop()), (Some(11), None));
}

#[test]
fn a_full_ring_returns_the_entry() {
    let (mut producer, mut consumer, _) = pair::<u64>(4, 0);
    for number in 0..4 {
        producer.push(number).expect("room");
    }
    assert_eq!(producer.push(4), Err(4));
    producer.publish();
    assert_eq!(consumer.pop(), Some(0));
    assert_eq!(producer.push(4), Err(4), "the slot was not released");
    consumer.release();
    producer.push(4).expect("room again");
    producer.publish();
    assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn indices_wrap_around() {
    let (mut producer, mut consumer, _) = pair::<Descriptor>(8, u32::MAX - 5);
    for round in 0..10u32 {
        for number in 0..3 {
            let addr = u64::from(round * 3 + number);
            producer.push(Descriptor { addr, len: round, options: number }).expect("room");
        }
        producer.publish();
        assert_eq!(consumer.ready(), 3);
        for number in 0..3 {
            let addr = u64::from(round * 3 + number);
            assert_eq!(consumer.pop(), Some(Descriptor { addr, len: round, options: number }));
        }
        consumer.release();
        assert_eq!((producer.waiting(), consumer.ready()), (0, 0));
    }
}

#[test]
fn the_wakeup_flag_of_the_kernel_is_read() {
    let (producer, _, memory) = pair::<u64>(4, 0);
    assert!(!producer.needs_wakeup());
    memory.word(128).store(NEED_WAKEUP, Ordering::Relaxed);
    assert!(producer.needs_wakeup());
}

#[test]
fn two_threads_lose_and_repeat_no_entry() {
    const ENTRIES: u64 = 100_000;
    let (mut producer, mut consumer, _) = pair::<Descriptor>(8, u32::MAX - 1000);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 0;
            while number < ENTRIES {
                let len = u32::try_from(number % 1500).expect("small");
                match producer.push(Descriptor { addr: number, len, options: !len }) {
                    Ok(()) => number += 1,
                    Err(_) => thread::yield_now(),
                }
                if number % 3 == 0 || number == ENTRIES {
                    producer.publish();
                }
            }
        });
        let mut expected = 0;
        while expected < ENTRIES {
            while let Some(Descriptor { addr, len, options }) = consumer.pop() {
                assert_eq!((addr, u64::from(len), options), (expected, expected % 1500, !len));
                expected += 1;
            }
            consumer.release();
            thread::yield_now();
        }
    });
}
