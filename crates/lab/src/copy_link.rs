//! A link between two hosts that copies every frame, as a device with receive rings does: the
//! sender's packet is free when the frame has left, and the receiver allocates its own.
//!
//! Above: the experiment about packet memory, and the traced hosts of the coherence model. Below:
//! the device interface of `quietline`.
//!
//! The frames of each queue lie in memory that is allocated once: a frame that passes allocates
//! nothing but the receiver's packet.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use quietline::sans_io::{
    Batch, Capabilities, Cx, Device, LinkType, PacketList, QueueId, Region, RxChecksum,
};

/// Bytes of the largest frame: small requests only.
const FRAME_BYTES: usize = 512;
/// Frames that may wait in one queue in one direction.
const FRAMES_MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Frame {
    len: usize,
    bytes: [u8; FRAME_BYTES],
}

/// Frames of one queue in one direction, on cache lines apart from those of other queues.
#[repr(align(128))]
struct Lane(Mutex<VecDeque<Frame>>);

/// One end of the link.
pub(crate) struct CopyLink {
    caps: Capabilities,
    incoming: Arc<[Lane]>,
    outgoing: Arc<[Lane]>,
}

impl std::fmt::Debug for CopyLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyLink").field("caps", &self.caps).finish_non_exhaustive()
    }
}

impl CopyLink {
    /// Both ends of a link with this number of queues.
    pub(crate) fn pair(queues: u16) -> (Arc<Self>, Arc<Self>) {
        let lane = |_| Lane(Mutex::new(VecDeque::with_capacity(FRAMES_MAX)));
        let lanes = || -> Arc<[Lane]> { (0..queues).map(lane).collect() };
        let (there, back) = (lanes(), lanes());
        let end = |incoming: &Arc<[Lane]>, outgoing: &Arc<[Lane]>| {
            Arc::new(Self {
                // Headers of 66 bytes; the MTU keeps every frame in its place.
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
    pub(crate) fn memory_map(&self) -> Vec<Region> {
        let lanes = self.incoming.iter().chain(&*self.outgoing);
        let place = |lane: &Lane| Region {
            name: "queue of the link".to_owned(),
            address: std::ptr::from_ref(lane).addr(),
            bytes: size_of::<Lane>(),
        };
        lanes.map(place).collect()
    }
}

impl Device for CopyLink {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let lane = &self.incoming[usize::from(queue.0)];
        let mut frames = lane.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.take_while_room(budget, || {
            let frame = frames.front()?;
            let mut packet = cx.pool.alloc_from(&frame.bytes[..frame.len])?;
            // The bytes have not left this memory.
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
}
