//! A wire that copies frames, as a device with receive rings does: the context that polls allocates
//! the packets that arrive. Each queue has memory of its own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use quietline::sans_io::{
    Batch, Capabilities, Cx, Device, LinkType, PacketList, QueueId, Region, RxChecksum, RxSignal,
};

const FRAME_BYTES: usize = 512;
const FRAMES_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Frame {
    len: usize,
    bytes: [u8; FRAME_BYTES],
}

/// Frames of one queue in one direction, apart from other queues.
#[repr(align(128))]
struct Lane(Mutex<VecDeque<Frame>>);

impl Lane {
    fn new() -> Self {
        Self(Mutex::new(VecDeque::with_capacity(FRAMES_MAX)))
    }
}

/// One end of the wire.
pub(super) struct CopyWire {
    caps: Capabilities,
    incoming: Arc<[Lane]>,
    outgoing: Arc<[Lane]>,
}

impl std::fmt::Debug for CopyWire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyWire").field("caps", &self.caps).finish_non_exhaustive()
    }
}

impl CopyWire {
    /// Both ends of a wire with this number of queues.
    pub(super) fn pair(queues: u16) -> (Arc<Self>, Arc<Self>) {
        let lanes = || -> Arc<[Lane]> { (0..queues).map(|_| Lane::new()).collect() };
        let (there, back) = (lanes(), lanes());
        let end = |incoming: &Arc<[Lane]>, outgoing: &Arc<[Lane]>| {
            Arc::new(Self {
                caps: Capabilities {
                    tx_checksum: true,
                    queues,
                    ..Capabilities::plain("copy", 500, LinkType::Ip)
                },
                incoming: Arc::clone(incoming),
                outgoing: Arc::clone(outgoing),
            })
        };
        (end(&back, &there), end(&there, &back))
    }

    /// Places of the queues. The memory of their frames has no name: it is behind the queue's lock.
    pub(super) fn memory_map(&self) -> Vec<Region> {
        let lanes = self.incoming.iter().chain(&*self.outgoing);
        let place = |lane: &Lane| Region {
            name: "queue of the wire".to_owned(),
            address: std::ptr::from_ref(lane).addr(),
            bytes: size_of::<Lane>(),
        };
        lanes.map(place).collect()
    }
}

impl Device for CopyWire {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let lane = &self.incoming[usize::from(queue.0)];
        let mut frames = lane.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.take_while_room(budget, || {
            let frame = frames.front()?;
            let mut packet = cx.pool.alloc_from(&frame.bytes[..frame.len])?;
            packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
            frames.pop_front();
            Some(packet)
        })
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let lane = &self.outgoing[usize::from(queue.0)];
        let mut frames = lane.0.lock().unwrap_or_else(PoisonError::into_inner);
        while frames.len() < FRAMES_MAX
            && let Some(packet) = list.pop_front()
        {
            let mut frame = Frame { len: packet.len(), bytes: [0; FRAME_BYTES] };
            packet.copy_to(0, &mut frame.bytes[..packet.len()]);
            frames.push_back(frame);
            cx.pool.free(packet);
        }
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::None
    }
}
