//! Routers, prefixes and addresses of a link, as its routers announce them: router discovery
//! (RFC 4861 §6.3) and stateless address autoconfiguration (RFC 4862) with opaque interface
//! identifiers (RFC 7217).
//!
//! Above: `receive::ndp_input`, which passes valid advertisements. Below: the routing table, which
//! gets a default route, the prefixes on the link, and the addresses that no other station has
//! (`claims`). Linux: net/ipv6/addrconf.c (`addrconf_prefix_rcv`), net/ipv6/ndisc.c
//! (`ndisc_router_discovery`).
//!
//! Announcements are stored with their lifetimes. `Link::wanted` computes the routes and addresses
//! that follow from them, and the routing table is changed only if these differ from those of its
//! last change. The numbers of routers, prefixes and addresses are bounded, and a link changes the
//! table at most once in [`CHANGE_INTERVAL`]. A flood of advertisements therefore costs bounded
//! memory, and one comparison for each.
//!
//! Differs from RFC 4861 §6.3.6: the default router is the one known longest, among those whose
//! lifetime has not ended; its reachability is not tested. Not here: the state of a link (`link`),
//! temporary addresses (`temporary`), redirects (`receive::ndp_input`), DHCPv6.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddrV6},
    string::String,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
    vec::Vec,
};

use ipnet::IpNet;
use pkt::Instant;

use super::Net;
use crate::{
    base::{
        armed_timers::ArmedTimers,
        ids::{CoreId, DeviceIndex},
        interface_id::{random_address, stable_address},
        secrets::HashKey,
    },
    cx::Cx,
    header::ndp::{self, NdpMessage, RouterAdvertisement},
    route::fib::is_link_local,
    socket::core_sockets::TimerEntry,
    transmit::ndp_output::{self, NdpEnds},
};

use link::{Link, Wanted};

mod link;
mod temporary;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL of RFC 4861 §10.
const SOLICITATIONS: u32 = 3;
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);

/// MAX_RTR_SOLICITATION_DELAY of RFC 4861 §10, in microseconds.
const SOLICITATION_DELAY_US: u32 = 1_000_000;

/// Time between two checks whether the link-local address of a solicitation is still probed.
const PROBE_CHECK: Duration = Duration::from_millis(100);

/// Number of addresses tried in one prefix, before the prefix is given up (IDGEN_RETRIES of
/// RFC 7217).
const ATTEMPTS: u8 = 3;

/// Shortest time between two changes of the routing table for one link.
const CHANGE_INTERVAL: Duration = Duration::from_millis(100);

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

/// DNS servers and search domains that the routers of all links have announced (RFC 8106).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedDns {
    /// Servers, with port 53; a link-local address has its scope.
    pub servers: Vec<SocketAddrV6>,
    /// Search domains.
    pub domains: Vec<String>,
}

impl Autoconf {
    pub(crate) fn new(key: HashKey) -> Self {
        Self { links: Mutex::default(), key, armed: ArmedTimers::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Notes that the routes through `device` are gone, because it is down.
    pub(crate) fn on_autoconf_device_down(&self, device: DeviceIndex) {
        let mut links = self.autoconf.lock();
        if let Some(link) = links.iter_mut().find(|link| link.device == device) {
            link.installed.routes.clear();
            link.next_solicitation = None;
        }
    }

    /// Restores the announced routes of `device`, which has come up again, and solicits its routers
    /// (RFC 4861 §6.3.7).
    pub(crate) fn on_autoconf_device_up(&self, cx: &mut Cx, device: DeviceIndex) {
        {
            let mut links = self.autoconf.lock();
            let Some(link) = links.iter_mut().find(|link| link.device == device) else { return };
            link.followed = None;
            link.solicited = 0;
            let delay = cx.rng.below(SOLICITATION_DELAY_US);
            link.next_solicitation = Some(cx.now + Duration::from_micros(delay.into()));
        }
        self.run_autoconf(cx);
    }

    /// Forgets the announcements of a removed device.
    pub(crate) fn on_autoconf_device_gone(&self, device: DeviceIndex) {
        self.autoconf.lock().retain(|link| link.device != device);
    }

    /// Returns the DNS servers and search domains that routers have announced, if `accept_ra` is
    /// on.
    #[must_use]
    pub fn announced_dns(&self, now: Instant) -> AnnouncedDns {
        let mut dns = AnnouncedDns::default();
        for link in self.autoconf.lock().iter() {
            let (servers, domains) = link.dns(now);
            dns.servers.extend(servers.into_iter().map(|ip| {
                let scope = if ip.is_unicast_link_local() { link.device.0 } else { 0 };
                SocketAddrV6::new(ip, DNS_PORT, 0, scope)
            }));
            for domain in domains {
                if !dns.domains.contains(&domain) {
                    dns.domains.push(domain);
                }
            }
        }
        dns
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
                    let (name, key) = (self.device_name(device), &self.autoconf.key);
                    known.address = match known.temporary {
                        Some(_) => random_address(known.address, || cx.rng.next_u64()),
                        None => stable_address(key, known.address, name, known.attempt),
                    };
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
        let (mut solicits, mut ended, mut formed) = (Vec::new(), Vec::new(), Vec::new());
        let early = self.early_solicitations(cx.now);
        let sysctls = self.sysctls();
        {
            let mut links = self.autoconf.lock();
            for link in links.iter_mut() {
                if early.contains(&link.device) {
                    link.next_solicitation = Some(cx.now + PROBE_CHECK);
                } else if link.next_solicitation.is_some_and(|at| at <= cx.now) {
                    link.solicited += 1;
                    let more = link.solicited < SOLICITATIONS;
                    link.next_solicitation = more.then(|| cx.now + SOLICITATION_INTERVAL);
                    solicits.push(link.device);
                }
                ended.extend(link.expire(cx.now).into_iter().map(|ip| (link.device, ip)));
                let new = link.renew_temporary(cx.now, &sysctls, &mut cx.rng);
                formed.extend(new.into_iter().map(|ip| (link.device, ip)));
                self.install_wanted(cx.now, link);
            }
        }
        for (device, address) in ended {
            self.forget_claim(device, IpAddr::V6(address));
        }
        for (device, address) in formed {
            self.claim_auto(cx, device, IpAddr::V6(address));
        }
        for device in solicits {
            self.solicit_routers(cx, device);
        }
        self.arm_autoconf(cx.now);
    }

    /// Writes the wanted routes and addresses of a link to the routing table, if they differ from
    /// those of the last time and the last change is at least [`CHANGE_INTERVAL`] ago. Notes those
    /// that the table has accepted. The table refuses a route through a device that is down; such a
    /// route is written when the device comes up. The table also refuses an address that the host
    /// has for another reason; such an address stays as it is.
    fn install_wanted(&self, now: Instant, link: &mut Link) {
        let wanted = link.wanted(now);
        if link.followed.as_ref() == Some(&wanted) || now < link.may_change_at {
            return;
        }
        link.may_change_at = now + CHANGE_INTERVAL;
        let (device, before) = (link.device, core::mem::take(&mut link.installed));
        let mut installed = Wanted::default();
        self.change_device_routes(|routes| {
            for spec in before.routes.iter().filter(|spec| !wanted.routes.contains(spec)) {
                // An administrator may have deleted the route before.
                let _ = routes.delete(spec);
            }
            for address in before.addresses.iter().filter(|address| !wanted.has(address.ip)) {
                routes.remove_address(device, IpAddr::V6(address.ip));
            }
            for address in &wanted.addresses {
                let ip = IpAddr::V6(address.ip);
                // The new address gets no network route, because the prefix is on the link only if
                // the router says so.
                if before.has(address.ip) || routes.address(device, IpNet::from(ip)).is_ok() {
                    routes.set_deprecated(ip, address.deprecated);
                    routes.set_temporary(ip, address.temporary);
                    installed.addresses.push(*address);
                }
            }
            for spec in &wanted.routes {
                // A route that the routers of another link have announced stays.
                if before.routes.contains(spec) || routes.append(spec).is_ok() {
                    installed.routes.push(spec.clone());
                }
            }
        });
        link.installed = installed;
        link.followed = Some(wanted);
    }

    /// Returns the devices whose solicitation is due while their link-local address is still
    /// probed. Their solicitation waits for the result, as in Linux. RFC 4861 §6.3.7 allows an
    /// earlier one without a source address, but radvd sends its answer to the unspecified address
    /// then.
    fn early_solicitations(&self, now: Instant) -> Vec<DeviceIndex> {
        let is_due = |link: &&Link| link.next_solicitation.is_some_and(|at| at <= now);
        let mut early: Vec<_> =
            self.autoconf.lock().iter().filter(is_due).map(|link| link.device).collect();
        early.retain(|device| {
            let address = self.link_local(*device);
            address.is_some_and(|address| self.claims.is_tentative(*device, address))
        });
        early
    }

    /// Returns the link-local address of a device, tentative or not.
    fn link_local(&self, device: DeviceIndex) -> Option<IpAddr> {
        let reader = self.rcu.reader();
        let rcu = reader.pin();
        let mut addresses = self.fib(&rcu).addresses_on(device);
        addresses.find(|address| is_link_local(*address))
    }

    fn solicit_routers(&self, cx: &mut Cx, device: DeviceIndex) {
        let source = self.link_local(device);
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
