//! Exceptions of single destinations, learned from ICMP: path MTUs, which override the MTU of the
//! route, and redirects, which override its next hop.
//!
//! Above: `Router::hop` applies the exceptions to the routes that it looks up; connections and
//! `receive::icmp_input` (for datagrams) pass reports that they have validated; `Router::redirect`
//! passes redirects. RFC 1191 §6.3, RFC 8201 §4, RFC 1122 §3.2.2.2, RFC 4861 §8.3; Linux: `struct
//! fib_nh_exception`, `update_or_create_fnhe`.
//!
//! A destination for which a smaller path MTU is reported gets an exception for `route.mtu_expires`
//! (600 s); afterwards the MTU of the route is tried again. A redirect lasts [`REDIRECT_LIFETIME`].
//! A keyed hash selects the bucket. A bucket holds at most five exceptions, and the one that
//! expires first is replaced. So a flood of reports costs memory for at most 1,280 destinations.
//! Each report of a path MTU needs a connection that validates it, or a datagram socket that could
//! have sent the quoted datagram.
//!
//! A socket does not read the exceptions for each packet. It caches the generation of the bucket,
//! which every change of the bucket increments, and compares it with the current one by one load of
//! a rarely written cache line. After a change, all sockets whose destinations are in the bucket
//! look their routes up again.
//!
//! Not here: the validation of reports.

use std::{
    boxed::Box,
    hash::Hasher,
    net::IpAddr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
    vec::Vec,
};

use pkt::Instant;
use siphasher::sip::SipHasher13;
use sync::{
    RcuCell,
    epoch::{Domain, Section},
};

use crate::base::secrets::HashKey;

/// Number of buckets; a power of two. Linux: FNHE_HASH_SIZE, 2,048 for each next hop.
///
/// Each bucket is an allocation. A fuzzer builds a host for each run, so its hosts have few
/// buckets.
const BUCKETS: usize = if cfg!(fuzzing) { 4 } else { 256 };

/// Maximum entries per bucket. Linux: FNHE_RECLAIM_DEPTH.
const DEPTH: usize = 5;

/// Time after which a redirect expires, so that the router of the route is asked again. Linux:
/// `route.gc_timeout`.
const REDIRECT_LIFETIME: Duration = Duration::from_secs(300);

/// `mtu` of an exception without a path MTU.
const NO_PATH_MTU: u32 = u32::MAX;

/// Better next hop of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Redirect {
    /// Next hop of the route, which the redirect replaces. The redirect has no effect on a route
    /// with another next hop.
    from: IpAddr,
    to: IpAddr,
    expires: Instant,
}

impl Redirect {
    /// Returns the next hop to use instead of `next_hop`, the next hop of the route.
    fn apply(self, next_hop: IpAddr) -> IpAddr {
        if self.from == next_hop { self.to } else { next_hop }
    }
}

/// Path MTU of one destination, its better next hop, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    remote: IpAddr,
    /// Largest IP packet in bytes; `u32::MAX` if no path MTU was reported.
    pub(crate) mtu: u32,
    /// True if the reported MTU was below `route.min_pmtu`. Packets are then sent without DF, so
    /// that a router can fragment them (Linux: `fnhe_mtu_locked`).
    pub(crate) locked: bool,
    /// Better next hop.
    redirect: Option<Redirect>,
    /// Time at which the path MTU expires; in the result of a lookup, the time at which the result
    /// changes.
    pub(crate) expires: Instant,
}

impl Exception {
    /// Returns the next hop to use instead of `next_hop`, the next hop of the route.
    pub(crate) fn next_hop(&self, next_hop: IpAddr) -> IpAddr {
        self.redirect.map_or(next_hop, |redirect| redirect.apply(next_hop))
    }

    /// Returns the parts that have not expired at `now`, or `None` if all have.
    fn at(self, now: Instant) -> Option<Self> {
        let redirect = self.redirect.filter(|redirect| now < redirect.expires);
        let until = redirect.map_or(Instant::FAR_FUTURE, |redirect| redirect.expires);
        if now < self.expires {
            return Some(Self { redirect, expires: self.expires.min(until), ..self });
        }
        let only = Self { mtu: NO_PATH_MTU, locked: false, redirect, expires: until, ..self };
        redirect.map(|_| only)
    }
}

/// Limits of a reported MTU, by their Linux names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Smallest path MTU: `net.ipv4.route.min_pmtu`, or 1,280 for IPv6.
    pub(crate) min_pmtu: u32,
    /// Lifetime: `net.ipv4.route.mtu_expires` or `net.ipv6.route.mtu_expires`.
    pub(crate) mtu_expires: Duration,
}

#[derive(Debug)]
struct Bucket {
    /// Counter incremented after each change of `entries`, with Release. A lookup loads it with
    /// Acquire, so a lookup that reads the new number also reads the new entries.
    generation: AtomicU32,
    entries: RcuCell<Vec<Exception>>,
}

/// Exceptions of a host.
#[derive(Debug)]
pub(crate) struct Exceptions {
    buckets: Box<[Bucket]>,
    /// Key of the hash, so that no remote host can aim many destinations at one bucket.
    secret: HashKey,
}

/// Bucket that a lookup has read, and the generation of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    bucket: u32,
    generation: u32,
}

impl Exceptions {
    pub(crate) fn new(rcu: &Domain, secret: HashKey) -> Self {
        let bucket =
            || Bucket { generation: AtomicU32::new(0), entries: RcuCell::new(rcu, Vec::new()) };
        Self { buckets: (0..BUCKETS).map(|_| bucket()).collect(), secret }
    }

    /// Returns the exception of `remote` at the time `now`, and a stamp with which
    /// [`is_current`](Self::is_current) decides whether the result is still valid.
    pub(crate) fn lookup(
        &self,
        remote: IpAddr,
        now: Instant,
        rcu: &Section<'_>,
    ) -> (Option<Exception>, Stamp) {
        let index = self.index(remote);
        let bucket = &self.buckets[index as usize];
        // The generation is loaded before the entries. If the entries change in between, the stamp
        // is older than the entries and counts as stale. In the other order, an outdated result
        // could count as current.
        let generation = bucket.generation.load(Ordering::Acquire);
        let entries = bucket.entries.load(rcu);
        let found = entries.iter().find(|entry| entry.remote == remote);
        (found.and_then(|found| found.at(now)), Stamp { bucket: index, generation })
    }

    /// Returns whether the bucket is unchanged since the lookup that returned `stamp`.
    #[inline]
    pub(crate) fn is_current(&self, stamp: Stamp) -> bool {
        self.buckets[stamp.bucket as usize].generation.load(Ordering::Acquire) == stamp.generation
    }

    /// Records a report that the path to `remote`, whose MTU was `present` so far, carries only
    /// `mtu` bytes. Returns whether the exception changed.
    ///
    /// A report never raises an MTU; only expiry does (RFC 1191 §6.3).
    pub(crate) fn learn(
        &self,
        remote: IpAddr,
        mtu: u32,
        present: u32,
        limits: Limits,
        now: Instant,
    ) -> bool {
        if mtu >= present {
            return false;
        }
        let locked = mtu < limits.min_pmtu;
        let mtu = if locked { limits.min_pmtu.min(present) } else { mtu };
        let expires = now + limits.mtu_expires;
        self.change(remote, now, |known| Exception { mtu, locked, expires, ..known });
        true
    }

    /// Records that packets to `remote` go to the next hop `to` instead of `from`, the next hop of
    /// the route.
    pub(crate) fn redirect(&self, remote: IpAddr, from: IpAddr, to: IpAddr, now: Instant) {
        let redirect = Some(Redirect { from, to, expires: now + REDIRECT_LIFETIME });
        self.change(remote, now, |known| Exception { redirect, ..known });
    }

    /// Forgets a redirect of `remote`, whose packets could not be sent to the new next hop
    /// (RFC 4861 §7.3.3).
    pub(crate) fn forget_redirect(&self, remote: IpAddr, now: Instant, rcu: &Section<'_>) {
        let (found, _) = self.lookup(remote, now, rcu);
        if found.is_some_and(|found| found.redirect.is_some()) {
            self.change(remote, now, |known| Exception { redirect: None, ..known });
        }
    }

    /// Changes the exception of `remote`, and creates it if there is none.
    fn change(&self, remote: IpAddr, now: Instant, apply: impl Fn(Exception) -> Exception) {
        let none = Exception {
            remote,
            mtu: NO_PATH_MTU,
            locked: false,
            redirect: None,
            expires: Instant::ZERO,
        };
        let bucket = &self.buckets[self.index(remote) as usize];
        bucket.entries.update(|entries| {
            let known = entries.iter().find(|entry| entry.remote == remote).copied();
            let others = entries.iter().filter(|entry| entry.remote != remote);
            let mut next: Vec<_> =
                others.filter(|entry| entry.at(now).is_some()).copied().collect();
            let until = |entry: &Exception| {
                entry.redirect.map_or(entry.expires, |redirect| entry.expires.max(redirect.expires))
            };
            if next.len() >= DEPTH
                && let Some(oldest) = (0..next.len()).min_by_key(|&index| until(&next[index]))
            {
                next.remove(oldest);
            }
            next.push(apply(known.unwrap_or(none)));
            next
        });
        bucket.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns a keyed hash of both addresses of a packet.
    pub(crate) fn address_hash(&self, remote: IpAddr, source: Option<IpAddr>) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.secret.0);
        write(&mut hasher, remote);
        if let Some(source) = source {
            write(&mut hasher, source);
        }
        // Any 32 bits of the hash will do.
        (hasher.finish() >> 32) as u32
    }

    fn index(&self, remote: IpAddr) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.secret.0);
        write(&mut hasher, remote);
        #[expect(clippy::cast_possible_truncation, reason = "the low bits choose the bucket")]
        let index = hasher.finish() as u32 & (BUCKETS as u32 - 1);
        index
    }
}

fn write(hasher: &mut SipHasher13, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
        IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
    }
}

/// Plateaus of RFC 1191 §7.1 in ascending order: MTUs of common links.
const PLATEAUS: [u32; 11] = [68, 296, 508, 1006, 1492, 2002, 4352, 8166, 17_914, 32_000, 65_535];

/// Returns the next smaller plateau, for a report without an MTU. RFC 1191 §5: the link of the
/// router that sent it carries less than the quoted packet.
pub(crate) fn plateau_below(packet_bytes: u32) -> u32 {
    let smaller = PLATEAUS.iter().rev().find(|&&plateau| plateau < packet_bytes);
    smaller.copied().unwrap_or(PLATEAUS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { min_pmtu: 552, mtu_expires: Duration::from_secs(600) };

    fn host(number: u32) -> IpAddr {
        IpAddr::V4((0xc000_0200 + number).into())
    }

    fn at(secs: u64) -> Instant {
        Instant::from_secs(secs)
    }

    fn table() -> (Domain, Exceptions) {
        let domain = Domain::new();
        let exceptions = Exceptions::new(&domain, HashKey([1; 16]));
        (domain, exceptions)
    }

    fn mtu(domain: &Domain, exceptions: &Exceptions, remote: IpAddr, now: Instant) -> Option<u32> {
        let reader = domain.reader();
        let section = reader.pin();
        exceptions.lookup(remote, now, &section).0.map(|exception| exception.mtu)
    }

    #[test]
    fn an_exception_applies_until_it_expires() {
        let (domain, exceptions) = table();
        assert!(exceptions.learn(host(1), 1400, 1500, LIMITS, at(100)));
        assert_eq!(mtu(&domain, &exceptions, host(1), at(699)), Some(1400));
        assert_eq!(mtu(&domain, &exceptions, host(2), at(100)), None);
        assert_eq!(mtu(&domain, &exceptions, host(1), at(700)), None);
    }

    #[test]
    fn a_report_never_raises_the_mtu() {
        let (domain, exceptions) = table();
        assert!(exceptions.learn(host(1), 1000, 1500, LIMITS, at(1)));
        assert!(!exceptions.learn(host(1), 1400, 1000, LIMITS, at(2)));
        assert!(!exceptions.learn(host(1), 1000, 1000, LIMITS, at(2)));
        assert_eq!(mtu(&domain, &exceptions, host(1), at(3)), Some(1000));
    }

    #[test]
    fn a_report_below_the_minimum_sets_and_locks_the_minimum_mtu() {
        let (domain, exceptions) = table();
        assert!(exceptions.learn(host(1), 68, 1500, LIMITS, at(1)));
        let reader = domain.reader();
        let section = reader.pin();
        let (found, _) = exceptions.lookup(host(1), at(2), &section);
        let found = found.expect("the entry was just learned");
        assert_eq!((found.mtu, found.locked), (552, true));
    }

    #[test]
    fn a_redirect_and_a_path_mtu_of_one_destination_expire_separately() {
        let (domain, exceptions) = table();
        let (router, better) = (host(250), host(251));
        let reader = domain.reader();
        let section = reader.pin();
        let at_time = |secs| exceptions.lookup(host(1), at(secs), &section).0;
        exceptions.redirect(host(1), router, better, at(100));
        let found = at_time(100).expect("the destination has an exception");
        assert_eq!((found.mtu, found.expires), (NO_PATH_MTU, at(400)));
        let next_hop = |found: Exception| found.redirect.map(|redirect| redirect.apply(router));
        assert_eq!(next_hop(found), Some(better));
        assert_eq!(found.redirect.map(|redirect| redirect.apply(host(9))), Some(host(9)));
        assert!(exceptions.learn(host(1), 1400, 1500, LIMITS, at(200)));
        let found = at_time(200).expect("the destination has an exception");
        assert_eq!((found.mtu, next_hop(found), found.expires), (1400, Some(better), at(400)));
        let found = at_time(400).expect("the destination has an exception");
        assert_eq!((found.mtu, next_hop(found), found.expires), (1400, None, at(800)));
        exceptions.redirect(host(1), router, better, at(700));
        let found = at_time(800).expect("the destination has an exception");
        assert_eq!(
            (found.mtu, next_hop(found), found.expires),
            (NO_PATH_MTU, Some(better), at(1000))
        );
        assert_eq!(at_time(1000), None);
    }

    #[test]
    fn a_change_invalidates_the_stamps_of_its_bucket() {
        let (domain, exceptions) = table();
        let reader = domain.reader();
        let section = reader.pin();
        let (_, stamp) = exceptions.lookup(host(1), at(1), &section);
        assert!(exceptions.is_current(stamp));
        exceptions.learn(host(1), 1400, 1500, LIMITS, at(1));
        assert!(!exceptions.is_current(stamp));
    }

    #[test]
    fn a_full_bucket_replaces_the_exception_that_expires_first() {
        let (domain, exceptions) = table();
        let index = exceptions.index(host(0));
        let remotes: Vec<_> =
            (0..).map(host).filter(|&ip| exceptions.index(ip) == index).take(6).collect();
        for (now, &remote) in (1..).zip(&remotes) {
            assert!(exceptions.learn(remote, 1400, 1500, LIMITS, at(now)));
        }
        let known =
            remotes.iter().filter(|&&ip| mtu(&domain, &exceptions, ip, at(9)).is_some()).count();
        assert_eq!(known, DEPTH);
        assert_eq!(
            mtu(&domain, &exceptions, remotes[0], at(9)),
            None,
            "the oldest entry was not replaced"
        );
    }

    #[test]
    fn the_next_smaller_plateau_of_rfc_1191_is_returned() {
        assert_eq!(plateau_below(1500), 1492);
        assert_eq!(plateau_below(1492), 1006);
        assert_eq!(plateau_below(65_535), 32_000);
        assert_eq!(plateau_below(68), 68);
    }
}
