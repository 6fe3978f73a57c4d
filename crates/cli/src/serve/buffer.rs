//! One buffer for each thread that serves connections, kept for its next one: a buffer of this size is a mapping of its own, and
//! making one for a connection of a few bytes takes longer than serving it.

use std::cell::Cell;

use super::BUFFER_BYTES;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `work` with the thread's buffer, whose content is what the thread's last connection has left there.
pub(super) fn with<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = BUFFER.take();
    buffer.resize(BUFFER_BYTES, 0);
    let result = work(&mut buffer);
    BUFFER.set(buffer);
    result
}
