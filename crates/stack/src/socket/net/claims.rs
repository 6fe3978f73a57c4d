//! Address conflict detection for IPv4 (RFC 5227): probes before an address is used, announcements
//! after, and the defense.
//!
//! Below: ARP (`receive::arp_input`). Above: the code that starts a host, by
//! [`Net::claim_addresses`]. Linux leaves this to user space (systemd-networkd, NetworkManager,
//! arping -D); its kernel has only `arp_notify`.
//!
//! ```text
//!  random wait ─► probe ─► ... ─► probe ─► wait ─► announcement ─► wait ─► announcement
//!  0..1           1..2     1..2            2       in use from here        2
//! ```
//!
//! Times are multiples of `net.quietline.acd_interval_ms`.
//!
//! While an address is probed the host answers no ARP request for it, so no station begins to send
//! to it. Off by default (`net.quietline.acd_probes` is 0): two hosts on one wire in one process
//! need no such check.
//!
//! Differs from RFC 5227 §2.1: an address is not probed again when its device comes up again; it is
//! announced.
//!
//! Not here: the choice of another address, IPv6.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
    vec::Vec,
};

use pkt::Instant;

use super::Net;
use crate::{
    base::{
        counters::Counter,
        ids::{CoreId, DeviceIndex, LOOPBACK},
    },
    cx::{Cx, event::Event},
    header::{
        arp::{ArpOperation, ArpPacket},
        ethernet::MacAddr,
    },
    socket::core_sockets::TimerEntry,
    transmit::{dst::RouteKind, link_output::send_arp},
};

/// ANNOUNCE_NUM of RFC 5227 §1.1.
const ANNOUNCEMENTS: u32 = 2;

/// DEFEND_INTERVAL of RFC 5227 §1.1: shortest time between two announcements that defend an
/// address.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The timer runs on the first core: ARP is not a data path.
const CORE: CoreId = CoreId(0);

/// Addresses that a host has claimed.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Vec<Claim>>);

#[derive(Debug)]
struct Claim {
    device: DeviceIndex,
    address: Ipv4Addr,
    phase: Phase,
    /// Time at which the address was last announced in answer to a conflict.
    defended: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Number of probes sent, and the time of the next step: another probe, or the first
    /// announcement.
    Probing { sent: u32, due: Instant },
    /// Number of announcements sent, and the time of the next.
    Announcing { sent: u32, due: Instant },
    /// The address is in use.
    Held,
    /// Another station already uses the address.
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
        address: Ipv4Addr,
        /// Link address of the other station.
        mac: MacAddr,
    },
}

/// Packet to send for a claim, and event to report.
enum Step {
    Probe { device: DeviceIndex, address: Ipv4Addr },
    Announce { device: DeviceIndex, address: Ipv4Addr, ready: bool },
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Vec<Claim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether no request for the address is answered, because it is still probed or
    /// belongs to another station.
    pub(crate) fn is_tentative(&self, device: DeviceIndex, address: Ipv4Addr) -> bool {
        self.lock().iter().any(|claim| {
            claim.device == device
                && claim.address == address
                && matches!(claim.phase, Phase::Probing { .. } | Phase::Refused { .. })
        })
    }
}

impl Claim {
    fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Probing { due, .. } | Phase::Announcing { due, .. } => Some(due),
            Phase::Held | Phase::Refused { .. } => None,
        }
    }

    /// Takes the next step, if it is due.
    fn advance(&mut self, cx: &mut Cx, probes: u32, interval: Duration) -> Option<Step> {
        if self.due()? > cx.now {
            return None;
        }
        let Self { device, address, .. } = *self;
        let pause = cx.now + 2 * interval;
        match self.phase {
            Phase::Probing { sent, .. } if sent < probes => {
                let last = sent + 1 == probes;
                let wait = if last { 2 * interval } else { interval + random(cx, interval) };
                self.phase = Phase::Probing { sent: sent + 1, due: cx.now + wait };
                Some(Step::Probe { device, address })
            }
            Phase::Probing { .. } => {
                self.phase = Phase::Announcing { sent: 1, due: pause };
                Some(Step::Announce { device, address, ready: true })
            }
            Phase::Announcing { sent, .. } => {
                self.phase = match sent + 1 < ANNOUNCEMENTS {
                    true => Phase::Announcing { sent: sent + 1, due: pause },
                    false => Phase::Held,
                };
                Some(Step::Announce { device, address, ready: false })
            }
            Phase::Held | Phase::Refused { .. } => None,
        }
    }

    /// Updates the claim after an ARP packet of another station.
    fn hear(&mut self, cx: &Cx, arp: &ArpPacket) -> Heard {
        let uses = arp.sender_ip == self.address;
        // RFC 5227 §2.1.1: the other station probes for the same address at the same time.
        let wants = arp.is_probe()
            && arp.operation == ArpOperation::Request
            && arp.target_ip == self.address;
        match self.phase {
            Phase::Probing { .. } if uses || wants => {
                self.phase = Phase::Refused { mac: arp.sender_mac };
                Heard::Refused
            }
            Phase::Announcing { .. } | Phase::Held if uses => {
                if self.defended.is_some_and(|at| cx.now < at + DEFEND_INTERVAL) {
                    return Heard::Again;
                }
                self.defended = Some(cx.now);
                Heard::Defend
            }
            _ => Heard::Nothing,
        }
    }
}

/// Result of an ARP packet of another station for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// The address belongs to the other station.
    Refused,
    /// The address is announced, so that the other station detects the conflict (RFC 5227 §2.4
    /// (c)).
    Defend,
    /// The address was announced less than `DEFEND_INTERVAL` ago.
    Again,
}

/// Returns a random duration below `limit`.
fn random(cx: &mut Cx, limit: Duration) -> Duration {
    let limit = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
    Duration::from_micros(u64::from(cx.rng.below(limit.max(1))))
}

impl Net {
    /// Begins to claim every IPv4 address of this host on an Ethernet device: probes, then
    /// announcements (RFC 5227), as configured by `net.quietline.acd_probes` and
    /// `net.quietline.acd_interval_ms`. Without probes it does nothing. Called once, when the host
    /// can be polled. [`claim_state`](Self::claim_state) returns the outcome, and the host reports
    /// it as events.
    pub fn claim_addresses(&self, cx: &mut Cx) {
        let entered = cx.enter(self);
        let (probes, interval) = (cx.sysctls().acd_probes, cx.sysctls().acd_interval);
        if probes > 0 {
            let claims: Vec<_> = self
                .claimable()
                .map(|(device, address)| {
                    let phase = Phase::Probing { sent: 0, due: cx.now + random(cx, interval) };
                    Claim { device, address, phase, defended: None }
                })
                .collect();
            *self.claims.lock() = claims;
            self.arm_claims();
        }
        cx.leave(entered);
    }

    /// Iterates over the addresses that other stations can also have, each with its device.
    fn claimable(&self) -> impl Iterator<Item = (DeviceIndex, Ipv4Addr)> {
        self.routes().into_iter().filter_map(move |route| match route.prefix.addr() {
            IpAddr::V4(address)
                if route.kind == RouteKind::Local
                    && route.device != LOOPBACK
                    && self.mac_of(route.device).is_some() =>
            {
                Some((route.device, address))
            }
            _ => None,
        })
    }

    /// Returns the state of the claims that [`claim_addresses`](Self::claim_addresses) has begun.
    #[must_use]
    pub fn claim_state(&self) -> ClaimState {
        let claims = self.claims.lock();
        let refused = claims.iter().find_map(|claim| match claim.phase {
            Phase::Refused { mac } => Some(ClaimState::Refused { address: claim.address, mac }),
            _ => None,
        });
        let probing = claims.iter().any(|claim| matches!(claim.phase, Phase::Probing { .. }));
        refused.unwrap_or(if probing { ClaimState::Probing } else { ClaimState::Ready })
    }

    pub(crate) const fn claims(&self) -> &Claims {
        &self.claims
    }

    fn arm_claims(&self) {
        let due = self.claims.lock().iter().filter_map(Claim::due).min();
        if let Some(due) = due {
            self.core_sockets(CORE).arm(due, TimerEntry::Claims);
        }
    }

    /// Takes the due steps of all claims. Called in softirq context.
    pub(crate) fn on_claim_timer(&self, cx: &mut Cx) {
        let (probes, interval) = (cx.sysctls().acd_probes, cx.sysctls().acd_interval);
        let steps: Vec<_> = {
            let mut claims = self.claims.lock();
            claims.iter_mut().filter_map(|claim| claim.advance(cx, probes, interval)).collect()
        };
        for step in steps {
            match step {
                Step::Probe { device, address } => {
                    self.broadcast_arp(cx, device, |mac| {
                        ArpPacket::request(mac, Ipv4Addr::UNSPECIFIED, address)
                    });
                }
                Step::Announce { device, address, ready } => {
                    self.announce(cx, device, address);
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

    /// Handles an ARP packet of another station, in softirq context. Conflicts are counted whether
    /// or not addresses were claimed; only claimed addresses are given up or defended.
    pub(crate) fn hear_arp(&self, cx: &mut Cx, device: DeviceIndex, arp: &ArpPacket) {
        let mut outcome = None;
        for claim in self.claims.lock().iter_mut().filter(|claim| claim.device == device) {
            match claim.hear(cx, arp) {
                Heard::Nothing => {}
                heard => outcome = Some((heard, claim.address)),
            }
        }
        let uses_ours = self.is_local_on(cx, device, IpAddr::V4(arp.sender_ip));
        if uses_ours || outcome.is_some() {
            cx.count(Counter::ArpConflicts, 1);
        }
        let Some((heard, address)) = outcome else { return };
        if heard == Heard::Defend {
            self.announce(cx, device, address);
        }
        if heard != Heard::Again {
            let device = self.device_name(device).into();
            self.report(Event::AddressConflict { device, address, mac: arp.sender_mac });
        }
    }

    fn announce(&self, cx: &mut Cx, device: DeviceIndex, address: Ipv4Addr) {
        self.broadcast_arp(cx, device, |mac| ArpPacket::announcement(mac, address));
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
