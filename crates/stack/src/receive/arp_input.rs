//! ARP in: answers questions about our addresses and tells the neighbor table what was learnt.
//!
//! RFC 826 in its own order: update an existing entry, then, if we are the target, create one and answer. Linux:
//! `arp_process`. An answer that nobody asked for creates no entry.
//!
//! Strict modes, in the order of the steps: `drop_gratuitous_arp` drops announcements, `arp_ignore` requests that are not to be
//! answered, and `arp_strict` keeps what remains from changing the neighbor table. Conflicts with our own addresses are noticed
//! before all of them (RFC 5227).

use std::net::IpAddr;

use pkt::{DropReason, Packet, Verdict};

use crate::{
    base::counters::Counter,
    cx::Cx,
    device::LinkType,
    header::arp::{ARP_LEN, ArpOperation, ArpPacket},
    host::Host,
    route::fib::Fib,
    sysctl::modes::ArpIgnore,
    transmit::{dst::RouteKind, link_output::send_arp, neighbor::Advertisement},
};

pub(super) fn input(host: &Host, cx: &mut Cx, mut packet: Packet) -> Verdict {
    cx.count(Counter::ArpInPackets, 1);
    if !packet.require_linear(ARP_LEN) {
        return Verdict::Drop(DropReason::PacketTooShort, packet);
    }
    let arp = match ArpPacket::parse(packet.linear()) {
        Ok(arp) => arp,
        Err(reason) => return Verdict::Drop(reason, packet),
    };
    let device = packet.meta().rx_device;
    let LinkType::Ethernet { mac } = host.device(device).caps().link else {
        return Verdict::Drop(DropReason::EthernetType, packet);
    };
    if arp.sender_mac != mac {
        host.hear_arp(cx, device, &arp);
    }
    match Treatment::of(host, cx, device, &arp) {
        Ok(treatment) => {
            treatment.learn(host, cx, device, &arp);
            if treatment.answers {
                send_arp(host, cx, device, arp.sender_mac, &arp.reply(mac));
            }
            cx.pool.free(packet);
            Verdict::Consumed
        }
        Err(reason) => Verdict::Drop(reason, packet),
    }
}

/// Whether a request that came by `device` is answered, for an address that `owner` has. A probe (RFC 5227) names no sender
/// whose subnet could be compared.
fn is_answered(mode: ArpIgnore, fib: &Fib, device: u32, owner: u32, arp: &ArpPacket) -> bool {
    let [target, sender] = [arp.target_ip, arp.sender_ip].map(IpAddr::V4);
    match mode {
        ArpIgnore::AnyDevice => true,
        ArpIgnore::OwnDevice => owner == device,
        ArpIgnore::OwnSubnet => {
            owner == device && (arp.is_probe() || fib.share_subnet(device, target, sender))
        }
        ArpIgnore::Never => false,
    }
}

/// How an ARP packet is used.
struct Treatment {
    /// The target is an address of this host.
    for_us: bool,
    /// The packet is a request to be answered.
    answers: bool,
}

impl Treatment {
    /// Judges a packet that came by `device`, by the tables and the settings.
    fn of(host: &Host, cx: &Cx, device: u32, arp: &ArpPacket) -> Result<Self, DropReason> {
        let reader = cx.reader();
        let rcu = reader.pin();
        let (fib, sysctls) = (host.fib(&rcu), cx.sysctls());
        if fib.local_kind(IpAddr::V4(arp.sender_ip)).is_some() {
            // Somebody else uses our address (RFC 5227), or one that is nobody's. Learning from it would cut us off.
            return Err(DropReason::ArpSourceInvalid);
        }
        if sysctls.drop_gratuitous_arp && arp.is_gratuitous() {
            return Err(DropReason::ArpIgnored);
        }
        let owner = fib
            .lookup(IpAddr::V4(arp.target_ip))
            .filter(|route| route.kind == RouteKind::Local)
            .map(|route| route.device);
        let mut answers = false;
        if let (Some(owner), ArpOperation::Request) = (owner, arp.operation) {
            if !is_answered(sysctls.arp_ignore, fib, device, owner, arp) {
                return Err(DropReason::ArpIgnored);
            }
            // An address that is still probed is not ours to answer for (RFC 5227 §2.1.1).
            answers = !host.claims().is_tentative(owner, arp.target_ip);
        }
        Ok(Self { for_us: owner.is_some(), answers })
    }

    /// Tells the neighbor table what the packet says about its sender.
    fn learn(&self, host: &Host, cx: &mut Cx, device: u32, arp: &ArpPacket) {
        if arp.is_probe() {
            return;
        }
        let told = Advertisement {
            mac: arp.sender_mac,
            solicited: arp.operation == ArpOperation::Reply && self.for_us,
            gratuitous: arp.is_gratuitous(),
        };
        let may_create = self.answers.then_some(IpAddr::V4(arp.target_ip));
        let sender = (device, IpAddr::V4(arp.sender_ip));
        host.neighbor_table().learn(host, cx, sender, told, may_create);
    }
}
