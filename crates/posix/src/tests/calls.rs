//! Calls that block, and the rules of Linux that drivers easily get wrong.

use std::{
    io::{IoSlice, IoSliceMut},
    time::Duration,
};

use stack::{
    Errno,
    socket::options::{IPPROTO_IP, IPPROTO_TCP, OptionValue, SocketOption},
};

use super::net::{BLACK_HOLE, Net, REFUSED, SERVICE, answer, at};
use crate::{Accept, Close, Connect, GiveUp, Received, Recv, Send, Socket, SocketState, Step, abi};

/// A blocking, connected socket.
fn blocking(net: &mut Net) -> Socket {
    let socket = net.connected();
    socket.set_nonblocking(false);
    socket
}

/// The peer of the last connection sends.
fn peer_sends(net: &mut Net, bytes: &[u8], flags: i32) {
    let mut call = Send::new(flags, None);
    let bufs = [IoSlice::new(bytes)];
    let step = call.step(net.peers.last().unwrap(), &net.host, &mut net.cx, &bufs);
    assert_eq!(step, Ok(Step::Ready(bytes.len())));
    net.poll();
}

fn set_int(net: &mut Net, socket: &Socket, option: SocketOption, value: i32) {
    net.set(socket, option, &value.to_ne_bytes()).unwrap();
}

#[test]
fn a_blocking_connect_returns_with_the_handshake() {
    let mut net = Net::new();
    let socket = net.fresh(false);
    let mut call = Connect::new(at(BLACK_HOLE));
    assert_eq!(call.step(&socket, &net.host, &mut net.cx), Ok(Step::Blocks));
    assert_eq!(call.give_up(GiveUp::TimedOut), Errno::EINPROGRESS);
    assert_eq!(call.give_up(GiveUp::Interrupted), Errno::EINTR);
    let mut second = Connect::new(at(BLACK_HOLE));
    assert_eq!(second.step(&socket, &net.host, &mut net.cx), Ok(Step::Blocks));
    assert_eq!(second.give_up(GiveUp::TimedOut), Errno::EALREADY, "the second call");

    let socket = net.fresh(false);
    let mut call = Connect::new(at(REFUSED));
    let mut step = call.step(&socket, &net.host, &mut net.cx);
    if step == Ok(Step::Blocks) {
        net.poll();
        step = call.step(&socket, &net.host, &mut net.cx);
    }
    assert_eq!(step, Err(Errno::ECONNREFUSED));
    assert_eq!(socket.state(), SocketState::Fresh);
}

#[test]
fn a_connect_whose_attempt_another_thread_has_ended_returns() {
    let mut net = Net::new();
    let socket = net.fresh(false);
    let mut call = Connect::new(at(BLACK_HOLE));
    assert_eq!(call.step(&socket, &net.host, &mut net.cx), Ok(Step::Blocks));
    socket.shutdown(&net.host, &mut net.cx, abi::SHUT_RDWR).unwrap();
    assert_eq!(call.step(&socket, &net.host, &mut net.cx), Err(Errno::ECONNRESET));
}

#[test]
fn a_failed_attempt_leaves_the_bound_address_and_the_options() {
    let mut net = Net::new();
    let socket = net.fresh(true);
    socket.bind(&net.host, &mut net.cx, at("127.0.0.1:4000")).unwrap();
    assert_eq!(net.connect(&socket, REFUSED), "EINPROGRESS");
    set_int(&mut net, &socket, SocketOption::KeepCount, 3);
    net.poll();
    assert_eq!(net.connect(&socket, REFUSED), "ECONNREFUSED");
    assert_eq!(socket.state(), SocketState::Bound);
    assert_eq!(net.connect(&socket, SERVICE), "EINPROGRESS");
    assert_eq!(socket.local_name(), Ok(at("127.0.0.1:4000")));
    let count = socket.option(&net.host, &mut net.cx, SocketOption::KeepCount);
    assert_eq!(count, Ok(OptionValue::Int(3)));
}

#[test]
fn an_accepted_socket_has_the_options_but_not_the_flags_of_the_listener() {
    let mut net = Net::new();
    let listener = net.fresh(true);
    listener.bind(&net.host, &mut net.cx, at("127.0.0.1:81")).unwrap();
    set_int(&mut net, &listener, SocketOption::KeepCount, 3);
    let inq = (IPPROTO_TCP, abi::TCP_INQ);
    let on = 1i32.to_ne_bytes();
    listener.setsockopt(&net.host, &mut net.cx, inq, &on).unwrap();
    listener.listen(&net.host, &mut net.cx, 1).unwrap();
    assert!(matches!(Accept::new(0).step(&listener), Err(Errno::EAGAIN)));
    let _client = net.connecting("127.0.0.1:81");
    let Ok(Step::Ready(accepted)) = Accept::new(0).step(&listener) else { panic!("a connection") };
    assert!(!accepted.socket.is_nonblocking());
    assert_eq!(accepted.socket.state(), SocketState::Connected);
    assert_eq!(accepted.socket.peer_name(&net.host, &mut net.cx), Ok(accepted.peer));
    let count = accepted.socket.option(&net.host, &mut net.cx, SocketOption::KeepCount);
    assert_eq!(count, Ok(OptionValue::Int(3)));
    let mut value = [0; 4];
    accepted.socket.getsockopt(&net.host, &mut net.cx, inq, &mut value).unwrap();
    assert_eq!(value, on);

    listener.set_nonblocking(false);
    let call = Accept::new(abi::SOCK_NONBLOCK);
    assert!(matches!(call.step(&listener), Ok(Step::Blocks)));
    assert_eq!(call.give_up(GiveUp::TimedOut), Errno::EAGAIN);
    let _client = net.connecting("127.0.0.1:81");
    let Ok(Step::Ready(accepted)) = call.step(&listener) else { panic!("a connection") };
    assert!(accepted.socket.is_nonblocking());
}

#[test]
fn a_second_listen_changes_the_backlog() {
    let mut net = Net::new();
    let listener = net.fresh(true);
    listener.bind(&net.host, &mut net.cx, at("127.0.0.1:81")).unwrap();
    listener.listen(&net.host, &mut net.cx, 1).unwrap();
    let clients: Vec<_> = (0..3).map(|_| net.connecting("127.0.0.1:81")).collect();
    let accepted =
        |listener: &Socket| std::iter::from_fn(|| Accept::new(0).step(listener).ok()).count();
    assert_eq!(accepted(&listener), 2, "one more than the backlog");
    drop(clients);
    listener.listen(&net.host, &mut net.cx, -1).unwrap();
    let _clients: Vec<_> = (0..5).map(|_| net.connecting("127.0.0.1:81")).collect();
    assert!(accepted(&listener) >= 5, "a negative backlog is the largest");
}

#[test]
fn a_nonblocking_socket_lingers_in_close_too() {
    let mut net = Net::new();
    let socket = net.connected();
    let linger = [1i32, 5].map(i32::to_ne_bytes).concat();
    net.set(&socket, SocketOption::Linger, &linger).unwrap();
    // The peer's buffer is full, so that the FIN waits behind the data.
    assert_ne!(net.send(&socket, &vec![0; 16 << 20], 0), "EAGAIN");
    net.poll();
    let mut call = Close::new();
    assert_eq!(call.step(&socket, &net.host, &mut net.cx), Ok(Step::Blocks));
    assert_eq!(call.limit(), Some(Duration::from_secs(5)));
    assert_eq!(socket.state(), SocketState::Closed);
    net.close_peer(true);
    assert_eq!(call.step(&socket, &net.host, &mut net.cx), Ok(Step::Ready(())));
}

#[test]
fn a_blocking_read_returns_with_rcvlowat_bytes_and_waitall_with_all() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    set_int(&mut net, &socket, SocketOption::ReceiveLowWater, 3);
    let (mut low, mut all) = (Recv::read(), Recv::new(abi::MSG_WAITALL));
    let (mut a, mut b) = ([0; 4], [0; 4]);
    assert_eq!(net.step_recv(&mut low, &socket, &mut a), "Blocks");
    peer_sends(&mut net, b"ab", 0);
    assert_eq!(net.step_recv(&mut low, &socket, &mut a), "Blocks");
    peer_sends(&mut net, b"c", 0);
    assert_eq!(net.step_recv(&mut low, &socket, &mut a), "3");
    assert_eq!(&a[..3], b"abc");
    peer_sends(&mut net, b"def", 0);
    assert_eq!(net.step_recv(&mut all, &socket, &mut b), "Blocks");
    peer_sends(&mut net, b"ghi", 0);
    assert_eq!(net.step_recv(&mut all, &socket, &mut b), "4");
    assert_eq!(&b, b"defg");
    assert_eq!(net.recv(&socket, 8, abi::MSG_DONTWAIT | abi::MSG_WAITALL), "2");
}

#[test]
fn a_peek_waits_for_as_many_bytes_as_a_read() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    let mut peek = Recv::new(abi::MSG_PEEK | abi::MSG_WAITALL);
    let mut buf = [0; 4];
    peer_sends(&mut net, b"ab", 0);
    assert_eq!(net.step_recv(&mut peek, &socket, &mut buf), "Blocks");
    peer_sends(&mut net, b"cd", 0);
    assert_eq!(net.step_recv(&mut peek, &socket, &mut buf), "4");
    assert_eq!(&buf, b"abcd");
    assert_eq!(net.recv(&socket, 8, 0), "4", "a peek takes nothing");
    peer_sends(&mut net, b"e", 0);
    net.close_peer(false);
    let mut peek = Recv::new(abi::MSG_PEEK | abi::MSG_WAITALL);
    assert_eq!(net.step_recv(&mut peek, &socket, &mut buf), "1", "the stream ends");
}

#[test]
fn a_read_that_gives_up_returns_the_bytes_that_have_come() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    let timeout = [2i64, 0].map(i64::to_ne_bytes).concat();
    net.set(&socket, SocketOption::ReceiveTimeout, &timeout).unwrap();
    let mut call = Recv::new(abi::MSG_WAITALL);
    let mut buf = [0; 4];
    assert_eq!(call.limit(&socket), Some(Duration::from_secs(2)));
    assert_eq!(net.step_recv(&mut call, &socket, &mut buf), "Blocks");
    let mut give_up = |call: &mut Recv, net: &mut Net, why| {
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        call.give_up(&socket, &net.host, &mut net.cx, bufs, why)
    };
    assert_eq!(give_up(&mut call, &mut net, GiveUp::TimedOut), Err(Errno::EAGAIN));
    assert_eq!(give_up(&mut call, &mut net, GiveUp::Interrupted), Err(Errno::EINTR));
    peer_sends(&mut net, b"ab", 0);
    assert_eq!(net.step_recv(&mut call, &socket, &mut [0; 4]), "Blocks");
    let received = Received { bytes: 2, ..Received::default() };
    assert_eq!(give_up(&mut call, &mut net, GiveUp::Interrupted), Ok(received));
}

#[test]
fn truncated_bytes_are_counted_and_not_copied() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    peer_sends(&mut net, b"abcd", 0);
    let mut buf = [0; 3];
    assert_eq!(net.step_recv(&mut Recv::new(abi::MSG_TRUNC), &socket, &mut buf), "3");
    assert_eq!(buf, [0; 3]);
    assert_eq!(net.recv(&socket, 8, abi::MSG_DONTWAIT), "1");
}

#[test]
fn bytes_are_spread_over_several_buffers() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    let step = |net: &mut Net, call: &mut Recv, first: &mut [u8], second: &mut [u8]| {
        let bufs = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        let step = call.step(&socket, &net.host, &mut net.cx, bufs);
        answer(step, |received| i64::try_from(received.bytes).unwrap())
    };
    let (mut a, mut b) = ([0; 1], [0; 3]);
    peer_sends(&mut net, b"abcd", 0);
    assert_eq!(step(&mut net, &mut Recv::new(abi::MSG_PEEK), &mut a, &mut b), "4");
    assert_eq!((&a, &b), (b"a", b"bcd"));

    let (mut a, mut b) = ([0; 3], [0; 3]);
    let mut call = Recv::new(abi::MSG_WAITALL);
    assert_eq!(step(&mut net, &mut call, &mut a, &mut b), "Blocks");
    peer_sends(&mut net, b"ef", 0);
    assert_eq!(step(&mut net, &mut call, &mut a, &mut b), "6");
    assert_eq!((&a, &b), (b"abc", b"def"));
}

#[test]
fn a_read_stops_before_urgent_data() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    peer_sends(&mut net, b"abX", abi::MSG_OOB);
    peer_sends(&mut net, b"cd", 0);
    let mut buf = [0; 8];
    assert_eq!(net.step_recv(&mut Recv::new(abi::MSG_WAITALL), &socket, &mut buf), "2");
    assert_eq!(socket.poll_events() & abi::POLLPRI, abi::POLLPRI);
    let mut at_mark = 0;
    socket.ioctl(&net.host, &mut net.cx, abi::SIOCATMARK, &mut at_mark).unwrap();
    assert_eq!(at_mark, 1);
    let mut call = Recv::new(abi::MSG_OOB);
    let mut none: [IoSliceMut<'_>; 0] = [];
    let step =
        Recv::new(abi::MSG_OOB | abi::MSG_PEEK).step(&socket, &net.host, &mut net.cx, &mut none);
    let flags = abi::MSG_OOB | abi::MSG_TRUNC;
    assert_eq!(step, Ok(Step::Ready(Received { flags, ..Received::default() })));
    let bufs = &mut [IoSliceMut::new(&mut buf)];
    let step = call.step(&socket, &net.host, &mut net.cx, bufs);
    assert_eq!(step, Ok(Step::Ready(Received { bytes: 1, flags: abi::MSG_OOB, inq: None })));
    assert_eq!(buf[0], b'X');
    assert_eq!(net.recv(&socket, 8, abi::MSG_OOB), "EINVAL", "it is taken once");
    assert_eq!(net.recv(&socket, 8, 0), "2");
}

#[test]
fn recvmsg_reports_the_bytes_left_to_read() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    let inq = (IPPROTO_TCP, abi::TCP_INQ);
    socket.setsockopt(&net.host, &mut net.cx, inq, &1i32.to_ne_bytes()).unwrap();
    peer_sends(&mut net, b"abcd", 0);
    net.close_peer(false);
    for (bytes, inq) in [(3, 1), (1, 1), (0, 1)] {
        let mut buf = [0; 3];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let step = Recv::new(0).step(&socket, &net.host, &mut net.cx, bufs);
        let received = Received { bytes, flags: 0, inq: Some(inq) };
        assert_eq!(step, Ok(Step::Ready(received)));
    }
}

#[test]
fn an_error_behind_queued_bytes_stays_pending() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    let bytes = vec![0; 8 << 20];
    let mut call = Send::new(0, None);
    assert_eq!(net.step_send(&mut call, &socket, &bytes), "Blocks");
    let sent = call.sent();
    assert!(sent > 0 && sent < bytes.len());
    net.close_peer(true);
    assert_eq!(net.step_send(&mut call, &socket, &bytes), sent.to_string());
    assert_eq!(net.error_of(&socket), Errno::ECONNRESET.raw());
    assert_eq!(net.send(&socket, b"a", 0), "EPIPE");
}

#[test]
fn a_blocked_writer_waits_until_the_socket_is_writable() {
    let mut net = Net::new();
    let socket = blocking(&mut net);
    let bytes = vec![0; 8 << 20];
    let mut call = Send::new(0, None);
    assert_eq!(net.step_send(&mut call, &socket, &bytes), "Blocks");
    net.poll();
    let (sent, mut buf) = (call.sent(), vec![0; 1 << 20]);
    for _ in 0..1000 {
        let writable = socket.poll_events() & abi::POLLOUT != 0;
        let step = net.step_send(&mut call, &socket, &bytes);
        if writable {
            assert!(call.sent() > sent, "{step}");
            return;
        }
        assert_eq!((step.as_str(), call.sent()), ("Blocks", sent));
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let _ = Recv::read().step(net.peers.last().unwrap(), &net.host, &mut net.cx, bufs);
        net.poll();
    }
    panic!("the peer has read everything, and the socket is not writable");
}

#[test]
fn a_write_that_gives_up_returns_the_queued_bytes() {
    let mut net = Net::new();
    let socket = net.fresh(false);
    let mut connect = Connect::new(at(BLACK_HOLE));
    assert_eq!(connect.step(&socket, &net.host, &mut net.cx), Ok(Step::Blocks));
    let mut call = Send::new(0, None);
    assert_eq!(net.step_send(&mut call, &socket, b"ab"), "Blocks");
    assert_eq!(call.give_up(GiveUp::TimedOut), Err(Errno::EAGAIN));
    assert_eq!(call.give_up(GiveUp::Interrupted), Err(Errno::EINTR));
    let mut call = Send::new(abi::MSG_FASTOPEN, None);
    assert_eq!(net.step_send(&mut call, &socket, b"ab"), "Blocks", "it waits for the handshake");
    assert_eq!(call.give_up(GiveUp::TimedOut), Err(Errno::EALREADY));
}

#[test]
fn fast_open_is_not_supported_where_the_sysctl_forbids_it() {
    let mut net = Net::new();
    net.host.set_sysctl("net.ipv4.tcp_fastopen", "0").unwrap();
    let socket = net.connected();
    assert_eq!(net.send(&socket, b"a", abi::MSG_FASTOPEN), "EOPNOTSUPP");
    let socket = net.fresh(true);
    assert_eq!(net.send(&socket, b"a", abi::MSG_FASTOPEN), "EOPNOTSUPP");
}

#[test]
fn fionbio_and_f_setfl_set_the_same_flag() {
    let mut net = Net::new();
    let socket = net.fresh(false);
    let mut on = 1;
    socket.ioctl(&net.host, &mut net.cx, abi::FIONBIO, &mut on).unwrap();
    assert_eq!(socket.fcntl(abi::F_GETFL, 0), Ok(abi::O_RDWR | abi::O_NONBLOCK));
    assert_eq!(socket.fcntl(abi::F_SETFL, abi::O_RDWR), Ok(0));
    assert!(!socket.is_nonblocking());
}

#[test]
fn the_domain_is_that_of_the_socket_and_only_ipv6_sockets_have_options_of_ipv6() {
    let mut net = Net::new();
    for (domain, hops) in [(abi::AF_INET, Err(Errno::EOPNOTSUPP)), (abi::AF_INET6, Ok(4))] {
        let socket = Socket::open(domain, abi::SOCK_STREAM, 0).unwrap();
        let mut get = |option: SocketOption, room: &mut [u8]| {
            let number = (option.level(), option.number());
            socket.getsockopt(&net.host, &mut net.cx, number, room)
        };
        let mut value = [0; 4];
        assert_eq!(get(SocketOption::Domain, &mut value), Ok(4));
        assert_eq!(i32::from_ne_bytes(value), domain);
        assert_eq!(get(SocketOption::UnicastHops, &mut value), hops);
        let unknown = socket.getsockopt(&net.host, &mut net.cx, (999, 1), &mut value);
        assert_eq!(unknown, Err(hops.err().unwrap_or(Errno::ENOPROTOOPT)));
        let set = net.set(&socket, SocketOption::UnicastHops, &9_i32.to_ne_bytes());
        let expected = if hops.is_ok() { Ok(()) } else { Err(Errno::ENOPROTOOPT) };
        assert_eq!(set, expected);
    }
}

#[test]
fn an_option_is_cut_to_the_room() {
    let mut net = Net::new();
    let socket = net.fresh(false);
    let mut get = |level, number, room: &mut [u8]| {
        socket.getsockopt(&net.host, &mut net.cx, (level, number), room)
    };
    assert_eq!(get(IPPROTO_IP, SocketOption::TimeToLive.number(), &mut [0]), Ok(1));
    assert_eq!(get(IPPROTO_IP, SocketOption::TimeToLive.number(), &mut [0; 8]), Ok(4));
    let no_delay = SocketOption::NoDelay;
    assert_eq!(get(no_delay.level(), no_delay.number(), &mut [0; 2]), Ok(2));
    assert_eq!(get(IPPROTO_TCP, abi::TCP_CC_INFO, &mut [0; 8]), Ok(0));
    let short =
        socket.setsockopt(&net.host, &mut net.cx, (no_delay.level(), no_delay.number()), &[1]);
    assert_eq!(short, Err(Errno::EINVAL));
}

/// `SO_DOMAIN` is the family of the call that made the socket: in every state, and also of a socket
/// that an IPv4 peer has reached.
#[test]
fn the_domain_of_a_socket_does_not_change() {
    let mut net = Net::new();
    let domain = |net: &mut Net, socket: &Socket| {
        socket.option(&net.host, &mut net.cx, SocketOption::Domain)
    };
    let open = |family| Socket::open(family, abi::SOCK_STREAM | abi::SOCK_NONBLOCK, 0).unwrap();
    for (family, any, own) in [
        (abi::AF_INET, "0.0.0.0:82", "127.0.0.1:82"),
        (abi::AF_INET6, "[::]:83", "[::ffff:127.0.0.1]:83"),
    ] {
        let expected = Ok(OptionValue::Int(family));
        let listener = open(family);
        assert_eq!(domain(&mut net, &listener), expected, "fresh");
        listener.bind(&net.host, &mut net.cx, at(any)).unwrap();
        assert_eq!(domain(&mut net, &listener), expected, "bound");
        listener.listen(&net.host, &mut net.cx, 1).unwrap();
        assert_eq!(domain(&mut net, &listener), expected, "listening");
        let client = open(family);
        assert_eq!(net.connect(&client, own), "EINPROGRESS");
        assert_eq!(domain(&mut net, &client), expected, "connecting");
        net.poll();
        assert_eq!(net.connect(&client, own), "0");
        assert_eq!(domain(&mut net, &client), expected, "connected");
        let Ok(Step::Ready(accepted)) = Accept::new(0).step(&listener) else { panic!("a peer") };
        assert_eq!(domain(&mut net, &accepted.socket), expected, "accepted");
        for socket in [listener, client, accepted.socket] {
            Close::new().step(&socket, &net.host, &mut net.cx).unwrap();
        }
    }
}
