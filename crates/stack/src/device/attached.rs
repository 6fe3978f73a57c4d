//! A device attached to its host, which can be taken down and removed while route entries, queues
//! and sockets refer to it.
//!
//! Above: route entries (dst) and transmit queues, which hold a reference to it. Below: the device.
//! Linux: `struct net_device` with its reference count, `dst_dev_put`, `blackhole_netdev`.
//!
//! References point to this object, which holds the device itself in an RCU cell. While it is
//! **down**, transmitted packets are dropped here with a reason. Once it is **gone**, a black hole
//! replaces the device: packets sent through a route entry that a socket still holds are dropped,
//! and the device is freed after a grace period, however long such entries are held. Linux changes
//! `dst->dev` of every entry; here one pointer changes.
//!
//! Not here: the order in which queues and threads stop to use a device (`Host::set_device_up`,
//! `Host::remove_device`).

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use pkt::{Batch, DropReason, Instant, PacketList};
use sync::{RcuCell, epoch::Domain};

use super::{Capabilities, Completed, Device, Doorbell, QueueId, RxSignal};
use crate::{base::counters::Counter, cx::Cx};

/// The device of an [`Attached`], for callers without a read section; `None` once the device is
/// gone. It has its own cache lines, because the core of a queue locks it before each sleep.
#[derive(Debug)]
#[repr(align(128))]
struct LockedDevice(Mutex<Option<Arc<dyn Device>>>);

impl LockedDevice {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Device>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device that may go down and be removed while references to it remain.
#[derive(Debug)]
pub(crate) struct Attached {
    caps: Capabilities,
    weight: usize,
    gso_ipv4_size: u32,
    needs_qdisc: bool,
    device: RcuCell<Arc<dyn Device>>,
    /// Whether the device is up. Written by the thread that takes it up or down. Relaxed: a packet
    /// sent concurrently may see either state.
    up: AtomicBool,
    /// Whether the device has been removed for good.
    gone: AtomicBool,
    /// One reference to the device for each queue, used by callers without a read section: the core
    /// of the queue, which asks for the next deadline, and the construction of the host.
    locked: Vec<LockedDevice>,
    /// Bytes per queue that were dropped while the device was down, and are still to be reported as
    /// completed. Relaxed: counts order nothing.
    dropped: Vec<AtomicUsize>,
}

impl Attached {
    pub(crate) fn new(rcu: &Domain, device: Arc<dyn Device>) -> Self {
        let caps = device.caps().clone();
        Self {
            weight: device.weight(),
            gso_ipv4_size: device.gso_ipv4_size(),
            needs_qdisc: device.needs_qdisc(),
            dropped: (0..caps.queues).map(|_| AtomicUsize::new(0)).collect(),
            locked: (0..caps.queues)
                .map(|_| LockedDevice(Mutex::new(Some(Arc::clone(&device)))))
                .collect(),
            caps,
            device: RcuCell::new(rcu, device),
            up: AtomicBool::new(true),
            gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// Releases the device, which must be down and must not be polled any more.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.locked.iter().for_each(|locked| *locked.lock() = None);
        self.device.replace(Arc::new(Blackhole(self.caps.clone())));
    }

    /// Returns the device itself; `None` once it is gone.
    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        self.locked.first()?.lock().clone()
    }

    fn with<R>(&self, cx: &mut Cx, work: impl FnOnce(&dyn Device, &mut Cx) -> R) -> R {
        let reader = cx.reader();
        let rcu = reader.pin();
        work(&**self.device.load(&rcu), cx)
    }
}

impl Device for Attached {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn gso_ipv4_size(&self) -> u32 {
        self.gso_ipv4_size
    }

    fn superframe_max(&self) -> u32 {
        self.device().map_or(self.caps.gso_max_bytes, |device| device.superframe_max())
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        self.with(cx, |device, cx| device.receive(queue, cx, budget, out))
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        if self.is_up() {
            return self.with(cx, |device, cx| transmit_counted(device, queue, cx, list));
        }
        self.dropped[usize::from(queue.0)].fetch_add(list.bytes(), Ordering::Relaxed);
        drop_while_down(cx, list);
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        let mut completed = self.with(cx, |device, cx| device.complete(queue, cx));
        // Dropped bytes are reported even if the device is up: a thread may have called `transmit`
        // just before the device came up.
        let dropped = &self.dropped[usize::from(queue.0)];
        if dropped.load(Ordering::Relaxed) != 0 {
            completed.bytes += dropped.swap(0, Ordering::Relaxed);
        }
        completed
    }

    fn needs_qdisc(&self) -> bool {
        self.needs_qdisc
    }

    fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
        // The device is used under the lock, not through a clone of its reference: all cores would
        // write the cache line of the reference count.
        let locked = self.locked.get(usize::from(queue.0))?.lock();
        locked.as_ref().filter(|_| self.is_up())?.next_deadline(queue)
    }

    fn rx_signal(&self, queue: QueueId) -> RxSignal {
        self.device().map_or(RxSignal::Doorbell, |device| device.rx_signal(queue))
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        if let Some(device) = self.device() {
            device.attach(queue, doorbell);
        }
    }

    fn start(&self, queue: QueueId) {
        if let Some(device) = self.device() {
            device.start(queue);
        }
    }

    fn stop(&self, queue: QueueId, cx: &mut Cx) {
        self.with(cx, |device, cx| device.stop(queue, cx));
    }
}

/// Passes `list` to the device and counts the packets taken.
fn transmit_counted(device: &dyn Device, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
    let (packets, bytes) = (list.len(), list.bytes());
    device.transmit(queue, cx, list);
    // A faulty device of the application could leave more packets than it was given.
    cx.count(Counter::DeviceTxPackets, packets.saturating_sub(list.len()) as u64);
    cx.count(Counter::DeviceTxBytes, bytes.saturating_sub(list.bytes()) as u64);
}

/// Replacement of a removed device. Linux: `blackhole_netdev`.
#[derive(Debug)]
pub(crate) struct Blackhole(pub(crate) Capabilities);

impl Device for Blackhole {
    fn caps(&self) -> &Capabilities {
        &self.0
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
        0
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        drop_while_down(cx, list);
    }
}

fn drop_while_down(cx: &mut Cx, list: &mut PacketList) {
    while let Some(packet) = list.pop_front() {
        cx.drop_packet(DropReason::DeviceDown, packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cx::Memory, device::LinkType};

    fn caps() -> Capabilities {
        Capabilities {
            tx_checksum: true,
            tso4: true,
            tso6: true,
            uso: false,
            async_completion: true,
            ..Capabilities::plain("few", 1500, LinkType::Ip)
        }
    }

    /// If such packets did not complete, the byte queue limit would count their bytes as in flight
    /// forever.
    #[test]
    fn packets_dropped_while_the_device_was_down_are_completed_once_it_is_up() {
        const QUEUE: QueueId = QueueId(0);
        let memory = Memory::new(1 << 20);
        let mut cx = Cx::replay(&memory, 1);
        let device = Attached::new(&memory.rcu, Arc::new(Blackhole(caps())));
        device.set_up(false);
        let mut list = PacketList::new();
        list.push_back(cx.pool.alloc_from(&[0; 100]).expect("the pool has memory"));
        device.transmit(QUEUE, &mut cx, &mut list);
        assert!(list.is_empty());
        device.set_up(true);
        assert_eq!(device.complete(QUEUE, &mut cx).bytes, 100);
        assert_eq!(device.complete(QUEUE, &mut cx), Completed::NONE);
    }
}
