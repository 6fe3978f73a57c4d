//! A device that records what passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pkt::{Batch, Instant, Packet, PacketList};
use stack::cx::Cx;
use stack::device::{Capabilities, Completed, Device, Doorbell, LinkType, QueueId, RxSignal};

use super::{Capture, CaptureInterface, CaptureLink, Direction};

/// Any device, recorded. What the device drops after it was handed over is in the capture, as with tcpdump.
#[derive(Debug)]
pub struct CaptureDevice {
    device: Arc<dyn Device>,
    interface: CaptureInterface,
    /// For each queue the segments of the packets that the device had no room for: they come again, first of all, as they were or cut
    /// up, and are recorded already.
    /// Relaxed: the queue has one sender at a time from the moment on when it has refused anything.
    left_over: Vec<AtomicUsize>,
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
        let left_over = (0..caps.queues).map(|_| AtomicUsize::new(0)).collect();
        Self { device, interface, left_over }
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
        let left_over = &self.left_over[usize::from(queue.0)];
        let mut again = left_over.load(Ordering::Relaxed);
        look_at_all(list, |packet| {
            if again == 0 {
                self.interface.record(Direction::Outbound, cx.now, packet);
            }
            again = again.saturating_sub(segments(packet));
        });
        self.device.transmit(queue, cx, list);
        let mut left = 0;
        look_at_all(list, |packet| left += segments(packet));
        left_over.store(left, Ordering::Relaxed);
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        self.device.complete(queue, cx)
    }

    fn start(&self, queue: QueueId) {
        self.device.start(queue);
    }

    fn stop(&self, queue: QueueId, cx: &mut Cx) {
        self.device.stop(queue, cx);
    }

    fn weight(&self) -> usize {
        self.device.weight()
    }

    fn superframe_max(&self) -> u32 {
        self.device.superframe_max()
    }

    fn gso_ipv4_size(&self) -> u32 {
        self.device.gso_ipv4_size()
    }

    fn needs_qdisc(&self) -> bool {
        self.device.needs_qdisc()
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

    fn is_attached(&self) -> bool {
        self.device.is_attached()
    }
}

fn look_at_all(list: &mut PacketList, mut look: impl FnMut(&Packet)) {
    let mut seen = PacketList::new();
    while let Some(packet) = list.pop_front() {
        look(&packet);
        seen.push_back(packet);
    }
    list.append(&mut seen);
}

fn segments(packet: &Packet) -> usize {
    usize::from(packet.meta().gso.segs.max(1))
}
