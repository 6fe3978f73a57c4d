//! A traffic generator: a device that is the other host, and costs the receiver's CPU next to
//! nothing.
//!
//! Above: `receiver`. Below: the device interface of `quietline`. Linux: `pktgen`, or a second
//! host.
//!
//! It has connections to the host on which it is a device. For every frame it writes the headers
//! and leaves the payload as the memory was, as a network card that writes frames by DMA costs the
//! CPU nothing; the checksums count as verified. It reads acknowledgments, windows and lengths of
//! the packets that the host sends, and frees them. There is no loss, so that nothing is sent
//! twice; bytes in flight are bounded by the window and by a setting, so that the host has room for
//! small packets, too. Timestamps are the times of polls, which never run backwards
//! (`Device::receive`).
//!
//! `receive` runs on the thread that polls the device. It measures its own time, which the results
//! state apart; reading an acknowledgment takes no longer than reading the clock would.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use quietline::device::{
    Batch, Capabilities, Cx, Device, Doorbell, Instant, LinkType, Packet, PacketList, QueueId,
    RxChecksum, RxSignal,
};

use super::threads;
use flow::{Flow, Own, Phase};
use frame::Reply;

mod flow;
mod frame;

/// Largest payload of a frame of 1,500 bytes with timestamps.
pub(super) const PAYLOAD_MAX: u32 = 1448;
/// Frames that wait in a rate-limited device, as in the ring of a network card.
const RING: u32 = 64;
/// Bytes of a link besides the IP packet, of a frame.
const FRAMING_BYTES: u64 = 38;
/// Headers of a data frame: IP, TCP, timestamps.
const HEADER_BYTES: u32 = 52;

/// Traffic of the generator. Its host has the address 10.0.0.2 and more, and listens on port 80.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Connections.
    pub(super) flows: u8,
    /// Whether each connection goes to an address of its own: 10.0.0.2, 10.0.0.3 and so on.
    pub(super) separate: bool,
    /// Payload of a frame.
    pub(super) segment: u32,
    /// Whether every segment is pushed, as a write of its own is.
    pub(super) pushed: bool,
    /// Bytes that a connection may have in flight.
    pub(super) flight: u32,
    /// Bytes of a request; 0 sends without end.
    pub(super) request: u32,
    /// Bits per second of the link, if it has a limit.
    pub(super) rate_bps: Option<u64>,
}

#[derive(Debug)]
struct Sending {
    queue: VecDeque<usize>,
    own: Vec<Own>,
    /// When the link is free.
    free_at: Instant,
}

/// Device that generates traffic.
#[derive(Debug)]
pub(super) struct Generator {
    caps: Capabilities,
    load: Load,
    flows: Vec<Flow>,
    /// Taken by `receive` alone: no thread waits for it.
    sending: Mutex<Sending>,
    /// Connections that became ready.
    ready: Mutex<Vec<usize>>,
    /// Connections in `ready` and in the queue.
    waiting: AtomicUsize,
    /// A [`Phase`].
    phase: AtomicU8,
    doorbell: OnceLock<Doorbell>,
    frames: AtomicU64,
    responses: AtomicU64,
    spent_ns: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Generator {
    pub(super) fn new(load: Load) -> Self {
        let flows = usize::from(load.flows);
        Self {
            caps: Capabilities {
                tx_checksum: true,
                ..Capabilities::plain("generator", 1500, LinkType::Ip)
            },
            load,
            flows: (0..flows).map(|_| Flow::default()).collect(),
            sending: Mutex::new(Sending {
                queue: VecDeque::new(),
                own: (0..flows).map(|_| Own::default()).collect(),
                free_at: Instant::ZERO,
            }),
            ready: Mutex::default(),
            waiting: AtomicUsize::new(0),
            phase: AtomicU8::new(Phase::Connecting as u8),
            doorbell: OnceLock::new(),
            frames: AtomicU64::new(0),
            responses: AtomicU64::new(0),
            spent_ns: AtomicU64::new(0),
        }
    }

    /// Opens the connections.
    pub(super) fn connect(&self) {
        self.all_ready();
    }

    /// Starts to send.
    pub(super) fn start(&self) {
        for flow in &self.flows {
            flow.requests.store(1, Ordering::Relaxed);
        }
        self.phase.store(Phase::Sending as u8, Ordering::Release);
        self.all_ready();
    }

    /// Ends all connections, so that readers find an end.
    pub(super) fn end(&self) {
        self.phase.store(Phase::Ending as u8, Ordering::Release);
        self.all_ready();
    }

    /// Frames that the host has received.
    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Responses that have arrived.
    pub(super) fn responses(&self) -> u64 {
        self.responses.load(Ordering::Relaxed)
    }

    /// Time that the generator has spent on the host's threads.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_ns.load(Ordering::Relaxed))
    }

    fn phase(&self) -> Phase {
        let phase = self.phase.load(Ordering::Acquire);
        [Phase::Connecting, Phase::Sending, Phase::Ending][usize::from(phase).min(2)]
    }

    fn all_ready(&self) {
        for index in 0..self.flows.len() {
            self.make_ready(index);
        }
    }

    fn make_ready(&self, index: usize) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        lock(&self.ready).push(index);
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.wake();
        }
    }

    /// Makes the next frame; `None` if no connection may send.
    fn frame(&self, sending: &mut Sending, cx: &mut Cx) -> Option<Packet> {
        loop {
            if self.load.rate_bps.is_some() && sending.free_at > cx.now {
                return None;
            }
            let index = *sending.queue.front()?;
            let (flow, own) = (&self.flows[index], &mut sending.own[index]);
            let segment = flow.segment(&self.load, (index, own), self.phase(), cx.now);
            let Some(segment) = segment else {
                own.burst = 0;
                sending.queue.pop_front();
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                continue;
            };
            let packet = segment.packet(cx)?;
            self.frames.fetch_add(u64::from(segment.payload > 0), Ordering::Relaxed);
            if flow.sent(&self.load, own, &segment) {
                sending.queue.rotate_left(1);
            }
            if let Some(rate) = self.load.rate_bps {
                let bits = (packet.len() as u64 + FRAMING_BYTES) * 8;
                let time = Duration::from_nanos(bits * 1_000_000_000 / rate);
                let ring = time * RING;
                let oldest = Instant::from_nanos(
                    cx.now.as_nanos().saturating_sub(ring.as_nanos().try_into().unwrap_or(0)),
                );
                sending.free_at = sending.free_at.max(oldest) + time;
            }
            return Some(packet);
        }
    }
}

impl Device for Generator {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let begin = threads::now();
        let mut sending = lock(&self.sending);
        sending.queue.extend(lock(&self.ready).drain(..));
        let taken = out.take_while_room(budget, || {
            let mut packet = self.frame(&mut sending, cx)?;
            packet.meta_mut().timestamp = cx.now;
            packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
            Some(packet)
        });
        let spent = (threads::now() - begin).as_nanos().try_into().unwrap_or(u64::MAX);
        self.spent_ns.fetch_add(spent, Ordering::Relaxed);
        taken
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            if let Some(reply) = Reply::read(&packet)
                && let Some(flow) = self.flows.get(reply.flow)
            {
                let taken = flow.take(&self.load, &reply, self.phase());
                self.responses.fetch_add(u64::from(taken.has_response), Ordering::Relaxed);
                if taken.is_ready {
                    self.make_ready(reply.flow);
                }
            }
            cx.pool.free(packet);
        }
    }

    fn next_deadline(&self, _queue: QueueId) -> Option<Instant> {
        (self.waiting.load(Ordering::SeqCst) > 0).then(|| match self.load.rate_bps {
            Some(_) => lock(&self.sending).free_at,
            None => Instant::ZERO,
        })
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::None
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.doorbell.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.doorbell.get().is_some()
    }
}
