//! Link layer input: removes the link header, drops frames for other hosts, and dispatches on the
//! protocol.
//!
//! Above: `napi`, and the backlog of a core (packets that other cores steered to it). Below:
//! `ip_input`, `arp_input`. Linux: `__netif_receive_skb_core`.

use pkt::{DropReason, Packet, PacketList, PacketType, Verdict};

use super::{arp_input, ip_input};
use crate::{
    base::ids::DeviceIndex,
    device::LinkType,
    header::{
        ethernet::EthernetHeader,
        ip::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6},
        strip,
    },
    socket::rx::Rx,
};

/// Device that has received a frame, and the type of its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameSource {
    pub(crate) device: DeviceIndex,
    pub(crate) link: LinkType,
}

/// Passes a list of frames from one device, oldest first, to their protocols, and leaves the list
/// empty. `last` is true if no further frame follows in this poll. An IP packet uses the connection
/// or the route entry of the previous packet if that fits. Linux:
/// `netif_receive_skb_list_internal`, `__netif_receive_skb_list_core`.
pub(crate) fn input_list<'s>(
    rx: &mut Rx<'_, 's>,
    from: FrameSource,
    list: &mut PacketList,
    last: bool,
) {
    let mut ip = ip_input::ListInput::new();
    while let Some(packet) = list.pop_front() {
        rx.flow.set_last(last && list.is_empty());
        input_on(rx, from, &mut ip, packet);
    }
    rx.flow.set_last(false);
    ip.finish(rx.cx);
}

/// Passes one frame to its protocol. `last` is true if no further frame follows in this poll.
/// Linux: `netif_receive_skb`.
pub(crate) fn input<'s>(rx: &mut Rx<'_, 's>, from: FrameSource, packet: Packet, last: bool) {
    let mut ip = ip_input::ListInput::new();
    rx.flow.set_last(last);
    input_on(rx, from, &mut ip, packet);
    rx.flow.set_last(false);
    ip.finish(rx.cx);
}

/// Passes one frame to its protocol, and counts and frees a dropped frame.
fn input_on<'s>(
    rx: &mut Rx<'_, 's>,
    from: FrameSource,
    ip: &mut ip_input::ListInput<'s>,
    mut packet: Packet,
) {
    packet.meta_mut().rx_device = from.device.0;
    let verdict = match classify(from.link, &mut packet) {
        Ok(()) => match packet.meta().protocol {
            ETHER_TYPE_IPV4 => ip.push::<true>(rx, packet),
            ETHER_TYPE_IPV6 => ip.push::<false>(rx, packet),
            crate::header::arp::ETHER_TYPE_ARP => arp_input::input(rx, packet),
            _ => Verdict::Drop(DropReason::EthernetType, packet),
        },
        Err(reason) => Verdict::Drop(reason, packet),
    };
    if let Verdict::Drop(reason, packet) = verdict {
        rx.cx.drop_packet(reason, packet);
    }
}

/// Removes the link header, and sets the protocol and the packet type of the packet.
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

/// Sets the protocol from the version field of the IP header, because the link has no header.
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
