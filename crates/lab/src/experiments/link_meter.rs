//! A device that notes of every packet how long it waited before the link's transmitter.
//!
//! Above: the client's host. Below: a wire with a rate. Linux: no counterpart; `tc -s qdisc` has
//! the backlog only.
//!
//! Packets are handed to the wire one by one, so that the wire's own account of the last wait is
//! that of one packet.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use quietline::sans_io::{
    Batch, Capabilities, Cx, Device, Instant, Packet, PacketList, QueueId, Wire,
};

/// Bytes that a frame occupies on a link besides the IP packet: Ethernet header and FCS, preamble
/// and gap, as `WireConfig` counts them.
const FRAMING_BYTES: u64 = 38;
/// Headers of a segment with timestamps, Ethernet header included.
const HEADER_BYTES: u64 = 14 + 20 + 32;

/// A packet that the link has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// When the link was given the packet.
    pub(super) at: Instant,
    /// Time until its first bit was on the link.
    pub(super) first_bit: Duration,
    /// Time until its last bit was.
    pub(super) last_bit: Duration,
    /// Bytes on the link, framing included.
    pub(super) bytes: u64,
}

/// Device that measures the waits of packets before its transmitter.
#[derive(Debug)]
pub(super) struct LinkMeter {
    wire: Arc<Wire>,
    rate_bps: u64,
    departures: Mutex<Vec<Departure>>,
}

impl LinkMeter {
    pub(super) fn new(wire: Arc<Wire>, rate_bps: u64) -> Self {
        Self { wire, rate_bps, departures: Mutex::default() }
    }

    /// The packets since the last call.
    pub(super) fn take(&self) -> Vec<Departure> {
        mem::take(&mut *self.departures.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bytes on the link: a superframe occupies it as its segments would.
fn link_bytes(packet: &Packet) -> u64 {
    let frames = u64::from(packet.meta().gso.segs.max(1));
    let headers = (frames - 1) * HEADER_BYTES;
    packet.len() as u64 + headers + frames * (FRAMING_BYTES - 14)
}

impl Device for LinkMeter {
    fn caps(&self) -> &Capabilities {
        self.wire.caps()
    }

    fn wrapped(&self) -> Option<&dyn Device> {
        Some(&*self.wire)
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        self.wire.receive(queue, cx, budget, out)
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            let bytes = link_bytes(&packet);
            let mut one = PacketList::new();
            one.push_back(packet);
            self.wire.transmit(queue, cx, &mut one);
            if let Some(refused) = one.pop_front() {
                list.push_front(refused);
                return;
            }
            let waits = self.wire.take_waits(queue);
            // None: the queue was full, and the packet is lost.
            if waits.packets == 1 {
                let transmission = Duration::from_nanos(bytes * 8 * 1_000_000_000 / self.rate_bps);
                let first_bit = waits.total;
                let last_bit = first_bit + transmission;
                let mut departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
                departures.push(Departure { at: cx.now, first_bit, last_bit, bytes });
            }
        }
    }
}
