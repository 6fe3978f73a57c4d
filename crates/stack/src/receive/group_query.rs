//! IGMP and MLD input: membership queries of multicast routers.
//!
//! Above: `ip_input` for IGMP, `icmp_input` for MLD, whose messages are ICMPv6 messages. Below:
//! `socket::net::group_reports`, which sends the reports that answer a query. RFC 3376 §4.1 and
//! §7.1, RFC 3810 §5.1 and §8.1; Linux: `igmp_rcv`, `igmp_heard_query`, `igmp6_event_query`.
//! Reports of other hosts are ignored.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
    vec::Vec,
};

use pkt::{DropReason, Packet, PacketType, RxChecksum, Verdict};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    header::{extension, icmp::MLD_QUERY, ip::IpHeader, strip},
    socket::{net::group_reports::Query, rx::Rx},
};

/// Length of an IGMPv1 or IGMPv2 message, and minimum length of an IGMPv3 message.
const MESSAGE_BYTES: usize = 8;

/// Length of a version 3 query without sources.
const V3_QUERY_BYTES: usize = 12;

/// Length of an MLDv1 query, and of an MLDv2 query without sources.
const MLD_V1_BYTES: usize = 24;
const MLD_V2_QUERY_BYTES: usize = 28;

/// Largest number of sources of a query that are read. A query about more is answered like one
/// about the group.
const SOURCES_MAX: usize = 64;

/// Message type of an IGMP query, the same in all versions.
const QUERY: u8 = 0x11;

/// Maximum response time for an IGMPv1 query, which carries none (RFC 3376 §7.2.1).
const V1_RESPONSE_TIME: Duration = Duration::from_secs(10);

/// Handles one IGMP message, which still has its IP header.
pub(super) fn igmp(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    strip(&mut packet, usize::from(header.header_len));
    let trusted = packet.meta().rx_checksum == RxChecksum::Unnecessary;
    let is_whole = packet.require_linear(MESSAGE_BYTES);
    if !is_whole || (!trusted && !packet.checksum(0, packet.len()).is_valid()) {
        return Verdict::Drop(DropReason::IgmpMalformed, packet);
    }
    // RFC 3376 §9.1: a query that has crossed a router is forged.
    let from_link = header.hop_limit == 1 && packet.meta().pkt_type == PacketType::Multicast;
    let bytes = packet.linear();
    if bytes[0] != QUERY || !from_link {
        return Verdict::Drop(DropReason::IgmpIgnored, packet);
    }
    let (code, len) = (bytes[1], packet.len());
    if len > MESSAGE_BYTES && len < V3_QUERY_BYTES {
        return Verdict::Drop(DropReason::IgmpMalformed, packet);
    }
    let group = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
    let older = len == MESSAGE_BYTES;
    let response_time = match (older, code) {
        (true, 0) => V1_RESPONSE_TIME,
        (true, code) => Duration::from_millis(100) * u32::from(code),
        (false, code) => Duration::from_millis(100) * decoded(code.into(), 4),
    };
    let sources = if older { Some(Vec::new()) } else { sources::<true>(&packet, V3_QUERY_BYTES) };
    let Some(sources) = sources else {
        return Verdict::Drop(DropReason::IgmpMalformed, packet);
    };
    rx.cx.count(Counter::IgmpInQueries, 1);
    let asked = Asked { group: group.into(), sources, response_time, older };
    pass_on(rx, header, asked, packet)
}

/// Handles one MLD message with a valid checksum, whose IP header has been removed.
pub(super) fn mld(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    // RFC 3810 §6.2: a query that has crossed a router is forged, and one without the option Router
    // Alert, too.
    let from_router = matches!(header.src, IpAddr::V6(src) if src.is_unicast_link_local());
    let from_link = from_router
        && header.hop_limit == 1
        && extension::has_router_alert(packet.network_header());
    if !from_link || packet.linear().first() != Some(&MLD_QUERY) {
        return Verdict::Drop(DropReason::IgmpIgnored, packet);
    }
    let len = packet.len();
    let is_known = len == MLD_V1_BYTES || len >= MLD_V2_QUERY_BYTES;
    if !is_known || !packet.require_linear(MLD_V1_BYTES) {
        rx.cx.count(Counter::Icmp6InErrors, 1);
        return Verdict::Drop(DropReason::IgmpMalformed, packet);
    }
    let bytes = packet.linear();
    let code = u32::from(u16::from_be_bytes([bytes[4], bytes[5]]));
    let octets = bytes.get(8..).and_then(|rest| rest.first_chunk::<16>());
    let group = octets.map_or(Ipv6Addr::UNSPECIFIED, |octets| Ipv6Addr::from(*octets));
    let older = len == MLD_V1_BYTES;
    let delay = if older { code } else { decoded(code, 12) };
    let response_time = Duration::from_millis(delay.into());
    let sources =
        if older { Some(Vec::new()) } else { sources::<false>(&packet, MLD_V2_QUERY_BYTES) };
    let Some(sources) = sources else {
        rx.cx.count(Counter::Icmp6InErrors, 1);
        return Verdict::Drop(DropReason::IgmpMalformed, packet);
    };
    let asked = Asked { group: group.into(), sources, response_time, older };
    pass_on(rx, header, asked, packet)
}

/// Content of a query.
struct Asked {
    group: IpAddr,
    sources: Vec<IpAddr>,
    response_time: Duration,
    older: bool,
}

/// Reads the sources of a query whose fixed part has `fixed` bytes, the last two of which are their
/// number. Returns `None` if the message is too short for them.
fn sources<const V4: bool>(packet: &Packet, fixed: usize) -> Option<Vec<IpAddr>> {
    let address = if V4 { 4 } else { 16 };
    let mut count = [0; 2];
    packet.copy_to(fixed - 2, &mut count);
    let count = usize::from(u16::from_be_bytes(count));
    if packet.len() < fixed + count * address {
        return None;
    }
    if count > SOURCES_MAX {
        return Some(Vec::new());
    }
    let source = |index: usize| {
        let at = fixed + index * address;
        if V4 {
            let mut octets = [0; 4];
            packet.copy_to(at, &mut octets);
            return IpAddr::from(octets);
        }
        let mut octets = [0; 16];
        packet.copy_to(at, &mut octets);
        IpAddr::from(octets)
    };
    Some((0..count).map(source).collect())
}

/// Passes a query on, unless it names another group than its destination.
fn pass_on(rx: &mut Rx<'_, '_>, header: &IpHeader, asked: Asked, packet: Packet) -> Verdict {
    let Asked { group, sources, response_time, older } = asked;
    if !group.is_unspecified() && header.dst != group {
        return Verdict::Drop(DropReason::IgmpIgnored, packet);
    }
    let query = Query {
        device: DeviceIndex(packet.meta().rx_device),
        v4: group.is_ipv4(),
        group: Some(group).filter(|group| !group.is_unspecified()),
        sources,
        response_time,
        older,
    };
    rx.net.on_group_query(rx.cx, query);
    rx.cx.pool.free(packet);
    Verdict::Consumed
}

/// Returns the value of a Max Resp Code with a mantissa of `bits` bits (RFC 3376 §4.1.1,
/// RFC 3810 §5.1.3): without the highest bit, the code is the value itself; with it, the code has
/// an exponent of three bits and a mantissa.
const fn decoded(code: u32, bits: u32) -> u32 {
    if code < 1 << (bits + 3) {
        return code;
    }
    let mantissa = (code & ((1 << bits) - 1)) | (1 << bits);
    mantissa << ((code >> bits & 7) + 3)
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn a_max_resp_code_with_its_highest_bit_has_a_mantissa_and_an_exponent() {
        assert_eq!([0, 1, 127].map(|code| decoded(code, 4)), [0, 1, 127]);
        assert_eq!([128, 0x8f, 0x90, 0xff].map(|code| decoded(code, 4)), [128, 248, 256, 31_744]);
        assert_eq!([0, 32_767, 0x8000].map(|code| decoded(code, 12)), [0, 32_767, 32_768]);
        assert_eq!(decoded(0xffff, 12), 8_387_584);
    }
}
