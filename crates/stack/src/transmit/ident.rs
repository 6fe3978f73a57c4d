//! IPv4 identifications.
//!
//! RFC 6864, RFC 7739 §5; Linux: `ip_select_ident`, `ip_idents_reserve`. An identification that somebody else's packets advance
//! tells an outsider whether those packets were sent: pings would read out whether a spoofed segment was answered. So no
//! counter serves two senders that an outsider could tell apart by it:
//!
//! | packet | identification |
//! |---|---|
//! | with DF, no payload: SYN, ACK, challenge ACK, reset | 0, which RFC 6864 §4.1 allows for a packet that is never cut |
//! | of a connection, with payload or without DF | a counter of the connection: offload numbers the segments of a superframe, and receive offload merges those that count up |
//! | TCP without a connection, without DF | random |
//! | ICMP | a counter of its bucket, which protocol and both addresses choose under a key, plus an offset of their own |
//!
//! A bucket advances by the number of packets and by a random part of the milliseconds since its last packet, so that a
//! sender in the same bucket cannot count the packets of another one.
//!
//! Not here: IPv6, which has an identification in fragments only.

use std::{
    fmt,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use pkt::Instant;
use siphasher::sip::SipHasher24;
use tcp::{FourTuple, Rng, open::isn::SECRET_BYTES};

/// Buckets of a host, 16 KiB: Linux's minimum (`ip_idents`). A fuzzer builds a host for each run, which has few destinations.
const BUCKETS: usize = if cfg!(fuzzing) { 64 } else { 2048 };

/// By how much the time of one context may be behind that of another, in milliseconds.
const CONTEXT_SKEW_MS: u32 = 60_000;

/// Version byte and address, twice, and the protocol.
const KEY_BYTES_MAX: usize = 2 * 17 + 1;

/// Identifications of the packets of one host.
pub(crate) struct IpIds {
    bucket: SipHasher24,
    connection: SipHasher24,
    /// Milliseconds of the last packet above, the counter below. Relaxed: a number orders nothing.
    buckets: Box<[AtomicU64]>,
}

impl IpIds {
    pub(crate) fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let (mut bucket, mut connection) = ([0; 16], [0; 16]);
        bucket.copy_from_slice(&secret[..16]);
        connection.copy_from_slice(&secret[16..]);
        Self {
            bucket: SipHasher24::new_with_key(&bucket),
            connection: SipHasher24::new_with_key(&connection),
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The identification that a connection begins with.
    pub(crate) fn of_connection(&self, tuple: &FourTuple) -> u16 {
        let mut key = [0; FourTuple::KEY_BYTES_MAX];
        low_bits(self.connection.hash(tuple.write_key(&mut key)))
    }

    /// The identification of one packet that belongs to no connection.
    pub(crate) fn next(
        &self,
        (src, dst, protocol): (IpAddr, IpAddr, u8),
        now: Instant,
        rng: &mut Rng,
    ) -> u16 {
        let mut key = [0; KEY_BYTES_MAX];
        let src_len = write_address(&mut key, src);
        let end = src_len + write_address(&mut key[src_len..], dst);
        key[end] = protocol;
        let hash = self.bucket.hash(&key[..=end]);
        let ms = low_half(now.as_nanos() / 1_000_000);
        let random = rng.next_u32();
        let advance = |state: u64| {
            let stamp = high_half(state);
            // The time of another context may be a little earlier: then no time has passed.
            let is_earlier = stamp.wrapping_sub(ms) < CONTEXT_SKEW_MS;
            let elapsed = if is_earlier { 0 } else { ms.wrapping_sub(stamp) };
            let extra = high_half(u64::from(random) * u64::from(elapsed));
            let counter = low_half(state).wrapping_add(extra).wrapping_add(1);
            let stamp = stamp.wrapping_add(elapsed);
            Some(u64::from(stamp) << 32 | u64::from(counter))
        };
        let bucket = &self.buckets[usize::from(low_bits(hash)) % BUCKETS];
        let update = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
        let before = update.unwrap_or_else(|state| state);
        let after = advance(before).map_or(0, low_half);
        low_bits(u64::from(after)).wrapping_add(low_bits(hash >> 48))
    }
}

fn write_address(key: &mut [u8], ip: IpAddr) -> usize {
    let mut write = |version: u8, octets: &[u8]| {
        key[0] = version;
        key[1..=octets.len()].copy_from_slice(octets);
        1 + octets.len()
    };
    match ip {
        IpAddr::V4(ip) => write(4, &ip.octets()),
        IpAddr::V6(ip) => write(6, &ip.octets()),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
const fn low_bits(number: u64) -> u16 {
    number as u16
}

#[expect(clippy::cast_possible_truncation, reason = "only the low half is wanted")]
const fn low_half(number: u64) -> u32 {
    number as u32
}

const fn high_half(number: u64) -> u32 {
    low_half(number >> 32)
}

impl fmt::Debug for IpIds {
    /// Without the keys and the counters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpIds").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::IpAddr, time::Duration};

    use pkt::Instant;
    use tcp::{FourTuple, Rng, open::isn::SECRET_BYTES};

    use super::IpIds;

    const START: Instant = Instant::from_secs(1_000);

    fn ids() -> IpIds {
        IpIds::new(&core::array::from_fn(|index| u8::try_from(index).expect("32 bytes")))
    }

    fn flow(host: u8) -> (IpAddr, IpAddr, u8) {
        (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 1, host]), 1)
    }

    #[test]
    fn packets_of_one_pair_count_up_within_a_millisecond() {
        let (ids, mut rng) = (ids(), Rng::new(1));
        let first = ids.next(flow(1), START, &mut rng);
        for step in 1..100 {
            assert_eq!(ids.next(flow(1), START, &mut rng), first.wrapping_add(step));
        }
    }

    #[test]
    fn another_pair_learns_nothing_from_its_own_numbers() {
        let (ids, mut rng) = (ids(), Rng::new(1));
        let probe = |rng: &mut Rng| ids.next(flow(1), START, rng);
        let before = probe(&mut rng);
        for _ in 0..50 {
            let _ = ids.next(flow(2), START, &mut rng);
        }
        assert_eq!(probe(&mut rng), before.wrapping_add(1));
        // Neighboring addresses begin anywhere.
        let starts: BTreeSet<u16> =
            (0..200).map(|host| ids.next(flow(host), START, &mut rng)).collect();
        assert!(starts.len() > 190, "{}", starts.len());
        assert!(starts.last().unwrap() - starts.first().unwrap() > 50_000);
    }

    #[test]
    fn time_adds_a_random_step_and_no_more_than_itself() {
        // The clock in milliseconds has 32 bits: 1,000 s and 40 days after boot.
        for start in [START, Instant::from_secs(40 * 86_400)] {
            steps_of_100_ms(start);
        }
    }

    fn steps_of_100_ms(start: Instant) {
        let (ids, mut rng) = (ids(), Rng::new(1));
        let (mut now, mut last) = (start, ids.next(flow(1), start, &mut rng));
        let mut steps = BTreeSet::new();
        for _ in 0..100 {
            now += Duration::from_millis(100);
            let id = ids.next(flow(1), now, &mut rng);
            let step = id.wrapping_sub(last);
            assert!((1..=100).contains(&step), "{step}");
            steps.insert(step);
            last = id;
        }
        assert!(steps.len() > 40, "{steps:?}");
        // A context whose clock is behind takes nothing back.
        let id = ids.next(flow(1), start, &mut rng);
        assert_eq!(id, last.wrapping_add(1));
    }

    #[test]
    fn connections_begin_anywhere_under_a_key_of_their_own() {
        let ids = ids();
        let tuple = |port| FourTuple::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
        let starts: BTreeSet<u16> = (0..200).map(|port| ids.of_connection(&tuple(port))).collect();
        assert!(starts.len() > 190, "{}", starts.len());
        let other = IpIds::new(&[7; SECRET_BYTES]);
        assert_ne!(ids.of_connection(&tuple(1)), other.of_connection(&tuple(1)));
    }
}
