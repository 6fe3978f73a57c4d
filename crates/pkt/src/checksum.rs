//! The Internet checksum (RFC 1071): sums, their composition, and the copies of payload, most of
//! which also sum.
//!
//! Above: headers, devices that owe a checksum, the copy between application and packet. Linux:
//! `csum_partial`, `csum_and_copy_from_user`, `csum_block_add`, include/net/checksum.h.
//!
//! All kernels compute the same number in a different width. Each keeps two running sums of 64-bit
//! words: the sum of the words modulo 2^64, and the sum of the words shifted right by 32. The
//! second sum cannot overflow; shifted back and subtracted from the first, it leaves the exact sum
//! of the low halves. No kernel therefore handles a carry. Byte order is corrected once, at the
//! end, because the ones-complement sum of swapped words is the swapped sum.
//!
//! A `Sum` is only meaningful together with the parity of the position of its first byte: `combine`
//! takes that position.
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

/// Byte count below which the scalar kernel is used: for headers it costs less than the dispatch to
/// a vector kernel.
const VECTOR_BYTES_MIN: usize = 160;

/// An unfolded ones-complement sum: congruent, modulo 65535, to the sum of the big-endian 16-bit
/// words added so far. Zero only if all bytes were zero.
#[derive(Clone, Copy, Default)]
pub struct Sum(u32);

/// Compares folded values: sums of the same words added in another order may differ before they are
/// folded.
impl PartialEq for Sum {
    fn eq(&self, other: &Self) -> bool {
        self.fold() == other.fold()
    }
}

impl Eq for Sum {}

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of `bytes`; an odd last byte counts as if a zero followed.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_raw(if bytes.len() < VECTOR_BYTES_MIN {
            scalar::sum(bytes)
        } else {
            Kernel::best().sum_raw(bytes)
        })
    }

    /// Makes a sum of a folded sum, or of the value of a checksum field.
    #[must_use]
    #[inline]
    pub const fn from_folded(folded: u16) -> Self {
        Self(folded as u32)
    }

    /// Adds `bytes`, whose first byte lies at an even position.
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

    /// Adds the sum of bytes whose first byte lies at an even position.
    #[inline]
    pub const fn add_sum(&mut self, other: Self) {
        self.add(other);
    }

    /// Adds the sum of bytes whose first byte lies at `offset`. At an odd offset all their words
    /// are swapped.
    #[inline]
    pub const fn combine(&mut self, other: Self, offset: usize) {
        let other =
            if offset.is_multiple_of(2) { other } else { Self(other.fold().swap_bytes() as u32) };
        self.add(other);
    }

    /// Folds the sum to 16 bits.
    #[must_use]
    #[inline]
    pub const fn fold(self) -> u16 {
        let once = (self.0 & 0xffff) + (self.0 >> 16);
        let twice = (once & 0xffff) + (once >> 16);
        low16(twice)
    }

    /// Returns the value of the checksum field: the complement of the sum.
    #[must_use]
    #[inline]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }

    /// Returns true if the sum covers a correct checksum field.
    #[must_use]
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }

    #[inline]
    const fn add(&mut self, other: Self) {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // A sum that wrapped is at most 2^32 - 2, so adding the carry cannot overflow.
        self.0 = sum + carry as u32;
    }

    /// Converts a kernel's sum of words in native order.
    #[inline]
    const fn from_raw(raw: u64) -> Self {
        let half = (raw & 0xffff_ffff) + (raw >> 32);
        #[expect(clippy::cast_possible_truncation, reason = "the carry is added back")]
        let (low, carry) = (half as u32, (half >> 32) as u32);
        // The result is at most 2^32 - 1: with a carry, `low` is smaller than that. The words need
        // not be folded before the swap: swapping four bytes changes the value modulo 65535 as
        // swapping two bytes does.
        Self((low + carry).to_be())
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sum({:#06x})", self.fold())
    }
}

/// Returns the checksum field after one word it covers changed from `old` to `new` (RFC 1624,
/// equation 3).
#[must_use]
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = Sum::from_folded(!checksum);
    sum.add_u16(!old);
    sum.add_u16(new);
    sum.finish()
}

/// Returns the sum of the pseudo-header of TCP and UDP over IPv4 (RFC 793 §3.1) or IPv6 (RFC 8200
/// §8.1). `len` counts the transport header and payload.
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

/// Copies `src` into `dst` and returns the sum of the bytes: one pass over memory instead of two.
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

/// Copies `sums.len()` pieces of `size` bytes each, and stores the folded sum of each piece in
/// `sums`.
///
/// # Panics
///
/// If the length of `src` or `dst` is not `size * sums.len()`.
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

/// Hides the origin of the slices from the optimizer. If it knew that they do not overlap, it would
/// turn the fused loop into a call of memcpy and a second pass over the bytes, and the plain copy
/// into that call alone.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn unrelated<'d, 's>(dst: &'d mut [u8], src: &'s [u8]) -> (&'d mut [u8], &'s [u8]) {
    let (mut to, mut from) = (dst.as_mut_ptr(), src.as_ptr());
    // SAFETY: the assembly has no instruction, so both pointers keep their values. Lengths and
    // borrows are those of the arguments.
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

    /// Returns the sum of both halves of every word: exact, and congruent to the sum of the words
    /// modulo 65535.
    #[inline(always)]
    const fn total(self) -> u64 {
        self.whole.wrapping_sub(self.upper << 32) + self.upper
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the caller folded the sum")]
const fn low16(value: u32) -> u16 {
    value as u16
}
