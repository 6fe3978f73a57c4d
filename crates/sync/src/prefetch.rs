//! Lines that are about to be written are fetched early, to be ours when they are.
//!
//! Linux: `prefetchw`. A line that another CPU has written and that is read first and written later changes hands twice: it comes
//! shared, and the first write waits until the other side has given its copy up. Nothing waits at the write itself, which goes
//! into the store buffer, but the next locked instruction does, and on this data path one is never far.
//!
//! Not here: what is read only, which any load fetches.

/// Begins to fetch the line at `address` for writing. A hint: nothing is read or written, so any address will do.
#[inline]
pub fn fetch_for_writing<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: the instruction changes nothing that a program could see and faults at no address. Processors without it, all of them
    // Intel's, take it for one that does nothing.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = address;
}
