//! IGMP input: membership queries of multicast routers.
//!
//! Above: `ip_input`. Below: `socket::net::igmp`, which sends the reports that answer a query.
//! RFC 3376 §4.1 and §7.1; Linux: `igmp_rcv`, `igmp_heard_query`. Reports of other hosts are
//! ignored.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use pkt::{DropReason, Packet, PacketType, RxChecksum, Verdict};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    header::{ip::IpHeader, strip},
    socket::{net::igmp::Query, rx::Rx},
};

/// Length of an IGMPv1 or IGMPv2 message, and minimum length of an IGMPv3 message.
const MESSAGE_BYTES: usize = 8;

/// Length of a version 3 query without sources.
const V3_QUERY_BYTES: usize = 12;

/// Message type of a membership query, the same in all versions.
const QUERY: u8 = 0x11;

/// Maximum response time for an IGMPv1 query, which carries none (RFC 3376 §7.2.1).
const V1_RESPONSE_TIME: Duration = Duration::from_secs(10);

/// Handles one IGMP message, which still has its IP header.
pub(super) fn input(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
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
    if !group.is_unspecified() && header.dst != IpAddr::V4(group) {
        return Verdict::Drop(DropReason::IgmpIgnored, packet);
    }
    let older = len == MESSAGE_BYTES;
    let response_time = match (older, code) {
        (true, 0) => V1_RESPONSE_TIME,
        (true, code) => Duration::from_millis(100) * u32::from(code),
        (false, code) => Duration::from_millis(100) * decoded(code),
    };
    let query = Query {
        device: DeviceIndex(packet.meta().rx_device),
        group: Some(group).filter(|group| !group.is_unspecified()),
        response_time,
        older,
    };
    rx.cx.count(Counter::IgmpInQueries, 1);
    rx.net.on_igmp_query(rx.cx, &query);
    rx.cx.pool.free(packet);
    Verdict::Consumed
}

/// Returns the value of a Max Resp Code (RFC 3376 §4.1.1): a code up to 127 is the value itself; a
/// larger code has an exponent of three bits and a mantissa of four.
fn decoded(code: u8) -> u32 {
    match code {
        0..128 => u32::from(code),
        _ => (u32::from(code & 0x0f) | 0x10) << ((code >> 4 & 7) + 3),
    }
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn max_resp_codes_above_127_have_a_mantissa_and_an_exponent() {
        assert_eq!([0, 1, 127].map(decoded), [0, 1, 127]);
        assert_eq!([128, 0x8f, 0x90, 0xff].map(decoded), [128, 248, 256, 31_744]);
    }
}
