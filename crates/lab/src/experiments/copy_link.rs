//! A link between two hosts that copies every frame, as a device with receive rings does: the
//! sender's packet is free when the frame has left, and the receiver allocates its own.
//!
//! Its frames lie in memory that is allocated once: a frame that passes allocates nothing but the
//! receiver's packet.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use quietline::sans_io::{
    Batch, Capabilities, Cx, Device, LinkType, PacketList, QueueId, RxChecksum, RxSignal,
};

/// Bytes of the largest frame: small requests only.
const FRAME_BYTES: usize = 512;
/// Frames that may wait in one direction.
const FRAMES_MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Frame {
    len: usize,
    bytes: [u8; FRAME_BYTES],
}

/// Frames of one direction.
type Lane = Arc<Mutex<VecDeque<Frame>>>;

/// One end of the link.
pub(super) struct CopyLink {
    caps: Capabilities,
    incoming: Lane,
    outgoing: Lane,
}

impl std::fmt::Debug for CopyLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyLink").field("caps", &self.caps).finish_non_exhaustive()
    }
}

impl CopyLink {
    /// Both ends.
    pub(super) fn pair() -> (Arc<Self>, Arc<Self>) {
        let lane = || Arc::new(Mutex::new(VecDeque::with_capacity(FRAMES_MAX)));
        let (there, back): (Lane, Lane) = (lane(), lane());
        let end = |incoming: &Lane, outgoing: &Lane| {
            Arc::new(Self {
                // Headers of 66 bytes; the MTU keeps every frame in its place.
                caps: Capabilities {
                    tx_checksum: true,
                    ..Capabilities::plain("copy", 500, LinkType::Ip)
                },
                incoming: Arc::clone(incoming),
                outgoing: Arc::clone(outgoing),
            })
        };
        (end(&back, &there), end(&there, &back))
    }
}

impl Device for CopyLink {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut frames = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        out.take_while_room(budget, || {
            let frame = frames.front()?;
            let mut packet = cx.pool.alloc_from(&frame.bytes[..frame.len])?;
            // The bytes have not left this memory.
            packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
            frames.pop_front();
            Some(packet)
        })
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let mut frames = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
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
