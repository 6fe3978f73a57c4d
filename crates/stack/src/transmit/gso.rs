//! Generic segmentation offload (GSO): cuts a superframe (a packet of several segments) into
//! segments of its `gso_size`. This file has the segments of TCP, `datagrams` those of UDP.
//!
//! Above: `tx_queue`, if the device or its queueing discipline does not accept superframes of this
//! size. Linux: `tcp_gso_segment`, `inet_gso_segment`.
//!
//! Payload in pages is not copied: every segment shares the pages of the superframe and has its own
//! headers. FIN and PSH stay on the last segment only, CWR on the first. The IPv4 identification
//! increments from segment to segment, unless GRO merged the superframe from segments with equal
//! identifications. If the device does not complete checksums, each checksum is computed from the
//! sums of headers and payload; the sum of the payload may be known from the copy into the
//! superframe (`pkt::packet`). Segmenting a superframe that GRO has merged yields its original
//! segments, bit for bit (`gro::tests`).

use std::sync::Arc;

use pkt::{
    DropReason, Gso, GsoKind, HEADROOM, HeadTemplate, Packet, PacketList, PacketOwner, Sum,
    TxChecksum,
};

use crate::{
    base::counters::Counter,
    cx::Cx,
    header::{
        header_bytes,
        ip::{self, ETHER_TYPE_IPV4},
    },
};

mod datagrams;

/// Offsets in the TCP header.
const SEQ: usize = 4;
const FLAGS: usize = 13;
const CHECKSUM: usize = tcp::wire::header::CHECKSUM_OFFSET;

/// Offsets in the IP headers.
const IP_TOTAL_LEN: usize = 2;
const IP_ID: usize = 4;
const IP_CHECKSUM: usize = 10;
const IPV6_PAYLOAD_LEN: usize = 4;

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Layer that completes the checksums of the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksums {
    /// A later layer (the device): segments have partial checksums, like the superframe.
    Owed,
    /// Segmentation itself; the segments leave with complete checksums.
    Completed,
}

/// Segments `packet`, whose IP header begins at offset `network`, and appends the segments to
/// `list`. If packet memory is exhausted, the remaining segments are dropped and counted as one
/// packet. To TCP, they are lost on the link.
pub(crate) fn segment(
    cx: &mut Cx,
    mut packet: Packet,
    network: usize,
    checksums: Checksums,
    list: &mut PacketList,
) {
    if packet.meta().gso.kind == GsoKind::Udp {
        return datagrams::segment(cx, packet, network, checksums, list);
    }
    let mut headers = Headers::of(&packet, network);
    let mss = usize::from(packet.meta().gso.size);
    let meta = packet.meta_mut();
    let completes = checksums == Checksums::Completed && meta.tx_checksum != TxChecksum::Done;
    // Segments inherit the metadata of the superframe (`Cutter::next_piece`).
    meta.gso = Gso::default();
    if completes {
        meta.tx_checksum = TxChecksum::Done;
    }
    // No underflow: `Headers::of` has copied the headers from the linear part of the packet.
    let segments = (packet.len() - headers.len).div_ceil(mss);
    let mut shares = Shares::of(&mut packet, segments);
    let (mut offset, mut index, mut copied) = (0, 0_u16, 0_u64);
    let mut cutter = packet.cut(&mut cx.pool, headers.len, mss);
    while let Some((mut piece, sum)) = cutter.next_piece(&mut cx.pool) {
        let len = piece.len();
        let sum = completes.then(|| {
            copied += u64::from(sum.is_some());
            sum.unwrap_or_else(|| piece.checksum(0, len))
        });
        headers.set_payload(len);
        let place = Place { index, offset, last: cutter.left() == 0 };
        headers.write(&mut piece, &place, sum);
        shares.give(&mut piece);
        list.push_back(piece);
        offset += len;
        index = index.wrapping_add(1);
    }
    let whole = cutter.left() == 0;
    if completes {
        cx.count(Counter::TxChecksumSoftware, u64::from(index));
        cx.count(Counter::TxChecksumCopied, copied);
    }
    if !whole {
        return cx.drop_packet(DropReason::NoMemory, packet);
    }
    cx.count(Counter::GsoSegments, u64::from(index));
    cx.pool.free(packet);
}

/// Memory charged for a superframe, divided into equal shares for its segments. The owner is
/// uncharged as the segments complete, not at segmentation. When this value is dropped, the rest
/// that no segment has taken is uncharged.
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
        // No underflow: this function is called at most once for each of the segments by whose
        // number the charge was divided.
        self.rest -= self.share;
        // The remainder of the division is less than a share: the last segment takes it.
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

/// Position of a segment in its superframe.
struct Place {
    index: u16,
    /// Payload bytes before this segment.
    offset: usize,
    last: bool,
}

/// Header template for all segments, with the fields that all segments share. `id`, `seq` and
/// `flags` are those of the superframe. The sums over the shared fields are computed once, and each
/// segment adds its own words (RFC 1624). Only the last segment may have another length.
struct Headers {
    template: HeadTemplate,
    /// Length of all headers. They are at the end of the template.
    len: usize,
    /// Payload length that the template and the sums currently describe.
    payload: usize,
    /// Length of the link header.
    network: usize,
    /// Length of the IP header.
    ip_len: usize,
    v4: bool,
    /// Increment of the IPv4 identification from segment to segment: 0 or 1.
    id_step: u16,
    id: u16,
    seq: u32,
    flags: u8,
    /// Sum of the IPv4 header without identification.
    ip_sum: Sum,
    /// Sum of the pseudo-header.
    pseudo_sum: Sum,
    /// Sum of the TCP header without sequence number, control bits and checksum.
    tcp_sum: Sum,
}

impl Headers {
    fn of(packet: &Packet, network: usize) -> Self {
        let len = network + header_bytes(packet, network);
        let mut template = [0; HEADROOM as usize];
        let start = template.len() - len;
        let bytes = &mut template[start..];
        bytes.copy_from_slice(&packet.linear()[..len]);
        let v4 = packet.meta().protocol == ETHER_TYPE_IPV4;
        let (ip, tcp) = {
            let first = bytes[network];
            let ip_len = if v4 { usize::from(first & 0x0f) * 4 } else { ip::IPV6_HEADER_LEN };
            bytes[network..].split_at_mut(ip_len)
        };
        let ip_len = ip.len();
        let id = if v4 { u16_at(ip, IP_ID) } else { 0 };
        if v4 {
            ip[IP_TOTAL_LEN..IP_ID + 2].fill(0);
            ip[IP_CHECKSUM..IP_CHECKSUM + 2].fill(0);
            put_u16(ip, IP_TOTAL_LEN, length_of(ip) + length_of(tcp));
        }
        // The checksum field of a partial packet holds the sum of the pseudo-header, in which the
        // length has 32 bits.
        let whole = u32::try_from(packet.len() - network - ip_len).unwrap_or(u32::MAX);
        let mut pseudo_sum = Sum::from_folded(u16_at(tcp, CHECKSUM));
        pseudo_sum.add_u32(!whole);
        // The length of the TCP header alone; `set_payload` adds that of the payload.
        pseudo_sum.add_u16(length_of(tcp));
        let seq = u32::from(u16_at(tcp, SEQ)) << 16 | u32::from(u16_at(tcp, SEQ + 2));
        let flags = tcp[FLAGS];
        tcp[SEQ..SEQ + 4].fill(0);
        tcp[FLAGS] = 0;
        tcp[CHECKSUM..CHECKSUM + 2].fill(0);
        Self {
            len,
            payload: 0,
            network,
            ip_len,
            v4,
            id_step: u16::from(!packet.meta().gso.fixed_id),
            id,
            seq,
            flags,
            ip_sum: if v4 { Sum::of(ip) } else { Sum::ZERO },
            pseudo_sum,
            tcp_sum: Sum::of(tcp),
            template,
        }
    }

    /// Sets the payload length of the segments that follow.
    #[inline]
    fn set_payload(&mut self, len: usize) {
        if len != self.payload {
            self.change_payload(len);
        }
    }

    #[cold]
    fn change_payload(&mut self, len: usize) {
        let start = self.template.len() - self.len + self.network;
        let tcp_len = self.len - self.network - self.ip_len;
        let length =
            |payload| u16::try_from(tcp_len + payload).expect("a segment has a 16-bit length");
        let (before, now) = (length(self.payload), length(len));
        self.pseudo_sum.add_u16(!before);
        self.pseudo_sum.add_u16(now);
        let ip = &mut self.template[start..][..self.ip_len];
        if self.v4 {
            let (before, now) = (before + length_of(ip), now + length_of(ip));
            self.ip_sum.add_u16(!before);
            self.ip_sum.add_u16(now);
            put_u16(ip, IP_TOTAL_LEN, now);
        } else {
            put_u16(ip, IPV6_PAYLOAD_LEN, now);
        }
        self.payload = len;
    }

    /// Prepends the headers of the segment at `place` to its payload. If `sum`, the sum of the
    /// payload, is given, the checksum is complete, otherwise partial.
    #[inline]
    fn write(&self, piece: &mut Packet, place: &Place, sum: Option<Sum>) {
        let headers = piece.push_template(&self.template, self.len);
        let (ip, tcp) = headers[self.network..].split_at_mut(self.ip_len);
        if self.v4 {
            let id = self.id.wrapping_add(place.index.wrapping_mul(self.id_step));
            let mut ip_sum = self.ip_sum;
            ip_sum.add_u16(id);
            put_u16(ip, IP_ID, id);
            put_u16(ip, IP_CHECKSUM, ip_sum.finish());
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the offset is inside a packet, which is shorter than 4 GB"
        )]
        let seq = self.seq.wrapping_add(place.offset as u32);
        let last = if place.last { u8::MAX } else { !FIN_PSH };
        let first = if place.index == 0 { u8::MAX } else { !CWR };
        let flags = self.flags & last & first;
        let mut checksum = self.pseudo_sum;
        let checksum = match sum {
            Some(payload) => {
                checksum.add_sum(self.tcp_sum);
                checksum.add_u32(seq);
                // The flags are the low byte of their 16-bit word.
                checksum.add_u16(u16::from(flags));
                checksum.add_sum(payload);
                checksum.finish()
            }
            None => checksum.fold(),
        };
        tcp[SEQ..SEQ + 4].copy_from_slice(&seq.to_be_bytes());
        tcp[FLAGS] = flags;
        put_u16(tcp, CHECKSUM, checksum);
    }
}

/// Returns the length of a header, at most 60 bytes.
#[expect(clippy::cast_possible_truncation, reason = "a header has at most 60 bytes")]
const fn length_of(header: &[u8]) -> u16 {
    header.len() as u16
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests;
