//! `impl Device for AfXdp`.
//!
//! Above: `stack::core` and `stack::transmit::tx_queue`.

use std::sync::atomic::Ordering;

use pkt::{Batch, DropReason, PacketList, RxChecksum};
use stack::{
    base::counters::Counter,
    cx::Cx,
    cx::event::Event,
    device::{Capabilities, Completed, Device, Doorbell, QueueId, RxSignal},
};

use super::AfXdp;
use super::queue::Queue;
use super::receive::Received;
use super::socket::WakeResult;

impl Device for AfXdp {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// Receives frames until none waits or `budget` were taken, bad frames included. Makes a system
    /// call only for busy polling, or if the kernel waits for a wake-up to take chunks from the
    /// fill ring.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let queue = self.queue(queue);
        let mut rx = queue.receiver();
        if self.busy_poll && !rx.is_ready() {
            self.note(queue.socket().wake_receive());
        }
        let mut taken = 0;
        while taken < budget && !out.is_full() {
            match rx.take(&mut cx.pool) {
                Received::Frame(mut packet) => {
                    let meta = packet.meta_mut();
                    meta.timestamp = cx.now;
                    if self.trust_checksums {
                        meta.rx_checksum = RxChecksum::Unnecessary;
                    }
                    if let Err(packet) = out.push(packet) {
                        cx.drop_packet(DropReason::QueueLimit, packet);
                    }
                }
                Received::Broken => cx.counters().drops.add(DropReason::DeviceRxTruncated, 1),
                Received::Empty | Received::NoMemory => break,
            }
            taken += 1;
        }
        if taken > 0 {
            rx.publish();
            if rx.needs_wakeup() {
                self.note(queue.socket().wake_receive());
            }
        }
        if queue.is_check_due(cx.now) {
            if let Ok(statistics) = queue.socket().statistics() {
                let missed = rx.missed(&statistics);
                cx.count(Counter::DeviceRxMissed, missed.no_room);
                cx.counters().drops.add(DropReason::DeviceRxTruncated, missed.too_long);
                if missed.too_long > 0 {
                    self.report_too_long(queue);
                }
            }
            if queue.socket().has_lost_interface() {
                self.note(WakeResult::Gone);
            }
        }
        taken
    }

    /// Copies packets while chunks are free, and wakes the kernel once for all of them.
    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let queue = self.queue(queue);
        let mut tx = queue.sender();
        if !self.is_gone() {
            while !list.is_empty() {
                if !tx.has_room() {
                    // The kernel may have completed earlier frames, or completes some now.
                    tx.publish();
                    self.note(queue.kick(&tx));
                    tx.complete();
                    if !tx.has_room() {
                        break;
                    }
                }
                let Some(mut packet) = list.pop_front() else { break };
                match tx.push(&mut packet) {
                    Ok(()) => cx.pool.free(packet),
                    Err(reason) => cx.drop_packet(reason, packet),
                }
            }
            tx.publish();
            self.note(queue.kick(&tx));
        }
        if self.is_gone() {
            tx.abandon();
            queue.forget_outstanding();
            while let Some(packet) = list.pop_front() {
                cx.drop_packet(DropReason::DeviceDown, packet);
            }
        } else {
            queue.note_outstanding(&tx, cx.now);
        }
        let completed = tx.has_completed();
        drop(tx);
        let Some(doorbell) = queue.doorbell().get() else { return };
        if completed {
            // A device interrupts for completions; here the doorbell replaces the interrupt.
            doorbell.ring(cx);
        } else if let Some(due) = queue.due() {
            doorbell.ring_at(due);
        }
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        let queue = self.queue(queue);
        if queue.due().is_none() && !self.is_gone() {
            return Completed::NONE;
        }
        // A thread that sends at this moment rings the doorbell at its end.
        let Some(mut tx) = queue.try_sender() else { return Completed::NONE };
        tx.complete();
        if tx.waiting() > 0 && !self.is_gone() {
            self.note(queue.kick(&tx));
            tx.complete();
        }
        if self.is_gone() {
            tx.abandon();
            queue.forget_outstanding();
        } else {
            queue.note_outstanding(&tx, cx.now);
        }
        let completed = tx.take_completed();
        drop(tx);
        // The thread that runs the core may not be the worker that sleeps until the deadline.
        if let (Some(doorbell), Some(due)) = (queue.doorbell().get(), queue.due()) {
            doorbell.ring_at(due);
        }
        completed
    }

    fn next_deadline(&self, queue: QueueId) -> Option<pkt::Instant> {
        self.queue(queue).due()
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        // A device belongs to one host; a second host is not notified.
        let _ = self.queue(queue).doorbell().set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.queue(QueueId(0)).doorbell().get().is_some()
    }
}

impl AfXdp {
    fn queue(&self, queue: QueueId) -> &Queue {
        &self.queues[usize::from(queue.0)]
    }

    /// Reports once that the kernel drops frames that exceed a chunk.
    #[cold]
    fn report_too_long(&self, queue: &Queue) {
        if self.reported_too_long.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(doorbell) = queue.doorbell().get() {
            doorbell.report(Event::FramesTooLong { device: self.caps.name.clone() });
        }
    }

    /// Records a deleted interface. An interface that is down may come up again.
    fn note(&self, result: WakeResult) {
        if result == WakeResult::Gone {
            self.set_gone();
        }
    }

    /// Records that the interface is gone, and wakes the worker that removes the device.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
        for queue in &self.queues {
            if let Some(doorbell) = queue.doorbell().get() {
                doorbell.ring_at(pkt::Instant::ZERO);
            }
        }
    }
}
