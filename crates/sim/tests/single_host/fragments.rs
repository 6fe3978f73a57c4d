//! Fragments: reassembly with its drop reasons, counters and reports, and fragments that the host
//! sends.

use std::{net::Ipv4Addr, time::Duration};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    base::counters::Counter,
    header::{
        icmp::IcmpMessage,
        ip::{Fragment, protocol},
    },
    sysctl::Sysctls,
};
use tcp::{Flags, Options, SegmentHeader};

/// Returns the bytes `range` of a datagram as a fragment.
fn piece(src: Ipv4Addr, protocol: u8, datagram: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let more = range.end < datagram.len();
    let offset = u16::try_from(range.start).expect("an offset");
    let fragment = Fragment { dont: false, more, offset };
    Ipv4 { fragment, ..Ipv4::new(src, HOST_IP, protocol) }.with(&datagram[range])
}

/// Returns an echo request with a payload of so many bytes.
fn echo_request(len: usize) -> Vec<u8> {
    let payload: Vec<_> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
    frame::icmp(&IcmpMessage::EchoRequest { id: 7, seq: 1 }, &payload)
}

fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    Rig::new(RigConfig { sysctls, ..RigConfig::default() })
}

/// Gives the byte ranges of a datagram from the peer, in this order.
fn give(rig: &mut Rig, protocol: u8, datagram: &[u8], ranges: &[(usize, usize)]) {
    for &(start, end) in ranges {
        rig.give(&piece(PEER_IP, protocol, datagram, start..end));
    }
}

#[test]
fn a_long_ping_in_fragments_is_answered_in_fragments() {
    let mut rig = rig(&[]);
    let request = echo_request(4000);
    give(&mut rig, protocol::ICMP, &request, &[(2960, 4008), (0, 1480), (1480, 2960)]);
    let mut reply = Vec::new();
    let seen = rig.take_ip();
    assert_eq!(seen.len(), 3, "{seen:?}");
    for seen in seen {
        let Seen::Fragment(ip, bytes) = seen else { panic!("not a fragment: {seen:?}") };
        assert_eq!(usize::from(ip.fragment.offset), reply.len());
        reply.extend_from_slice(&bytes);
        assert_eq!(ip.fragment.more, reply.len() < request.len());
    }
    // Only the type differs, and with it the checksum.
    assert_eq!(reply[4..], request[4..]);
    assert_eq!(frame::checksum(&[&reply]), 0);
    assert_eq!(rig.count(Counter::IpReasmReqds), 3);
    assert_eq!((rig.count(Counter::IpReasmOKs), rig.count(Counter::IpReasmFails)), (1, 0));
    assert_eq!((rig.count(Counter::IpFragOKs), rig.count(Counter::IpFragCreates)), (1, 3));
    assert_eq!(rig.count(Counter::IpInDelivers), 1, "the datagram, not its fragments");
    rig.finish();
}

#[test]
fn the_largest_datagram_is_reassembled() {
    let mut rig = rig(&[]);
    let request = echo_request(65_535 - 20 - 8);
    let ranges: Vec<_> =
        (0..request.len()).step_by(1480).map(|at| (at, (at + 1480).min(request.len()))).collect();
    give(&mut rig, protocol::ICMP, &request, &ranges);
    let bytes: usize = rig
        .take_ip()
        .iter()
        .map(|seen| if let Seen::Fragment(_, bytes) = seen { bytes.len() } else { 0 })
        .sum();
    assert_eq!(bytes, request.len());
    rig.finish();
}

/// A firewall that looks at first fragments would see no flags (RFC 1858, tiny fragments).
#[test]
fn a_syn_in_tiny_fragments_is_one_segment() {
    let mut rig = rig(&[]);
    let _listener = rig.listen(80, 8);
    let options = Options { mss: Some(1460), ..Options::default() };
    let header = SegmentHeader {
        flags: Flags::SYN,
        src_port: 5000,
        dst_port: 80,
        options,
        ..SegmentHeader::default()
    };
    let syn = frame::tcp(PEER_IP, HOST_IP, &header, b"");
    let ranges: Vec<_> =
        (0..syn.len()).step_by(8).map(|at| (at, (at + 8).min(syn.len()))).collect();
    give(&mut rig, protocol::TCP, &syn, &ranges);
    let answers = rig.take_ip();
    let (header, _) = answers[0].segment().expect("a segment");
    assert_eq!(header.flags, Flags::SYN | Flags::ACK);
    rig.pass(Duration::from_secs(200));
    rig.finish();
}

#[test]
fn a_duplicate_is_dropped_and_the_datagram_goes_on() {
    let mut rig = rig(&[]);
    let request = echo_request(1992);
    give(&mut rig, protocol::ICMP, &request, &[(0, 1000), (0, 1000), (1000, 2000)]);
    assert_eq!(rig.drops(DropReason::FragmentDuplicate), 1);
    assert_eq!((rig.count(Counter::IpReasmOKs), rig.count(Counter::IpReasmFails)), (1, 0));
    rig.finish();
}

#[test]
fn an_overlap_ends_the_whole_datagram() {
    let mut rig = rig(&[]);
    let request = echo_request(1992);
    give(&mut rig, protocol::ICMP, &request, &[(0, 1000), (992, 2000)]);
    assert_eq!(rig.drops(DropReason::FragmentOverlap), 2, "both fragments");
    assert_eq!(rig.count(Counter::IpExtReasmOverlaps), 1);
    assert_eq!(rig.count(Counter::IpReasmFails), 1);
    assert_eq!(rig.take_ip(), []);
    rig.finish();
}

/// The second fragment lies inside the first one and claims to be the last.
#[test]
fn a_teardrop_is_dropped() {
    let mut rig = rig(&[]);
    let datagram = [0; 64];
    rig.give(&piece(PEER_IP, protocol::UDP, &datagram, 0..40));
    rig.give(&piece(PEER_IP, protocol::UDP, &datagram[..28], 24..28));
    assert_eq!(rig.drops(DropReason::FragmentMalformed), 2);
    assert_eq!(rig.count(Counter::IpReasmFails), 1);
    assert_eq!(rig.take_ip(), []);
    rig.finish();
}

/// A fragment that reaches beyond the largest packet.
#[test]
fn a_ping_of_death_is_dropped() {
    let mut rig = rig(&[]);
    let fragment = |offset: u16, more, len: usize| {
        let fragment = Fragment { dont: false, more, offset };
        Ipv4 { fragment, ..Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP) }.with(&vec![8; len])
    };
    rig.give(&fragment(0, true, 1480));
    rig.give(&fragment(65_120, false, 1480));
    assert_eq!(rig.drops(DropReason::FragmentTooBig), 2);
    assert_eq!(rig.count(Counter::IpReasmFails), 1);
    assert_eq!(rig.take_ip(), []);
    rig.finish();
}

#[test]
fn a_datagram_without_its_last_fragment_is_reported_to_its_sender() {
    let mut rig = rig(&[]);
    let request = echo_request(1992);
    let first = piece(PEER_IP, protocol::ICMP, &request, 0..1000);
    rig.give(&first);
    rig.pass(Duration::from_secs(29));
    assert_eq!(rig.take_ip(), []);
    rig.pass(Duration::from_secs(2));
    let seen = rig.take_ip();
    let [Seen::Icmp(_, message, quote)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(*message, IcmpMessage::TimeExceeded { reassembly: true });
    assert_eq!(quote[..], first[..quote.len()], "the first fragment");
    assert_eq!(rig.drops(DropReason::FragmentTimeout), 1);
    assert_eq!(rig.count(Counter::IpReasmTimeout), 1);
    assert_eq!(rig.count(Counter::IpReasmFails), 1);
    assert_eq!(rig.count(Counter::IcmpOutTimeExcds), 1);
    rig.finish();
}

/// Without its first fragment, nothing tells the sender which datagram it was (RFC 792).
#[test]
fn a_datagram_without_its_first_fragment_ends_without_a_report() {
    let mut rig = rig(&[("net.ipv4.ipfrag_time", "3")]);
    let request = echo_request(1992);
    give(&mut rig, protocol::ICMP, &request, &[(1000, 2000)]);
    rig.pass(Duration::from_secs(4));
    assert_eq!(rig.take_ip(), []);
    assert_eq!(rig.count(Counter::IpReasmTimeout), 1);
    rig.finish();
}

#[test]
fn fragments_for_another_host_are_not_kept() {
    let mut rig = rig(&[]);
    let fragment = Fragment { dont: false, more: true, offset: 0 };
    let other = Ipv4Addr::new(10, 0, 0, 77);
    rig.give(&Ipv4 { fragment, ..Ipv4::new(PEER_IP, other, protocol::UDP) }.with(&[0; 800]));
    assert_eq!(rig.drops(DropReason::IpForwardingOff), 1);
    assert_eq!(rig.count(Counter::IpReasmReqds), 0);
    rig.finish();
}

#[test]
fn a_flood_of_fragments_leaves_other_sources_their_memory() {
    let mut rig = rig(&[("net.ipv4.ipfrag_high_thresh", "65536")]);
    let request = echo_request(1992);
    give(&mut rig, protocol::ICMP, &request, &[(0, 1000)]);
    let flooder = Ipv4Addr::new(10, 0, 0, 66);
    let mut dropped = 0;
    for index in 0..500 {
        // One datagram per protocol number and destination would do as well; the peer's has one.
        let datagram = vec![0; 8000];
        let start = index % 200 * 16;
        rig.give(&piece(flooder, protocol::UDP, &datagram, start..start + 8));
        dropped = rig.drops(DropReason::FragmentMemory);
    }
    assert!(dropped > 0, "{:?}", rig.host().counters());
    give(&mut rig, protocol::ICMP, &request, &[(1000, 2000)]);
    assert_eq!(rig.count(Counter::IpReasmOKs), 1);
    rig.pass(Duration::from_secs(31));
    rig.finish();
}

#[test]
fn fragments_are_refused_with_the_limit_zero() {
    let mut rig = rig(&[("net.ipv4.ipfrag_high_thresh", "0")]);
    let request = echo_request(1992);
    give(&mut rig, protocol::ICMP, &request, &[(0, 1000), (1000, 2000)]);
    assert_eq!(rig.drops(DropReason::FragmentMemory), 2);
    assert_eq!(rig.count(Counter::IpReasmFails), 2);
    rig.finish();
}

/// IPv6: the same table, with the rules of RFC 8200 §4.5.
mod v6 {
    use std::net::{Ipv6Addr, SocketAddr};

    use sim::rig::{HOST_V6, PEER_V6};
    use stack::socket::Listener;

    use super::*;

    fn rig(settings: &[(&str, &str)]) -> Rig {
        let mut sysctls = Sysctls::default();
        for (name, value) in settings {
            sysctls.set(name, value).expect("a setting");
        }
        Rig::new(RigConfig { ipv6: true, sysctls, ..RigConfig::default() })
    }

    fn echo_request(len: usize) -> Vec<u8> {
        let payload: Vec<_> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let message = IcmpMessage::EchoRequest { id: 7, seq: 1 };
        frame::icmpv6(PEER_V6, HOST_V6, &message, &payload)
    }

    /// Returns the bytes `start..end` of a datagram as a fragment.
    fn piece(next: u8, id: u32, datagram: &[u8], start: usize, end: usize) -> Vec<u8> {
        let place = (id, u16::try_from(start).expect("an offset"), end < datagram.len());
        frame::ipv6_fragment(PEER_V6, HOST_V6, next, place, &datagram[start..end])
    }

    fn give(rig: &mut Rig, datagram: &[u8], ranges: &[(usize, usize)]) {
        for &(start, end) in ranges {
            rig.give(&piece(protocol::ICMPV6, 9, datagram, start, end));
        }
    }

    #[test]
    fn a_long_ping_in_fragments_is_answered_in_fragments() {
        let mut rig = rig(&[]);
        let request = echo_request(4000);
        give(&mut rig, &request, &[(2896, 4008), (0, 1448), (1448, 2896)]);
        let seen = rig.take_ip();
        assert_eq!(seen.len(), 3, "{seen:?}");
        let mut reply = Vec::new();
        for seen in seen {
            let Seen::Fragment(ip, bytes) = seen else { panic!("not a fragment: {seen:?}") };
            assert_eq!(usize::from(ip.fragment.offset), reply.len());
            reply.extend_from_slice(&bytes);
            assert_eq!(ip.fragment.more, reply.len() < request.len());
        }
        assert_eq!(reply[4..], request[4..], "only type and checksum differ");
        assert_eq!(frame::with_icmpv6_checksum(HOST_V6, PEER_V6, reply.clone()), reply);
        assert_eq!(rig.count(Counter::Ip6ReasmReqds), 3);
        assert_eq!((rig.count(Counter::Ip6ReasmOKs), rig.count(Counter::Ip6ReasmFails)), (1, 0));
        assert_eq!((rig.count(Counter::Ip6FragOKs), rig.count(Counter::Ip6FragCreates)), (1, 3));
        assert_eq!(rig.count(Counter::IpReasmReqds), 0, "the counters of IPv4");
        rig.finish();
    }

    #[test]
    fn extension_headers_stay_before_and_inside_the_datagram() {
        let mut rig = rig(&[]);
        // Destination Options of eight bytes, which name the next header.
        let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        let datagram = [&options(protocol::ICMPV6)[..], &echo_request(2000)].concat();
        for (start, end) in [(0, 1024), (1024, datagram.len())] {
            let packet = piece(protocol::DESTINATION_OPTIONS, 9, &datagram, start, end);
            let before = options(protocol::FRAGMENT);
            let payload = [&before[..], &packet[40..]].concat();
            rig.give(&frame::ipv6(PEER_V6, HOST_V6, protocol::DESTINATION_OPTIONS, &payload));
        }
        assert_eq!(rig.count(Counter::Ip6ReasmOKs), 1);
        assert_eq!(rig.take_ip().len(), 2, "the reply");
        rig.finish();
    }

    #[test]
    fn a_syn_in_two_fragments_is_one_segment() {
        let mut rig = rig(&[]);
        let local = SocketAddr::new(HOST_V6.into(), 80);
        let host = rig.host();
        let listener = Listener::listen(&host, &mut rig.world.cx, local, 8).expect("a free port");
        drop(host);
        let options = Options { mss: Some(1440), ..Options::default() };
        let header = SegmentHeader {
            flags: Flags::SYN,
            src_port: 5000,
            dst_port: 80,
            options,
            ..SegmentHeader::default()
        };
        // Without its last option, the first fragment has a whole header of 24 bytes.
        let syn = frame::tcp(PEER_V6, HOST_V6, &header, b"");
        assert!(syn.len() == 24, "{} bytes", syn.len());
        let with_data = frame::tcp(PEER_V6, HOST_V6, &header, b"12345678");
        for (start, end) in [(24, 32), (0, 24)] {
            rig.give(&piece(protocol::TCP, 9, &with_data, start, end));
        }
        let answers = rig.take_ip();
        let (header, _) = answers[0].segment().expect("a segment");
        assert_eq!(header.flags, Flags::SYN | Flags::ACK);
        drop(listener);
        rig.pass(Duration::from_secs(200));
        rig.finish();
    }

    #[test]
    fn only_an_exact_copy_is_a_duplicate() {
        let request = echo_request(1992);
        let mut exact = rig(&[]);
        give(&mut exact, &request, &[(0, 1000), (0, 1000), (1000, 2000)]);
        assert_eq!(exact.drops(DropReason::FragmentDuplicate), 1);
        assert_eq!(exact.count(Counter::Ip6ReasmOKs), 1);
        exact.finish();
        // RFC 5722: any overlap ends the datagram, also one inside a known fragment.
        for second in [(0, 800), (992, 2000)] {
            let mut rig = rig(&[]);
            give(&mut rig, &request, &[(0, 1000), second]);
            assert_eq!(rig.drops(DropReason::FragmentOverlap), 2, "both fragments");
            assert_eq!(rig.count(Counter::Ip6ReasmFails), 1);
            assert_eq!(rig.take_ip(), []);
            rig.pass(Duration::from_secs(61));
            rig.finish();
        }
    }

    /// RFC 6946: it joins no datagram in the table, and ends none.
    #[test]
    fn an_atomic_fragment_is_a_datagram_of_its_own() {
        let mut rig = rig(&[]);
        let long = echo_request(1992);
        give(&mut rig, &long, &[(0, 1000)]);
        let short = echo_request(20);
        rig.give(&piece(protocol::ICMPV6, 9, &short, 0, short.len()));
        assert_eq!(rig.take_ip().len(), 1, "the reply to the short request");
        assert_eq!(rig.count(Counter::Ip6ReasmOKs), 1);
        give(&mut rig, &long, &[(1000, 2000)]);
        assert_eq!(rig.take_ip().len(), 2, "the reply to the long one");
        assert_eq!(rig.count(Counter::Ip6ReasmOKs), 2);
        assert_eq!(rig.count(Counter::Ip6ReasmFails), 0);
        rig.finish();
    }

    /// RFC 6980: neither in one fragment nor in several.
    #[test]
    fn neighbor_discovery_with_a_fragment_header_is_dropped() {
        let mut rig = rig(&[]);
        let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
        solicitation.extend_from_slice(&HOST_V6.octets());
        let message = frame::with_icmpv6_checksum(PEER_V6, HOST_V6, solicitation);
        rig.give(&piece(protocol::ICMPV6, 9, &message, 0, 24));
        for (start, end) in [(16, 24), (0, 16)] {
            rig.give(&piece(protocol::ICMPV6, 10, &message, start, end));
        }
        assert_eq!(rig.drops(DropReason::NdpFragment), 2);
        assert_eq!(rig.take_ip(), []);
        rig.finish();
    }

    /// Returns code and pointer of the Parameter Problem messages that the host has sent.
    fn problems(rig: &mut Rig) -> Vec<(u8, u32)> {
        let problem = |seen: &Seen| match seen {
            Seen::Icmp(_, IcmpMessage::ParameterProblem { code, pointer }, _) => {
                Some((*code, *pointer))
            }
            _ => None,
        };
        rig.take_ip().iter().filter_map(problem).collect()
    }

    #[test]
    fn faults_of_a_single_fragment_are_reported_and_end_no_datagram() {
        let mut rig = rig(&[("net.ipv4.icmp_ratelimit", "0")]);
        let request = echo_request(1992);
        give(&mut rig, &request, &[(0, 1000)]);
        let fragment = |offset, more, len: usize| {
            let place = (9, offset, more);
            frame::ipv6_fragment(PEER_V6, HOST_V6, protocol::UDP, place, &vec![8; len])
        };
        // A length that is no multiple of 8, the end of the largest packet, a missing header.
        rig.give(&fragment(1000, true, 1001));
        rig.give(&fragment(65_120, false, 1448));
        rig.give(&piece(protocol::TCP, 10, &[0; 64], 0, 16));
        assert_eq!(problems(&mut rig), [(0, 4), (0, 42), (3, 0)]);
        assert_eq!(rig.drops(DropReason::FragmentMalformed), 2);
        assert_eq!(rig.drops(DropReason::FragmentTooBig), 1);
        assert_eq!(rig.count(Counter::Ip6InHdrErrors), 3);
        give(&mut rig, &request, &[(1000, 2000)]);
        assert_eq!(rig.count(Counter::Ip6ReasmOKs), 1, "the datagram is complete");
        rig.finish();
    }

    #[test]
    fn a_datagram_without_its_last_fragment_is_reported_to_its_sender() {
        let mut rig = rig(&[]);
        let request = echo_request(1992);
        give(&mut rig, &request, &[(0, 1000)]);
        rig.pass(Duration::from_secs(59));
        assert_eq!(rig.take_ip(), []);
        rig.pass(Duration::from_secs(2));
        let seen = rig.take_ip();
        let [Seen::Icmp(_, message, quote)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(*message, IcmpMessage::TimeExceeded { reassembly: true });
        let first = piece(protocol::ICMPV6, 9, &request, 0, 1000);
        assert_eq!(quote[..], first[..quote.len()], "the first fragment");
        assert_eq!(rig.count(Counter::Ip6ReasmTimeout), 1);
        assert_eq!(rig.count(Counter::Icmp6OutTimeExcds), 1);
        rig.finish();
    }

    /// A complete datagram that is a fragment again would make the reassembly call itself, as deep
    /// as the sender likes.
    #[test]
    fn a_datagram_that_is_a_fragment_itself_is_dropped() {
        let mut rig = rig(&[]);
        let inner = [&[protocol::UDP, 0, 0, 1, 0, 0, 0, 5][..], &[0; 24]].concat();
        for (start, end) in [(0, 16), (16, 32)] {
            rig.give(&piece(protocol::FRAGMENT, 9, &inner, start, end));
        }
        assert_eq!(rig.count(Counter::Ip6ReasmOKs), 1);
        assert_eq!(rig.drops(DropReason::IpOptions), 1);
        rig.finish();
    }

    #[test]
    fn a_flood_of_fragments_leaves_other_sources_their_memory() {
        let mut rig = rig(&[("net.ipv6.ip6frag_high_thresh", "65536")]);
        let request = echo_request(1992);
        give(&mut rig, &request, &[(0, 1000)]);
        let flooder = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 66);
        for id in 0..500 {
            let place = (id, 8, true);
            rig.give(&frame::ipv6_fragment(flooder, HOST_V6, protocol::UDP, place, &[0; 8]));
        }
        assert!(rig.drops(DropReason::FragmentMemory) > 0);
        give(&mut rig, &request, &[(1000, 2000)]);
        assert_eq!(rig.count(Counter::Ip6ReasmOKs), 1);
        rig.pass(Duration::from_secs(61));
        rig.finish();
    }

    #[test]
    fn fragments_are_refused_with_the_limit_zero() {
        let mut rig = rig(&[("net.ipv6.ip6frag_high_thresh", "0")]);
        give(&mut rig, &echo_request(1992), &[(0, 1000), (1000, 2000)]);
        assert_eq!(rig.drops(DropReason::FragmentMemory), 2);
        assert_eq!(rig.count(Counter::Ip6ReasmFails), 2);
        rig.finish();
    }
}
