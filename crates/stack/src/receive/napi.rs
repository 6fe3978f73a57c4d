//! NAPI: the receive state of one device queue on its core, and the poll of this queue.
//!
//! Above: a turn of the core (`core::turn`: one pass of its softirq work). Below: the device, which
//! is polled; then [`gro`](crate::receive::gro), steering (`rps`), and `link_input::input_list` for
//! packets that stay on this core. Linux: `struct napi_struct`, `napi_poll`, `napi_complete_done`,
//! `napi_busy_loop`.
//!
//! Only the thread that owns the core accesses this state; the borrow of the core's state proves
//! the ownership. Unless `gro_flush_timeout` is set, receive offload holds no packets while the
//! core may be released or its thread may sleep: held packets (packets that wait for the next
//! segment of their flow) are delivered at the end of a poll that emptied the queue, and when busy
//! polling stops. A poll that used its whole weight completes only packets held since an earlier
//! millisecond. A busy-poll cycle delivers the packets that `net.quietline.busy_poll_flush`
//! selects.

use std::sync::Arc;

use pkt::{Batch, DropReason, Instant, Packet, PacketList};
use sync::ring;

use super::{
    gro::{Gro, GroMode},
    link_input::{self, FrameSource},
    rps::{Outbox, Steering},
};
use crate::{
    base::{counters::Counter, ids::DeviceIndex, limits::WEIGHT},
    cx::Cx,
    device::{Device, DeviceQueue, QueueId},
    socket::{
        net::Net,
        rx::{LastFlow, Rx},
    },
    sysctl::modes::BusyPollFlush,
    transmit::tx_queue::DeviceTx,
};
use deferral::Deferral;

mod deferral;

/// Average frame length in bytes above which frames count as superframes (packets of several
/// segments).
const SUPERFRAME_MIN: usize = 4096;

/// Maximum number of polls that drain the stale frames of a queue when its device comes up. So many
/// polls take more frames than any device queue holds.
const STALE_POLLS_MAX: usize = 256;

/// Receive state of one device queue, polled by one core.
#[derive(Debug)]
pub(crate) struct Napi {
    device: Arc<dyn Device>,
    tx: Arc<DeviceTx>,
    /// Index of the device in its host.
    index: DeviceIndex,
    queue: QueueId,
    weight: usize,
    /// True if the last frames were superframes.
    bulk: bool,
    /// Ring of received frames, if the device lets the core read its ring directly.
    ring: Option<ring::Receiver<Packet>>,
    /// Frames delivered by the device in one poll. Empty between polls.
    batch: Batch,
    stages: Stages,
    /// Timed polls of the queue (`napi_defer_hard_irqs`, `gro_flush_timeout`).
    deferral: Deferral,
}

/// Stages of the receive path between the device and the link layer.
#[derive(Debug)]
struct Stages {
    from: FrameSource,
    /// Packets held for merging, and packets ready for delivery.
    gro: Gro,
    /// Selection of the core of each packet.
    steering: Steering,
    /// True if steering may apply in this poll.
    steers: bool,
}

/// Context that ends a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollEnd {
    /// The core may be released after the poll.
    Softirq,
    /// The same thread polls the queue again at once (Linux: `NAPI_STATE_IN_BUSY_POLL`).
    BusyCycle,
}

impl Napi {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        tx: Arc<DeviceTx>,
        index: DeviceIndex,
        queue: QueueId,
    ) -> Self {
        let stages = Stages {
            from: FrameSource { device: index, link: device.caps().link },
            gro: Gro::default(),
            steering: Steering::default(),
            steers: false,
        };
        let (weight, ring) = (device.weight(), device.take_receiver(queue));
        let (batch, deferral) = (Batch::default(), Deferral::default());
        Self { device, tx, index, queue, weight, bulk: false, ring, batch, stages, deferral }
    }

    /// Receives at most `budget` frames into the batch and returns their number, dropped ones
    /// included.
    #[inline]
    fn receive(&mut self, cx: &mut Cx, budget: usize) -> usize {
        match &mut self.ring {
            Some(ring) => {
                let received =
                    self.batch.take_while_room(budget, || ring.pop().inspect(Packet::prefetch));
                if received > 1 {
                    // Several frames are most likely TCP segments, whose frags (pieces of page
                    // memory) receive offload reads when it merges them.
                    self.batch.packets().iter().for_each(Packet::prefetch_frags);
                }
                received
            }
            None => self.device.receive(self.queue, cx, budget, &mut self.batch),
        }
    }

    /// Whether the frames arrive in a ring that the core reads directly.
    pub(crate) const fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether the ring holds a frame.
    pub(crate) fn has_arrived(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.is_empty())
    }

    /// Returns the maximum number of frames of a poll: the smaller of `dev_weight` (the setting, or
    /// the budget of a busy-poll cycle) and the weight of the device, which is halved while
    /// superframes arrive.
    pub(crate) fn weight(&self, dev_weight: usize) -> usize {
        let most = if self.bulk { self.weight.div_ceil(2) } else { self.weight };
        dev_weight.min(most)
    }

    /// Whether timed polls are neither pending nor enabled by the settings.
    pub(crate) fn is_prompt(&self, cx: &Cx) -> bool {
        self.deferral.is_idle() && !cx.sysctls().devices.of(self.index).defers()
    }

    /// Ends a sequence of polls; the last one received `received` frames. Returns true if the
    /// queue's descriptor must be watched again.
    pub(crate) fn complete(&mut self, cx: &Cx, received: usize) -> bool {
        let settings = cx.sysctls().devices.of(self.index);
        self.deferral.complete(settings, cx.now, received, self.holds())
    }

    /// Returns the state of the timed polls.
    pub(crate) const fn deferral(&mut self) -> &mut Deferral {
        &mut self.deferral
    }

    /// Whether the device reports transmit completions later.
    pub(crate) fn completes(&self) -> bool {
        self.tx.completes_later()
    }

    /// Returns the time at which the transmit queue must run even if no packet is sent.
    pub(crate) fn transmit_deadline(&self) -> Option<Instant> {
        self.tx.deadline(self.queue)
    }

    /// Completes transmitted packets, returns their charges to the sending sockets, and sends
    /// packets that waited for room in the device.
    pub(crate) fn complete_transmissions(&self, cx: &mut Cx) {
        self.tx.complete(cx, self.queue);
    }

    /// Sends packets whose departure time has come.
    pub(crate) fn restart_transmissions(&self, cx: &mut Cx) {
        self.tx.run_due(cx, self.queue);
    }

    /// Receives at most `weight` frames, delivers them, and returns their number. A result below
    /// `weight` means that the queue is empty and the poll is complete. A result equal to `weight`
    /// means that the poll is not complete, even if the queue happens to be empty.
    pub(crate) fn poll(
        &mut self,
        net: &Net,
        cx: &mut Cx,
        last_flow: &mut LastFlow,
        outbox: &mut Outbox,
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
        // One RCU read section covers the whole poll, so that lookups for one packet remain valid
        // for the next.
        let reader = cx.reader();
        let rcu = reader.pin();
        let rx = &mut Rx::new(net, cx, &rcu, last_flow);
        if received == 1 && self.may_bypass_gro(rx.cx, end) {
            self.stages.bypass_gro(rx, self.batch.drain());
            return received;
        }
        let mode = self.begin(net, rx.cx, outbox);
        self.receive_batch(rx, outbox, &mode);
        match end {
            PollEnd::BusyCycle => {
                let flush = rx.cx.sysctls().busy_poll_flush;
                self.stages.gro.end_cycle(rx.cx, &mode, flush, received);
            }
            PollEnd::Softirq => {
                let old_only =
                    received == weight || (received > 0 && self.may_hold_after_poll(rx.cx));
                self.stages.gro.flush(rx.cx, &mode, old_only);
            }
        }
        self.stages.finish(rx, outbox);
        received
    }

    /// Records whether the last frames were superframes. Called for devices that may deliver
    /// superframes.
    fn note_bulk(&mut self) {
        let frames = self.batch.packets();
        let bytes: usize = frames.iter().map(Packet::len).sum();
        if !frames.is_empty() {
            self.bulk = bytes > frames.len() * SUPERFRAME_MIN;
        }
    }

    /// Whether the last frames were superframes, which have so many bytes that cache locality
    /// matters.
    pub(crate) const fn is_bulk(&self) -> bool {
        self.bulk
    }

    /// Whether the single frame of this poll can skip receive offload and its list, so that the
    /// poll need not read their settings. This is the case if offload holds no packet and would not
    /// hold this frame, steering is off, and the poll ends with a flush.
    #[inline]
    fn may_bypass_gro(&self, cx: &Cx, end: PollEnd) -> bool {
        let flushes =
            end == PollEnd::Softirq || cx.sysctls().busy_poll_flush != BusyPollFlush::None;
        let network = self.stages.from.link.header_bytes();
        flushes
            && self.stages.gro.is_empty()
            && self.batch.packets().first().is_some_and(|frame| Gro::cannot_merge(frame, network))
            && self.stages.steering.is_off(cx)
    }

    /// Stops polling the queue and frees its packets. Linux: `napi_disable`, `ndo_stop`.
    pub(crate) fn disable(&mut self, cx: &mut Cx) {
        let mode = GroMode::of(cx.sysctls(), self.index, false);
        self.stages.gro.flush(cx, &mode, false);
        while let Some(packet) = self.stages.gro.ready().pop_front() {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
        self.device.stop(self.queue, cx);
        while let Some(packet) = self.ring.as_mut().and_then(ring::Receiver::pop) {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
        self.deferral = Deferral::default();
    }

    /// Starts polling the queue again, after dropping the frames received while the device was
    /// down. [`STALE_POLLS_MAX`] bounds the loop if frames keep arriving.
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

    /// Replaces the device, because the old one was removed.
    pub(crate) fn set_device(&mut self, device: Arc<dyn Device>) {
        self.device = device;
        self.ring = None;
    }

    /// Delivers all held and ready packets before the core is released. Linux: `busy_poll_stop`.
    pub(crate) fn flush(
        &mut self,
        net: &Net,
        cx: &mut Cx,
        last_flow: &mut LastFlow,
        outbox: &mut Outbox,
    ) {
        if self.holds() {
            let mode = self.begin(net, cx, outbox);
            self.stages.gro.flush(cx, &mode, false);
            let reader = cx.reader();
            let rcu = reader.pin();
            self.stages.finish(&mut Rx::new(net, cx, &rcu, last_flow), outbox);
        }
    }

    /// Whether receive offload has packets that are not yet delivered.
    pub(crate) const fn holds(&self) -> bool {
        !self.stages.gro.is_empty()
    }

    /// Whether packets may stay held after a poll that emptied the queue, because a timer will poll
    /// the queue (`gro_flush_timeout`).
    fn may_hold_after_poll(&self, cx: &Cx) -> bool {
        !cx.sysctls().devices.of(self.index).gro_flush_timeout.is_zero()
    }

    /// Begins a poll: reads the settings of steering and receive offload.
    fn begin(&mut self, net: &Net, cx: &Cx, outbox: &Outbox) -> GroMode {
        let from = DeviceQueue { device: self.index, queue: self.queue };
        self.stages.steers = self.stages.steering.begin(net, cx, outbox, from);
        GroMode::of(cx.sysctls(), self.index, !net.is_loopback_device(self.index))
    }

    /// Passes every frame of the batch through receive offload, and delivers the packets that
    /// become ready.
    fn receive_batch(&mut self, rx: &mut Rx<'_, '_>, outbox: &mut Outbox, mode: &GroMode) {
        let Self { batch, stages, .. } = self;
        let network = stages.from.link.header_bytes();
        rx.cx.count(Counter::DeviceRxPackets, batch.len() as u64);
        let mut bytes = 0;
        for packet in batch.drain() {
            bytes += packet.len() as u64;
            rx.cx.advance_clock_to(packet.meta().timestamp);
            stages.gro.receive(rx.cx, mode, network, packet);
            if !stages.gro.ready().is_empty() {
                stages.deliver_ready(rx, outbox, false);
            }
        }
        rx.cx.count(Counter::DeviceRxBytes, bytes);
    }
}

impl Stages {
    /// Delivers the ready packets on this core, or passes them to the cores that steering selects.
    /// `last` is true if no packet follows in this poll.
    fn deliver_ready(&mut self, rx: &mut Rx<'_, '_>, outbox: &mut Outbox, last: bool) {
        if self.steers {
            self.steer(rx, outbox);
        }
        link_input::input_list(rx, self.from, self.gro.ready(), last);
    }

    /// Delivers the only frame of a poll while no other packet is held or ready. The frame is
    /// counted as if it had passed receive offload.
    fn bypass_gro(&self, rx: &mut Rx<'_, '_>, frame: impl Iterator<Item = Packet>) {
        for packet in frame {
            rx.cx.count(Counter::DeviceRxPackets, 1);
            rx.cx.count(Counter::DeviceRxBytes, packet.len() as u64);
            rx.cx.advance_clock_to(packet.meta().timestamp);
            Gro::count_bypassed(rx.cx);
            link_input::input(rx, self.from, packet, true);
        }
        rx.flush();
    }

    /// Passes the ready packets that belong to other cores to the outbox. The others stay ready.
    #[cold]
    fn steer(&mut self, rx: &mut Rx<'_, '_>, outbox: &mut Outbox) {
        let mut kept = PacketList::new();
        while let Some(mut packet) = self.gro.ready().pop_front() {
            packet.meta_mut().rx_device = self.from.device.0;
            kept.extend(self.steering.keep(rx.net, rx.cx, outbox, self.from.link, packet));
        }
        self.gro.ready().append(&mut kept);
    }

    /// Ends a poll: delivers the ready packets, pushes packets for other cores to their backlogs,
    /// and flushes the current connection (`Rx::flush`).
    fn finish(&mut self, rx: &mut Rx<'_, '_>, outbox: &mut Outbox) {
        if !self.gro.ready().is_empty() {
            self.deliver_ready(rx, outbox, true);
        }
        outbox.push(rx.net, rx.cx);
        rx.flush();
    }
}
