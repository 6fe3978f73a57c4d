//! A device that records what passes.

use std::sync::Arc;

use pkt::{Batch, Instant, PacketList};
use stack::cx::Cx;
use stack::device::{Capabilities, Device, Doorbell, LinkType, QueueId, RxSignal};

use super::{Capture, CaptureInterface, CaptureLink, Direction};

/// Any device, recorded. What the device drops after it was handed over is in the capture, as with tcpdump.
#[derive(Debug)]
pub struct CaptureDevice {
    device: Arc<dyn Device>,
    interface: CaptureInterface,
}

impl CaptureDevice {
    /// Records everything `device` receives and is told to send as an interface of `capture`.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, capture: &Arc<Capture>) -> Self {
        let caps = device.caps();
        let link = match caps.link {
            LinkType::Ethernet { mac } => CaptureLink::Ethernet { mac: mac.0 },
            LinkType::Ip => CaptureLink::Ip,
        };
        let interface = capture.interface(&caps.name, link);
        Self { device, interface }
    }
}

impl Device for CaptureDevice {
    fn caps(&self) -> &Capabilities {
        self.device.caps()
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
        let mut recorded = PacketList::new();
        while let Some(packet) = list.pop_front() {
            self.interface.record(Direction::Outbound, cx.now, &packet);
            recorded.push_back(packet);
        }
        list.append(&mut recorded);
        self.device.transmit(queue, cx, list);
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> usize {
        self.device.complete(queue, cx)
    }

    fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
        self.device.next_deadline(queue)
    }

    fn rx_signal(&self, queue: QueueId) -> RxSignal {
        self.device.rx_signal(queue)
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        self.device.attach(queue, doorbell);
    }
}
