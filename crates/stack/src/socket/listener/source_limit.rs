//! Counts of the connections of each source address to one listener, and their limit
//! (`max_per_source`).
//!
//! A permit (`SourcePermit`) stands for one counted connection. A permit is claimed when a SYN
//! becomes a request (half-open connection) or an early connection (Fast Open), and when a SYN
//! cookie returns. The request passes its permit to the connection, which returns the permit when
//! it leaves the table of connections: a TIME-WAIT socket has none. Check and count are one step
//! under one lock, so the limit holds on any number of cores. Linux's TCP has no such setting; the
//! counterpart is `connlimit` of iptables with a dropping rule.
//!
//! Without a limit no connection is counted, and a SYN only reads the setting. An address has an
//! entry only while its count is above 0, so there are never more entries than permits. The entries
//! are in a tree, so no choice of addresses makes lookups slow.
//!
//! IPv4 addresses are counted one by one, IPv6 addresses by their /64: a link has a whole /64
//! (RFC 4291 §2.5.4), so that one host may have any number of addresses in it.
//!
//! The interception of flows counts the pending requests of each client in the same way; their
//! connections have no permit (`flows::interceptor`).
//!
//! Not here: treatment of a refused segment (`input`).

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// The limit of one listener with its counts. The permits of connections keep this object alive
/// after the listener is dropped.
#[derive(Debug)]
pub(in crate::socket) struct SourceLimit {
    /// Maximum permits of one address; 0 is no limit. Written by `set_option` of the listener, read
    /// by SYNs and returned cookies. Relaxed: the number orders nothing; a concurrent SYN may see
    /// the old number.
    max: AtomicU32,
    /// Permits by address, each above 0. No other lock is taken under this lock.
    counts: Mutex<BTreeMap<IpAddr, u32>>,
}

/// Error: the source has reached its maximum of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::socket) struct Reached;

/// Permit of one connection among those of its source. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct SourcePermit {
    limit: Arc<SourceLimit>,
    source: IpAddr,
}

impl SourceLimit {
    pub(in crate::socket) fn new(max: u32) -> Arc<Self> {
        Arc::new(Self { max: AtomicU32::new(max), counts: Mutex::default() })
    }

    /// Changes the limit. Claimed permits stay claimed, even if there are more than `max`.
    pub(super) fn set_max(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Returns the limit, if there is one.
    fn max(&self) -> Option<u32> {
        Some(self.max.load(Ordering::Relaxed)).filter(|max| *max != 0)
    }

    /// Returns whether `source` would be refused now.
    pub(super) fn is_reached(&self, source: IpAddr) -> bool {
        self.max().is_some_and(|max| self.count(source) >= max)
    }

    /// Claims a permit for one more connection of `source`; `None` without a limit.
    pub(in crate::socket) fn claim(
        self: &Arc<Self>,
        source: IpAddr,
    ) -> Result<Option<Box<SourcePermit>>, Reached> {
        let Some(max) = self.max() else { return Ok(None) };
        let source = network_of(source);
        {
            let mut counts = self.lock();
            let count = counts.get(&source).copied().unwrap_or(0);
            if count >= max {
                return Err(Reached);
            }
            counts.insert(source, count + 1);
        }
        Ok(Some(Box::new(SourcePermit { limit: Arc::clone(self), source })))
    }

    /// Returns the number of permits of `source`.
    pub(super) fn count(&self, source: IpAddr) -> u32 {
        self.lock().get(&network_of(source)).copied().unwrap_or(0)
    }

    /// Returns the number of addresses that have a permit.
    pub(super) fn sources(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address under which `source` is counted: an IPv4 address itself, or the first
/// address of an IPv6 /64.
fn network_of(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (!0 << 64))),
    }
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let mut counts = self.limit.lock();
        match counts.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn each_source_has_a_separate_limit_and_an_entry_only_while_it_has_permits() {
        let limit = SourceLimit::new(2);
        let first = limit.claim(ONE).unwrap();
        let second = limit.claim(ONE).unwrap();
        assert_eq!(limit.claim(ONE).unwrap_err(), Reached);
        assert!(limit.is_reached(ONE) && !limit.is_reached(OTHER));
        let other = limit.claim(OTHER).unwrap();
        assert_eq!((limit.count(ONE), limit.sources()), (2, 2));
        drop(first);
        assert!(!limit.is_reached(ONE));
        let third = limit.claim(ONE).unwrap();
        drop((second, third, other));
        assert_eq!((limit.count(ONE), limit.sources()), (0, 0));
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_one_limit() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let limit = SourceLimit::new(1);
        let permit = limit.claim(ip("2001:db8::1")).unwrap();
        assert!(limit.is_reached(ip("2001:db8::2:3")) && !limit.is_reached(ip("2001:db8:0:1::1")));
        drop(permit);
        assert_eq!(limit.sources(), 0);
    }

    #[test]
    fn without_a_limit_no_connection_is_counted() {
        let limit = SourceLimit::new(0);
        assert!((0..100).all(|_| matches!(limit.claim(ONE), Ok(None))));
        assert_eq!(limit.sources(), 0);
    }

    #[test]
    fn a_changed_limit_applies_to_later_claims() {
        let limit = SourceLimit::new(3);
        let held: Vec<_> = (0..3).map(|_| limit.claim(ONE).unwrap()).collect();
        limit.set_max(1);
        assert!(limit.is_reached(ONE));
        limit.set_max(0);
        assert!(limit.claim(ONE).unwrap().is_none(), "a permit was counted without a limit");
        limit.set_max(4);
        let fourth = limit.claim(ONE).unwrap();
        assert!(limit.is_reached(ONE));
        drop((held, fourth));
        assert_eq!(limit.sources(), 0);
    }

    /// Four threads claim and return permits of one address as fast as they can.
    #[test]
    fn the_limit_is_never_exceeded_under_concurrency() {
        const MAX: u32 = 3;
        let limit = SourceLimit::new(MAX);
        let granted: usize = thread::scope(|scope| {
            let claimers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut granted = 0;
                        for _ in 0..2_000 {
                            let permits = [limit.claim(ONE), limit.claim(ONE)];
                            assert!(limit.count(ONE) <= MAX);
                            granted += permits.iter().filter(|permit| permit.is_ok()).count();
                        }
                        granted
                    })
                })
                .collect();
            claimers.into_iter().map(|claimer| claimer.join().unwrap()).sum()
        });
        assert!(granted > 0);
        assert_eq!(limit.sources(), 0, "a permit was not returned");
    }
}
