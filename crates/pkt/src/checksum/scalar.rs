//! The sum in 64-bit words: for headers, for the remainder of a vector kernel, and for every
//! architecture.
//!
//! The last, incomplete word is read by one overlapping load, and the bytes already summed are
//! shifted out. The tail therefore costs the same for every length.

use super::Halves;

/// Returns the sum of the native-order 16-bit words of `bytes`, padded with zeroes.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut halves = Halves::default();
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        halves.add(u64::from_ne_bytes(*word));
    }
    halves.add(tail(bytes, rest));
    halves.total()
}

/// As `sum`, and copies `src` to `dst`. Both slices have the same length.
#[inline]
pub(super) fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> u64 {
    let mut halves = Halves::default();
    let (words, rest) = src.as_chunks::<8>();
    let (to_words, to_rest) = dst.as_chunks_mut::<8>();
    for (to, from) in to_words.iter_mut().zip(words) {
        *to = *from;
        halves.add(u64::from_ne_bytes(*from));
    }
    halves.add(tail(src, rest));
    to_rest.copy_from_slice(rest);
    halves.total()
}

/// Returns the bytes of `rest`, the last `len % 8` bytes of `bytes`, as the first bytes of a word.
#[inline(always)]
pub(super) fn tail(bytes: &[u8], rest: &[u8]) -> u64 {
    if rest.is_empty() {
        return 0;
    }
    if let Some(last) = bytes.last_chunk::<8>() {
        let summed_bits = 64 - 8 * rest.len();
        let word = u64::from_ne_bytes(*last);
        return if cfg!(target_endian = "little") {
            word >> summed_bits
        } else {
            word << summed_bits
        };
    }
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_ne_bytes(word)
}
