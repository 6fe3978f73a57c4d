//! The frames that we and the kernel hand each other: chunks of one mapping that is registered with the socket.
//!
//! Above: `receive` and `transmit`, which have one half each. Linux: `xdp_umem_reg`, net/xdp/xsk_buff_pool.c.
//!
//! Frames are copied between here and packet memory. The chunks could be packet memory only if that were contiguous, of one
//! size, registered once for all and, where a packet waits in a socket for its reader, given up by the device meanwhile; it is
//! none of it. The copy brings the frame into the cache where its checksum is summed next, and lets the chunk go back to the
//! kernel at once: a reader that is slow never takes the device's memory.
//!
//! Who may touch a chunk is a value: [`Frame`]. There is one for each chunk, it is not `Clone`, lending the chunk to the kernel
//! consumes it, and it comes back only for a chunk that is lent. So a kernel that returns an address twice, or one that is not
//! ours, is met with `None`.
//!
//! Not here: what is in a frame.

use std::sync::Arc;

use super::super::mapping::Mapping;

/// The memory of one socket.
#[derive(Debug)]
pub(super) struct Umem {
    mapping: Mapping,
    chunk_len: usize,
}

impl Umem {
    /// `chunks` chunks of `chunk_len` bytes, a power of two.
    ///
    /// # Errors
    /// There is no such memory.
    pub(super) fn new(chunks: u32, chunk_len: usize) -> Result<Self, rustix::io::Errno> {
        assert!(chunk_len.is_power_of_two());
        let mapping = Mapping::anonymous(chunks as usize * chunk_len)?;
        Ok(Self { mapping, chunk_len })
    }

    /// Where it begins, for the registration.
    pub(super) fn address(&self) -> u64 {
        self.mapping.at(0, 0).as_ptr().expose_provenance() as u64
    }

    /// Its bytes.
    pub(super) const fn len(&self) -> usize {
        self.mapping.len()
    }
}

/// The right to one chunk's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame(u32);

impl Frame {
    /// Its number among the frames of its half, for tables.
    pub(super) const fn index_in(&self, frames: &Frames) -> usize {
        (self.0 - frames.first) as usize
    }
}

/// Some of the chunks of a UMEM, and which of them the kernel has.
#[derive(Debug)]
pub(super) struct Frames {
    umem: Arc<Umem>,
    first: u32,
    lent: Box<[bool]>,
}

impl Frames {
    /// Both halves of `umem`, of `count` chunks each, and the right to every frame of theirs.
    pub(super) fn halves(umem: Umem, count: u32) -> [(Self, Vec<Frame>); 2] {
        let umem = Arc::new(umem);
        assert_eq!(umem.len(), 2 * count as usize * umem.chunk_len);
        [0, count].map(|first| {
            let lent = vec![false; count as usize].into_boxed_slice();
            let frames = (first..first + count).map(Frame).collect();
            (Self { umem: Arc::clone(&umem), first, lent }, frames)
        })
    }

    /// Gives a frame to the kernel: the address of its first byte.
    pub(super) fn lend(&mut self, frame: Frame) -> u64 {
        let index = frame.index_in(self);
        debug_assert!(!self.lent[index]);
        self.lent[index] = true;
        u64::from(frame.0) * self.umem.chunk_len as u64
    }

    /// The frame that the kernel gives back by an address inside of it. `None` when it has no such frame.
    pub(super) fn take_back(&mut self, address: u64) -> Option<Frame> {
        let number = u32::try_from(address / self.umem.chunk_len as u64).ok()?;
        let index = number.checked_sub(self.first)?;
        let lent = self.lent.get_mut(index as usize)?;
        core::mem::take(lent).then_some(Frame(number))
    }

    /// The `len` bytes at `address` of a frame that the kernel gave back. `None` when they are not all inside.
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
        // SAFETY: inside the mapping, which lives as long as `self`. `frame` is the only right to the chunk and is borrowed as
        // long as the result lives, so that it is neither lent to the kernel (`lend` consumes it) nor written by us
        // (`bytes_mut` borrows it mutably).
        Some(unsafe { std::slice::from_raw_parts(at.as_ptr(), len as usize) })
    }

    /// All bytes of a frame, to be written.
    #[expect(clippy::needless_pass_by_ref_mut, reason = "the bytes are what is borrowed mutably")]
    pub(super) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let len = self.umem.chunk_len;
        let at = self.umem.mapping.at(frame.0 as usize * len, len);
        // SAFETY: inside the mapping, which lives as long as `self`. `frame` is the only right to the chunk and is borrowed
        // mutably as long as the result lives, and so is not with the kernel and read by nobody.
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
    fn a_frame_is_with_the_kernel_or_with_us() {
        let [(mut low, mut frames), (mut high, _)] = halves();
        let frame = frames.pop().expect("two");
        let address = low.lend(frame);
        assert_eq!(address, 2048);
        assert_eq!(high.take_back(address), None, "not of this half");
        assert_eq!(low.take_back(0), None, "not lent");
        assert_eq!(low.take_back(u64::MAX), None);
        let back = low.take_back(address + 256).expect("an address inside means the frame");
        assert_eq!(back, Frame(1));
        assert_eq!(low.take_back(address), None, "twice");
    }

    #[test]
    fn what_is_written_is_read_and_nothing_outside() {
        let [_, (frames, mut rights)] = halves();
        let mut frame = rights.pop().expect("two");
        frames.bytes_mut(&mut frame)[100..104].copy_from_slice(b"abcd");
        let begin = 3 * 2048;
        assert_eq!(frames.bytes(&frame, begin + 100, 4), Some(&b"abcd"[..]));
        assert_eq!(frames.bytes(&frame, begin + 2047, 2), None, "over the end");
        assert_eq!(frames.bytes(&frame, begin - 1, 1), None, "before the begin");
        assert_eq!(frames.bytes(&frame, begin, u32::MAX), None);
    }
}
