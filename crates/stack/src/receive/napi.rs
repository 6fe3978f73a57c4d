//! NAPI: what a core keeps for each device queue, and how it polls it.
//!
//! Above: a turn of the core. Below: the device, which is asked; then [`gro`](crate::receive::gro), steering, and
//! `link_input::input_list` for what stays. Linux: `struct
//! napi_struct`, `napi_poll`, `napi_complete_done`, `napi_busy_loop`.
//!
//! Only the owner of the core touches it, which the borrow of the core's state proves. What receive offload holds leaves before
//! the core could be given up or its thread could idle: all of it at the end of a poll that found the queue empty and when busy
//! polling stops, what is old at the end of a poll that did not.

use std::sync::Arc;

use pkt::{Batch, DropReason, Instant, Packet, PacketList};
use sync::{epoch::Section, ring};

use super::{
    flow::{Flow, LastFlow},
    gro::{Gro, GroMode},
    link_input,
    rps::{Outbox, Steering},
};
use crate::{
    base::{counters::Counter, limits::WEIGHT},
    cx::Cx,
    device::{Device, LinkType, QueueId},
    host::Host,
    sysctl::modes::BusyPollFlush,
    transmit::tx_queue::DeviceTx,
};
use deferral::Deferral;

mod deferral;

/// Frames longer than this on average are superframes.
const SUPERFRAME_MIN: usize = 4096;

/// Polls that empty a queue whose device comes up: more frames than any device's queue holds.
const STALE_POLLS_MAX: usize = 256;

/// One queue of one device, polled by one core.
#[derive(Debug)]
pub(crate) struct Napi {
    device: Arc<dyn Device>,
    tx: Arc<DeviceTx>,
    /// Index of the device in its host.
    index: u32,
    queue: QueueId,
    weight: usize,
    /// Its last frames were superframes.
    bulk: bool,
    /// Where its frames come by, if the device is no more than that.
    ring: Option<ring::Receiver<Packet>>,
    /// What the device delivers in a poll. Empty between two polls.
    batch: Batch,
    line: Line,
    /// When it is polled although nothing was heard of it.
    deferral: Deferral,
}

/// What a frame passes on its way up.
#[derive(Debug)]
struct Line {
    device: u32,
    link: LinkType,
    /// What is held to be merged, and what waits to go up.
    gro: Gro,
    /// Which packets leave for another core.
    steering: Steering,
    /// Some may, in this poll.
    steers: bool,
}

/// How a poll ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollEnd {
    /// The core may be let go after it.
    Softirq,
    /// The same thread polls again at once (Linux: `NAPI_STATE_IN_BUSY_POLL`).
    BusyCycle,
}

impl Napi {
    pub(crate) fn new(
        (device, tx): (Arc<dyn Device>, Arc<DeviceTx>),
        index: u32,
        queue: QueueId,
    ) -> Self {
        let line = Line {
            device: index,
            link: device.caps().link,
            gro: Gro::default(),
            steering: Steering::default(),
            steers: false,
        };
        let (weight, ring) = (device.weight(), device.take_receiver(queue));
        let (batch, deferral) = (Batch::default(), Deferral::default());
        Self { device, tx, index, queue, weight, bulk: false, ring, batch, line, deferral }
    }

    /// At most `budget` frames into the batch; how many.
    #[inline]
    fn receive(&mut self, cx: &mut Cx, budget: usize) -> usize {
        match &mut self.ring {
            Some(ring) => {
                let received =
                    self.batch.take_while_room(budget, || ring.pop().inspect(Packet::prefetch));
                if received > 1 {
                    // Most likely segments, which receive offload joins by their frags.
                    self.batch.packets().iter().for_each(Packet::prefetch_frags);
                }
                received
            }
            None => self.device.receive(self.queue, cx, budget, &mut self.batch),
        }
    }

    /// Its frames come by a ring that the core itself looks into.
    pub(crate) const fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// A frame waits in the ring.
    pub(crate) fn has_arrived(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.is_empty())
    }

    /// Frames one poll takes at most, by the settings (`net.core.dev_weight`) and by the device.
    pub(crate) fn weight(&self, dev_weight: usize) -> usize {
        let most = if self.bulk { self.weight.div_ceil(2) } else { self.weight };
        dev_weight.min(most)
    }

    /// Whether nothing is polled by time here: not now, and not by the settings.
    pub(crate) fn is_prompt(&self, cx: &Cx) -> bool {
        self.deferral.is_idle() && !cx.sysctls().devices.of(self.index).defers()
    }

    /// The poll that took `received` frames was the last for now. True if the queue's descriptor shall be watched.
    pub(crate) fn complete(&mut self, cx: &Cx, received: usize) -> bool {
        let settings = cx.sysctls().devices.of(self.index);
        self.deferral.complete(settings, cx.now, received, self.holds())
    }

    /// When it is polled by time, and whether that has come.
    pub(crate) const fn deferral(&mut self) -> &mut Deferral {
        &mut self.deferral
    }

    /// The device has completions to tell.
    pub(crate) fn completes(&self) -> bool {
        self.tx.completes_later()
    }

    /// When the queue is to be run although nothing is sent.
    pub(crate) fn transmit_deadline(&self) -> Option<Instant> {
        self.tx.deadline(self.queue)
    }

    /// Packets that the device has sent pay their senders back, and those that waited for room follow.
    pub(crate) fn complete_transmissions(&self, host: &Host, cx: &mut Cx) {
        self.tx.complete(host, cx, self.queue);
    }

    /// The queue sends what may go by now.
    pub(crate) fn restart_transmissions(&self, host: &Host, cx: &mut Cx) {
        self.tx.run_due(host, cx, self.queue);
    }

    /// Takes at most `weight` frames and carries them up; returns how many. Fewer than `weight` means that the queue was
    /// empty: the poll has been completed. Exactly `weight` means that it has not, even if the queue is empty by chance.
    pub(crate) fn poll(
        &mut self,
        host: &Host,
        last_flow: &mut LastFlow,
        outbox: &mut Outbox,
        cx: &mut Cx,
        weight: usize,
        end: PollEnd,
    ) -> usize {
        let received = self.receive(cx, weight);
        cx.count(Counter::SoftnetProcessed, received as u64);
        if received == 0 && !self.holds() {
            return 0;
        }
        if self.weight < WEIGHT {
            self.note_bulk();
        }
        // One read section for all of the poll: what it finds for one packet stays found for the next.
        let reader = cx.reader();
        let rcu = reader.pin();
        let mut flow = Flow::new(last_flow);
        if received == 1 && self.goes_straight_up(cx, end) {
            self.line.go_straight_up(host, &rcu, &mut flow, cx, self.batch.drain());
            return received;
        }
        let mode = self.begin(host, outbox, cx);
        self.receive_batch(host, &rcu, &mut flow, outbox, cx, &mode);
        match end {
            PollEnd::BusyCycle => {
                let flush = cx.sysctls().busy_poll_flush;
                self.line.gro.end_cycle(cx, &mode, flush, received);
            }
            PollEnd::Softirq => {
                let old_only = received == weight || (received > 0 && self.lingers(cx));
                self.line.gro.flush(cx, &mode, old_only);
            }
        }
        self.line.finish(host, &rcu, &mut flow, outbox, cx);
        received
    }

    /// The device may have superframes: were these?
    fn note_bulk(&mut self) {
        let frames = self.batch.packets();
        let bytes: usize = frames.iter().map(Packet::len).sum();
        if !frames.is_empty() {
            self.bulk = bytes > frames.len() * SUPERFRAME_MIN;
        }
    }

    /// Its last frames were superframes: so many bytes that it matters in whose caches they are.
    pub(crate) const fn is_bulk(&self) -> bool {
        self.bulk
    }

    /// Whether the one frame of this poll goes up with nothing before it and nothing behind it: receive offload holds nothing
    /// and would not hold this one, nothing is steered, and the list goes up at the end of the poll. Then neither the list need
    /// be made nor the settings be asked.
    #[inline]
    fn goes_straight_up(&self, cx: &Cx, end: PollEnd) -> bool {
        let flushes =
            end == PollEnd::Softirq || cx.sysctls().busy_poll_flush != BusyPollFlush::None;
        let network = self.line.link.header_bytes();
        flushes
            && self.line.gro.is_empty()
            && self.batch.packets().first().is_some_and(|frame| Gro::goes_alone(frame, network))
            && self.line.steering.is_off(cx)
    }

    /// The queue is not polled any more: what it holds is freed. Linux: `napi_disable`, `ndo_stop`.
    pub(crate) fn disable(&mut self, cx: &mut Cx) {
        let mode = GroMode::of(cx.sysctls(), self.index, false);
        self.line.gro.flush(cx, &mode, false);
        while let Some(packet) = self.line.gro.ready().pop_front() {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
        self.device.stop(self.queue, cx);
        while let Some(packet) = self.ring.as_mut().and_then(ring::Receiver::pop) {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
        self.deferral = Deferral::default();
    }

    /// The queue is polled again. Frames that have come meanwhile came to a device that was down; those that come while they are
    /// dropped end that after [`STALE_POLLS_MAX`].
    pub(crate) fn enable(&mut self, cx: &mut Cx) {
        self.device.start(self.queue);
        let weight = self.weight.min(WEIGHT);
        for _ in 0..STALE_POLLS_MAX {
            let received = self.receive(cx, weight);
            for packet in self.batch.drain() {
                cx.drop_packet(DropReason::DeviceDown, packet);
            }
            if received < weight {
                break;
            }
        }
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Another device in its place: it is gone.
    pub(crate) fn set_device(&mut self, device: Arc<dyn Device>) {
        self.device = device;
        self.ring = None;
    }

    /// Everything that is held or waits goes up: the core is about to be let go. Linux: `busy_poll_stop`.
    pub(crate) fn flush(
        &mut self,
        host: &Host,
        last_flow: &mut LastFlow,
        outbox: &mut Outbox,
        cx: &mut Cx,
    ) {
        if self.holds() {
            let mode = self.begin(host, outbox, cx);
            self.line.gro.flush(cx, &mode, false);
            let reader = cx.reader();
            let rcu = reader.pin();
            self.line.finish(host, &rcu, &mut Flow::new(last_flow), outbox, cx);
        }
    }

    /// Whether it has packets that have not gone up yet.
    pub(crate) const fn holds(&self) -> bool {
        !self.line.gro.is_empty()
    }

    /// What is held may wait for more although the queue is empty: a timer will poll it (`gro_flush_timeout`).
    fn lingers(&self, cx: &Cx) -> bool {
        !cx.sysctls().devices.of(self.index).gro_flush_timeout.is_zero()
    }

    /// The settings of this poll.
    fn begin(&mut self, host: &Host, outbox: &Outbox, cx: &Cx) -> GroMode {
        let place = (self.index, self.queue.0);
        self.line.steers = self.line.steering.begin(host, cx, outbox, place);
        GroMode::of(cx.sysctls(), self.index, !host.is_loopback_device(self.index))
    }

    /// Every frame of the batch through receive offload, and up to its socket what has to go at once.
    fn receive_batch<'s>(
        &mut self,
        host: &'s Host,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        outbox: &mut Outbox,
        cx: &mut Cx,
        mode: &GroMode,
    ) {
        let Self { batch, line, .. } = self;
        let network = line.link.header_bytes();
        cx.count(Counter::DeviceRxPackets, batch.len() as u64);
        let mut bytes = 0;
        for packet in batch.drain() {
            bytes += packet.len() as u64;
            cx.not_before(packet.meta().timestamp);
            line.gro.receive(cx, mode, network, packet);
            if !line.gro.ready().is_empty() {
                line.go_up(host, rcu, flow, outbox, cx, false);
            }
        }
        cx.count(Counter::DeviceRxBytes, bytes);
    }
}

impl Line {
    /// What has left receive offload goes up, here or on the core it belongs to; `last` says that nothing follows.
    fn go_up<'s>(
        &mut self,
        host: &'s Host,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        outbox: &mut Outbox,
        cx: &mut Cx,
        last: bool,
    ) {
        if self.steers {
            self.steer(host, outbox, cx);
        }
        let from = (self.device, self.link);
        link_input::input_list(host, cx, rcu, flow, from, self.gro.ready(), last);
    }

    /// The one frame of a poll, of which nothing is held and nothing waits: counted as one that has passed through.
    fn go_straight_up<'s>(
        &self,
        host: &'s Host,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        cx: &mut Cx,
        frame: impl Iterator<Item = Packet>,
    ) {
        for packet in frame {
            cx.count(Counter::DeviceRxPackets, 1);
            cx.count(Counter::DeviceRxBytes, packet.len() as u64);
            cx.not_before(packet.meta().timestamp);
            Gro::count_alone(cx);
            link_input::input(host, cx, rcu, flow, (self.device, self.link), packet, true);
        }
        flow.flush(host, cx);
    }

    /// Hands on what belongs to other cores; the rest stays ready.
    #[cold]
    fn steer(&mut self, host: &Host, outbox: &mut Outbox, cx: &mut Cx) {
        let mut kept = PacketList::new();
        while let Some(mut packet) = self.gro.ready().pop_front() {
            packet.meta_mut().rx_device = self.device;
            kept.extend(self.steering.keep(host, cx, outbox, self.link, packet));
        }
        self.gro.ready().append(&mut kept);
    }

    /// The last of a poll: then one output, one ACK decision and one wake for the socket that received last.
    fn finish<'s>(
        &mut self,
        host: &'s Host,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        outbox: &mut Outbox,
        cx: &mut Cx,
    ) {
        if !self.gro.ready().is_empty() {
            self.go_up(host, rcu, flow, outbox, cx, true);
        }
        outbox.push(host, cx);
        flow.flush(host, cx);
    }
}
