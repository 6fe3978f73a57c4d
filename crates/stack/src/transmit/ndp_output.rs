//! Sending of neighbor discovery messages (RFC 4861): solicitations of neighbors and routers, and
//! advertisements of this host's addresses.
//!
//! Above: neighbor entries, address probes, and `receive::ndp_input`, which answers. Below:
//! `link_output::send_control`. Linux: `ndisc_send_ns`, `ndisc_send_na`, `ndisc_send_rs`.
//!
//! Messages need no route lookup, because their destination is always on the link of the device.
//! The link address of a multicast destination follows from its group. That of a unicast
//! destination is known from the neighbor entry, or from the solicitation that a message answers.
//!
//! Not here: ARP (`link_output::send_arp`), the formats (`header::ndp`).

use std::net::{IpAddr, Ipv6Addr};

use pkt::DropReason;

use super::{link_output::send_control, tx_queue::DeviceTx};
use crate::{
    base::counters::Counter,
    cx::Cx,
    device::LinkType,
    header::{
        ethernet::MacAddr,
        icmp::{self, CHECKSUM_OFFSET},
        ip::{ETHER_TYPE_IPV6, Fragment, IPV6_HEADER_LEN, IpHeader, protocol},
        ndp::{self, HOP_LIMIT, MESSAGE_LEN_MAX, NdpMessage, Nonce},
    },
};

/// Addresses of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NdpEnds {
    pub(crate) src: Ipv6Addr,
    pub(crate) dst: Ipv6Addr,
    /// Link address of the receiver. `None`: the link address of the multicast group `dst`.
    pub(crate) mac: Option<MacAddr>,
}

/// Sends a neighbor solicitation for the link address of `target`, from the address `source`. If
/// `unicast` is given, the message goes to this known link address only, to confirm it; otherwise
/// to all hosts that may have the address.
pub(crate) fn solicit(
    tx: &DeviceTx,
    cx: &mut Cx,
    source: Ipv6Addr,
    target: Ipv6Addr,
    unicast: Option<MacAddr>,
) {
    let LinkType::Ethernet { mac: own } = tx.link() else { return };
    let dst = if unicast.is_some() { target } else { ndp::solicited_node(target) };
    let message = NdpMessage::NeighborSolicitation { target, source_mac: Some(own), nonce: None };
    send(tx, cx, NdpEnds { src: source, dst, mac: unicast }, &message);
}

/// Sends a probe for a duplicate address. It has the unspecified source address, so it must not
/// carry a link address of the source (RFC 4861 §4.3).
pub(crate) fn probe(tx: &DeviceTx, cx: &mut Cx, target: Ipv6Addr, nonce: Option<Nonce>) {
    let message = NdpMessage::NeighborSolicitation { target, source_mac: None, nonce };
    let (src, dst) = (Ipv6Addr::UNSPECIFIED, ndp::solicited_node(target));
    send(tx, cx, NdpEnds { src, dst, mac: None }, &message);
}

/// Sends one message by the first queue of a device.
pub(crate) fn send(tx: &DeviceTx, cx: &mut Cx, ends: NdpEnds, message: &NdpMessage) {
    let NdpEnds { src, dst, mac } = ends;
    let Some(mut packet) = cx.pool.alloc() else {
        cx.counters().drops.add(DropReason::NoMemory, 1);
        return;
    };
    let mut bytes = [0; MESSAGE_LEN_MAX];
    let len = message.emit(&mut bytes);
    let bytes = &mut bytes[..len];
    let header = IpHeader {
        src: IpAddr::V6(src),
        dst: IpAddr::V6(dst),
        protocol: protocol::ICMPV6,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        flow_label: 0,
        id: 0,
        fragment: Fragment::default(),
        header_len: 0,
        payload_len: u32::try_from(len).expect("a message has at most 40 bytes"),
    };
    let mut sum =
        pkt::checksum::pseudo_header(header.src, header.dst, protocol::ICMPV6, header.payload_len);
    sum.add_bytes(bytes);
    bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.finish().to_be_bytes());
    packet.append(&mut cx.pool, bytes);
    header.emit::<false>(packet.push(IPV6_HEADER_LEN));
    packet.meta_mut().protocol = ETHER_TYPE_IPV6;
    cx.count(Counter::Icmp6OutMsgs, 1);
    if let Some(counter) = icmp::out_counter::<false>(message.kind()) {
        cx.count(counter, 1);
    }
    cx.count(Counter::Ip6OutRequests, 1);
    cx.count(Counter::Ip6OutOctets, packet.len() as u64);
    cx.count(Counter::Ip6OutTransmits, 1);
    if dst.is_multicast() {
        cx.count(Counter::Ip6OutMcastPkts, 1);
        cx.count(Counter::Ip6OutMcastOctets, packet.len() as u64);
    }
    let frame = match tx.link() {
        LinkType::Ethernet { mac: own } => {
            Some((mac.unwrap_or_else(|| ndp::multicast_mac(dst)), own))
        }
        LinkType::Ip => None,
    };
    send_control(tx, cx, frame, packet);
}
