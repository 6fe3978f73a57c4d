//! How slow a client may be within an exchange.
//!
//! A body that arrives, or a response that leaves, occupies a thread. A client that takes hours for it would keep the thread
//! from others, so after a grace period the average must reach a minimum (as Apache's `RequestReadTimeout` with `MinRate`).

use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

/// Time in which a client may be as slow as it likes, in each exchange.
pub(super) const GRACE: Duration = Duration::from_secs(20);

/// Average that a client must reach behind it, in bytes a second: less than any modem, and 4,096 clients that keep to it are
/// no outage for longer than their files last.
pub(super) const RATE_MIN: u64 = 500;

/// The bytes of one exchange, and since when.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    bytes: u64,
}

impl Pace {
    /// An exchange begins.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), bytes: 0 }
    }

    /// So many bytes more; an error when the client is too slow.
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
