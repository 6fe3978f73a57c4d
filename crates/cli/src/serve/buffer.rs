//! One reusable buffer for each thread that serves connections. Allocating a buffer of this size
//! maps memory, which takes longer than serving a connection of a few bytes.

use std::cell::Cell;

use super::BUFFER_BYTES;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `work` with the thread's buffer, which still holds data of the thread's previous
/// connection.
pub(super) fn with<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = BUFFER.take();
    buffer.resize(BUFFER_BYTES, 0);
    let result = work(&mut buffer);
    BUFFER.set(buffer);
    result
}
