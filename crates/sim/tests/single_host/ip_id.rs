//! IPv4 identifications (RFC 6864, RFC 7739): information that an outsider gets from those that it
//! sees.

use std::{io::IoSlice, net::Ipv4Addr, sync::Arc, time::Duration};

use sim::{
    Peer, Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    header::{
        icmp::IcmpMessage,
        ip::{IpHeader, protocol},
    },
    socket::{Connection, Listener},
    sysctl::Sysctls,
};
use tcp::{Flags, Options, SegmentHeader};

/// A host off the path of every connection: it sees only the answers to its own packets.
const OUTSIDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

/// Returns the identification of the host's reply to a ping of the outsider.
fn ping(rig: &mut Rig) -> u16 {
    let request = frame::icmp(&IcmpMessage::EchoRequest { id: 1, seq: 1 }, b"");
    rig.give(&Ipv4::new(OUTSIDER, HOST_IP, protocol::ICMP).with(&request));
    match &rig.take_ip()[..] {
        [Seen::Icmp(ip, ..)] => ip.id,
        other => panic!("{other:?}"),
    }
}

/// Returns the headers of the segments among `seen`, and their payload lengths.
fn segments(seen: &[Seen]) -> Vec<(IpHeader, SegmentHeader, usize)> {
    let segment = |seen: &Seen| match seen {
        Seen::Tcp(ip, tcp, payload) => (*ip, tcp.clone(), payload.len()),
        other => panic!("{other:?}"),
    };
    seen.iter().map(segment).collect()
}

fn rig_with(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    Rig::new(RigConfig { sysctls, ..RigConfig::default() })
}

fn connection(rig: &mut Rig, listener: &Listener, port: u16) -> (Peer, Arc<Connection>) {
    let peer = Peer::open(rig, 80, port, Options::default());
    (peer, listener.accept().expect("a connection"))
}

/// Returns the identifications of the segments in which `bytes` bytes leave; the peer acknowledges
/// them.
fn send(rig: &mut Rig, peer: &mut Peer, socket: &Connection, bytes: usize) -> Vec<u16> {
    let host = rig.host();
    let payload = vec![0x55; bytes];
    let sent = socket.send(&host, &mut rig.world.cx, &[IoSlice::new(&payload)]);
    assert_eq!(sent.ok(), Some(bytes));
    rig.settle();
    let mut ids = Vec::new();
    loop {
        let seen = rig.take_ip();
        if seen.is_empty() {
            return ids;
        }
        peer.hear(&seen);
        ids.extend(segments(&seen).iter().map(|(ip, ..)| ip.id));
        peer.send_next(rig, Flags::ACK, b"");
    }
}

fn finish(mut rig: Rig, listener: Arc<Listener>, sockets: Vec<Arc<Connection>>) {
    let host = rig.host();
    for socket in sockets {
        socket.abort(&host, &mut rig.world.cx);
    }
    listener.close(&host, &mut rig.world.cx);
    drop((listener, host));
    rig.finish();
}

/// The attack: a ping before and after a segment with a spoofed source of a connection. If the host
/// has answered it, to the connection's peer, the pings show no trace of that.
#[test]
fn pings_do_not_tell_whether_a_spoofed_segment_was_answered() {
    let mut rig = rig_with(&[]);
    let listener = rig.listen(80, 8);
    let (mut peer, socket) = connection(&mut rig, &listener, 2000);
    let quiet = ping(&mut rig);
    let step = ping(&mut rig).wrapping_sub(quiet);

    for flags in [Flags::SYN, Flags::RST, Flags::ACK] {
        // Inside the window and not at RCV.NXT, or an old acknowledgment: answered by a challenge
        // ACK (RFC 5961).
        let mut spoofed = peer.header(flags);
        spoofed.seq += 1;
        spoofed.ack -= 100_000;
        let before = ping(&mut rig);
        rig.give(&peer.packet(&spoofed, b""));
        let challenge = rig.take_ip();
        assert_eq!(segments(&challenge).len(), 1, "{flags:?}: {challenge:?}");
        assert_eq!(ping(&mut rig).wrapping_sub(before), step, "{flags:?}");
        rig.pass(Duration::from_secs(1));
        let _ = rig.take();
    }

    // A closed port answers with a reset, a filtered one does not answer.
    let before = ping(&mut rig);
    let to_closed_port = SegmentHeader { dst_port: 81, ..peer.header(Flags::SYN) };
    rig.give(&peer.packet(&to_closed_port, b""));
    assert_eq!(segments(&rig.take_ip()).len(), 1);
    assert_eq!(ping(&mut rig).wrapping_sub(before), step);

    // Data of a connection.
    let before = ping(&mut rig);
    send(&mut rig, &mut peer, &socket, 3000);
    assert_eq!(ping(&mut rig).wrapping_sub(before), step);
    finish(rig, listener, vec![socket]);
}

#[test]
fn segments_without_payload_and_with_df_carry_id_0() {
    let mut rig = rig_with(&[]);
    let listener = rig.listen(80, 8);
    let (peer, socket) = connection(&mut rig, &listener, 2000);
    // A challenge ACK, a reset of an unknown connection, a SYN-ACK.
    rig.give(&peer.packet(&peer.header(Flags::SYN), b""));
    let unknown = SegmentHeader { src_port: 2001, ..peer.header(Flags::ACK) };
    rig.give(&peer.packet(&unknown, b""));
    let opening = SegmentHeader { src_port: 2002, ..peer.header(Flags::SYN) };
    rig.give(&peer.packet(&opening, b""));
    let answers = segments(&rig.take_ip());
    let flags: Vec<Flags> = answers.iter().map(|(_, tcp, _)| tcp.flags).collect();
    assert_eq!(flags, [Flags::ACK, Flags::RST, Flags::SYN | Flags::ACK]);
    for (ip, tcp, _) in answers {
        assert!(ip.fragment.dont && ip.id == 0, "{ip:?} {tcp:?}");
    }
    finish(rig, listener, vec![socket]);
}

#[test]
fn each_connection_counts_its_own_segments_from_a_start_of_its_own() {
    let mut rig = rig_with(&[]);
    let listener = rig.listen(80, 8);
    let (mut peer, first) = connection(&mut rig, &listener, 2000);
    let (mut other, second) = connection(&mut rig, &listener, 2001);
    let (mut ids, mut others) = (Vec::new(), Vec::new());
    for bytes in [1, 3000, 10, 5000] {
        ids.extend(send(&mut rig, &mut peer, &first, bytes));
        others.extend(send(&mut rig, &mut other, &second, 2 * bytes));
    }
    assert!(ids.len() > 8 && others.len() > ids.len());
    for ids in [&ids, &others] {
        assert!(ids.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{ids:?}");
    }
    assert!(ids[0].abs_diff(others[0]) > 50, "{} and {}", ids[0], others[0]);
    finish(rig, listener, vec![first, second]);
}

/// Without path MTU discovery a router may fragment each packet: with ID 0 the fragments of two
/// packets could be joined (RFC 6864 §4.3).
#[test]
fn packets_without_df_do_not_repeat_id_0() {
    let mut rig = rig_with(&[("net.ipv4.ip_no_pmtu_disc", "1")]);
    let listener = rig.listen(80, 8);
    let (mut peer, socket) = connection(&mut rig, &listener, 2000);
    let mut ids = Vec::new();
    for port in 3000..3008 {
        let unknown = SegmentHeader { src_port: port, ..peer.header(Flags::ACK) };
        peer.send(&mut rig, &unknown, b"");
    }
    for (ip, ..) in segments(&rig.take_ip()) {
        assert!(!ip.fragment.dont, "{ip:?}");
        ids.push(ip.id);
    }
    let mut own = Vec::new();
    for bytes in [100, 1, 200] {
        own.extend(send(&mut rig, &mut peer, &socket, bytes));
    }
    assert!(own.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{own:?}");
    ids.extend(own);
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "{ids:?}");
    finish(rig, listener, vec![socket]);
}

/// The counter that a pinging peer of a connection sees is not shared with others, either.
#[test]
fn two_pinging_hosts_see_separate_counters() {
    let mut rig = rig_with(&[]);
    let mut from = |src: Ipv4Addr| {
        let request = frame::icmp(&IcmpMessage::EchoRequest { id: 1, seq: 1 }, b"");
        rig.give(&Ipv4::new(src, HOST_IP, protocol::ICMP).with(&request));
        match &rig.take_ip()[..] {
            [Seen::Icmp(ip, ..)] => ip.id,
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (from(OUTSIDER), from(PEER_IP));
    assert!(first.abs_diff(second) > 50);
    for _ in 0..20 {
        from(PEER_IP);
    }
    assert_eq!(from(OUTSIDER), first.wrapping_add(1));
    rig.finish();
}
