//! Fragmentation of an IPv4 packet that exceeds the MTU of its path and has no DF.
//!
//! Above: `ip_output`. RFC 791 §3.2; Linux: `ip_do_fragment`. The fragments share the payload of
//! the packet; each has a header of its own.
//!
//! Not here: IPv6, whose fragment header its sender adds; packets with options, which this host
//! does not send.

use pkt::{DropReason, Packet, PacketList, TxChecksum};

use super::tx_queue::offload::complete_checksum;
use crate::{
    base::counters::Counter,
    cx::Cx,
    header::ip::{self, Fragment, IPV4_HEADER_LEN, IpHeader},
};

/// Cuts a complete IPv4 packet into fragments of at most `mtu` bytes, in order.
///
/// # Errors
/// The packet with the reason to drop it: `PacketTooBig` if it has DF, or options; `NoMemory`.
pub(super) fn fragment(
    cx: &mut Cx,
    mut packet: Packet,
    mtu: u32,
) -> Result<PacketList, (DropReason, Packet)> {
    let result = match ip::parse::<true>(packet.linear(), packet.len()) {
        Ok(header) if may_fragment(&header) => {
            // The checksum covers the whole datagram.
            complete_checksum(cx, &mut packet, 0);
            cut(cx, &packet, &header, mtu).ok_or(DropReason::NoMemory)
        }
        _ => Err(DropReason::PacketTooBig),
    };
    match result {
        Ok(fragments) => {
            cx.count(Counter::IpFragOKs, 1);
            cx.count(Counter::IpFragCreates, fragments.len() as u64);
            cx.pool.free(packet);
            Ok(fragments)
        }
        Err(reason) => {
            cx.count(Counter::IpFragFails, 1);
            Err((reason, packet))
        }
    }
}

fn may_fragment(header: &IpHeader) -> bool {
    !header.fragment.dont && usize::from(header.header_len) == IPV4_HEADER_LEN
}

/// Makes the fragments. `None` without memory.
fn cut(cx: &mut Cx, packet: &Packet, header: &IpHeader, mtu: u32) -> Option<PacketList> {
    // RFC 791: every part but the last one has a multiple of 8 bytes. No MTU is below 68.
    let part_max = (mtu as usize).saturating_sub(IPV4_HEADER_LEN).max(8) & !7;
    let payload_len = packet.len() - IPV4_HEADER_LEN;
    let mut fragments = PacketList::new();
    let mut at = 0;
    while at < payload_len {
        let len = part_max.min(payload_len - at);
        let Some(part) = make(cx, packet, header, at, len) else {
            fragments.free_all(&mut cx.pool);
            return None;
        };
        fragments.push_back(part);
        at += len;
    }
    Some(fragments)
}

/// Makes the fragment of `len` bytes from offset `at` of the payload on.
fn make(cx: &mut Cx, packet: &Packet, header: &IpHeader, at: usize, len: usize) -> Option<Packet> {
    let mut part = packet.clone_range(&mut cx.pool, IPV4_HEADER_LEN + at, len)?;
    let is_last = at + len == packet.len() - IPV4_HEADER_LEN;
    let fragment = Fragment {
        dont: false,
        more: !is_last || header.fragment.more,
        offset: header.fragment.offset + u16::try_from(at).ok()?,
    };
    let header = IpHeader { fragment, payload_len: u32::try_from(len).ok()?, ..*header };
    header.emit::<true>(part.push(IPV4_HEADER_LEN));
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
