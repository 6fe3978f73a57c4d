//! References counted in several words, so that the gets and puts of several CPUs share no line.
//!
//! Below: the `shim`. Above: [`crate::counted`]. Linux: `percpu_ref`.
//!
//! Each thread counts in one of the words. A reference may be taken in one word and put in another,
//! so a single word means nothing and may be below zero; the **sum** over all words is exact. No
//! thread sees when the sum becomes zero. Therefore references are counted here only while an owner
//! holds one reference in the central word ([`RefCount`](super::RefCount)). Before the owner puts
//! it, it closes the words and adds their sum to the central word, where all threads count from
//! then on.
//!
//! ```text
//!   0 ────────── 2^61 ──────── 2^62 ──────── 3·2^61 ────────── 2^64
//!     closed      │ open: the count is the distance from 2^62 │ closed
//! ```
//!
//! *No grace period.* Closing swaps each word for one in the closed zone. A get or a put that finds
//! its word closed has changed a word that no thread reads again, and counts in the central word
//! instead. A get or a put that finds its word open came before the swap, so it is part of the sum.
//!
//! *No early zero.* The central word is raised by [`SPREAD`](super::SPREAD) until the sum has been
//! added. A put whose reference is still part of the sum then does not take the last one.
//!
//! Not here: the choice of a word for a thread (`shim::thread_slot`).

use std::sync::OnceLock;

use crate::percore::PerCore;
use crate::shim::{AtomicU64, Ordering};

/// A word of no references.
const OPEN: u64 = 1 << 62;
/// Start of the open zone, which is symmetric about `OPEN`.
const LOWEST: u64 = 1 << 61;
/// A closed word.
const CLOSED: u64 = 0;

/// The words of one object.
#[derive(Debug)]
pub(crate) struct Shards {
    /// A power of two of words. A get is Relaxed, because the caller has a reference or a read
    /// section already. A put is Release and closing Acquire, so that the accesses of holders come
    /// before the object is freed; gets keep the release sequence.
    words: PerCore<AtomicU64>,
}

impl Shards {
    /// Makes open words: at least one for each CPU.
    pub(crate) fn new() -> Self {
        static CPUS: OnceLock<usize> = OnceLock::new();
        let cpus = *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, Into::into));
        Self::of(if cfg!(loom) { 2 } else { cpus })
    }

    fn of(words: usize) -> Self {
        Self { words: PerCore::new(words.next_power_of_two(), |_| AtomicU64::new(OPEN)) }
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        &self.words[slot & (self.words.len() - 1)]
    }

    /// Counts a reference in the word of `slot`. Returns false if it is closed; then nothing is
    /// counted.
    #[inline]
    #[must_use]
    pub(crate) fn get(&self, slot: usize) -> bool {
        is_open(self.word(slot).fetch_add(1, Ordering::Relaxed))
    }

    /// Counts one reference less in the word of `slot`. Returns false if it is closed; then nothing
    /// is counted.
    #[inline]
    #[must_use]
    pub(crate) fn put(&self, slot: usize) -> bool {
        is_open(self.word(slot).fetch_sub(1, Ordering::Release))
    }

    /// Closes all words and returns their sum, to be added to the central word. Called once.
    pub(crate) fn close(&self) -> i64 {
        self.words.iter().map(|word| references(word.swap(CLOSED, Ordering::Acquire))).sum()
    }

    /// Returns the sum of the open words. It is exact while no other thread counts or closes.
    pub(crate) fn sum(&self) -> i64 {
        self.words.iter().map(|word| references(word.load(Ordering::Relaxed))).sum()
    }
}

/// Whether the word that an operation has found is open.
const fn is_open(found: u64) -> bool {
    found.wrapping_sub(LOWEST) <= 2 * (OPEN - LOWEST)
}

/// Returns the number of references that a word counts; 0 if it is closed.
const fn references(found: u64) -> i64 {
    if is_open(found) { found.wrapping_sub(OPEN).cast_signed() } else { 0 }
}

#[cfg(test)]
mod tests;
