//! Sequence numbers: 32 bits that wrap, compared modulo 2^32.
//!
//! RFC 9293 §3.4; Linux: before(), after(), between() in include/net/tcp.h.
//!
//! A comparison is meaningful only for two numbers less than 2^31 apart. All numbers of one
//! connection are that close, because no window exceeds 2^30 (RFC 7323 §2.3). [`SeqNum`] does not
//! implement `Ord`: the order is not transitive around the circle of numbers, so only code that
//! knows a bound on the distances may sort numbers.
//!
//! Not here: 64-bit stream positions.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// A sequence or acknowledgment number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Whether `self` comes before `other`.
    #[inline]
    #[must_use]
    pub const fn lt(self, other: Self) -> bool {
        self.signed_distance(other) < 0
    }

    /// Whether `self` comes before `other` or is equal.
    #[inline]
    #[must_use]
    pub const fn le(self, other: Self) -> bool {
        self.signed_distance(other) <= 0
    }

    /// Whether `self` comes after `other`.
    #[inline]
    #[must_use]
    pub const fn gt(self, other: Self) -> bool {
        self.signed_distance(other) > 0
    }

    /// Whether `self` comes after `other` or is equal.
    #[inline]
    #[must_use]
    pub const fn ge(self, other: Self) -> bool {
        self.signed_distance(other) >= 0
    }

    /// Returns the later of two numbers.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.lt(other) { other } else { self }
    }

    /// Returns the earlier of two numbers.
    #[inline]
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.lt(self) { other } else { self }
    }

    /// Whether `low <= self <= high`, for any span below 2^32.
    #[inline]
    #[must_use]
    pub const fn between(self, low: Self, high: Self) -> bool {
        self.since(low) <= high.since(low)
    }

    /// Returns the number of bytes from `earlier` forward to `self`, around the circle.
    ///
    /// Use this function if the order of the numbers is known; otherwise `self - earlier` gives the
    /// signed distance.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    #[expect(
        clippy::cast_possible_wrap,
        reason = "the sign of the wrapped difference is the order"
    )]
    #[inline]
    const fn signed_distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl Add<u32> for SeqNum {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNum {
    type Output = Self;

    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl SubAssign<u32> for SeqNum {
    #[inline]
    fn sub_assign(&mut self, bytes: u32) {
        *self = *self - bytes;
    }
}

impl Sub for SeqNum {
    type Output = i32;

    /// Returns the signed distance: negative when `self` comes before `other`.
    #[inline]
    fn sub(self, other: Self) -> i32 {
        self.signed_distance(other)
    }
}

impl From<u32> for SeqNum {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<SeqNum> for u32 {
    fn from(seq: SeqNum) -> Self {
        seq.0
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::SeqNum;

    #[test]
    fn numbers_are_ordered_across_the_wrap() {
        let before = SeqNum(u32::MAX - 1);
        let after = before + 4;
        assert_eq!(after, SeqNum(2));
        assert!(before.lt(after) && before.le(after) && !before.ge(after));
        assert!(after.gt(before) && after.ge(before) && !after.le(before));
        assert_eq!(before.max(after), after);
        assert_eq!(before.min(after), before);
        assert_eq!(after - before, 4);
        assert_eq!(before - after, -4);
        assert_eq!(after.since(before), 4);
        assert_eq!(after - 4, before);
    }

    #[test]
    fn equal_numbers_are_ordered_both_ways() {
        let seq = SeqNum(7);
        assert!(seq.le(seq) && seq.ge(seq) && !seq.lt(seq) && !seq.gt(seq));
        assert!(seq.between(seq, seq));
    }

    #[test]
    fn between_includes_both_ends_across_the_wrap() {
        let (low, high) = (SeqNum(u32::MAX), SeqNum(1));
        for inside in [low, SeqNum(0), high] {
            assert!(inside.between(low, high));
        }
        assert!(!SeqNum(2).between(low, high));
        assert!(!(low - 1).between(low, high));
    }

    /// Returns the numbers around every quarter of the circle, where the sign, the wrap or the
    /// largest window matters.
    fn corners() -> impl Iterator<Item = u32> + Clone {
        (0..4_u32).flat_map(|quarter| {
            (0..9).map(move |at| (quarter << 30).wrapping_add(at).wrapping_sub(4))
        })
    }

    /// Returns the signed distance from `low` to `high` (RFC 9293 §3.4), computed with 64-bit
    /// numbers, which do not wrap.
    fn distance(low: u32, high: u32) -> i64 {
        let forward = (i64::from(high) - i64::from(low)).rem_euclid(1 << 32);
        if forward < 1 << 31 { forward } else { forward - (1 << 32) }
    }

    #[test]
    fn every_pair_of_corners_is_ordered_by_its_distance() {
        for (one, other) in corners().flat_map(|one| corners().map(move |other| (one, other))) {
            let (low, high) = (SeqNum(one), SeqNum(other));
            // Two numbers half a circle apart each come before the other: both distances are
            // negative.
            let (forward, back) = (distance(one, other), distance(other, one));
            assert_eq!((i64::from(high - low), i64::from(low - high)), (forward, back));
            assert_eq!(i64::from(high.since(low)), forward.rem_euclid(1 << 32), "{one} {other}");
            let order = (low.lt(high), low.le(high), low.gt(high), low.ge(high));
            assert_eq!(order, (back < 0, back <= 0, back > 0, back >= 0), "{one} {other}");
            assert_eq!(low.max(high), if back < 0 { high } else { low }, "{one} {other}");
            assert_eq!(low.min(high), if forward < 0 { high } else { low }, "{one} {other}");
            let (mut up, mut down) = (low, low);
            up += other;
            down -= other;
            let sum = (u64::from(one) + u64::from(other)) % (1 << 32);
            assert_eq!((u64::from(up.0), up), (sum, low + other));
            assert_eq!((down + other, down), (low, low - other));
        }
    }

    #[test]
    fn between_agrees_with_the_distances_for_every_three_corners() {
        let forward = |low: u32, high: u32| (i64::from(high) - i64::from(low)).rem_euclid(1 << 32);
        for low in corners() {
            for high in corners() {
                for at in corners() {
                    let inside = forward(low, at) <= forward(low, high);
                    let between = SeqNum(at).between(SeqNum(low), SeqNum(high));
                    assert_eq!(between, inside, "{low} {at} {high}");
                }
            }
        }
    }

    /// The order depends on the distance alone, so one starting number is enough. The test tries
    /// every 4096th distance and its two neighbors.
    #[test]
    fn the_sign_of_every_distance_decides_the_order() {
        let low = SeqNum(0x8000_0001);
        for step in 0..1_u32 << 20 {
            for ahead in [step << 12, step << 12 | 1, step << 12 | 0xfff] {
                let (high, back) = (low + ahead, distance(ahead, 0));
                assert_eq!((low.lt(high), low.gt(high)), (back < 0, back > 0), "{ahead}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_distance_below_half_the_circle_decides_the_order(base: u32, ahead in 1..=i32::MAX) {
            let low = SeqNum(base);
            let high = low + ahead.unsigned_abs();
            prop_assert!(low.lt(high) && high.gt(low));
            prop_assert_eq!(high - low, ahead);
            prop_assert_eq!(low - high, -ahead);
            prop_assert_eq!(low.max(high), high);
            prop_assert_eq!(low.min(high), low);
        }

        #[test]
        fn between_agrees_with_two_comparisons(base: u32, span in 0..=0x3fff_ffffu32, at in 0..=0x7fff_fffeu32) {
            let (low, high, seq) = (SeqNum(base), SeqNum(base) + span, SeqNum(base) + at);
            prop_assert_eq!(seq.between(low, high), low.le(seq) && seq.le(high));
        }
    }
}
