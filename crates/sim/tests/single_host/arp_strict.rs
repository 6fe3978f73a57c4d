//! Stricter ARP: `arp_ignore`, `drop_gratuitous_arp`, `arp_strict`.

use std::{net::Ipv4Addr, time::Duration};

use pkt::DropReason;
use sim::{
    Rig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC, arp_frame},
};
use stack::{
    base::counters::Counter,
    header::{
        arp::{ArpOperation, ArpPacket},
        ethernet::MacAddr,
        icmp::IcmpMessage,
        ip::protocol,
    },
    sysctl::Sysctls,
};

use crate::stations::{OTHER_IP, OTHER_MAC, sent, silent_rig_of_two as silent_rig};

/// An address outside the host's subnets.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

const ARP_IGNORE: &str = "net.ipv4.conf.all.arp_ignore";
const DROP_GRATUITOUS: &str = "net.ipv4.conf.all.drop_gratuitous_arp";
const ARP_STRICT: &str = "net.quietline.arp_strict";

/// Delivers a frame; returns the packets that the host sends in response, with their destination
/// MAC addresses.
fn exchange(rig: &mut Rig, frame: &[u8]) -> Vec<(MacAddr, Seen)> {
    assert!(rig.link.deliver(&mut rig.world.cx, frame));
    sent(rig)
}

fn give_arp(rig: &mut Rig, arp: &ArpPacket) -> Vec<(MacAddr, Seen)> {
    exchange(rig, &arp_frame(MacAddr::BROADCAST, arp))
}

/// Returns the destinations of echo replies.
fn answered(sent: &[(MacAddr, Seen)]) -> Vec<MacAddr> {
    let is_reply = |seen: &Seen| matches!(seen, Seen::Icmp(_, IcmpMessage::EchoReply { .. }, _));
    sent.iter().filter(|(_, seen)| is_reply(seen)).map(|(to, _)| *to).collect()
}

/// The peer pings, so that the host has a packet to send; returns the destinations of the reply.
fn ping(rig: &mut Rig) -> Vec<MacAddr> {
    let message = frame::icmp(&IcmpMessage::EchoRequest { id: 7, seq: 1 }, b"ping");
    let frame = rig.framed(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
    answered(&exchange(rig, &frame))
}

fn reply_of(mac: MacAddr) -> ArpPacket {
    ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP).reply(mac)
}

/// Returns the host's answer to a request on its second device, of the network 10.0.1.0/24.
fn answer_by_other(rig: &mut Rig, request: &ArpPacket) -> Option<ArpPacket> {
    let other = rig.other.clone().expect("two devices");
    assert!(other.deliver(&mut rig.world.cx, &arp_frame(MacAddr::BROADCAST, request)));
    rig.settle();
    let sent = other.take()?;
    match frame::judge_ethernet(&sent.bytes, HOST_MAC, 1500).expect("a valid frame") {
        Seen::Arp(_, arp) => Some(arp),
        seen => panic!("{seen:?}"),
    }
}

#[test]
fn an_address_is_answered_on_its_own_device_unless_a_setting_says_otherwise() {
    let request = ArpPacket::request(OTHER_MAC, Ipv4Addr::new(10, 0, 1, 9), HOST_IP);
    for (mode, answers) in [("0", true), ("1", false), ("2", false), ("8", false)] {
        let mut rig = silent_rig(&[(ARP_IGNORE, mode)]);
        let expected = answers.then(|| request.reply(HOST_MAC));
        assert_eq!(answer_by_other(&mut rig, &request), expected, "{mode}");
        assert_eq!(rig.drops(DropReason::ArpIgnored), u64::from(!answers), "{mode}");
        assert_eq!(rig.count(Counter::NeighAllocs), u64::from(answers), "{mode}");
        rig.finish();
    }
    assert_eq!(Sysctls::default().get(ARP_IGNORE).as_deref(), Ok("1"));
}

#[test]
fn arp_ignore_selects_the_answered_requests() {
    let near = ArpPacket::request(OTHER_MAC, OTHER_IP, HOST_IP);
    let far = ArpPacket::request(OTHER_MAC, FAR, HOST_IP);
    let probe = ArpPacket::request(OTHER_MAC, Ipv4Addr::UNSPECIFIED, HOST_IP);
    let cases = [("0", [true; 3]), ("1", [true; 3]), ("2", [true, false, true]), ("8", [false; 3])];
    for (mode, answers) in cases {
        let mut rig = silent_rig(&[(ARP_IGNORE, mode)]);
        for (request, answers) in [near, far, probe].iter().zip(answers) {
            let expected =
                answers.then(|| (OTHER_MAC, Seen::Arp(OTHER_MAC, request.reply(HOST_MAC))));
            assert_eq!(give_arp(&mut rig, request), Vec::from_iter(expected), "{mode} {request:?}");
        }
        rig.finish();
    }
}

/// Linux: `drop_gratuitous_arp` applies to announcements alone.
#[test]
fn drop_gratuitous_arp_drops_announcements() {
    let mut rig = silent_rig(&[(DROP_GRATUITOUS, "1")]);
    assert_eq!(give_arp(&mut rig, &ArpPacket::request(PEER_MAC, PEER_IP, HOST_IP)).len(), 1);
    assert_eq!(give_arp(&mut rig, &ArpPacket::announcement(OTHER_MAC, PEER_IP)), []);
    let as_reply =
        ArpPacket { operation: ArpOperation::Reply, ..ArpPacket::announcement(OTHER_MAC, PEER_IP) };
    assert_eq!(give_arp(&mut rig, &as_reply), []);
    assert_eq!((ping(&mut rig), rig.drops(DropReason::ArpIgnored)), (vec![PEER_MAC], 2));
    // Other ARP packets still change an entry, once it is older than a second.
    rig.pass(Duration::from_millis(1001));
    give_arp(&mut rig, &ArpPacket::request(OTHER_MAC, PEER_IP, HOST_IP));
    assert_eq!(ping(&mut rig), [OTHER_MAC]);
    // A station that claims an address of this host is detected as before.
    give_arp(&mut rig, &ArpPacket::announcement(OTHER_MAC, HOST_IP));
    assert_eq!(rig.drops(DropReason::ArpSourceInvalid), 1);
    rig.finish();
}

#[test]
fn in_strict_mode_only_an_awaited_answer_is_learned() {
    let mut rig = silent_rig(&[(ARP_STRICT, "1")]);
    // A request is answered, and its sender is not learned.
    let request = ArpPacket::request(OTHER_MAC, PEER_IP, HOST_IP);
    assert_eq!(give_arp(&mut rig, &request).len(), 1);
    assert_eq!(rig.count(Counter::NeighAllocs), 0);
    assert_eq!(ping(&mut rig), [], "the address is requested");
    assert_eq!(give_arp(&mut rig, &request).len(), 1, "the answer to the request alone");
    assert_eq!(answered(&give_arp(&mut rig, &reply_of(PEER_MAC))), [PEER_MAC]);
    let forged = [request, reply_of(OTHER_MAC), ArpPacket::announcement(OTHER_MAC, PEER_IP)];
    for _ in 0..3 {
        for arp in &forged {
            give_arp(&mut rig, arp);
        }
        assert_eq!(ping(&mut rig), [PEER_MAC]);
        rig.pass(Duration::from_millis(1001));
    }
    rig.finish();
}

#[test]
fn in_strict_mode_a_probe_is_answered_by_the_known_station_alone() {
    let mut rig = silent_rig(&[(ARP_STRICT, "1")]);
    ping(&mut rig);
    give_arp(&mut rig, &reply_of(PEER_MAC));
    // The entry becomes stale, is used, and is probed five seconds later.
    rig.pass(Duration::from_secs(60));
    assert_eq!(ping(&mut rig), [PEER_MAC]);
    rig.take();
    rig.pass(Duration::from_millis(5500));
    let question = ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP);
    assert_eq!(rig.take(), [Seen::Arp(PEER_MAC, question)]);
    give_arp(&mut rig, &reply_of(OTHER_MAC));
    assert_eq!(ping(&mut rig), [PEER_MAC]);
    give_arp(&mut rig, &reply_of(PEER_MAC));
    rig.pass(Duration::from_secs(10));
    assert_eq!(rig.take(), [], "confirmed");
    assert_eq!(rig.count(Counter::NeighResFailed), 0);
    rig.finish();
}

#[test]
fn in_the_strictest_mode_no_answer_is_learned() {
    let mut rig = silent_rig(&[(ARP_STRICT, "2")]);
    ping(&mut rig);
    assert_eq!(give_arp(&mut rig, &reply_of(PEER_MAC)), []);
    rig.pass(Duration::from_secs(4));
    assert_eq!(rig.drops(DropReason::NeighborFailed), 1);
    rig.finish();
}
