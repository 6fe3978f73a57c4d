//! Fixed headers of IPv4 (RFC 791) and IPv6 (RFC 8200), parsed and written by one pair of
//! functions.
//!
//! Above: `receive::ip_input` and `transmit::ip_output`, receive offload and segmentation. Linux:
//! `ip_rcv_core` in net/ipv4/ip_input.c, `ip6_rcv_core` in net/ipv6/ip6_input.c.
//!
//! [`parse`] and [`IpHeader::emit`] take `const V4: bool`, so that the callers are written once for
//! both versions. A parsed header is valid: lengths fit the packet, the IPv4 checksum holds,
//! options are well formed, and both addresses may occur in a packet. A field that a version lacks
//! has its neutral value (`id` 0, no fragment, flow label 0).
//!
//! **BIG TCP.** Length fields have 16 bits. A superframe (a packet of several segments) that is
//! longer has a length of 0 in its header, and leaves this process only through a device that
//! accepts it. For such a packet, the length of the packet is used instead of the length field
//! (`parse_packet`). In any other packet, a length of 0 means 0. Linux: `iph_totlen`,
//! `iph_set_totlen`. Differs from Linux: a long IPv6 superframe has no jumbo payload option
//! (RFC 2675), so that both versions are alike.
//!
//! Not here: rules that need a device or a route (`route::fib`), IPv6 extension headers
//! (`extension`), reassembly (`receive::reassembly`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pkt::{DropReason, Ecn, EtherType, GsoKind, Packet};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::option;

/// Length of an IPv4 header without options.
pub const IPV4_HEADER_LEN: usize = 20;
/// Length of the fixed IPv6 header.
pub const IPV6_HEADER_LEN: usize = 40;
/// Payload type of IPv4 in an Ethernet frame or a tun packet.
pub const ETHER_TYPE_IPV4: EtherType = EtherType::IPV4;
/// Payload type of IPv6 in an Ethernet frame or a tun packet.
pub const ETHER_TYPE_IPV6: EtherType = EtherType::IPV6;

/// Protocol numbers (IANA) that the stack knows.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// Hop-by-Hop Options header of IPv6.
    pub const HOP_BY_HOP: u8 = 0;
    /// Routing header of IPv6.
    pub const ROUTING: u8 = 43;
    /// Fragment header of IPv6.
    pub const FRAGMENT: u8 = 44;
    /// No Next Header of IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// Destination Options header of IPv6.
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// Maximum value of a length field.
const LENGTH_MAX: usize = 0xffff;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// IPv4 header on the wire, without options.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    flags_fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}

/// Fixed IPv6 header on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

const _: () = assert!(size_of::<Ipv4Header>() == IPV4_HEADER_LEN);
const _: () = assert!(size_of::<Ipv6Header>() == IPV6_HEADER_LEN);

/// Position of a packet in its original datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// DF: routers must not fragment this packet.
    pub dont: bool,
    /// MF: more fragments follow this one.
    pub more: bool,
    /// Offset of this fragment in bytes, a multiple of 8.
    pub offset: u16,
}

impl Fragment {
    /// Whole datagram with DF set, as TCP sends it (path MTU discovery).
    pub const DONT: Self = Self { dont: true, more: false, offset: 0 };

    /// Whether the packet is a fragment rather than a whole datagram.
    #[must_use]
    pub const fn is_fragment(self) -> bool {
        self.more || self.offset != 0
    }
}

/// Fields of a checked header of either version. The field comments give the IPv4 name first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address, of the family that `V4` selects.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// Protocol; Next Header.
    pub protocol: u8,
    /// Time to Live; Hop Limit.
    pub hop_limit: u8,
    /// Type of Service; Traffic Class. DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Flow Label, 20 bits. IPv6 only.
    pub flow_label: u32,
    /// Identification. IPv4 only.
    pub id: u16,
    /// Fragmentation fields, for IPv6 once `extension` has read them.
    pub fragment: Fragment,
    /// Length of this header in bytes, including IPv4 options and, once `extension` has read them,
    /// IPv6 extension headers.
    pub header_len: u16,
    /// Bytes after this header. A superframe may have more than its header field can express. The
    /// packet may be longer because of the padding of a short frame.
    pub payload_len: u32,
}

/// Returns the length of the header without options. That many bytes must be linear (contiguous at
/// the head of the packet) before [`claimed_len`] is called.
#[must_use]
pub const fn fixed_len<const V4: bool>() -> usize {
    if V4 { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN }
}

/// Returns the protocol number of ICMP for this version.
#[must_use]
pub const fn icmp_protocol<const V4: bool>() -> u8 {
    if V4 { protocol::ICMP } else { protocol::ICMPV6 }
}

/// Returns the header length that the first byte claims, after a check of the version. The caller
/// makes that many bytes linear and then calls [`parse`].
///
/// # Errors
/// `PacketTooShort` for an empty slice, `IpVersion` for the other version, `IpHeaderLength` for an
/// IHL below 5.
#[inline]
pub fn claimed_len<const V4: bool>(bytes: &[u8]) -> Result<usize, DropReason> {
    let first = *bytes.first().ok_or(DropReason::PacketTooShort)?;
    if first >> 4 != if V4 { 4 } else { 6 } {
        return Err(DropReason::IpVersion);
    }
    if !V4 {
        return Ok(IPV6_HEADER_LEN);
    }
    let len = usize::from(first & 0x0f) * 4;
    if len < IPV4_HEADER_LEN { Err(DropReason::IpHeaderLength) } else { Ok(len) }
}

/// Checks and parses the header at the start of `linear`. The packet has `packet_len` bytes from
/// there on.
///
/// # Errors
/// In order: `PacketTooShort`, `IpVersion`, `IpHeaderLength`, `IpCsum`, `PacketTooShort` (total
/// length beyond the packet), `IpLength`, `IpOptions`, `IpSourceInvalid`, `IpDestinationInvalid`.
///
/// Inlined, as are the functions that it calls: the caller would read a result that is returned
/// through memory in units of other sizes than the stores had, which prevents store forwarding.
#[inline(always)]
pub fn parse<const V4: bool>(linear: &[u8], packet_len: usize) -> Result<IpHeader, DropReason> {
    parse_as::<V4, false>(linear, packet_len)
}

/// Parses the header of `packet`, which begins at offset `network` and is linear. Differs from
/// [`parse`] for a BIG TCP superframe: its length is taken from the packet, not from the header.
///
/// # Errors
/// Those of [`parse`].
#[inline(always)]
pub(crate) fn parse_packet<const V4: bool>(
    packet: &Packet,
    network: usize,
) -> Result<IpHeader, DropReason> {
    let linear = packet.linear().get(network..).ok_or(DropReason::PacketTooShort)?;
    // No underflow: `get` has found `network` bytes in the linear part of the packet.
    let packet_len = packet.len() - network;
    if packet_len > LENGTH_MAX {
        parse_long::<V4>(packet, linear, packet_len)
    } else {
        parse::<V4>(linear, packet_len)
    }
}

/// Parses the header of a packet that is longer than a length field can express: a superframe, or a
/// packet with a trailer.
#[cold]
fn parse_long<const V4: bool>(
    packet: &Packet,
    linear: &[u8],
    packet_len: usize,
) -> Result<IpHeader, DropReason> {
    let kind = if V4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let length = if V4 { linear.get(2..4) } else { linear.get(4..6) };
    // An IPv4 length field counts the whole packet, an IPv6 one only the bytes after the header.
    // No underflow: the packet has more than LENGTH_MAX bytes.
    let beyond = packet_len - (if V4 { 0 } else { IPV6_HEADER_LEN }) > LENGTH_MAX;
    if beyond && packet.meta().gso.kind == kind && length == Some(&[0, 0]) {
        parse_as::<V4, true>(linear, packet_len)
    } else {
        parse::<V4>(linear, packet_len)
    }
}

/// Parses a header. With `WHOLE`, the length is that of the packet, not that of the header.
#[inline(always)]
fn parse_as<const V4: bool, const WHOLE: bool>(
    linear: &[u8],
    packet_len: usize,
) -> Result<IpHeader, DropReason> {
    let header_len = claimed_len::<V4>(linear)?;
    if V4 {
        parse_v4::<WHOLE>(linear, header_len, packet_len)
    } else {
        parse_v6::<WHOLE>(linear, packet_len)
    }
}

/// Checks the header as RFC 1122 §3.2.1.2 to 3.2.1.5 and RFC 1812 §5.2.2 require. [`claimed_len`]
/// has checked the version and the IHL.
#[inline(always)]
fn parse_v4<const WHOLE: bool>(
    linear: &[u8],
    header_len: usize,
    packet_len: usize,
) -> Result<IpHeader, DropReason> {
    let bytes = linear.get(..header_len).ok_or(DropReason::PacketTooShort)?;
    let (wire, options) =
        Ipv4Header::read_from_prefix(bytes).map_err(|_| DropReason::PacketTooShort)?;
    if header_checksum(bytes) != 0 {
        return Err(DropReason::IpCsum);
    }
    let total_len = if WHOLE { packet_len } else { usize::from(wire.total_len.get()) };
    if total_len > packet_len {
        return Err(DropReason::PacketTooShort);
    }
    let payload_len = total_len.checked_sub(header_len).ok_or(DropReason::IpLength)?;
    if !options.is_empty() && option::check(options).is_err() {
        return Err(DropReason::IpOptions);
    }
    let (src, dst) = (Ipv4Addr::from(wire.src), Ipv4Addr::from(wire.dst));
    check_v4_addresses(src, dst)?;
    let flags = wire.flags_fragment.get();
    Ok(IpHeader {
        src: IpAddr::V4(src),
        dst: IpAddr::V4(dst),
        protocol: wire.protocol,
        hop_limit: wire.ttl,
        traffic_class: wire.tos,
        flow_label: 0,
        id: wire.id.get(),
        fragment: Fragment {
            dont: flags & DONT_FRAGMENT != 0,
            more: flags & MORE_FRAGMENTS != 0,
            offset: (flags & FRAGMENT_OFFSET) << 3,
        },
        header_len: len16(header_len),
        payload_len: len32(payload_len),
    })
}

fn parse_v6<const WHOLE: bool>(linear: &[u8], packet_len: usize) -> Result<IpHeader, DropReason> {
    let (wire, _) = Ipv6Header::read_from_prefix(linear).map_err(|_| DropReason::PacketTooShort)?;
    let carried = packet_len.saturating_sub(IPV6_HEADER_LEN);
    let payload_len = if WHOLE { carried } else { usize::from(wire.payload_len.get()) };
    if payload_len > carried {
        return Err(DropReason::PacketTooShort);
    }
    // RFC 2675: a hop-by-hop header with a zero length announces a jumbogram, which no device here
    // carries.
    if payload_len == 0 && wire.next_header == 0 {
        return Err(DropReason::IpLength);
    }
    let (src, dst) = (Ipv6Addr::from(wire.src), Ipv6Addr::from(wire.dst));
    check_v6_addresses(src, dst)?;
    let word = wire.version_class_flow.get();
    let [class, ..] = (word << 4).to_be_bytes();
    Ok(IpHeader {
        src: IpAddr::V6(src),
        dst: IpAddr::V6(dst),
        protocol: wire.next_header,
        hop_limit: wire.hop_limit,
        traffic_class: class,
        flow_label: word & 0x000f_ffff,
        id: 0,
        fragment: Fragment::default(),
        header_len: len16(IPV6_HEADER_LEN),
        payload_len: len32(payload_len),
    })
}

/// Rejects addresses that no packet may carry on any device (RFC 1122 §3.2.1.3). The source 0.0.0.0
/// is valid only in packets to 255.255.255.255, by which a host requests an address.
#[inline(always)]
fn check_v4_addresses(src: Ipv4Addr, dst: Ipv4Addr) -> Result<(), DropReason> {
    let this_network = src.octets()[0] == 0;
    let requests = src.is_unspecified() && dst.is_broadcast();
    if src.is_multicast() || src.is_broadcast() || this_network && !requests {
        Err(DropReason::IpSourceInvalid)
    } else if dst.octets()[0] == 0 {
        Err(DropReason::IpDestinationInvalid)
    } else {
        Ok(())
    }
}

/// Rejects addresses that no packet may carry on any device (RFC 4291 §2.5.2 and §2.7). A v4-mapped
/// address (RFC 4291 §2.5.5.2) names an IPv4 peer of a socket. In a packet it would let an IPv6
/// sender pass as that peer.
#[inline]
fn check_v6_addresses(src: Ipv6Addr, dst: Ipv6Addr) -> Result<(), DropReason> {
    if src.is_multicast() || src.to_ipv4_mapped().is_some() {
        Err(DropReason::IpSourceInvalid)
    } else if dst.is_unspecified() || dst.to_ipv4_mapped().is_some() {
        Err(DropReason::IpDestinationInvalid)
    } else {
        Ok(())
    }
}

impl IpHeader {
    /// Returns the offset of the end of the payload from the start of the header. The packet is
    /// truncated to it.
    #[must_use]
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(self.header_len) + self.payload_len as usize
    }

    /// Writes the header with its IPv4 checksum at the start of `bytes`, always without options:
    /// `header_len` is not read. A length that the field cannot express is written as 0, as for a
    /// BIG TCP superframe.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`fixed_len`], or if an address is of the other family. Both are
    /// errors of the caller.
    #[inline]
    pub fn emit<const V4: bool>(&self, bytes: &mut [u8]) {
        let fields = HeaderFields {
            protocol: self.protocol,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            id: self.id,
            fragment: self.fragment,
            payload_len: self.payload_len,
        };
        match (V4, self.src, self.dst) {
            (true, IpAddr::V4(src), IpAddr::V4(dst)) => fields.emit_v4(src, dst, bytes),
            (false, IpAddr::V6(src), IpAddr::V6(dst)) => fields.emit_v6(src, dst, bytes),
            _ => refuse_to_emit(self.src, self.dst),
        }
    }
}

/// Fields of a header that is written, without its addresses: a caller that knows the version of
/// the addresses writes them without a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderFields {
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) id: u16,
    pub(crate) fragment: Fragment,
    pub(crate) payload_len: u32,
}

impl HeaderFields {
    /// Writes an IPv4 header with its checksum at the start of `bytes`, as [`IpHeader::emit`] does.
    #[inline]
    pub(crate) fn emit_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, bytes: &mut [u8]) {
        let fragment = self.fragment;
        let mut wire = Ipv4Header {
            version_ihl: 0x45,
            tos: self.traffic_class,
            total_len: length_field(self.payload_len + u32::from(len16(IPV4_HEADER_LEN))),
            id: U16::new(self.id),
            flags_fragment: U16::new(
                if fragment.dont { DONT_FRAGMENT } else { 0 }
                    | if fragment.more { MORE_FRAGMENTS } else { 0 }
                    | fragment.offset >> 3,
            ),
            ttl: self.hop_limit,
            protocol: self.protocol,
            checksum: U16::ZERO,
            src: src.octets(),
            dst: dst.octets(),
        };
        wire.checksum = U16::new(header_checksum(wire.as_bytes()));
        bytes[..IPV4_HEADER_LEN].copy_from_slice(wire.as_bytes());
    }

    /// Writes an IPv6 header at the start of `bytes`, as [`IpHeader::emit`] does.
    #[inline]
    pub(crate) fn emit_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, bytes: &mut [u8]) {
        let wire = Ipv6Header {
            version_class_flow: U32::new(
                0x6000_0000 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff,
            ),
            payload_len: length_field(self.payload_len),
            next_header: self.protocol,
            hop_limit: self.hop_limit,
            src: src.octets(),
            dst: dst.octets(),
        };
        bytes[..IPV6_HEADER_LEN].copy_from_slice(wire.as_bytes());
    }
}

/// Panics, because the addresses of a header are not of the version that is written. It takes the
/// addresses by value: a reference to them would keep the whole header in memory in the callers.
#[cold]
#[inline(never)]
pub(crate) fn refuse_to_emit(src: IpAddr, dst: IpAddr) -> ! {
    panic!("addresses {src} and {dst} are not of the version that is written")
}

/// Turns the header at the start of `bytes`, without options, into one with the option Router Alert
/// (RFC 2113), which takes the four bytes after that header.
///
/// # Panics
/// If `bytes` is shorter than 24 bytes, or does not start with a header without options.
pub(crate) fn add_router_alert(bytes: &mut [u8]) {
    const OPTION: [u8; 4] = [0x94, 4, 0, 0];
    let (header, option) = bytes.split_at_mut(IPV4_HEADER_LEN);
    option[..4].copy_from_slice(&OPTION);
    let (wire, _) = Ipv4Header::mut_from_prefix(header).expect("the slice holds 20 bytes");
    assert_eq!(wire.version_ihl, 0x45, "the header has options");
    wire.version_ihl = 0x46;
    wire.total_len = U16::new(wire.total_len.get() + 4);
    wire.checksum = U16::ZERO;
    let sum = header_checksum(&bytes[..IPV4_HEADER_LEN + 4]);
    let (wire, _) = Ipv4Header::mut_from_prefix(bytes).expect("the slice holds 20 bytes");
    wire.checksum = U16::new(sum);
}

/// Whether the IP header `header` is one of IPv4.
#[inline]
pub(crate) fn is_v4(header: &[u8]) -> bool {
    header.first().is_some_and(|first| first >> 4 == 4)
}

/// Fields of a received IP header that an application may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

impl Visible {
    /// Reads the fields from a header that [`parse`] has accepted. A missing byte counts as zero.
    #[inline]
    pub(crate) fn read(header: &[u8]) -> Self {
        if let Some(header) = header.first_chunk::<IPV4_HEADER_LEN>()
            && is_v4(header)
        {
            let [_, tos, _, _, _, _, _, _, ttl, _, _, _, a, b, c, d, e, f, g, h] = *header;
            let (src, dst) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
            return Self { src: src.into(), dst: dst.into(), traffic_class: tos, hop_limit: ttl };
        }
        Self::read_v6(header)
    }

    fn read_v6(header: &[u8]) -> Self {
        let byte = |at: usize| header.get(at).copied().unwrap_or_default();
        let address = |at: usize| -> IpAddr {
            let octets = header.get(at..).and_then(|rest| rest.first_chunk::<16>());
            IpAddr::V6(octets.map_or(Ipv6Addr::UNSPECIFIED, |octets| Ipv6Addr::from(*octets)))
        };
        let traffic_class = (byte(0) << 4) | (byte(1) >> 4);
        Self { src: address(8), dst: address(24), traffic_class, hop_limit: byte(7) }
    }
}

/// Turns a copy of a superframe's header into the header of one of its segments: sets the payload
/// length, adds `id_step` to the IPv4 identification and updates the checksum. Options are kept.
///
/// # Panics
/// If `bytes` does not start with a header that [`parse`] accepts, or an IPv4 packet would exceed
/// 65,535 bytes.
pub fn set_segment<const V4: bool>(bytes: &mut [u8], payload_len: u16, id_step: u16) {
    if !V4 {
        let (wire, _) =
            Ipv6Header::mut_from_prefix(bytes).expect("the bytes start with an IPv6 header");
        wire.payload_len = U16::new(payload_len);
        return;
    }
    rewrite_ipv4(bytes, |wire, header_len| {
        let total_len = payload_len.checked_add(header_len);
        wire.total_len = U16::new(total_len.expect("a segment has at most 65,535 bytes"));
        wire.id = U16::new(wire.id.get().wrapping_add(id_step));
    });
}

/// Turns the header of the first segment of a superframe into the header of the superframe: sets
/// the length, for `payload_len` bytes after the header, and the checksum. A length that the field
/// cannot express is written as 0 (BIG TCP).
///
/// # Panics
/// If `bytes` does not start with a header that [`parse`] accepts.
pub(crate) fn set_superframe<const V4: bool>(bytes: &mut [u8], payload_len: u32) {
    if !V4 {
        let (wire, _) =
            Ipv6Header::mut_from_prefix(bytes).expect("the bytes start with an IPv6 header");
        wire.payload_len = length_field(payload_len);
        return;
    }
    rewrite_ipv4(bytes, |wire, header_len| {
        wire.total_len = length_field(payload_len + u32::from(header_len));
    });
}

/// Turns the header of a first fragment into that of the whole datagram, with `payload_len` bytes
/// after it. For IPv6, the extension headers count as payload.
///
/// # Panics
/// If `bytes` does not start with a header that [`parse`] accepts, or an IPv4 packet would exceed
/// 65,535 bytes.
pub(crate) fn set_whole<const V4: bool>(
    bytes: &mut [u8],
    payload_len: u16,
    ecn: Ecn,
    dont_fragment: bool,
) {
    if !V4 {
        set_segment::<V4>(bytes, payload_len, 0);
        bytes[1] = bytes[1] & !0x30 | ecn.bits() << 4;
        return;
    }
    rewrite_ipv4(bytes, |wire, header_len| {
        let total_len = payload_len.checked_add(header_len);
        wire.total_len = U16::new(total_len.expect("a datagram has at most 65,535 bytes"));
        wire.flags_fragment = U16::new(if dont_fragment { DONT_FRAGMENT } else { 0 });
        wire.tos = wire.tos & !3 | ecn.bits();
    });
}

/// Modifies an IPv4 header, whose length is passed to `change`, and updates its checksum.
fn rewrite_ipv4(bytes: &mut [u8], change: impl FnOnce(&mut Ipv4Header, u16)) {
    let header_len = claimed_len::<true>(bytes).expect("the bytes start with an IPv4 header");
    let header = &mut bytes[..header_len];
    let (wire, _) =
        Ipv4Header::mut_from_prefix(header).expect("the bytes hold the whole IPv4 header");
    change(wire, len16(header_len));
    wire.checksum = U16::ZERO;
    let checksum = header_checksum(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the value of a length field for `bytes`, or 0 if 16 bits cannot express the length.
fn length_field(bytes: u32) -> U16 {
    U16::new(u16::try_from(bytes).unwrap_or(0))
}

/// Returns the Internet checksum (RFC 1071) of an IPv4 header of 20 to 60 bytes, a multiple of 4.
/// It is zero for a header with a valid checksum field. Longer data is summed by `pkt::checksum`,
/// whose setup does not pay off here.
#[inline]
pub(crate) fn header_checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    // The sum of at most 15 words has 36 bits. Two folds leave 17 bits, and the last two add the
    // carries.
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    !len16_wrapping(sum)
}

#[expect(clippy::cast_possible_truncation, reason = "the folds above leave 16 bits")]
const fn len16_wrapping(sum: u64) -> u16 {
    sum as u16
}

/// Converts the length of a header.
#[expect(clippy::cast_possible_truncation, reason = "a header has at most 60 bytes")]
const fn len16(len: usize) -> u16 {
    debug_assert!(len <= 60);
    len as u16
}

/// Converts the length of a packet.
#[expect(clippy::cast_possible_truncation, reason = "a packet has at most 17 fragments of 32 KiB")]
const fn len32(len: usize) -> u32 {
    debug_assert!(len <= 0xffff_ffff);
    len as u32
}

#[cfg(test)]
mod tests;
