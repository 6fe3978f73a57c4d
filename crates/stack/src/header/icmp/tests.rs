use proptest::prelude::*;

use super::*;
use crate::header::ip::{Fragment, protocol};

const IN_BOTH_VERSIONS: [IcmpMessage; 9] = [
    IcmpMessage::EchoRequest { id: 0x1234, seq: 0x5678 },
    IcmpMessage::EchoReply { id: 1, seq: 2 },
    IcmpMessage::Unreachable(Unreachable::Network),
    IcmpMessage::Unreachable(Unreachable::Host),
    IcmpMessage::Unreachable(Unreachable::Port),
    IcmpMessage::Unreachable(Unreachable::Prohibited),
    IcmpMessage::PacketTooBig { mtu: 1400 },
    IcmpMessage::TimeExceeded { reassembly: false },
    IcmpMessage::TimeExceeded { reassembly: true },
];

#[test]
fn messages_of_both_versions_are_parsed_as_written() {
    let protocol = IcmpMessage::Unreachable(Unreachable::Protocol);
    for message in IN_BOTH_VERSIONS.into_iter().chain([protocol]) {
        let four = message.header_bytes::<true>();
        assert_eq!(IcmpMessage::parse::<true>(&four), Ok(message));
        let six = message.header_bytes::<false>();
        assert_eq!(IcmpMessage::parse::<false>(&six), Ok(message));
        assert_ne!(four, six, "{message:?}");
    }
}

#[test]
fn message_bytes_are_those_of_rfc_792_and_1191() {
    let bytes = |message: IcmpMessage| message.header_bytes::<true>();
    assert_eq!(bytes(IN_BOTH_VERSIONS[0]), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0x78]);
    assert_eq!(bytes(IcmpMessage::Unreachable(Unreachable::Port)), [3, 3, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(IcmpMessage::PacketTooBig { mtu: 1400 }), [3, 4, 0, 0, 0, 0, 5, 0x78]);
    let problem = IcmpMessage::ParameterProblem { code: 0, pointer: 20 };
    assert_eq!(bytes(problem), [12, 0, 0, 0, 20, 0, 0, 0]);
    assert_eq!(IcmpMessage::parse::<true>(&bytes(problem)), Ok(problem));
}

#[test]
fn unknown_codes_and_types_are_kept() {
    let odd = IcmpMessage::parse::<true>(&[3, 12, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(odd, IcmpMessage::Unreachable(Unreachable::Other(12)));
    assert!(odd.is_error());
    let redirect = IcmpMessage::parse::<true>(&[5, 1, 0, 0, 10, 0, 0, 1]).unwrap();
    let gateway = Ipv4Addr::new(10, 0, 0, 1);
    assert_eq!(redirect, IcmpMessage::Redirect { code: 1, gateway });
    assert!(!redirect.is_error());
    let timestamp = IcmpMessage::parse::<true>(&[13, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(timestamp, IcmpMessage::Other { kind: 13 });
    for code in [9, 10, 13] {
        let filtered = IcmpMessage::parse::<true>(&[3, code, 0, 0, 0, 0, 0, 0]);
        assert_eq!(filtered, Ok(IcmpMessage::Unreachable(Unreachable::Prohibited)));
    }
}

#[test]
fn short_messages_are_malformed() {
    for len in 0..ICMP_HEADER_LEN {
        let bytes = vec![8; len];
        assert_eq!(IcmpMessage::parse::<true>(&bytes), Err(DropReason::IcmpMalformed));
    }
}

#[test]
fn the_counter_depends_on_the_type() {
    assert_eq!(in_counter::<true>(8), Some(Counter::IcmpInEchos));
    assert_eq!(in_counter::<true>(3), Some(Counter::IcmpInDestUnreachs));
    assert_eq!(in_counter::<true>(42), None);
    assert_eq!(out_counter::<true>(0), Some(Counter::IcmpOutEchoReps));
    assert_eq!(in_counter::<false>(2), Some(Counter::Icmp6InPktTooBigs));
    assert_eq!(out_counter::<false>(129), Some(Counter::Icmp6OutEchoReplies));
}

fn offending(protocol: u8) -> IpHeader {
    IpHeader {
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        protocol,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        id: 7,
        fragment: Fragment::default(),
        header_len: 20,
        payload_len: 100,
    }
}

#[test]
fn an_error_needs_single_hosts_as_source_and_destination() {
    let udp = offending(protocol::UDP);
    let allowed = |header: &IpHeader, link, payload: &[u8]| {
        may_answer_with_error::<true>(header, link, payload)
    };
    assert!(allowed(&udp, PacketType::Host, &[]));
    assert!(!allowed(&udp, PacketType::Broadcast, &[]));
    assert!(!allowed(&udp, PacketType::Multicast, &[]));
    let address = |text: &str| text.parse().unwrap();
    for dst in ["224.0.0.1", "255.255.255.255"] {
        assert!(!allowed(&IpHeader { dst: address(dst), ..udp }, PacketType::Host, &[]));
    }
    let unspecified = IpHeader { src: address("0.0.0.0"), ..udp };
    assert!(!allowed(&unspecified, PacketType::Host, &[]));
    let fragment = Fragment { offset: 8, ..Fragment::default() };
    assert!(!allowed(&IpHeader { fragment, ..udp }, PacketType::Host, &[]));
    let first = Fragment { more: true, ..Fragment::default() };
    assert!(allowed(&IpHeader { fragment: first, ..udp }, PacketType::Host, &[]));
}

#[test]
fn an_icmp_error_is_not_answered_with_an_icmp_error() {
    let icmp = offending(protocol::ICMP);
    let allowed = |kind: u8| may_answer_with_error::<true>(&icmp, PacketType::Host, &[kind]);
    assert!(allowed(8) && allowed(0) && allowed(13));
    assert!(!allowed(3) && !allowed(11) && !allowed(12) && !allowed(5) && !allowed(99));
    assert!(
        !may_answer_with_error::<true>(&icmp, PacketType::Host, &[]),
        "a message whose type is not linear was answered"
    );
    let six = IpHeader {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        ..offending(protocol::ICMPV6)
    };
    assert!(may_answer_with_error::<false>(&six, PacketType::Host, &[128]));
    assert!(!may_answer_with_error::<false>(&six, PacketType::Host, &[1]));
}

#[test]
fn a_quote_identifies_the_connection() {
    let mut packet = [0; 28];
    offending(protocol::TCP).emit::<true>(&mut packet);
    packet[20..28].copy_from_slice(&[0x1f, 0x90, 0xc0, 0x00, 1, 2, 3, 4]);
    let quote = Quote::parse::<true>(&packet).unwrap();
    assert_eq!((quote.src, quote.dst), (offending(6).src, offending(6).dst));
    assert_eq!((quote.protocol, quote.ports(), quote.tcp_seq()), (6, (8080, 0xc000), 0x0102_0304));
    for len in 0..packet.len() {
        assert_eq!(Quote::parse::<true>(&packet[..len]), Err(DropReason::IcmpMalformed));
    }
    packet[7] = 1;
    assert_eq!(
        Quote::parse::<true>(&packet),
        Err(DropReason::IcmpMalformed),
        "a quote that is not of a first fragment was not refused"
    );

    let mut packet = [0; 48];
    let six = IpHeader {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        ..offending(protocol::TCP)
    };
    six.emit::<false>(&mut packet);
    let quote = Quote::parse::<false>(&packet).unwrap();
    assert_eq!((quote.src, quote.dst, quote.protocol), (six.src, six.dst, 6));
}

#[test]
fn a_quoted_first_fragment_of_ipv6_identifies_the_connection() {
    let mut packet = [0; 56];
    let six = IpHeader {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        ..offending(protocol::FRAGMENT)
    };
    six.emit::<false>(&mut packet);
    // More fragments follow.
    packet[40..48].copy_from_slice(&[protocol::UDP, 0, 0, 1, 0, 0, 0, 9]);
    packet[48..52].copy_from_slice(&[0x1f, 0x90, 0xc0, 0x00]);
    let quote = Quote::parse::<false>(&packet).unwrap();
    assert_eq!((quote.protocol, quote.ports()), (protocol::UDP, (8080, 0xc000)));
    packet[43] = 9;
    assert_eq!(
        Quote::parse::<false>(&packet),
        Err(DropReason::IcmpMalformed),
        "a quote that is not of a first fragment was not refused"
    );
}

proptest! {
    #[test]
    fn parsing_never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Quote::parse::<true>(&bytes);
        let _ = Quote::parse::<false>(&bytes);
        if let Ok(message) = IcmpMessage::parse::<true>(&bytes) {
            prop_assert_eq!(IcmpMessage::parse::<true>(&message.header_bytes::<true>()), Ok(message));
        }
        if let Ok(message) = IcmpMessage::parse::<false>(&bytes) {
            prop_assert_eq!(IcmpMessage::parse::<false>(&message.header_bytes::<false>()), Ok(message));
        }
    }
}
