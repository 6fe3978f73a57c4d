//! The loopback device: it receives the packets that it transmits, by pointer and without
//! checksums.
//!
//! Linux: drivers/net/loopback.c. As in Linux, the device has a large MTU and takes superframes
//! (packets of several segments). It has one queue per core of the host.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    vec::Vec,
};

use pkt::{Batch, DropReason, Packet, PacketList, RxChecksum};

use super::{Capabilities, Device, Doorbell, LinkType, QueueId, RxSignal};
use crate::{
    base::{
        counters::Counter,
        limits::{BIG_TCP_BYTES_MAX, GSO_BYTES_MAX},
    },
    cx::Cx,
};

/// MTU of the loopback device. Differs from Linux: one byte less, because no packet may exceed the
/// IPv4 length field.
const MTU: u32 = GSO_BYTES_MAX;

/// Packets for one core. Each queue has its own cache lines, because a core writes its queue for
/// every packet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Queue {
    /// Length of `packets`, to find an empty queue without the lock. Written under the lock. A core
    /// whose doorbell (the arrival signal of a device in this process) rings after a push sees the
    /// new length, because the doorbell orders the store before the core's load.
    len: AtomicUsize,
    packets: Mutex<VecDeque<Packet>>,
    doorbell: OnceLock<Doorbell>,
}

/// The loopback device of one host.
#[derive(Debug)]
pub struct Loopback {
    caps: Capabilities,
    queues: Vec<Queue>,
}

impl Loopback {
    /// Creates a loopback device with one queue for each of `cores` cores.
    #[must_use]
    pub fn new(cores: u16) -> Self {
        Self {
            caps: Capabilities {
                tx_checksum: true,
                tso4: true,
                tso6: true,
                uso: true,
                gso_max_bytes: BIG_TCP_BYTES_MAX,
                queues: cores,
                ..Capabilities::plain("lo", MTU, LinkType::Ip)
            },
            queues: (0..cores).map(|_| Queue::default()).collect(),
        }
    }
}

impl Device for Loopback {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, queue: QueueId, _cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let queue = &self.queues[usize::from(queue.0)];
        if queue.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut packets = queue.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = out.take_from(&mut packets, budget);
        queue.len.store(packets.len(), Ordering::Release);
        taken
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let queue = &self.queues[usize::from(queue.0)];
        let mut refused = PacketList::new();
        cx.count(Counter::DeviceTxPackets, list.len() as u64);
        cx.count(Counter::DeviceTxBytes, list.bytes() as u64);
        // The bound is that of a core's backlog, through which a looped packet passes in Linux.
        let queue_max = cx.sysctls().netdev_max_backlog as usize;
        {
            let mut packets = queue.packets.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(mut packet) = list.pop_front() {
                if packets.len() >= queue_max {
                    refused.push_back(packet);
                    continue;
                }
                receive_as_sent(&mut packet);
                packet.meta_mut().timestamp = cx.now;
                packets.push_back(packet);
            }
            queue.len.store(packets.len(), Ordering::Release);
        }
        while let Some(packet) = refused.pop_front() {
            cx.drop_packet(DropReason::DeviceTxFull, packet);
        }
        if let Some(doorbell) = queue.doorbell.get() {
            doorbell.ring(cx);
        }
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Doorbell
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        let _ = self.queues[usize::from(queue.0)].doorbell.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.queues.iter().any(|queue| queue.doorbell.get().is_some())
    }
}

/// Ends the charge of a packet passed in memory, and marks its checksum as verified: data that
/// never left memory needs no verification, as between veth ends.
pub(super) fn receive_as_sent(packet: &mut Packet) {
    packet.orphan();
    packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
}
