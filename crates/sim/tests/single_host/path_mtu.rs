//! "Fragmentation needed" makes the segments of a connection smaller, if it quotes one of them.

use std::{io::IoSlice, sync::Arc, time::Duration};

use sim::{
    Peer, Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno,
    base::counters::Counter,
    header::{icmp::IcmpMessage, ip::protocol},
    socket::{Connection, options::SocketOption},
    sysctl::Sysctls,
};
use tcp::{Flags, Options};

use crate::icmp::error;

const MSS: Options = Options {
    mss: Some(1460),
    window_scale: None,
    sack_permitted: false,
    fast_open: None,
    timestamps: None,
    sack_blocks: arrayvec::ArrayVec::new_const(),
};

struct Transfer {
    rig: Rig,
    peer: Peer,
    socket: Arc<Connection>,
}

impl Transfer {
    /// Starts a transfer: the host has sent its first window, in segments of 1,460 bytes.
    fn start() -> Self {
        Self::with(Sysctls::default())
    }

    fn with(sysctls: Sysctls) -> Self {
        let mut transfer = Self::over(RigConfig { sysctls, ..RigConfig::default() });
        transfer.send(14_600);
        assert_eq!(transfer.largest_sent(), 1460);
        transfer
    }

    fn over(config: RigConfig) -> Self {
        let mut rig = Rig::new(config);
        let listener = rig.listen(80, 8);
        let peer = Peer::open(&mut rig, 80, 2000, MSS);
        let socket = listener.accept().expect("a connection");
        let host = rig.host();
        listener.close(&host, &mut rig.world.cx);
        Self { rig, peer, socket }
    }

    fn send(&mut self, len: usize) {
        let host = self.rig.host();
        let bytes = vec![7; len];
        let sent = self.socket.send(&host, &mut self.rig.world.cx, &[IoSlice::new(&bytes)]);
        assert_eq!(sent, Ok(len));
    }

    /// Returns the longest payload sent since the last call.
    fn largest_sent(&mut self) -> usize {
        let seen = self.rig.take();
        self.peer.hear(&seen);
        seen.iter().filter_map(Seen::segment).map(|(_, payload)| payload.len()).max().unwrap_or(0)
    }

    fn too_big(&mut self, mtu: u32, behind: u32) {
        let packet = error(&self.peer, &IcmpMessage::PacketTooBig { mtu }, behind);
        self.rig.give(&packet);
    }

    fn finish(self) {
        drop(self.socket);
        self.rig.finish();
    }
}

#[test]
fn a_report_lowers_the_mss_and_retransmits_the_large_segments() {
    let mut transfer = Transfer::start();
    transfer.too_big(1000, 1460);
    assert_eq!(transfer.largest_sent(), 960, "sent again at once, in smaller segments");
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(10_000);
    assert_eq!(transfer.largest_sent(), 960);
    transfer.finish();
}

#[test]
fn an_absurd_report_lowers_it_to_the_minimum() {
    let mut transfer = Transfer::start();
    transfer.too_big(68, 1460);
    assert_eq!(transfer.largest_sent(), 552 - 40, "net.ipv4.route.min_pmtu");
    transfer.finish();
}

#[test]
fn a_report_about_nothing_in_flight_is_ignored() {
    let mut transfer = Transfer::start();
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.too_big(1000, 1460);
    let out_of_window = tcp::Counter::TcpExtOutOfWindowIcmps;
    assert_eq!(transfer.rig.count_tcp(out_of_window), 1, "RFC 5927 §4.1");
    transfer.send(10_000);
    assert_eq!(transfer.largest_sent(), 1460);
    transfer.finish();
}

#[test]
fn a_report_never_makes_segments_larger() {
    let mut transfer = Transfer::start();
    transfer.too_big(1000, 1460);
    transfer.too_big(1400, 1);
    transfer.largest_sent();
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(10_000);
    assert_eq!(transfer.largest_sent(), 960);
    transfer.finish();
}

/// Builds a report with `behind` bytes between the reported packet and the newest one.
fn report(peer: &Peer, message: IcmpMessage, behind: u32) -> Vec<u8> {
    error(peer, &message, behind)
}

#[test]
fn a_report_applies_to_every_connection_to_the_destination_only() {
    let mut first = Transfer::start();
    let (peer, socket) = second_connection(&mut first.rig, 81, 2001);
    first.too_big(1000, 1460);
    first.largest_sent();
    let mut second = Transfer { rig: first.rig, peer, socket };
    second.send(10_000);
    assert_eq!(second.largest_sent(), 960, "it received no report itself");
    let Transfer { mut rig, socket: newer, .. } = second;
    // A third connection, opened later.
    let (peer, socket) = second_connection(&mut rig, 82, 2002);
    let mut third = Transfer { rig, peer, socket };
    third.send(10_000);
    assert_eq!(third.largest_sent(), 960);
    drop((first.socket, newer));
    third.finish();
}

fn second_connection(rig: &mut Rig, port: u16, from: u16) -> (Peer, Arc<Connection>) {
    let listener = rig.listen(port, 8);
    let peer = Peer::open(rig, port, from, MSS);
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    listener.close(&host, &mut rig.world.cx);
    (peer, socket)
}

#[test]
fn a_report_expires_and_the_mtu_of_the_route_is_tried_again() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.route.mtu_expires", "10").expect("a setting");
    let mut transfer = Transfer::with(sysctls);
    transfer.too_big(1000, 1460);
    assert_eq!(transfer.largest_sent(), 960);
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.rig.pass(Duration::from_secs(9));
    transfer.send(5000);
    assert_eq!(transfer.largest_sent(), 960);
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.rig.pass(Duration::from_secs(1));
    transfer.send(5000);
    assert_eq!(transfer.largest_sent(), 1460, "RFC 1191 §6.3");
    transfer.finish();
}

#[test]
fn a_router_that_names_no_mtu_gets_the_next_plateau() {
    let mut transfer = Transfer::start();
    // The quote is a bare header: 40 bytes by its own length.
    transfer.too_big(0, 1460);
    assert_eq!(
        transfer.largest_sent(),
        552 - 40,
        "the plateau of a packet of 40 bytes is below the minimum"
    );
    transfer.finish();
    let mut transfer = Transfer::start();
    let mut packet = report(&transfer.peer, IcmpMessage::PacketTooBig { mtu: 0 }, 1460);
    set_quoted_len(&mut packet, 1500);
    transfer.rig.give(&packet);
    assert_eq!(transfer.largest_sent(), 1492 - 40, "RFC 1191 §7.1");
    transfer.finish();
}

/// Writes the length of the quoted packet, and corrects the ICMP checksum.
fn set_quoted_len(packet: &mut [u8], len: u16) {
    packet[30..32].copy_from_slice(&len.to_be_bytes());
    packet[22..24].fill(0);
    let mut sum = pkt::Sum::default();
    sum.add_bytes(&packet[20..]);
    let sum = sum.finish().to_be_bytes();
    packet[22..24].copy_from_slice(&sum);
}

fn sends_df(transfer: &mut Transfer) -> bool {
    let seen = transfer.rig.take();
    transfer.peer.hear(&seen);
    let ip = seen.iter().find_map(|seen| match seen {
        Seen::Tcp(ip, ..) => Some(ip.fragment.dont),
        _ => None,
    });
    ip.expect("a segment")
}

#[test]
fn segments_carry_df_until_the_path_is_too_narrow_for_it() {
    let mut transfer = Transfer::start();
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(100);
    assert!(sends_df(&mut transfer), "RFC 1191 §3");
    transfer.too_big(400, 100);
    transfer.rig.take();
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(100);
    assert!(!sends_df(&mut transfer), "routers must fragment packets of min_pmtu");
    transfer.finish();
}

/// Makes a host without path MTU discovery, on a link so narrow that no segment needs DF. It has
/// sent a full flight.
fn without_discovery(mode: &str) -> Transfer {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.ip_no_pmtu_disc", mode).expect("a setting");
    sysctls.set("net.ipv4.route.min_pmtu", "300").expect("a setting");
    let mut transfer = Transfer::over(RigConfig { sysctls, mtu: 540, ..RigConfig::default() });
    transfer.send(5000);
    assert!(!sends_df(&mut transfer));
    transfer
}

#[test]
fn without_discovery_a_report_means_the_minimum_or_nothing() {
    let mut transfer = without_discovery("1");
    transfer.too_big(400, 500);
    assert_eq!(transfer.largest_sent(), 260, "mode 1 goes to route.min_pmtu at once");
    transfer.finish();
    let mut transfer = without_discovery("2");
    transfer.too_big(400, 500);
    assert_eq!(transfer.largest_sent(), 0, "mode 2 ignores reports");
    transfer.finish();
}

#[test]
fn a_report_to_an_owned_socket_is_processed_by_its_owner() {
    let mut transfer = Transfer::start();
    let host = transfer.rig.host();
    let packet =
        transfer.rig.framed(&report(&transfer.peer, IcmpMessage::PacketTooBig { mtu: 1000 }, 1460));
    // Softirq of another context, while the application's context owns the socket.
    let mut softirq = stack::Cx::replay(transfer.rig.world.memory(), 7);
    softirq.now = transfer.rig.world.cx.now;
    let link = Arc::clone(&transfer.rig.link);
    let during = transfer.socket.with_tcb(&host, &mut transfer.rig.world.cx, |tcb, _| {
        for _ in 0..6 {
            assert!(link.deliver(&mut softirq, &packet));
        }
        let _ = host.poll(&mut softirq);
        tcb.mss()
    });
    assert_eq!(during, 1460);
    let after = transfer.socket.with_tcb(&host, &mut transfer.rig.world.cx, |tcb, _| tcb.mss());
    assert_eq!(after, 960);
    let dropped = transfer.rig.count_tcp(tcp::Counter::TcpExtLockDroppedIcmps);
    assert_eq!(dropped, 2, "four may be queued");
    assert_eq!(transfer.largest_sent(), 960);
    drop((softirq, host, link));
    transfer.finish();
}

#[test]
fn an_echo_wider_than_the_path_back_is_answered_in_fragments() {
    let mut transfer = Transfer::start();
    transfer.too_big(600, 1460);
    assert_eq!(transfer.largest_sent(), 560);
    let request = frame::icmp(&IcmpMessage::EchoRequest { id: 1, seq: 1 }, &[7; 1000]);
    transfer.rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&request));
    assert_eq!(transfer.rig.count(Counter::IpFragOKs), 1);
    assert_eq!(transfer.rig.count(Counter::IpFragCreates), 2);
    transfer.finish();
}

#[test]
fn an_echo_without_memory_for_its_fragments_is_counted() {
    let config = RigConfig { memory_bytes: 1 << 20, ..RigConfig::default() };
    let mut transfer = Transfer::over(config);
    transfer.send(14_600);
    transfer.largest_sent();
    transfer.too_big(600, 1460);
    assert_eq!(transfer.largest_sent(), 560);
    let request = frame::icmp(&IcmpMessage::EchoRequest { id: 1, seq: 1 }, &[7; 1000]);
    let request = Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&request);
    let request = transfer.rig.framed(&request);
    transfer.rig.queue(&request);
    let held: Vec<_> = std::iter::from_fn(|| transfer.rig.world.cx.pool.alloc()).collect();
    transfer.rig.settle();
    assert_eq!(transfer.rig.count(Counter::IpFragFails), 1);
    assert_eq!(transfer.rig.count(Counter::IpFragCreates), 0);
    drop(held);
    transfer.finish();
}

#[test]
fn a_backlog_has_room_for_two_receive_buffers() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, MSS);
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    listener.close(&host, &mut rig.world.cx);
    let segment = rig.framed(&peer.packet(&peer.header(Flags::ACK), &[7; 1460]));
    let mut softirq = stack::Cx::replay(rig.world.memory(), 7);
    softirq.now = rig.world.cx.now;
    let link = Arc::clone(&rig.link);
    let limit = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| {
        for _ in 0..400 {
            assert!(link.deliver(&mut softirq, &segment));
            let _ = host.poll(&mut softirq);
        }
        tcb.rcvbuf() * 2 + tcb.sndbuf() / 2
    });
    let dropped = rig.count_tcp(tcp::Counter::TcpExtTCPBacklogDrop);
    assert!(dropped > 0, "{limit} bytes hold fewer than 400 segments");
    assert!((400 - dropped) * 1460 < u64::from(limit) + (64 << 10));
    peer.snd_nxt += 1460;
    rig.take();
    drop((softirq, host, link, socket));
    rig.finish();
}

#[test]
fn a_socket_may_do_without_path_mtu_discovery() {
    // Narrow enough that the rig accepts segments without DF.
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.route.min_pmtu", "300").expect("a setting");
    let mut transfer = Transfer::over(RigConfig { sysctls, mtu: 540, ..RigConfig::default() });
    transfer.send(5000);
    assert!(sends_df(&mut transfer));
    let set = |transfer: &mut Transfer, mode: i32| {
        let host = transfer.rig.host();
        let cx = &mut transfer.rig.world.cx;
        transfer.socket.set_option(&host, cx, SocketOption::MtuDiscover, &mode.into())
    };
    // IP_PMTUDISC_DONT: no DF, and reports are ignored.
    assert_eq!(set(&mut transfer, 0), Ok(()));
    transfer.too_big(400, 500);
    assert_eq!(transfer.largest_sent(), 0, "nothing is retransmitted");
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(5000);
    assert!(!sends_df(&mut transfer));
    // IP_PMTUDISC_DO: DF, and reports count again.
    assert_eq!(set(&mut transfer, 2), Ok(()));
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(5000);
    assert!(sends_df(&mut transfer));
    transfer.too_big(400, 500);
    assert_eq!(transfer.largest_sent(), 360);
    assert_eq!(set(&mut transfer, 6), Err(Errno::EINVAL));
    transfer.finish();
}
