//! The order in which an active open tries local ports.
//!
//! RFC 6056 §3.3.4 (double-hash selection); Linux: __inet_hash_connect().
//!
//! A keyed hash of the destination gives the position in the range to start from, so that the ports
//! of one destination reveal nothing about another's. A second hash selects a slot in a table of
//! counters. Destinations of the same slot advance its counter. While the first hash stays the
//! same, successive connections to one destination therefore use the range in order, and a port is
//! reused late.
//!
//! An observer of many destinations could detect which of them share a slot, and identify the host
//! by that pattern (CVE-2022-1012, CVE-2022-32296). Four measures prevent this: the table is large,
//! each slot starts at its own random number, a connection advances the counter by a random step,
//! and the first hash changes every ten seconds.
//!
//! Not here: whether a port is free. The caller finds out by claiming the four-tuple.

use alloc::boxed::Box;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use pkt::Instant;
use siphasher::sip::SipHasher24;

use crate::{
    open::isn::{SECRET_BYTES, keyed_pair},
    wire::four_tuple::write_address,
};

/// Linux's `net.ipv4.ip_local_port_range`.
pub const PORT_RANGE_DEFAULT: RangeInclusive<u16> = 32768..=60999;

/// Number of counters in the perturbation table (256 KiB). RFC 6056 asks for 10 or more: with only
/// a few counters, colluding destinations could identify a host by the movement of its counters.
/// Linux: `INET_TABLE_PERTURB_SIZE`.
///
/// A fuzzer creates a host for each run and opens few connections, so it uses a small table, which
/// takes less time to initialize.
const TABLE_LEN: usize = if cfg!(fuzzing) { 1 << 8 } else { 1 << 16 };

/// Lifetime of a destination's hash, in nanoseconds (Linux: `EPHEMERAL_PORT_SHUFFLE_PERIOD`).
const PERIOD_NS: u64 = 10_000_000_000;

/// Largest random step of a connection, in ports, as in Linux (the smallest is 1).
const STEP_MAX: u32 = 8;

/// Maximum length of a hashed key: two IPv6 addresses, the remote port, and the number of the
/// period.
const KEY_BYTES_MAX: usize = 34 + 8;

/// Selects local ports. A stack has one selector, which all threads share.
pub struct PortSelector {
    offset: SipHasher24,
    slot: SipHasher24,
    /// Number of ports by which the connections of each slot have advanced from the slot's start.
    /// Any connecting thread reads and advances the numbers. Relaxed ordering is enough: two
    /// threads that start at the same port collide when they claim the four-tuple, and one of them
    /// tries the next port.
    table: Box<[AtomicU32]>,
}

impl PortSelector {
    /// Creates a selector keyed by `secret`.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let [offset, slot] = keyed_pair(secret);
        Self { offset, slot, table: (0..TABLE_LEN).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Returns every port of `range` once, in the order to try them for a connection from `local`
    /// to `remote` at `now`. An empty range yields no port.
    #[must_use]
    pub fn candidates(
        &self,
        local: IpAddr,
        remote: SocketAddr,
        range: &RangeInclusive<u16>,
        now: Instant,
    ) -> Candidates<'_> {
        let mut key = [0; KEY_BYTES_MAX];
        let local_len = write_address(&mut key, local);
        let ip_end = local_len + write_address(&mut key[local_len..], remote.ip());
        let end = ip_end + 2;
        key[ip_end..end].copy_from_slice(&remote.port().to_be_bytes());
        let slot = low_bits(self.slot.hash(&key[..end]));
        let period = now.as_nanos() / PERIOD_NS;
        key[end..end + 8].copy_from_slice(&period.to_be_bytes());
        let offset = self.offset.hash(&key[..end + 8]);
        let counter = &self.table[slot];
        let walked = counter.load(Ordering::Relaxed);
        let count = u32::from(*range.end()) + 1;
        let count = count.saturating_sub(u32::from(*range.start()));
        let (begin, random) = self.of_slot(slot, walked, now);
        // The sum has 64 bits, because an overflow would break the order of the ports.
        let start = (offset >> 32) + u64::from(begin) + u64::from(walked);
        let step = random % STEP_MAX;
        Candidates { counter, first: *range.start(), count, start, tried: 0, step }
    }

    /// Returns the start of a slot, as if the table had been filled with random numbers, and the
    /// random number for this connection's step. The keys are 8 and 20 bytes long, so they collide
    /// with no destination's key.
    fn of_slot(&self, slot: usize, walked: u32, now: Instant) -> (u32, u32) {
        let mut key = [0; 20];
        key[..8].copy_from_slice(&(slot as u64).to_be_bytes());
        let begin = low_half(self.slot.hash(&key[..8]));
        key[8..12].copy_from_slice(&walked.to_be_bytes());
        key[12..].copy_from_slice(&now.as_nanos().to_be_bytes());
        (begin, low_half(self.slot.hash(&key)))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "only the low half is used")]
const fn low_half(hash: u64) -> u32 {
    hash as u32
}

/// Returns the slot of the table for `hash`.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
const fn low_bits(hash: u64) -> usize {
    hash as usize % TABLE_LEN
}

impl fmt::Debug for PortSelector {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortSelector").finish_non_exhaustive()
    }
}

/// The ports of a range in the order to try them. The iterator advances the shared counter by the
/// number of tried ports, or by a random step if that is larger, so that the next connection to the
/// same destination starts after them.
#[derive(Debug)]
pub struct Candidates<'a> {
    counter: &'a AtomicU32,
    first: u16,
    count: u32,
    start: u64,
    tried: u32,
    /// The random step less one, from 0 to [`STEP_MAX`] - 1.
    step: u32,
}

impl Iterator for Candidates<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        if self.tried == self.count {
            return None;
        }
        let index = (self.start + u64::from(self.tried)) % u64::from(self.count);
        self.tried += 1;
        // The first port advances the counter by the whole step, so the ports within the step add
        // nothing.
        let advance = match self.tried {
            1 => self.step + 1,
            tried => u32::from(tried > self.step + 1),
        };
        self.counter.fetch_add(advance, Ordering::Relaxed);
        // `index < count`, so the port is in the range.
        Some(self.first + u16::try_from(index).unwrap_or_default())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.count - self.tried).unwrap_or_default();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Candidates<'_> {}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, SocketAddr};
    use core::ops::RangeInclusive;
    use core::time::Duration;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use pkt::Instant;

    use super::{Candidates, PORT_RANGE_DEFAULT, PortSelector, STEP_MAX};

    const LOCAL: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn selector() -> PortSelector {
        PortSelector::new(&core::array::from_fn(|index| u8::try_from(index).unwrap()))
    }

    fn remote(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const NOW: Instant = Instant::from_secs(1_000);

    fn candidates<'a>(
        selector: &'a PortSelector,
        remote: SocketAddr,
        range: &RangeInclusive<u16>,
    ) -> Candidates<'a> {
        selector.candidates(LOCAL, remote, range, NOW)
    }

    /// Returns the port of the next connection to `remote` at `now`.
    fn port_at(selector: &PortSelector, remote: SocketAddr, now: Instant) -> u16 {
        selector.candidates(LOCAL, remote, &(0..=u16::MAX), now).next().unwrap()
    }

    #[test]
    fn candidates_contain_every_port_once() {
        let selector = selector();
        let candidates = candidates(&selector, remote("10.0.0.2:80"), &PORT_RANGE_DEFAULT);
        assert_eq!(candidates.len(), 28_232);
        let mut ports: Vec<u16> = candidates.collect();
        ports.sort_unstable();
        assert!(ports.iter().copied().eq(PORT_RANGE_DEFAULT));
    }

    #[test]
    fn the_next_connection_starts_after_the_last_port_tried() {
        let selector = selector();
        let range = 1000..=1099;
        let take = |count: usize| -> Vec<u16> {
            candidates(&selector, remote("10.0.0.2:80"), &range).take(count).collect()
        };
        for tried in [20, 1, 1, 3, 100] {
            let ports = take(tried);
            for pair in ports.windows(2) {
                assert_eq!(pair[1], if pair[0] == 1099 { 1000 } else { pair[0] + 1 });
            }
            // The next connection starts after the tried ports, or after a step if that is larger.
            let next = take(1)[0];
            let behind = (next + 100 - ports[0]) % 100;
            let tried = u16::try_from(tried).unwrap();
            let steps = tried % 100..=tried.max(u16::try_from(STEP_MAX).unwrap()) % 100;
            assert!(
                steps.contains(&behind),
                "after {tried} tried ports the next connection starts {behind} ports later"
            );
        }
    }

    /// The device tracking of CVE-2022-32296 measures how much a slot advances between two
    /// connections to the tracker.
    #[test]
    fn a_connection_advances_its_slot_by_a_random_step() {
        let selector = selector();
        let to = remote("10.0.0.2:80");
        let ports: Vec<u16> = (0..400).map(|_| port_at(&selector, to, NOW)).collect();
        let steps: Vec<u16> = ports.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        let kinds: BTreeSet<u16> = steps.iter().copied().collect();
        assert!(kinds.iter().all(|step| (1..=8).contains(step)), "the steps are {kinds:?}");
        assert_eq!(kinds.len(), 8, "the steps are {kinds:?}");
        let twice = |pair: &&[u16]| pair[0] == pair[1];
        assert!(
            steps.windows(2).filter(twice).count() < 100,
            "100 or more steps are equal to the previous one"
        );
    }

    /// CVE-2022-1012: with a key that never changes, the ports of a destination could be compared
    /// forever.
    #[test]
    fn the_start_for_a_destination_changes_every_ten_seconds() {
        let selector = selector();
        let to = remote("10.0.0.2:80");
        let mut starts = BTreeSet::new();
        for period in 0..100 {
            let now = NOW + Duration::from_secs(10) * period;
            let first = port_at(&selector, to, now);
            let second = port_at(&selector, to, now + Duration::from_secs(9));
            assert!(
                (1..=8).contains(&second.wrapping_sub(first)),
                "within a period a port did not follow the previous one by a step of 1 to 8"
            );
            starts.insert(first);
        }
        assert!(starts.len() > 95, "100 periods give {} different ports", starts.len());
        assert!(starts.last().unwrap() - starts.first().unwrap() > 50_000);
    }

    /// The ports of two destinations in one slot advance together, and the set of such pairs
    /// identifies a host. In this table, about 30 of 2,000 destinations fall into a slot that
    /// another destination already uses; the test allows 59.
    #[test]
    fn few_destinations_share_a_slot() {
        let selector = selector();
        let slots: BTreeSet<usize> = (0..2_000u16)
            .map(|port| {
                let to = SocketAddr::from(([10, 0, 0, 2], port));
                let candidates = candidates(&selector, to, &PORT_RANGE_DEFAULT);
                (&raw const *candidates.counter).addr()
            })
            .collect();
        assert!(slots.len() > 1_940, "2,000 destinations use {} slots", slots.len());
    }

    #[test]
    fn slots_start_at_random_numbers() {
        let selector = selector();
        let begins: BTreeSet<u32> =
            (0..1_000).map(|slot| selector.of_slot(slot, 0, NOW).0).collect();
        assert_eq!(begins.len(), 1_000);
        assert!(begins.last().unwrap() - begins.first().unwrap() > u32::MAX / 2);
    }

    #[test]
    fn destinations_start_at_different_ports() {
        let selector = selector();
        let mut starts: Vec<u16> = (0..200u8)
            .map(|host| {
                let remote = SocketAddr::from(([10, 0, 1, host], 80));
                candidates(&selector, remote, &PORT_RANGE_DEFAULT).next().unwrap()
            })
            .collect();
        starts.sort_unstable();
        starts.dedup();
        assert!(starts.len() > 190);
        let port = |text| candidates(&selector, remote(text), &PORT_RANGE_DEFAULT).next().unwrap();
        assert_ne!(port("10.0.9.2:80"), port("10.0.9.2:81"));
        assert_ne!(port("[fd00::1]:80"), port("[fd00::2]:80"));
    }

    #[test]
    fn whole_single_and_empty_ranges_yield_all_their_ports() {
        let selector = selector();
        let count = |range| candidates(&selector, remote("10.0.0.2:80"), &range).count();
        assert_eq!(count(0..=u16::MAX), 65536);
        assert_eq!(count(7..=7), 1);
        #[expect(clippy::reversed_empty_ranges, reason = "an invalid setting yields such a range")]
        let empty = 8..=7;
        assert_eq!(count(empty), 0);
    }
}
