//! A device with few places against its transmit queue.

use std::{
    string::{String, ToString},
    sync::{Mutex, PoisonError},
    vec::Vec,
};

use pkt::Batch;

use super::*;
use crate::{
    config::{DeviceConfig, HostConfig},
    cx::Memory,
    device::{Capabilities, LinkType},
};

const QUEUE: QueueId = QueueId(0);

/// A device that has `room` for packets; what it holds completes when the test says so.
#[derive(Debug)]
struct Few {
    caps: Capabilities,
    state: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    room: usize,
    calls: usize,
    sent: Vec<u8>,
    done: Completed,
}

impl Device for Few {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _: QueueId, _: &mut Cx, _: usize, _: &mut Batch) -> usize {
        0
    }

    fn transmit(&self, _: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let mut held = self.held();
        held.calls += 1;
        while held.room > 0 {
            let Some(packet) = list.pop_front() else { return };
            held.room -= 1;
            held.sent.push(packet.linear()[0]);
            cx.pool.free(packet);
        }
    }

    fn complete(&self, _: QueueId, _: &mut Cx) -> Completed {
        core::mem::take(&mut self.held().done)
    }
}

impl Few {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Bench {
    host: Arc<Host>,
    device: Arc<Few>,
    memory: Memory,
    cx: Cx,
}

impl Bench {
    fn new(async_completion: bool) -> Self {
        let caps = Capabilities {
            name: String::from("few"),
            mtu: 1500,
            link: LinkType::Ip,
            tx_checksum: true,
            tso4: true,
            tso6: true,
            gso_max_bytes: 65_535,
            queues: 1,
            async_completion,
        };
        let device = Arc::new(Few { caps, state: Mutex::default() });
        let memory = Memory::new(16 << 20);
        let mut cx = Cx::new(&memory, 1);
        cx.now = Instant::from_secs(1);
        let devices = vec![DeviceConfig { device: Arc::clone(&device) as _, addresses: vec![] }];
        let config =
            HostConfig { name: "host".to_string(), devices, cores: 1, ..HostConfig::default() };
        let host = Host::new(&memory, config).expect("valid");
        Self { host, device, memory, cx }
    }

    fn room(&self, packets: usize) {
        self.device.held().room += packets;
    }

    fn xmit(&mut self, numbers: impl IntoIterator<Item = u8>) {
        let mut list = PacketList::new();
        for number in numbers {
            list.push_back(self.cx.pool.alloc_from(&[number; 100]).expect("memory"));
        }
        let entered = self.cx.enter(&self.host);
        self.host.tx(1).xmit(&self.host, &mut self.cx, QUEUE, &mut list);
        self.cx.leave(entered);
        assert!(list.is_empty(), "nothing stays with the caller");
    }

    /// The device has sent `packets`, and its core learns of it.
    fn complete(&mut self, packets: usize) {
        self.device.held().done = Completed { packets, bytes: 100 * packets };
        self.room(packets);
        let _ = self.host.poll(&mut self.cx);
    }

    /// What was sent since the last call, and by how many calls.
    fn sent(&self) -> (Vec<u8>, usize) {
        let mut held = self.device.held();
        (core::mem::take(&mut held.sent), core::mem::take(&mut held.calls))
    }

    fn finish(self) {
        let Self { host, memory, cx, .. } = self;
        drop(host);
        drop(cx);
        assert_eq!(memory.packets.balance(), 0);
    }
}

#[test]
fn a_list_is_one_call() {
    let mut bench = Bench::new(true);
    bench.room(5);
    bench.xmit(0..5);
    assert_eq!(bench.sent(), (vec![0, 1, 2, 3, 4], 1));
    assert_eq!(bench.host.tx(1).deadline(QUEUE), None);
    bench.finish();
}

#[test]
fn what_the_device_has_no_room_for_goes_first_when_it_has() {
    let mut bench = Bench::new(true);
    bench.room(2);
    bench.xmit(0..5);
    assert_eq!(bench.sent().0, [0, 1]);
    bench.xmit(5..7);
    assert_eq!(bench.sent().0, [0; 0], "it said that it was full");
    bench.complete(2);
    assert_eq!(bench.sent().0, [2, 3]);
    bench.complete(4);
    assert_eq!(bench.sent().0, [4, 5, 6]);
    bench.xmit(7..8);
    assert_eq!(bench.sent().0, [7]);
    assert_eq!(bench.host.counters().get("TxRequeues"), Some(3 + 3));
    bench.finish();
}

#[test]
fn a_device_without_completions_is_tried_again_a_little_later() {
    let mut bench = Bench::new(false);
    bench.room(1);
    bench.xmit(0..3);
    bench.sent();
    bench.room(10);
    assert_eq!(bench.host.poll(&mut bench.cx), Some(bench.cx.now + RETRY));
    assert_eq!(bench.sent().1, 0);
    bench.cx.now += RETRY;
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.sent(), (vec![1, 2], 1));
    bench.finish();
}

#[test]
fn a_device_that_forgets_its_completions_is_tried_again_all_the_same() {
    let mut bench = Bench::new(true);
    bench.xmit(0..1);
    bench.room(1);
    bench.cx.now += WATCHDOG;
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.sent().0, [0]);
    bench.finish();
}

#[test]
fn what_waits_goes_home_with_its_host() {
    let mut bench = Bench::new(true);
    bench.xmit(0..3);
    bench.finish();
}
