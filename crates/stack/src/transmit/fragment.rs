//! Fragmentation of a packet that exceeds the MTU of its route.
//!
//! Above: `ip_output`. RFC 791 §3.2, RFC 8200 §4.5; Linux: `ip_do_fragment`, `ip6_fragment`. The
//! fragments share the pages of the packet's payload; each has a header of its own. An IPv4 packet
//! with DF is refused. An IPv6 packet is fragmented by its sender only, which this host is.
//!
//! Not here: packets with options or extension headers. This host sends none that exceeds the MTU.

use pkt::{DropReason, Packet, PacketList, TxChecksum};

use super::tx_queue::offload::complete_checksum;
use crate::{
    base::counters::Counter,
    cx::Cx,
    header::{
        extension::{self, FRAGMENT_HEADER_LEN},
        ip::{self, ETHER_TYPE_IPV4, Fragment, IPV4_HEADER_LEN, IpHeader, protocol},
    },
};

/// Cuts a complete IP packet into fragments of at most `mtu` bytes, in order.
///
/// # Errors
/// The packet with the reason to drop it: `PacketTooBig` if it has DF, options or extension
/// headers; `NoMemory`.
pub(super) fn fragment(
    cx: &mut Cx,
    packet: Packet,
    mtu: u32,
) -> Result<PacketList, (DropReason, Packet)> {
    if packet.meta().protocol == ETHER_TYPE_IPV4 {
        fragment_as::<true>(cx, packet, mtu)
    } else {
        fragment_as::<false>(cx, packet, mtu)
    }
}

fn fragment_as<const V4: bool>(
    cx: &mut Cx,
    mut packet: Packet,
    mtu: u32,
) -> Result<PacketList, (DropReason, Packet)> {
    let result = match ip::parse::<V4>(packet.linear(), packet.len()) {
        Ok(header) if may_fragment::<V4>(&header) => {
            // The checksum covers the whole datagram.
            complete_checksum(cx, &mut packet, 0);
            cut::<V4>(cx, &packet, &header, mtu).ok_or(DropReason::NoMemory)
        }
        _ => Err(DropReason::PacketTooBig),
    };
    match result {
        Ok(fragments) => {
            cx.count(Counter::IpFragOKs.of::<V4>(), 1);
            cx.count(Counter::IpFragCreates.of::<V4>(), fragments.len() as u64);
            cx.pool.free(packet);
            Ok(fragments)
        }
        Err(reason) => {
            cx.count(Counter::IpFragFails.of::<V4>(), 1);
            Err((reason, packet))
        }
    }
}

const fn may_fragment<const V4: bool>(header: &IpHeader) -> bool {
    if V4 {
        !header.fragment.dont && header.header_len as usize == IPV4_HEADER_LEN
    } else {
        !extension::is_extension(header.protocol)
    }
}

/// Returns the length of the headers of each fragment.
const fn headers_len<const V4: bool>() -> usize {
    ip::fixed_len::<V4>() + if V4 { 0 } else { FRAGMENT_HEADER_LEN }
}

/// Makes the fragments. `None` without memory.
fn cut<const V4: bool>(
    cx: &mut Cx,
    packet: &Packet,
    header: &IpHeader,
    mtu: u32,
) -> Option<PacketList> {
    // Every part but the last one has a multiple of 8 bytes. No MTU is below 68.
    let part_max = (mtu as usize).saturating_sub(headers_len::<V4>()).max(8) & !7;
    let payload_len = packet.len() - ip::fixed_len::<V4>();
    // As in Linux (`ipv6_select_ident`), an identification is random and not 0.
    let id = if V4 { u32::from(header.id) } else { cx.rng.next_u32().max(1) };
    let mut fragments = PacketList::new();
    let mut at = 0;
    while at < payload_len {
        let len = part_max.min(payload_len - at);
        let Some(part) = make::<V4>(cx, packet, header, id, at, len) else {
            fragments.free_all(&mut cx.pool);
            return None;
        };
        fragments.push_back(part);
        at += len;
    }
    Some(fragments)
}

/// Makes the fragment of `len` bytes from offset `at` of the payload on.
fn make<const V4: bool>(
    cx: &mut Cx,
    packet: &Packet,
    header: &IpHeader,
    id: u32,
    at: usize,
    len: usize,
) -> Option<Packet> {
    let fixed_len = ip::fixed_len::<V4>();
    let mut part = packet.clone_range(&mut cx.pool, fixed_len + at, len)?;
    let is_last = at + len == packet.len() - fixed_len;
    let fragment = Fragment {
        dont: false,
        more: !is_last || header.fragment.more,
        offset: header.fragment.offset + u16::try_from(at).ok()?,
    };
    let mut header = IpHeader { fragment, ..*header };
    if !V4 {
        let bytes = part.push(FRAGMENT_HEADER_LEN);
        extension::emit_fragment(bytes, header.protocol, fragment, id);
        header.protocol = protocol::FRAGMENT;
    }
    header.payload_len = u32::try_from(part.len()).ok()?;
    header.emit::<V4>(part.push(fixed_len));
    let from = packet.meta();
    let meta = part.meta_mut();
    meta.protocol = from.protocol;
    meta.priority = from.priority;
    meta.flow_hash = from.flow_hash;
    meta.ecn = from.ecn;
    meta.tx_checksum = TxChecksum::Done;
    Some(part)
}

#[cfg(test)]
mod tests;
