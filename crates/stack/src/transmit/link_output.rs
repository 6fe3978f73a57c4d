//! Transmit step that prepends the link header.
//!
//! Linux: `neigh_output`, `neigh_hh_output`, `arp_send`. A packet with an unresolved next hop waits
//! in the neighbor entry. With a resolved next hop, this step costs one load and one store of 14
//! bytes.

use pkt::{DropReason, Packet, PacketList};

use super::{
    dst::Dst,
    qdisc::{NetXmit, PRIORITY_CONTROL},
    tx_queue::DeviceTx,
};
use crate::{
    base::counters::Counter,
    cx::Cx,
    device::{LinkType, QueueId},
    header::{
        arp::{ARP_LEN, ArpPacket, ETHER_TYPE_ARP},
        ethernet::{EthernetHeader, HEADER_LEN, MacAddr},
    },
};

/// Sends a list of IP packets to the next hop of `dst`.
pub(crate) fn output(cx: &mut Cx, dst: &Dst, queue: QueueId, list: &mut PacketList) -> NetXmit {
    let (LinkType::Ethernet { mac }, Some(neighbor)) = (dst.link, &dst.neighbor) else {
        return dst.tx.xmit(cx, queue, list);
    };
    match neighbor.resolved() {
        Some(next_hop) => {
            frame(list, next_hop, mac);
            dst.tx.xmit(cx, queue, list)
        }
        None => {
            neighbor.send(cx, queue, list);
            NetXmit::Success
        }
    }
}

/// Link addresses of the frames to one next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkAddresses {
    pub(super) next_hop: MacAddr,
    pub(super) own: MacAddr,
}

/// Returns the link addresses of the frames that leave by `dst`. Returns `None` if the next hop is
/// not resolved or the link has no addresses. The caller writes the link header together with the
/// IP header, which saves the pass of [`output`] over the packets.
#[inline]
pub(crate) fn addresses(dst: &Dst) -> Option<LinkAddresses> {
    match (dst.link, &dst.neighbor) {
        (LinkType::Ethernet { mac: own }, Some(neighbor)) => {
            Some(LinkAddresses { next_hop: neighbor.resolved()?, own })
        }
        _ => None,
    }
}

/// Whether packets that leave by `dst` need not wait for the resolution of the next hop.
#[inline]
pub(crate) fn is_resolved(dst: &Dst) -> bool {
    dst.neighbor.as_ref().is_none_or(|neighbor| neighbor.resolved().is_some())
}

/// Prepends the Ethernet header to every IP packet of `list`.
pub(crate) fn frame(list: &mut PacketList, next_hop: MacAddr, own: MacAddr) {
    *list = core::mem::take(list).changed(|packet| push_header(packet, next_hop, own));
}

/// Prepends the Ethernet header to an IP packet.
#[inline]
fn push_header(packet: &mut Packet, next_hop: MacAddr, own: MacAddr) {
    let ether_type = packet.meta().protocol;
    EthernetHeader::new(next_hop, own, ether_type).emit(packet.push(HEADER_LEN));
}

/// Sends one ARP packet by the first queue of a device.
pub(crate) fn send_arp(tx: &DeviceTx, cx: &mut Cx, to: MacAddr, arp: &ArpPacket) {
    let LinkType::Ethernet { mac } = tx.link() else { return };
    let Some(mut packet) = cx.pool.alloc() else {
        cx.counters().drops.add(DropReason::NoMemory, 1);
        return;
    };
    let mut bytes = [0; ARP_LEN];
    arp.emit(&mut bytes);
    packet.append(&mut cx.pool, &bytes);
    packet.meta_mut().protocol = ETHER_TYPE_ARP;
    cx.count(Counter::ArpOutPackets, 1);
    send_control(tx, cx, Some((to, mac)), packet);
}

/// Sends one packet of neighbor resolution or of group membership by the first queue of a device.
/// `frame` has the link addresses of the destination and of the device; it is `None` on a link
/// without link addresses.
pub(crate) fn send_control(
    tx: &DeviceTx,
    cx: &mut Cx,
    frame: Option<(MacAddr, MacAddr)>,
    mut packet: Packet,
) {
    // With this priority the packet overtakes bulk data. Otherwise, packets that wait for the
    // resolution would wait too long on a slow link.
    packet.meta_mut().priority = PRIORITY_CONTROL;
    if let Some((to, own)) = frame {
        push_header(&mut packet, to, own);
    }
    let mut list = PacketList::new();
    list.push_back(packet);
    let _ = tx.xmit(cx, QueueId(0), &mut list);
}
