//! The thread that polls the queues of a core, in one word.

use core::fmt;

/// A thread that polls. Two in 65,535 share a number: then either may end what the other has noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poller(u16);

impl Poller {
    /// Whichever thread comes first.
    pub const ANY: Self = Self(0);

    /// The thread whose context has this number.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most u16::MAX")]
    pub const fn new(number: u64) -> Self {
        Self((number % u16::MAX as u64 + 1) as u16)
    }
}

/// Which thread polls the queues: the worker, or a thread that has polled and until when it is expected back.
///
/// From bit 0: 16 bits of the poller's number, one for `Preferred`, 47 of the time in microseconds, which are four years.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Attendant(u64);

impl Attendant {
    /// The worker.
    pub(super) const WORKER: Self = Self(0);
    const PREFERRED: u64 = 1 << 16;
    const TIME_SHIFT: u32 = 17;
    const NANOS: u64 = 1000;

    /// `poller` has polled: that it polls again is a guess.
    pub(super) const fn polled(poller: Poller, until_ns: u64) -> Self {
        Self::new(poller, until_ns, 0)
    }

    /// `poller` has asked for the time.
    pub(super) const fn preferred(poller: Poller, until_ns: u64) -> Self {
        Self::new(poller, until_ns, Self::PREFERRED)
    }

    const fn new(Poller(number): Poller, until_ns: u64, kind: u64) -> Self {
        let micros = until_ns / Self::NANOS;
        // From four years after the boot on the time is 0, and the worker watches beside a thread that polls.
        let micros = if micros >> (u64::BITS - Self::TIME_SHIFT) == 0 { micros } else { 0 };
        Self(micros << Self::TIME_SHIFT | kind | number as u64)
    }

    pub(super) const fn to_bits(self) -> u64 {
        self.0
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether it is `poller`; the worker is [`Poller::ANY`].
    pub(super) const fn is(self, Poller(number): Poller) -> bool {
        self.0 & 0xffff == number as u64
    }

    /// Until when it is expected back; 0 for the worker.
    pub(super) const fn until_ns(self) -> u64 {
        (self.0 >> Self::TIME_SHIFT) * Self::NANOS
    }

    /// Until when it has asked to be left alone, if that is later than `now_ns`.
    pub(super) fn preferred_until_ns(self, now_ns: u64) -> Option<u64> {
        let asked = self.0 & Self::PREFERRED != 0;
        (asked && self.until_ns() > now_ns).then(|| self.until_ns())
    }
}

impl fmt::Debug for Attendant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.until_ns();
        match (self.0, self.0 & Self::PREFERRED) {
            (0, _) => f.write_str("Worker"),
            (_, 0) => write!(f, "Polled({until})"),
            _ => write!(f, "Preferred({until})"),
        }
    }
}
