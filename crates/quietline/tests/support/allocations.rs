//! An allocator that counts the allocations of each thread, for tests of paths that must not
//! allocate.
//!
//! Not here: allocators that count live bytes (`closed_memory`, `idle_memory`).

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of allocations of this thread since its start.
pub(crate) fn of_this_thread() -> usize {
    ALLOCATIONS.with(Cell::get)
}

/// The system's allocator, with a count of allocations for each thread.
struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; the count is a thread-local
// cell without a destructor, whose access allocates no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, that is from the system's allocator, with
        // this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
