//! Limit of the ICMP errors that a host sends (`icmp_msgs_per_sec`, `icmp_msgs_burst`).
//!
//! Above: `receive::icmp_input`. Linux: `icmp_global_allow`.

use std::sync::atomic::{AtomicU64, Ordering};

use pkt::Instant;
use tcp::Rng;

/// Errors sent per second: `net.ipv4.icmp_msgs_per_sec` of Linux.
const ERRORS_PER_SECOND: u64 = 1000;

/// Errors sent in a burst: `net.ipv4.icmp_msgs_burst` of Linux.
const ERRORS_BURST: u64 = 50;

/// Token bucket that many contexts share: one word, the time up to which tokens are used.
#[derive(Debug)]
pub(crate) struct IcmpLimiter {
    used_until_ns: AtomicU64,
}

impl IcmpLimiter {
    pub(crate) const fn new() -> Self {
        Self { used_until_ns: AtomicU64::new(0) }
    }

    /// Takes zero, one or two tokens, one on average, if there is a token at `now`.
    pub(crate) fn allow(&self, now: Instant, rng: &mut Rng) -> bool {
        const TOKEN_NS: u64 = 1_000_000_000 / ERRORS_PER_SECOND;
        let now = now.as_nanos();
        let taken = u64::from(rng.below(3)) * TOKEN_NS;
        self.used_until_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                let used = used.max(now.saturating_sub(ERRORS_BURST * TOKEN_NS));
                (used + TOKEN_NS <= now).then_some(used + taken)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use pkt::Instant;
    use tcp::Rng;

    use super::IcmpLimiter;

    /// Returns the number of errors sent if `probes` request one each at `now`.
    fn allowed(limiter: &IcmpLimiter, now: Instant, probes: u32, rng: &mut Rng) -> u32 {
        (0..probes).map(|_| u32::from(limiter.allow(now, rng))).sum()
    }

    /// The attack of CVE-2020-25705: the attacker sends 50 spoofed probes, some of which hit closed
    /// ports, then a probe from its own address. With an exact limit, the last probe is answered if
    /// and only if some spoofed probe was not.
    #[test]
    fn a_burst_does_not_reveal_how_many_errors_other_peers_caused() {
        let (limiter, mut rng) = (IcmpLimiter::new(), Rng::new(1));
        let mut now = Instant::from_secs(1_000);
        let mut bursts = BTreeSet::new();
        let (mut answered_after_50, rounds) = (0, 200);
        for _ in 0..rounds {
            now += Duration::from_secs(1);
            let spoofed = allowed(&limiter, now, 50, &mut rng);
            let own = allowed(&limiter, now, 1, &mut rng);
            answered_after_50 += u32::from(spoofed == 50 && own == 1);
            bursts.insert(spoofed + own + allowed(&limiter, now, 200, &mut rng));
        }
        assert!(answered_after_50 > rounds / 10, "{answered_after_50} of {rounds}");
        assert!(bursts.len() > 10, "{bursts:?}");
    }

    #[test]
    fn the_limit_holds_on_average() {
        let (limiter, mut rng) = (IcmpLimiter::new(), Rng::new(1));
        let mut now = Instant::from_secs(1_000);
        let mut sum = 0;
        for _ in 0..10_000 {
            now += Duration::from_millis(1);
            sum += allowed(&limiter, now, 10, &mut rng);
        }
        assert!((9_500..10_600).contains(&sum), "{sum} errors in ten seconds");
    }
}
