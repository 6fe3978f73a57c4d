//! `impl Device` for the stack's end of a port.
//!
//! Packets stay charged to their sockets until the application has taken them, so that TCP Small
//! Queues and byte queue limits bound the queue. A turn of the core frees them
//! ([`Device::complete`]), in whose packet memory most of them began.

use std::sync::{Arc, atomic::Ordering};

use pkt::{Batch, DropReason, PacketList};
use stack::{
    base::limits::WEIGHT,
    cx::Cx,
    device::{Capabilities, Completed, Device, Doorbell, QueueId, RxSignal},
};

use super::shared::{Incoming, Shared, cost};

/// Frames that one poll takes if each may be a superframe.
const SUPERFRAMES_PER_POLL: usize = 8;

/// The stack's end of a port.
#[derive(Debug)]
pub(super) struct PortDevice(pub(super) Arc<Shared>);

impl Device for PortDevice {
    fn caps(&self) -> &Capabilities {
        &self.0.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut guard = self.0.incoming.lock();
        let Incoming { list, bytes, dropped, wants_room, .. } = &mut *guard;
        dropped.count(cx);
        let taken = out.take_while_room(budget, || {
            let mut packet = list.pop_front()?;
            *bytes = bytes.saturating_sub(cost(packet.len()));
            packet.meta_mut().timestamp = cx.now;
            Some(packet)
        });
        let has_room = taken > 0 && std::mem::take(wants_room);
        drop(guard);
        if has_room {
            self.0.signal.raise();
        }
        taken
    }

    fn weight(&self) -> usize {
        if self.0.superframe_max.is_some() { SUPERFRAMES_PER_POLL } else { WEIGHT }
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        if self.0.port_gone.load(Ordering::Acquire) {
            while let Some(packet) = list.pop_front() {
                cx.drop_packet(DropReason::DeviceDown, packet);
            }
            return;
        }
        let signals = {
            let mut outgoing = self.0.outgoing.lock();
            let (mut room, mut added) = (outgoing.room(), 0);
            while let Some(packet) = list.pop_front() {
                let cost = cost(packet.len());
                if !room.fits(cost) {
                    list.push_front(packet);
                    break;
                }
                room.take(cost);
                added += cost;
                outgoing.list.push_back(packet);
            }
            outgoing.bytes += added;
            added > 0 && outgoing.note_added()
        };
        if signals {
            self.0.signal.raise();
        }
    }

    fn complete(&self, _queue: QueueId, cx: &mut Cx) -> Completed {
        let (completed, mut done) = self.0.take_done();
        done.free_all(&mut cx.pool);
        completed
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Doorbell
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.0.doorbell.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.0.doorbell.get().is_some()
    }

    fn start(&self, _queue: QueueId) {
        self.0.incoming.lock().down = false;
    }

    fn stop(&self, _queue: QueueId, cx: &mut Cx) {
        let (mut arrived, mut leaving, mut done) = {
            let (mut incoming, mut outgoing) = (self.0.incoming.lock(), self.0.outgoing.lock());
            incoming.down = true;
            (incoming.bytes, outgoing.bytes) = (0, 0);
            outgoing.stops += 1;
            self.0.has_done.store(false, Ordering::Relaxed);
            (
                std::mem::take(&mut incoming.list),
                std::mem::take(&mut outgoing.list),
                std::mem::take(&mut outgoing.done),
            )
        };
        done.free_all(&mut cx.pool);
        for packet in arrived.by_ref().chain(leaving.by_ref()) {
            cx.drop_packet(DropReason::DeviceDown, packet);
        }
    }
}

impl Drop for PortDevice {
    fn drop(&mut self) {
        let arrived = {
            let mut incoming = self.0.incoming.lock();
            incoming.bytes = 0;
            std::mem::take(&mut incoming.list)
        };
        drop(arrived);
        self.0.device_gone.store(true, Ordering::Release);
        self.0.signal.raise();
    }
}
