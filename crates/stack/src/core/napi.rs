//! NAPI: what a core keeps for each device queue, and how it polls it.
//!
//! Below: the device. Above: `link::input`, through the batch that a poll takes. Linux: `struct napi_struct`,
//! `napi_poll`, `napi_complete_done`.
//!
//! Only the owner of the core touches it. No packet stays here between two polls: `flush` runs whenever the poll could be
//! given up or its thread could idle.

use std::sync::Arc;

use pkt::Batch;

use super::deferral::Deferral;
use crate::{
    counters::Counter,
    cx::Cx,
    device::{Device, QueueId},
    host::Host,
    link,
    rps::{Outbox, Steering},
    socket::Flow,
};

/// Frames one poll of one queue may take, where `net.core.dev_weight` does not say less: NAPI's weight, and what a
/// [`Batch`] holds.
pub const WEIGHT: usize = 64;

/// One queue of one device, polled by one core.
#[derive(Debug)]
pub(super) struct Napi {
    device: Arc<dyn Device>,
    /// Index of the device in its host.
    index: u32,
    queue: QueueId,
    /// What the device delivers in a poll. Empty between two polls.
    batch: Batch,
    /// Which packets leave for another core.
    steering: Steering,
    /// When it is polled although nothing was heard of it.
    deferral: Deferral,
}

impl Napi {
    pub(super) fn new(device: Arc<dyn Device>, index: u32, queue: QueueId) -> Self {
        Self {
            device,
            index,
            queue,
            batch: Batch::default(),
            steering: Steering::default(),
            deferral: Deferral::default(),
        }
    }

    /// The poll that took `received` frames was the last for now. True if the queue's descriptor shall be watched.
    pub(super) fn complete(&mut self, cx: &Cx, received: usize) -> bool {
        let settings = cx.sysctls().devices.of(self.index);
        self.deferral.complete(settings, cx.now, received, self.holds())
    }

    /// Whether it has packets that have not gone up yet.
    pub(super) const fn holds(&self) -> bool {
        !self.batch.is_empty()
    }

    /// When it is polled by time, and whether that has come.
    pub(super) const fn deferral(&mut self) -> &mut Deferral {
        &mut self.deferral
    }

    /// Runs the destructors of packets that the device has sent.
    pub(super) fn complete_transmissions(&self, cx: &mut Cx) {
        if self.device.caps().async_completion {
            self.device.complete(self.queue, cx);
        }
    }

    /// Takes at most `weight` frames and carries them up; returns how many. Fewer than `weight` means that the queue was
    /// empty: the poll has been completed. Exactly `weight` means that it has not, even if the queue is empty by chance.
    pub(super) fn poll(
        &mut self,
        host: &Host,
        flow: &mut Flow,
        outbox: &mut Outbox,
        cx: &mut Cx,
        weight: usize,
    ) -> usize {
        let received = self.device.receive(self.queue, cx, weight, &mut self.batch);
        cx.count(Counter::SoftnetProcessed, received as u64);
        if received < weight {
            self.complete_done(host, flow, outbox, cx);
        } else {
            self.flush(host, flow, outbox, cx);
        }
        received
    }

    /// The queue was found empty. Linux: `napi_complete_done`.
    fn complete_done(&mut self, host: &Host, flow: &mut Flow, outbox: &mut Outbox, cx: &mut Cx) {
        self.flush(host, flow, outbox, cx);
    }

    /// What the queue has taken from the device and not yet passed on goes up; then one output, one ACK decision and one
    /// wake for the socket that received last. Runs at every point where the core could be given up or its thread could
    /// idle.
    fn flush(&mut self, host: &Host, flow: &mut Flow, outbox: &mut Outbox, cx: &mut Cx) {
        self.receive_batch(host, flow, outbox, cx);
        flow.flush(host, cx);
    }

    /// The receive line for one batch: every frame up to its socket.
    fn receive_batch(&mut self, host: &Host, flow: &mut Flow, outbox: &mut Outbox, cx: &mut Cx) {
        if self.batch.is_empty() {
            return;
        }
        let reader = cx.reader();
        let rcu = reader.pin();
        cx.count(Counter::DeviceRxPackets, self.batch.len() as u64);
        let mut bytes = 0;
        let Self { batch, steering, index: device, .. } = self;
        let link = self.device.caps().link;
        let steers = steering.begin(host, cx, outbox, (*device, self.queue.0));
        for mut packet in batch.drain() {
            bytes += packet.len() as u64;
            cx.not_before(packet.meta().timestamp);
            if steers {
                packet.meta_mut().rx_device = *device;
                match steering.keep(host, cx, outbox, link, packet) {
                    Some(kept) => packet = kept,
                    None => continue,
                }
            }
            link::input(host, cx, &rcu, flow, *device, packet);
        }
        outbox.push(host, cx);
        cx.count(Counter::DeviceRxBytes, bytes);
    }
}
