//! The sum and the copies in 512-bit vectors. Masked loads and stores handle any tail in one step,
//! without touching a byte outside the slice and without a scalar remainder.

use core::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi64, _mm512_loadu_si512,
    _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi64,
    _mm512_setzero_si512, _mm512_srli_epi64, _mm512_storeu_si512,
};

use super::{Halves, Sum, unrelated};

type Block = [u8; 64];

/// Length from which a sum first advances to a cache-line boundary. Every block that straddles two
/// lines costs two loads, which for longer slices outweighs the extra step.
const ALIGNED_MIN: usize = 512;

/// Prefetch distance of a copy, in bytes: far enough for data in the second-level cache to arrive
/// in time. Each step prefetches the 256 bytes that lie so far ahead.
const AHEAD_BYTES: usize = 512;

/// One `Halves` per 64-bit lane.
#[derive(Clone, Copy)]
struct Lanes {
    whole: __m512i,
    upper: __m512i,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn zero() -> Self {
        Self { whole: _mm512_setzero_si512(), upper: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn add(&mut self, words: __m512i) {
        self.whole = _mm512_add_epi64(self.whole, words);
        self.upper = _mm512_add_epi64(self.upper, _mm512_srli_epi64::<32>(words));
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn merge(&mut self, other: Self) {
        self.whole = _mm512_add_epi64(self.whole, other.whole);
        self.upper = _mm512_add_epi64(self.upper, other.upper);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn halves(self) -> Halves {
        Halves {
            whole: _mm512_reduce_add_epi64(self.whole).cast_unsigned(),
            upper: _mm512_reduce_add_epi64(self.upper).cast_unsigned(),
        }
    }
}

/// Returns the sum of the native-order 16-bit words of `bytes`, padded with zeroes.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [Lanes::zero(); 4];
    let (head, bytes) = bytes.split_at(before_first_line(bytes));
    lanes[0].add(load_tail(head));
    let (quads, rest) = bytes.as_chunks::<256>();
    for quad in quads {
        let (blocks, _) = quad.as_chunks::<64>();
        for (lanes, block) in lanes.iter_mut().zip(blocks) {
            lanes.add(load(block));
        }
    }
    let (blocks, rest) = rest.as_chunks::<64>();
    for (lanes, block) in lanes.iter_mut().zip(blocks) {
        lanes.add(load(block));
    }
    lanes[3].add(load_tail(rest));
    gather(lanes).total()
}

/// Returns the number of bytes before the first cache-line boundary, fewer than 64. Returns 0 for a
/// short slice, and if the boundary would split a 16-bit word.
#[inline]
fn before_first_line(bytes: &[u8]) -> usize {
    if bytes.len() < ALIGNED_MIN {
        return 0;
    }
    let head = bytes.as_ptr().addr().wrapping_neg() % 64;
    if head.is_multiple_of(2) { head } else { 0 }
}

/// As `sum`, and copies `src` to `dst`. Both slices have the same length.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> u64 {
    let mut lanes = [Lanes::zero(); 4];
    let (dst, src) = unrelated(dst, src);
    let (src_blocks, src_rest) = src.as_chunks::<64>();
    let (dst_blocks, dst_rest) = dst.as_chunks_mut::<64>();
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
    let words = load_tail(src_rest);
    store_tail(dst_rest, words);
    lanes[3].add(words);
    gather(lanes).total()
}

/// Copies `src` to `dst` and prefetches ahead, but never past the end of `src`, where another core
/// may be writing. Both slices have the same length.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn copy(dst: &mut [u8], src: &[u8]) {
    let (dst, src) = unrelated(dst, src);
    // The destination is aligned, because a store that straddles two lines costs more than a load
    // that does.
    let head = (dst.as_ptr().addr().wrapping_neg() % 64).min(dst.len());
    let (dst_head, dst) = dst.split_at_mut(head);
    let (src_head, src) = src.split_at(head);
    store_tail(dst_head, load_tail(src_head));
    let (src_blocks, src_rest) = src.as_chunks::<64>();
    let (dst_blocks, dst_rest) = dst.as_chunks_mut::<64>();
    let (src_quads, src_blocks) = src_blocks.as_chunks::<4>();
    let (dst_quads, dst_blocks) = dst_blocks.as_chunks_mut::<4>();
    for (index, (to, from)) in dst_quads.iter_mut().zip(src_quads).enumerate() {
        for block in src_quads.get(index + AHEAD_BYTES / 256).into_iter().flatten() {
            _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().cast());
        }
        for (to, from) in to.iter_mut().zip(from) {
            store(to, load(from));
        }
    }
    for (to, from) in dst_blocks.iter_mut().zip(src_blocks) {
        store(to, load(from));
    }
    store_tail(dst_rest, load_tail(src_rest));
}

/// Runs `copy_and_sum` for one piece after the other.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn copy_and_sum_pieces(dst: &mut [u8], src: &[u8], size: usize, sums: &mut [u16]) {
    for ((to, from), sum) in dst.chunks_exact_mut(size).zip(src.chunks_exact(size)).zip(sums) {
        *sum = Sum::from_raw(copy_and_sum(to, from)).fold();
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load(block: &Block) -> __m512i {
    // SAFETY: reads 64 bytes, the size of the block; the instruction requires no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store(block: &mut Block, words: __m512i) {
    // SAFETY: writes 64 bytes, the size of the block; the instruction requires no alignment.
    unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), words) }
}

/// Loads fewer than 64 bytes, padded with zeroes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_tail(rest: &[u8]) -> __m512i {
    // SAFETY: the mask selects `rest.len()` bytes; bytes not selected are neither read nor fault.
    unsafe { _mm512_maskz_loadu_epi8(mask(rest.len()), rest.as_ptr().cast()) }
}

/// Stores the first `rest.len()` bytes of `words`, fewer than 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store_tail(rest: &mut [u8], words: __m512i) {
    // SAFETY: the mask selects `rest.len()` bytes; bytes not selected are neither written nor
    // fault.
    unsafe { _mm512_mask_storeu_epi8(rest.as_mut_ptr().cast(), mask(rest.len()), words) }
}

/// Returns a mask with one bit per byte. `len < 64`.
#[inline]
fn mask(len: usize) -> u64 {
    (1 << len) - 1
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn gather(lanes: [Lanes; 4]) -> Halves {
    let [mut first, second, mut third, fourth] = lanes;
    first.merge(second);
    third.merge(fourth);
    first.merge(third);
    first.halves()
}
