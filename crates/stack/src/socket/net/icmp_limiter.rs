//! Limits of the ICMP messages that a host sends: in total (`icmp_msgs_per_sec`, `icmp_msgs_burst`)
//! and to each destination (`icmp_ratelimit`).
//!
//! Above: `receive::icmp_input`. Linux: `icmp_global_allow`, `icmpv4_xrlim_allow`.
//!
//! The limit per destination is kept in buckets, which a keyed hash of the address selects.
//! Destinations with the same bucket share one limit, so that the memory is bounded.

use std::{
    boxed::Box,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use pkt::Instant;
use tcp::Rng;

/// Number of messages that may be sent to one destination in a burst (`XRLIM_BURST_FACTOR`).
const HOST_BURST: u64 = 6;

/// Number of buckets of destinations.
const BUCKETS: usize = if cfg!(fuzzing) { 16 } else { 1024 };

/// Token buckets that many contexts share. Each is one word: the time up to which tokens are used.
/// Relaxed: a limit orders nothing.
#[derive(Debug)]
pub(crate) struct IcmpLimiter {
    used_until_ns: AtomicU64,
    hosts: Box<[AtomicU64]>,
}

/// Rate and burst of all messages together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IcmpLimits {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

impl IcmpLimiter {
    pub(crate) fn new() -> Self {
        let hosts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { used_until_ns: AtomicU64::new(0), hosts }
    }

    /// Returns whether a message may be sent, that is, whether a token is free at `now`. If so,
    /// takes zero, one or two tokens at random, one on average.
    pub(crate) fn allow(&self, now: Instant, limits: IcmpLimits, rng: &mut Rng) -> bool {
        let token_ns = 1_000_000_000 / u64::from(limits.per_second.max(1));
        let taken = u64::from(rng.below(3)) * token_ns;
        take(&self.used_until_ns, now, token_ns, u64::from(limits.burst), taken)
    }

    /// Takes a token of the destination with this keyed hash, and returns whether one was free. A
    /// token becomes free every `interval`; 0 means no limit.
    pub(crate) fn allow_to(&self, hash: u32, now: Instant, interval: Duration) -> bool {
        let token_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let bucket = &self.hosts[hash as usize % BUCKETS];
        token_ns == 0 || take(bucket, now, token_ns, HOST_BURST, token_ns)
    }
}

/// Takes tokens for `taken_ns` of time, if a token is free at `now`. Returns whether one was free.
fn take(used_until: &AtomicU64, now: Instant, token_ns: u64, burst: u64, taken_ns: u64) -> bool {
    let now = now.as_nanos();
    used_until
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let used = used.max(now.saturating_sub(burst.saturating_mul(token_ns)));
            (used.saturating_add(token_ns) <= now).then_some(used + taken_ns)
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use pkt::Instant;
    use tcp::Rng;

    use super::{HOST_BURST, IcmpLimiter, IcmpLimits};

    const LIMITS: IcmpLimits = IcmpLimits { per_second: 1000, burst: 50 };

    /// Returns the number of errors sent, if each of `probes` packets at `now` causes one.
    fn allowed(limiter: &IcmpLimiter, now: Instant, probes: u32, rng: &mut Rng) -> u32 {
        (0..probes).map(|_| u32::from(limiter.allow(now, LIMITS, rng))).sum()
    }

    /// The attack of CVE-2020-25705: the attacker sends 50 spoofed probes, some of which hit closed
    /// ports, then a probe from its own address. With an exact limit, the last probe would be
    /// answered if and only if some spoofed probe was not.
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

    #[test]
    fn each_destination_has_a_separate_limit() {
        let (limiter, second) = (IcmpLimiter::new(), Duration::from_secs(1));
        let mut now = Instant::from_secs(1_000);
        let count = |hash, now| {
            (0..100).map(|_| u64::from(limiter.allow_to(hash, now, second))).sum::<u64>()
        };
        assert_eq!(count(1, now), HOST_BURST);
        assert_eq!(
            count(2, now),
            HOST_BURST,
            "the second destination shares the limit of the first"
        );
        now += second;
        assert_eq!(count(1, now), 1);
        assert!(
            (0..100).all(|_| limiter.allow_to(1, now, Duration::ZERO)),
            "interval 0 limited the errors"
        );
    }
}
