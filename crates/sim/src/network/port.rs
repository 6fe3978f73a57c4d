//! The device that attaches a host to the network.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pkt::{BATCH_MAX, Batch, GsoKind, Instant, Packet, PacketList, RX_LEN_MAX, RxChecksum};
use stack::{
    Capabilities, Cx, Device,
    device::{Completed, Doorbell, QueueId},
};

use super::{Fate, Frame, Offload, Shared, edit, lock};

/// Properties of a network's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Largest IP packet.
    pub mtu: u32,
    /// Segmentation of superframes.
    pub offload: Offload,
    /// Time from the transmission of a packet to its completion. `None`: at once.
    pub completes_after: Option<Duration>,
    /// Whether a sender whose frame arrives at once runs the receiver, as over a wire in one
    /// process.
    pub rings: bool,
}

/// One host's attachment to the network: a device without link addresses.
#[derive(Debug)]
pub struct Port {
    pub(super) caps: Capabilities,
    pub(super) index: usize,
    pub(super) config: PortConfig,
    pub(super) sent: Mutex<Sent>,
    pub(super) shared: Arc<Shared>,
}

/// Packets that a port has sent and not completed.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Each packet, with its completion time and the bytes charged to its sender.
    pub(super) packets: VecDeque<(Instant, u32, Packet)>,
    /// Sum of these charges.
    pub(super) charged: u64,
}

impl Port {
    pub(super) fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes `packet`, whose bytes are in the network, now or after the configured time.
    fn complete_later(&self, cx: &mut Cx, mut packet: Packet) {
        let Some(delay) = self.config.completes_after else { return cx.pool.free(packet) };
        let mut charge = 0;
        if let Some((owner, charged)) = packet.take_owner() {
            charge = charged;
            packet.inherit_owner(owner, charged);
        }
        let mut sent = self.sent();
        sent.charged += u64::from(charge);
        sent.packets.push_back((cx.now + delay, charge, packet));
    }

    /// Takes the next packet whose completion is due.
    fn completed(&self, now: Instant) -> Option<Packet> {
        let mut sent = self.sent();
        let (_, charge, packet) = sent.packets.pop_front_if(|(due, ..)| *due <= now)?;
        sent.charged -= u64::from(charge);
        Some(packet)
    }
}

impl Device for Port {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut state = lock(&self.shared);
        let mut taken = 0;
        while taken < budget && out.packets().len() < BATCH_MAX {
            let Some(frame) = state.take(self.index, cx.now) else { break };
            let Some(packet) = receive(cx, &frame) else {
                state.lose(Fate::NoMemory);
                continue;
            };
            state.counts.delivered += 1;
            state.delivered[self.index] += 1;
            let Ok(()) = out.push(packet) else { unreachable!("there was room") };
            taken += 1;
        }
        taken
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let due: Vec<Option<Instant>> = {
            let mut state = lock(&self.shared);
            while let Some(packet) = list.pop_front() {
                let frame = Frame { bytes: edit::completed(&packet), gso: packet.meta().gso };
                self.complete_later(cx, packet);
                state.send(self.index, cx.now, frame);
            }
            let first = |inbox: &BTreeMap<(Instant, u64), Frame>| Some(inbox.keys().next()?.0);
            state.inboxes.iter().map(first).collect()
        };
        for (due, doorbell) in due.into_iter().zip(&self.shared.doorbells) {
            if let (Some(due), Some(doorbell)) = (due, doorbell.get()) {
                doorbell.ring_at(due);
                if self.config.rings && due <= cx.now {
                    doorbell.ring(cx);
                }
            }
        }
    }

    fn complete(&self, _queue: QueueId, cx: &mut Cx) -> Completed {
        let mut completed = Completed::NONE;
        while let Some(packet) = self.completed(cx.now) {
            completed.add(packet.len());
            cx.pool.free(packet);
        }
        completed
    }

    fn next_deadline(&self, _queue: QueueId) -> Option<Instant> {
        let arrival = lock(&self.shared).inboxes[self.index].keys().next().map(|key| key.0);
        let completion = self.sent().packets.front().map(|sent| sent.0);
        arrival.into_iter().chain(completion).min()
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.shared.doorbells[self.index].set(doorbell);
    }
}

/// Puts the frame into packet memory, as a device with a ring of receive slots does.
fn receive(cx: &mut Cx, frame: &Frame) -> Option<Packet> {
    let mut packet = if frame.bytes.len() <= RX_LEN_MAX {
        let mut slot = cx.pool.rx_slot(frame.bytes.len())?;
        slot.write(&frame.bytes);
        slot.finish(&mut cx.pool, frame.bytes.len())
    } else {
        // No ring has slots for such a superframe: it arrives as allocated memory.
        let mut packet = cx.pool.alloc()?;
        if packet.append(&mut cx.pool, &frame.bytes) < frame.bytes.len() {
            cx.pool.free(packet);
            return None;
        }
        packet
    };
    let meta = packet.meta_mut();
    meta.timestamp = cx.now;
    meta.gso = frame.gso;
    if frame.gso.kind != GsoKind::None {
        meta.rx_checksum = RxChecksum::Unnecessary;
    }
    Some(packet)
}
