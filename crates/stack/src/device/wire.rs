//! A wire: the in-process link between two hosts. Each end is a device, and receives the packets
//! that the other end transmits, by pointer.
//!
//! A wire behaves like veth, with impairments in each direction, most of them as in netem: rate,
//! delay, reordering (an extra delay of some packets), loss, duplication, corruption, congestion
//! marks, queue length, a path MTU, and delayed transmit completions. Every random choice comes
//! from a seed and every time from the caller's `now`, so a run in virtual time repeats exactly.
//!
//! A packet is copied only when it is corrupted or duplicated. With `checksums` off (the default) a
//! partial checksum stays partial, as between veth ends. Corruption needs `checksums` on, because a
//! receiver could not detect it otherwise.

use std::{
    format,
    string::{String, ToString},
    sync::{Arc, PoisonError, atomic::Ordering},
    vec::Vec,
};

use pkt::{Batch, DropReason, Instant, Packet, PacketList, RxChecksum, TxChecksum};
use sync::{Ring, ring};

pub use config::{Impairment, WireConfig};
pub use direction::Waits;
use direction::{Direction, Timed, insert_by_due};
use impair::impair;
pub use path_mtu::{PathMtu, TooBigReport};

use super::{Capabilities, Completed, Device, Doorbell, LinkType, QueueId, RxSignal};
use crate::{
    base::{config_error::ConfigError, limits::BIG_TCP_BYTES_MAX},
    cx::Cx,
    header::ethernet::MacAddr,
};

mod config;
mod direction;
mod impair;
mod memory_map;
mod path_mtu;

/// Default limit of superframes, in bytes of IP packet. A limit of 65,536 bytes would hold 45
/// segments of 1,448 bytes, but a write of 64 KiB fills 45.26 segments. The rest would then need an
/// extra packet after every few writes.
const SUPERFRAME_SIZE: u32 = 80 << 10;

/// One end of a wire.
#[derive(Debug)]
pub struct Wire {
    caps: Capabilities,
    checksums: bool,
    /// Outgoing direction of each queue.
    outgoing: Vec<Arc<Direction>>,
    /// Incoming direction of each queue.
    incoming: Vec<Arc<Direction>>,
}

impl Wire {
    /// Creates both ends of a new wire.
    pub fn pair(config: &WireConfig) -> Result<(Arc<Self>, Arc<Self>), ConfigError> {
        config.validate()?;
        let mut rng = tcp::Rng::new(config.seed);
        let mut direction = |impairment: Impairment, other: Impairment| -> Vec<Arc<Direction>> {
            (0..config.queues)
                .map(|_| Arc::new(Direction::new(impairment, rng.next_u64(), other.is_straight())))
                .collect()
        };
        let is_straight = config.forward.is_straight() && config.backward.is_straight();
        let forward = direction(config.forward, config.backward);
        let backward = direction(config.backward, config.forward);
        let end = |index: u8, outgoing: &[Arc<Direction>], incoming: &[Arc<Direction>]| {
            Arc::new(Self {
                caps: Capabilities {
                    name: format!("{}{index}", config.name),
                    mtu: config.mtu,
                    // The prefix 52:51 is in the locally administered range; the last byte
                    // distinguishes the ends.
                    link: LinkType::Ethernet { mac: MacAddr([0x52, 0x51, 0, 0, 0, index + 1]) },
                    tx_checksum: !config.checksums,
                    tso4: config.tso && !config.checksums,
                    tso6: config.tso && !config.checksums,
                    // An impairment decides about each datagram, even of one that is sent together
                    // with others.
                    uso: config.tso && !config.checksums && is_straight,
                    gso_max_bytes: config.gso_max_bytes,
                    jumbo6: true,
                    queues: config.queues,
                    async_completion: outgoing[0].impairment.completes_later(),
                },
                checksums: config.checksums,
                outgoing: outgoing.to_vec(),
                incoming: incoming.to_vec(),
            })
        };
        Ok((end(0, &forward, &backward), end(1, &backward, &forward)))
    }

    /// Changes the path MTU of the outgoing direction of this end: packets sent from now on pass
    /// this router, or no router.
    pub fn set_path_mtu(&self, path_mtu: Option<PathMtu>) {
        for direction in &self.outgoing {
            direction.path_mtu.set(path_mtu);
        }
    }

    /// Delivers a router's report to this end after the delays of both directions.
    fn receive_report(&self, queue: QueueId, cx: &mut Cx, report: Packet) {
        let there = self.outgoing[usize::from(queue.0)].impairment.delay;
        let direction = &self.incoming[usize::from(queue.0)];
        if let Some(ring) = &direction.ring {
            let pushed = ring.sender().push(report);
            return match pushed {
                Ok(()) => direction.ring_doorbell(cx),
                Err(report) => cx.drop_packet(DropReason::WireQueueFull, report),
            };
        }
        let due = cx.now + there + direction.impairment.delay;
        {
            let mut in_flight = direction.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            insert_by_due(&mut in_flight.timed, Timed { due, packet: report });
            in_flight.arrive(cx.now);
            direction.len.store(in_flight.len(), Ordering::Release);
        }
        if let Some(doorbell) = direction.doorbell.get() {
            doorbell.ring_at(due);
            if due <= cx.now {
                doorbell.ring(cx);
            }
        }
    }

    /// Transmits in a direction without impairments. Linux: `veth_xmit`.
    fn transmit_straight(
        &self,
        direction: &Direction,
        ring: &Ring<Packet>,
        queue: QueueId,
        cx: &mut Cx,
        list: &mut PacketList,
    ) {
        let (path_mtu, down) = (direction.path_mtu.load(), direction.is_down());
        let mut refused = Vec::new();
        let (mut sender, mut rings) = (None, false);
        while let Some(mut packet) = list.pop_front() {
            prepare(&mut packet, self.checksums);
            packet.meta_mut().timestamp = cx.now;
            if path_mtu.is_some_and(|path| !path.carries(&packet)) {
                refused.push((DropReason::PacketTooBig, packet));
                continue;
            }
            if packet.has_owner() {
                // `orphan` notifies the owner. The sender end of the ring is released first, so
                // that other senders need not wait meanwhile.
                sender = None;
            }
            packet.orphan();
            if down {
                refused.push((DropReason::DeviceDown, packet));
                continue;
            }
            match sender.get_or_insert_with(|| ring.sender()).push(packet) {
                Ok(()) => rings = true,
                Err(packet) => refused.push((DropReason::WireQueueFull, packet)),
            }
        }
        drop(sender);
        if !refused.is_empty() {
            self.refuse(direction, queue, cx, path_mtu, refused);
        }
        if rings {
            direction.ring_doorbell(cx);
        }
    }

    /// Drops the refused packets. The sender of a packet that is too big for the path may get a
    /// report.
    #[cold]
    fn refuse(
        &self,
        direction: &Direction,
        queue: QueueId,
        cx: &mut Cx,
        path_mtu: Option<PathMtu>,
        refused: Vec<(DropReason, Packet)>,
    ) {
        for (reason, packet) in refused {
            let path = path_mtu.filter(|_| reason == DropReason::PacketTooBig);
            let report = path.and_then(|path| direction.path_mtu.report(cx, &packet, path));
            cx.drop_packet(reason, packet);
            if let Some(report) = report {
                self.receive_report(queue, cx, report);
            }
        }
    }

    /// Wakes the core of this queue for completions at `at`, even if another thread sends or
    /// completes now.
    fn wake_to_complete(&self, queue: QueueId, at: Option<Instant>) {
        if let (Some(at), Some(own)) = (at, self.incoming[usize::from(queue.0)].doorbell.get()) {
            own.ring_at(at);
        }
    }

    /// Returns the times for which packets sent by this end on `queue` have waited for the
    /// transmitter since the last call. Packets of a direction without impairments are not counted.
    pub fn take_waits(&self, queue: QueueId) -> Waits {
        let direction = &self.outgoing[usize::from(queue.0)];
        let mut in_flight = direction.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut in_flight.waits)
    }

    /// Returns the name of this end, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.caps.name.to_string()
    }
}

impl Device for Wire {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let direction = &self.incoming[usize::from(queue.0)];
        if let Some(ring) = &direction.ring {
            // If the core has taken the receiver end of the ring, frames do not pass through this
            // call.
            let receiver = Ring::receiver(ring);
            return receiver
                .map_or(0, |mut receiver| out.take_while_room(budget, || receiver.pop()));
        }
        if direction.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut in_flight = direction.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        in_flight.arrive(cx.now);
        let taken = out.take_from(&mut in_flight.ready, budget);
        direction.len.store(in_flight.len(), Ordering::Release);
        taken
    }

    fn gso_ipv4_size(&self) -> u32 {
        SUPERFRAME_SIZE
    }

    fn take_receiver(&self, queue: QueueId) -> Option<ring::Receiver<Packet>> {
        self.incoming[usize::from(queue.0)].ring.as_ref().and_then(Ring::receiver)
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let direction = &self.outgoing[usize::from(queue.0)];
        if let Some(ring) = &direction.ring {
            return self.transmit_straight(direction, ring, queue, cx, list);
        }
        let path_mtu = direction.path_mtu.load();
        let mut refused = Vec::new();
        let (rings, first_due, completes_at);
        {
            let mut in_flight = direction.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            let ring = direction.impairment.ring_packets.unwrap_or(usize::MAX);
            while in_flight.completions.len() < ring
                && let Some(mut packet) = list.pop_front()
            {
                prepare(&mut packet, self.checksums);
                packet.meta_mut().timestamp = cx.now;
                let too_big = path_mtu.is_some_and(|path| !path.carries(&packet));
                if direction.direct && too_big {
                    refused.push((DropReason::PacketTooBig, packet));
                } else if direction.direct && in_flight.ready.len() < direction.room() {
                    packet.orphan();
                    in_flight.ready.push_back(packet);
                } else {
                    impair(direction, &mut in_flight, cx, packet, too_big, &mut refused);
                }
            }
            // Packets that are due by the clock of the sender become receivable now. Otherwise a
            // receiver that has read its clock earlier would not find them due, and not poll again.
            in_flight.arrive(cx.now);
            direction.len.store(in_flight.len(), Ordering::Release);
            rings = !in_flight.ready.is_empty();
            first_due = in_flight.timed.front().map(|first| first.due);
            completes_at = in_flight.completions.front().map(|first| first.due);
        }
        self.wake_to_complete(queue, completes_at);
        self.refuse(direction, queue, cx, path_mtu, refused);
        if let Some(doorbell) = direction.doorbell.get() {
            if let Some(due) = first_due {
                doorbell.ring_at(due);
            }
            if rings {
                doorbell.ring(cx);
            }
        }
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        let direction = &self.outgoing[usize::from(queue.0)];
        let mut done = Vec::new();
        let next;
        {
            let mut in_flight = direction.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            while in_flight.completions.front().is_some_and(|first| first.due <= cx.now) {
                done.extend(in_flight.completions.pop_front());
            }
            next = in_flight.completions.front().map(|first| first.due);
        }
        self.wake_to_complete(queue, next);
        let mut completed = Completed::NONE;
        for completion in done {
            completed.add(completion.bytes);
            if let Some((owner, truesize)) = completion.owner {
                owner.on_complete(truesize);
            }
        }
        completed
    }

    fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
        let queue = usize::from(queue.0);
        let arrival = {
            let incoming = &self.incoming[queue];
            let in_flight = incoming.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            if incoming.ring.as_ref().is_some_and(|ring| !ring.is_empty()) {
                Some(Instant::ZERO)
            } else if in_flight.ready.is_empty() {
                in_flight.timed.front().map(|first| first.due)
            } else {
                Some(Instant::ZERO)
            }
        };
        let completion = {
            let outgoing = &self.outgoing[queue].in_flight;
            let in_flight = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
            in_flight.completions.front().map(|first| first.due)
        };
        match (arrival, completion) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// A doorbell signals every arrival only if neither direction has impairments (`direct`): the
    /// reports of a router about one direction arrive by the other.
    fn rx_signal(&self, queue: QueueId) -> RxSignal {
        let queue = usize::from(queue.0);
        if self.incoming[queue].direct && self.outgoing[queue].direct {
            RxSignal::Doorbell
        } else {
            RxSignal::None
        }
    }

    fn start(&self, queue: QueueId) {
        self.incoming[usize::from(queue.0)].down.store(false, Ordering::Relaxed);
    }

    fn stop(&self, queue: QueueId, cx: &mut Cx) {
        let queue = usize::from(queue.0);
        self.incoming[queue].down.store(true, Ordering::Relaxed);
        let mut receiver = self.incoming[queue].ring.as_ref().and_then(Ring::receiver);
        while let Some(packet) = receiver.as_mut().and_then(ring::Receiver::pop) {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
        let (ready, timed) = {
            let incoming = &self.incoming[queue];
            let mut in_flight = incoming.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            incoming.len.store(0, Ordering::Release);
            (core::mem::take(&mut in_flight.ready), core::mem::take(&mut in_flight.timed))
        };
        for packet in ready.into_iter().chain(timed.into_iter().map(|timed| timed.packet)) {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
        let completions = {
            let outgoing = &self.outgoing[queue].in_flight;
            let mut in_flight = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
            core::mem::take(&mut in_flight.completions)
        };
        for (owner, truesize) in completions.into_iter().filter_map(|completion| completion.owner) {
            owner.on_complete(truesize);
        }
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        let _ = self.incoming[usize::from(queue.0)].doorbell.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.incoming[0].doorbell.get().is_some()
    }
}

/// Sets the checksum state that the receiver sees: unverified on a wire with checksums, otherwise
/// valid, because memory does not corrupt packets.
fn prepare(packet: &mut Packet, checksums: bool) {
    if checksums {
        debug_assert_eq!(
            packet.meta().tx_checksum,
            TxChecksum::Done,
            "`ip_output` completes checksums for a device without `tx_checksum`"
        );
        packet.meta_mut().rx_checksum = RxChecksum::None;
    } else {
        packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
    }
}

#[cfg(test)]
mod tests;
