//! Isolation of frequently written words from their neighbors in memory.
//!
//! Linux: `____cacheline_aligned_in_smp`. 128 bytes, not 64: the adjacent-line prefetcher of x86
//! fetches lines in pairs, and several ARM cores have 128-byte lines.
//!
//! Not here: one slot per core ([`crate::percore`]).

use core::ops::{Deref, DerefMut};

/// A value that shares its 128-byte pair of lines with no other value.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(align(128))]
pub struct Padded<T>(T);

const _: () = assert!(align_of::<Padded<u8>>() == 128 && size_of::<Padded<u8>>() == 128);

impl<T> Padded<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> From<T> for Padded<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}
