//! The deferred-free list of a socket. A reader leaves the packets it has emptied on a list before
//! it releases the socket, and frees the packets on the list afterwards; softirq frees the packets
//! it finds before it takes the socket. That is `net.quietline.skb_recycle` at `list_after_unlock`,
//! as `stack::socket` does it; Linux: `sk_defer_free_flush`.

use loom::{
    sync::{Arc, Mutex},
    thread,
};

use super::*;

#[derive(Default)]
struct Shared {
    lock: Lock,
    read_packets: Llist<Item>,
    freed: Mutex<Vec<(u32, u32)>>,
}

impl Shared {
    /// Frees all packets on the list, by a thread without the lock.
    fn free(&self) {
        if self.read_packets.is_empty() {
            return;
        }
        for packet in self.read_packets.take_all() {
            // The link and the contents are plain memory: loom reports unordered reads.
            self.freed.lock().unwrap().push(packet.id());
        }
    }

    /// A call that reads `count` packets.
    fn read(&self, reader: u32, count: u32) {
        let owned = self.lock.own();
        for sequence in 0..count {
            self.read_packets.push(Item::new(reader, sequence, &std::sync::Arc::new(())));
        }
        owned.release(run);
        self.free();
    }

    /// A segment arrives.
    fn segment(&self, producer: u32) {
        self.free();
        let item = Item::new(producer, 0, &std::sync::Arc::new(()));
        assert!(softirq(&self.lock, item, 1, 8, run).is_ok());
    }

    /// After all calls have ended: no packet waits for a further call, and each was freed once.
    fn finish(&self, readers: &[(u32, u32)]) {
        assert!(self.read_packets.is_empty(), "a packet waits for a call that may never come");
        let mut freed = core::mem::take(&mut *self.freed.lock().unwrap());
        freed.sort_unstable();
        let all = readers.iter().flat_map(|&(reader, count)| (0..count).map(move |n| (reader, n)));
        assert!(freed.iter().copied().eq(all), "{freed:?}");
        assert_eq!(self.lock.word.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn loom_every_packet_of_a_reader_is_freed_once() {
    shim::model(|| {
        let socket = Arc::new(Shared::default());
        let core = {
            let socket = socket.clone();
            thread::spawn(move || {
                socket.segment(9);
                socket.segment(9);
            })
        };
        socket.read(1, 2);
        core.join().unwrap();
        socket.finish(&[(1, 2)]);
    });
}

#[test]
fn loom_two_readers_and_softirq_free_each_packet_once() {
    shim::model(|| {
        let socket = Arc::new(Shared::default());
        let core = {
            let socket = socket.clone();
            thread::spawn(move || socket.segment(9))
        };
        let reader = {
            let socket = socket.clone();
            thread::spawn(move || socket.read(2, 1))
        };
        socket.read(1, 1);
        core.join().unwrap();
        reader.join().unwrap();
        socket.finish(&[(1, 1), (2, 1)]);
    });
}
