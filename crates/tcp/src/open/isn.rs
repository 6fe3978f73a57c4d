//! Initial sequence numbers and timestamp offsets.
//!
//! RFC 6528, RFC 7323 §5.4 and §7.1; Linux: net/core/secure_seq.c.
//!
//! ISN = M + F(connection, secret), where M advances every 4 µs. F is SipHash-2-4, a keyed hash
//! that an outsider cannot evaluate, so the numbers of one connection reveal nothing about
//! another's. M separates the sequence numbers of successive connections with the same four-tuple.
//! The timestamp offset is a second keyed hash with its own key. It hides the uptime and the number
//! of hosts behind an address. The offset is constant for a four-tuple, so that PAWS and the reuse
//! of TIME-WAIT work across successive connections.
//!
//! Port selection and SYN cookies use the same kind of secret: each has two keys of SipHash-2-4
//! (`keyed_pair`).
//!
//! Not here: SYN cookies ([`crate::open::syn_cookie`]), which need a secret of their own.

use core::fmt;

use pkt::Instant;
use siphasher::sip::SipHasher24;

use crate::wire::{four_tuple::FourTuple, seq::SeqNum};

/// Bytes of a secret. It must come from the operating system's random source, except in tests and
/// simulations.
pub const SECRET_BYTES: usize = 32;

/// Nanoseconds of one step of the ISN clock: the 4 µs of RFC 9293 §3.4.1. The sequence space wraps
/// in 4.77 hours.
const TICK_NS: u64 = 4_000;

/// Generates the initial sequence numbers and timestamp offsets of a stack, which has one
/// generator.
#[derive(Clone)]
pub struct IsnGenerator {
    sequence: SipHasher24,
    timestamp: SipHasher24,
}

impl IsnGenerator {
    /// Creates a generator keyed by `secret`.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let [sequence, timestamp] = keyed_pair(secret);
        Self { sequence, timestamp }
    }

    /// Returns the initial sequence number of a connection opened at `now`.
    #[must_use]
    pub fn isn(&self, tuple: &FourTuple, now: Instant) -> SeqNum {
        let clock = low_half(now.as_nanos() / TICK_NS);
        SeqNum(hash(&self.sequence, tuple)) + clock
    }

    /// Returns the connection's offset from the millisecond clock in its timestamps.
    #[must_use]
    pub fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        hash(&self.timestamp, tuple)
    }
}

fn hash(hasher: &SipHasher24, tuple: &FourTuple) -> u32 {
    let mut key = [0; FourTuple::KEY_BYTES_MAX];
    low_half(hasher.hash(tuple.write_key(&mut key)))
}

#[expect(clippy::cast_possible_truncation, reason = "only the low half is used")]
const fn low_half(number: u64) -> u32 {
    number as u32
}

/// Returns two independent SipHash-2-4 functions keyed by the halves of `secret`. The generators of
/// sequence numbers, ports and SYN cookies each need two.
pub(crate) fn keyed_pair(secret: &[u8; SECRET_BYTES]) -> [SipHasher24; 2] {
    let (mut first, mut second) = ([0; 16], [0; 16]);
    first.copy_from_slice(&secret[..16]);
    second.copy_from_slice(&secret[16..]);
    [first, second].map(|key| SipHasher24::new_with_key(&key))
}

impl fmt::Debug for IsnGenerator {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsnGenerator").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::format;

    use pkt::Instant;

    use super::{IsnGenerator, SECRET_BYTES};
    use crate::wire::four_tuple::FourTuple;

    fn tuple(local_port: u16) -> FourTuple {
        FourTuple::new(([10, 0, 0, 1], local_port).into(), "10.0.0.2:80".parse().unwrap())
    }

    #[test]
    fn the_isn_advances_by_one_every_four_microseconds() {
        let isn = IsnGenerator::new(&[1; SECRET_BYTES]);
        let start = Instant::from_secs(1_000);
        let first = isn.isn(&tuple(1), start);
        assert_eq!(isn.isn(&tuple(1), start + Duration::from_micros(4)) - first, 1);
        assert_eq!(isn.isn(&tuple(1), start + Duration::from_secs(1)) - first, 250_000);
    }

    #[test]
    fn isns_of_connections_and_secrets_are_unrelated() {
        let isn = IsnGenerator::new(&[1; SECRET_BYTES]);
        let other = IsnGenerator::new(&[2; SECRET_BYTES]);
        let now = Instant::ZERO;
        let mut numbers: std::vec::Vec<u32> =
            (0..1000).map(|port| isn.isn(&tuple(port), now).0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
        // Uniform over the sequence space: the expected largest gap of 1000 draws is about 0.7 %.
        let gap = numbers.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(gap < u32::MAX / 50, "the largest gap between two numbers is {gap}");
        assert_ne!(isn.isn(&tuple(1), now), other.isn(&tuple(1), now));
        assert_ne!(isn.isn(&tuple(1), now), isn.isn(&tuple(1).reversed(), now));
    }

    #[test]
    fn the_timestamp_offset_of_a_tuple_is_constant_and_has_its_own_key() {
        let isn = IsnGenerator::new(&core::array::from_fn(|index| u8::from(index >= 16)));
        let offset = isn.timestamp_offset(&tuple(1));
        assert_eq!(offset, isn.timestamp_offset(&tuple(1)));
        assert_ne!(offset, isn.timestamp_offset(&tuple(2)));
        assert_ne!(offset, isn.isn(&tuple(1), Instant::ZERO).0);
    }

    #[test]
    fn debug_hides_the_secret() {
        assert_eq!(format!("{:?}", IsnGenerator::new(&[7; SECRET_BYTES])), "IsnGenerator { .. }");
    }
}
