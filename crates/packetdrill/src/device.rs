//! The device between packetdrill and the stack: bare IP packets, one queue in each direction.
//!
//! No TSO and no checksum offload: packetdrill compares ranges of bytes. It joins complete packets
//! of one MTU to any range, while a superframe can match only itself.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use pkt::{Batch, Instant, Packet, PacketList, RX_LEN_MAX};
use stack::{
    Capabilities, Cx, Device,
    device::{Doorbell, LinkType, QueueId},
};

/// A packet that the stack has sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// The whole IP packet.
    pub(crate) bytes: Vec<u8>,
    /// Moment of transmission.
    pub(crate) at: Instant,
}

/// Device between packetdrill and the stack.
#[derive(Debug)]
pub(crate) struct PacketDevice {
    caps: Capabilities,
    arrived: Mutex<VecDeque<Packet>>,
    sent: Mutex<VecDeque<Sent>>,
    doorbell: OnceLock<Doorbell>,
}

impl PacketDevice {
    pub(crate) fn new(mtu: u32) -> Self {
        Self {
            caps: Capabilities::plain("tun0", mtu, LinkType::Ip),
            arrived: Mutex::default(),
            sent: Mutex::default(),
            doorbell: OnceLock::new(),
        }
    }

    /// Delivers a packet, which the host processes when it is next polled. False if the packet is
    /// too long or no memory is left.
    pub(crate) fn deliver(&self, cx: &mut Cx, bytes: &[u8]) -> bool {
        if bytes.len() > RX_LEN_MAX {
            return false;
        }
        let Some(mut slot) = cx.pool.rx_slot(bytes.len()) else { return false };
        slot.write(bytes);
        let mut packet = slot.finish(&mut cx.pool, bytes.len());
        packet.meta_mut().timestamp = cx.now;
        lock(&self.arrived).push_back(packet);
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring(cx);
        }
        true
    }

    /// Takes the oldest packet that the stack has sent.
    pub(crate) fn take(&self) -> Option<Sent> {
        lock(&self.sent).pop_front()
    }
}

impl Device for PacketDevice {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        out.take_from(&mut lock(&self.arrived), budget)
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let mut sent = lock(&self.sent);
        while let Some(packet) = list.pop_front() {
            sent.push_back(Sent { bytes: packet.to_vec(), at: cx.now });
            cx.pool.free(packet);
        }
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.doorbell.set(doorbell);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
