//! Routers, prefixes and addresses of a link, as its routers announce them: router discovery
//! (RFC 4861 §6.3) and stateless address autoconfiguration (RFC 4862) with opaque interface
//! identifiers (RFC 7217).
//!
//! Above: `receive::ndp_input`, which passes valid advertisements. Below: the routing table, which
//! gets a default route, the prefixes on the link, and the addresses that no other station has
//! (`claims`). Linux: net/ipv6/addrconf.c (`addrconf_prefix_rcv`), net/ipv6/ndisc.c
//! (`ndisc_router_discovery`).
//!
//! Announcements are stored with their lifetimes. [`Link::wanted`] computes the routes and
//! addresses that follow from them, and the routing table is changed only if these differ from the
//! installed ones. The numbers of routers, prefixes and addresses are bounded, and a link changes
//! the table at most once in [`CHANGE_INTERVAL`]. A flood of advertisements therefore costs bounded
//! memory, and one comparison for each.
//!
//! Differs from RFC 4861 §6.3.6: the default router is the one known longest, among those whose
//! lifetime has not ended; its reachability is not tested. Not here: redirects, temporary
//! addresses, DHCPv6, RDNSS.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
    vec::Vec,
};

use ipnet::{IpNet, Ipv6Net};
use pkt::Instant;

use super::Net;
use crate::{
    base::{
        armed_timers::ArmedTimers,
        ids::{CoreId, DeviceIndex},
        interface_id::stable_address,
        secrets::HashKey,
    },
    cx::Cx,
    header::ndp::{self, NdpMessage, PrefixInfo, RouterAdvertisement},
    route::fib::{MTU_MIN_V6, RouteSpec, is_link_local},
    socket::core_sockets::TimerEntry,
    transmit::ndp_output::{self, NdpEnds},
};

/// MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL of RFC 4861 §10.
const SOLICITATIONS: u32 = 3;
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);

/// MAX_RTR_SOLICITATION_DELAY of RFC 4861 §10, in microseconds.
const SOLICITATION_DELAY_US: u32 = 1_000_000;

/// Maximum numbers of routers, prefixes and addresses of one link. Linux allows 16 addresses
/// (`max_addresses`).
const ROUTERS_MAX: usize = 4;
const PREFIXES_MAX: usize = 8;
const ADDRESSES_MAX: usize = 16;

/// Number of addresses tried in one prefix, before the prefix is given up (IDGEN_RETRIES of
/// RFC 7217).
const ATTEMPTS: u8 = 3;

/// Shortest time between two changes of the routing table for one link.
const CHANGE_INTERVAL: Duration = Duration::from_millis(100);

/// Bound below which an unauthenticated advertisement cannot reduce the remaining lifetime of an
/// address (RFC 4862 §5.5.3 (e)).
const TWO_HOURS: Duration = Duration::from_secs(7200);

/// Largest MTU of a route.
const MTU_MAX: u32 = 65_535;

/// Metrics of Linux's routes from advertisements (IP6_RT_PRIO_ADDRCONF, IP6_RT_PRIO_USER).
const PREFIX_METRIC: u32 = 256;
const DEFAULT_METRIC: u32 = 1024;

/// The timer runs on the first core, like that of `claims`.
const CORE: CoreId = CoreId(0);

/// Announced state of every link of a host.
#[derive(Debug)]
pub(crate) struct Autoconf {
    links: Mutex<Vec<Link>>,
    /// Key of interface identifiers.
    key: HashKey,
    /// Entries in the timer wheel: no more are armed than needed, although routers can send any
    /// number of advertisements.
    armed: ArmedTimers,
}

/// Announced state of one link.
#[derive(Debug)]
struct Link {
    device: DeviceIndex,
    /// Router solicitations sent, and the time of the next one; `None` when no more are sent.
    solicited: u32,
    next_solicitation: Option<Instant>,
    /// Default routers with the end of their lifetimes, oldest first.
    routers: Vec<(Ipv6Addr, Instant)>,
    /// Prefixes on the link with the end of their lifetimes.
    prefixes: Vec<(Ipv6Net, Instant)>,
    addresses: Vec<AutoAddress>,
    mtu: Option<u32>,
    /// Routes and addresses that were last written to the routing table for this link.
    installed: Wanted,
    /// Earliest time of the next change of the routing table.
    may_change_at: Instant,
}

/// Address formed from a prefix.
#[derive(Debug)]
struct AutoAddress {
    address: Ipv6Addr,
    /// Addresses tried in this prefix before.
    attempt: u8,
    /// True once probes have shown that no other station has the address.
    is_ready: bool,
    preferred_until: Instant,
    valid_until: Instant,
}

/// Entries of the routing table that follow from the announcements of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    routes: Vec<RouteSpec>,
    /// Addresses, each with a flag: true if the address is deprecated, so that new connections
    /// avoid it.
    addresses: Vec<(Ipv6Addr, bool)>,
}

impl Autoconf {
    pub(crate) fn new(key: HashKey) -> Self {
        Self { links: Mutex::default(), key, armed: ArmedTimers::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn new(device: DeviceIndex, first_solicitation: Instant) -> Self {
        Self {
            device,
            solicited: 0,
            next_solicitation: Some(first_solicitation),
            routers: Vec::new(),
            prefixes: Vec::new(),
            addresses: Vec::new(),
            mtu: None,
            installed: Wanted::default(),
            may_change_at: Instant::ZERO,
        }
    }

    /// Processes an advertisement of `router`. Returns new addresses, which the caller must probe.
    fn on_advertisement(
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
        if let Some(known) = self.addresses.iter_mut().find(|known| net.contains(&known.address)) {
            known.preferred_until = preferred;
            let floor = now + TWO_HOURS;
            if valid > floor || valid > known.valid_until {
                known.valid_until = valid;
            } else if known.valid_until > floor {
                known.valid_until = floor;
            }
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
        });
        Some(address)
    }

    /// Removes routers, prefixes and addresses whose lifetime has ended. Returns the removed
    /// addresses.
    fn expire(&mut self, now: Instant) -> Vec<Ipv6Addr> {
        self.routers.retain(|(_, until)| *until > now);
        self.prefixes.retain(|(_, until)| *until > now);
        let ended = |known: &AutoAddress| known.valid_until <= now;
        let gone = self.addresses.iter().filter(|known| ended(known));
        let gone = gone.map(|known| known.address).collect();
        self.addresses.retain(|known| !ended(known));
        gone
    }

    /// Returns the entries that the routing table should have.
    fn wanted(&self, now: Instant) -> Wanted {
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
        let addresses = ready.map(|known| (known.address, known.preferred_until <= now)).collect();
        Wanted { routes, addresses }
    }

    /// Returns the time at which `run_autoconf` has work for this link; `None` if there is no such
    /// time.
    fn due(&self, now: Instant) -> Option<Instant> {
        let change = (self.wanted(now) != self.installed).then_some(self.may_change_at);
        let lives = self.routers.iter().map(|(_, until)| *until);
        let lives = lives.chain(self.prefixes.iter().map(|(_, until)| *until));
        let ages = self.addresses.iter().flat_map(|known| {
            let preferred = Some(known.preferred_until).filter(|until| *until > now);
            [preferred, Some(known.valid_until)]
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

impl Net {
    /// Begins to solicit routers on every Ethernet device, if `accept_ra` is on.
    pub(super) fn start_autoconf(&self, cx: &mut Cx) {
        if !cx.sysctls().accept_ra {
            return;
        }
        let devices = (0..self.devices.len()).map(DeviceIndex::at);
        let ethernet = devices.filter(|device| self.mac_of(*device).is_some());
        let links: Vec<_> = ethernet
            .map(|device| {
                let delay = cx.rng.below(SOLICITATION_DELAY_US);
                Link::new(device, cx.now + Duration::from_micros(delay.into()))
            })
            .collect();
        *self.autoconf.lock() = links;
        self.arm_autoconf(cx.now);
    }

    /// Softirq: processes a valid router advertisement that arrived on `device`.
    pub(crate) fn on_router(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        router: Ipv6Addr,
        ra: &RouterAdvertisement,
    ) {
        let probes = {
            let mut links = self.autoconf.lock();
            let Some(link) = links.iter_mut().find(|link| link.device == device) else { return };
            let name = self.device_name(device);
            link.on_advertisement(cx.now, router, ra, |prefix| {
                stable_address(&self.autoconf.key, prefix, name, 0)
            })
        };
        for address in probes {
            self.claim_auto(cx, device, IpAddr::V6(address));
        }
        self.run_autoconf(cx);
    }

    /// Processes the result of the probes for an address. `free` is true if no other station has
    /// the address; otherwise another address of the prefix is tried.
    pub(super) fn on_auto_address(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        address: IpAddr,
        free: bool,
    ) {
        let mut next = None;
        if !free {
            self.forget_claim(device, address);
        }
        {
            let mut links = self.autoconf.lock();
            let Some(link) = links.iter_mut().find(|link| link.device == device) else { return };
            let known =
                link.addresses.iter_mut().find(|known| IpAddr::V6(known.address) == address);
            match known {
                Some(known) if free => known.is_ready = true,
                Some(known) if known.attempt + 1 < ATTEMPTS => {
                    known.attempt += 1;
                    let name = self.device_name(device);
                    let key = &self.autoconf.key;
                    known.address = stable_address(key, known.address, name, known.attempt);
                    next = Some(known.address);
                }
                // After the last attempt, the address stays in the list unused, so that the next
                // advertisement of the prefix forms no further address.
                Some(_) | None => {}
            }
        }
        if let Some(next) = next {
            self.claim_auto(cx, device, IpAddr::V6(next));
        }
        self.run_autoconf(cx);
    }

    /// Softirq: handles the expired timer.
    pub(crate) fn on_autoconf_timer(&self, cx: &mut Cx) {
        self.autoconf.armed.fired(cx.now);
        self.run_autoconf(cx);
    }

    /// Performs the due steps of all links: solicitations, ends of lifetimes, and changes of the
    /// routing table.
    fn run_autoconf(&self, cx: &mut Cx) {
        let (mut solicits, mut ended) = (Vec::new(), Vec::new());
        {
            let mut links = self.autoconf.lock();
            for link in links.iter_mut() {
                if link.next_solicitation.is_some_and(|at| at <= cx.now) {
                    link.solicited += 1;
                    let more = link.solicited < SOLICITATIONS;
                    link.next_solicitation = more.then(|| cx.now + SOLICITATION_INTERVAL);
                    solicits.push(link.device);
                }
                ended.extend(link.expire(cx.now).into_iter().map(|ip| (link.device, ip)));
                self.install_wanted(cx.now, link);
            }
        }
        for (device, address) in ended {
            self.forget_claim(device, IpAddr::V6(address));
        }
        for device in solicits {
            self.solicit_routers(cx, device);
        }
        self.arm_autoconf(cx.now);
    }

    /// Writes the wanted routes and addresses of a link to the routing table, if they differ from
    /// the installed ones and the last change is at least [`CHANGE_INTERVAL`] ago.
    fn install_wanted(&self, now: Instant, link: &mut Link) {
        let wanted = link.wanted(now);
        if wanted == link.installed || now < link.may_change_at {
            return;
        }
        let installed = core::mem::replace(&mut link.installed, wanted.clone());
        link.may_change_at = now + CHANGE_INTERVAL;
        let device = link.device;
        self.change_device_routes(|routes| {
            for spec in installed.routes.iter().filter(|spec| !wanted.routes.contains(spec)) {
                // An administrator may have deleted the route before.
                let _ = routes.delete(spec);
            }
            let is_wanted = |ip: &Ipv6Addr| wanted.addresses.iter().any(|(other, _)| other == ip);
            for (ip, _) in installed.addresses.iter().filter(|(ip, _)| !is_wanted(ip)) {
                routes.remove_address(device, IpAddr::V6(*ip));
            }
            for (ip, deprecated) in &wanted.addresses {
                if !installed.addresses.iter().any(|(other, _)| other == ip) {
                    // Fails if the host has the address for another reason; that address stays as
                    // it is. The new address gets no network route, because the prefix is on the
                    // link only if the router says so.
                    let _ = routes.address(device, IpNet::from(IpAddr::V6(*ip)));
                }
                routes.set_deprecated(IpAddr::V6(*ip), *deprecated);
            }
            for spec in wanted.routes.iter().filter(|spec| !installed.routes.contains(spec)) {
                // Fails for a device that is down. The route is then written only after the wanted
                // routes have changed and changed back.
                let _ = routes.replace(spec);
            }
        });
    }

    fn solicit_routers(&self, cx: &mut Cx, device: DeviceIndex) {
        let source = {
            let reader = self.rcu.reader();
            let rcu = reader.pin();
            let mut addresses = self.fib(&rcu).addresses_on(device);
            addresses.find(|address| is_link_local(*address))
        };
        let source = source.filter(|address| !self.claims.is_tentative(device, *address));
        // RFC 4861 §4.1: a host without an address solicits without its link address.
        let (src, source_mac) = match source {
            Some(IpAddr::V6(source)) => (source, self.mac_of(device)),
            _ => (Ipv6Addr::UNSPECIFIED, None),
        };
        let message = NdpMessage::RouterSolicitation { source_mac };
        let ends = NdpEnds { src, dst: ndp::ALL_ROUTERS, mac: None };
        ndp_output::send(self.tx(device), cx, ends, &message);
    }

    fn arm_autoconf(&self, now: Instant) {
        let due = {
            let links = self.autoconf.lock();
            let due = links.iter().filter_map(|link| link.due(now)).min();
            due.filter(|due| self.autoconf.armed.must_arm(*due))
        };
        if let Some(due) = due {
            self.core_sockets(CORE).arm(due, TimerEntry::Autoconf);
        }
    }
}

#[cfg(test)]
mod tests {
    use arrayvec::ArrayVec;

    use super::*;

    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xff);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn link() -> Link {
        Link::new(DeviceIndex(1), at(0))
    }

    fn prefix(text: &str, valid_s: u32, preferred_s: u32) -> PrefixInfo {
        let net: Ipv6Net = text.parse().expect("a prefix");
        let (prefix, len) = (net.addr(), net.prefix_len());
        PrefixInfo { prefix, len, on_link: true, autonomous: true, valid_s, preferred_s }
    }

    fn ra(lifetime_s: u16, prefixes: &[PrefixInfo]) -> RouterAdvertisement {
        let prefixes: ArrayVec<_, { ndp::PREFIXES_MAX }> = prefixes.iter().copied().collect();
        RouterAdvertisement { hop_limit: 64, lifetime_s, source_mac: None, mtu: None, prefixes }
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
        assert_eq!(link.wanted(at(0)).addresses, [], "the address is still probed");
        link.addresses[0].is_ready = true;
        assert_eq!(link.wanted(at(0)).addresses, [(address, false)]);
        assert!(advertise(&mut link, at(1), &ra).is_empty(), "the address is known");
        // Preferred for half an hour, valid for an hour.
        assert_eq!(link.wanted(at(1801)).addresses, [(address, true)]);
        assert!(link.expire(at(1801)).is_empty());
        assert_eq!(routes(&link, at(1801)), ["2001:db8::/64"], "the router's lifetime is over");
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
        assert_eq!(link.addresses[0].preferred_until, at(0), "the address is deprecated at once");
        advertise(&mut link, at(100), &ra(0, &[prefix("2001:db8::/64", 1, 0)]));
        assert_eq!(link.addresses[0].valid_until, at(7200), "the end stays the same");
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
