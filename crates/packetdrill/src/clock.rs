//! The clock that packetdrill reads.
//!
//! packetdrill sleeps until 20 µs before an event and then spins on `gettimeofday`. Every reading
//! therefore advances virtual time a little: otherwise packetdrill would spin forever.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pkt::Instant;

/// Time by which one reading advances the virtual clock.
pub(crate) const READING: Duration = Duration::from_micros(1);

/// Start of virtual time. Not zero, so that earlier moments exist.
const START: Instant = Instant::from_secs(1_000_000);

/// Virtual or wall-clock time, as the stack's instants.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Virtual time with its present moment.
    Virtual(Instant),
    /// The kernel's `CLOCK_REALTIME`, which packetdrill reads by `gettimeofday`.
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

    /// Advances virtual time. Wall-clock time advances by itself.
    pub(crate) fn advance_to(&mut self, then: Instant) {
        if let Self::Virtual(now) = self {
            *now = then.max(*now);
        }
    }
}
