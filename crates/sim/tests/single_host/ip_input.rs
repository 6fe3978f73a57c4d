//! IP receive: each reason for dropping a packet, with its counters.

use std::net::Ipv4Addr;

use pkt::{DropReason, EtherType, checksum};
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4},
    rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC},
};
use stack::{
    base::counters::Counter,
    header::{ethernet::MacAddr, ip::protocol},
};
use tcp::{Flags, SegmentHeader};

const OTHER_MAC: MacAddr = MacAddr([0x52, 0x51, 0, 0, 0, 9]);
const GROUP_MAC: MacAddr = MacAddr([1, 0, 0x5e, 0, 0, 1]);
const SUBNET_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);

/// Delivers one frame to a new host and returns the host: the frame must be dropped for `reason`,
/// without an answer.
fn drop_frame(ethernet: bool, frame: &[u8], reason: DropReason) -> Rig {
    let mut rig = Rig::new(RigConfig { ethernet, ..RigConfig::default() });
    rig.give_frame(frame);
    assert_eq!(rig.drops(reason), 1, "{reason}: {:?}", rig.host().counters());
    assert_eq!(rig.host().counters().dropped(), 1);
    assert_eq!(rig.take(), [], "{reason}");
    rig
}

/// The same for an IP packet, which must also be counted as `counter`.
fn drop_packet(packet: &[u8], reason: DropReason, counter: Counter) {
    let bytes = frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV4, packet);
    let rig = drop_frame(true, &bytes, reason);
    assert_eq!(rig.count(Counter::IpInReceives), 1);
    assert_eq!(rig.count(counter), 1, "{reason}");
    rig.finish();
    drop_frame(false, packet, reason).finish();
}

/// Returns a valid packet changed by `change`, with a correct header checksum.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut packet = Ipv4::new(PEER_IP, HOST_IP, protocol::UDP).with(&[0; 16]);
    change(&mut packet);
    frame::fix_ipv4_checksum(&mut packet);
    packet
}

fn from_to(src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    Ipv4::new(src, dst, protocol::TCP).with(&[0; 20])
}

fn with_options(options: &[u8]) -> Vec<u8> {
    let ip = Ipv4 { options: options.to_vec(), ..Ipv4::new(PEER_IP, HOST_IP, protocol::UDP) };
    ip.with(&[0; 8])
}

#[test]
fn frames_for_other_stations_and_protocols_are_dropped() {
    let good = Ipv4::new(PEER_IP, HOST_IP, protocol::UDP).with(&[0; 8]);
    let frame = |dst, ether_type| frame::ethernet(dst, PEER_MAC, ether_type, &good);
    drop_frame(true, &frame(OTHER_MAC, EtherType::IPV4), DropReason::OtherHost).finish();
    drop_frame(true, &frame(HOST_MAC, EtherType::IPV6), DropReason::PacketTooShort).finish();
    drop_frame(true, &frame(HOST_MAC, EtherType(0x8100)), DropReason::EthernetType).finish();
    drop_frame(true, &frame(HOST_MAC, EtherType::IPV4)[..13], DropReason::PacketTooShort).finish();
    drop_frame(true, &frame(HOST_MAC, EtherType::ARP)[..41], DropReason::PacketTooShort).finish();
    drop_frame(false, &[0x50; 20], DropReason::IpVersion).finish();
    drop_frame(false, &[0x60; 40], DropReason::PacketTooShort).finish();
}

#[test]
fn invalid_headers_are_dropped() {
    let errors = Counter::IpInHdrErrors;
    let good = changed(|_| {});
    drop_packet(&good[..19], DropReason::PacketTooShort, Counter::IpExtInTruncatedPkts);
    drop_packet(&good[..35], DropReason::PacketTooShort, Counter::IpExtInTruncatedPkts);
    let longer = changed(|packet| packet[3] += 1);
    drop_packet(&longer, DropReason::PacketTooShort, Counter::IpExtInTruncatedPkts);
    let cut_in_options = with_options(&[1; 40]);
    drop_packet(&cut_in_options[..50], DropReason::PacketTooShort, errors);
    drop_packet(&changed(|packet| packet[0] = 0x44), DropReason::IpHeaderLength, errors);
    drop_packet(&changed(|packet| packet[3] = 19), DropReason::IpLength, errors);
    let mut broken = good;
    broken[8] -= 1;
    drop_packet(&broken, DropReason::IpCsum, Counter::IpExtInCsumErrors);
    // On a bare link the version selects the protocol; here it contradicts the frame.
    let other = frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV4, &[0x60; 40]);
    drop_frame(true, &other, DropReason::IpVersion).finish();
}

#[test]
fn invalid_and_refused_options_are_dropped() {
    for options in [[7, 40, 4, 0], [7, 1, 4, 0], [68, 3, 5, 0]] {
        drop_packet(&with_options(&options), DropReason::IpOptions, Counter::IpInHdrErrors);
    }
}

#[test]
fn martian_sources_are_dropped() {
    let spoofed =
        [HOST_IP, Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 255, 255, 254), SUBNET_BROADCAST];
    for src in spoofed {
        drop_packet(&from_to(src, HOST_IP), DropReason::IpSourceInvalid, Counter::IpInAddrErrors);
    }
    // These are dropped before any table is searched.
    let never = [
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(239, 255, 255, 250),
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::new(0, 1, 2, 3),
    ];
    for src in never {
        drop_packet(&from_to(src, HOST_IP), DropReason::IpSourceInvalid, Counter::IpInHdrErrors);
    }
}

#[test]
fn foreign_destinations_are_dropped() {
    let errors = Counter::IpInAddrErrors;
    let neighbour = Ipv4Addr::new(10, 0, 0, 7);
    drop_packet(&from_to(PEER_IP, neighbour), DropReason::IpForwardingOff, errors);
    let far = Ipv4Addr::new(192, 0, 2, 1);
    drop_packet(&from_to(PEER_IP, far), DropReason::IpForwardingOff, errors);
    drop_packet(&from_to(PEER_IP, Ipv4Addr::LOCALHOST), DropReason::IpDestinationInvalid, errors);
    let nowhere = Ipv4Addr::UNSPECIFIED;
    let header_errors = Counter::IpInHdrErrors;
    drop_packet(&from_to(PEER_IP, nowhere), DropReason::IpDestinationInvalid, header_errors);
}

#[test]
fn without_a_route_no_packet_is_delivered_or_answered() {
    let mut rig = Rig::new(RigConfig { default_route: false, ..RigConfig::default() });
    let far = Ipv4Addr::new(192, 0, 2, 1);
    rig.give(&from_to(PEER_IP, far));
    assert_eq!(rig.drops(DropReason::IpNoRoute), 1);
    assert_eq!(rig.count(Counter::IpExtInNoRoutes), 1);
    // A segment from there is received, but its answer has no route.
    let header = SegmentHeader { flags: Flags::SYN, dst_port: 80, ..SegmentHeader::default() };
    let segment = frame::tcp(far, HOST_IP, &header, b"");
    rig.give_from(far, protocol::TCP, &segment);
    assert_eq!(rig.drops(DropReason::IpNoRoute), 2);
    assert_eq!(rig.count(Counter::IpOutNoRoutes), 1);
    assert_eq!(rig.take(), []);
    rig.finish();
}

#[test]
fn a_unicast_packet_in_a_broadcast_frame_is_dropped() {
    for dst in [MacAddr::BROADCAST, GROUP_MAC] {
        let packet = from_to(PEER_IP, HOST_IP);
        let bytes = frame::ethernet(dst, PEER_MAC, EtherType::IPV4, &packet);
        let rig = drop_frame(true, &bytes, DropReason::IpDestinationInvalid);
        assert_eq!(rig.count(Counter::IpInDiscards), 1);
        rig.finish();
    }
}

#[test]
fn unknown_protocols_are_dropped() {
    let mut rig = Rig::new(RigConfig::default());
    rig.give_from(PEER_IP, 132, &[0; 8]);
    assert_eq!(rig.drops(DropReason::IpNoProtocol), 1);
    assert_eq!(rig.count(Counter::IpInUnknownProtos), 1);
    rig.finish();
}

#[test]
fn segments_to_broadcast_and_multicast_addresses_are_dropped() {
    let header = SegmentHeader { flags: Flags::SYN, dst_port: 80, ..SegmentHeader::default() };
    for dst in [SUBNET_BROADCAST, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        let segment = frame::tcp(PEER_IP, dst, &header, b"");
        let packet = Ipv4::new(PEER_IP, dst, protocol::TCP).with(&segment);
        for mac in [HOST_MAC, MacAddr::BROADCAST] {
            let bytes = frame::ethernet(mac, PEER_MAC, EtherType::IPV4, &packet);
            drop_frame(true, &bytes, DropReason::TcpNoSocket).finish();
        }
        drop_frame(false, &packet, DropReason::TcpNoSocket).finish();
    }
}

#[test]
fn invalid_segments_are_dropped() {
    let header = SegmentHeader { flags: Flags::SYN, dst_port: 80, ..SegmentHeader::default() };
    let segment = frame::tcp(PEER_IP, HOST_IP, &header, b"");
    let ip = Ipv4::new(PEER_IP, HOST_IP, protocol::TCP);
    let delivers = Counter::IpInDelivers;
    drop_packet(&ip.with(&segment[..19]), DropReason::PacketTooShort, delivers);
    let mut unfinished = segment.clone();
    let len = u32::try_from(segment.len()).expect("short");
    let sum = checksum::pseudo_header(PEER_IP.into(), HOST_IP.into(), protocol::TCP, len);
    unfinished[16..18].copy_from_slice(&sum.fold().to_be_bytes());
    drop_packet(&ip.with(&unfinished), DropReason::TcpCsumUnfinished, delivers);
    let mut broken = segment;
    broken[4] ^= 1;
    drop_packet(&ip.with(&broken), DropReason::TcpCsum, delivers);
    for data_offset in [0x40, 0x60] {
        broken[12] = data_offset;
        drop_packet(&ip.with(&broken), DropReason::TcpHeader, delivers);
    }
}

#[test]
fn padding_is_not_delivered_as_payload() {
    let mut rig = Rig::new(RigConfig::default());
    let header = SegmentHeader { flags: Flags::SYN, dst_port: 80, ..SegmentHeader::default() };
    let segment = frame::tcp(PEER_IP, HOST_IP, &header, b"");
    let packet = Ipv4::new(PEER_IP, HOST_IP, protocol::TCP).with(&segment);
    let mut bytes = rig.framed(&packet);
    bytes.resize(60, 0xee);
    rig.give_frame(&bytes);
    let seen = rig.take_ip();
    let (reset, _) = seen[0].segment().expect("a reset");
    assert_eq!(reset.ack, header.seq + 1, "the padding is no payload");
    rig.finish();
}

#[test]
fn the_ecn_field_is_counted() {
    let mut rig = Rig::new(RigConfig::default());
    for tos in [0, 4, 1, 2, 2, 3, 3, 3] {
        rig.give(&changed(|packet| packet[1] = tos));
    }
    let counters = [
        Counter::IpExtInNoECTPkts,
        Counter::IpExtInECT1Pkts,
        Counter::IpExtInECT0Pkts,
        Counter::IpExtInCEPkts,
    ];
    assert_eq!(counters.map(|counter| rig.count(counter)), [2, 1, 2, 3]);
    rig.finish();
}

#[test]
fn broadcasts_and_multicasts_are_counted() {
    let mut rig = Rig::new(RigConfig::default());
    rig.give(&from_to(PEER_IP, SUBNET_BROADCAST));
    rig.give(&from_to(PEER_IP, Ipv4Addr::new(224, 0, 0, 1)));
    assert_eq!(rig.count(Counter::IpExtInBcastPkts), 1);
    assert_eq!(rig.count(Counter::IpExtInBcastOctets), 40);
    assert_eq!(rig.count(Counter::IpExtInMcastPkts), 1);
    assert_eq!(rig.count(Counter::IpExtInMcastOctets), 40);
    rig.finish();
}
