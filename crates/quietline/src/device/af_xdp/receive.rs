//! The receive half of a queue: copies frames from the receive ring into packet memory and returns
//! their chunks to the fill ring.
//!
//! Above: `device`. Linux: `xsk_rcv`, `xsk_generic_rcv`, on the other side of the rings.
//!
//! There are as many chunks as entries in either ring, so neither can overflow: every chunk is in
//! the fill ring, with the kernel, in the receive ring, or in use here. The kernel counts the
//! frames that it drops for lack of a chunk, and `missed` reports them.
//!
//! Not here: the meaning of the frame (`stack::receive::link_input`).

use pkt::{Packet, Pool};
use rustix::net::xdp::XdpStatistics;

use super::ring::{Consumer, Descriptor, Producer};
use super::umem::{Frame, Frames};

/// State that only the holder of the queue's core accesses.
#[derive(Debug)]
pub(super) struct RxQueue {
    ring: Consumer<Descriptor>,
    fill: Producer<u64>,
    frames: Frames,
    /// Kernel counters at the last read.
    counted: Missed,
}

/// Result of one receive attempt.
pub(super) enum Received {
    /// A frame.
    Frame(Packet),
    /// The kernel's descriptor of the frame is invalid.
    Broken,
    /// No frame waits.
    Empty,
    /// No packet memory is left. Waiting frames stay in the ring and are not lost.
    NoMemory,
}

/// Numbers of frames that the kernel dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Missed {
    /// No chunk was free.
    pub(super) no_room: u64,
    /// Longer than a chunk.
    pub(super) too_long: u64,
}

impl RxQueue {
    /// Lends every chunk to the kernel.
    pub(super) fn new(
        ring: Consumer<Descriptor>,
        fill: Producer<u64>,
        frames: Frames,
        rights: Vec<Frame>,
    ) -> Self {
        let mut queue = Self { ring, fill, frames, counted: Missed::default() };
        for frame in rights {
            queue.refill(frame);
        }
        queue.fill.publish();
        queue
    }

    /// Takes the next frame. The kernel sees the freed entries after [`RxQueue::publish`].
    pub(super) fn take(&mut self, pool: &mut Pool) -> Received {
        let Some(Descriptor { addr, len, .. }) = self.ring.peek() else { return Received::Empty };
        let Some(frame) = self.frames.take_back(addr) else {
            self.ring.pop();
            return Received::Broken;
        };
        let received = match self.frames.bytes(&frame, addr, len) {
            None | Some([]) => Received::Broken,
            Some(bytes) => copy(pool, bytes).map_or(Received::NoMemory, Received::Frame),
        };
        if matches!(received, Received::NoMemory) {
            // The descriptor stays first in the ring, and the chunk stays lent, so that the next
            // call finds it again.
            self.frames.lend(frame);
            return received;
        }
        self.ring.pop();
        self.refill(frame);
        received
    }

    /// Returns the freed entries and chunks to the kernel.
    pub(super) fn publish(&self) {
        self.fill.publish();
        self.ring.release();
    }

    /// Returns whether frames wait.
    pub(super) fn is_ready(&self) -> bool {
        self.ring.ready() > 0
    }

    /// Returns whether the kernel takes chunks only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Returns the increase of the kernel's counters since the last call.
    pub(super) fn missed(&mut self, statistics: &XdpStatistics) -> Missed {
        let now = Missed::of(statistics);
        let new = Missed {
            no_room: now.no_room.saturating_sub(self.counted.no_room),
            too_long: now.too_long.saturating_sub(self.counted.too_long),
        };
        self.counted = now;
        new
    }

    fn refill(&mut self, frame: Frame) {
        let address = self.frames.lend(frame);
        // There are as many entries as chunks. The push fails only if the kernel has returned a
        // chunk that it had not taken, which is in the ring already.
        let _ = self.fill.push(address);
    }
}

impl Missed {
    /// A frame without a chunk is counted twice, as dropped and as a failed look into the fill
    /// ring. In zero-copy mode the driver's failed looks are counted even without a frame. A frame
    /// that finds the receive ring full is not counted as dropped.
    fn of(statistics: &XdpStatistics) -> Self {
        let looks = statistics.rx_fill_ring_empty_descs.unwrap_or(0);
        let no_chunk = looks.min(statistics.rx_dropped);
        Self {
            no_room: no_chunk + statistics.rx_ring_full.unwrap_or(0),
            too_long: statistics.rx_dropped - no_chunk,
        }
    }
}

/// Returns a packet with a copy of `bytes`.
fn copy(pool: &mut Pool, bytes: &[u8]) -> Option<Packet> {
    let mut slot = pool.rx_slot(bytes.len())?;
    slot.write(bytes);
    Some(slot.finish(pool, bytes.len()))
}

#[cfg(test)]
mod tests {
    use pkt::{Domain, DomainConfig};

    use super::super::ring::tests::pair;
    use super::super::umem::Umem;
    use super::*;

    /// Returns a queue of four frames, and the kernel's ends of its rings.
    fn queue() -> (RxQueue, Frames, Producer<Descriptor>, Consumer<u64>) {
        let umem = Umem::new(8, 2048).expect("memory");
        let [(frames, rights), (transmit, _)] = Frames::halves(umem, 4);
        let (kernel_rx, ring, _) = pair(4, 0);
        let (fill, kernel_fill, _) = pair(4, 0);
        (RxQueue::new(ring, fill, frames, rights), transmit, kernel_rx, kernel_fill)
    }

    fn domain() -> Domain {
        Domain::new(DomainConfig::default())
    }

    #[test]
    fn every_chunk_is_reused() {
        let (mut queue, _, mut rx, mut fill) = queue();
        let domain = domain();
        let mut pool = domain.pool();
        for round in 0..10u32 {
            for len in 1..=4 {
                let addr = fill.pop().expect("a chunk") + 256;
                rx.push(Descriptor { addr, len: len + round, options: 0 }).expect("room");
            }
            assert_eq!(fill.pop(), None, "all four chunks are in use");
            fill.release();
            rx.publish();
            for len in 1..=4 {
                let Received::Frame(packet) = queue.take(&mut pool) else { panic!("a frame") };
                assert_eq!(packet.len(), (len + round) as usize);
                pool.free(packet);
            }
            assert!(matches!(queue.take(&mut pool), Received::Empty));
            queue.publish();
        }
    }

    #[test]
    fn invalid_descriptors_are_refused_and_lose_no_chunk() {
        let (mut queue, _, mut rx, mut fill) = queue();
        let domain = domain();
        let mut pool = domain.pool();
        let addr = fill.pop().expect("a chunk");
        fill.release();
        for (addr, len) in [(addr, 4000), (addr, 0), (addr + (1 << 40), 60), (5 * 2048, 60)] {
            rx.push(Descriptor { addr, len, options: 0 }).expect("room");
        }
        rx.publish();
        for _ in 0..4 {
            assert!(matches!(queue.take(&mut pool), Received::Broken));
        }
        queue.publish();
        assert!(!queue.is_ready());
    }

    #[test]
    fn kernel_counts_are_reported_once() {
        let (mut queue, ..) = queue();
        let mut statistics = XdpStatistics {
            rx_dropped: 7,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: Some(2),
            rx_fill_ring_empty_descs: Some(5),
            tx_ring_empty_descs: Some(0),
        };
        assert_eq!(queue.missed(&statistics), Missed { no_room: 7, too_long: 2 });
        assert_eq!(queue.missed(&statistics), Missed::default());
        statistics.rx_dropped += 1;
        assert_eq!(queue.missed(&statistics), Missed { no_room: 0, too_long: 1 });
    }
}
