//! A wire between two hosts in one process: what one end transmits the other receives, by pointer.
//!
//! Like veth, with the impairments of netem on each direction: rate, delay, jitter (hence reordering), loss,
//! duplication, corruption, congestion marks, queue length, a path MTU, and a delay of transmit completions. Every choice
//! comes from a seed, every moment from the caller's `now`, so a run in virtual time repeats exactly.
//!
//! A packet changes hands without a copy unless it is corrupted or duplicated. With `checksums` off (the default) a
//! partial checksum stays partial, as between veth ends; corruption needs `checksums` on, or nobody could tell.

use std::{
    collections::VecDeque,
    format,
    string::{String, ToString},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
    vec::Vec,
};

use pkt::{
    Batch, CloneMark, DropReason, Instant, Packet, PacketList, PacketOwner, RxChecksum, TxChecksum,
};

use sync::{Ring, ring};

pub use config::{Impairment, WireConfig};
use path_mtu::PathMtuCell;
pub use path_mtu::{PathMtu, TooBigReport};

use super::{
    BIG_TCP_BYTES_MAX, Capabilities, Completed, Device, Doorbell, LinkType, QueueId, RxSignal,
};
use crate::{
    config::ConfigError,
    cx::Cx,
    gso, ip,
    link::ethernet::{self, MacAddr},
};

mod config;
mod path_mtu;

/// Bytes a frame occupies on a real link besides the IP packet: Ethernet header and FCS, preamble, gap.
const FRAMING_BYTES: u64 = 38;

/// A frame that waits for its moment.
#[derive(Debug)]
struct Timed {
    due: Instant,
    packet: Packet,
}

/// A packet that is on its way out until `due`: its sender pays, and an original knows of it.
struct Completion {
    due: Instant,
    bytes: usize,
    owner: Option<(Arc<dyn PacketOwner>, u32)>,
    /// Held for its end.
    _mark: Option<CloneMark>,
}

impl core::fmt::Debug for Completion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Completion").field("due", &self.due).finish_non_exhaustive()
    }
}

/// The part of a direction that needs a lock.
#[derive(Debug)]
struct InFlight {
    /// Ready to be received, in order.
    ready: VecDeque<Packet>,
    /// Not yet arrived, sorted by `due`.
    timed: VecDeque<Timed>,
    completions: VecDeque<Completion>,
    /// When the transmitter has sent everything it was given.
    idle_at: Instant,
    waits: Waits,
    rng: tcp::Rng,
}

impl InFlight {
    /// What is due at `now` can be received.
    fn arrive(&mut self, now: Instant) {
        while self.timed.front().is_some_and(|first| first.due <= now) {
            self.ready.extend(self.timed.pop_front().map(|first| first.packet));
        }
    }

    fn len(&self) -> usize {
        self.ready.len() + self.timed.len()
    }
}

/// Times from a packet's transmission to the moment when its first bit is on the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Packets.
    pub packets: u64,
    /// Sum of their waits.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Waits {
    fn count(&mut self, wait: Duration) {
        self.packets += 1;
        self.total += wait;
        self.longest = self.longest.max(wait);
    }

    /// Their mean; zero without packets.
    #[must_use]
    pub fn mean(&self) -> Duration {
        self.total / u32::try_from(self.packets).unwrap_or(u32::MAX).max(1)
    }
}

/// The longest ring that is made for the packets of a direction.
const RING_MAX: usize = 1 << 16;

/// One direction of one queue pair. Locked by the sender to push a list and by the receiver to take a batch, unless there is a
/// ring.
#[derive(Debug)]
struct Direction {
    impairment: Impairment,
    direct: bool,
    /// Where all packets go while neither direction does anything to any: then `in_flight` stays empty.
    ring: Option<Arc<Ring<Packet>>>,
    /// Packets ready or on their way, to find an empty direction without the lock. Written under it; whoever is rung
    /// after a push sees it, because the doorbell orders.
    len: AtomicUsize,
    path_mtu: PathMtuCell,
    /// The receiver's device is down: nothing has room. Relaxed: what passes it at the last moment is dropped by `stop`, or when the
    /// device comes up.
    down: AtomicBool,
    in_flight: Mutex<InFlight>,
    doorbell: OnceLock<Doorbell>,
}

impl Direction {
    /// `straight` says that the other direction passes packets on as they are, too.
    fn new(impairment: Impairment, seed: u64, straight: bool) -> Self {
        let has_ring = straight && impairment.is_straight();
        Self {
            impairment,
            direct: impairment.is_none(),
            ring: has_ring.then(|| Arc::new(Ring::new(impairment.queue_packets))),
            len: AtomicUsize::new(0),
            path_mtu: PathMtuCell::new(impairment.path_mtu),
            down: AtomicBool::new(false),
            in_flight: Mutex::new(InFlight {
                ready: VecDeque::new(),
                timed: VecDeque::new(),
                completions: VecDeque::new(),
                waits: Waits::default(),
                idle_at: Instant::ZERO,
                rng: tcp::Rng::new(seed),
            }),
            doorbell: OnceLock::new(),
        }
    }

    /// Packets that may be on their way.
    #[inline]
    fn room(&self) -> usize {
        if self.is_down() { 0 } else { self.impairment.queue_packets }
    }

    /// As a cable whose other end is down.
    #[inline]
    fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Why there is no room.
    fn full(&self) -> DropReason {
        if self.is_down() { DropReason::DeviceDown } else { DropReason::WireQueueFull }
    }

    /// Something can be received now.
    #[inline]
    fn ring_doorbell(&self, cx: &mut Cx) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring(cx);
        }
    }
}

/// One end of a wire.
#[derive(Debug)]
pub struct Wire {
    caps: Capabilities,
    checksums: bool,
    /// Per queue: what we send.
    outgoing: Vec<Arc<Direction>>,
    /// Per queue: what we receive.
    incoming: Vec<Arc<Direction>>,
}

impl Wire {
    /// Both ends of a new wire.
    pub fn pair(config: &WireConfig) -> Result<(Arc<Self>, Arc<Self>), ConfigError> {
        config.validate()?;
        let mut rng = tcp::Rng::new(config.seed);
        let mut direction = |impairment: Impairment, other: Impairment| -> Vec<Arc<Direction>> {
            (0..config.queues)
                .map(|_| Arc::new(Direction::new(impairment, rng.next_u64(), other.is_straight())))
                .collect()
        };
        let forward = direction(config.forward, config.backward);
        let backward = direction(config.backward, config.forward);
        let end = |index: u8, outgoing: &[Arc<Direction>], incoming: &[Arc<Direction>]| {
            Arc::new(Self {
                caps: Capabilities {
                    name: format!("{}{index}", config.name),
                    mtu: config.mtu,
                    // 52:51 is in the locally administered range; the last byte tells the ends apart.
                    link: LinkType::Ethernet { mac: MacAddr([0x52, 0x51, 0, 0, 0, index + 1]) },
                    tx_checksum: !config.checksums,
                    tso4: config.tso && !config.checksums,
                    tso6: config.tso && !config.checksums,
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

    /// The path of what this end sends changes: packets sent from here on meet this router, or none.
    pub fn set_path_mtu(&self, path_mtu: Option<PathMtu>) {
        for direction in &self.outgoing {
            direction.path_mtu.set(path_mtu);
        }
    }

    /// A router's report arrives at this end after both delays.
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

    /// `transmit` where nothing happens to packets on the way. Linux: `veth_xmit`.
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
                // Others need not wait while it is told.
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

    /// Drops what the direction has not taken; who has sent too big a packet may hear of it.
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

    /// Our own core looks for completions then, though it may be another thread that sends or looks now.
    fn wake_to_complete(&self, queue: QueueId, at: Option<Instant>) {
        if let (Some(at), Some(own)) = (at, self.incoming[usize::from(queue.0)].doorbell.get()) {
            own.ring_at(at);
        }
    }

    /// How long what this end has sent on `queue` waited for the transmitter, since the last call. Only packets of a
    /// direction with a rate are counted.
    pub fn take_waits(&self, queue: QueueId) -> Waits {
        let direction = &self.outgoing[usize::from(queue.0)];
        let mut in_flight = direction.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut in_flight.waits)
    }

    /// Name of this end, for messages.
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
            // Nobody has taken it away, or nothing comes by here.
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
                    impair(direction, &mut in_flight, cx, (packet, too_big), &mut refused);
                }
            }
            // By our clock: the receiver may have read its own before us, and would look for nothing again.
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

    /// Both directions, because what a router reports about the frames of the one arrives by the other.
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
}

/// What the receiver will know of the checksum: nothing on a wire with checksums, else that memory does not corrupt.
fn prepare(packet: &mut Packet, checksums: bool) {
    if checksums {
        debug_assert_eq!(packet.meta().tx_checksum, TxChecksum::Done, "completed by ip::output");
        packet.meta_mut().rx_checksum = RxChecksum::None;
    } else {
        packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
    }
}

/// The slow path of `transmit`: rate, delay and chance for one packet.
fn impair(
    direction: &Direction,
    in_flight: &mut InFlight,
    cx: &mut Cx,
    (mut packet, too_big): (Packet, bool),
    refused: &mut Vec<(DropReason, Packet)>,
) {
    let impairment = &direction.impairment;
    let waiting = in_flight.ready.len() + in_flight.timed.len();
    if waiting >= direction.room() {
        if impairment.completes_later() {
            // Taken and lost: whoever counts what the device has not completed must not count it for ever.
            let due = in_flight.completions.back().map_or(cx.now, |last| last.due.max(cx.now));
            let bytes = packet.len();
            in_flight.completions.push_back(Completion { due, bytes, owner: None, _mark: None });
        }
        refused.push((direction.full(), packet));
        return;
    }
    let start = in_flight.idle_at.max(cx.now);
    let congested = impairment.mark_above.is_some_and(|limit| start - cx.now > limit);
    if congested || chance(&mut in_flight.rng, impairment.mark) {
        ip::set_ce(packet.linear_mut().get_mut(ethernet::HEADER_LEN..).unwrap_or_default());
    }
    in_flight.waits.count(start - cx.now);
    let sent = start + transmission_time(impairment.rate_bps, &packet);
    in_flight.idle_at = sent;
    if !impairment.completes_later() {
        packet.orphan();
    } else {
        let (owner, mark) = (packet.take_owner(), packet.take_clone_mark());
        let due = sent + impairment.completion_delay;
        let bytes = packet.len();
        in_flight.completions.push_back(Completion { due, bytes, owner, _mark: mark });
    }
    if too_big {
        refused.push((DropReason::PacketTooBig, packet));
        return;
    }
    if chance(&mut in_flight.rng, impairment.loss) {
        refused.push((DropReason::WireLoss, packet));
        return;
    }
    if chance(&mut in_flight.rng, impairment.corrupt) {
        packet = match flip_one_bit(packet, &mut in_flight.rng, cx) {
            Ok(corrupted) => corrupted,
            Err(packet) => {
                refused.push((DropReason::NoMemory, packet));
                return;
            }
        };
    }
    let mut due = sent + impairment.delay;
    if chance(&mut in_flight.rng, impairment.reorder) {
        due += impairment.reorder_delay;
    }
    if chance(&mut in_flight.rng, impairment.duplicate)
        && let Some(copy) = packet.deep_copy(&mut cx.pool)
    {
        insert_by_due(&mut in_flight.timed, Timed { due, packet: copy });
    }
    insert_by_due(&mut in_flight.timed, Timed { due, packet });
}

/// True in `fraction` of the calls.
fn chance(rng: &mut tcp::Rng, fraction: f64) -> bool {
    fraction > 0.0 && f64::from(rng.next_u32()) < fraction * 4_294_967_296.0
}

/// Time on the link: a superframe occupies it as its segments would.
fn transmission_time(rate_bps: Option<u64>, packet: &Packet) -> Duration {
    let Some(rate_bps) = rate_bps else { return Duration::ZERO };
    let frames = u64::from(packet.meta().gso.segs.max(1));
    let header = 14 + gso::header_bytes(packet, 14) as u64;
    let bytes = packet.len() as u64 + (frames - 1) * header + frames * FRAMING_BYTES - frames * 14;
    // A packet has at most 512 KB: the product stays below 2^53.
    Duration::from_nanos(bytes * 8 * 1_000_000_000 / rate_bps)
}

/// Payload is shared and immutable, so corruption works on a copy; the original goes back to its owner.
fn flip_one_bit(packet: Packet, rng: &mut tcp::Rng, cx: &mut Cx) -> Result<Packet, Packet> {
    let mut bytes = packet.to_vec();
    let byte = rng.below(u32::try_from(bytes.len()).unwrap_or(u32::MAX)) as usize;
    bytes[byte] ^= 1 << rng.below(8);
    let Some(mut copy) = cx.pool.alloc() else { return Err(packet) };
    *copy.meta_mut() = *packet.meta();
    if copy.append(&mut cx.pool, &bytes) < bytes.len() {
        cx.pool.free(copy);
        return Err(packet);
    }
    cx.pool.free(packet);
    Ok(copy)
}

/// Keeps the queue sorted; equal moments keep their order of sending.
fn insert_by_due(queue: &mut VecDeque<Timed>, timed: Timed) {
    let at = queue.partition_point(|other| other.due <= timed.due);
    queue.insert(at, timed);
}

#[cfg(test)]
mod tests;
