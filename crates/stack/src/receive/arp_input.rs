//! ARP input: replies to requests for our addresses and updates the neighbor table.
//!
//! The steps have the order of RFC 826: an existing neighbor entry is updated; then, if this host
//! is the target of a request, an entry is created and the reply is sent. A reply creates no entry.
//! Linux: `arp_process`.
//!
//! Three settings restrict these steps, in this order: `drop_gratuitous_arp` drops announcements,
//! `arp_ignore` selects requests that get no reply, and `arp_strict` selects which of the remaining
//! packets may change the neighbor table. Conflicts with our own addresses are detected before all
//! three (RFC 5227).

use std::net::IpAddr;

use pkt::{DropReason, Packet, Verdict};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    device::LinkType,
    header::arp::{ARP_LEN, ArpOperation, ArpPacket},
    route::fib::Fib,
    socket::rx::Rx,
    sysctl::modes::ArpIgnore,
    transmit::{
        dst::RouteKind,
        link_output::send_arp,
        neighbor::{Advertisement, LinkChange},
    },
};

pub(super) fn input(rx: &mut Rx<'_, '_>, mut packet: Packet) -> Verdict {
    let net = rx.net;
    rx.cx.count(Counter::ArpInPackets, 1);
    if !packet.require_linear(ARP_LEN) {
        return Verdict::Drop(DropReason::PacketTooShort, packet);
    }
    let arp = match ArpPacket::parse(packet.linear()) {
        Ok(arp) => arp,
        Err(reason) => return Verdict::Drop(reason, packet),
    };
    let device = DeviceIndex(packet.meta().rx_device);
    let LinkType::Ethernet { mac } = net.device(device).caps().link else {
        return Verdict::Drop(DropReason::EthernetType, packet);
    };
    if arp.sender_mac != mac {
        net.check_arp_conflict(rx.cx, device, &arp);
    }
    match Treatment::of(rx, device, &arp) {
        Ok(treatment) => {
            treatment.learn(rx, device, &arp);
            if treatment.answers {
                send_arp(net.tx(device), rx.cx, arp.sender_mac, &arp.reply(mac));
            }
            rx.cx.pool.free(packet);
            Verdict::Consumed
        }
        Err(reason) => Verdict::Drop(reason, packet),
    }
}

/// Whether a request gets a reply if `device` has received it and its target is an address of the
/// device `owner`. A probe (RFC 5227) has no sender address, so its subnet is not compared.
fn is_answered(
    mode: ArpIgnore,
    fib: &Fib,
    device: DeviceIndex,
    owner: DeviceIndex,
    arp: &ArpPacket,
) -> bool {
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

/// Decision about an ARP packet.
struct Treatment {
    /// True if the target is an address of this host.
    for_us: bool,
    /// True if the packet is a request that gets a reply.
    answers: bool,
}

impl Treatment {
    /// Decides about a packet that `device` has received, by the forwarding table and the settings.
    fn of(rx: &Rx<'_, '_>, device: DeviceIndex, arp: &ArpPacket) -> Result<Self, DropReason> {
        let (fib, sysctls) = (rx.net.fib(rx.rcu), rx.cx.sysctls());
        if fib.local_kind(IpAddr::V4(arp.sender_ip)).is_some() {
            // The sender uses one of our addresses (RFC 5227), or a broadcast or multicast address.
            // A neighbor entry for such an address would cut this host off.
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
            // An address that is still being probed is tentative: requests for it must not be
            // answered (RFC 5227 §2.1.1).
            answers = !rx.net.claims().is_tentative(owner, IpAddr::V4(arp.target_ip));
        }
        Ok(Self { for_us: owner.is_some(), answers })
    }

    /// Passes the IP address and the link address of the sender to the neighbor table.
    fn learn(&self, rx: &mut Rx<'_, '_>, device: DeviceIndex, arp: &ArpPacket) {
        if arp.is_probe() {
            return;
        }
        let advertisement = Advertisement {
            mac: arp.sender_mac,
            solicited: arp.operation == ArpOperation::Reply && self.for_us,
            change: match arp.is_gratuitous() {
                true => LinkChange::AtOnce,
                false => LinkChange::AfterLock,
            },
        };
        let may_create = self.answers.then_some(IpAddr::V4(arp.target_ip));
        let sender = IpAddr::V4(arp.sender_ip);
        rx.net.neighbor_table(sender).learn(rx.cx, device, sender, advertisement, may_create);
    }
}
