//! Verifiable content: a seeded stream of bytes, and a checksum of it.

use crate::stats::SplitMix64;

/// Generator of the bytes of a transfer.
#[derive(Debug)]
pub(super) struct Content(SplitMix64);

impl Content {
    /// Creates the generator of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    /// Overwrites the buffer with the next bytes. The buffer's length must be a multiple of 8.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) {
        debug_assert!(buffer.len().is_multiple_of(8), "a tail would be left unchanged");
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&self.0.next().to_le_bytes());
        }
    }
}

/// A 64-bit checksum of a byte stream. It depends on the order of the bytes, but not on how the
/// stream is split. It processes eight bytes per step, because a bytewise checksum would be the
/// bottleneck of a fast transfer.
#[derive(Debug, Clone, Default)]
pub(super) struct ContentSum {
    state: u64,
    /// Bytes of an incomplete word: the first `length % 8`.
    pending: [u8; 8],
    length: u64,
}

impl ContentSum {
    /// Processes the next bytes.
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        let filled = usize::try_from(self.length % 8).unwrap_or(0);
        self.length += bytes.len() as u64;
        if filled > 0 {
            let taken = bytes.len().min(8 - filled);
            self.pending[filled..filled + taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if filled + taken < 8 {
                return;
            }
            self.mix(u64::from_le_bytes(self.pending));
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        self.pending[..rest.len()].copy_from_slice(rest);
    }

    /// Number of bytes so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the checksum, which covers the length too.
    pub(super) fn value(&self) -> u64 {
        let mut last = self.clone();
        let filled = usize::try_from(self.length % 8).unwrap_or(0);
        last.pending[filled..].fill(0);
        last.mix(u64::from_le_bytes(last.pending));
        last.mix(self.length);
        last.state ^ (last.state >> 32)
    }

    /// Mixes one word into the state. The step is a bijection of the state for every word, so a
    /// changed word always changes the checksum, unless a later difference compensates it.
    fn mix(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(pieces: &[&[u8]]) -> u64 {
        let mut sum = ContentSum::default();
        pieces.iter().for_each(|piece| sum.update(piece));
        sum.value()
    }

    #[test]
    fn the_checksum_does_not_depend_on_how_the_stream_is_split() {
        let mut bytes = vec![0; 64];
        Content::new(3).fill(&mut bytes);
        let whole = sum(&[&bytes]);
        for a in 0..bytes.len() {
            for b in a..bytes.len() {
                assert_eq!(sum(&[&bytes[..a], &bytes[a..b], &bytes[b..]]), whole, "{a} {b}");
            }
        }
    }

    #[test]
    fn the_checksum_depends_on_every_byte_on_order_and_length() {
        let mut bytes = vec![0; 40];
        Content::new(4).fill(&mut bytes);
        let whole = sum(&[&bytes]);
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_ne!(sum(&[&changed]), whole, "{index}");
        }
        bytes.swap(3, 20);
        assert_ne!(sum(&[&bytes]), whole);
        assert_ne!(sum(&[&[0; 8]]), sum(&[&[0; 9]]));
        assert_ne!(sum(&[]), sum(&[&[0]]));
    }
}
