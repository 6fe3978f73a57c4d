//! A limit of challenge ACKs that all connections of a host share.
//!
//! Above: `cx` refers to the shared budget, and `input::reset` takes challenge ACKs from it.
//! RFC 5961 §7; Linux: tcp_send_challenge_ack, `tcp_challenge_ack_limit`.
//!
//! An off-path attacker can use a shared limit as an oracle: the number of challenge ACKs that it
//! provokes on its own connection shows whether another connection sent one in the same second
//! (CVE-2016-5696). Therefore the limit is a new random number each second. By default there is no
//! shared limit, only the rate limit of each connection (`tcp_invalid_ratelimit`).

use core::sync::atomic::{AtomicU32, Ordering};

use pkt::Instant;

use crate::base::rng::Rng;

/// Value of `tcp_challenge_ack_limit` that means no limit (Linux: INT_MAX).
pub const UNLIMITED: u32 = i32::MAX as u32;

/// Challenge ACKs that the host may still send in the current second. A host has one budget, which
/// is not accessed if there is no limit.
#[derive(Debug, Default)]
pub struct ChallengeBudget {
    /// Second in which `left` was drawn, plus one. The first connection that sends a challenge ACK
    /// in a second updates both fields. Both are accessed with relaxed ordering: while one thread
    /// draws the limit, another one may still take from the rest of the previous second, which is
    /// harmless.
    second: AtomicU32,
    /// Challenge ACKs that may still be sent in that second.
    left: AtomicU32,
}

impl ChallengeBudget {
    /// Returns a budget from which no challenge ACK has been taken.
    #[must_use]
    pub const fn new() -> Self {
        Self { second: AtomicU32::new(0), left: AtomicU32::new(0) }
    }

    /// Takes one challenge ACK from the budget of this second, and returns whether there was one
    /// left. The budget of a second is a random number between half of `limit` and one and a half
    /// times `limit` (RFC 5961 §7).
    pub(crate) fn take(&self, now: Instant, limit: u32, rng: &mut Rng) -> bool {
        if limit >= UNLIMITED {
            return true;
        }
        let second = u32::try_from(now.as_nanos() / 1_000_000_000).unwrap_or(u32::MAX - 1) + 1;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.left.store(limit.div_ceil(2) + rng.below(limit), Ordering::Relaxed);
        }
        let take = |left: u32| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budget: &ChallengeBudget, now: Instant, limit: u32, rng: &mut Rng) -> usize {
        (0..1000).filter(|_| budget.take(now, limit, rng)).count()
    }

    #[test]
    fn the_limit_changes_each_second() {
        let (budget, mut rng) = (ChallengeBudget::new(), Rng::new(1));
        let counts: [usize; 20] = core::array::from_fn(|second| {
            let now = Instant::from_secs(1000 + u64::try_from(second).unwrap());
            taken(&budget, now, 100, &mut rng)
        });
        assert!(
            counts.iter().all(|count| (50..150).contains(count)),
            "a limit is out of range: {counts:?}"
        );
        assert!(
            counts.windows(2).filter(|pair| pair[0] == pair[1]).count() < 5,
            "equal limits: {counts:?}"
        );
        assert_eq!(
            taken(&budget, Instant::from_secs(1019), 100, &mut rng),
            0,
            "a spent budget allowed another challenge ACK"
        );
    }

    #[test]
    fn a_limit_of_zero_allows_no_challenge_ack_and_the_default_allows_all() {
        let (budget, mut rng) = (ChallengeBudget::new(), Rng::new(1));
        assert_eq!(taken(&budget, Instant::from_secs(1), 0, &mut rng), 0);
        assert_eq!(taken(&budget, Instant::from_secs(2), UNLIMITED, &mut rng), 1000);
    }
}
