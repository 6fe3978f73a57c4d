//! Permanent neighbors: no ARP packet changes them, no timer ends them, and a full table keeps
//! them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC, arp_frame},
};
use stack::{
    base::{config_error::ConfigError, counters::Counter, ids::DeviceIndex},
    header::{
        arp::{ArpOperation, ArpPacket},
        ethernet::MacAddr,
        icmp::IcmpMessage,
        ip::protocol,
    },
    transmit::neighbor::{NudState, table::NeighborInfo},
};

use crate::stations::{OTHER_IP, OTHER_MAC, sent, silent_rig};

const LOOPBACK: DeviceIndex = DeviceIndex(0);
const DEVICE: DeviceIndex = DeviceIndex(1);

fn set(rig: &mut Rig, ip: Ipv4Addr, mac: MacAddr) -> Result<(), ConfigError> {
    rig.host().set_neighbor(&mut rig.world.cx, DEVICE, ip.into(), mac)
}

fn delete(rig: &mut Rig, ip: Ipv4Addr) -> Result<(), ConfigError> {
    rig.host().delete_neighbor(&mut rig.world.cx, DEVICE, ip.into())
}

/// A station pings, so that the host has a packet to send; returns the destinations of replies.
fn ping_from(rig: &mut Rig, src: Ipv4Addr) -> Vec<MacAddr> {
    let message = frame::icmp(&IcmpMessage::EchoRequest { id: 7, seq: 1 }, b"ping");
    let frame = rig.framed(&Ipv4::new(src, HOST_IP, protocol::ICMP).with(&message));
    assert!(rig.link.deliver(&mut rig.world.cx, &frame));
    answered(&sent(rig))
}

fn answered(sent: &[(MacAddr, Seen)]) -> Vec<MacAddr> {
    let is_reply = |seen: &Seen| matches!(seen, Seen::Icmp(_, IcmpMessage::EchoReply { .. }, _));
    sent.iter().filter(|(_, seen)| is_reply(seen)).map(|(to, _)| *to).collect()
}

fn requests_in(seen: &[Seen]) -> usize {
    let is_question =
        |seen: &&Seen| matches!(seen, Seen::Arp(_, arp) if arp.operation == ArpOperation::Request);
    seen.iter().filter(is_question).count()
}

#[test]
fn a_forged_arp_packet_does_not_change_a_permanent_entry() {
    let mut rig = silent_rig(&[]);
    set(&mut rig, PEER_IP, PEER_MAC).expect("a neighbor");
    let question = ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP);
    let forged = [
        ArpPacket::announcement(OTHER_MAC, PEER_IP),
        ArpPacket::request(OTHER_MAC, PEER_IP, HOST_IP),
        question.reply(OTHER_MAC),
    ];
    for _ in 0..3 {
        for arp in &forged {
            assert!(rig.link.deliver(&mut rig.world.cx, &arp_frame(MacAddr::BROADCAST, arp)));
            sent(&mut rig);
            assert_eq!(ping_from(&mut rig, PEER_IP), [PEER_MAC], "{arp:?}");
        }
        rig.pass(Duration::from_secs(2));
    }
    rig.finish();
}

#[test]
fn a_permanent_entry_is_never_resolved() {
    let mut rig = silent_rig(&[]);
    set(&mut rig, PEER_IP, PEER_MAC).expect("a neighbor");
    for _ in 0..300 {
        assert_eq!(ping_from(&mut rig, PEER_IP), [PEER_MAC]);
        rig.pass(Duration::from_secs(1));
        assert_eq!(rig.take(), []);
    }
    rig.pass(Duration::from_secs(3600));
    assert_eq!(ping_from(&mut rig, PEER_IP), [PEER_MAC]);
    assert_eq!(rig.count(Counter::ArpOutPackets), 0);
    rig.finish();
}

#[test]
fn waiting_packets_leave_when_their_neighbor_is_set() {
    let mut rig = silent_rig(&[]);
    for _ in 0..3 {
        assert_eq!(ping_from(&mut rig, PEER_IP), []);
    }
    set(&mut rig, PEER_IP, PEER_MAC).expect("a neighbor");
    assert_eq!(answered(&sent(&mut rig)), [PEER_MAC; 3]);
    // Another link address for the same entry, which cached routes refer to.
    set(&mut rig, PEER_IP, OTHER_MAC).expect("a neighbor");
    assert_eq!(ping_from(&mut rig, PEER_IP), [OTHER_MAC]);
    rig.pass(Duration::from_secs(10));
    assert_eq!(requests_in(&rig.take()), 0, "the earlier requests have ended");
    rig.finish();
}

#[test]
fn a_deleted_neighbor_is_resolved_again() {
    let mut rig = silent_rig(&[]);
    set(&mut rig, PEER_IP, OTHER_MAC).expect("a neighbor");
    assert_eq!(ping_from(&mut rig, PEER_IP), [OTHER_MAC]);
    delete(&mut rig, PEER_IP).expect("it is there");
    assert_eq!(rig.host().neighbors(), []);
    rig.answers_arp = true;
    assert_eq!(ping_from(&mut rig, PEER_IP), [], "the reply waits");
    let question = ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP);
    rig.give_arp(HOST_MAC, &question.reply(PEER_MAC));
    rig.take();
    assert_eq!(ping_from(&mut rig, PEER_IP), [PEER_MAC]);
    // An entry learned by ARP can be deleted as well, and packets that wait for it are dropped.
    delete(&mut rig, PEER_IP).expect("it is there");
    ping_from(&mut rig, PEER_IP);
    delete(&mut rig, PEER_IP).expect("it is being resolved");
    assert_eq!(rig.drops(DropReason::NeighborFailed), 1);
    let error = delete(&mut rig, PEER_IP).expect_err("it is deleted");
    assert_eq!(
        (error.kind, error.to_string()),
        (io::ErrorKind::NotFound, String::from("neighbor 10.0.0.2: no such neighbor"))
    );
    rig.finish();
}

#[test]
fn neighbors_are_listed_with_their_states() {
    let mut rig = silent_rig(&[]);
    set(&mut rig, OTHER_IP, OTHER_MAC).expect("a neighbor");
    ping_from(&mut rig, PEER_IP);
    let line =
        |ip: Ipv4Addr, mac, state| NeighborInfo { device: DEVICE, address: ip.into(), mac, state };
    let set = line(OTHER_IP, Some(OTHER_MAC), NudState::Permanent);
    assert_eq!(rig.host().neighbors(), [line(PEER_IP, None, NudState::Incomplete), set]);
    rig.pass(Duration::from_secs(4));
    assert_eq!(rig.host().neighbors(), [line(PEER_IP, None, NudState::Failed), set]);
    rig.finish();
}

/// Linux: `neigh_ifdown` deletes them all.
#[test]
fn a_device_that_goes_down_loses_its_neighbors() {
    let mut rig = silent_rig(&[]);
    set(&mut rig, PEER_IP, OTHER_MAC).expect("a neighbor");
    let host = rig.host();
    for up in [false, true] {
        host.set_device_up(&mut rig.world.cx, DEVICE, up).expect("a device");
    }
    assert_eq!(host.neighbors(), []);
    assert_eq!(ping_from(&mut rig, PEER_IP), [], "it is being resolved");
    drop(host);
    rig.finish();
}

/// Permanent entries are neither collected nor counted: other neighbors have the same room as
/// without them.
#[test]
fn a_full_table_keeps_permanent_entries() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.gc_thresh3", "16")]);
    let fixed = |tail: u8| Ipv4Addr::new(10, 0, 0, 100 + tail);
    for tail in 0..20 {
        set(&mut rig, fixed(tail), OTHER_MAC).expect("a neighbor");
    }
    for tail in 0..200 {
        ping_from(&mut rig, Ipv4Addr::new(10, 0, 0, if tail < 90 { 3 + tail } else { 40 + tail }));
    }
    assert_eq!(rig.count(Counter::NeighTableFulls), 200 - 8 * 16);
    let permanent = |rig: &Rig| {
        let list = rig.host().neighbors();
        list.iter().filter(|line| line.state == NudState::Permanent).count()
    };
    assert_eq!(permanent(&rig), 20);
    rig.pass(Duration::from_secs(4));
    for tail in 0..50 {
        let stranger = ArpPacket::request(OTHER_MAC, Ipv4Addr::new(10, 0, 0, 150 + tail), HOST_IP);
        rig.give_arp(MacAddr::BROADCAST, &stranger);
    }
    rig.take();
    assert_eq!((permanent(&rig), ping_from(&mut rig, fixed(7))), (20, vec![OTHER_MAC]));
    rig.finish();
}

#[test]
fn a_permanent_neighbor_is_reached_in_the_strictest_mode() {
    let mut rig = silent_rig(&[("net.quietline.arp_strict", "2")]);
    set(&mut rig, PEER_IP, PEER_MAC).expect("a neighbor");
    assert_eq!(ping_from(&mut rig, PEER_IP), [PEER_MAC]);
    rig.finish();
}

#[test]
fn impossible_neighbors_are_refused() {
    let mut rig = silent_rig(&[]);
    let host = rig.host();
    let mut refused = |device, ip: &str, mac| {
        let ip: IpAddr = ip.parse().expect("an address");
        let error = host.set_neighbor(&mut rig.world.cx, device, ip, mac).expect_err("refused");
        (error.kind, error.to_string())
    };
    let invalid = |text: &str| (io::ErrorKind::InvalidInput, text.to_owned());
    let single = "an address of a single station";
    for ip in ["10.0.0.255", "255.255.255.255", "224.0.0.1", "0.0.0.0", "0.1.2.3"] {
        let expected = invalid(&format!("neighbor {ip}: expected {single}"));
        assert_eq!(refused(DEVICE, ip, PEER_MAC), expected);
    }
    for ip in ["10.0.0.1", "127.0.0.1"] {
        let expected = invalid(&format!("neighbor {ip}: an address of this host"));
        assert_eq!(refused(DEVICE, ip, PEER_MAC), expected);
    }
    for ip in ["ff02::1", "::", "::1", "::ffff:10.0.0.9"] {
        let expected = invalid(&format!("neighbor {ip}: expected {single}"));
        if ip != "::1" {
            assert_eq!(refused(DEVICE, ip, PEER_MAC), expected);
        }
    }
    for mac in [MacAddr::BROADCAST, MacAddr::UNSPECIFIED, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        let text = format!("neighbor lladdr {mac}: expected the link address of a single station");
        assert_eq!(refused(DEVICE, "10.0.0.2", mac), invalid(&text));
    }
    let lo = invalid("neighbor dev lo: expected a device whose frames carry link addresses");
    assert_eq!(refused(LOOPBACK, "10.0.0.2", PEER_MAC), lo);
    let missing = (io::ErrorKind::NotFound, String::from("neighbor dev 2: no such device"));
    assert_eq!(refused(DeviceIndex(2), "10.0.0.2", PEER_MAC), missing);
    assert_eq!(host.neighbors(), []);
    drop(host);
    rig.finish();
}

#[test]
fn a_device_without_link_addresses_has_no_neighbors() {
    let mut rig = Rig::new(RigConfig { ethernet: false, ..RigConfig::default() });
    let text = "neighbor dev bytes: expected a device whose frames carry link addresses";
    let error = set(&mut rig, PEER_IP, PEER_MAC).expect_err("refused");
    assert_eq!((error.kind, error.to_string().as_str()), (io::ErrorKind::InvalidInput, text));
    let error = delete(&mut rig, PEER_IP).expect_err("refused");
    assert_eq!(error.to_string(), text);
    rig.finish();
}
