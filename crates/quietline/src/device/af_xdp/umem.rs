//! The chunks that this process and the kernel exchange: parts of one mapping that is registered
//! with the socket.
//!
//! Above: `receive` and `transmit`, which have one half each. Linux: `xdp_umem_reg`,
//! net/xdp/xsk_buff_pool.c.
//!
//! Frames are copied between chunks and packet memory. Packet memory itself cannot be the UMEM: it
//! is not contiguous, not of one chunk size, and not registered once, and a packet that waits in a
//! socket for its reader would keep a chunk from the device. The copy brings the frame into the
//! cache, where its checksum is computed next, and frees the chunk at once: a slow reader never
//! holds the device's memory.
//!
//! The right to access a chunk is a value: [`Frame`]. There is one for each chunk, and it is not
//! `Clone`. Lending the chunk to the kernel consumes it, and it is returned only for a lent chunk.
//! A kernel that returns an address twice, or an address of no chunk, therefore gets `None`.
//!
//! Not here: the contents of a frame.

use std::sync::Arc;

use super::super::mapping::Mapping;

/// The memory of one socket.
#[derive(Debug)]
pub(super) struct Umem {
    mapping: Mapping,
    chunk_len: usize,
}

impl Umem {
    /// Allocates `chunks` chunks of `chunk_len` bytes, a power of two.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(super) fn new(chunks: u32, chunk_len: usize) -> Result<Self, rustix::io::Errno> {
        assert!(chunk_len.is_power_of_two());
        let mapping = Mapping::anonymous(chunks as usize * chunk_len)?;
        Ok(Self { mapping, chunk_len })
    }

    /// Returns the address of the memory, for the registration.
    pub(super) fn address(&self) -> u64 {
        self.mapping.at(0, 0).as_ptr().expose_provenance() as u64
    }

    /// Returns the size in bytes.
    pub(super) const fn len(&self) -> usize {
        self.mapping.len()
    }
}

/// The exclusive right to access one chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame(u32);

impl Frame {
    /// Returns the number of the chunk in its half, for tables.
    pub(super) const fn index_in(&self, frames: &Frames) -> usize {
        (self.0 - frames.first) as usize
    }
}

/// A range of chunks of a UMEM, and which of them the kernel holds.
#[derive(Debug)]
pub(super) struct Frames {
    umem: Arc<Umem>,
    first: u32,
    lent: Box<[bool]>,
}

impl Frames {
    /// Returns both halves of `umem`, of `count` chunks each, with the rights to all of their
    /// chunks.
    pub(super) fn halves(umem: Umem, count: u32) -> [(Self, Vec<Frame>); 2] {
        let umem = Arc::new(umem);
        assert_eq!(umem.len(), 2 * count as usize * umem.chunk_len);
        [0, count].map(|first| {
            let lent = vec![false; count as usize].into_boxed_slice();
            let frames = (first..first + count).map(Frame).collect();
            (Self { umem: Arc::clone(&umem), first, lent }, frames)
        })
    }

    /// Lends a chunk to the kernel. Returns the address of its first byte.
    pub(super) fn lend(&mut self, frame: Frame) -> u64 {
        let index = frame.index_in(self);
        debug_assert!(!self.lent[index]);
        self.lent[index] = true;
        u64::from(frame.0) * self.umem.chunk_len as u64
    }

    /// Returns the right to the chunk that the kernel gives back by an address inside of it; `None`
    /// if the kernel does not hold such a chunk.
    pub(super) fn take_back(&mut self, address: u64) -> Option<Frame> {
        let number = u32::try_from(address / self.umem.chunk_len as u64).ok()?;
        let index = number.checked_sub(self.first)?;
        let lent = self.lent.get_mut(index as usize)?;
        core::mem::take(lent).then_some(Frame(number))
    }

    /// Returns the `len` bytes at `address` of a chunk that the kernel gave back; `None` if they
    /// exceed the chunk.
    pub(super) fn bytes<'a>(
        &'a self,
        frame: &'a Frame,
        address: u64,
        len: u32,
    ) -> Option<&'a [u8]> {
        let begin = frame.0 as usize * self.umem.chunk_len;
        let offset = usize::try_from(address).ok()?.checked_sub(begin)?;
        let end = offset.checked_add(len as usize)?;
        if end > self.umem.chunk_len {
            return None;
        }
        let at = self.umem.mapping.at(begin + offset, len as usize);
        // SAFETY: the range is inside the mapping, which lives as long as `self`. `frame` is the
        // only right to the chunk and is borrowed as long as the result lives, so the chunk is
        // neither lent to the kernel (`lend` consumes the right) nor written here (`bytes_mut`
        // borrows the right mutably).
        Some(unsafe { std::slice::from_raw_parts(at.as_ptr(), len as usize) })
    }

    /// Returns all bytes of a chunk for writing.
    #[expect(clippy::needless_pass_by_ref_mut, reason = "the bytes are what is borrowed mutably")]
    pub(super) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let len = self.umem.chunk_len;
        let at = self.umem.mapping.at(frame.0 as usize * len, len);
        // SAFETY: the range is inside the mapping, which lives as long as `self`. `frame` is the
        // only right to the chunk and is mutably borrowed as long as the result lives, so neither
        // the kernel nor other code accesses the chunk.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves() -> [(Frames, Vec<Frame>); 2] {
        Frames::halves(Umem::new(4, 2048).expect("memory"), 2)
    }

    #[test]
    fn a_frame_is_held_by_the_kernel_or_by_this_process() {
        let [(mut low, mut frames), (mut high, _)] = halves();
        let frame = frames.pop().expect("two");
        let address = low.lend(frame);
        assert_eq!(address, 2048);
        assert_eq!(high.take_back(address), None, "the chunk is in the other half");
        assert_eq!(low.take_back(0), None, "the chunk is not lent");
        assert_eq!(low.take_back(u64::MAX), None);
        let back = low.take_back(address + 256).expect("an address inside the chunk");
        assert_eq!(back, Frame(1));
        assert_eq!(low.take_back(address), None, "the chunk was taken back already");
    }

    #[test]
    fn written_bytes_are_read_and_ranges_outside_are_refused() {
        let [_, (frames, mut rights)] = halves();
        let mut frame = rights.pop().expect("two");
        frames.bytes_mut(&mut frame)[100..104].copy_from_slice(b"abcd");
        let begin = 3 * 2048;
        assert_eq!(frames.bytes(&frame, begin + 100, 4), Some(&b"abcd"[..]));
        assert_eq!(frames.bytes(&frame, begin + 2047, 2), None, "beyond the end");
        assert_eq!(frames.bytes(&frame, begin - 1, 1), None, "before the beginning");
        assert_eq!(frames.bytes(&frame, begin, u32::MAX), None);
    }
}
