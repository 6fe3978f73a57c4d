//! Minimum rate of a client within an exchange.
//!
//! Receiving a body or sending a response occupies a thread. A client that takes hours would keep
//! the thread from other clients, so after a grace period the average rate must reach a minimum (as
//! Apache's `RequestReadTimeout` with `MinRate`).

use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

/// Grace period of each exchange, in which no minimum rate applies.
pub(super) const GRACE: Duration = Duration::from_secs(20);

/// Minimum average rate after the grace period, in bytes per second. It is below the rate of any
/// modem, and bounds how long 4,096 slow clients can occupy all threads.
pub(super) const RATE_MIN: u64 = 500;

/// Byte count of one exchange, and its start time.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    bytes: u64,
}

impl Pace {
    /// Begins an exchange.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), bytes: 0 }
    }

    /// Counts bytes; fails if the client is too slow.
    pub(super) fn advance(&mut self, count: usize) -> io::Result<()> {
        self.bytes += count as u64;
        if is_enough(self.began.elapsed(), self.bytes) {
            Ok(())
        } else {
            let reason = format!("the client moves fewer than {RATE_MIN} bytes a second");
            Err(io::Error::new(ErrorKind::TimedOut, reason))
        }
    }
}

fn is_enough(elapsed: Duration, bytes: u64) -> bool {
    let behind_grace = elapsed.saturating_sub(GRACE).as_secs();
    bytes >= behind_grace.saturating_mul(RATE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_clients_have_a_grace_period_and_a_minimum() {
        assert!(is_enough(Duration::ZERO, 0) && is_enough(GRACE, 0));
        let later = GRACE + Duration::from_secs(10);
        assert!(is_enough(later, 10 * RATE_MIN) && !is_enough(later, 10 * RATE_MIN - 1));
        assert!(!is_enough(Duration::from_secs(3600), 1_000_000));
    }
}
