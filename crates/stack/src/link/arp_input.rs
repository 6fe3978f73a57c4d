//! ARP in: answers questions about our addresses and tells the neighbour table what was learnt.
//!
//! RFC 826 in its own order: update an existing entry, then, if we are the target, create one and answer. Linux:
//! `arp_process`. An answer that nobody asked for creates no entry.

use std::net::IpAddr;

use pkt::{DropReason, Packet, Verdict};

use super::{
    arp::{ARP_LEN, ArpOperation, ArpPacket},
    output::send_arp,
};
use crate::{counters::Counter, cx::Cx, device::LinkType, host::Host, neighbour::Advertisement};

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
    if host.fib(&cx.reader().pin()).local_kind(IpAddr::V4(arp.sender_ip)).is_some() {
        // Somebody else uses our address (RFC 5227), or one that is nobody's. Learning from it would cut us off.
        return Verdict::Drop(DropReason::ArpSourceInvalid, packet);
    }
    // An address that is still probed is not ours to answer for (RFC 5227 §2.1.1).
    let for_us = host.is_local_on(cx, device, IpAddr::V4(arp.target_ip))
        && !host.claims().is_tentative(device, arp.target_ip);
    if !arp.is_probe() {
        let told = Advertisement {
            mac: arp.sender_mac,
            solicited: arp.operation == ArpOperation::Reply && for_us,
            gratuitous: arp.is_gratuitous(),
        };
        let asked_us = for_us && arp.operation == ArpOperation::Request;
        let may_create = asked_us.then_some(IpAddr::V4(arp.target_ip));
        let sender = (device, IpAddr::V4(arp.sender_ip));
        host.neighbours().learn(host, cx, sender, told, may_create);
    }
    if for_us && arp.operation == ArpOperation::Request {
        send_arp(host, cx, device, arp.sender_mac, &arp.reply(mac));
    }
    cx.pool.free(packet);
    Verdict::Consumed
}
