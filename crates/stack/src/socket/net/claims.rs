//! Address conflict detection (RFC 5227) and duplicate address detection (RFC 4862 §5.4): an
//! address is probed before it is used, an IPv4 address is then announced, and a used address is
//! defended. Both protocols share one state machine; they differ in packets and times.
//!
//! Below: ARP (`receive::arp_input`), neighbor discovery (`receive::ndp_input`). Above: the code
//! that starts a host ([`Net::claim_addresses`]) or changes its addresses, and `autoconf`. Linux:
//! net/ipv6/addrconf.c (`addrconf_dad_work`). Linux leaves RFC 5227 to user space
//! (systemd-networkd, NetworkManager, arping -D); the kernel has only `arp_notify`.
//!
//! | step | time since the previous step, IPv4 | the same, IPv6 |
//! |---|---|---|
//! | first probe | 0 to 1, random | 0 to 1, random |
//! | each other probe | 1 to 2, random | 1 |
//! | use of the address, for IPv4 with an announcement | 2 | 1 |
//! | second announcement | 2 | none |
//!
//! The unit for IPv4 is `net.quietline.acd_interval_ms`, and that for IPv6 the retransmission time
//! of neighbor discovery. `net.quietline.acd_probes` and `net.ipv6.conf.all.dad_transmits` are the
//! numbers of probes.
//!
//! Probes for an IPv6 address contain a random number, so that a probe that a loop in the link
//! sends back is not taken for that of another station (RFC 7527,
//! `net.ipv6.conf.all.enhanced_dad`). For IPv4, the link address of the sender shows this.
//!
//! While an address is probed, the host answers no request for it, so no station begins to send to
//! it. For IPv4 the probes are off by default (`net.quietline.acd_probes` is 0): two hosts of one
//! process on one wire (the in-process link between two hosts) need no such check.
//!
//! Differs from RFC 5227 §2.1: an address is not probed again when its device comes up again; it is
//! announced.
//!
//! Not here: the choice of another address.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
    vec::Vec,
};

use pkt::Instant;
use sync::epoch::Section;

use super::{Net, group_reports::ALL_HOSTS};
use crate::{
    base::{
        armed_timers::ArmedTimers,
        counters::Counter,
        ids::{CoreId, DeviceIndex, LOOPBACK},
    },
    cx::{Cx, event::Event},
    header::{
        arp::{ArpOperation, ArpPacket},
        ethernet::MacAddr,
        ndp::{self, NdpMessage, Nonce},
    },
    socket::{core_sockets::TimerEntry, datagram::groups::Membership},
    transmit::{
        dst::RouteKind,
        link_output::send_arp,
        ndp_output::{self, NdpEnds},
    },
};

/// ANNOUNCE_NUM of RFC 5227 §1.1.
const ANNOUNCEMENTS: u32 = 2;

/// DEFEND_INTERVAL of RFC 5227 §1.1: shortest time between two announcements that defend an
/// address.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The timer runs on the first core, because claims are not on the data path.
const CORE: CoreId = CoreId(0);

/// Addresses that a host has claimed.
#[derive(Debug)]
pub(crate) struct Claims {
    list: Mutex<Vec<Claim>>,
    /// Entries in the timer wheel: no more are armed than needed, although routers can announce any
    /// number of prefixes, and stations can dispute any number of probes.
    armed: ArmedTimers,
}

impl Default for Claims {
    fn default() -> Self {
        Self { list: Mutex::default(), armed: ArmedTimers::new() }
    }
}

#[derive(Debug)]
struct Claim {
    device: DeviceIndex,
    address: IpAddr,
    /// True for an address formed from a router's prefix. Such an address is probed before the host
    /// has it.
    is_auto: bool,
    phase: Phase,
    /// Time at which the address was last defended, that is, announced because of a conflict.
    defended: Option<Instant>,
    /// Random number of the probes.
    nonce: Option<Nonce>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Number of probes sent, and the time of the next step: another probe, or the use of the
    /// address.
    Probing { sent: u32, due: Instant },
    /// Number of announcements sent, and the time of the next.
    Announcing { sent: u32, due: Instant },
    /// The address is in use.
    Held,
    /// Another station uses the address, or probes for it.
    Refused { mac: MacAddr },
}

/// State of the claims of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Every address may be used. Also the state of a host that claims none.
    Ready,
    /// Probes are under way.
    Probing,
    /// Another station has this address, so this host must not use it.
    Refused {
        /// The address.
        address: IpAddr,
        /// Link address of the other station.
        mac: MacAddr,
    },
}

/// Step of a claim that is due: a packet to send, or the use of an address, with the event to
/// report.
enum Step {
    /// `first` is true for the first probe of the address.
    Probe {
        device: DeviceIndex,
        address: IpAddr,
        first: bool,
        nonce: Option<Nonce>,
    },
    Announce {
        device: DeviceIndex,
        address: IpAddr,
        ready: bool,
        is_auto: bool,
    },
}

/// Use of an address by another station, or a probe of another station for the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressUse {
    pub(crate) address: IpAddr,
    /// Link address of the station.
    pub(crate) mac: MacAddr,
    /// True if the station probes for the address, as this host may do at the same time.
    pub(crate) probes: bool,
}

impl AddressUse {
    /// Returns the use of an address, or the probe for one, that an ARP packet shows; `None` if it
    /// shows neither.
    pub(crate) fn of_arp(arp: &ArpPacket) -> Option<Self> {
        let probes = arp.is_probe();
        let address = IpAddr::V4(if probes { arp.target_ip } else { arp.sender_ip });
        let is_sign = !probes || arp.operation == ArpOperation::Request;
        is_sign.then_some(Self { address, mac: arp.sender_mac, probes })
    }
}

/// Number of probes and times of a claim.
struct Timing {
    probes: u32,
    /// Shortest time between two probes.
    interval: Duration,
    /// Largest random time added to `interval`.
    jitter: Duration,
    /// Time from the last probe to the use of the address.
    wait: Duration,
    announcements: u32,
}

impl Timing {
    fn of(cx: &Cx, address: IpAddr) -> Self {
        let sysctls = cx.sysctls();
        let (interval, retrans) = (sysctls.acd_interval, sysctls.neigh_v6.retrans_time);
        match address {
            IpAddr::V4(_) => Self {
                probes: sysctls.acd_probes,
                interval,
                jitter: interval,
                wait: 2 * interval,
                announcements: ANNOUNCEMENTS,
            },
            IpAddr::V6(_) => Self {
                probes: sysctls.dad_transmits,
                interval: retrans,
                jitter: Duration::ZERO,
                wait: retrans,
                announcements: 0,
            },
        }
    }
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Vec<Claim>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether requests for the address stay unanswered, because the address is still
    /// probed or belongs to another station.
    pub(crate) fn is_tentative(&self, device: DeviceIndex, address: IpAddr) -> bool {
        self.lock().iter().any(|claim| {
            claim.device == device
                && claim.address == address
                && matches!(claim.phase, Phase::Probing { .. } | Phase::Refused { .. })
        })
    }

    /// Returns whether a probe for the address with this random number is one of this host.
    pub(crate) fn has_sent(&self, device: DeviceIndex, address: Ipv6Addr, nonce: Nonce) -> bool {
        self.lock().iter().any(|claim| {
            claim.device == device
                && claim.address == IpAddr::V6(address)
                && claim.nonce == Some(nonce)
        })
    }
}

impl Claim {
    /// Returns the claim of an address; `None` if no probes are configured for its family.
    fn new(cx: &mut Cx, device: DeviceIndex, address: IpAddr, is_auto: bool) -> Option<Self> {
        let Timing { probes, interval, .. } = Timing::of(cx, address);
        if probes == 0 {
            return None;
        }
        let phase = Phase::Probing { sent: 0, due: cx.now + random(cx, interval) };
        let has_nonce = address.is_ipv6() && cx.sysctls().enhanced_dad;
        let nonce = has_nonce.then(|| {
            let [nonce @ .., _, _] = cx.rng.next_u64().to_be_bytes();
            nonce
        });
        Some(Self { device, address, is_auto, phase, defended: None, nonce })
    }

    fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Probing { due, .. } | Phase::Announcing { due, .. } => Some(due),
            Phase::Held | Phase::Refused { .. } => None,
        }
    }

    /// Moves to the next phase or probe, if it is due, and returns the step to perform.
    fn advance(&mut self, cx: &mut Cx) -> Option<Step> {
        if self.due()? > cx.now {
            return None;
        }
        let Self { device, address, .. } = *self;
        let timing = Timing::of(cx, address);
        let pause = cx.now + 2 * timing.interval;
        match self.phase {
            Phase::Probing { sent, .. } if sent < timing.probes => {
                let last = sent + 1 == timing.probes;
                let wait = match last {
                    true => timing.wait,
                    false => timing.interval + random(cx, timing.jitter),
                };
                self.phase = Phase::Probing { sent: sent + 1, due: cx.now + wait };
                Some(Step::Probe { device, address, first: sent == 0, nonce: self.nonce })
            }
            Phase::Probing { .. } => {
                self.phase = match timing.announcements {
                    0 => Phase::Held,
                    _ => Phase::Announcing { sent: 1, due: pause },
                };
                Some(Step::Announce { device, address, ready: true, is_auto: self.is_auto })
            }
            Phase::Announcing { sent, .. } => {
                self.phase = match sent + 1 < timing.announcements {
                    true => Phase::Announcing { sent: sent + 1, due: pause },
                    false => Phase::Held,
                };
                Some(Step::Announce { device, address, ready: false, is_auto: self.is_auto })
            }
            Phase::Held | Phase::Refused { .. } => None,
        }
    }

    /// Updates the claim after another station has used or probed for an address.
    fn on_use(&mut self, cx: &Cx, seen: AddressUse) -> Conflict {
        if seen.address != self.address {
            return Conflict::None;
        }
        match self.phase {
            // RFC 5227 §2.1.1, RFC 4862 §5.4.3: the claim is also refused if the other station
            // probes for the same address at the same time.
            Phase::Probing { .. } => {
                self.phase = Phase::Refused { mac: seen.mac };
                Conflict::Refused
            }
            Phase::Announcing { .. } | Phase::Held if !seen.probes => {
                if self.defended.is_some_and(|at| cx.now < at + DEFEND_INTERVAL) {
                    return Conflict::DefendedRecently;
                }
                self.defended = Some(cx.now);
                Conflict::Defend
            }
            _ => Conflict::None,
        }
    }
}

/// Effect on a claim when another station uses or probes for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conflict {
    None,
    /// The address belongs to the other station.
    Refused,
    /// The address is announced, so that the other station detects the conflict (RFC 5227 §2.4
    /// (c)).
    Defend,
    /// The address was defended less than `DEFEND_INTERVAL` ago, so it is not announced.
    DefendedRecently,
}

/// Returns a random duration below `limit`.
fn random(cx: &mut Cx, limit: Duration) -> Duration {
    let limit = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
    Duration::from_micros(u64::from(cx.rng.below(limit.max(1))))
}

impl Net {
    /// Begins to claim every address of this host on an Ethernet device: probes, then announcements
    /// (RFC 5227), as configured by `net.quietline.acd_probes` and `net.quietline.acd_interval_ms`;
    /// for IPv6 `net.ipv6.conf.all.dad_transmits` probes (RFC 4862). If the number of probes is 0,
    /// no address of its family is claimed. Also begins to solicit routers (`autoconf`), if
    /// `accept_ra` is on. Called once, when the host can be polled.
    /// [`claim_state`](Self::claim_state) returns the outcome, and the host reports it as events.
    pub fn claim_addresses(&self, cx: &mut Cx) {
        let entered = cx.enter(self);
        let claims: Vec<_> = self
            .claimable()
            .filter_map(|(device, address)| Claim::new(cx, device, address, false))
            .collect();
        if !claims.is_empty() {
            *self.claims.lock() = claims;
            self.arm_claims();
        }
        self.start_autoconf(cx);
        cx.leave(entered);
    }

    /// Begins to probe for an address that is formed from a router's prefix.
    /// [`on_auto_address`](Self::on_auto_address) gets the result: at once, if no probes are
    /// configured.
    pub(super) fn claim_auto(&self, cx: &mut Cx, device: DeviceIndex, address: IpAddr) {
        let Some(claim) = Claim::new(cx, device, address, true) else {
            return self.on_auto_address(cx, device, address, true);
        };
        self.claims.lock().push(claim);
        self.arm_claims();
    }

    /// Begins to claim an address that this host has just got. Nothing happens on a device without
    /// link addresses, and if no probes are configured for the family of the address.
    pub(crate) fn claim_address(&self, cx: &mut Cx, device: DeviceIndex, address: IpAddr) {
        if self.mac_of(device).is_none() {
            return;
        }
        let Some(claim) = Claim::new(cx, device, address, false) else { return };
        self.claims.lock().push(claim);
        self.arm_claims();
    }

    /// Removes the claim of an address that this host gives up.
    pub(crate) fn forget_claim(&self, device: DeviceIndex, address: IpAddr) {
        self.claims.lock().retain(|claim| claim.device != device || claim.address != address);
    }

    /// Returns whether packets to the multicast group `group` that arrive on `device` are for this
    /// host: the groups that its sockets have joined, and those of which every host is a member
    /// (the group of all hosts, and the solicited-node groups of its addresses, including addresses
    /// that are still probed).
    #[cold]
    pub(crate) fn is_member(&self, rcu: &Section<'_>, device: DeviceIndex, group: IpAddr) -> bool {
        if self.groups().is_member(device, group, rcu) {
            return true;
        }
        let group = match group {
            IpAddr::V4(group) => return group == ALL_HOSTS,
            IpAddr::V6(group) => group,
        };
        let is_of = |address| matches!(address, IpAddr::V6(ip) if ndp::solicited_node(ip) == group);
        group == ndp::ALL_NODES
            || self.fib(rcu).addresses_on(device).any(is_of)
            || self.claims.lock().iter().any(|claim| claim.device == device && is_of(claim.address))
    }

    /// Returns the solicited-node groups of the addresses of a device, including addresses that are
    /// still probed.
    #[cold]
    pub(super) fn solicited_groups(&self, rcu: &Section<'_>, device: DeviceIndex) -> Vec<IpAddr> {
        let group_of = |address| match address {
            IpAddr::V6(ip) => Some(IpAddr::V6(ndp::solicited_node(ip))),
            IpAddr::V4(_) => None,
        };
        let mut groups: Vec<_> = self.fib(rcu).addresses_on(device).filter_map(group_of).collect();
        let claims = self.claims.lock();
        let on_device = claims.iter().filter(|claim| claim.device == device);
        groups.extend(on_device.filter_map(|claim| group_of(claim.address)));
        groups
    }

    /// Iterates over the addresses that another station can also have, each with its device: those
    /// on Ethernet devices.
    fn claimable(&self) -> impl Iterator<Item = (DeviceIndex, IpAddr)> {
        self.routes().into_iter().filter_map(move |route| {
            let is_claimable = route.kind == RouteKind::Local
                && route.device != LOOPBACK
                && self.mac_of(route.device).is_some();
            is_claimable.then_some((route.device, route.prefix.addr()))
        })
    }

    /// Returns the state of all claims together: those that
    /// [`claim_addresses`](Self::claim_addresses) has begun, and later ones.
    #[must_use]
    pub fn claim_state(&self) -> ClaimState {
        self.claim_state_where(|_| true)
    }

    /// Returns the state of the claim of `address` on `device`.
    #[must_use]
    pub fn claim_state_of(&self, device: DeviceIndex, address: IpAddr) -> ClaimState {
        self.claim_state_where(|claim| claim.device == device && claim.address == address)
    }

    fn claim_state_where(&self, is_meant: impl Fn(&Claim) -> bool) -> ClaimState {
        let claims = self.claims.lock();
        let refused = claims.iter().filter(|claim| is_meant(claim)).find_map(|claim| {
            let Phase::Refused { mac } = claim.phase else { return None };
            Some(ClaimState::Refused { address: claim.address, mac })
        });
        let is_probing =
            |claim: &Claim| is_meant(claim) && matches!(claim.phase, Phase::Probing { .. });
        let probing = claims.iter().any(is_probing);
        refused.unwrap_or(if probing { ClaimState::Probing } else { ClaimState::Ready })
    }

    pub(crate) const fn claims(&self) -> &Claims {
        &self.claims
    }

    fn arm_claims(&self) {
        let due = {
            let claims = self.claims.lock();
            let due = claims.iter().filter_map(Claim::due).min();
            due.filter(|due| self.claims.armed.must_arm(*due))
        };
        if let Some(due) = due {
            self.core_sockets(CORE).arm(due, TimerEntry::Claims);
        }
    }

    /// Softirq: performs the due steps of all claims.
    pub(crate) fn on_claim_timer(&self, cx: &mut Cx) {
        self.claims.armed.fired(cx.now);
        let steps: Vec<_> = {
            let mut claims = self.claims.lock();
            claims.iter_mut().filter_map(|claim| claim.advance(cx)).collect()
        };
        for step in steps {
            match step {
                Step::Probe { device, address: IpAddr::V4(address), .. } => {
                    self.broadcast_arp(cx, device, |mac| {
                        ArpPacket::request(mac, Ipv4Addr::UNSPECIFIED, address)
                    });
                }
                Step::Probe { device, address: IpAddr::V6(address), first, nonce } => {
                    if first {
                        // RFC 4862 §5.4.2: without the report, a switch that observes MLD would not
                        // forward the solicitations of another station to this host.
                        let group = ndp::solicited_node(address).into();
                        self.on_group_joined(cx, Membership { device, group });
                    }
                    ndp_output::probe(self.tx(device), cx, address, nonce);
                }
                Step::Announce { device, address, ready, is_auto } => {
                    if is_auto {
                        self.on_auto_address(cx, device, address, true);
                    }
                    if address.is_ipv4() {
                        self.announce(cx, device, address);
                    }
                    if ready {
                        let device = self.device_name(device).into();
                        self.report(Event::AddressReady { device, address });
                    }
                }
            }
        }
        self.arm_claims();
    }

    /// Announces the claimed addresses of a device that has come up again.
    pub(crate) fn announce_addresses_of(&self, cx: &mut Cx, device: DeviceIndex) {
        let held: Vec<_> = {
            let claims = self.claims.lock();
            let is_held = |claim: &&Claim| {
                claim.device == device
                    && matches!(claim.phase, Phase::Announcing { .. } | Phase::Held)
            };
            claims.iter().filter(is_held).map(|claim| claim.address).collect()
        };
        for address in held {
            self.announce(cx, device, address);
        }
    }

    /// Softirq: handles an ARP packet of another station. Conflicts are counted whether or not
    /// addresses were claimed; only claimed addresses are given up or defended.
    pub(crate) fn check_arp_conflict(&self, cx: &mut Cx, device: DeviceIndex, arp: &ArpPacket) {
        let conflict =
            AddressUse::of_arp(arp).is_some_and(|seen| self.check_conflict(cx, device, seen));
        if conflict || self.is_local_on(cx, device, IpAddr::V4(arp.sender_ip)) {
            cx.count(Counter::ArpConflicts, 1);
        }
    }

    /// Passes the use of an address by another station to the claims of `device`. Returns whether
    /// it conflicts with one of them.
    pub(crate) fn check_conflict(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        seen: AddressUse,
    ) -> bool {
        let mut outcome = Conflict::None;
        for claim in self.claims.lock().iter_mut().filter(|claim| claim.device == device) {
            match claim.on_use(cx, seen) {
                Conflict::None => {}
                conflict => outcome = conflict,
            }
        }
        let AddressUse { address, mac, .. } = seen;
        if outcome == Conflict::Defend {
            self.announce(cx, device, address);
        }
        if matches!(outcome, Conflict::Defend | Conflict::Refused) {
            let device = self.device_name(device).into();
            self.report(Event::AddressConflict { device, address, mac });
        }
        let is_auto = |claim: &Claim| claim.is_auto && claim.address == address;
        if outcome == Conflict::Refused && self.claims.lock().iter().any(is_auto) {
            self.on_auto_address(cx, device, address, false);
        }
        outcome != Conflict::None
    }

    /// Announces an address to all stations of a link: an ARP announcement, or an unsolicited
    /// advertisement (RFC 4861 §7.2.6).
    fn announce(&self, cx: &mut Cx, device: DeviceIndex, address: IpAddr) {
        match address {
            IpAddr::V4(address) => {
                self.broadcast_arp(cx, device, |mac| ArpPacket::announcement(mac, address));
            }
            IpAddr::V6(target) => {
                let message = NdpMessage::NeighborAdvertisement {
                    target,
                    target_mac: self.mac_of(device),
                    router: false,
                    solicited: false,
                    replaces: true,
                };
                let ends = NdpEnds { src: target, dst: ndp::ALL_NODES, mac: None };
                ndp_output::send(self.tx(device), cx, ends, &message);
            }
        }
    }

    fn broadcast_arp(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        packet: impl FnOnce(MacAddr) -> ArpPacket,
    ) {
        if let Some(mac) = self.mac_of(device) {
            send_arp(self.tx(device), cx, MacAddr::BROADCAST, &packet(mac));
        }
    }
}
