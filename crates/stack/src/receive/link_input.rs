//! Link layer input: removes the link header, drops frames for other hosts, and dispatches on the
//! protocol.
//!
//! Above: `napi` and the backlog of a core. Below: `ip_input`, `arp_input`. Linux:
//! `__netif_receive_skb_core`.

use pkt::{DropReason, Packet, PacketList, PacketType, Verdict};
use sync::epoch::Section;

use super::{arp_input, flow::Flow, ip_input};
use crate::{
    cx::Cx,
    device::LinkType,
    header::{
        ethernet::EthernetHeader,
        ip::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6},
        strip,
    },
    socket::net::Net,
};

/// Passes a list of frames from `device`, oldest first, to their protocols and leaves the list
/// empty. `last`: no frame follows in this poll. Consecutive IP packets reuse the connection or
/// route found for the previous one. Linux: `netif_receive_skb_list_internal`,
/// `__netif_receive_skb_list_core`.
pub(crate) fn input_list<'s>(
    net: &'s Net,
    cx: &mut Cx,
    rcu: &'s Section<'_>,
    flow: &mut Flow<'s>,
    (device, link): (u32, LinkType),
    list: &mut PacketList,
    last: bool,
) {
    let mut ip = ip_input::ListInput::new();
    while let Some(packet) = list.pop_front() {
        flow.set_last(last && list.is_empty());
        input_on(net, cx, rcu, flow, (device, link), &mut ip, packet);
    }
    flow.set_last(false);
    ip.finish(cx);
}

/// Passes one frame from `device` to its protocol. `last`: no frame follows in this poll. Linux:
/// `netif_receive_skb`.
pub(crate) fn input<'s>(
    net: &'s Net,
    cx: &mut Cx,
    rcu: &'s Section<'_>,
    flow: &mut Flow<'s>,
    from: (u32, LinkType),
    packet: Packet,
    last: bool,
) {
    let mut ip = ip_input::ListInput::new();
    flow.set_last(last);
    input_on(net, cx, rcu, flow, from, &mut ip, packet);
    flow.set_last(false);
    ip.finish(cx);
}

/// Passes one frame to its protocol and counts it if it is dropped.
fn input_on<'s>(
    net: &'s Net,
    cx: &mut Cx,
    rcu: &'s Section<'_>,
    flow: &mut Flow<'s>,
    (device, link): (u32, LinkType),
    ip: &mut ip_input::ListInput<'s>,
    mut packet: Packet,
) {
    packet.meta_mut().rx_device = device;
    let verdict = match classify(link, &mut packet) {
        Ok(()) => match packet.meta().protocol {
            ETHER_TYPE_IPV4 => ip.push::<true>(net, cx, rcu, flow, packet),
            crate::header::arp::ETHER_TYPE_ARP => arp_input::input(net, cx, packet),
            _ => Verdict::Drop(DropReason::EthernetType, packet),
        },
        Err(reason) => Verdict::Drop(reason, packet),
    };
    if let Verdict::Drop(reason, packet) = verdict {
        cx.drop_packet(reason, packet);
    }
}

/// Removes the link header, and notes the protocol and the packet type.
#[inline]
fn classify(link: LinkType, packet: &mut Packet) -> Result<(), DropReason> {
    match link {
        LinkType::Ethernet { mac } => strip_ethernet(mac, packet),
        LinkType::Ip => classify_bare_ip(packet),
    }
}

fn strip_ethernet(
    mac: crate::header::ethernet::MacAddr,
    packet: &mut Packet,
) -> Result<(), DropReason> {
    if !packet.require_linear(crate::header::ethernet::HEADER_LEN) {
        return Err(DropReason::PacketTooShort);
    }
    let header = EthernetHeader::parse(packet.linear())?;
    strip(packet, crate::header::ethernet::HEADER_LEN);
    let meta = packet.meta_mut();
    meta.protocol = header.ether_type();
    meta.pkt_type = header.packet_type(mac);
    if meta.pkt_type == PacketType::OtherHost {
        return Err(DropReason::OtherHost);
    }
    Ok(())
}

/// Derives the protocol from the version nibble: the link has no header.
fn classify_bare_ip(packet: &mut Packet) -> Result<(), DropReason> {
    if !packet.require_linear(1) {
        return Err(DropReason::PacketTooShort);
    }
    let protocol = match packet.linear()[0] >> 4 {
        4 => ETHER_TYPE_IPV4,
        6 => ETHER_TYPE_IPV6,
        _ => return Err(DropReason::IpVersion),
    };
    let meta = packet.meta_mut();
    meta.protocol = protocol;
    meta.pkt_type = PacketType::Host;
    Ok(())
}
