//! IPv4 identifications.
//!
//! RFC 6864, RFC 7739 §5; Linux: `ip_select_ident`, `ip_idents_reserve`. If the packets of one
//! sender advance the identifications of another, an outsider who sees the latter learns whether
//! the former were sent. Pings would then reveal whether a spoofed segment got a reply. Therefore
//! two senders that an outsider can distinguish do not share a counter:
//!
//! | packet | identification |
//! |---|---|
//! | TCP with DF and without payload (SYN, ACK, challenge ACK, reset), or a datagram with DF to an address other than the socket's peer | 0, which RFC 6864 §4.1 allows for a packet that is never fragmented |
//! | other TCP segments of a connection, and datagrams to the socket's peer | a counter of the socket: offload numbers the segments of a superframe (a packet of several segments), and receive offload merges consecutive numbers |
//! | TCP without a connection, or a datagram to an address other than the peer, without DF | random |
//! | ICMP | a counter of its bucket, which a keyed hash of protocol and both addresses selects, plus an offset from the same hash |
//!
//! A bucket advances by the number of packets plus a random part of the milliseconds since its last
//! packet, so that the recipient of one sender's packets cannot count those of another sender in
//! the same bucket.
//!
//! Not here: IPv6, which has an identification only in fragments.

use std::{
    fmt,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use pkt::Instant;
use siphasher::sip::SipHasher24;
use tcp::{FourTuple, Rng, open::isn::SECRET_BYTES};

/// Number of buckets of a host: 16 KiB, Linux's minimum (`ip_idents`). A fuzzer has fewer, because
/// it builds a host with few destinations for each input.
const BUCKETS: usize = if cfg!(fuzzing) { 64 } else { 2048 };

/// Maximum assumed time by which the clock of one context lags behind that of another, in
/// milliseconds.
const CONTEXT_SKEW_MS: u32 = 60_000;

/// Length of a key: version byte and address, twice, and the protocol.
const KEY_BYTES_MAX: usize = 2 * 17 + 1;

/// Identifications of the packets of one host.
pub(crate) struct IpIds {
    bucket: SipHasher24,
    connection: SipHasher24,
    /// Buckets. The high half holds the time of the last packet in milliseconds, the low half the
    /// counter. Relaxed, because a number orders no other data.
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

    /// Returns the first identification of a connection.
    pub(crate) fn of_connection(&self, tuple: &FourTuple) -> u16 {
        let mut key = [0; FourTuple::KEY_BYTES_MAX];
        low_bits(self.connection.hash(tuple.write_key(&mut key)))
    }

    /// Returns the identification of one packet without a connection.
    pub(crate) fn next(
        &self,
        src: IpAddr,
        dst: IpAddr,
        protocol: u8,
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
            // The last packet may come from a context whose clock is slightly ahead. Then no time
            // counts as elapsed.
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

#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
const fn low_bits(number: u64) -> u16 {
    number as u16
}

#[expect(clippy::cast_possible_truncation, reason = "only the low half is used")]
const fn low_half(number: u64) -> u32 {
    number as u32
}

const fn high_half(number: u64) -> u32 {
    low_half(number >> 32)
}

impl fmt::Debug for IpIds {
    /// Omits the keys and the counters.
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
        IpIds::new(&core::array::from_fn(|index| {
            u8::try_from(index).expect("the secret has 32 bytes")
        }))
    }

    /// Returns the identification of the next ICMP packet to `host`.
    fn next(ids: &IpIds, host: u8, now: Instant, rng: &mut Rng) -> u16 {
        let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 1, host]));
        ids.next(src, dst, 1, now, rng)
    }

    #[test]
    fn packets_of_one_address_pair_count_up_within_a_millisecond() {
        let (ids, mut rng) = (ids(), Rng::new(1));
        let first = next(&ids, 1, START, &mut rng);
        for step in 1..100 {
            assert_eq!(next(&ids, 1, START, &mut rng), first.wrapping_add(step));
        }
    }

    #[test]
    fn an_address_pair_cannot_count_the_packets_of_another() {
        let (ids, mut rng) = (ids(), Rng::new(1));
        let probe = |rng: &mut Rng| next(&ids, 1, START, rng);
        let before = probe(&mut rng);
        for _ in 0..50 {
            let _ = next(&ids, 2, START, &mut rng);
        }
        assert_eq!(probe(&mut rng), before.wrapping_add(1));
        // Neighboring addresses start at unrelated numbers.
        let starts: BTreeSet<u16> =
            (0..200).map(|host| next(&ids, host, START, &mut rng)).collect();
        assert!(starts.len() > 190, "{}", starts.len());
        assert!(starts.last().unwrap() - starts.first().unwrap() > 50_000);
    }

    #[test]
    fn elapsed_time_adds_a_random_step_of_at_most_its_milliseconds() {
        // The millisecond clock has 32 bits. The second start is 40 days after boot, close to its
        // wraparound.
        for start in [START, Instant::from_secs(40 * 86_400)] {
            steps_of_100_ms(start);
        }
    }

    fn steps_of_100_ms(start: Instant) {
        let (ids, mut rng) = (ids(), Rng::new(1));
        let (mut now, mut last) = (start, next(&ids, 1, start, &mut rng));
        let mut steps = BTreeSet::new();
        for _ in 0..100 {
            now += Duration::from_millis(100);
            let id = next(&ids, 1, now, &mut rng);
            let step = id.wrapping_sub(last);
            assert!((1..=100).contains(&step), "{step}");
            steps.insert(step);
            last = id;
        }
        assert!(steps.len() > 40, "{steps:?}");
        // A context with an earlier clock does not decrement the counter.
        let id = next(&ids, 1, start, &mut rng);
        assert_eq!(id, last.wrapping_add(1));
    }

    #[test]
    fn connections_start_at_unrelated_numbers_under_a_key() {
        let ids = ids();
        let tuple = |port| FourTuple::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
        let starts: BTreeSet<u16> = (0..200).map(|port| ids.of_connection(&tuple(port))).collect();
        assert!(starts.len() > 190, "{}", starts.len());
        let other = IpIds::new(&[7; SECRET_BYTES]);
        assert_ne!(ids.of_connection(&tuple(1)), other.of_connection(&tuple(1)));
    }
}
