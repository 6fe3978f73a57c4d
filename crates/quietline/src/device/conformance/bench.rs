//! Two devices and the memory of their packets, without a stack.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant as Clock},
};

use pkt::{Batch, Packet, PacketList};
use stack::{Cx, Memory, device::Device};

use super::{
    Outcome, Pair, Unmet, ensure, fail,
    frames::{self, Maker},
};
use crate::{
    clock,
    device::{Completed, LinkType, QueueId},
    entropy,
};

/// Time for which a check waits for a frame or a completion.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Packet memory of a bench, in bytes.
const MEMORY: usize = 64 << 20;

/// A device under test and its peer.
pub(super) struct Bench {
    pub(super) cx: Cx,
    pub(super) left: Arc<dyn Device>,
    pub(super) right: Arc<dyn Device>,
    pub(super) maker: Maker,
    pub(super) memory: Memory,
    /// Completions of the left device.
    pub(super) completed: Completed,
    pair: Pair,
}

/// Numbered frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) number: u32,
    pub(super) ip_len: usize,
}

impl Bench {
    pub(super) fn new(pair: Pair) -> Self {
        let memory = Memory::new(MEMORY);
        let cx = Cx::new(&memory, entropy::rng()).with_clock(clock::now);
        let right = pair.right.as_ref().unwrap_or(&pair.left);
        let (left, right) = (Arc::clone(&pair.left.device), Arc::clone(&right.device));
        let [from, to] = pair.addresses;
        let maker = Maker::new(from, to, left.caps().link, right.caps().link);
        Self { cx, left, right, maker, memory, completed: Completed::NONE, pair }
    }

    /// Drops both devices and asserts that every packet was freed.
    pub(super) fn finish(self) -> Outcome {
        let Self { cx, left, right, memory, pair, .. } = self;
        drop((left, right, pair, cx));
        // Threads of the device may end a moment later.
        let deadline = Clock::now() + TIMEOUT;
        while memory.packets.balance() != 0 && Clock::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let left = memory.packets.balance();
        ensure!(left == 0, "{left} packets were not freed when the device was dropped");
        Ok(())
    }

    /// Returns whether the device receives its own frames.
    pub(super) fn is_looped(&self) -> bool {
        self.pair.right.is_none()
    }

    /// Largest IP packet that both devices carry, or 16 KiB.
    pub(super) fn mtu(&self) -> usize {
        self.left.caps().mtu.min(self.right.caps().mtu).min(16 << 10) as usize
    }

    pub(super) fn numbered(&mut self, number: u32, ip_len: usize) -> Result<Packet, Unmet> {
        let packet = self.maker.numbered(&mut self.cx.pool, number, ip_len);
        packet.ok_or_else(|| fail("the suite has no packet memory"))
    }

    /// Makes a list of numbered frames, each with an IP packet of `ip_len` bytes.
    pub(super) fn list(
        &mut self,
        numbers: impl IntoIterator<Item = u32>,
        ip_len: usize,
    ) -> Result<PacketList, Unmet> {
        numbers.into_iter().map(|number| self.numbered(number, ip_len)).collect()
    }

    /// Calls the left device's `transmit` once.
    pub(super) fn transmit(&mut self, queue: u16, list: &mut PacketList) {
        self.cx.now = clock::now();
        self.left.transmit(QueueId(queue), &mut self.cx, list);
    }

    /// Calls `transmit` until the list is empty, and receives meanwhile.
    pub(super) fn transmit_all(
        &mut self,
        queue: u16,
        list: &mut PacketList,
    ) -> Result<Vec<Arrival>, Unmet> {
        let deadline = Clock::now() + TIMEOUT;
        let mut arrived = Vec::new();
        while !list.is_empty() {
            let before = list.len();
            self.transmit(queue, list);
            let left = list.len();
            ensure!(left <= before, "transmit left {left} packets of a list of {before}");
            if list.is_empty() {
                break;
            }
            ensure!(Clock::now() < deadline, "{left} packets are never taken");
            self.complete();
            arrived.extend(self.receive_some()?);
            thread::sleep(Duration::from_micros(100));
        }
        Ok(arrived)
    }

    /// Asks every queue of the left device for completions.
    pub(super) fn complete(&mut self) {
        self.cx.now = clock::now();
        for queue in 0..self.left.caps().queues {
            let done = self.left.complete(QueueId(queue), &mut self.cx);
            self.completed.packets += done.packets;
            self.completed.bytes += done.bytes;
        }
    }

    /// Polls every queue of the right device once, and returns all packets.
    pub(super) fn poll(&mut self, budget: usize) -> Result<Vec<Packet>, Unmet> {
        if let Some(pump) = &mut self.pair.pump {
            pump();
        }
        self.cx.now = clock::now();
        let mut packets = Vec::new();
        for queue in 0..self.right.caps().queues {
            let mut batch = Batch::new();
            let taken = self.right.receive(QueueId(queue), &mut self.cx, budget, &mut batch);
            let got = batch.len();
            ensure!(taken <= budget, "receive took {taken} frames with a budget of {budget}");
            ensure!(got <= taken, "receive returned {taken} and put {got} packets into the batch");
            packets.extend(batch);
        }
        Ok(packets)
    }

    /// Polls every queue once, and returns the numbered frames that have arrived.
    pub(super) fn receive_some(&mut self) -> Result<Vec<Arrival>, Unmet> {
        let mut arrivals = Vec::new();
        for packet in self.poll(64)? {
            let arrival = self.look_at(&packet);
            self.cx.pool.free(packet);
            arrivals.extend(arrival.transpose()?);
        }
        Ok(arrivals)
    }

    /// Waits until `count` numbered frames have arrived, including those in `arrived`.
    pub(super) fn receive_all(
        &mut self,
        mut arrived: Vec<Arrival>,
        count: usize,
    ) -> Result<Vec<Arrival>, Unmet> {
        let deadline = Clock::now() + TIMEOUT;
        while arrived.len() < count {
            let got = arrived.len();
            ensure!(Clock::now() < deadline, "{got} of {count} frames arrived");
            self.complete();
            let more = self.receive_some()?;
            if more.is_empty() {
                thread::sleep(Duration::from_micros(200));
            }
            arrived.extend(more);
        }
        Ok(arrived)
    }

    /// Reads a packet as a numbered frame. Returns `None` for another packet, `Err` if the frame is
    /// damaged.
    pub(super) fn look_at(&self, packet: &Packet) -> Option<Result<Arrival, Unmet>> {
        let bytes = packet.to_vec();
        let ip = frames::ip_packet(&bytes, self.link_len(), self.pair.addresses[1])?;
        let (number, ip_len) = match frames::number_of(ip)? {
            Ok(found) => found,
            Err(damaged) => return Some(Err(fail(damaged))),
        };
        if packet.meta().timestamp == pkt::Instant::ZERO {
            return Some(Err(fail(format!("frame {number} has no time of arrival"))));
        }
        Some(Ok(Arrival { number, ip_len }))
    }

    /// Returns the IP packet in a received packet, if it belongs to the suite.
    pub(super) fn ip_of(&self, packet: &Packet) -> Option<Vec<u8>> {
        let bytes = packet.to_vec();
        frames::ip_packet(&bytes, self.link_len(), self.pair.addresses[1]).map(<[u8]>::to_vec)
    }

    fn link_len(&self) -> usize {
        match self.right.caps().link {
            LinkType::Ethernet { .. } => 14,
            LinkType::Ip => 0,
        }
    }
}
