//! Tests of transmit queues with a device that has little room.

use std::{
    string::ToString,
    sync::{Mutex, MutexGuard, PoisonError},
    vec::Vec,
};

use pkt::{Batch, DropReason};

use super::*;
use crate::{
    base::limits::{BIG_TCP_BYTES_MAX, GSO_BYTES_MAX},
    cx::Memory,
    device::Capabilities,
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
};

mod disciplines;
mod refused;

const DEVICE: DeviceIndex = DeviceIndex(1);
const QUEUE: QueueId = QueueId(0);

/// Device that accepts `Held::room` packets. A test reports their completion (`Bench::complete`).
#[derive(Debug)]
struct Few {
    caps: Capabilities,
    state: Mutex<Held>,
    /// Packets that a simulated second thread sends during the next call of `transmit`.
    meanwhile: Mutex<Option<Other>>,
}

/// Host, memory and packet numbers of the second thread.
type Other = (Arc<Host>, Memory, Vec<u8>);

#[derive(Debug, Default)]
struct Held {
    room: usize,
    calls: usize,
    sent: Vec<u8>,
    done: Completed,
    /// Length above which the device refuses superframes (packets of several segments).
    refuses_above: Option<u32>,
    superframe_max: Option<u32>,
}

impl Device for Few {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _: QueueId, _: &mut Cx, _: usize, _: &mut Batch) -> usize {
        0
    }

    fn transmit(&self, _: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((host, memory, numbers)) = meanwhile {
            let mut other = Cx::replay(&memory, 2);
            other.now = cx.now;
            assert_eq!(send(&host, &mut other, numbers, 100), NetXmit::Success);
        }
        let mut held = self.held();
        held.calls += 1;
        while held.room > 0 {
            let Some(packet) = list.pop_front() else { return };
            let bytes = u32::try_from(packet.len()).expect("the length of a packet fits");
            if packet.meta().gso.segs > 1 && held.refuses_above.is_some_and(|max| bytes > max) {
                held.superframe_max = held.refuses_above;
                return list.push_front(packet);
            }
            held.room -= 1;
            let mut number = [0];
            packet.copy_to(0, &mut number);
            held.sent.extend(number);
            cx.pool.free(packet);
        }
    }

    fn complete(&self, _: QueueId, _: &mut Cx) -> Completed {
        core::mem::take(&mut self.held().done)
    }

    fn superframe_max(&self) -> u32 {
        self.held().superframe_max.unwrap_or(self.caps.gso_max_bytes)
    }

    fn start(&self, _: QueueId) {
        self.held().superframe_max = None;
    }
}

impl Few {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends numbered frames of the given length.
fn send(host: &Host, cx: &mut Cx, numbers: Vec<u8>, bytes: usize) -> NetXmit {
    let mut list = PacketList::new();
    for number in numbers {
        let mut packet = cx.pool.alloc_from(&vec![number; bytes]).expect("the pool has memory");
        packet.meta_mut().flow_hash = u32::from(number / 100);
        packet.meta_mut().priority = number / 100;
        list.push_back(packet);
    }
    send_list(host, cx, &mut list)
}

fn send_list(host: &Host, cx: &mut Cx, list: &mut PacketList) -> NetXmit {
    let entered = cx.enter(host);
    let sent = host.tx(DEVICE).xmit(cx, QUEUE, list);
    cx.leave(entered);
    assert!(list.is_empty(), "`xmit` left packets on the list");
    sent
}

struct Bench {
    host: Arc<Host>,
    device: Arc<Few>,
    memory: Memory,
    cx: Cx,
    bytes: usize,
}

impl Bench {
    fn new(async_completion: bool, qdisc: &str) -> Self {
        let caps = Capabilities {
            tx_checksum: true,
            tso4: true,
            tso6: true,
            uso: false,
            gso_max_bytes: BIG_TCP_BYTES_MAX,
            async_completion,
            ..Capabilities::plain("few", 1500, LinkType::Ip)
        };
        let (state, meanwhile) = (Mutex::default(), Mutex::default());
        let device = Arc::new(Few { caps, state, meanwhile });
        let memory = Memory::new(16 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1);
        let devices = vec![DeviceConfig { device: Arc::clone(&device) as _, addresses: vec![] }];
        let name = "host".to_string();
        let config = HostConfig { name, devices, cores: 1, ..HostConfig::replay(0) };
        let host = Host::new(&memory, config).expect("the configuration is valid");
        host.set_sysctl("net.quietline.dev.few.qdisc", qdisc).expect("the discipline is valid");
        Self { host, device, memory, cx, bytes: 100 }
    }

    fn room(&self, packets: usize) {
        self.device.held().room += packets;
    }

    fn xmit(&mut self, numbers: impl IntoIterator<Item = u8>) -> NetXmit {
        let numbers = numbers.into_iter().collect();
        send(&self.host, &mut self.cx, numbers, self.bytes)
    }

    /// Reports `packets` as completed by the device, gives the device room for as many, and polls
    /// the host.
    fn complete(&mut self, packets: usize) {
        self.device.held().done = Completed { packets, bytes: self.bytes * packets };
        self.room(packets);
        let _ = self.host.poll(&mut self.cx);
    }

    /// Returns the packets sent since the last call, and the number of transmit calls.
    fn sent(&self) -> (Vec<u8>, usize) {
        let mut held = self.device.held();
        (core::mem::take(&mut held.sent), core::mem::take(&mut held.calls))
    }

    fn stats(&mut self) -> TxQueueStats {
        self.host.tx_queue_stats(&mut self.cx).pop().expect("the host has a device")
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.host.counters().get(reason.name()).unwrap_or(0)
    }

    fn finish(self) {
        let Self { host, memory, cx, device, .. } = self;
        drop((host, device, cx));
        assert_eq!(memory.packets.balance(), 0);
    }
}

#[test]
fn a_list_of_packets_is_passed_to_the_device_in_one_call() {
    let mut bench = Bench::new(true, "noqueue");
    bench.room(5);
    let _ = bench.xmit(0..5);
    assert_eq!(bench.sent(), (vec![0, 1, 2, 3, 4], 1));
    assert_eq!(bench.host.tx(DEVICE).deadline(QUEUE), None);
    bench.finish();
}

#[test]
fn packets_that_found_no_room_in_the_device_are_sent_before_later_ones() {
    let mut bench = Bench::new(true, "noqueue");
    bench.room(2);
    let _ = bench.xmit(0..5);
    assert_eq!(bench.sent().0, [0, 1]);
    let _ = bench.xmit(5..7);
    assert_eq!(bench.sent().0, [0; 0], "a full device was called again");
    bench.complete(2);
    assert_eq!(bench.sent().0, [2, 3]);
    bench.complete(4);
    assert_eq!(bench.sent().0, [4, 5, 6]);
    let _ = bench.xmit(7..8);
    assert_eq!(bench.sent().0, [7]);
    assert_eq!(bench.host.counters().get("TxRequeues"), Some(3 + 3));
    assert_eq!(bench.stats().requeues, 3 + 3);
    bench.finish();
}

#[test]
fn packets_waiting_for_a_full_device_without_a_discipline_are_bounded() {
    let mut bench = Bench::new(true, "noqueue");
    bench.host.set_sysctl("net.quietline.dev.few.tx_queue_len", "3").expect("the length is valid");
    assert_eq!(bench.xmit(0..2), NetXmit::Success);
    assert!(matches!(bench.xmit(2..4), NetXmit::Drop(_)));
    assert_eq!(bench.dropped(DropReason::QdiscDrop), 1);
    bench.complete(9);
    assert_eq!(bench.sent().0, [0, 1, 2]);
    assert_eq!(bench.xmit(4..9), NetXmit::Success, "a device with room accepts longer lists");
    bench.finish();
}

#[test]
fn a_full_device_without_completions_is_retried_after_a_delay() {
    let mut bench = Bench::new(false, "noqueue");
    bench.room(1);
    let _ = bench.xmit(0..3);
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
fn a_full_device_that_loses_its_completions_is_retried_by_the_watchdog() {
    let mut bench = Bench::new(true, "noqueue");
    let _ = bench.xmit(0..1);
    bench.room(1);
    bench.cx.now += WATCHDOG;
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.sent().0, [0]);
    bench.finish();
}

#[test]
fn waiting_packets_are_freed_with_their_host() {
    for qdisc in ["noqueue", "pfifo_fast", "fq"] {
        let mut bench = Bench::new(true, qdisc);
        let _ = bench.xmit(0..3);
        bench.finish();
    }
}

/// A second thread that finds the queue owned does not wait. The owner sends the packets of the
/// second thread at once.
#[test]
fn the_owner_sends_the_packets_of_other_threads() {
    for qdisc in ["pfifo_fast", "fq", "fq_codel", "tbf rate 1gbit burst 10kb limit 10kb"] {
        let mut bench = Bench::new(false, qdisc);
        bench.room(9);
        let other = (Arc::clone(&bench.host), bench.memory.clone(), vec![7, 8]);
        *bench.device.meanwhile.lock().unwrap() = Some(other);
        let _ = bench.xmit(0..1);
        assert_eq!(bench.sent().0, [0, 7, 8], "{qdisc}");
        bench.finish();
    }
}
