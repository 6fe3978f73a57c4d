//! Extension headers of IPv6 (RFC 8200 §4): the chain between the fixed header and the transport
//! protocol.
//!
//! Above: `receive::ip_input`, for a packet whose Next Header names one of these headers. Linux:
//! net/ipv6/exthdrs.c, `ip6_protocol_deliver_rcu`.
//!
//! | header | treatment |
//! |---|---|
//! | Hop-by-Hop Options | allowed only as the first header; the two upper bits of the type of an unknown option select its treatment |
//! | Destination Options | options are treated as in Hop-by-Hop Options |
//! | Routing | ignored if no segments are left, otherwise refused (RFC 5095), because a host forwards no packets |
//! | Fragment | stored in [`Chain::fragment`]; an atomic fragment (RFC 6946) counts as a whole packet |
//!
//! Every other Next Header ends the chain, including Authentication and Encapsulating Security
//! Payload, which have no handler here. A Fragment header that is not atomic ends the chain, too,
//! because the bytes after it belong to the original packet. The limits are those that
//! RFC 8504 §5.3 allows, so that a sender cannot make a host read many options for one packet.
//!
//! [`emit_fragment`] and [`remove_fragment`] write and remove the Fragment header of a packet.
//!
//! Not here: reassembly, and the report of a problem to the sender (`receive::icmp_input`).

use pkt::DropReason;

use super::ip::{Fragment, IPV6_HEADER_LEN, protocol};

/// Largest chain in bytes. Together with the fixed header and a transport header, it fits the head
/// of a packet, so that every header is linear. Differs from Linux, which has no such bound. The
/// bound does no harm, because the chains in use have only 8 to 32 bytes.
pub const CHAIN_BYTES_MAX: usize = 64;

/// Bytes that [`has_all_headers`] reads: a chain and a TCP header without options.
pub const HEADERS_BYTES_MAX: usize = CHAIN_BYTES_MAX + TCP_HEADER_LEN;

const TCP_HEADER_LEN: usize = 20;

/// Length of a Fragment header.
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// Largest number of options of one header, padding excluded (Linux: `max_hbh_opts_number`,
/// `max_dst_opts_number`).
const OPTIONS_MAX: usize = 8;

/// Largest padding in a row, in bytes: a header ends at a multiple of eight (RFC 8504 §5.3).
const PADDING_MAX: usize = 7;

const PAD1: u8 = 0;
const PADN: u8 = 1;
/// Router Alert (RFC 2711): a message to routers.
const ROUTER_ALERT: u8 = 5;

/// Codes of Parameter Problem (RFC 4443 §3.4).
mod code {
    pub(super) const FIELD: u8 = 0;
    pub(super) const NEXT_HEADER: u8 = 1;
    pub(super) const OPTION: u8 = 2;
}

/// A chain that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Protocol of the bytes after the chain.
    pub protocol: u8,
    /// Length of the chain in bytes.
    pub len: u16,
    /// Position in the original packet, from a Fragment header.
    pub fragment: Fragment,
    /// Offset of the byte that names `protocol`, from the start of the IPv6 header.
    pub protocol_at: u16,
    /// Whether the chain has a Fragment header.
    pub has_fragment: bool,
}

/// A chain that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason for dropping the packet.
    pub reason: DropReason,
    /// Parameter Problem message for the sender, if RFC 8200 asks for one.
    pub problem: Option<Problem>,
}

/// Content of a Parameter Problem message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Code of the message.
    pub code: u8,
    /// Offset of the faulty byte from the start of the IPv6 header.
    pub pointer: u32,
}

impl Refusal {
    /// Silent drop of a chain that ends too early, exceeds a limit, repeats the Fragment header, or
    /// has an unknown option that asks for a silent drop.
    const SILENT: Self = Self { reason: DropReason::IpOptions, problem: None };

    fn reported(code: u8, at: usize) -> Self {
        let pointer = u32::try_from(IPV6_HEADER_LEN + at).unwrap_or(u32::MAX);
        Self { reason: DropReason::IpOptions, problem: Some(Problem { code, pointer }) }
    }
}

/// Whether `protocol` is the number of a header that [`read`] reads.
#[must_use]
#[inline]
pub const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::DESTINATION_OPTIONS
    )
}

/// Whether an IPv6 packet begins with a Hop-by-Hop header that has the option Router Alert with the
/// value for MLD (RFC 2711 §2.1). The chain of the packet has been accepted by [`read`].
#[must_use]
pub(crate) fn has_router_alert(packet: &[u8]) -> bool {
    if packet.get(6) != Some(&protocol::HOP_BY_HOP) {
        return false;
    }
    let header = packet.get(IPV6_HEADER_LEN..).unwrap_or_default();
    let len = header.get(1).map_or(0, |units| (usize::from(*units) + 1) * 8);
    let mut rest = header.get(2..len).unwrap_or_default();
    while let Some(&kind) = rest.first() {
        if rest.starts_with(&[ROUTER_ALERT, 2, 0, 0]) {
            return true;
        }
        let len = if kind == PAD1 { 1 } else { rest.get(1).map_or(2, |len| usize::from(*len) + 2) };
        rest = rest.get(len..).unwrap_or_default();
    }
    false
}

/// Reads the chain at the start of `bytes`, which follow the fixed header. `first` is the Next
/// Header of the fixed header.
///
/// # Errors
/// [`Refusal`], with the reason `IpOptions`.
#[cold]
pub fn read(first: u8, bytes: &[u8]) -> Result<Chain, Refusal> {
    let mut chain = Chain {
        protocol: first,
        len: 0,
        fragment: Fragment::default(),
        // Next Header is byte 6 of the fixed header.
        protocol_at: 6,
        has_fragment: false,
    };
    while is_extension(chain.protocol) {
        let at = usize::from(chain.len);
        let header = bytes.get(at..).unwrap_or_default();
        let fixed: [u8; 8] = *header.first_chunk().ok_or(Refusal::SILENT)?;
        let mut len = (usize::from(fixed[1]) + 1) * 8;
        match chain.protocol {
            protocol::HOP_BY_HOP if at > 0 => {
                return Err(Refusal {
                    problem: Some(Problem {
                        code: code::NEXT_HEADER,
                        pointer: u32::from(chain.protocol_at),
                    }),
                    ..Refusal::SILENT
                });
            }
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS => {
                let options = header.get(2..len).ok_or(Refusal::SILENT)?;
                check_options(options, at + 2)?;
            }
            // Byte 2 is the type, byte 3 the number of segments left. RFC 8200 §4.4 asks to ignore
            // a header without segments left.
            protocol::ROUTING if fixed[3] != 0 => {
                return Err(Refusal::reported(code::FIELD, at + 2));
            }
            protocol::FRAGMENT => {
                if chain.has_fragment {
                    return Err(Refusal::SILENT);
                }
                chain.has_fragment = true;
                // Byte 1 is reserved; the header always has eight bytes.
                len = FRAGMENT_HEADER_LEN;
                let field = u16::from_be_bytes([fixed[2], fixed[3]]);
                chain.fragment =
                    Fragment { dont: false, more: field & 1 != 0, offset: field & 0xfff8 };
            }
            _ => {}
        }
        if at + len > CHAIN_BYTES_MAX || len > header.len() {
            return Err(Refusal::SILENT);
        }
        chain.protocol = fixed[0];
        chain.protocol_at = offset16(IPV6_HEADER_LEN + at);
        chain.len = offset16(at + len);
        if chain.fragment.is_fragment() {
            // The bytes after a Fragment header belong to the original packet.
            return Ok(chain);
        }
    }
    Ok(chain)
}

/// Whether the first fragment of a datagram contains every header up to that of the transport
/// protocol, as RFC 7112 and RFC 8200 §4.5 require. `first` is the number of the first header in
/// `bytes`, which follow the Fragment header. Linux: `ipv6frag_thdr_truncated`.
#[must_use]
pub fn has_all_headers(first: u8, bytes: &[u8]) -> bool {
    let Ok(chain) = read(first, bytes) else { return false };
    let transport_len = match chain.protocol {
        protocol::TCP => TCP_HEADER_LEN,
        protocol::UDP | protocol::ICMPV6 => 8,
        protocol::NO_NEXT_HEADER => 0,
        _ => 1,
    };
    bytes.len() >= usize::from(chain.len) + transport_len
}

/// Writes a Fragment header (RFC 8200 §4.5) at the start of `bytes`. `next` is the number of the
/// first header of the fragmentable part.
///
/// # Panics
/// If `bytes` is shorter than [`FRAGMENT_HEADER_LEN`].
pub fn emit_fragment(bytes: &mut [u8], next: u8, fragment: Fragment, id: u32) {
    bytes[0] = next;
    bytes[1] = 0;
    bytes[2..4].copy_from_slice(&(fragment.offset | u16::from(fragment.more)).to_be_bytes());
    bytes[4..FRAGMENT_HEADER_LEN].copy_from_slice(&id.to_be_bytes());
}

/// Removes the Fragment header from the headers of a fragment: the headers before it move to the
/// end of `headers`, and the last of them names the first header of the fragmentable part.
/// `headers` is the IPv6 header with a chain that [`read`] has read, whose last header is the
/// Fragment header. The first [`FRAGMENT_HEADER_LEN`] bytes then have no meaning.
pub fn remove_fragment(headers: &mut [u8]) {
    let fragment_at = headers.len() - FRAGMENT_HEADER_LEN;
    let (mut named_at, mut at) = (6, IPV6_HEADER_LEN);
    while at < fragment_at {
        (named_at, at) = (at, at + (usize::from(headers[at + 1]) + 1) * 8);
    }
    headers[named_at] = headers[fragment_at];
    headers.copy_within(..fragment_at, FRAGMENT_HEADER_LEN);
}

/// Checks the options of one header, which begin at offset `at` of the chain (RFC 8200 §4.2).
fn check_options(options: &[u8], at: usize) -> Result<(), Refusal> {
    let (mut next, mut count, mut padding) = (0, 0, 0);
    while let Some(&kind) = options.get(next) {
        let len = match (kind, options.get(next + 1)) {
            (PAD1, _) => 1,
            (_, Some(&len)) => usize::from(len) + 2,
            (_, None) => return Err(Refusal::SILENT),
        };
        if next + len > options.len() {
            return Err(Refusal::SILENT);
        }
        if matches!(kind, PAD1 | PADN) {
            padding += len;
            if padding > PADDING_MAX {
                return Err(Refusal::SILENT);
            }
        } else {
            (padding, count) = (0, count + 1);
            if count > OPTIONS_MAX {
                return Err(Refusal::SILENT);
            }
            if kind != ROUTER_ALERT {
                // The upper two bits of an unknown type select the treatment: skip the option, drop
                // the packet, or drop and report it.
                match kind >> 6 {
                    0 => {}
                    1 => return Err(Refusal::SILENT),
                    _ => return Err(Refusal::reported(code::OPTION, at + next)),
                }
            }
        }
        next += len;
    }
    Ok(())
}

/// Converts an offset of at most `IPV6_HEADER_LEN + CHAIN_BYTES_MAX`.
#[expect(clippy::cast_possible_truncation, reason = "an offset is at most 104")]
const fn offset16(offset: usize) -> u16 {
    debug_assert!(offset <= IPV6_HEADER_LEN + CHAIN_BYTES_MAX);
    offset as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Refusal = Refusal::SILENT;

    /// Extension header of eight bytes.
    fn header(next: u8, body: [u8; 6]) -> Vec<u8> {
        [&[next, 0][..], &body].concat()
    }

    fn pad(next: u8) -> Vec<u8> {
        header(next, [PADN, 4, 0, 0, 0, 0])
    }

    #[test]
    fn a_chain_is_read_to_its_transport_protocol() {
        let bytes = [
            pad(protocol::DESTINATION_OPTIONS),
            pad(protocol::ROUTING),
            header(protocol::FRAGMENT, [4, 0, 0, 0, 0, 0]),
            header(protocol::TCP, [0, 0, 0, 0, 0, 7]),
        ]
        .concat();
        let chain = read(protocol::HOP_BY_HOP, &bytes).expect("the chain is valid");
        assert_eq!((chain.protocol, chain.len, chain.protocol_at), (protocol::TCP, 32, 40 + 24));
        assert!(!chain.fragment.is_fragment(), "an atomic fragment counts as a part of a packet");
        for len in 0..bytes.len() {
            assert_eq!(
                read(protocol::HOP_BY_HOP, &bytes[..len]),
                Err(SILENT),
                "the first {len} bytes of the chain were not refused"
            );
        }
    }

    #[test]
    fn a_router_alert_is_found_behind_padding() {
        let packet = |options: [u8; 6]| {
            let mut packet = vec![0; IPV6_HEADER_LEN];
            packet[6] = protocol::HOP_BY_HOP;
            packet.extend(header(protocol::ICMPV6, options));
            packet
        };
        assert!(has_router_alert(&packet([ROUTER_ALERT, 2, 0, 0, PADN, 0])));
        assert!(has_router_alert(&packet([PAD1, PAD1, ROUTER_ALERT, 2, 0, 0])));
        assert!(!has_router_alert(&packet([ROUTER_ALERT, 2, 0, 1, PADN, 0])), "another value");
        assert!(!has_router_alert(&packet([PADN, 4, 0, 0, 0, 0])));
        let mut other = packet([ROUTER_ALERT, 2, 0, 0, PADN, 0]);
        other[6] = protocol::DESTINATION_OPTIONS;
        assert!(!has_router_alert(&other));
    }

    #[test]
    fn the_header_of_a_fragment_ends_the_chain_and_occurs_once() {
        let bytes = header(protocol::DESTINATION_OPTIONS, [0, 0x10 | 1, 0, 0, 0, 7]);
        let chain = read(protocol::FRAGMENT, &bytes).expect("the chain is valid");
        assert_eq!(chain.fragment, Fragment { dont: false, more: true, offset: 16 });
        assert_eq!((chain.protocol, chain.len), (protocol::DESTINATION_OPTIONS, 8));
        let twice = [header(protocol::FRAGMENT, [0; 6]), header(protocol::TCP, [0; 6])].concat();
        assert_eq!(read(protocol::FRAGMENT, &twice), Err(SILENT));
    }

    #[test]
    fn a_fragment_header_that_was_written_is_read_and_removed() {
        let fragment = Fragment { dont: false, more: true, offset: 0x1238 };
        for before in [vec![], pad(protocol::FRAGMENT)] {
            let mut headers = vec![7; IPV6_HEADER_LEN];
            headers[6] = if before.is_empty() { protocol::FRAGMENT } else { 60 };
            headers.extend_from_slice(&before);
            let at = headers.len();
            headers.extend_from_slice(&[0xff; FRAGMENT_HEADER_LEN]);
            emit_fragment(&mut headers[at..], protocol::UDP, fragment, 0x0123_4567);
            let chain =
                read(headers[6], &headers[IPV6_HEADER_LEN..]).expect("the test wrote the chain");
            assert_eq!((chain.fragment, chain.protocol), (fragment, protocol::UDP));
            assert_eq!(headers[at + 4..], [0x01, 0x23, 0x45, 0x67]);
            let mut expected = headers[..at].to_vec();
            expected[if before.is_empty() { 6 } else { IPV6_HEADER_LEN }] = protocol::UDP;
            remove_fragment(&mut headers);
            assert_eq!(headers[FRAGMENT_HEADER_LEN..], expected);
        }
    }

    #[test]
    fn a_first_fragment_without_all_headers_is_recognized() {
        assert!(has_all_headers(protocol::UDP, &[0; 8]));
        assert!(!has_all_headers(protocol::UDP, &[0; 7]));
        assert!(has_all_headers(protocol::TCP, &[0; 20]));
        assert!(!has_all_headers(protocol::TCP, &[0; 16]));
        let options = [pad(protocol::UDP), vec![0; 8]].concat();
        assert!(has_all_headers(protocol::DESTINATION_OPTIONS, &options));
        assert!(!has_all_headers(protocol::DESTINATION_OPTIONS, &options[..8]));
        assert!(!has_all_headers(protocol::DESTINATION_OPTIONS, &options[..4]));
    }

    #[test]
    fn a_routing_header_with_segments_left_is_refused_and_reported() {
        for kind in [0, 2, 4] {
            let bytes = header(protocol::TCP, [kind, 1, 0, 0, 0, 0]);
            let refused = read(protocol::ROUTING, &bytes).expect_err("a segment is left");
            assert_eq!(refused.problem, Some(Problem { code: 0, pointer: 42 }));
        }
    }

    #[test]
    fn a_hop_by_hop_header_after_another_header_is_refused_and_reported() {
        let bytes = [pad(protocol::HOP_BY_HOP), pad(protocol::TCP)].concat();
        let refused = read(protocol::DESTINATION_OPTIONS, &bytes)
            .expect_err("the Hop-by-Hop header is not the first");
        assert_eq!(refused.problem, Some(Problem { code: 1, pointer: 40 }));
    }

    #[test]
    fn the_type_of_an_unknown_option_selects_skip_drop_or_report() {
        let result = |kind| {
            let bytes = header(protocol::TCP, [kind, 0, PADN, 2, 0, 0]);
            read(protocol::DESTINATION_OPTIONS, &bytes).map(|chain| chain.protocol)
        };
        assert_eq!(result(0x1e), Ok(protocol::TCP));
        assert_eq!(result(ROUTER_ALERT), Ok(protocol::TCP));
        assert_eq!(result(0x40), Err(SILENT));
        for kind in [0x80, 0xc2] {
            let problem = result(kind).expect_err("the option refuses the packet").problem;
            assert_eq!(problem, Some(Problem { code: 2, pointer: 42 }), "{kind:#x}");
        }
    }

    #[test]
    fn chains_are_bounded_in_options_padding_and_bytes() {
        let long = |options: &[u8]| {
            let mut bytes = vec![protocol::TCP, 0];
            bytes.extend_from_slice(options);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes[1] = u8::try_from(bytes.len() / 8 - 1).expect("the header is short");
            read(protocol::DESTINATION_OPTIONS, &bytes).map(|chain| chain.len)
        };
        assert_eq!(long(&[0x1e, 0].repeat(8)), Ok(24));
        assert_eq!(long(&[0x1e, 0].repeat(9)), Err(SILENT));
        assert_eq!(
            long(&[0x1e, 4, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0x1e]),
            Err(SILENT),
            "an option without a length was accepted"
        );
        assert_eq!(long(&[PADN, 6, 0, 0, 0, 0, 0, 0]), Err(SILENT));
        let headers = [pad(protocol::DESTINATION_OPTIONS).repeat(8), pad(protocol::TCP)].concat();
        assert_eq!(read(protocol::DESTINATION_OPTIONS, &headers), Err(SILENT));
    }
}
