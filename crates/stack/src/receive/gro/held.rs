//! Held packet: the consecutive segments of one flow that are merged so far (the aggregate), and
//! the rules for merging further segments.
//!
//! Linux: `struct napi_gro_cb`, `tcp_gro_receive`, `skb_gro_receive`, `inet_gro_flush`,
//! `tcp4_gro_complete`.
//!
//! The rules ensure that [`gso::segment`](crate::transmit::gso) of the completed superframe (a
//! packet of several segments) restores exactly the segments it was merged from. Header fields that
//! all segments of a superframe share must therefore be equal, including the window and the urgent
//! pointer. The other fields must differ in the way segmentation makes them differ.

use pkt::{Gso, GsoKind, Instant, Packet, Pool, RxChecksum, Sum, checksum};
use tcp::{Flags, SeqNum, wire::header::CHECKSUM_OFFSET};

use super::{
    FlushReason,
    read::{Between, Candidate, FlowKey, is_final},
};
use crate::header::ip::{self, protocol};

mod next;

use next::Common;
pub(super) use next::Next;

/// Offset of the control bits in a TCP header.
const FLAGS: usize = 13;

/// Pattern of the IPv4 identifications in an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// Undecided: the aggregate has one segment.
    Open,
    /// Equal in all segments, as senders may choose for packets that must not be fragmented
    /// (RFC 6864 §4.1).
    Fixed,
    /// Incremented by one per segment.
    Counting,
}

/// Packet held for merging, with segments of one flow. `network`, `transport` and `headers` are the
/// offsets of its IP header, TCP header and payload.
#[derive(Debug)]
pub(super) struct Held {
    packet: Packet,
    key: FlowKey,
    v4: bool,
    network: u16,
    transport: u16,
    headers: u16,
    /// Checksum sum of the pseudo-header without the segment length.
    pseudo_sum: Sum,
    /// Header bits that all segments share.
    common: Common,
    ids: Ids,
    /// IPv4 identification of the first segment.
    first_id: u16,
    /// Number of merged segments, including the first.
    count: u16,
    /// Payload bytes of the first segment: `gso_size`. All segments but the last have the same
    /// payload length.
    mss: u32,
    /// Sequence number of the next segment.
    next_seq: SeqNum,
    /// Arrival time of the first segment.
    pub(super) since: Instant,
}

impl Held {
    /// Holds the first segment of a possible superframe.
    pub(super) fn new(packet: Packet, new: &Candidate, now: Instant) -> Self {
        let pseudo_sum = checksum::pseudo_header(new.key.src, new.key.dst, protocol::TCP, 0);
        Self {
            common: Common::of(&packet, new, pseudo_sum),
            packet,
            key: new.key,
            v4: new.v4,
            network: new.network,
            transport: new.transport,
            headers: new.headers,
            pseudo_sum,
            ids: Ids::Open,
            first_id: new.id,
            count: 1,
            mss: new.payload,
            next_seq: new.seq + new.payload,
            since: now,
        }
    }

    pub(super) fn is_of(&self, key: &FlowKey) -> bool {
        self.key == *key
    }

    pub(super) fn is_between(&self, between: Between) -> bool {
        self.key.src == between.src && self.key.dst == between.dst
    }

    /// Returns the reason if `new`, a segment of the same flow whose headers begin `packet`, must
    /// not be merged. The IP packet of the aggregate must stay shorter than `max_bytes`. Segments
    /// of other flows that arrived in between do not matter.
    pub(super) fn accepts(
        &self,
        new: &Candidate,
        packet: &Packet,
        max_bytes: u32,
    ) -> Result<(), FlushReason> {
        if new.alone {
            return Err(FlushReason::Header);
        }
        self.accepts_headers(new, packet.linear())?;
        if !self.accepts_len(new.payload) {
            return Err(FlushReason::Len);
        }
        if new.seq != self.next_seq {
            return Err(FlushReason::Seq);
        }
        if !self.accepts_size(new.payload, max_bytes) {
            return Err(FlushReason::Size);
        }
        Ok(())
    }

    /// Whether the payload has at least 1 byte and at most as many as that of the first segment.
    /// The wrapping subtraction refuses length 0, such as that of a pure ACK.
    const fn accepts_len(&self, payload: u32) -> bool {
        payload.wrapping_sub(1) < self.mss
    }

    fn accepts_size(&self, payload: u32, max_bytes: u32) -> bool {
        self.ip_bytes() + payload < max_bytes && self.count < u16::MAX
    }

    fn accepts_headers(&self, new: &Candidate, bytes: &[u8]) -> Result<(), FlushReason> {
        let held = self.packet.linear();
        let same_layout = (self.v4, self.network, self.transport)
            == (new.v4, new.network, new.transport)
            && held[..usize::from(self.network)] == bytes[..usize::from(new.network)];
        if !same_layout || !self.continues_ids(new.id) {
            return Err(FlushReason::Header);
        }
        let network = usize::from(self.network);
        let (held_ip, new_ip) = (&held[network..], &bytes[network..]);
        let same_ip = if self.v4 {
            // Type of service, DF and TTL.
            held_ip[1] == new_ip[1] && held_ip[6] == new_ip[6] && held_ip[8] == new_ip[8]
        } else {
            // Traffic class, flow label and hop limit.
            held_ip[..4] == new_ip[..4] && held_ip[7] == new_ip[7]
        };
        if !same_ip {
            return Err(FlushReason::Header);
        }
        let held_tcp = &held[usize::from(self.transport)..usize::from(self.headers)];
        let new_tcp = &bytes[usize::from(new.transport)..usize::from(new.headers)];
        same_tcp(held_tcp, new_tcp)
    }

    /// Whether the IPv4 identification continues the pattern of the aggregate. The fixed IPv6
    /// header has no identification, so the parsed value is 0.
    fn continues_ids(&self, id: u16) -> bool {
        let step = id.wrapping_sub(self.first_id);
        match self.ids {
            _ if !self.v4 => true,
            Ids::Open => step <= 1,
            Ids::Fixed => step == 0,
            Ids::Counting => step == self.count,
        }
    }

    /// Returns the length of the IP packet so far. The difference is never negative: the packet
    /// contains the parsed headers, and merging only makes it longer.
    fn ip_bytes(&self) -> u32 {
        u32::try_from(self.packet.len()).unwrap_or(u32::MAX) - u32::from(self.network)
    }

    /// Appends the payload of an accepted segment: frags are moved, linear bytes are copied.
    /// Returns the segment with its headers if the held packet has no room for these frags, or no
    /// packet memory is left.
    pub(super) fn merge(
        &mut self,
        pool: &mut Pool,
        mut packet: Packet,
        new: &Next,
    ) -> Result<(), Packet> {
        let pulled = packet.pull(usize::from(new.headers));
        debug_assert!(pulled, "the headers of a candidate are not linear");
        if let Err(mut packet) = self.packet.append_packet(pool, packet) {
            // The headers are still in the linear part of the packet, in front of the payload.
            packet.push(usize::from(new.headers));
            return Err(packet);
        }
        if self.ids == Ids::Open {
            self.ids = if new.id == self.first_id { Ids::Fixed } else { Ids::Counting };
        }
        self.count += 1;
        self.next_seq += new.payload;
        let last = new.flags.intersection(Flags::FIN | Flags::PSH);
        if !last.is_empty() {
            self.packet.linear_mut()[usize::from(self.transport) + FLAGS] |= last.bits();
        }
        Ok(())
    }

    /// Returns the reason if the aggregate must not grow further after `new` was merged.
    pub(super) const fn ends_with(&self, new: &Next) -> Option<FlushReason> {
        if is_final(new.flags) {
            Some(FlushReason::Psh)
        } else if new.payload < self.mss {
            Some(FlushReason::Len)
        } else {
            None
        }
    }

    /// Returns the packet to deliver: unchanged if it has one segment, otherwise a superframe.
    /// Linux: `napi_gro_complete`.
    pub(super) fn complete(mut self) -> Packet {
        if self.count > 1 {
            if self.v4 {
                self.finish_headers::<true>();
            } else {
                self.finish_headers::<false>();
            }
        }
        self.packet
    }

    /// Sets the lengths and checksums of the superframe, and the fields that `gso` needs to segment
    /// it again. The checksum of every merged segment has been verified, so the TCP checksum field
    /// holds only the sum of the pseudo-header.
    fn finish_headers<const V4: bool>(&mut self) {
        let ip_len = self.transport - self.network;
        let segment_bytes = self.ip_bytes() - u32::from(ip_len);
        let mut partial = self.pseudo_sum;
        partial.add_u32(segment_bytes);
        let partial = partial.fold();
        let bytes = self.packet.linear_mut();
        ip::set_superframe::<V4>(&mut bytes[usize::from(self.network)..], segment_bytes);
        let tcp = &mut bytes[usize::from(self.transport)..];
        tcp::wire::header::write_checksum(tcp, partial);
        let ecn = tcp[FLAGS] & Flags::CWR.bits() != 0;
        let meta = self.packet.meta_mut();
        let offset = checksum_offset();
        meta.rx_checksum = RxChecksum::Partial { start: ip_len, offset };
        meta.gso = Gso {
            kind: if V4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 },
            ecn,
            fixed_id: V4 && self.ids == Ids::Fixed,
            size: u16::try_from(self.mss).unwrap_or(u16::MAX),
            segs: self.count,
        };
    }
}

/// Compares the fields that all segments of a superframe share. CWR may be set on the first segment
/// only. FIN and PSH may be set on the last one only: an aggregate is completed as soon as a
/// segment with one of them is merged.
fn same_tcp(held: &[u8], new: &[u8]) -> Result<(), FlushReason> {
    const LAST: u8 = Flags::FIN.union(Flags::PSH).bits();
    const FIRST: u8 = Flags::CWR.bits();
    let flags_differ = (held[FLAGS] ^ new[FLAGS]) & !(LAST | FIRST) != 0;
    // `same` covers the acknowledgment number, data offset, reserved bits and window; the last
    // comparison covers the urgent pointer.
    let same = held[8..FLAGS] == new[8..FLAGS] && held[14..16] == new[14..16];
    if new[FLAGS] & FIRST != 0 || flags_differ || !same || held[18..20] != new[18..20] {
        return Err(FlushReason::Flags);
    }
    if held[20..] != new[20..] { Err(FlushReason::Options) } else { Ok(()) }
}

/// Returns the offset of the checksum in a TCP header.
const fn checksum_offset() -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "the offset is 16")]
    let offset = CHECKSUM_OFFSET as u16;
    offset
}
