//! The two orders of steps: the guarantees of the robust one, and the three wake-ups that the seed
//! loses.

use super::*;

/// Bytes of one packet of the models.
const PACKET: u32 = 100;

#[cfg(not(loom))]
#[test]
fn a_completion_queues_a_throttled_socket_once() {
    let queue = SmallQueue::new();
    for _ in 0..3 {
        queue.charge(PACKET);
    }
    assert!(queue.throttle(TsqProtocol::Robust, |bytes| bytes >= 3 * PACKET));
    assert!(queue.complete(TsqProtocol::Robust, PACKET));
    assert_eq!(queue.bytes(), 2 * PACKET + 1, "the list entry keeps one byte");
    assert!(!queue.complete(TsqProtocol::Robust, PACKET), "the socket is no longer throttled");
    assert!(queue.is_queued() && !queue.is_throttled());
    queue.begin(TsqProtocol::Robust);
    assert!(!queue.is_queued());
    queue.end(TsqProtocol::Robust);
    assert!(!queue.complete(TsqProtocol::Robust, PACKET));
    assert_eq!(queue.bytes(), 0);
}

/// All packets complete between the sender's check of the bytes and its announcement.
#[cfg(not(loom))]
#[test]
fn the_seed_stops_although_all_packets_have_completed() {
    for protocol in [TsqProtocol::Seed, TsqProtocol::Robust] {
        let queue = SmallQueue::new();
        for _ in 0..57 {
            queue.charge(2304);
        }
        assert_eq!(queue.bytes(), 131_328);
        for _ in 0..57 {
            assert!(!queue.complete(protocol, 2304));
        }
        let stops = queue.throttle(protocol, |bytes| bytes >= 131_072);
        assert_eq!(stops, protocol == TsqProtocol::Seed, "{protocol:?}");
    }
}

/// A packet that the handler sends completes on another core before the handler has ended.
#[cfg(not(loom))]
#[test]
fn the_seed_loses_the_wake_up_for_a_packet_of_its_handler() {
    for protocol in [TsqProtocol::Seed, TsqProtocol::Robust] {
        let queue = SmallQueue::new();
        queue.charge(PACKET);
        assert!(queue.throttle(protocol, |bytes| bytes >= PACKET));
        assert!(queue.complete(protocol, PACKET));
        queue.begin(protocol);
        queue.charge(PACKET);
        assert!(queue.throttle(protocol, |bytes| bytes >= PACKET));
        let queued = queue.complete(protocol, PACKET);
        queue.end(protocol);
        assert_eq!(queued, protocol == TsqProtocol::Robust, "{protocol:?}");
        assert!(!queue.is_throttled(), "either protocol clears the announcement");
    }
}

/// Models with a socket that has packets to send, of which one may be below it at a time; a device;
/// and cores that complete.
#[cfg(loom)]
mod models {
    use loom::sync::{Arc, Mutex};

    use super::*;
    use crate::shim::model;

    struct World {
        protocol: TsqProtocol,
        queue: SmallQueue,
        /// Packets still to be sent, under the socket lock.
        socket: Mutex<u32>,
        /// Packets in the device.
        device: Mutex<u32>,
    }

    impl World {
        fn new(protocol: TsqProtocol, packets: u32) -> Arc<Self> {
            Arc::new(Self {
                protocol,
                queue: SmallQueue::new(),
                socket: Mutex::new(packets),
                device: Mutex::new(0),
            })
        }

        /// The write loop, under the socket lock.
        fn send(&self) {
            let mut left = self.socket.lock().unwrap();
            while *left > 0 {
                let over = |bytes| bytes >= PACKET;
                if over(self.queue.bytes()) && self.queue.throttle(self.protocol, over) {
                    return;
                }
                *left -= 1;
                self.queue.charge(PACKET);
                *self.device.lock().unwrap() += 1;
            }
        }

        /// Completes one packet if there is one, and runs the handler if required. Returns false if
        /// there was none.
        fn complete(&self) -> bool {
            {
                let mut device = self.device.lock().unwrap();
                if *device == 0 {
                    return false;
                }
                *device -= 1;
            }
            if self.queue.complete(self.protocol, PACKET) {
                self.queue.begin(self.protocol);
                self.send();
                self.queue.end(self.protocol);
            }
            true
        }

        /// Completes the packets in the device. Afterwards no packet may be left to send.
        fn finish(&self) {
            while self.complete() {}
            assert_eq!(*self.socket.lock().unwrap(), 0, "no completion wakes the sender");
            assert_eq!(self.queue.bytes(), 0);
        }
    }

    /// A sender against one core that completes: the announcement and the subtraction.
    fn sender_against_completion(protocol: TsqProtocol) {
        model(move || {
            let world = World::new(protocol, 2);
            let core = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    world.complete();
                })
            };
            world.send();
            core.join().unwrap();
            world.finish();
        });
    }

    /// A handler against another core that completes the packets it sends. The first packet is
    /// below already, and its sender throttled.
    fn handler_against_completion(protocol: TsqProtocol) {
        model(move || {
            let world = World::new(protocol, 3);
            world.send();
            let core = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    world.complete();
                })
            };
            world.complete();
            core.join().unwrap();
            world.finish();
        });
    }

    #[test]
    fn loom_robust_sender_is_always_woken() {
        sender_against_completion(TsqProtocol::Robust);
    }

    #[test]
    fn loom_robust_handler_is_queued_again() {
        handler_against_completion(TsqProtocol::Robust);
    }

    /// The seed does not check the bytes again after its announcement, and a completion checks the
    /// flags before it subtracts.
    #[test]
    #[should_panic(expected = "no completion wakes the sender")]
    fn loom_seed_loses_the_wake_up_of_its_sender() {
        sender_against_completion(TsqProtocol::Seed);
    }

    /// The seed clears QUEUED after the handler has sent.
    #[test]
    #[should_panic(expected = "no completion wakes the sender")]
    fn loom_seed_loses_the_wake_up_of_its_handler() {
        handler_against_completion(TsqProtocol::Seed);
    }

    /// Only the seed's completion, which checks the flags before it subtracts, against a sender
    /// that does check again.
    #[test]
    #[should_panic(expected = "no completion wakes the sender")]
    fn loom_flags_before_bytes_lose_a_wake_up() {
        model(|| {
            let queue = Arc::new(SmallQueue::new());
            queue.charge(PACKET);
            let core = {
                let queue = queue.clone();
                loom::thread::spawn(move || queue.complete(TsqProtocol::Seed, PACKET))
            };
            let over = |bytes| bytes >= PACKET;
            let stopped = over(queue.bytes()) && queue.throttle(TsqProtocol::Robust, over);
            let queued = core.join().unwrap();
            assert!(!stopped || queued, "no completion wakes the sender");
        });
    }
}
