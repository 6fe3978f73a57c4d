//! `impl Device for AfPacket`.
//!
//! Above: `stack::core` and the device's transmit queues.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use pkt::{Batch, DropReason, Instant, Packet, PacketList};
use stack::{
    base::counters::Counter,
    cx::Cx,
    device::{Capabilities, Completed, Device, Doorbell, QueueId, RxSignal},
};

use super::receive::{Received, RxRing};
use super::recvmsg::{Frames, RxCalls};
use super::sender::Sender as _;
use super::{AfPacket, Queue, Rx, socket};

impl Device for AfPacket {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// Receives frames until none waits or `budget` were taken, bad frames included.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let queue = self.queue(queue.0);
        let mut rx = queue.rx.lock().unwrap_or_else(PoisonError::into_inner);
        let (taken, losing) = match &mut *rx {
            Rx::Ring(ring) => (from_ring(ring, cx, budget, out), &mut ring.losing),
            Rx::Calls(calls) => {
                let taken = self.by_calls(queue, calls, cx, budget, out);
                (taken, &mut calls.losing)
            }
        };
        if std::mem::take(losing) {
            cx.count(Counter::DeviceRxMissed, socket::missed(queue.receiver()));
        }
        // A thread that polls without sleeping on the descriptor gets no report of a deletion.
        if taken == 0 && queue.check_timer.is_due(cx.now) {
            self.check_interface(queue);
        }
        taken
    }

    fn weight(&self) -> usize {
        self.weight
    }

    /// Passes packets to the kernel while there is room, with as few system calls as possible.
    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let queue = self.queue(queue.0);
        let waits =
            queue.tx.fill(list, &mut |reason, packet| queue.drop_accepted(cx, reason, packet));
        if waits {
            self.send(queue, cx);
        }
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        let queue = self.queue(queue.0);
        let mut done = queue.tx.reap();
        let mut completed = Completed { packets: done.len(), bytes: done.bytes() };
        while let Some(packet) = done.pop_front() {
            cx.pool.free(packet);
        }
        if let Some(at) = queue.tx.retry_at()
            && (completed.packets > 0 || at <= cx.now)
        {
            self.send(queue, cx);
        }
        // Includes packets that `send` has dropped.
        let lost = queue.take_dropped();
        completed.packets += lost.packets;
        completed.bytes += lost.bytes;
        completed
    }

    fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
        let queue = self.queue(queue.0);
        if queue.dropped_packets.load(Ordering::Relaxed) > 0 {
            return Some(Instant::ZERO);
        }
        queue.tx.retry_at()
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        // A queue has one core for the life of its host, and a device one host.
        let _ = self.queue(queue.0).doorbell.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.queue(0).doorbell.get().is_some()
    }
}

fn from_ring(ring: &mut RxRing, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
    let mut taken = 0;
    while taken < budget && !out.is_full() {
        let received = ring.receive(&mut cx.pool, cx.now);
        if matches!(received, Received::Empty | Received::NoMemory) {
            break;
        }
        take(received, cx, out);
        taken += 1;
    }
    taken
}

fn take(received: Received, cx: &mut Cx, out: &mut Batch) {
    match received {
        Received::Good(packet) => {
            if let Err(packet) = out.push(packet) {
                cx.drop_packet(DropReason::QueueLimit, packet);
            }
        }
        Received::Bad(reason, packet) => cx.drop_packet(reason, packet),
        Received::Broken => cx.counters().drops.add(DropReason::DeviceRxTruncated, 1),
        Received::Empty | Received::NoMemory => {}
    }
}

impl AfPacket {
    fn by_calls(
        &self,
        queue: &Queue,
        calls: &mut RxCalls,
        cx: &mut Cx,
        budget: usize,
        out: &mut Batch,
    ) -> usize {
        let mut taken = 0;
        while taken < budget && !out.is_full() {
            let limit = (budget - taken).min(out.room());
            let mut frames = Frames::new();
            let more = calls.receive(queue.receiver(), &mut cx.pool, cx.now, limit, &mut frames);
            taken += frames.len();
            frames.into_iter().for_each(|received| take(received, cx, out));
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    self.check_interface(queue);
                    break;
                }
            }
        }
        taken
    }

    fn send(&self, queue: &Queue, cx: &mut Cx) {
        let now = cx.now;
        let sent =
            queue.tx.send(now, &mut |reason, packet| queue.drop_accepted(cx, reason, packet));
        if let (Some(at), Some(doorbell)) = (queue.tx.retry_at(), queue.doorbell.get()) {
            doorbell.ring_at(at);
        }
        if sent.is_err() {
            self.check_interface(queue);
        }
    }

    /// Checks whether the interface is gone. The check clears the socket's error, so a worker that
    /// sleeps on the socket would not see the error. Therefore the doorbell wakes the worker, which
    /// removes the device.
    pub(super) fn check_interface(&self, queue: &Queue) {
        if !socket::is_unbound(queue.receiver()) {
            return;
        }
        self.gone.store(true, Ordering::Release);
        if let Some(doorbell) = queue.doorbell.get() {
            doorbell.ring_at(Instant::ZERO);
        }
    }
}

impl Queue {
    /// Drops an accepted packet that cannot be sent. The packet counts as completed, because its
    /// bytes are no longer in flight. The doorbell wakes the worker of the core, which may be
    /// asleep.
    fn drop_accepted(&self, cx: &mut Cx, reason: DropReason, packet: Packet) {
        self.dropped_bytes.fetch_add(packet.len(), Ordering::Relaxed);
        self.dropped_packets.fetch_add(1, Ordering::Release);
        cx.drop_packet(reason, packet);
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring_at(cx.now);
        }
    }

    fn take_dropped(&self) -> Completed {
        if self.dropped_packets.load(Ordering::Relaxed) == 0 {
            return Completed::NONE;
        }
        let packets = self.dropped_packets.swap(0, Ordering::Acquire);
        Completed { packets, bytes: self.dropped_bytes.swap(0, Ordering::Relaxed) }
    }
}
