//! ICMP messages (RFC 792, RFC 4443) as values, and the packet that an error quotes.
//!
//! Above: `receive::icmp_input` and other receive steps that report errors, ping sockets, and
//! devices that emulate a router (`device::wire`). Linux: net/ipv4/icmp.c, net/ipv6/icmp.c.
//!
//! Both versions have the same messages with different numbers. [`IcmpMessage`] is the message;
//! `const V4: bool` selects the numbers for parsing and writing.
//!
//! Not here: rate limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pkt::{DropReason, PacketType};

use super::{
    ip::{IpHeader, claimed_len, icmp_protocol, protocol},
    ndp,
};
use crate::base::counters::Counter;

pub(crate) mod checksum;

/// Length of the header in front of the payload or the quoted packet.
pub const ICMP_HEADER_LEN: usize = 8;

/// Offset of the checksum in the header; it covers the whole message.
pub const CHECKSUM_OFFSET: usize = 2;

/// Maximum length of an error packet, including its IP header, that every path carries
/// (RFC 1812 §4.3.2.3).
pub const ERROR_PACKET_LEN_MAX: usize = 576;

/// Minimum payload bytes of the offending packet in a quote (RFC 792): for TCP, both ports and the
/// sequence number.
const QUOTED_PAYLOAD_MIN: usize = 8;

/// Query of MLD (RFC 2710, RFC 3810).
pub const MLD_QUERY: u8 = 130;
/// Report of MLDv1.
pub const MLD_REPORT: u8 = 131;
/// Leave message of MLDv1.
pub const MLD_DONE: u8 = 132;
/// Report of MLDv2.
pub const MLD_V2_REPORT: u8 = 143;

/// Reasons why a destination is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// A router has no route to the network.
    Network,
    /// The last router found no such host.
    Host,
    /// The host does not support the protocol. IPv6 reports an unknown next header (a parameter
    /// problem).
    Protocol,
    /// The port has no listener.
    Port,
    /// A filter forbids the packet.
    Prohibited,
    /// Any other code, as received.
    Other(u8),
}

/// Content of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMessage {
    /// Request to return the payload.
    EchoRequest {
        /// Identifier of the series, chosen by the requester.
        id: u16,
        /// Number within the series.
        seq: u16,
    },
    /// Reply with the request's numbers and payload.
    EchoReply {
        /// Identifier of the request.
        id: u16,
        /// Number of the request.
        seq: u16,
    },
    /// Error: a packet of this host did not reach its destination.
    Unreachable(Unreachable),
    /// Error: a packet of this host was too long for a link and must not be fragmented (RFC 1191,
    /// RFC 8201).
    PacketTooBig {
        /// MTU of the next hop in bytes; 0 from a router older than RFC 1191.
        mtu: u32,
    },
    /// Error: a packet of this host exceeded its hop limit, or the time for reassembly of its
    /// fragments ran out.
    TimeExceeded {
        /// True for reassembly, false for the hop limit.
        reassembly: bool,
    },
    /// Error: a header field of a packet of this host was invalid.
    ParameterProblem {
        /// Code, as on the wire.
        code: u8,
        /// Offset of the faulty byte in the quoted packet.
        pointer: u32,
    },
    /// Advice of a router, for IPv4, to use another next hop for the destination of a packet of
    /// this host. The redirect of IPv6 is a message of neighbor discovery.
    Redirect {
        /// Code, as on the wire: 1 for a host; 0, 2 and 3 are treated alike (RFC 1122 §3.2.2.2).
        code: u8,
        /// Address of the better router.
        gateway: Ipv4Addr,
    },
    /// Message of a type that this host does not handle.
    Other {
        /// Type, as on the wire.
        kind: u8,
    },
}

mod v4 {
    pub(super) const ECHO_REPLY: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 3;
    pub(super) const SOURCE_QUENCH: u8 = 4;
    pub(super) const REDIRECT: u8 = 5;
    pub(super) const ECHO_REQUEST: u8 = 8;
    pub(super) const TIME_EXCEEDED: u8 = 11;
    pub(super) const PARAMETER_PROBLEM: u8 = 12;
    pub(super) const TIMESTAMP: u8 = 13;
    pub(super) const TIMESTAMP_REPLY: u8 = 14;
    pub(super) const ADDRESS_MASK: u8 = 17;
    pub(super) const ADDRESS_MASK_REPLY: u8 = 18;
    /// Code of Unreachable: fragmentation needed and DF set.
    pub(super) const FRAGMENTATION_NEEDED: u8 = 4;
    /// Codes of Unreachable sent by filters, about a packet, a network, and a host. The first is
    /// the one that is written.
    pub(super) const PROHIBITED: [u8; 3] = [13, 9, 10];
}

mod v6 {
    pub(super) const UNREACHABLE: u8 = 1;
    pub(super) const PACKET_TOO_BIG: u8 = 2;
    pub(super) const TIME_EXCEEDED: u8 = 3;
    pub(super) const PARAMETER_PROBLEM: u8 = 4;
    pub(super) const ECHO_REQUEST: u8 = 128;
    pub(super) const ECHO_REPLY: u8 = 129;
    /// Code of Parameter Problem: unknown next header.
    pub(super) const UNKNOWN_PROTOCOL: u8 = 1;
}

impl IcmpMessage {
    /// Parses the header at the start of a message with a valid checksum.
    ///
    /// # Errors
    /// `IcmpMalformed` below 8 bytes.
    pub fn parse<const V4: bool>(bytes: &[u8]) -> Result<Self, DropReason> {
        let Some(&[kind, code, _, _, a, b, c, d]) = bytes.first_chunk() else {
            return Err(DropReason::IcmpMalformed);
        };
        let (id, seq) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let word = u32::from_be_bytes([a, b, c, d]);
        Ok(match (V4, kind) {
            (true, v4::ECHO_REQUEST) | (false, v6::ECHO_REQUEST) => Self::EchoRequest { id, seq },
            (true, v4::ECHO_REPLY) | (false, v6::ECHO_REPLY) => Self::EchoReply { id, seq },
            (true, v4::UNREACHABLE) if code == v4::FRAGMENTATION_NEEDED => {
                Self::PacketTooBig { mtu: u32::from(seq) }
            }
            (false, v6::PACKET_TOO_BIG) => Self::PacketTooBig { mtu: word },
            (true, v4::UNREACHABLE) | (false, v6::UNREACHABLE) => {
                Self::Unreachable(Unreachable::from_code::<V4>(code))
            }
            (true, v4::TIME_EXCEEDED) | (false, v6::TIME_EXCEEDED) => {
                Self::TimeExceeded { reassembly: code != 0 }
            }
            (false, v6::PARAMETER_PROBLEM) if code == v6::UNKNOWN_PROTOCOL => {
                Self::Unreachable(Unreachable::Protocol)
            }
            (true, v4::REDIRECT) => Self::Redirect { code, gateway: Ipv4Addr::from_bits(word) },
            (true, v4::PARAMETER_PROBLEM) => Self::ParameterProblem { code, pointer: u32::from(a) },
            (false, v6::PARAMETER_PROBLEM) => Self::ParameterProblem { code, pointer: word },
            _ => Self::Other { kind },
        })
    }

    /// Returns the bytes of the header, with a checksum of zero.
    #[must_use]
    pub fn header_bytes<const V4: bool>(&self) -> [u8; ICMP_HEADER_LEN] {
        let (kind, code, word) = match *self {
            Self::EchoRequest { id, seq } if V4 => (v4::ECHO_REQUEST, 0, pair(id, seq)),
            Self::EchoRequest { id, seq } => (v6::ECHO_REQUEST, 0, pair(id, seq)),
            Self::EchoReply { id, seq } if V4 => (v4::ECHO_REPLY, 0, pair(id, seq)),
            Self::EchoReply { id, seq } => (v6::ECHO_REPLY, 0, pair(id, seq)),
            Self::Unreachable(why) if V4 => (v4::UNREACHABLE, why.code::<V4>(), 0),
            Self::Unreachable(Unreachable::Protocol) => {
                (v6::PARAMETER_PROBLEM, v6::UNKNOWN_PROTOCOL, 6)
            }
            Self::Unreachable(why) => (v6::UNREACHABLE, why.code::<V4>(), 0),
            Self::PacketTooBig { mtu } if V4 => {
                (v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED, mtu.min(0xffff))
            }
            Self::PacketTooBig { mtu } => (v6::PACKET_TOO_BIG, 0, mtu),
            Self::TimeExceeded { reassembly } if V4 => (v4::TIME_EXCEEDED, reassembly.into(), 0),
            Self::TimeExceeded { reassembly } => (v6::TIME_EXCEEDED, reassembly.into(), 0),
            Self::ParameterProblem { code, pointer } if V4 => {
                (v4::PARAMETER_PROBLEM, code, pointer.min(0xff) << 24)
            }
            Self::ParameterProblem { code, pointer } => (v6::PARAMETER_PROBLEM, code, pointer),
            Self::Redirect { code, gateway } => (v4::REDIRECT, code, gateway.to_bits()),
            Self::Other { kind } => (kind, 0, 0),
        };
        let [a, b, c, d] = word.to_be_bytes();
        [kind, code, 0, 0, a, b, c, d]
    }

    /// Whether the message reports an error of a packet of this host; such a message quotes the
    /// packet.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::PacketTooBig { .. }
                | Self::TimeExceeded { .. }
                | Self::ParameterProblem { .. }
        )
    }
}

const fn pair(high: u16, low: u16) -> u32 {
    (high as u32) << 16 | low as u32
}

impl Unreachable {
    fn from_code<const V4: bool>(code: u8) -> Self {
        match (V4, code) {
            (true, 0) | (false, 0) => Self::Network,
            (true, 1) | (false, 3) => Self::Host,
            (true, 2) => Self::Protocol,
            (true, 3) | (false, 4) => Self::Port,
            (false, 1) => Self::Prohibited,
            (true, code) if v4::PROHIBITED.contains(&code) => Self::Prohibited,
            _ => Self::Other(code),
        }
    }

    /// Returns the code on the wire. `Protocol` has a code in IPv4 only; see
    /// [`IcmpMessage::header_bytes`] for IPv6.
    const fn code<const V4: bool>(self) -> u8 {
        match (V4, self) {
            (_, Self::Network) => 0,
            (true, Self::Host) => 1,
            (_, Self::Protocol) => 2,
            (true, Self::Port) | (false, Self::Host) => 3,
            (false, Self::Port) => 4,
            (true, Self::Prohibited) => v4::PROHIBITED[0],
            (false, Self::Prohibited) => 1,
            (_, Self::Other(code)) => code,
        }
    }
}

/// Returns the counter of received messages of a type, or `None` for types that are not counted
/// separately.
#[must_use]
pub const fn in_counter<const V4: bool>(kind: u8) -> Option<Counter> {
    Some(match (V4, kind) {
        (true, v4::ECHO_REPLY) => Counter::IcmpInEchoReps,
        (true, v4::UNREACHABLE) => Counter::IcmpInDestUnreachs,
        (true, v4::SOURCE_QUENCH) => Counter::IcmpInSrcQuenchs,
        (true, v4::REDIRECT) => Counter::IcmpInRedirects,
        (true, v4::ECHO_REQUEST) => Counter::IcmpInEchos,
        (true, v4::TIME_EXCEEDED) => Counter::IcmpInTimeExcds,
        (true, v4::PARAMETER_PROBLEM) => Counter::IcmpInParmProbs,
        (true, v4::TIMESTAMP) => Counter::IcmpInTimestamps,
        (true, v4::TIMESTAMP_REPLY) => Counter::IcmpInTimestampReps,
        (true, v4::ADDRESS_MASK) => Counter::IcmpInAddrMasks,
        (true, v4::ADDRESS_MASK_REPLY) => Counter::IcmpInAddrMaskReps,
        (false, v6::UNREACHABLE) => Counter::Icmp6InDestUnreachs,
        (false, v6::PACKET_TOO_BIG) => Counter::Icmp6InPktTooBigs,
        (false, v6::TIME_EXCEEDED) => Counter::Icmp6InTimeExcds,
        (false, v6::PARAMETER_PROBLEM) => Counter::Icmp6InParmProblems,
        (false, v6::ECHO_REQUEST) => Counter::Icmp6InEchos,
        (false, v6::ECHO_REPLY) => Counter::Icmp6InEchoReplies,
        (false, MLD_QUERY) => Counter::Icmp6InGroupMembQueries,
        (false, MLD_REPORT) => Counter::Icmp6InGroupMembResponses,
        (false, MLD_DONE) => Counter::Icmp6InGroupMembReductions,
        (false, MLD_V2_REPORT) => Counter::Icmp6InMLDv2Reports,
        (false, ndp::ROUTER_SOLICITATION) => Counter::Icmp6InRouterSolicits,
        (false, ndp::ROUTER_ADVERTISEMENT) => Counter::Icmp6InRouterAdvertisements,
        (false, ndp::NEIGHBOR_SOLICITATION) => Counter::Icmp6InNeighborSolicits,
        (false, ndp::NEIGHBOR_ADVERTISEMENT) => Counter::Icmp6InNeighborAdvertisements,
        (false, ndp::REDIRECT) => Counter::Icmp6InRedirects,
        _ => return None,
    })
}

/// Returns the counter of sent messages of a type, or `None` for types that this host never sends.
#[must_use]
pub const fn out_counter<const V4: bool>(kind: u8) -> Option<Counter> {
    Some(match (V4, kind) {
        (true, v4::ECHO_REPLY) => Counter::IcmpOutEchoReps,
        (true, v4::UNREACHABLE) => Counter::IcmpOutDestUnreachs,
        (true, v4::TIME_EXCEEDED) => Counter::IcmpOutTimeExcds,
        (true, v4::ECHO_REQUEST) => Counter::IcmpOutEchos,
        (false, v6::ECHO_REQUEST) => Counter::Icmp6OutEchos,
        (false, v6::UNREACHABLE) => Counter::Icmp6OutDestUnreachs,
        (false, v6::ECHO_REPLY) => Counter::Icmp6OutEchoReplies,
        (false, v6::TIME_EXCEEDED) => Counter::Icmp6OutTimeExcds,
        (false, v6::PARAMETER_PROBLEM) => Counter::Icmp6OutParmProblems,
        (false, MLD_REPORT) => Counter::Icmp6OutGroupMembResponses,
        (false, MLD_DONE) => Counter::Icmp6OutGroupMembReductions,
        (false, MLD_V2_REPORT) => Counter::Icmp6OutMLDv2Reports,
        (false, ndp::ROUTER_SOLICITATION) => Counter::Icmp6OutRouterSolicits,
        (false, ndp::NEIGHBOR_SOLICITATION) => Counter::Icmp6OutNeighborSolicits,
        (false, ndp::NEIGHBOR_ADVERTISEMENT) => Counter::Icmp6OutNeighborAdvertisements,
        _ => return None,
    })
}

/// Whether RFC 1122 §3.2.2 and RFC 4443 §2.4 (e) allow an error about this packet: its source and
/// destination are single hosts, and it is not an error itself. A fragment after the first one may
/// cause an error only in IPv6. `payload` is the linear part of the bytes after its IP header.
#[must_use]
pub fn may_answer_with_error<const V4: bool>(
    header: &IpHeader,
    link: PacketType,
    payload: &[u8],
) -> bool {
    let broadcast = matches!(header.dst, IpAddr::V4(dst) if dst.is_broadcast());
    let to_one_host = link == PacketType::Host && !header.dst.is_multicast() && !broadcast;
    let from_one_host = !header.src.is_unspecified() && !header.src.is_multicast();
    let is_first = header.fragment.offset == 0;
    let about_error = header.protocol == icmp_protocol::<V4>()
        && match payload.first() {
            // The type is in another fragment.
            _ if !is_first => true,
            // An unknown type may be a future error type.
            Some(&kind) if V4 => !matches!(kind, v4::ECHO_REPLY | v4::ECHO_REQUEST | 13..=18),
            // RFC 4443 §2.4 (e.2) forbids an error about a redirect, too.
            Some(&kind) => kind < v6::ECHO_REQUEST || kind == ndp::REDIRECT,
            None => true,
        };
    to_one_host && from_one_host && (is_first || !V4) && !about_error
}

/// Start of a packet of this host, as quoted by an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Source of the quoted packet: an address of this host, unless the quote is forged.
    pub src: IpAddr,
    /// Destination of the quoted packet.
    pub dst: IpAddr,
    /// Protocol of the quoted packet.
    pub protocol: u8,
    /// Length of the quoted IP packet in bytes, as the quoted header gives it.
    pub total_len: u16,
    /// First eight bytes of the payload of the quoted packet.
    pub payload: [u8; QUOTED_PAYLOAD_MIN],
}

impl Quote {
    /// Parses the quoted packet, which follows the ICMP header. Lengths and checksum of the quoted
    /// header are not checked, because the quote is truncated and routers may have modified it.
    ///
    /// # Errors
    /// `IcmpMalformed` if the quoted header is one of the other version, if fewer than eight bytes
    /// follow it, or if the quote is not of a first fragment.
    pub fn parse<const V4: bool>(bytes: &[u8]) -> Result<Self, DropReason> {
        Self::read::<V4>(bytes).ok_or(DropReason::IcmpMalformed)
    }

    fn read<const V4: bool>(bytes: &[u8]) -> Option<Self> {
        let header_len = claimed_len::<V4>(bytes).ok()?;
        let (header, mut rest) = bytes.split_at_checked(header_len)?;
        let mut next_header = *header.get(6)?;
        if !V4 && next_header == protocol::FRAGMENT {
            let (fragment, data) = rest.split_first_chunk::<8>()?;
            if u16::from_be_bytes([fragment[2], fragment[3]]) & !7 != 0 {
                return None;
            }
            (next_header, rest) = (fragment[0], data);
        }
        let payload = *rest.first_chunk()?;
        let (src, dst, protocol, total_len) = if V4 {
            let fragment_offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
            if fragment_offset != 0 {
                return None;
            }
            let address = |at: usize| -> Option<IpAddr> {
                Some(Ipv4Addr::from(*header.get(at..)?.first_chunk::<4>()?).into())
            };
            (address(12)?, address(16)?, header[9], u16::from_be_bytes([header[2], header[3]]))
        } else {
            let address = |at: usize| -> Option<IpAddr> {
                Some(Ipv6Addr::from(*header.get(at..)?.first_chunk::<16>()?).into())
            };
            let payload_len = u16::from_be_bytes([header[4], header[5]]);
            (address(8)?, address(24)?, next_header, payload_len.saturating_add(40))
        };
        Some(Self { src, dst, protocol, total_len, payload })
    }

    /// Returns source and destination port, for TCP and UDP.
    #[must_use]
    pub const fn ports(&self) -> (u16, u16) {
        let [a, b, c, d, ..] = self.payload;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// Returns the ports by which the sender of the quoted packet is found: those of TCP and UDP,
    /// and for an echo request its identifier and zero. `None` for any other packet.
    #[must_use]
    pub const fn socket_ports(&self) -> Option<(u16, u16)> {
        let [kind, _, _, _, a, b, ..] = self.payload;
        match (self.protocol, kind) {
            (protocol::TCP | protocol::UDP, _) => Some(self.ports()),
            (protocol::ICMP, v4::ECHO_REQUEST) | (protocol::ICMPV6, v6::ECHO_REQUEST) => {
                Some((u16::from_be_bytes([a, b]), 0))
            }
            _ => None,
        }
    }

    /// Returns the sequence number, for TCP. RFC 5927 §4.1 checks it against the send window.
    #[must_use]
    pub const fn tcp_seq(&self) -> u32 {
        let [_, _, _, _, a, b, c, d] = self.payload;
        u32::from_be_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests;
