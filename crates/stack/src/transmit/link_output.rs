//! The last transmit step above the device: the link header.
//!
//! Linux: `neigh_output`, `neigh_hh_output`, `arp_send`. A packet whose next hop is not resolved waits in the
//! neighbor entry; one whose next hop is resolved costs a load and a 14-byte store.

use pkt::{DropReason, Packet, PacketList};

use super::{
    dst::Dst,
    qdisc::{NetXmit, PRIORITY_CONTROL},
};
use crate::{
    base::counters::Counter,
    cx::Cx,
    device::{LinkType, QueueId},
    header::{
        arp::{ARP_LEN, ArpPacket, ETHER_TYPE_ARP},
        ethernet::{EthernetHeader, HEADER_LEN, MacAddr},
    },
    host::Host,
};

/// Sends a list of IP packets to the next hop of `dst`.
pub(crate) fn output(
    host: &Host,
    cx: &mut Cx,
    dst: &Dst,
    queue: QueueId,
    list: &mut PacketList,
) -> NetXmit {
    let (LinkType::Ethernet { mac }, Some(neighbor)) = (dst.link, &dst.neighbor) else {
        return dst.tx.xmit(host, cx, queue, list);
    };
    match neighbor.resolved() {
        Some(next_hop) => {
            frame(list, next_hop, mac);
            dst.tx.xmit(host, cx, queue, list)
        }
        None => {
            neighbor.send(host, cx, queue, list);
            NetXmit::Success
        }
    }
}

/// What every frame along `dst` begins with, if that is known: where it goes, and where it comes from. Whoever sends puts it in
/// front of each packet together with its own header, and spares [`output`] another walk over them.
#[inline]
pub(crate) fn addresses(dst: &Dst) -> Option<(MacAddr, MacAddr)> {
    match (dst.link, &dst.neighbor) {
        (LinkType::Ethernet { mac }, Some(neighbor)) => Some((neighbor.resolved()?, mac)),
        _ => None,
    }
}

/// Whether nothing that is sent along `dst` has to wait for its next hop to be found.
#[inline]
pub(crate) fn is_resolved(dst: &Dst) -> bool {
    dst.neighbor.as_ref().is_none_or(|neighbor| neighbor.resolved().is_some())
}

/// Puts the Ethernet header in front of every IP packet of `list`.
pub(crate) fn frame(list: &mut PacketList, next_hop: MacAddr, own: MacAddr) {
    let mut packets = core::mem::take(list);
    while let Some(mut packet) = packets.pop_front() {
        push_header(&mut packet, next_hop, own);
        list.push_back(packet);
    }
}

/// Puts the Ethernet header in front of an IP packet.
#[inline]
fn push_header(packet: &mut Packet, next_hop: MacAddr, own: MacAddr) {
    let ether_type = packet.meta().protocol;
    EthernetHeader::new(next_hop, own, ether_type).emit(packet.push(HEADER_LEN));
}

/// Sends one ARP packet on `device`.
pub(crate) fn send_arp(host: &Host, cx: &mut Cx, device: u32, to: MacAddr, arp: &ArpPacket) {
    let LinkType::Ethernet { mac } = host.device(device).caps().link else { return };
    let Some(mut packet) = cx.pool.alloc() else {
        cx.counters().drops.add(DropReason::NoMemory, 1);
        return;
    };
    let mut bytes = [0; ARP_LEN];
    arp.emit(&mut bytes);
    packet.append(&mut cx.pool, &bytes);
    let meta = packet.meta_mut();
    meta.protocol = ETHER_TYPE_ARP;
    // Behind bulk on a slow link it would come too late for whoever waits for it.
    meta.priority = PRIORITY_CONTROL;
    push_header(&mut packet, to, mac);
    cx.count(Counter::ArpOutPackets, 1);
    let mut list = PacketList::new();
    list.push_back(packet);
    let _ = host.tx(device).xmit(host, cx, QueueId(0), &mut list);
}
