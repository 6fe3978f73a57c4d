//! The Internet checksum (RFC 1071): sums, their composition, and the copies of payload, most of which sum on the way.
//!
//! Above: headers, devices that owe a checksum, the copy between application and packet. Linux:
//! `csum_partial`, `csum_and_copy_from_user`, `csum_block_add`, include/net/checksum.h.
//!
//! All kernels compute the same number in a different width: words of 64 bits are summed twice, whole
//! (modulo 2^64) and shifted right by 32. The second sum cannot overflow; shifted back and subtracted it
//! leaves the exact sum of the low halves. So no kernel ever handles a carry. Byte order is repaired once,
//! at the end: the ones-complement sum of swapped words is the swapped sum.
//!
//! A `Sum` is only meaningful together with the parity of the position it starts at: `combine` takes it.
//!
//! Not here: which bytes are summed (the transport protocols).

use core::fmt;
use core::net::IpAddr;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernel;
mod scalar;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use kernel::Kernel;

/// Below this many bytes the scalar kernel is faster than going through the choice of one: headers.
const VECTOR_BYTES_MIN: usize = 160;

/// A ones-complement sum in the making: congruent, modulo 65535, to the sum of the big-endian 16-bit words
/// so far. Zero only if all bytes were zero.
#[derive(Clone, Copy, Default)]
pub struct Sum(u32);

/// Sums of the same words that were added up in another order may differ before they are folded.
impl PartialEq for Sum {
    fn eq(&self, other: &Self) -> bool {
        self.fold() == other.fold()
    }
}

impl Eq for Sum {}

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// The sum of `bytes`; an odd last byte counts as if a zero followed.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_raw(if bytes.len() < VECTOR_BYTES_MIN {
            scalar::sum(bytes)
        } else {
            Kernel::best().sum_raw(bytes)
        })
    }

    /// A sum that was folded before, or the value of a checksum field.
    #[must_use]
    #[inline]
    pub const fn from_folded(folded: u16) -> Self {
        Self(folded as u32)
    }

    /// Adds `bytes`, the first of which lies at an even position.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(Self::of(bytes));
    }

    /// Adds one word, in host byte order.
    #[inline]
    pub const fn add_u16(&mut self, word: u16) {
        self.add(Self(word as u32));
    }

    /// Adds two words, in host byte order.
    #[inline]
    pub const fn add_u32(&mut self, words: u32) {
        self.add(Self(words));
    }

    /// Adds the sum of bytes whose first lies at an even position.
    #[inline]
    pub const fn add_sum(&mut self, other: Self) {
        self.add(other);
    }

    /// Adds the sum of bytes whose first lies at `offset`: at an odd one all its words are swapped.
    #[inline]
    pub const fn combine(&mut self, other: Self, offset: usize) {
        let other =
            if offset.is_multiple_of(2) { other } else { Self(other.fold().swap_bytes() as u32) };
        self.add(other);
    }

    /// The sum in 16 bits.
    #[must_use]
    #[inline]
    pub const fn fold(self) -> u16 {
        let once = (self.0 & 0xffff) + (self.0 >> 16);
        let twice = (once & 0xffff) + (once >> 16);
        low16(twice)
    }

    /// What goes into a checksum field: the complement of the sum.
    #[must_use]
    #[inline]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }

    /// True when the sum included a correct checksum field.
    #[must_use]
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }

    #[inline]
    const fn add(&mut self, other: Self) {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // A sum that wrapped is at most 2^32 - 2: the carry fits.
        self.0 = sum + carry as u32;
    }

    /// From a kernel's sum of words in native order.
    #[inline]
    const fn from_raw(raw: u64) -> Self {
        let half = (raw & 0xffff_ffff) + (raw >> 32);
        #[expect(clippy::cast_possible_truncation, reason = "the carry is added back")]
        let (low, carry) = (half as u32, (half >> 32) as u32);
        // At most 2^32 - 1: with a carry `low` is smaller than that. The words need not be folded before they are swapped:
        // bytes that trade places four by four change modulo 65535 as they do two by two.
        Self((low + carry).to_be())
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sum({:#06x})", self.fold())
    }
}

/// The checksum field after one word under it changed from `old` to `new` (RFC 1624, equation 3).
#[must_use]
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = Sum::from_folded(!checksum);
    sum.add_u16(!old);
    sum.add_u16(new);
    sum.finish()
}

/// The pseudo-header of TCP and UDP over IPv4 (RFC 793 §3.1) or IPv6 (RFC 8200 §8.1). `len` counts the
/// transport header and payload.
///
/// # Panics
///
/// In debug builds, if the addresses are of different families.
#[must_use]
pub fn pseudo_header(src: IpAddr, dst: IpAddr, proto: u8, len: u32) -> Sum {
    let mut sum = Sum::from_folded(u16::from(proto));
    sum.add_u32(len);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            sum.add_u32(src.to_bits());
            sum.add_u32(dst.to_bits());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            sum.add_bytes(&src.octets());
            sum.add_bytes(&dst.octets());
        }
        _ => debug_assert!(false, "a pseudo-header from {src} to {dst}"),
    }
    sum
}

/// Copies `src` into `dst` and sums it on the way: one pass over memory instead of two.
///
/// # Panics
///
/// If the lengths differ.
#[inline]
pub fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> Sum {
    assert_eq!(dst.len(), src.len());
    let raw = if src.len() < VECTOR_BYTES_MIN {
        scalar::copy_and_sum(dst, src)
    } else {
        Kernel::best().copy_and_sum_raw(dst, src)
    };
    Sum::from_raw(raw)
}

/// Copies as many pieces of `size` bytes as there are places in `sums`, and leaves the folded sum of each there.
///
/// # Panics
///
/// If `src` or `dst` are not as many bytes.
#[inline]
pub(crate) fn copy_and_sum_pieces(dst: &mut [u8], src: &[u8], size: usize, sums: &mut [u16]) {
    Kernel::best().copy_and_sum_pieces(dst, src, size, sums);
}

/// Copies `src` into `dst`.
///
/// # Panics
///
/// If the lengths differ.
#[inline]
pub(crate) fn copy(dst: &mut [u8], src: &[u8]) {
    Kernel::best().copy(dst, src);
}

/// Hides from the optimiser where the slices come from. Knowing that they do not overlap, it would turn the
/// fused loop into a call of memcpy followed by a second pass over the bytes, and the copying one into that call alone.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn unrelated<'d, 's>(dst: &'d mut [u8], src: &'s [u8]) -> (&'d mut [u8], &'s [u8]) {
    let (mut to, mut from) = (dst.as_mut_ptr(), src.as_ptr());
    // SAFETY: no instruction: both pointers come out as they went in. Their lengths and borrows are kept.
    unsafe {
        core::arch::asm!("/* {} {} */", inout(reg) to, inout(reg) from, options(nostack, preserves_flags));
        (
            core::slice::from_raw_parts_mut(to, dst.len()),
            core::slice::from_raw_parts(from, src.len()),
        )
    }
}

/// The two running sums of a kernel (see the module head).
#[derive(Clone, Copy, Default)]
struct Halves {
    /// Sum of the words, modulo 2^64.
    whole: u64,
    /// Sum of the words' upper halves.
    upper: u64,
}

impl Halves {
    #[inline(always)]
    const fn add(&mut self, word: u64) {
        self.whole = self.whole.wrapping_add(word);
        self.upper += word >> 32;
    }

    /// The sum of both halves of every word: exact, and congruent to the sum of the words modulo 65535.
    #[inline(always)]
    const fn total(self) -> u64 {
        self.whole.wrapping_sub(self.upper << 32) + self.upper
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the caller has folded")]
const fn low16(value: u32) -> u16 {
    value as u16
}
