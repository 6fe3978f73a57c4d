//! The device as the stack sees it.
//!
//! Above: `stack::core` and the device's transmit queues.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use pkt::{Batch, DropReason, Instant, PacketList};
use stack::counters::Counter;
use stack::cx::Cx;
use stack::device::{Capabilities, Completed, Device, Doorbell, QueueId, RxSignal};

use super::receive::Received;
use super::{AfPacket, Queue, socket};

impl Device for AfPacket {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// Copies frames out of the ring until none waits or `budget` were taken, bad ones included.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let queue = self.queue(queue.0);
        let mut ring = queue.rx.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        while taken < budget && !out.is_full() {
            match ring.receive(&mut cx.pool, cx.now) {
                Received::Good(packet) => {
                    if let Err(packet) = out.push(packet) {
                        cx.drop_packet(DropReason::QueueLimit, packet);
                    }
                }
                Received::Bad(reason, packet) => cx.drop_packet(reason, packet),
                Received::Empty | Received::NoMemory => break,
            }
            taken += 1;
        }
        if std::mem::take(&mut ring.losing) {
            cx.count(Counter::DeviceRxMissed, socket::missed(queue.receiver()));
        }
        taken
    }

    /// Copies what finds room into the ring and rings the kernel once.
    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let queue = self.queue(queue.0);
        let filled = queue.tx.fill(list, &mut |reason, packet| cx.drop_packet(reason, packet));
        if filled {
            self.send(queue, cx);
        }
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        let queue = self.queue(queue.0);
        let mut done = queue.tx.reap();
        let completed = Completed { packets: done.len(), bytes: done.bytes() };
        while let Some(packet) = done.pop_front() {
            cx.pool.free(packet);
        }
        if let Some(at) = queue.tx.retry_at()
            && (completed.packets > 0 || at <= cx.now)
        {
            self.send(queue, cx);
        }
        completed
    }

    fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
        self.queue(queue.0).tx.retry_at()
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        // A queue has one core for the life of its host, and a device one host.
        let _ = self.queue(queue.0).doorbell.set(doorbell);
    }
}

impl AfPacket {
    fn send(&self, queue: &Queue, cx: &mut Cx) {
        let sent = queue.tx.send(cx.now, &mut |reason, packet| cx.drop_packet(reason, packet));
        match sent {
            Ok(None) => {}
            Ok(Some(at)) => {
                if let Some(doorbell) = queue.doorbell.get() {
                    doorbell.ring_at(at);
                }
            }
            Err(_) if socket::is_unbound(queue.receiver()) => {
                self.gone.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}
