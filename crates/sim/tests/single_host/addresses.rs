//! Addresses that are added to a running host and removed from it, and UDP of a host without an
//! address, by which a DHCP client works.

use std::net::{IpAddr, Ipv4Addr};

use pkt::EtherType;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC},
};
use stack::{
    base::ids::DeviceIndex,
    header::{
        arp::{ArpOperation, ArpPacket},
        ethernet::MacAddr,
        ip::protocol,
    },
    socket::{
        datagram::{SendControl, SendMessage},
        net::ClaimState,
        options::SocketOption,
    },
    sysctl::Sysctls,
};

use super::udp::{at, bind, recv, send};

const DEVICE: DeviceIndex = DeviceIndex(1);
const NEW: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);

fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    Rig::new(RigConfig { sysctls, default_route: false, ..RigConfig::default() })
}

fn add(rig: &mut Rig, address: &str) {
    let host = rig.host();
    let address = address.parse().expect("an address");
    host.add_address(&mut rig.world.cx, DEVICE, address).expect("a free address");
}

fn remove(rig: &mut Rig, address: Ipv4Addr) {
    let host = rig.host();
    host.remove_address(&mut rig.world.cx, DEVICE, address.into()).expect("an address");
}

/// Sends a datagram to port 67 of the limited broadcast address, and returns the header of the
/// packet that leaves.
fn broadcast(rig: &mut Rig) -> stack::header::ip::IpHeader {
    let socket = bind(rig, Ipv4Addr::UNSPECIFIED, 68);
    let host = rig.host();
    let option = SocketOption::Broadcast;
    socket.set_option(&host, &mut rig.world.cx, option, &true.into()).expect("an option");
    let control = SendControl { device: Some(DEVICE), ..SendControl::default() };
    let to = at(Ipv4Addr::BROADCAST, 67);
    let message = SendMessage { control, ..SendMessage::to(b"discover", to) };
    send(rig, &socket, &message).expect("a device is named");
    socket.close(&host, &mut rig.world.cx);
    rig.settle();
    let sent = rig.take_ip().into_iter().find_map(|seen| match seen {
        Seen::Udp(header, ..) => Some(header),
        _ => None,
    });
    sent.expect("one datagram")
}

/// RFC 1122 §3.2.1.3 (a).
#[test]
fn a_broadcast_of_a_device_without_an_address_has_an_unspecified_source() {
    let mut rig = rig(&[]);
    assert_eq!(broadcast(&mut rig).src, IpAddr::V4(HOST_IP));
    remove(&mut rig, HOST_IP);
    let header = broadcast(&mut rig);
    assert_eq!(header.src, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    assert_eq!(header.dst, IpAddr::V4(Ipv4Addr::BROADCAST));
    add(&mut rig, "10.0.0.77/24");
    assert_eq!(broadcast(&mut rig).src, IpAddr::V4(NEW));
    rig.finish();
}

/// Delivers a broadcast of the server, and returns whether a socket on port 68 gets it.
fn takes_offer(rig: &mut Rig) -> bool {
    let socket = bind(rig, Ipv4Addr::UNSPECIFIED, 68);
    let datagram = frame::udp(PEER_IP, Ipv4Addr::BROADCAST, (67, 68), b"offer");
    let packet = Ipv4::new(PEER_IP, Ipv4Addr::BROADCAST, protocol::UDP).with(&datagram);
    let bytes = frame::ethernet(MacAddr::BROADCAST, PEER_MAC, EtherType::IPV4, &packet);
    rig.give_frame(&bytes);
    let got = recv(rig, &socket).is_ok_and(|(payload, _)| payload == b"offer");
    let host = rig.host();
    socket.close(&host, &mut rig.world.cx);
    got
}

#[test]
fn a_host_without_an_address_takes_broadcasts_in_spite_of_rp_filter() {
    for rp_filter in ["0", "1", "2"] {
        let mut rig = rig(&[("net.ipv4.conf.all.rp_filter", rp_filter)]);
        remove(&mut rig, HOST_IP);
        assert!(takes_offer(&mut rig), "rp_filter {rp_filter}");
        // With an address outside the server's network, the filter applies again.
        add(&mut rig, "192.0.2.7/24");
        assert_eq!(takes_offer(&mut rig), rp_filter == "0", "rp_filter {rp_filter}");
        rig.finish();
    }
}

#[test]
fn a_removed_address_takes_its_routes_and_its_neighbors_with_it() {
    let mut rig = rig(&[]);
    let socket = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 1000);
    send(&mut rig, &socket, &SendMessage::to(b"a", at(PEER_IP, 7))).expect("a route");
    rig.settle();
    let asked_for = |rig: &mut Rig| {
        rig.take().into_iter().find_map(|seen| match seen {
            Seen::Arp(_, arp) if arp.operation == ArpOperation::Request => Some(arp.sender_ip),
            _ => None,
        })
    };
    assert_eq!(asked_for(&mut rig), Some(HOST_IP));
    remove(&mut rig, HOST_IP);
    assert!(send(&mut rig, &socket, &SendMessage::to(b"b", at(PEER_IP, 7))).is_err());
    add(&mut rig, "10.0.0.77/24");
    send(&mut rig, &socket, &SendMessage::to(b"c", at(PEER_IP, 7))).expect("a route");
    rig.settle();
    assert_eq!(asked_for(&mut rig), Some(NEW), "the peer is resolved from the new address");
    let host = rig.host();
    assert!(host.remove_address(&mut rig.world.cx, DEVICE, HOST_IP.into()).is_err());
    socket.close(&host, &mut rig.world.cx);
    drop(host);
    rig.finish();
}

#[test]
fn an_added_address_is_probed_and_a_reply_of_another_station_refuses_it() {
    let settings = [("net.quietline.acd_probes", "2"), ("net.quietline.acd_interval_ms", "20")];
    for conflict in [false, true] {
        let mut rig = rig(&settings);
        rig.pass(std::time::Duration::from_secs(1));
        let _ = rig.take();
        add(&mut rig, "10.0.0.77/24");
        let state = |rig: &Rig| rig.host().claim_state_of(DEVICE, NEW.into());
        assert_eq!(state(&rig), ClaimState::Probing);
        rig.pass(std::time::Duration::from_millis(25));
        let probes = rig.take();
        assert!(probes.iter().any(|seen| matches!(seen, Seen::Arp(_, arp) if arp.is_probe())));
        if conflict {
            let reply = ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: PEER_MAC,
                sender_ip: NEW,
                target_mac: HOST_MAC,
                target_ip: Ipv4Addr::UNSPECIFIED,
            };
            rig.give_arp(HOST_MAC, &reply);
            assert!(matches!(state(&rig), ClaimState::Refused { mac: PEER_MAC, .. }));
            remove(&mut rig, NEW);
        }
        rig.pass(std::time::Duration::from_millis(200));
        assert_eq!(state(&rig), ClaimState::Ready);
        assert_eq!(rig.host().is_local(&rig.world.cx, NEW.into()), !conflict);
        rig.finish();
    }
}
