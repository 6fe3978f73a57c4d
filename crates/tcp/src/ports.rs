//! The order in which an active open tries local ports.
//!
//! RFC 6056 §3.3.4 (double-hash selection); Linux: __inet_hash_connect().
//!
//! One keyed hash of the destination says where in the range to begin, so that ports of one
//! destination tell nothing about another's. A second chooses a slot in a table of counters that
//! only destinations of the same slot advance, so that successive connections to one destination
//! walk the range in order: a port comes back as late as possible, after its TIME_WAIT.
//!
//! Not here: whether a port is free, which the caller finds out by claiming the four-tuple.

use alloc::boxed::Box;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use siphasher::sip::SipHasher24;

use crate::four_tuple::write_address;
use crate::secret::{SECRET_BYTES, keyed_pair};

/// Linux's `net.ipv4.ip_local_port_range`.
pub const PORT_RANGE_DEFAULT: RangeInclusive<u16> = 32768..=60999;

/// Counters of the perturbation table, 32 KiB. RFC 6056 asks for 10 or more; with a few, a host
/// that many destinations watch together could be recognised by the way their counters move.
const TABLE_LEN: usize = 8192;

/// Address, address, port.
const KEY_BYTES_MAX: usize = 34;

/// Chooses local ports. One per stack, shared by all threads.
pub struct PortSelector {
    offset: SipHasher24,
    slot: SipHasher24,
    /// How far the destinations of each slot have walked. Read and advanced by any connecting
    /// thread. Relaxed: two that start at the same port collide when they claim the four-tuple, and
    /// one goes on.
    table: Box<[AtomicU32]>,
}

impl PortSelector {
    /// A selector with a secret.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let [offset, slot] = keyed_pair(secret);
        Self { offset, slot, table: (0..TABLE_LEN).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Every port of `range`, once, in the order to try them for a connection from `local` to
    /// `remote`. An empty range gives none.
    #[must_use]
    pub fn candidates(
        &self,
        local: IpAddr,
        remote: SocketAddr,
        range: &RangeInclusive<u16>,
    ) -> Candidates<'_> {
        let mut key = [0; KEY_BYTES_MAX];
        let local_len = write_address(&mut key, local);
        let end = local_len + write_address(&mut key[local_len..], remote.ip());
        key[end..end + 2].copy_from_slice(&remote.port().to_be_bytes());
        let key = &key[..end + 2];
        let counter = &self.table[low_bits(self.slot.hash(key))];
        let count = u32::from(*range.end()) + 1;
        let count = count.saturating_sub(u32::from(*range.start()));
        // The sum is taken in 64 bits: it wraps nowhere, so that the walk has no seam.
        let start = (self.offset.hash(key) >> 32) + u64::from(counter.load(Ordering::Relaxed));
        Candidates { counter, first: *range.start(), count, start, tried: 0 }
    }
}

/// A slot of the table.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
const fn low_bits(hash: u64) -> usize {
    hash as usize % TABLE_LEN
}

impl fmt::Debug for PortSelector {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortSelector").finish_non_exhaustive()
    }
}

/// The ports of a range in the order to try them. Each one taken advances the shared counter, so
/// the next connection to the same destination begins behind it.
#[derive(Debug)]
pub struct Candidates<'a> {
    counter: &'a AtomicU32,
    first: u16,
    count: u32,
    start: u64,
    tried: u32,
}

impl Iterator for Candidates<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        if self.tried == self.count {
            return None;
        }
        let index = (self.start + u64::from(self.tried)) % u64::from(self.count);
        self.tried += 1;
        self.counter.fetch_add(1, Ordering::Relaxed);
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
    use std::vec::Vec;

    use super::{PORT_RANGE_DEFAULT, PortSelector};

    const LOCAL: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn selector() -> PortSelector {
        PortSelector::new(&core::array::from_fn(|index| u8::try_from(index).unwrap()))
    }

    fn remote(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn every_port_comes_once() {
        let selector = selector();
        let candidates = selector.candidates(LOCAL, remote("10.0.0.2:80"), &PORT_RANGE_DEFAULT);
        assert_eq!(candidates.len(), 28_232);
        let mut ports: Vec<u16> = candidates.collect();
        ports.sort_unstable();
        assert!(ports.iter().copied().eq(PORT_RANGE_DEFAULT));
    }

    #[test]
    fn next_connection_goes_on_where_the_last_ended() {
        let selector = selector();
        let range = 1000..=1009;
        let take = |count: usize| -> Vec<u16> {
            selector.candidates(LOCAL, remote("10.0.0.2:80"), &range).take(count).collect()
        };
        // One connection found its third candidate free; the next two take their first.
        let mut walk = take(3);
        walk.extend(take(1));
        walk.extend(take(1));
        let whole = take(10);
        for pair in walk.windows(2).chain(whole.windows(2)) {
            assert_eq!(pair[1], if pair[0] == 1009 { 1000 } else { pair[0] + 1 });
        }
    }

    #[test]
    fn destinations_start_apart() {
        let selector = selector();
        let mut starts: Vec<u16> = (0..200u8)
            .map(|host| {
                let remote = SocketAddr::from(([10, 0, 1, host], 80));
                selector.candidates(LOCAL, remote, &PORT_RANGE_DEFAULT).next().unwrap()
            })
            .collect();
        starts.sort_unstable();
        starts.dedup();
        assert!(starts.len() > 190);
        let port =
            |text| selector.candidates(LOCAL, remote(text), &PORT_RANGE_DEFAULT).next().unwrap();
        assert_ne!(port("10.0.9.2:80"), port("10.0.9.2:81"));
        assert_ne!(port("[fd00::1]:80"), port("[fd00::2]:80"));
    }

    #[test]
    fn whole_single_and_empty_ranges() {
        let selector = selector();
        let count = |range| selector.candidates(LOCAL, remote("10.0.0.2:80"), &range).count();
        assert_eq!(count(0..=u16::MAX), 65536);
        assert_eq!(count(7..=7), 1);
        #[expect(clippy::reversed_empty_ranges, reason = "what a wrong setting would give")]
        let empty = 8..=7;
        assert_eq!(count(empty), 0);
    }
}
