//! SYN cookies: the sequence number of the SYN-ACK encodes the request, so that the host keeps no
//! state.
//!
//! Above: [`Request::send_cookie`](crate::Request::send_cookie) and
//! [`Request::from_cookie`](crate::Request::from_cookie). RFC 4987 §3.6; Linux:
//! net/ipv4/syncookies.c.
//!
//! The number is the sum of four parts: a keyed hash of the four-tuple; the peer's initial sequence
//! number; the time slot, in the upper 8 bits; and, in the lower 24 bits, the index of the peer's
//! MSS in a table of four plus a second keyed hash, which covers the four-tuple, the peer's number
//! and the slot. The third segment of the handshake acknowledges the number. A cookie is valid in
//! the time slot of its creation and in the next one. Window scale, SACK and ECN are encoded in the
//! low bits of the SYN-ACK's timestamp, which the third segment echoes. Without timestamps these
//! options are not used.
//!
//! Not here: when cookies are sent and accepted (`stack::socket`).

use core::fmt;

use pkt::Instant;
use siphasher::sip::SipHasher24;

use crate::{
    open::isn::{SECRET_BYTES, keyed_pair},
    wire::{four_tuple::FourTuple, option::is_older, seq::SeqNum},
};

/// Seconds of a time slot. With [`SLOTS_VALID`] the third segment may arrive one to two minutes
/// later, which exceeds the longest interval between two SYN-ACK retransmissions (RFC 4987 §3.6
/// asks for a slowly increasing counter).
const SLOT_SECONDS: u64 = 64;

/// Number of valid slots: the slot of the cookie's creation and the next one.
const SLOTS_VALID: u32 = 2;

/// Seconds for which a cookie is valid at most.
pub const COOKIE_LIFETIME_SECONDS: u64 = SLOT_SECONDS * SLOTS_VALID as u64;

/// Number of bits below the time slot.
const LOW_BITS: u32 = 24;
const LOW_MASK: u32 = (1 << LOW_BITS) - 1;

/// Common MSS values, ascending: the default of RFC 9293 §3.7.1, PPPoE with tunnels, PPPoE,
/// Ethernet. Other values are rounded down, and values below the first up to it. The table is small
/// because each doubling of it doubles the chance of a blind guess.
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
/// The same for IPv6: MTUs of 1,280, 1,480, 1,500 and 9,000 bytes, less 60 bytes of headers.
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];

/// Generates and verifies SYN cookies. A stack has one instance.
#[derive(Clone)]
pub struct SynCookies {
    tuple: SipHasher24,
    slot: SipHasher24,
}

impl SynCookies {
    /// Creates the cookie functions keyed by `secret`.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let [tuple, slot] = keyed_pair(secret);
        Self { tuple, slot }
    }

    /// Returns the initial sequence number that answers a SYN with number `irs` and MSS option
    /// `mss` (RFC 4987 §3.6).
    #[must_use]
    pub fn isn(&self, tuple: &FourTuple, irs: SeqNum, mss: u16, now: Instant) -> SeqNum {
        let slot = slot_of(now);
        let table = sizes(tuple);
        let index = table.iter().rposition(|&size| size <= mss).unwrap_or(0);
        let index = u32::try_from(index).unwrap_or(0);
        let low = self.slot_hash(tuple, irs, slot).wrapping_add(index) & LOW_MASK;
        irs + self.tuple_hash(tuple).wrapping_add(slot << LOW_BITS).wrapping_add(low)
    }

    /// Returns the MSS that `isn` encodes, if it is a valid cookie for `tuple` and `irs`.
    #[must_use]
    pub fn mss(&self, tuple: &FourTuple, irs: SeqNum, isn: SeqNum, now: Instant) -> Option<u16> {
        let value = isn.0.wrapping_sub(irs.0).wrapping_sub(self.tuple_hash(tuple));
        let slot = slot_of(now);
        // The cookie holds the slot modulo 256; a slot in the future results in a large age.
        let age = slot.wrapping_sub(value >> LOW_BITS) & 0xff;
        if age >= SLOTS_VALID {
            return None;
        }
        let low = self.slot_hash(tuple, irs, slot.wrapping_sub(age));
        let index = value.wrapping_sub(low) & LOW_MASK;
        sizes(tuple).get(usize::try_from(index).ok()?).copied()
    }

    fn tuple_hash(&self, tuple: &FourTuple) -> u32 {
        let mut key = [0; FourTuple::KEY_BYTES_MAX];
        low_half(self.tuple.hash(tuple.write_key(&mut key)))
    }

    fn slot_hash(&self, tuple: &FourTuple, irs: SeqNum, slot: u32) -> u32 {
        let mut key = [0; FourTuple::KEY_BYTES_MAX];
        let len = tuple.write_key(&mut key).len();
        let mut bytes = [0; FourTuple::KEY_BYTES_MAX + 8];
        bytes[..len].copy_from_slice(&key[..len]);
        bytes[len..len + 4].copy_from_slice(&irs.0.to_be_bytes());
        bytes[len + 4..len + 8].copy_from_slice(&slot.to_be_bytes());
        low_half(self.slot.hash(&bytes[..len + 8]))
    }
}

impl fmt::Debug for SynCookies {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SynCookies").finish_non_exhaustive()
    }
}

/// Options of the peer's SYN that a cookie's timestamp encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CookieOptions {
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
}

/// Low bits of a timestamp that carry options. They cover 64 ms of the millisecond clock.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
/// Mask of the window scale. The value 15 is not a valid shift (RFC 7323 §2.3) and means no
/// scaling.
const SCALE_MASK: u32 = 0xf;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;

impl CookieOptions {
    /// Returns the latest timestamp not after `clock` that carries these options.
    pub(crate) fn encode(self, clock: u32) -> u32 {
        let mut bits = self.window_scale.map_or(SCALE_MASK, u32::from);
        bits |= if self.sack { SACK_BIT } else { 0 };
        bits |= if self.ecn { ECN_BIT } else { 0 };
        let value = (clock & !OPTION_MASK) | bits;
        if is_older(clock, value) { value.wrapping_sub(1 << OPTION_BITS) } else { value }
    }

    pub(crate) fn decode(clock: u32) -> Self {
        let scale = clock & SCALE_MASK;
        Self {
            window_scale: u8::try_from(scale).ok().filter(|&scale| u32::from(scale) != SCALE_MASK),
            sack: clock & SACK_BIT != 0,
            ecn: clock & ECN_BIT != 0,
        }
    }
}

const fn sizes(tuple: &FourTuple) -> &'static [u16; 4] {
    if tuple.is_ipv4() { &MSS_V4 } else { &MSS_V6 }
}

fn slot_of(now: Instant) -> u32 {
    (now.as_nanos() / (SLOT_SECONDS * 1_000_000_000)) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "only the low half is used")]
const fn low_half(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::base::rng::Rng;

    fn cookies() -> SynCookies {
        SynCookies::new(&[7; SECRET_BYTES])
    }

    fn tuple(port: u16) -> FourTuple {
        FourTuple::new("10.0.0.1:80".parse().unwrap(), ([10, 0, 0, 2], port).into())
    }

    #[test]
    fn a_cookie_encodes_the_mss_rounded_down_but_at_least_536() {
        let (cookies, now) = (cookies(), Instant::from_secs(1000));
        for (mss, read) in [(100, 536), (536, 536), (1299, 536), (1459, 1440), (9000, 1460)] {
            let isn = cookies.isn(&tuple(1), SeqNum(77), mss, now);
            assert_eq!(cookies.mss(&tuple(1), SeqNum(77), isn, now), Some(read));
        }
        let v6 = FourTuple::new("[::1]:80".parse().unwrap(), "[::2]:1".parse().unwrap());
        let isn = cookies.isn(&v6, SeqNum(77), 1440, now);
        assert_eq!(cookies.mss(&v6, SeqNum(77), isn, now), Some(1440));
    }

    #[test]
    fn a_cookie_is_valid_for_two_slots() {
        let (cookies, made) = (cookies(), Instant::from_secs(64 * 300 - 1));
        let isn = cookies.isn(&tuple(1), SeqNum(77), 1460, made);
        let read = |at| cookies.mss(&tuple(1), SeqNum(77), isn, at);
        assert_eq!(read(made + Duration::from_secs(64)), Some(1460));
        assert_eq!(read(made + Duration::from_secs(66)), None);
        // At a time in the previous slot, the cookie's slot lies in the future.
        assert_eq!(read(Instant::from_secs(64 * 298)), None);
    }

    #[test]
    fn a_cookie_is_valid_only_for_its_connection_and_secret() {
        let (cookies, now) = (cookies(), Instant::from_secs(1000));
        let isn = cookies.isn(&tuple(1), SeqNum(77), 1460, now);
        assert_eq!(cookies.mss(&tuple(2), SeqNum(77), isn, now), None);
        assert_eq!(cookies.mss(&tuple(1), SeqNum(78), isn, now), None);
        let other = SynCookies::new(&[8; SECRET_BYTES]);
        assert_eq!(other.mss(&tuple(1), SeqNum(77), isn, now), None);
    }

    #[test]
    fn guessed_cookies_are_rejected() {
        let (cookies, now) = (cookies(), Instant::from_secs(1000));
        let mut rng = Rng::new(1);
        let hits = (0..100_000)
            .filter(|_| cookies.mss(&tuple(1), SeqNum(77), SeqNum(rng.next_u32()), now).is_some())
            .count();
        // Two of 256 slots and four of 2^24 low values are valid: one guess in 2^29 is accepted.
        assert_eq!(hits, 0);
    }

    #[test]
    fn encoded_options_never_put_a_timestamp_ahead_of_the_clock() {
        let mut rng = Rng::new(2);
        for _ in 0..1000 {
            let clock = rng.next_u32();
            let options = CookieOptions {
                window_scale: u8::try_from(rng.below(16)).ok().filter(|&scale| scale < 15),
                sack: rng.below(2) == 1,
                ecn: rng.below(2) == 1,
            };
            let value = options.encode(clock);
            assert_eq!(CookieOptions::decode(value), options);
            assert!(clock.wrapping_sub(value) < 64, "at clock {clock} the timestamp is {value}");
        }
    }
}
