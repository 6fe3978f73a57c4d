//! TCP connections to foreign addresses on a device that intercepts: what the client sees until the
//! application has decided, and after that.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Peer, Rig, RigConfig,
    frame::Seen,
    rig::{HOST_IP, PEER_IP, PEER_V6},
};
use stack::{
    Errno, Readiness,
    base::{counters::Counter, ids::DeviceIndex},
    header::icmp::{IcmpMessage, Unreachable},
    receive::intercept::refuse_unreachable,
    socket::{
        Connection, Listener, RequestSocket,
        flows::{Intercept, NewFlow},
    },
};
use tcp::{Flags, FourTuple, Options, SegmentHeader, SeqNum};

/// Destination of the client, which the host does not have.
const TARGET: &str = "192.0.2.80:443";
const TARGET_V6: &str = "[2001:db8::80]:443";

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

fn rig_with(intercept: Intercept) -> Rig {
    // Without a default route: interception needs none.
    Rig::new(RigConfig {
        ethernet: false,
        ipv6: true,
        default_route: false,
        intercept: Some(intercept),
        ..RigConfig::default()
    })
}

fn rig() -> Rig {
    rig_with(Intercept::all())
}

/// A client that connects to `target`.
fn client_to(target: &str, port: u16) -> Peer {
    let target: SocketAddr = target.parse().expect("an address");
    let source: IpAddr = if target.is_ipv4() { PEER_IP.into() } else { PEER_V6.into() };
    Peer { tuple: FourTuple::new(target, SocketAddr::new(source, port)), ..Peer::new(0, port) }
}

fn send_syn(rig: &mut Rig, client: &Peer) {
    let options = Options { mss: Some(1460), ..Options::default() };
    let syn = SegmentHeader { options, ..client.header(Flags::SYN) };
    client.clone().send(rig, &syn, b"");
}

/// Takes the next flow, which is a TCP connection.
fn next(rig: &Rig) -> Option<Arc<RequestSocket>> {
    match rig.host().flow_queue().expect("the device intercepts").try_next() {
        Ok(NewFlow::Tcp(request)) => Some(request),
        Ok(other) => panic!("{other:?} is no TCP connection"),
        Err(errno) => {
            assert_eq!(errno, Errno::EAGAIN);
            None
        }
    }
}

/// Accepts a request, and completes the handshake as the client.
fn accept(rig: &mut Rig, client: &mut Peer, request: &RequestSocket) -> Arc<Connection> {
    let host = rig.host();
    request.answer(&host, &mut rig.world.cx).expect("the request is pending");
    assert_eq!(client.hear(&rig.take()), [SYN_ACK]);
    assert_eq!(request.take().unwrap_err(), Errno::EAGAIN);
    client.snd_nxt += 1;
    client.send_next(rig, Flags::ACK, b"");
    request.take().expect("the handshake is complete")
}

/// Opens an intercepted connection.
fn open(rig: &mut Rig, client: &mut Peer) -> Arc<Connection> {
    send_syn(rig, client);
    let request = next(rig).expect("a request");
    accept(rig, client, &request)
}

fn close(rig: &mut Rig, socket: &Connection) {
    let host = rig.host();
    socket.abort(&host, &mut rig.world.cx);
    socket.close(&host, &mut rig.world.cx);
}

#[test]
fn a_syn_to_any_address_is_answered_when_the_application_accepts() {
    for target in [TARGET, TARGET_V6] {
        let mut rig = rig();
        let host = rig.host();
        let mut client = client_to(target, 5000);
        send_syn(&mut rig, &client);
        let request = next(&rig).expect("a request");
        assert_eq!(request.destination(), target.parse().unwrap());
        assert_eq!(request.source(), client.tuple.remote);
        assert_eq!(request.via(), Some(DeviceIndex(1)));
        // The client repeats its SYN while the application dials.
        for _ in 0..3 {
            rig.pass(Duration::from_secs(1));
            send_syn(&mut rig, &client);
        }
        assert_eq!(rig.take(), [], "the SYN was answered");
        assert!(next(&rig).is_none(), "a repeated SYN is another flow");
        assert_eq!((host.flows_pending(), rig.drops(DropReason::TcpInvalidSyn)), (1, 3));

        let socket = accept(&mut rig, &mut client, &request);
        assert_eq!((socket.local(), socket.remote()), (client.tuple.local, client.tuple.remote));
        assert_eq!((host.flows_pending(), rig.count(Counter::FlowRequests)), (0, 1));
        client.send_next(&mut rig, Flags::ACK | Flags::PSH, b"hello");
        let mut buf = [0; 8];
        assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(5));
        let sent = socket.send(&host, &mut rig.world.cx, &[std::io::IoSlice::new(b"world")]);
        assert_eq!(sent, Ok(5));
        let answers = rig.take();
        assert!(
            answers.iter().any(|seen| matches!(seen, Seen::Tcp(ip, _, payload)
            if ip.src == client.tuple.local.ip() && payload == b"world")),
            "{answers:?}"
        );
        close(&mut rig, &socket);
    }
}

#[test]
fn a_reset_of_the_client_cancels_its_request() {
    let mut rig = rig();
    let mut client = client_to(TARGET, 5000);
    send_syn(&mut rig, &client);
    let request = next(&rig).expect("a request");
    // A guess does not reset (RFC 5961 §3).
    let guess = SegmentHeader { seq: client.snd_nxt + 9, ..client.header(Flags::RST) };
    client.send(&mut rig, &guess, b"");
    assert!(!request.is_cancelled() && request.readiness().is_empty());
    let reset = SegmentHeader { seq: client.snd_nxt + 1, ..client.header(Flags::RST) };
    client.send(&mut rig, &reset, b"");
    assert!(request.is_cancelled() && request.readiness().contains(Readiness::HUP));
    let host = rig.host();
    assert_eq!(request.answer(&host, &mut rig.world.cx), Err(Errno::ECONNRESET));
    assert_eq!(request.take().unwrap_err(), Errno::ECONNRESET);
    request.refuse(&host, &mut rig.world.cx);
    assert_eq!(rig.take(), [], "the client was answered");
    assert_eq!((host.established_len(), rig.count(Counter::FlowCancelled)), (0, 1));
}

#[test]
fn a_request_expires_when_the_client_repeats_its_syn_no_more() {
    let mut rig = rig();
    let client = client_to(TARGET, 5000);
    send_syn(&mut rig, &client);
    let request = next(&rig).expect("a request");
    // The longest time between two SYNs of Linux.
    rig.pass(Duration::from_secs(64));
    assert!(!request.is_cancelled());
    send_syn(&mut rig, &client);
    rig.pass(Duration::from_secs(64));
    assert!(!request.is_cancelled());
    rig.pass(Duration::from_secs(2));
    assert!(request.is_cancelled());
    assert_eq!(request.take().unwrap_err(), Errno::ETIMEDOUT);
    assert_eq!((rig.take(), rig.host().established_len()), (vec![], 0));
}

#[test]
fn an_accepted_request_repeats_its_syn_ack_and_expires_without_an_answer() {
    let mut rig = rig();
    let mut client = client_to(TARGET, 5000);
    send_syn(&mut rig, &client);
    let request = next(&rig).expect("a request");
    rig.pass(Duration::from_secs(10));
    let host = rig.host();
    request.answer(&host, &mut rig.world.cx).expect("the request is pending");
    assert_eq!(client.hear(&rig.take()), [SYN_ACK]);
    rig.pass(Duration::from_millis(1100));
    assert_eq!(client.hear(&rig.take()), [SYN_ACK], "RFC 6298: after a second");
    rig.pass(Duration::from_secs(120));
    assert_eq!(request.take().unwrap_err(), Errno::ETIMEDOUT);
    assert_eq!((host.established_len(), host.flows_pending()), (0, 0));
}

#[test]
fn a_refused_request_is_reset() {
    for target in [TARGET, TARGET_V6] {
        let mut rig = rig();
        let client = client_to(target, 5000);
        send_syn(&mut rig, &client);
        let request = next(&rig).expect("a request");
        let host = rig.host();
        request.refuse(&host, &mut rig.world.cx);
        let sent = rig.take();
        let [Seen::Tcp(ip, header, _)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((ip.src, ip.dst), (client.tuple.local.ip(), client.tuple.remote.ip()));
        assert_eq!((header.flags, header.ack), (Flags::RST | Flags::ACK, client.snd_nxt + 1));
        assert_eq!((host.established_len(), host.flows_pending()), (0, 0));
        assert_eq!(rig.count(Counter::FlowRefused), 1);
    }
}

#[test]
fn a_request_that_is_refused_after_its_syn_ack_is_reset() {
    let mut rig = rig();
    let mut client = client_to(TARGET, 5000);
    send_syn(&mut rig, &client);
    let request = next(&rig).expect("a request");
    let host = rig.host();
    request.answer(&host, &mut rig.world.cx).expect("the request is pending");
    assert_eq!(client.hear(&rig.take()), [SYN_ACK]);
    refuse_unreachable(&host, &mut rig.world.cx, &request, Unreachable::Host);
    let sent = rig.take();
    let [Seen::Tcp(_, header, _)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((header.flags, header.seq), (Flags::RST, client.rcv_nxt));
    assert_eq!(host.established_len(), 0);
}

#[test]
fn a_request_whose_target_is_unreachable_is_refused_by_icmp() {
    for target in [TARGET, TARGET_V6] {
        for why in [Unreachable::Network, Unreachable::Host, Unreachable::Prohibited] {
            let mut rig = rig();
            let client = client_to(target, 5000);
            send_syn(&mut rig, &client);
            let request = next(&rig).expect("a request");
            let host = rig.host();
            refuse_unreachable(&host, &mut rig.world.cx, &request, why);
            let sent = rig.take();
            let [Seen::Icmp(ip, message, quote)] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!((ip.src, ip.dst), (client.tuple.local.ip(), client.tuple.remote.ip()));
            assert_eq!(*message, IcmpMessage::Unreachable(why));
            // The client finds its socket by the ports, and checks the sequence number.
            let segment = &quote[if ip.src.is_ipv4() { 20 } else { 40 }..];
            assert_eq!(segment[..4], [0x13, 0x88, 0x01, 0xbb]);
            assert_eq!(segment[4..8], client.snd_nxt.0.to_be_bytes());
            assert_eq!((host.established_len(), rig.count(Counter::FlowRefused)), (0, 1));
        }
    }
}

/// Otherwise the client would repeat its SYN for a minute.
#[test]
fn a_request_is_reset_if_the_rate_limit_forbids_the_icmp_error() {
    let mut rig = rig();
    let host = rig.host();
    let mut kinds = Vec::new();
    for port in 5000..5020 {
        let client = client_to(TARGET, port);
        send_syn(&mut rig, &client);
        let request = next(&rig).expect("a request");
        refuse_unreachable(&host, &mut rig.world.cx, &request, Unreachable::Host);
        match &rig.take()[..] {
            [Seen::Icmp(..)] => kinds.push("icmp"),
            [Seen::Tcp(_, header, _)] if header.has(Flags::RST) => kinds.push("reset"),
            sent => panic!("{sent:?}"),
        }
    }
    assert_eq!((kinds[0], kinds[19]), ("icmp", "reset"), "{kinds:?}");
}

#[test]
fn pending_requests_are_bounded_in_total_and_by_source() {
    let mut rig = rig_with(Intercept::all().max_pending(5).max_pending_per_source(3));
    for port in 0..4 {
        send_syn(&mut rig, &client_to(TARGET, 5000 + port));
    }
    assert_eq!(rig.count(Counter::FlowSourceLimit), 1);
    assert_eq!(rig.drops(DropReason::FlowSourceLimit), 1);
    let from = |host: u8| Peer {
        tuple: FourTuple::new(
            TARGET.parse().unwrap(),
            SocketAddr::new(Ipv4Addr::new(10, 0, 0, host).into(), 5000),
        ),
        ..Peer::new(0, 0)
    };
    for host in 10..13 {
        send_syn(&mut rig, &from(host));
    }
    assert_eq!(rig.count(Counter::FlowPendingFull), 1);
    assert_eq!(rig.drops(DropReason::FlowPendingFull), 1);
    assert_eq!((rig.take(), rig.host().flows_pending()), (vec![], 5));
    // A place that is free again is used by the next SYN.
    let request = next(&rig).expect("a request");
    let host = rig.host();
    request.refuse(&host, &mut rig.world.cx);
    send_syn(&mut rig, &from(12));
    assert_eq!(host.flows_pending(), 5);
    // An established connection is not pending.
    let mut client = client_to(TARGET, 5001);
    let request = next(&rig).expect("a request");
    rig.take();
    let socket = accept(&mut rig, &mut client, &request);
    assert_eq!(host.flows_pending(), 4);
    close(&mut rig, &socket);
}

#[test]
fn a_thousand_syns_with_a_reset_each_leave_nothing_behind() {
    let mut rig = rig();
    let host = rig.host();
    for round in 0..1000_u32 {
        let mut client = client_to(TARGET, 5000);
        client.snd_nxt = SeqNum(round * 1000);
        send_syn(&mut rig, &client);
        let reset = SegmentHeader { seq: client.snd_nxt + 1, ..client.header(Flags::RST) };
        client.send(&mut rig, &reset, b"");
    }
    assert_eq!((host.established_len(), host.flows_pending()), (0, 0));
    assert!(next(&rig).is_none(), "an ended flow is handed over");
    assert_eq!(rig.take(), []);
    // No timer is left, whose entry would keep the memory of its request.
    assert_eq!(rig.settle(), None);
    assert_eq!(rig.count(Counter::FlowCancelled), 1000);
}

/// Destinations that never answer, such as a black hole, keep their requests pending.
#[test]
fn a_thousand_unanswered_dials_delay_no_other_flow() {
    let lapse = |dials: u16| {
        let mut rig = rig_with(Intercept::all().max_pending_per_source(1001));
        let mut held = Vec::new();
        for port in 0..dials {
            send_syn(&mut rig, &client_to("198.51.100.1:80", 10_000 + port));
            held.push(next(&rig).expect("a request"));
        }
        let before = rig.world.cx.now;
        let mut client = client_to(TARGET, 5000);
        let socket = open(&mut rig, &mut client);
        client.send_next(&mut rig, Flags::ACK, b"hello");
        let host = rig.host();
        assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut [0; 8], false), Ok(5));
        assert_eq!(host.flows_pending(), usize::from(dials));
        let lapse = rig.world.cx.now - before;
        close(&mut rig, &socket);
        lapse
    };
    assert_eq!(lapse(1000), lapse(0));
}

#[test]
fn listeners_of_own_addresses_come_first_and_hear_no_foreign_address() {
    let mut rig = rig();
    let host = rig.host();
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 443);
    let listener = Listener::listen(&host, &mut rig.world.cx, any, 16).unwrap();
    let own = format!("{HOST_IP}:443");
    let _client = client_to(&own, 5000).opened(&mut rig, Options::default());
    assert!(listener.accept().is_ok() && next(&rig).is_none());
    send_syn(&mut rig, &client_to(TARGET, 5001));
    assert_eq!(next(&rig).expect("a request").destination(), TARGET.parse().unwrap());
    // A port of an own address without a listener is intercepted.
    let mut client = client_to(&format!("{HOST_IP}:444"), 5002);
    let socket = open(&mut rig, &mut client);
    assert_eq!(socket.local(), client.tuple.local);
    close(&mut rig, &socket);
}

#[test]
fn a_listener_may_use_the_port_of_an_intercepted_connection() {
    let mut rig = rig();
    let socket = open(&mut rig, &mut client_to(TARGET, 5000));
    let (host, any) = (rig.host(), SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 443));
    let listener = Listener::listen(&host, &mut rig.world.cx, any, 16);
    assert!(listener.is_ok(), "{listener:?}");
    close(&mut rig, &socket);
}

#[test]
fn a_client_that_gives_up_and_connects_again_makes_a_new_request() {
    let mut rig = rig();
    let mut client = client_to(TARGET, 5000);
    send_syn(&mut rig, &client);
    let first = next(&rig).expect("a request");
    client.snd_nxt += 1_000_000;
    send_syn(&mut rig, &client);
    assert!(first.is_cancelled());
    let second = next(&rig).expect("the new request");
    let socket = accept(&mut rig, &mut client, &second);
    close(&mut rig, &socket);
}

#[test]
fn a_client_may_open_a_connection_in_time_wait_again() {
    let mut rig = rig();
    let mut client = client_to(TARGET, 5000);
    let socket = open(&mut rig, &mut client);
    let host = rig.host();
    socket.close(&host, &mut rig.world.cx);
    client.hear(&rig.take());
    client.send_next(&mut rig, Flags::FIN | Flags::ACK, b"");
    rig.take();
    rig.pass(Duration::from_secs(5));
    client.snd_nxt += 100_000;
    send_syn(&mut rig, &client);
    let request = next(&rig).expect("a request");
    let socket = accept(&mut rig, &mut client, &request);
    close(&mut rig, &socket);
}

#[test]
fn a_flow_belongs_to_the_device_that_has_brought_it() {
    let config = RigConfig {
        ethernet: false,
        second_link: true,
        intercept: Some(Intercept::all()),
        ..RigConfig::default()
    };
    let mut rig = Rig::new(config);
    let mut client = client_to(TARGET, 5000);
    let socket = open(&mut rig, &mut client);
    let host = rig.host();
    let other = Arc::clone(rig.other.as_ref().expect("the second link"));
    let forged = client.packet(&client.header(Flags::ACK | Flags::PSH), b"forged");
    assert!(other.deliver(&mut rig.world.cx, &forged));
    rig.settle();
    assert_eq!(rig.drops(DropReason::IpSourceInvalid), 1);
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut [0; 8], false), Err(Errno::EAGAIN));
    // The removal of the other device does not concern the flow, that of its own ends it.
    host.remove_device(&mut rig.world.cx, DeviceIndex(2)).unwrap();
    client.send_next(&mut rig, Flags::ACK | Flags::PSH, b"genuine");
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut [0; 8], false), Ok(7));
    send_syn(&mut rig, &client_to(TARGET, 5001));
    let request = next(&rig).expect("a request");
    host.remove_device(&mut rig.world.cx, DeviceIndex(1)).unwrap();
    let received = socket.recv(&host, &mut rig.world.cx, &mut [0; 8], false);
    assert_eq!((received, request.is_cancelled()), (Err(Errno::ENETDOWN), true));
}

#[test]
fn the_end_of_the_last_handle_refuses_what_waits_and_ends_the_interception() {
    let mut rig = rig();
    let host = rig.host();
    let queue = Arc::clone(host.flow_queue().unwrap());
    queue.open().unwrap();
    send_syn(&mut rig, &client_to(TARGET, 5000));
    queue.close(&host, &mut rig.world.cx);
    let sent = rig.take();
    assert!(matches!(&sent[..], [Seen::Tcp(_, header, _)] if header.has(Flags::RST)), "{sent:?}");
    send_syn(&mut rig, &client_to(TARGET, 5001));
    assert_eq!((rig.take(), rig.count(Counter::IpExtInNoRoutes)), (vec![], 1));
    queue.open().unwrap();
    send_syn(&mut rig, &client_to(TARGET, 5002));
    assert!(next(&rig).is_some());
}

#[test]
fn a_shutdown_ends_requests_and_the_queue() {
    let mut rig = rig();
    let host = rig.host();
    send_syn(&mut rig, &client_to(TARGET, 5000));
    let taken = next(&rig).expect("a request");
    send_syn(&mut rig, &client_to(TARGET, 5001));
    host.shut_down(&mut rig.world.cx);
    assert!(taken.is_cancelled());
    assert_eq!(host.flow_queue().unwrap().try_next().unwrap_err(), Errno::ENETDOWN);
    assert_eq!(host.established_len(), 0);
}

#[test]
fn addresses_that_name_no_other_host_are_not_intercepted() {
    let mut rig = rig();
    for target in ["127.0.0.1:80", "0.0.0.1:80", "255.255.255.255:80", "224.0.0.5:80", "[::]:80"] {
        send_syn(&mut rig, &client_to(target, 5000));
        assert!(next(&rig).is_none(), "{target}");
    }
    assert_eq!(rig.take(), []);
}
