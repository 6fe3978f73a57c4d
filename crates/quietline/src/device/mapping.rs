//! Memory shared with the kernel: rings of `af_packet` and `af_xdp`.
//!
//! Above: those devices. Linux: mmap(2).
//!
//! The kernel and this process write different parts of the mapping at different times. A word that
//! both access atomically gives the owner of a part. This type provides the words; its users know
//! the protocol and access the bytes.
//!
//! Not here: the protocol.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A readable and writable mapping, unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the process, not to a thread, and every access through the type is
// atomic or in the `unsafe` block of a user.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps and populates `len` bytes of `fd` at `offset`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no other memory of the process is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) }?;
        Self::of(base, len)
    }

    /// Maps and populates `len` zeroed bytes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn anonymous(len: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no other memory of the process is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
        Self::of(base, len)
    }

    fn of(base: *mut std::ffi::c_void, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Returns the length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns a pointer to the `len` bytes at `offset`.
    ///
    /// # Panics
    /// If the bytes exceed the mapping.
    pub(super) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} of a mapping of {}", self.len);
        // SAFETY: inside the mapping, checked above.
        unsafe { self.base.add(offset) }
    }

    /// Returns the 32-bit word at `offset`.
    ///
    /// # Panics
    /// If the word exceeds the mapping or is not aligned.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        let at = self.at(offset, size_of::<u32>()).cast::<AtomicU32>();
        assert!(at.is_aligned());
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned; both checked
        // above. The kernel accesses it atomically, too, and users of the type access the words of
        // the protocol only through this function.
        unsafe { at.as_ref() }
    }

    /// Returns the 64-bit word at `offset`.
    ///
    /// # Panics
    /// If the word exceeds the mapping or is not aligned.
    pub(super) fn long(&self, offset: usize) -> &AtomicU64 {
        let at = self.at(offset, size_of::<u64>()).cast::<AtomicU64>();
        assert!(at.is_aligned());
        // SAFETY: as for `word`.
        unsafe { at.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in this type with this length, and no reference into the mapping outlives
        // `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let mapping = Mapping::anonymous(8192).expect("memory");
        assert_eq!(mapping.len(), 8192);
        mapping.word(4096).store(0x0102_0304, Ordering::Release);
        // SAFETY: no other code accesses this memory.
        let first = unsafe { mapping.at(4096, 4).as_ref() };
        assert_eq!(*first, 0x0102_0304u32.to_ne_bytes()[0]);
    }

    #[test]
    #[should_panic(expected = "bytes at")]
    fn a_range_outside_the_mapping_panics() {
        let mapping = Mapping::anonymous(4096).expect("memory");
        mapping.at(4095, 2);
    }
}
