//! Announced state of one link: routers, prefixes, addresses and DNS servers with their lifetimes,
//! and the routes and addresses that follow from them.
//!
//! Below: nothing; this module does no I/O. Above: `autoconf`, which changes the routing table.

use std::{
    net::{IpAddr, Ipv6Addr},
    string::String,
    time::Duration,
    vec::Vec,
};

use ipnet::{IpNet, Ipv6Net};
use pkt::Instant;

use super::temporary::Bounds;
use crate::{
    base::ids::DeviceIndex,
    header::ndp::{PrefixInfo, RouterAdvertisement},
    route::fib::{MTU_MIN_V6, RouteSpec, is_link_local},
};

/// Maximum numbers of routers, prefixes and addresses of one link. Linux allows 16 addresses
/// (`max_addresses`).
const ROUTERS_MAX: usize = 4;
const PREFIXES_MAX: usize = 8;
pub(super) const ADDRESSES_MAX: usize = 16;

/// Maximum numbers of DNS servers and search domains of one link.
const SERVERS_MAX: usize = 4;
const DOMAINS_MAX: usize = 4;

/// Bound below which an unauthenticated advertisement cannot reduce the remaining lifetime of an
/// address (RFC 4862 §5.5.3 (e)).
const TWO_HOURS: Duration = Duration::from_secs(7200);

/// Largest MTU of a route.
const MTU_MAX: u32 = 65_535;

/// Metrics of Linux's routes from advertisements (IP6_RT_PRIO_ADDRCONF, IP6_RT_PRIO_USER).
const PREFIX_METRIC: u32 = 256;
const DEFAULT_METRIC: u32 = 1024;

/// Announced state of one link.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) device: DeviceIndex,
    /// Router solicitations sent, and the time of the next one; `None` when no more are sent.
    pub(super) solicited: u32,
    pub(super) next_solicitation: Option<Instant>,
    /// Default routers with the end of their lifetimes, oldest first.
    routers: Vec<(Ipv6Addr, Instant)>,
    /// Prefixes on the link with the end of their lifetimes.
    prefixes: Vec<(Ipv6Net, Instant)>,
    pub(super) addresses: Vec<AutoAddress>,
    mtu: Option<u32>,
    /// DNS servers and search domains with the end of their lifetimes (RFC 8106).
    servers: Vec<(Ipv6Addr, Instant)>,
    domains: Vec<(String, Instant)>,
    /// Routes and addresses that the routing table has for this link.
    pub(super) installed: Wanted,
    /// Routes and addresses that were wanted at the last change of the routing table; `None` if
    /// the table must be changed again. Differs from `installed` if the table has refused some.
    pub(super) followed: Option<Wanted>,
    /// Earliest time of the next change of the routing table.
    pub(super) may_change_at: Instant,
}

/// Address formed from a prefix.
#[derive(Debug)]
pub(super) struct AutoAddress {
    pub(super) address: Ipv6Addr,
    /// Addresses tried in this prefix before.
    pub(super) attempt: u8,
    /// True once probes have shown that no other station has the address.
    pub(super) is_ready: bool,
    pub(super) preferred_until: Instant,
    pub(super) valid_until: Instant,
    /// Bounds of the lifetimes of a temporary address; `None` for the stable address of a prefix.
    pub(super) temporary: Option<Bounds>,
}

/// Entries of the routing table that follow from the announcements of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) routes: Vec<RouteSpec>,
    pub(super) addresses: Vec<WantedAddress>,
}

/// Address of the host with the properties by which source addresses are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedAddress {
    pub(super) ip: Ipv6Addr,
    /// New connections avoid the address.
    pub(super) deprecated: bool,
    /// The address is temporary (RFC 8981).
    pub(super) temporary: bool,
}

impl Wanted {
    /// Whether `ip` is among the addresses.
    pub(super) fn has(&self, ip: Ipv6Addr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }
}

impl Link {
    pub(super) fn new(device: DeviceIndex, first_solicitation: Instant) -> Self {
        Self {
            device,
            solicited: 0,
            next_solicitation: Some(first_solicitation),
            routers: Vec::new(),
            prefixes: Vec::new(),
            addresses: Vec::new(),
            mtu: None,
            servers: Vec::new(),
            domains: Vec::new(),
            installed: Wanted::default(),
            followed: Some(Wanted::default()),
            may_change_at: Instant::ZERO,
        }
    }

    /// Processes an advertisement of `router`. Returns new addresses, which the caller must probe.
    pub(super) fn on_advertisement(
        &mut self,
        now: Instant,
        router: Ipv6Addr,
        ra: &RouterAdvertisement,
        form: impl Fn(Ipv6Addr) -> Ipv6Addr,
    ) -> Vec<Ipv6Addr> {
        // RFC 4861 §6.3.7: a router is known, so no more solicitations are sent.
        if ra.lifetime_s != 0 {
            self.next_solicitation = None;
        }
        let until = now + Duration::from_secs(ra.lifetime_s.into());
        keep(&mut self.routers, router, until, now, ROUTERS_MAX);
        if let Some(mtu) = ra.mtu {
            self.mtu = Some(mtu.clamp(MTU_MIN_V6, MTU_MAX));
        }
        for (server, lifetime_s) in &ra.servers {
            keep(&mut self.servers, *server, end(now, *lifetime_s), now, SERVERS_MAX);
        }
        for (domain, lifetime_s) in &ra.domains {
            keep(&mut self.domains, domain.clone(), end(now, *lifetime_s), now, DOMAINS_MAX);
        }
        let mut probes = Vec::new();
        for prefix in &ra.prefixes {
            let net = Ipv6Net::new_assert(prefix.prefix, prefix.len).trunc();
            if net.addr().is_multicast() || is_link_local(IpAddr::V6(net.addr())) {
                continue;
            }
            if prefix.on_link {
                keep(&mut self.prefixes, net, end(now, prefix.valid_s), now, PREFIXES_MAX);
            }
            let forms = prefix.autonomous && prefix.preferred_s <= prefix.valid_s;
            if forms && prefix.len == 64 {
                probes.extend(self.on_prefix(now, net, prefix, &form));
            }
        }
        probes
    }

    /// Updates the lifetimes of the address of a prefix. If there is none, forms an address and
    /// returns it (RFC 4862 §5.5.3).
    fn on_prefix(
        &mut self,
        now: Instant,
        net: Ipv6Net,
        info: &PrefixInfo,
        form: impl Fn(Ipv6Addr) -> Ipv6Addr,
    ) -> Option<Ipv6Addr> {
        let (valid, preferred) = (end(now, info.valid_s), end(now, info.preferred_s));
        let mut is_known = false;
        for known in self.addresses.iter_mut().filter(|known| net.contains(&known.address)) {
            is_known |= known.temporary.is_none();
            known.extend(now, preferred, valid);
        }
        if is_known {
            return None;
        }
        if info.valid_s == 0 || self.addresses.len() >= ADDRESSES_MAX {
            return None;
        }
        let address = form(net.addr());
        self.addresses.push(AutoAddress {
            address,
            attempt: 0,
            is_ready: false,
            preferred_until: preferred,
            valid_until: valid,
            temporary: None,
        });
        Some(address)
    }

    /// Removes routers, prefixes, addresses, DNS servers and domains whose lifetime has ended.
    /// Returns the removed addresses.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Ipv6Addr> {
        self.routers.retain(|(_, until)| *until > now);
        self.prefixes.retain(|(_, until)| *until > now);
        self.servers.retain(|(_, until)| *until > now);
        self.domains.retain(|(_, until)| *until > now);
        let ended = |known: &AutoAddress| known.valid_until <= now;
        let gone = self.addresses.iter().filter(|known| ended(known));
        let gone = gone.map(|known| known.address).collect();
        self.addresses.retain(|known| !ended(known));
        gone
    }

    /// Returns the entries that the routing table should have.
    pub(super) fn wanted(&self, now: Instant) -> Wanted {
        let device = Some(self.device);
        let mut routes: Vec<_> = self
            .prefixes
            .iter()
            .map(|(net, _)| RouteSpec {
                metric: PREFIX_METRIC,
                mtu: self.mtu,
                ..RouteSpec::on_link(IpNet::V6(*net), self.device)
            })
            .collect();
        if let Some((router, _)) = self.routers.first() {
            routes.push(RouteSpec {
                device,
                metric: DEFAULT_METRIC,
                mtu: self.mtu,
                ..RouteSpec::via(IpNet::V6(Ipv6Net::default()), IpAddr::V6(*router))
            });
        }
        let ready = self.addresses.iter().filter(|known| known.is_ready);
        let addresses = ready
            .map(|known| WantedAddress {
                ip: known.address,
                deprecated: known.preferred_until <= now,
                temporary: known.temporary.is_some(),
            })
            .collect();
        Wanted { routes, addresses }
    }

    /// Returns the DNS servers and the search domains that routers have announced.
    pub(super) fn dns(&self, now: Instant) -> (Vec<Ipv6Addr>, Vec<String>) {
        let servers = self.servers.iter().filter(|(_, until)| *until > now);
        let domains = self.domains.iter().filter(|(_, until)| *until > now);
        (
            servers.map(|(server, _)| *server).collect(),
            domains.map(|(domain, _)| domain.clone()).collect(),
        )
    }

    /// Returns the time at which `run_autoconf` has work for this link; `None` if there is no such
    /// time.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let is_followed = self.followed.as_ref() == Some(&self.wanted(now));
        let change = (!is_followed).then_some(self.may_change_at);
        let lives = self.routers.iter().map(|(_, until)| *until);
        let lives = lives.chain(self.prefixes.iter().map(|(_, until)| *until));
        let ages = self.addresses.iter().flat_map(|known| {
            let later = |at: &Instant| *at > now;
            let renewal = known.temporary.map(|bounds| bounds.renew_at);
            [
                Some(known.preferred_until).filter(later),
                renewal.filter(later),
                Some(known.valid_until),
            ]
        });
        lives
            .map(Some)
            .chain(ages)
            .chain([change, self.next_solicitation])
            .flatten()
            .filter(|at| *at != Instant::FAR_FUTURE)
            .min()
    }
}

impl AutoAddress {
    /// Sets the lifetimes that a router announces for the prefix. An advertisement cannot reduce
    /// the remaining valid lifetime below two hours, nor at all if it is shorter already, and a
    /// temporary address keeps its bounds.
    fn extend(&mut self, now: Instant, preferred: Instant, valid: Instant) {
        let bound = |until: Instant, bound: fn(Bounds) -> Instant| {
            self.temporary.map_or(until, |bounds| until.min(bound(bounds)))
        };
        let (preferred, valid) = (
            bound(preferred, |bounds| bounds.preferred_until),
            bound(valid, |bounds| bounds.valid_until),
        );
        self.preferred_until = preferred;
        let floor = now + TWO_HOURS;
        if valid > floor || valid > self.valid_until {
            self.valid_until = valid;
        } else if self.valid_until > floor {
            self.valid_until = floor;
        }
    }
}

/// Keeps `item` until `until`, unless it is new and `max` items are kept. Removes items whose time
/// has ended.
fn keep<T: PartialEq>(
    items: &mut Vec<(T, Instant)>,
    item: T,
    until: Instant,
    now: Instant,
    max: usize,
) {
    if let Some((_, known_until)) = items.iter_mut().find(|(known, _)| *known == item) {
        *known_until = until;
    } else if until > now && items.len() < max {
        items.push((item, until));
    }
    items.retain(|(_, until)| *until > now);
}

/// Returns the end of a lifetime in seconds. All ones mean that it never ends.
fn end(now: Instant, seconds: u32) -> Instant {
    match seconds {
        u32::MAX => Instant::FAR_FUTURE,
        seconds => now + Duration::from_secs(seconds.into()),
    }
}

#[cfg(test)]
mod tests {
    use arrayvec::ArrayVec;

    use super::*;
    use crate::header::ndp;

    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xff);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn link() -> Link {
        Link::new(DeviceIndex(1), at(0))
    }

    fn prefix(text: &str, valid_s: u32, preferred_s: u32) -> PrefixInfo {
        let net: Ipv6Net = text.parse().expect("the text is a prefix");
        let (prefix, len) = (net.addr(), net.prefix_len());
        PrefixInfo { prefix, len, on_link: true, autonomous: true, valid_s, preferred_s }
    }

    fn ra(lifetime_s: u16, prefixes: &[PrefixInfo]) -> RouterAdvertisement {
        let prefixes: ArrayVec<_, { ndp::PREFIXES_MAX }> = prefixes.iter().copied().collect();
        RouterAdvertisement {
            hop_limit: 64,
            lifetime_s,
            prefixes,
            ..RouterAdvertisement::default()
        }
    }

    /// Processes an advertisement of `ROUTER`; the identifier of formed addresses is 7.
    fn advertise(link: &mut Link, now: Instant, ra: &RouterAdvertisement) -> Vec<Ipv6Addr> {
        link.on_advertisement(now, ROUTER, ra, |prefix| Ipv6Addr::from_bits(prefix.to_bits() | 7))
    }

    fn routes(link: &Link, now: Instant) -> Vec<String> {
        link.wanted(now).routes.iter().map(|spec| spec.prefix.to_string()).collect()
    }

    #[test]
    fn an_advertisement_adds_a_default_route_a_prefix_and_an_address() {
        let mut link = link();
        let ra = ra(1800, &[prefix("2001:db8::/64", 3600, 1800)]);
        let address: Ipv6Addr = "2001:db8::7".parse().unwrap();
        assert_eq!(advertise(&mut link, at(0), &ra), [address]);
        assert_eq!(link.next_solicitation, None);
        assert_eq!(routes(&link, at(0)), ["2001:db8::/64", "::/0"]);
        assert_eq!(link.wanted(at(0)).addresses, [], "an address was usable while it was probed");
        link.addresses[0].is_ready = true;
        let wanted = |deprecated| WantedAddress { ip: address, deprecated, temporary: false };
        assert_eq!(link.wanted(at(0)).addresses, [wanted(false)]);
        assert!(advertise(&mut link, at(1), &ra).is_empty(), "a known address was added again");
        // Preferred for half an hour, valid for an hour.
        assert_eq!(link.wanted(at(1801)).addresses, [wanted(true)]);
        assert!(link.expire(at(1801)).is_empty());
        assert_eq!(routes(&link, at(1801)), ["2001:db8::/64"], "a route outlived its router");
        assert_eq!(link.expire(at(3601)), [address]);
        assert_eq!(link.wanted(at(3601)), Wanted::default());
    }

    /// RFC 4862 §5.5.3 (e).
    #[test]
    fn an_advertisement_cannot_end_an_address_within_two_hours() {
        let mut link = link();
        let day = 86_400;
        advertise(&mut link, at(0), &ra(0, &[prefix("2001:db8::/64", day, day)]));
        advertise(&mut link, at(0), &ra(0, &[prefix("2001:db8::/64", 1, 0)]));
        assert_eq!(link.addresses[0].valid_until, at(7200));
        assert_eq!(
            link.addresses[0].preferred_until,
            at(0),
            "the address was not deprecated at once"
        );
        advertise(&mut link, at(100), &ra(0, &[prefix("2001:db8::/64", 1, 0)]));
        assert_eq!(link.addresses[0].valid_until, at(7200), "the end of the valid lifetime moved");
        advertise(&mut link, at(100), &ra(0, &[prefix("2001:db8::/64", u32::MAX, 9)]));
        assert_eq!(link.addresses[0].valid_until, Instant::FAR_FUTURE);
    }

    #[test]
    fn a_flood_of_routers_and_prefixes_is_bounded() {
        let mut link = link();
        for number in 0..1000_u16 {
            let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, number);
            let ra = ra(9000, &[prefix(&format!("2001:db8:{number:x}::/64"), 9000, 9000)]);
            link.on_advertisement(at(1), router, &ra, |prefix| prefix);
        }
        assert_eq!(link.routers.len(), ROUTERS_MAX);
        assert_eq!(link.prefixes.len(), PREFIXES_MAX);
        assert_eq!(link.addresses.len(), ADDRESSES_MAX);
        // A router that announces lifetime 0 is removed.
        link.on_advertisement(at(2), link.routers[0].0, &ra(0, &[]), |prefix| prefix);
        assert_eq!(link.routers.len(), ROUTERS_MAX - 1);
    }

    /// RFC 8106 §5.
    #[test]
    fn dns_servers_and_domains_last_for_their_lifetimes() {
        let mut link = link();
        let (near, far): (Ipv6Addr, Ipv6Addr) = (ROUTER, "2001:db8::53".parse().unwrap());
        let sent = RouterAdvertisement {
            servers: [(near, 100), (far, u32::MAX)].into_iter().collect(),
            domains: vec![(String::from("example.net"), 50)],
            ..ra(0, &[])
        };
        advertise(&mut link, at(0), &sent);
        assert_eq!(link.dns(at(49)), (vec![near, far], vec![String::from("example.net")]));
        assert_eq!(link.dns(at(50)), (vec![near, far], vec![]));
        assert_eq!(link.dns(at(100)), (vec![far], vec![]));
        let ended = RouterAdvertisement {
            servers: [(far, 0)].into_iter().collect(),
            domains: Vec::new(),
            ..sent
        };
        advertise(&mut link, at(101), &ended);
        assert_eq!(link.dns(at(101)), (vec![], vec![]));
        for number in 0..1000_u16 {
            let server = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number);
            let servers = [(server, 100)].into_iter().collect();
            advertise(&mut link, at(102), &RouterAdvertisement { servers, ..ended.clone() });
        }
        assert_eq!(link.dns(at(102)).0.len(), SERVERS_MAX);
    }

    #[test]
    fn unsuitable_prefixes_form_no_address() {
        let mut link = link();
        let not_autonomous = PrefixInfo { autonomous: false, ..prefix("2001:db8::/64", 9, 9) };
        let ra = ra(
            0,
            &[
                not_autonomous,
                prefix("2001:db8:1::/48", 9, 9),
                prefix("2001:db8:2::/64", 9, 10),
                prefix("2001:db8:3::/64", 0, 0),
                prefix("fe80::/64", 9, 9),
                prefix("ff02::/64", 9, 9),
            ],
        );
        assert!(advertise(&mut link, at(0), &ra).is_empty());
        assert_eq!(routes(&link, at(0)), ["2001:db8::/64", "2001:db8:1::/48", "2001:db8:2::/64"]);
    }
}
