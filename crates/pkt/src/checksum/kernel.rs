//! Selection of the implementation of the sum and of the copies by the CPU's features.
//!
//! Not here: the implementations (scalar.rs, avx2.rs, avx512.rs), and the length from which a sum
//! is dispatched at all (checksum.rs).

use core::sync::atomic::{AtomicU8, Ordering};

use super::{Sum, scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Length from which the copy that prefetches is used instead of the C library's.
#[cfg(target_arch = "x86_64")]
const COPY_BYTES_MIN: usize = 512;

/// One implementation of the sum and of the copies that this machine can run. The functions of
/// `checksum` use the widest one; tests and benchmarks compare them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel(Width);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Width {
    /// 64-bit words; runs on every CPU.
    Scalar = 1,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2 = 2,
    /// 512-bit vectors with masked tails.
    #[cfg(target_arch = "x86_64")]
    Avx512 = 3,
}

/// Width of the best kernel; zero until it has been detected. Relaxed: every thread that runs the
/// detection gets the same result.
static BEST: AtomicU8 = AtomicU8::new(0);

impl Kernel {
    /// Returns the widest kernel this machine runs.
    #[must_use]
    #[inline]
    pub fn best() -> Self {
        match BEST.load(Ordering::Relaxed) {
            // A vector width is stored only after its features were detected.
            #[cfg(target_arch = "x86_64")]
            3 => Self(Width::Avx512),
            #[cfg(target_arch = "x86_64")]
            2 => Self(Width::Avx2),
            1 => Self(Width::Scalar),
            _ => Self::detect(),
        }
    }

    /// Returns every kernel this machine runs, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let scalar = core::iter::once(Width::Scalar);
        #[cfg(target_arch = "x86_64")]
        let all = scalar
            .chain(is_x86_feature_detected!("avx2").then_some(Width::Avx2))
            .chain(has_avx512().then_some(Width::Avx512));
        #[cfg(not(target_arch = "x86_64"))]
        let all = scalar;
        all.map(Self)
    }

    /// Returns the name to print in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Width::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => "avx512",
        }
    }

    /// [`Sum::of`] by this kernel.
    #[must_use]
    pub fn sum(self, bytes: &[u8]) -> Sum {
        Sum::from_raw(self.sum_raw(bytes))
    }

    /// [`copy_and_sum`](super::copy_and_sum) by this kernel.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[must_use]
    pub fn copy_and_sum(self, dst: &mut [u8], src: &[u8]) -> Sum {
        assert_eq!(dst.len(), src.len());
        Sum::from_raw(self.copy_and_sum_raw(dst, src))
    }

    /// Copies `src` into `dst`, without a sum.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn copy(self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a kernel of this width exists only after its features were detected.
            Width::Avx512 if src.len() >= COPY_BYTES_MIN => unsafe { avx512::copy(dst, src) },
            _ => dst.copy_from_slice(src),
        }
    }

    /// Copies pieces of `size` bytes and stores the folded sum of each in `sums`.
    ///
    /// # Panics
    ///
    /// If the length of `src` or `dst` is not `size * sums.len()`, or if `size` is zero and `sums`
    /// is not empty.
    #[inline]
    pub fn copy_and_sum_pieces(self, dst: &mut [u8], src: &[u8], size: usize, sums: &mut [u16]) {
        assert!(dst.len() == src.len() && src.len() == size * sums.len());
        if sums.is_empty() {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.0 == Width::Avx512 {
            // SAFETY: a kernel of this width exists only after its features were detected.
            return unsafe { avx512::copy_and_sum_pieces(dst, src, size, sums) };
        }
        for ((to, from), sum) in dst.chunks_exact_mut(size).zip(src.chunks_exact(size)).zip(sums) {
            *sum = self.copy_and_sum(to, from).fold();
        }
    }

    #[inline]
    pub(super) fn sum_raw(self, bytes: &[u8]) -> u64 {
        match self.0 {
            Width::Scalar => scalar::sum(bytes),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a kernel of this width exists only after its features were detected.
            Width::Avx2 => unsafe { avx2::sum(bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Width::Avx512 => unsafe { avx512::sum(bytes) },
        }
    }

    #[inline]
    pub(super) fn copy_and_sum_raw(self, dst: &mut [u8], src: &[u8]) -> u64 {
        match self.0 {
            Width::Scalar => scalar::copy_and_sum(dst, src),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a kernel of this width exists only after its features were detected.
            Width::Avx2 => unsafe { avx2::copy_and_sum(dst, src) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Width::Avx512 => unsafe { avx512::copy_and_sum(dst, src) },
        }
    }

    #[cold]
    fn detect() -> Self {
        let best = Self::available().last().unwrap_or(Self(Width::Scalar));
        BEST.store(best.0 as u8, Ordering::Relaxed);
        best
    }
}

/// Byte masks need AVX-512BW besides the foundation. AVX2 is needed for the steps that work on
/// 256-bit halves.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
}
