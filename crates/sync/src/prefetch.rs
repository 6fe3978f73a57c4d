//! Prefetching of cache lines for writing.
//!
//! Linux: `prefetchw`. A line that another CPU has written and that is read first and written later
//! is transferred twice: the read fetches a shared copy, and the first write waits until the other
//! CPU has given its copy up. The write itself does not stall, because it goes into the store
//! buffer, but the next locked instruction does, and on this data path one always follows soon.
//!
//! Not here: memory that is only read, which any load fetches.

/// Prefetches the line at `address` for writing. A hint: nothing is read or written, so any address
/// is valid.
#[inline]
pub fn fetch_for_writing<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: the instruction has no visible effect and faults at no address. Processors without
    // it, all of them Intel's, treat it as a no-op.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = address;
}
