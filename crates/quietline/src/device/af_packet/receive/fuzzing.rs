//! A receive ring whose memory a fuzz target writes in place of the kernel.
//!
//! Above: `af_packet::fuzzing`, and the tests of `receive`.
//!
//! Not here: the layout of the ring. A fuzz target takes it from `libc`, as `receive` does.

use pkt::{Instant, Pool};

use super::super::super::mapping::Mapping;
use super::super::fuzzing::Found;
use super::super::socket::{SHARED_BLOCK_BYTES, SLOTS_BLOCK_BYTES};
use super::{FRAME_BYTES, Geometry, RxRing};

/// Bytes of a slot of a ring of frames (TPACKET_V2).
pub const SLOT_BYTES: usize = FRAME_BYTES;

/// Slots of a ring of frames.
pub const SLOTS: usize = SLOTS_BLOCK_BYTES / FRAME_BYTES;

/// Bytes of a block of a ring of blocks (TPACKET_V3).
pub const BLOCK_BYTES: usize = SHARED_BLOCK_BYTES;

/// Blocks of a ring of blocks.
pub const BLOCKS: usize = 2;

/// A receive ring in anonymous memory.
#[derive(Debug)]
pub struct Ring(RxRing);

impl Ring {
    /// Returns a ring of [`SLOTS`] frames.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn frames() -> Self {
        let mapping = Mapping::anonymous(SLOTS_BLOCK_BYTES).expect("memory for a ring");
        Self(RxRing::new(mapping, Geometry::frames(1), false))
    }

    /// Returns a ring of [`BLOCKS`] blocks.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn blocks() -> Self {
        let mapping = Mapping::anonymous(BLOCKS * BLOCK_BYTES).expect("memory for a ring");
        Self(RxRing::new(mapping, Geometry::blocks(BLOCKS), false))
    }

    /// Restarts at the first slot or block, with or without offload headers in front of the frames.
    pub fn rewind(&mut self, vnet_hdr: bool) {
        (self.0.next, self.0.open, self.0.losing) = (0, None, false);
        self.0.vnet_hdr = vnet_hdr;
    }

    /// Returns the memory of the ring.
    pub fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.mapping.len();
        let begin = self.0.mapping.at(0, len);
        // SAFETY: the whole mapping is anonymous, so the kernel does not access it; the ring is
        // borrowed exclusively as long as the slice is.
        unsafe { std::slice::from_raw_parts_mut(begin.as_ptr(), len) }
    }

    /// Takes the oldest frame out of the ring.
    pub fn receive(&mut self, pool: &mut Pool, now: Instant) -> Found {
        self.0.receive(pool, now).into()
    }

    /// Returns all slots or blocks unread.
    pub fn discard(&mut self) {
        self.0.discard();
    }

    /// Returns whether the kernel has reported that it dropped frames.
    #[must_use]
    pub fn is_losing(&self) -> bool {
        self.0.losing
    }
}
