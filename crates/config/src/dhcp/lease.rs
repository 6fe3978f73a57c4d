//! A lease: the configuration that a server has granted, checked before it is used.
//!
//! A server on the link is not authenticated, so every value is bounded here: a host has a unicast
//! address inside its network, a lifetime that does not make it renew all the time, and lists of
//! bounded length. An answer with a bad address, mask or lifetime is refused as a whole. A bad
//! value of any other option is left out.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use ipnet::Ipv4Net;

use super::message::Answer;

/// Shortest accepted lifetime. Half of it is the time to the first renewal.
const LIFETIME_MIN: Duration = Duration::from_secs(10);

/// Shortest time to the first renewal.
const RENEWAL_MIN: Duration = Duration::from_secs(5);

/// Lifetime that never ends (RFC 2131 §3.3).
const INFINITE: u32 = u32::MAX;

/// Smallest accepted MTU: every host receives packets of 576 bytes (RFC 791 §3.1), and a server
/// that asks for less would only slow the host down.
const MTU_MIN: u16 = 576;

/// Maximum numbers of routes, name servers and search domains of a lease.
const ROUTES_MAX: usize = 64;
const SERVERS_MAX: usize = 8;
const DOMAINS_MAX: usize = 8;

/// Granted configuration of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Address with the prefix length of its network.
    pub address: Ipv4Net,
    /// Server that granted the lease.
    pub server: Ipv4Addr,
    /// Time from the request until the address must not be used any more; `None` is forever.
    pub lifetime: Option<Duration>,
    /// Time until the lease is renewed with its server (T1).
    pub renewal: Duration,
    /// Time until any server is asked (T2).
    pub rebinding: Duration,
    /// Routes: those of option 121 (RFC 3442), or else a default route for each router.
    pub routes: Vec<LeaseRoute>,
    /// MTU of the routes of the lease, if the server names one.
    pub mtu: Option<u16>,
    /// Name servers, the preferred one first.
    pub dns: Vec<IpAddr>,
    /// Domain of the host.
    pub domain: Option<String>,
    /// Domains in which names are searched (RFC 3397).
    pub search: Vec<String>,
    /// Name of the host, if the server assigns one.
    pub hostname: Option<String>,
}

/// Route of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRoute {
    /// Destinations.
    pub prefix: Ipv4Net,
    /// Router; `None` if the destinations are on the link.
    pub via: Option<Ipv4Addr>,
}

impl Lease {
    /// Returns the lease of an OFFER or ACK, or the reason why it is refused.
    pub(super) fn of(answer: &Answer) -> Result<Self, &'static str> {
        let server = answer.server.ok_or("no server identifier")?;
        let address = address(answer)?;
        let seconds = answer.lifetime_s.ok_or("no lease time")?;
        let lifetime = (seconds != INFINITE).then(|| Duration::from_secs(seconds.into()));
        if lifetime.is_some_and(|lifetime| lifetime < LIFETIME_MIN) {
            return Err("a lease time below 10 s");
        }
        let (renewal, rebinding) = timers(answer, lifetime);
        Ok(Self {
            address,
            server,
            lifetime,
            renewal,
            rebinding,
            routes: routes(answer, address),
            mtu: answer.mtu.filter(|mtu| *mtu >= MTU_MIN),
            dns: servers(answer),
            domain: answer.domain.as_deref().and_then(domain),
            search: answer
                .search
                .iter()
                .filter_map(|name| domain(name))
                .take(DOMAINS_MAX)
                .collect(),
            hostname: answer.hostname.as_deref().and_then(domain),
        })
    }

    /// Returns whether `other` differs in nothing but its times and its server.
    pub(super) fn configures_like(&self, other: &Self) -> bool {
        let timeless = |lease: &Self| Self {
            server: Ipv4Addr::UNSPECIFIED,
            lifetime: None,
            renewal: Duration::ZERO,
            rebinding: Duration::ZERO,
            ..lease.clone()
        };
        timeless(self) == timeless(other)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.address, self.server)?;
        match self.lifetime {
            Some(lifetime) => write!(f, " for {} s", lifetime.as_secs()),
            None => f.write_str(" forever"),
        }
    }
}

/// Returns the address of an answer with its prefix length.
fn address(answer: &Answer) -> Result<Ipv4Net, &'static str> {
    let ip = answer.address;
    if !is_host(ip) {
        return Err("an address that no host can have");
    }
    // RFC 2132 §3.3: a server sends the mask. Without one, the class of the address decides.
    let len = match answer.mask {
        Some(mask) if mask.to_bits().leading_ones() + mask.to_bits().trailing_zeros() == 32 => {
            mask.to_bits().leading_ones()
        }
        Some(_) => return Err("a subnet mask with holes"),
        None => match ip.octets()[0] {
            0..128 => 8,
            128..192 => 16,
            _ => 24,
        },
    };
    let len = u8::try_from(len).unwrap_or(32);
    if len == 0 {
        return Err("a subnet mask of zeros");
    }
    let net = Ipv4Net::new_assert(ip, len);
    if len < 31 && (ip == net.network() || ip == net.broadcast()) {
        return Err("the first or the last address of its network");
    }
    Ok(net)
}

/// Returns T1 and T2 (RFC 2131 §4.4.5): those of the server if they are in order, otherwise 1/2 and
/// 7/8 of the lifetime.
fn timers(answer: &Answer, lifetime: Option<Duration>) -> (Duration, Duration) {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let Some(lifetime) = lifetime else {
        return (Duration::MAX, Duration::MAX);
    };
    let renewal = answer.renewal_s.map_or(lifetime / 2, seconds).max(RENEWAL_MIN);
    let rebinding = answer.rebinding_s.map_or(lifetime * 7 / 8, seconds);
    match renewal < rebinding && rebinding < lifetime {
        true => (renewal, rebinding),
        false => (lifetime / 2, lifetime * 7 / 8),
    }
}

/// Returns the routes of an answer. With option 121, the routers of option 3 do not count
/// (RFC 3442).
fn routes(answer: &Answer, address: Ipv4Net) -> Vec<LeaseRoute> {
    let everywhere = Ipv4Net::default();
    // Only the first router counts below: the others would be routes to the same prefix.
    let of_routers = || answer.routers.iter().map(|router| (everywhere, *router)).collect();
    let mut routes: Vec<(Ipv4Net, Ipv4Addr)> = match &answer.classless {
        Some(classless) => classless.clone(),
        None => of_routers(),
    };
    routes.retain(|(prefix, via)| {
        let ip = prefix.addr();
        let is_valid = prefix.prefix_len() == 0 || is_host(ip) || ip.octets()[3] == 0;
        let is_own = prefix.trunc() == address.trunc();
        is_valid && !ip.is_loopback() && !ip.is_multicast() && !is_own && is_router(*via, address)
    });
    let mut known = BTreeSet::new();
    let mut list: Vec<_> = routes
        .into_iter()
        .filter(|(prefix, _)| known.insert(prefix.trunc()))
        .map(|(prefix, via)| LeaseRoute {
            prefix: prefix.trunc(),
            via: (!via.is_unspecified()).then_some(via),
        })
        .take(ROUTES_MAX)
        .collect();
    // A router must be reachable before its route is added: routes on the link come first.
    list.sort_by_key(|route| route.via.is_some());
    list
}

/// Returns whether a route may name `via`: a router, or 0.0.0.0 for a route on the link.
fn is_router(via: Ipv4Addr, address: Ipv4Net) -> bool {
    via.is_unspecified() || (is_host(via) && via != address.addr())
}

fn servers(answer: &Answer) -> Vec<IpAddr> {
    let mut known = BTreeSet::new();
    let usable = answer.dns.iter().filter(|ip| is_host(**ip) && known.insert(**ip));
    usable.map(|ip| IpAddr::V4(*ip)).take(SERVERS_MAX).collect()
}

/// Returns whether an address can be that of one other host.
fn is_host(ip: Ipv4Addr) -> bool {
    let first = ip.octets()[0];
    first != 0 && first != 127 && first < 224
}

/// Returns a domain name with the characters of host names only (RFC 952, RFC 1123), without its
/// final dot. Servers send strings with a final zero, too.
fn domain(text: &str) -> Option<String> {
    let text = text.trim_end_matches('\0').trim_end_matches('.');
    let is_label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(inside)
    };
    (text.len() <= 253 && text.split('.').all(is_label)).then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::message::Kind;

    fn answer() -> Answer {
        Answer {
            address: Ipv4Addr::new(10, 0, 0, 50),
            mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            server: Some(Ipv4Addr::new(10, 0, 0, 1)),
            lifetime_s: Some(3600),
            ..Answer::new(Kind::Ack, 1)
        }
    }

    fn net(text: &str) -> Ipv4Net {
        text.parse().expect("a prefix")
    }

    #[test]
    fn times_out_of_order_are_replaced_by_the_defaults() {
        let seconds = Duration::from_secs;
        let times = |renewal_s, rebinding_s| {
            let answer = Answer { renewal_s, rebinding_s, ..answer() };
            let lease = Lease::of(&answer).expect("a lease");
            (lease.renewal, lease.rebinding)
        };
        let defaults = (seconds(1800), seconds(3150));
        assert_eq!(times(None, None), defaults);
        assert_eq!(times(Some(100), Some(200)), (seconds(100), seconds(200)));
        assert_eq!(times(Some(0), Some(200)), (RENEWAL_MIN, seconds(200)));
        for (renewal, rebinding) in [(200, 100), (100, 3600), (4000, 5000), (u32::MAX, u32::MAX)] {
            assert_eq!(times(Some(renewal), Some(rebinding)), defaults, "{renewal} {rebinding}");
        }
    }

    #[test]
    fn an_infinite_lease_is_never_renewed() {
        let lease = Lease::of(&Answer { lifetime_s: Some(u32::MAX), ..answer() }).expect("a lease");
        assert_eq!((lease.lifetime, lease.renewal), (None, Duration::MAX));
        assert_eq!(lease.to_string(), "10.0.0.50/24 from 10.0.0.1 forever");
    }

    #[test]
    fn answers_without_a_usable_address_or_time_are_refused() {
        let refused = |change: fn(&mut Answer)| {
            let mut answer = answer();
            change(&mut answer);
            Lease::of(&answer).is_err()
        };
        assert!(refused(|answer| answer.server = None));
        assert!(refused(|answer| answer.lifetime_s = None));
        assert!(refused(|answer| answer.lifetime_s = Some(9)));
        assert!(refused(|answer| answer.mask = Some(Ipv4Addr::new(255, 0, 255, 0))));
        assert!(refused(|answer| answer.mask = Some(Ipv4Addr::UNSPECIFIED)));
        for address in
            ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.0", "10.0.0.255"]
        {
            let address = address.parse().expect("an address");
            assert!(Lease::of(&Answer { address, ..answer() }).is_err(), "{address}");
        }
        assert!(
            Lease::of(&Answer { mask: None, ..answer() })
                .is_ok_and(|l| l.address.prefix_len() == 8)
        );
    }

    #[test]
    fn classless_routes_replace_the_routers() {
        let router = Ipv4Addr::new(10, 0, 0, 1);
        let mut answer = Answer { routers: vec![router, Ipv4Addr::new(10, 0, 0, 2)], ..answer() };
        let default = LeaseRoute { prefix: Ipv4Net::default(), via: Some(router) };
        assert_eq!(Lease::of(&answer).expect("a lease").routes, [default]);
        let far = Ipv4Addr::new(192, 0, 2, 1);
        answer.classless = Some(vec![
            (Ipv4Net::default(), far),
            (net("192.0.2.1/32"), Ipv4Addr::UNSPECIFIED),
            (net("10.0.0.0/24"), router),
            (net("224.0.0.0/4"), router),
            (net("127.0.0.0/8"), router),
            (net("172.16.0.0/12"), Ipv4Addr::BROADCAST),
            (net("172.16.0.0/12"), Ipv4Addr::new(10, 0, 0, 50)),
        ]);
        let on_link = LeaseRoute { prefix: net("192.0.2.1/32"), via: None };
        let by_far = LeaseRoute { prefix: Ipv4Net::default(), via: Some(far) };
        assert_eq!(Lease::of(&answer).expect("a lease").routes, [on_link, by_far]);
    }

    #[test]
    fn lists_are_bounded_and_names_checked() {
        let many: Vec<_> =
            (0..1000_u32).map(|number| Ipv4Addr::from_bits(0x0a01_0000 + number)).collect();
        let answer = Answer {
            dns: many.clone(),
            classless: Some(many.iter().map(|ip| ((*ip).into(), Ipv4Addr::UNSPECIFIED)).collect()),
            domain: Some("Example.ORG.\0".to_owned()),
            hostname: Some("a b".to_owned()),
            search: vec!["x".to_owned(); 100],
            mtu: Some(68),
            ..answer()
        };
        let lease = Lease::of(&answer).expect("a lease");
        assert_eq!((lease.dns.len(), lease.routes.len(), lease.search.len()), (8, 64, 8));
        assert_eq!(lease.domain.as_deref(), Some("example.org"));
        assert_eq!((lease.hostname, lease.mtu), (None, None));
    }
}
