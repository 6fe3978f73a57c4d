//! The sum in 256-bit vectors. Four independent pairs of running sums hide the latency of the
//! additions.

use core::arch::x86_64::{
    __m256i, _mm_add_epi64, _mm_cvtsi128_si64, _mm_unpackhi_epi64, _mm256_add_epi64,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_setzero_si256,
    _mm256_srli_epi64, _mm256_storeu_si256,
};

use super::{Halves, scalar, unrelated};

type Block = [u8; 32];

/// One `Halves` per 64-bit lane.
#[derive(Clone, Copy)]
struct Lanes {
    whole: __m256i,
    upper: __m256i,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        Self { whole: _mm256_setzero_si256(), upper: _mm256_setzero_si256() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, words: __m256i) {
        self.whole = _mm256_add_epi64(self.whole, words);
        self.upper = _mm256_add_epi64(self.upper, _mm256_srli_epi64::<32>(words));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn merge(&mut self, other: Self) {
        self.whole = _mm256_add_epi64(self.whole, other.whole);
        self.upper = _mm256_add_epi64(self.upper, other.upper);
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(self) -> Halves {
        Halves { whole: across(self.whole), upper: across(self.upper) }
    }
}

/// Returns the sum of the native-order 16-bit words of `bytes`, padded with zeroes.
#[target_feature(enable = "avx2")]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (quads, rest) = bytes.as_chunks::<128>();
    let mut lanes = [Lanes::zero(); 4];
    for quad in quads {
        let (blocks, _) = quad.as_chunks::<32>();
        for (lanes, block) in lanes.iter_mut().zip(blocks) {
            lanes.add(load(block));
        }
    }
    let (blocks, _) = rest.as_chunks::<32>();
    for (lanes, block) in lanes.iter_mut().zip(blocks) {
        lanes.add(load(block));
    }
    let mut halves = gather(lanes);
    let (words, rest) = bytes[bytes.len() & !31..].as_chunks::<8>();
    for word in words {
        halves.add(u64::from_ne_bytes(*word));
    }
    halves.add(scalar::tail(bytes, rest));
    halves.total()
}

/// As `sum`, and copies `src` to `dst`. Both slices have the same length.
#[target_feature(enable = "avx2")]
pub(super) fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> u64 {
    let mut lanes = [Lanes::zero(); 4];
    let split = src.len() & !31;
    let (dst, src) = unrelated(dst, src);
    let (src_blocks, _) = src.as_chunks::<32>();
    let (dst_blocks, dst_rest) = dst.as_chunks_mut::<32>();
    let (src_quads, src_blocks) = src_blocks.as_chunks::<4>();
    let (dst_quads, dst_blocks) = dst_blocks.as_chunks_mut::<4>();
    for (to, from) in dst_quads.iter_mut().zip(src_quads) {
        for (lanes, (to, from)) in lanes.iter_mut().zip(to.iter_mut().zip(from)) {
            let words = load(from);
            store(to, words);
            lanes.add(words);
        }
    }
    for (lanes, (to, from)) in lanes.iter_mut().zip(dst_blocks.iter_mut().zip(src_blocks)) {
        let words = load(from);
        store(to, words);
        lanes.add(words);
    }
    let mut halves = gather(lanes);
    let (words, rest) = src[split..].as_chunks::<8>();
    let (dst_words, dst_rest) = dst_rest.as_chunks_mut::<8>();
    for (to, from) in dst_words.iter_mut().zip(words) {
        *to = *from;
        halves.add(u64::from_ne_bytes(*from));
    }
    halves.add(scalar::tail(src, rest));
    dst_rest.copy_from_slice(rest);
    halves.total()
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(block: &Block) -> __m256i {
    // SAFETY: reads 32 bytes, the size of the block; the instruction requires no alignment.
    unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(block: &mut Block, words: __m256i) {
    // SAFETY: writes 32 bytes, the size of the block; the instruction requires no alignment.
    unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), words) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn gather(lanes: [Lanes; 4]) -> Halves {
    let [mut first, second, mut third, fourth] = lanes;
    first.merge(second);
    third.merge(fourth);
    first.merge(third);
    first.halves()
}

/// Sum of the four lanes, modulo 2^64.
#[inline]
#[target_feature(enable = "avx2")]
fn across(lanes: __m256i) -> u64 {
    let pair = _mm_add_epi64(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let sum = _mm_add_epi64(pair, _mm_unpackhi_epi64(pair, pair));
    _mm_cvtsi128_si64(sum).cast_unsigned()
}
