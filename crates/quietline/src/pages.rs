//! Packet memory mapped directly from the kernel.
//!
//! Above: `clock::memory`. Linux: mmap(2), munmap(2).
//!
//! Untouched pages use no memory, and released slabs leave the process at once: the global
//! allocator guarantees neither.

use std::{alloc::Layout, ptr::NonNull};

use pkt::SlabSource;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Source of slabs in private anonymous mappings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages;

// SAFETY: a new anonymous mapping is zeroed and not used by other code; the returned slab is
// `layout.size()` bytes inside it that begin at a multiple of `layout.align()`.
unsafe impl SlabSource for Pages {
    fn take(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (flags, protection) = (MapFlags::PRIVATE, ProtFlags::READ | ProtFlags::WRITE);
        let len = layout.size().checked_add(layout.align())?;
        // SAFETY: the kernel chooses the address, so no other memory of the process is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }.ok()?;
        let base = NonNull::new(base.cast::<u8>())?;
        let before = base.as_ptr().align_offset(layout.align());
        assert!(before < layout.align(), "align_offset of u8 always succeeds");
        // SAFETY: `before` is less than `layout.align()`, so the result is inside the mapping.
        let slab = unsafe { base.add(before) };
        // SAFETY: the end of the slab is inside the mapping.
        let end = unsafe { slab.add(layout.size()) };
        let behind = len - before - layout.size();
        unmap(base, before);
        unmap(end, behind);
        Some(slab)
    }

    unsafe fn give_back(&self, memory: NonNull<u8>, layout: Layout) {
        unmap(memory, layout.size());
    }
}

/// Unmaps `len` unused bytes. The kernel may refuse to split a mapping when a process has very
/// many; the memory then stays mapped and untouched.
fn unmap(at: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: the range is part of a mapping of `Pages::take`, and no code uses it any more.
        let _ = unsafe { munmap(at.as_ptr().cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use pkt::{Domain, DomainConfig};

    use super::*;

    /// Returns the resident memory of this process, in bytes.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        let pages = statm.split(' ').nth(1).expect("the second field").parse::<usize>();
        pages.expect("a number") * rustix::param::page_size()
    }

    #[test]
    fn untouched_slab_memory_is_not_resident() {
        const POOLS: usize = 1000;
        let domain = Domain::with_source(DomainConfig::default(), &Pages);
        let before = resident();
        let pools: Vec<_> = (0..POOLS)
            .map(|_| {
                let mut pool = domain.pool();
                let packet = pool.alloc_from(&[1; 2000]).expect("memory");
                pool.free(packet);
                pool
            })
            .collect();
        let each = resident().saturating_sub(before) / POOLS;
        assert!(each < 24 * 1024, "{each} bytes for a thread that has sent once");
        drop(pools);
        while domain.trim() {}
        assert!(domain.live_bytes() < 1 << 20, "{domain:?}");
    }

    #[test]
    fn slabs_are_aligned_and_zeroed() {
        for size in [64 * 1024, 256 * 1024] {
            let layout = Layout::from_size_align(size, size).expect("a power of two");
            let slab = Pages.take(layout).expect("memory");
            assert_eq!(slab.as_ptr().addr() % size, 0);
            // SAFETY: `size` zeroed bytes that no other code uses.
            let bytes = unsafe { std::slice::from_raw_parts_mut(slab.as_ptr(), size) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(1);
            // SAFETY: taken above with this layout, and not used again.
            unsafe { Pages.give_back(slab, layout) };
        }
    }
}
