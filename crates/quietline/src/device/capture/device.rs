//! A device that records its packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pkt::{Batch, Packet, PacketList};
use stack::cx::Cx;
use stack::device::{Capabilities, Device, LinkType, QueueId};

use super::{Capture, CaptureInterface, CaptureLink, Direction};

/// Any device, recorded. Packets that the device drops after `transmit` are in the capture, as with
/// tcpdump.
#[derive(Debug)]
pub struct CaptureDevice {
    device: Arc<dyn Device>,
    interface: CaptureInterface,
    /// For each queue, the number of segments that the device had no room for. Those segments come
    /// first in the next list, whole or segmented, and are recorded already. Relaxed: a queue that
    /// has refused a packet has one sender at a time.
    left_over: Vec<AtomicUsize>,
}

impl CaptureDevice {
    /// Records all packets that `device` receives and transmits as an interface of `capture`.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, capture: &Arc<Capture>) -> Self {
        let caps = device.caps();
        let link = match caps.link {
            LinkType::Ethernet { mac } => CaptureLink::Ethernet { mac: mac.0 },
            LinkType::Ip => CaptureLink::Ip,
        };
        let interface = capture.interface(&caps.name, link);
        let left_over = (0..caps.queues).map(|_| AtomicUsize::new(0)).collect();
        Self { device, interface, left_over }
    }
}

impl Device for CaptureDevice {
    fn caps(&self) -> &Capabilities {
        self.device.caps()
    }

    fn wrapped(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let before = out.len();
        let taken = self.device.receive(queue, cx, budget, out);
        for packet in &out.packets()[before..] {
            self.interface.record(Direction::Inbound, cx.now, packet);
        }
        taken
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let left_over = &self.left_over[usize::from(queue.0)];
        let mut again = left_over.load(Ordering::Relaxed);
        for_each_packet(list, |packet| {
            if again == 0 {
                self.interface.record(Direction::Outbound, cx.now, packet);
            }
            again = again.saturating_sub(segments(packet));
        });
        self.device.transmit(queue, cx, list);
        let mut left = 0;
        for_each_packet(list, |packet| left += segments(packet));
        left_over.store(left, Ordering::Relaxed);
    }
}

fn for_each_packet(list: &mut PacketList, mut call: impl FnMut(&Packet)) {
    let mut seen = PacketList::new();
    while let Some(packet) = list.pop_front() {
        call(&packet);
        seen.push_back(packet);
    }
    list.append(&mut seen);
}

fn segments(packet: &Packet) -> usize {
    usize::from(packet.meta().gso.segs.max(1))
}
