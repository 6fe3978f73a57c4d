//! The clock that packetdrill reads.
//!
//! packetdrill sleeps until 20 µs before an event and spins on `gettimeofday` for the rest: virtual time must therefore
//! move a little with every reading, or it would spin for ever.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pkt::Instant;

/// What one reading of the virtual clock costs.
pub(crate) const READING: Duration = Duration::from_micros(1);

/// Where virtual time starts. Any moment will do; not zero, so that "a while ago" exists.
const START: Instant = Instant::from_secs(1_000_000);

/// Virtual or wall-clock time, as an instant of the stack.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The present moment.
    Virtual(Instant),
    /// The kernel's clock of the day: packetdrill reads it as `gettimeofday`.
    Wall,
}

impl Clock {
    pub(crate) const fn new(virtual_time: bool) -> Self {
        if virtual_time { Self::Virtual(START) } else { Self::Wall }
    }

    pub(crate) const fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::Virtual(now) => *now,
            Self::Wall => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
            }
        }
    }

    /// Moves virtual time forward. Wall-clock time moves by itself.
    pub(crate) fn advance_to(&mut self, then: Instant) {
        if let Self::Virtual(now) = self {
            *now = then.max(*now);
        }
    }
}
