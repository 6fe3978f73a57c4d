//! A device whose frames a test writes and reads as bytes.
//!
//! Above: the host under test. A delivered frame is received as from the ring of a network card: a
//! short frame in the packet head, a longer one in pages. Transmitted frames are kept until the
//! test takes them.
//!
//! Not here: the meaning of the bytes (`frame`), time. No frame is ever late, lost or refused.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use pkt::{Batch, Packet, PacketList, PacketMeta};
use stack::{
    Capabilities, Cx, Device,
    device::{Doorbell, QueueId},
};

/// Every device receives frames of at least this length into pages.
const PAGED_BYTES_MIN: usize = 256;

/// A frame that the host has sent, with the metadata its device received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// Pending checksum and segmentation.
    pub meta: PacketMeta,
}

/// See the module head. The link has one queue.
pub struct ByteLink {
    caps: Capabilities,
    arrived: Mutex<VecDeque<Packet>>,
    sent: Mutex<VecDeque<Sent>>,
    /// Whether frames of every length are received into pages.
    paged: AtomicBool,
    doorbell: OnceLock<Doorbell>,
}

impl ByteLink {
    /// Makes a link with these capabilities, but one queue.
    #[must_use]
    pub fn new(caps: Capabilities) -> Self {
        Self {
            caps: Capabilities { queues: 1, async_completion: false, ..caps },
            arrived: Mutex::default(),
            sent: Mutex::default(),
            paged: AtomicBool::new(false),
            doorbell: OnceLock::new(),
        }
    }

    /// Sets whether frames delivered from now on have no linear byte. Otherwise short frames are
    /// linear.
    pub fn set_paged(&self, paged: bool) {
        self.paged.store(paged, Ordering::Relaxed);
    }

    /// Delivers a frame and rings the host's doorbell. Returns false if there was no memory to
    /// receive it.
    pub fn deliver(&self, cx: &mut Cx, frame: &[u8]) -> bool {
        let paged = self.paged.load(Ordering::Relaxed);
        let Some(mut packet) = receive(cx, frame, paged) else { return false };
        packet.meta_mut().timestamp = cx.now;
        lock(&self.arrived).push_back(packet);
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring(cx);
        }
        true
    }

    /// Takes the oldest frame that the host has sent.
    pub fn take(&self) -> Option<Sent> {
        lock(&self.sent).pop_front()
    }
}

/// Receives a frame as a device with a ring of receive slots does. With `paged` the device writes
/// padding behind a short frame and cuts it off, so that the frame stays in its page: headers must
/// then be pulled before they are read.
pub(crate) fn receive(cx: &mut Cx, frame: &[u8], paged: bool) -> Option<Packet> {
    let written = if paged { frame.len().max(PAGED_BYTES_MIN) } else { frame.len() };
    let mut slot = cx.pool.rx_slot(written)?;
    slot.write(frame);
    let mut packet = slot.finish(&mut cx.pool, written);
    packet.truncate(frame.len());
    Some(packet)
}

impl Device for ByteLink {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        out.take_from(&mut lock(&self.arrived), budget)
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            lock(&self.sent).push_back(Sent { bytes: packet.to_vec(), meta: *packet.meta() });
            cx.pool.free(packet);
        }
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.doorbell.set(doorbell);
    }
}

impl fmt::Debug for ByteLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteLink")
            .field("caps", &self.caps)
            .field("arrived", &lock(&self.arrived).len())
            .field("sent", &lock(&self.sent).len())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
