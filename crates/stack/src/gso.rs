//! Generic segmentation offload: cuts a TCP superframe into the segments its `gso_size` promises.
//!
//! Above: `tx_queue`, when the device takes no superframes or its discipline none so large. Linux: `tcp_gso_segment`, `inet_gso_segment`. Payload is
//! not copied: every segment shares the fragments of the superframe and has headers of its own. FIN and PSH stay on
//! the last segment only, CWR on the first, the IPv4 identification counts up unless the superframe was made of segments
//! that all had the same. What GRO has merged comes apart bit by bit as it was (`gro::tests`).

use std::{ops::Range, sync::Arc};

use pkt::{DropReason, Gso, Packet, PacketList, PacketOwner};

use crate::{
    counters::Counter,
    cx::Cx,
    ip::header::{self, ETHER_TYPE_IPV4},
};

/// Offsets in the TCP header.
const SEQ: usize = 4;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Bytes of the IP and TCP headers of a packet whose IP header starts `network` bytes in. 0 when it is not TCP over a
/// header that is linear.
pub(crate) fn header_bytes(packet: &Packet, network: usize) -> usize {
    let bytes = packet.linear();
    let Some(&first) = bytes.get(network) else { return 0 };
    let ip = if first >> 4 == 4 { usize::from(first & 0x0f) * 4 } else { header::IPV6_HEADER_LEN };
    match bytes.get(network + ip + DATA_OFFSET) {
        Some(&data_offset) => ip + usize::from(data_offset >> 4) * 4,
        None => 0,
    }
}

/// Cuts `packet`, whose IP header starts `network` bytes in, into segments appended to `list`. When memory runs out the rest is
/// dropped and counted, as if the link had lost it.
pub(crate) fn segment(cx: &mut Cx, mut packet: Packet, network: usize, list: &mut PacketList) {
    let headers = network + header_bytes(&packet, network);
    let mss = usize::from(packet.meta().gso.size);
    let payload = packet.len() - headers;
    let is_v4 = packet.meta().protocol == ETHER_TYPE_IPV4;
    let mut shares = Shares::of(&mut packet, payload.div_ceil(mss));
    let id_step = u16::from(!packet.meta().gso.fixed_id);
    let whole = packet.len() - network;
    let mut offset = 0;
    let mut index = 0;
    while offset < payload {
        let len = mss.min(payload - offset);
        let made = packet
            .clone_range(&mut cx.pool, headers + offset, len)
            .map(|piece| (piece, offset + len == payload));
        let Some((mut piece, last)) = made else {
            return cx.drop_packet(DropReason::NoMemory, packet);
        };
        piece.push(headers).copy_from_slice(&packet.linear()[..headers]);
        *piece.meta_mut() = *packet.meta();
        piece.meta_mut().gso = Gso::default();
        let place = Place { index, offset, last, id_step: index.wrapping_mul(id_step), whole };
        fix_headers(&mut piece, network..headers, is_v4, &place);
        shares.give(&mut piece);
        list.push_back(piece);
        offset += len;
        index = index.wrapping_add(1);
    }
    cx.count(Counter::GsoSegments, u64::from(index));
    cx.pool.free(packet);
}

/// What the owner of a superframe was charged, in equal shares: it is paid back as the segments leave, not when the
/// superframe is cut up. What no segment takes is paid back at the end.
struct Shares {
    owner: Option<Arc<dyn PacketOwner>>,
    share: u32,
    rest: u32,
}

impl Shares {
    fn of(packet: &mut Packet, segments: usize) -> Self {
        let segments = u32::try_from(segments).unwrap_or(u32::MAX).max(1);
        match packet.take_owner() {
            Some((owner, charged)) => {
                Self { owner: Some(owner), share: charged / segments, rest: charged }
            }
            None => Self { owner: None, share: 0, rest: 0 },
        }
    }

    fn give(&mut self, piece: &mut Packet) {
        let Some(owner) = &self.owner else { return };
        self.rest -= self.share;
        // Less than a share is left over by the division: the last segment takes it.
        let charge = if self.rest < self.share {
            self.share + core::mem::take(&mut self.rest)
        } else {
            self.share
        };
        piece.inherit_owner(Arc::clone(owner), charge);
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take().filter(|_| self.rest > 0) {
            owner.on_complete(self.rest);
        }
    }
}

/// Where a segment stands in its superframe.
struct Place {
    index: u16,
    /// Bytes of payload in front of it.
    offset: usize,
    last: bool,
    /// What its IPv4 identification has gone on by.
    id_step: u16,
    /// Bytes of the superframe's IP packet.
    whole: usize,
}

/// Turns the superframe's headers into those of the segment at `place`.
fn fix_headers(piece: &mut Packet, headers: Range<usize>, is_v4: bool, place: &Place) {
    let Place { index, offset, last, id_step, whole } = *place;
    let ip_len = {
        let first = piece.linear()[headers.start];
        if is_v4 { usize::from(first & 0x0f) * 4 } else { header::IPV6_HEADER_LEN }
    };
    let ip_payload = u16::try_from(piece.len() - headers.start - ip_len)
        .expect("a segment is smaller than its superframe");
    let bytes = &mut piece.linear_mut()[headers];
    if is_v4 {
        header::set_segment::<true>(&mut bytes[..ip_len], ip_payload, id_step);
    } else {
        header::set_segment::<false>(&mut bytes[..ip_len], ip_payload, id_step);
    }
    let tcp = &mut bytes[ip_len..];
    let seq = u32::from_be_bytes([tcp[SEQ], tcp[SEQ + 1], tcp[SEQ + 2], tcp[SEQ + 3]]);
    #[expect(clippy::cast_possible_truncation, reason = "an offset inside a packet")]
    let seq = seq.wrapping_add(offset as u32);
    tcp[SEQ..SEQ + 4].copy_from_slice(&seq.to_be_bytes());
    if !last {
        tcp[FLAGS] &= !FIN_PSH;
    }
    if index > 0 {
        tcp[FLAGS] &= !CWR;
    }
    fix_pseudo_header(tcp, whole - ip_len, ip_payload);
}

/// The checksum field of a partial packet holds the pseudo-header sum, which contains the length (RFC 1624 update). That of a
/// superframe may have more than 16 bits, both halves of which are summed.
fn fix_pseudo_header(tcp: &mut [u8], old_len: usize, new_len: u16) {
    const CHECKSUM: usize = tcp::header::CHECKSUM_OFFSET;
    let sum = u16::from_be_bytes([tcp[CHECKSUM], tcp[CHECKSUM + 1]]);
    #[expect(clippy::cast_possible_truncation, reason = "the low half, and a high half of 32 bits")]
    let (low, high) = (old_len as u16, (old_len >> 16) as u16);
    let wide = u32::from(sum) + u32::from(!low) + u32::from(!high) + u32::from(new_len);
    let wide = (wide >> 16) + (wide & 0xffff);
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    let sum = ((wide >> 16) + (wide & 0xffff)) as u16;
    tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
