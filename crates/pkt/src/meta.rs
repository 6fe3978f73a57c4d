//! Metadata that travels with a packet besides its bytes.
//!
//! Above: devices fill it on receive and read it on transmit; the layers between read and amend it.
//! Linux: the fields of `struct sk_buff` and its shared info that describe checksums, GSO and
//! origin.
//!
//! A packet leaves its pool with `PacketMeta::default()`: nothing known on receive, no work left on
//! transmit.
//!
//! Not here: headers, lengths and payload (packet.rs).

use crate::time::Instant;

/// Fixed metadata of a packet. Exactly fills its share of the descriptor's second cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PacketMeta {
    /// Receive time of the device. On transmit: earliest departure time, set by pacing (Linux:
    /// `skb->tstamp` as `fq` reads it).
    pub timestamp: Instant,
    /// Hash of the four-tuple, which selects cores, queues and hash buckets. Zero if not computed.
    pub flow_hash: u32,
    /// Interface index of the device that received the packet.
    pub rx_device: u32,
    /// State of the checksum of a received packet.
    pub rx_checksum: RxChecksum,
    /// Work left on the checksum of a packet to be sent.
    pub tx_checksum: TxChecksum,
    /// Segmentation of a superframe.
    pub gso: Gso,
    /// Protocol of the network header.
    pub protocol: EtherType,
    /// Offset of the network header, in bytes from the start of the head buffer.
    pub network_offset: u16,
    /// Offset of the transport header, in bytes from the start of the head buffer.
    pub transport_offset: u16,
    /// Kind of destination the frame was addressed to.
    pub pkt_type: PacketType,
    /// ECN codepoint: as received, or to be written into the IP header.
    pub ecn: Ecn,
    /// Priority on transmit, 0 to 15 (Linux: `skb->priority`, `SO_PRIORITY`). Classless disciplines
    /// choose a band by it.
    pub priority: u8,
}

/// Bytes of the descriptor's second cache line that [`PacketMeta`] may use; the owner uses the
/// rest.
pub(crate) const META_BYTES_MAX: usize = 48;
const _: () = assert!(size_of::<PacketMeta>() <= META_BYTES_MAX);

/// State of the transport checksum on receive. Linux: `CHECKSUM_*` on receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RxChecksum {
    /// Not verified: software must verify it.
    #[default]
    None,
    /// Verified by the device, or the packet never left this machine.
    Unnecessary,
    /// The data is good, but the checksum field holds only the pseudo-header sum: the packet comes
    /// from a virtual peer, which leaves the sum to the host that transmits it on a physical link.
    Partial {
        /// Offset at which summing would start, in bytes from the network header, as in
        /// [`TxChecksum::Partial`].
        start: u16,
        /// Offset at which the sum would be stored, in bytes after `start`.
        offset: u16,
    },
    /// The device summed everything after the link header; the value is the folded sum.
    Complete(u16),
}

/// Work left on the transport checksum on transmit. Linux: `CHECKSUM_PARTIAL` on transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TxChecksum {
    /// The checksum is in place.
    #[default]
    Done,
    /// The checksum field holds the pseudo-header sum, folded and not complemented: the device or
    /// software sums from `start` to the end and stores the complement.
    Partial {
        /// Offset at which summing starts, in bytes from the network header. A device that adds a
        /// link header adds its length.
        start: u16,
        /// Offset at which the sum is stored, in bytes after `start`.
        offset: u16,
    },
}

/// Segmentation of a superframe, by the device (TSO) or by software (GSO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Gso {
    /// Kind of segments.
    pub kind: GsoKind,
    /// Whether the superframe carries CWR: only its first segment may carry it.
    pub ecn: bool,
    /// Whether all segments have the same IPv4 identification; otherwise it is incremented. Linux:
    /// `SKB_GSO_TCP_FIXEDID`.
    pub fixed_id: bool,
    /// Payload bytes per segment: the MSS. Linux: `gso_size`.
    pub size: u16,
    /// Number of segments the superframe makes. Linux: `gso_segs`.
    pub segs: u16,
}

/// Kind of segments that make up a superframe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GsoKind {
    /// Not a superframe.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4 or IPv6: the segments are datagrams (`UDP_SEGMENT`).
    Udp,
}

/// Protocol number of an Ethernet frame, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
}

/// The ECN field of an IP header (RFC 3168 §5). Linux: `INET_ECN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ecn {
    /// 00: routers drop this packet when they are congested.
    #[default]
    NotEct,
    /// 01: ECN-capable; RFC 8311 reserves it for experiments.
    Ect1,
    /// 10: ECN-capable.
    Ect0,
    /// 11: congestion experienced, set by a router.
    Ce,
}

impl Ecn {
    /// Returns the codepoint in the low two bits of a TOS or traffic class octet.
    #[must_use]
    pub const fn from_traffic_class(octet: u8) -> Self {
        match octet & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the two bits of the codepoint.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0,
            Self::Ect1 => 1,
            Self::Ect0 => 2,
            Self::Ce => 3,
        }
    }
}

/// Kind of link-layer destination. Linux: `PACKET_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PacketType {
    /// The receiving host.
    #[default]
    Host,
    /// All hosts on the link.
    Broadcast,
    /// A multicast group.
    Multicast,
    /// Another host: received only because the device is promiscuous.
    OtherHost,
    /// The packet is being sent.
    Outgoing,
}
