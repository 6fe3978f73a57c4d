//! Fast Open: data in the SYN, with a cookie and without.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sim::{
    Peer, Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno, Readiness,
    header::{icmp::IcmpMessage, ip::protocol},
    socket::{ConnectOptions, Connection, ListenOptions, Listener},
    sysctl::Sysctls,
};
use tcp::{Cookie, Counter as TcpCounter, FastOpenFailure, Flags, Options, SegmentHeader, SeqNum};

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(&format!("net.ipv4.{name}"), value).expect("a setting");
    }
    Rig::new(RigConfig { sysctls, ..RigConfig::default() })
}

fn server(settings: &[(&str, &str)], queue: u32) -> (Rig, Arc<Listener>) {
    let mut rig = rig(settings);
    let options = ListenOptions::default().fast_open(queue);
    let (host, local) = (rig.host(), SocketAddr::new(HOST_IP.into(), 80));
    let listener = Listener::listen_with(&host, &mut rig.world.cx, local, &options).expect("free");
    (rig, listener)
}

fn finish(mut rig: Rig, listener: Arc<Listener>) {
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

/// Sends a SYN with this cookie and data; returns the answer.
fn syn(rig: &mut Rig, peer: &mut Peer, cookie: Option<Cookie>, data: &[u8]) -> SegmentHeader {
    rig.take();
    let options = Options { mss: Some(1460), fast_open: cookie, ..Options::default() };
    let header = SegmentHeader { options, ..peer.header(Flags::SYN) };
    peer.send(rig, &header, data);
    let seen = rig.take();
    peer.hear(&seen);
    seen.iter().filter_map(Seen::segment).next().expect("an answer").0.clone()
}

/// Requests the cookie that the host gives to its peer.
fn ask(rig: &mut Rig, listener: &Listener) -> Cookie {
    let mut peer = Peer::new(80, 1999);
    let answer = syn(rig, &mut peer, Some(Cookie::REQUEST), b"");
    assert_eq!(answer.flags, SYN_ACK);
    peer.send_next(rig, Flags::ACK, b"");
    drop(listener.accept().expect("an ordinary connection"));
    let cookie = answer.options.fast_open.expect("a cookie");
    assert_eq!(cookie.as_bytes().len(), 8);
    cookie
}

fn read(rig: &mut Rig, socket: &Connection) -> Vec<u8> {
    let mut buf = [0; 64];
    let host = rig.host();
    let read = socket.recv(&host, &mut rig.world.cx, &mut buf, false);
    buf[..read.expect("data")].to_vec()
}

#[test]
fn data_with_a_cookie_is_read_and_answered_before_the_handshake_ends() {
    let (mut rig, listener) = server(&[("tcp_fastopen", "2")], 8);
    let cookie = ask(&mut rig, &listener);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenCookieReqd), 1);
    let mut peer = Peer::new(80, 2000);
    let answer = syn(&mut rig, &mut peer, Some(cookie), b"request");
    assert_eq!((answer.flags, answer.ack), (SYN_ACK, peer.snd_nxt), "the data is acknowledged");
    let socket = listener.accept().expect("before the third segment");
    assert!(socket.readiness().contains(Readiness::READ | Readiness::WRITE));
    assert_eq!(read(&mut rig, &socket), b"request");
    let host = rig.host();
    let sent = socket.send(&host, &mut rig.world.cx, &[std::io::IoSlice::new(b"answer")]);
    assert_eq!(sent, Ok(6));
    let seen = rig.take();
    let (early, payload) = seen.iter().filter_map(Seen::segment).next().expect("data");
    assert_eq!((early.seq, payload), (answer.seq + 1, &b"answer"[..]));
    peer.hear(&seen);
    peer.send_next(&mut rig, Flags::ACK, b"");
    let info = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.info());
    assert_eq!(
        (info.state, info.in_flight, info.handshake.syn_data),
        (tcp::State::Established, 0, true)
    );
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenPassive), 1);
    drop((socket, host));
    finish(rig, listener);
}

#[test]
fn a_wrong_cookie_gets_a_new_one_and_its_data_is_not_read() {
    let (mut rig, listener) = server(&[("tcp_fastopen", "2")], 8);
    let cookie = ask(&mut rig, &listener);
    let mut peer = Peer::new(80, 2000);
    let answer = syn(&mut rig, &mut peer, Cookie::new(&[1; 8]), b"request");
    assert_eq!(answer.options.fast_open, Some(cookie));
    assert_eq!(answer.ack, peer.snd_nxt - 7, "the SYN alone is acknowledged");
    assert_eq!(listener.accept().expect_err("an ordinary handshake"), Errno::EAGAIN);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenPassiveFail), 1);
    peer.snd_nxt -= 7;
    peer.send_next(&mut rig, Flags::ACK | Flags::PSH, b"request");
    let socket = listener.accept().expect("a connection");
    assert_eq!(read(&mut rig, &socket), b"request");
    drop(socket);
    finish(rig, listener);
}

#[test]
fn the_previous_key_stays_valid_during_a_key_change() {
    let (old, new) = ("00000001-00000002-00000003-00000004", "00000005-00000006-00000007-00000008");
    let (mut rig, listener) = server(&[("tcp_fastopen", "2"), ("tcp_fastopen_key", old)], 8);
    let cookie = ask(&mut rig, &listener);
    let host = rig.host();
    host.set_sysctl("net.ipv4.tcp_fastopen_key", &format!("{new},{old}")).expect("two keys");
    let mut peer = Peer::new(80, 2000);
    let answer = syn(&mut rig, &mut peer, Some(cookie), b"request");
    assert_eq!(answer.ack, peer.snd_nxt, "the data is accepted");
    let fresh = answer.options.fast_open.expect("a cookie of the new key");
    assert_ne!(fresh, cookie);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenPassiveAltKey), 1);
    host.set_sysctl("net.ipv4.tcp_fastopen_key", new).expect("one key");
    let mut other = Peer::new(80, 2001);
    assert_eq!(syn(&mut rig, &mut other, Some(fresh), b"x").ack, other.snd_nxt);
    let mut late = Peer::new(80, 2002);
    assert_ne!(
        syn(&mut rig, &mut late, Some(cookie), b"x").ack,
        late.snd_nxt,
        "the old key is gone"
    );
    drop(host);
    finish(rig, listener);
}

#[test]
fn connections_open_early_are_bounded_and_counted_until_their_handshake_ends() {
    let (mut rig, listener) = server(&[("tcp_fastopen", "514")], 2);
    let mut peers: Vec<_> = (2000..2003).map(|port| Peer::new(80, port)).collect();
    let taken: Vec<bool> = peers
        .iter_mut()
        .map(|peer| syn(&mut rig, peer, None, b"data").ack == peer.snd_nxt)
        .collect();
    assert_eq!(taken, [true, true, false]);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenListenOverflow), 1);
    // One handshake is completed, one is reset: two more may open.
    peers[0].send_next(&mut rig, Flags::ACK, b"");
    peers[1].send_next(&mut rig, Flags::RST, b"");
    for port in [2003, 2004] {
        let mut peer = Peer::new(80, port);
        assert_eq!(syn(&mut rig, &mut peer, None, b"data").ack, peer.snd_nxt);
    }
    finish(rig, listener);
}

#[test]
fn fast_open_is_off_by_default() {
    for (mode, queue, taken) in
        [("1", 8, false), ("2", 0, false), ("514", 0, false), ("1538", 0, true)]
    {
        let (mut rig, listener) = server(&[("tcp_fastopen", mode)], queue);
        let mut peer = Peer::new(80, 2000);
        let answer = syn(&mut rig, &mut peer, Cookie::new(&[1; 8]), b"data");
        assert_eq!(answer.ack == peer.snd_nxt, taken, "{mode} {queue}");
        finish(rig, listener);
    }
}

#[test]
fn a_lost_syn_ack_is_repeated_for_a_connection_open_early() {
    let (mut rig, listener) = server(&[("tcp_fastopen", "514")], 2);
    let mut peer = Peer::new(80, 2000);
    let answer = syn(&mut rig, &mut peer, None, b"data");
    rig.pass(Duration::from_millis(1100));
    let seen = rig.take();
    let again = seen.iter().filter_map(Seen::segment).next().expect("by its timer").0;
    assert_eq!((again.flags, again.seq, again.ack), (SYN_ACK, answer.seq, answer.ack));
    peer.snd_nxt -= 5;
    let again = syn(&mut rig, &mut peer, None, b"data");
    assert_eq!((again.flags, again.ack), (SYN_ACK, answer.ack), "also when the SYN is repeated");
    let socket = listener.accept().expect("once");
    assert!(listener.accept().is_err());
    peer.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(read(&mut rig, &socket), b"data");
    drop(socket);
    finish(rig, listener);
}

/// Returns the numbers of segments sent and retransmitted, and of SYNs and SYN-ACKs retransmitted.
fn sent(rig: &Rig) -> [u64; 3] {
    [TcpCounter::TcpOutSegs, TcpCounter::TcpRetransSegs, TcpCounter::TcpExtTCPSynRetrans]
        .map(|counter| rig.count_tcp(counter))
}

#[test]
fn a_syn_ack_that_answers_a_repeated_syn_counts_as_retransmitted() {
    let (mut rig, listener) = server(&[("tcp_fastopen", "514")], 2);
    let mut peer = Peer::new(80, 2000);
    syn(&mut rig, &mut peer, None, b"data");
    assert_eq!(sent(&rig), [1, 0, 0]);
    peer.snd_nxt -= 5;
    let again = syn(&mut rig, &mut peer, None, b"data");
    assert_eq!((again.flags, sent(&rig)), (SYN_ACK, [1, 1, 1]));
    finish(rig, listener);
}

/// Connects from the host with Fast Open; returns the SYN if it has left.
fn connect(rig: &mut Rig, port: u16) -> (Arc<Connection>, Option<SegmentHeader>) {
    rig.take();
    let local = SocketAddr::new(HOST_IP.into(), port);
    let options = ConnectOptions::default().bind(local).fast_open_connect(true);
    let (host, remote) = (rig.host(), SocketAddr::new(PEER_IP.into(), 80));
    let socket =
        Connection::connect_with(&host, &mut rig.world.cx, remote, &options).expect("free");
    let seen = rig.take();
    let syn = seen.iter().filter_map(Seen::segment).next().map(|(header, _)| header.clone());
    (socket, syn)
}

/// The peer acknowledges `ack` and may give a cookie.
fn answer(rig: &mut Rig, peer: &mut Peer, ack: SeqNum, cookie: Option<Cookie>) {
    peer.rcv_nxt = ack;
    let options = Options { mss: Some(1000), fast_open: cookie, ..Options::default() };
    let header = SegmentHeader { options, ..peer.header(SYN_ACK) };
    peer.send(rig, &header, b"");
}

/// Makes a host that has the peer's cookie.
fn client() -> (Rig, Cookie) {
    client_with(&[])
}

fn client_with(settings: &[(&str, &str)]) -> (Rig, Cookie) {
    let mut rig = rig(settings);
    let cookie = Cookie::new(b"8 octets").expect("a cookie");
    let mut peer = Peer::new(4000, 80);
    let (socket, syn) = connect(&mut rig, 4000);
    let syn = syn.expect("without a cookie the SYN leaves at once");
    assert_eq!(syn.options.fast_open, Some(Cookie::REQUEST));
    answer(&mut rig, &mut peer, syn.seq + 1, Some(cookie));
    let host = rig.host();
    socket.abort(&host, &mut rig.world.cx);
    (rig, cookie)
}

fn write(rig: &mut Rig, socket: &Connection, bytes: &[u8]) -> Result<usize, Errno> {
    let host = rig.host();
    socket.send(&host, &mut rig.world.cx, &[std::io::IoSlice::new(bytes)])
}

#[test]
fn a_client_with_a_cookie_sends_its_first_write_with_the_syn() {
    let (mut rig, cookie) = client();
    let (socket, syn) = connect(&mut rig, 4001);
    assert_eq!(syn, None, "it waits for data");
    assert_eq!(socket.readiness(), Readiness::WRITE);
    assert_eq!(write(&mut rig, &socket, &[7; 5000]), Ok(960), "the peer's MSS less the options");
    let seen = rig.take();
    let (syn, payload) = seen.iter().filter_map(Seen::segment).next().expect("a SYN");
    assert_eq!((syn.flags, syn.options.fast_open), (Flags::SYN, Some(cookie)));
    assert_eq!(payload.len(), 960);
    assert_eq!(write(&mut rig, &socket, b"more"), Err(Errno::EAGAIN));
    let mut peer = Peer::new(4001, 80);
    answer(&mut rig, &mut peer, syn.seq + 961, None);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenActive), 1);
    let host = rig.host();
    let info = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.info());
    assert_eq!(
        (info.state, info.in_flight, info.handshake.syn_data),
        (tcp::State::Established, 0, true)
    );
    assert_eq!(write(&mut rig, &socket, b"more"), Ok(4));
    drop((socket, host));
    rig.finish();
}

#[test]
fn data_that_the_server_does_not_accept_is_sent_again_at_once() {
    let (mut rig, _) = client();
    let (socket, _) = connect(&mut rig, 4001);
    assert_eq!(write(&mut rig, &socket, b"request"), Ok(7));
    let seen = rig.take();
    let syn = seen.iter().filter_map(Seen::segment).next().expect("a SYN").0.clone();
    let mut peer = Peer::new(4001, 80);
    answer(&mut rig, &mut peer, syn.seq + 1, None);
    let seen = rig.take();
    let (data, payload) = seen.iter().filter_map(Seen::segment).next().expect("data");
    assert_eq!((data.seq, payload), (syn.seq + 1, &b"request"[..]));
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenActiveFail), 1);
    peer.hear(&seen);
    peer.send_next(&mut rig, Flags::ACK, b"");
    let host = rig.host();
    let info = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.info());
    assert_eq!((info.in_flight, info.handshake.syn_data), (0, false));
    assert_eq!(info.handshake.fast_open_failure, FastOpenFailure::DataNotAcknowledged);
    drop((socket, host));
    rig.finish();
}

#[test]
fn a_repeated_syn_is_plain_and_its_data_follows_the_handshake() {
    let (mut rig, _) = client();
    let (socket, _) = connect(&mut rig, 4001);
    assert_eq!(write(&mut rig, &socket, b"request"), Ok(7));
    rig.take();
    rig.pass(Duration::from_millis(1100));
    let seen = rig.take();
    let (syn, payload) = seen.iter().filter_map(Seen::segment).next().expect("a SYN");
    assert_eq!((syn.options.fast_open, payload.len()), (None, 0));
    let mut peer = Peer::new(4001, 80);
    answer(&mut rig, &mut peer, syn.seq + 1, None);
    let seen = rig.take();
    let (_, payload) = seen.iter().filter_map(Seen::segment).next().expect("data");
    assert_eq!(payload, b"request");
    drop(socket);
    rig.finish();
}

#[test]
fn a_syn_too_large_for_the_path_is_repeated_without_data_and_counts_as_retransmitted() {
    let (mut rig, _) = client();
    let (socket, _) = connect(&mut rig, 4001);
    assert_eq!(write(&mut rig, &socket, &[7; 900]), Ok(900));
    let seen = rig.take();
    let (syn, payload) = seen.iter().filter_map(Seen::segment).next().expect("a SYN");
    assert_eq!(payload.len(), 900);
    let [segments, retransmitted, syns] = sent(&rig);
    let mut quoted = vec![0; syn.header_bytes()];
    syn.emit(&mut quoted);
    let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol::TCP).with(&quoted);
    let message = frame::icmp(&IcmpMessage::PacketTooBig { mtu: 700 }, &quoted[..28]);
    rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
    let seen = rig.take();
    let (again, payload) = seen.iter().filter_map(Seen::segment).next().expect("a SYN");
    assert_eq!((again.flags, again.seq, payload.len()), (Flags::SYN, syn.seq, 0));
    assert_eq!(sent(&rig), [segments, retransmitted + 1, syns + 1]);
    drop(socket);
    rig.finish();
}

#[test]
fn a_deferred_syn_without_a_write_ends_with_its_socket() {
    let (mut rig, _) = client();
    let (socket, syn) = connect(&mut rig, 4001);
    assert_eq!(syn, None);
    rig.pass(Duration::from_secs(300));
    let host = rig.host();
    socket.close(&host, &mut rig.world.cx);
    assert_eq!((host.established_len(), rig.take()), (0, Vec::new()));
    drop((socket, host));
    rig.finish();
}

#[test]
fn fast_open_is_disabled_on_a_path_that_loses_three_syns_with_data() {
    let (mut rig, _) = client_with(&[("tcp_fastopen_blackhole_timeout_sec", "60")]);
    let (socket, _) = connect(&mut rig, 4001);
    assert_eq!(write(&mut rig, &socket, b"request"), Ok(7));
    let seen = rig.take();
    let syn = seen.iter().filter_map(Seen::segment).next().expect("a SYN").0.clone();
    rig.pass(Duration::from_millis(2200));
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenBlackhole), 0, "two may be chance");
    rig.pass(Duration::from_millis(1000));
    rig.take();
    let mut peer = Peer::new(4001, 80);
    answer(&mut rig, &mut peer, syn.seq + 1, None);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenBlackhole), 1);
    let host = rig.host();
    let info = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.info());
    assert_eq!(info.handshake.fast_open_failure, FastOpenFailure::SynRetransmitted);
    let (second, syn) = connect(&mut rig, 4002);
    assert!(syn.is_some_and(|syn| syn.options.fast_open.is_none()), "an ordinary SYN, at once");
    socket.abort(&host, &mut rig.world.cx);
    drop((socket, second, host));
    rig.finish();
}
