//! State × call → result, for nonblocking sockets.

use stack::socket::options::{IPPROTO_TCP, SocketOption};

use super::net::{BLACK_HOLE, Net, REFUSED, SERVICE, answer, at, show};
use crate::{Accept, Close, Recv, Socket, SocketState, abi};

/// A column of the table.
const STATES: [&str; 10] = [
    "fresh",
    "bound",
    "connecting",
    "refused",
    "listening",
    "established",
    "connected",
    "at end",
    "reset",
    "closed",
];

/// A socket in the state of a column. "established": the handshake has finished, and no call has
/// reported it. "at end": the peer has closed.
fn make(net: &mut Net, state: &str) -> Socket {
    let socket = match state {
        "connecting" => net.connecting(BLACK_HOLE),
        "refused" => net.connecting(REFUSED),
        "established" => net.connecting(SERVICE),
        "connected" | "at end" | "reset" => net.connected(),
        _ => net.fresh(true),
    };
    match state {
        "bound" => socket.bind(&net.host, &mut net.cx, at("127.0.0.1:0")).unwrap(),
        "listening" => socket.listen(&net.host, &mut net.cx, 1).unwrap(),
        "at end" => net.close_peer(false),
        "reset" => net.close_peer(true),
        "closed" => {
            assert_eq!(answer(Close::new().step(&socket, &net.host, &mut net.cx), |()| 0), "0")
        }
        _ => {}
    }
    socket
}

type Call = fn(&mut Net, &Socket) -> String;

fn unit(result: Result<(), stack::Errno>) -> String {
    show(result.map(|()| 0))
}

fn ioctl(net: &mut Net, socket: &Socket, request: u64) -> String {
    let mut argument = 0;
    let result = socket.ioctl(&net.host, &mut net.cx, request, &mut argument);
    show(result.map(|()| i64::from(argument)))
}

fn option(net: &mut Net, socket: &Socket, number: (i32, i32)) -> String {
    let mut room = [0; 4];
    let result = socket.getsockopt(&net.host, &mut net.cx, number, &mut room);
    show(result.map(|_| i64::from(i32::from_ne_bytes(room))))
}

/// Calls, and their results in each state.
#[rustfmt::skip]
const TABLE: &[(&str, Call, [&str; 10])] = &[
    ("bind", |net, s| unit(s.bind(&net.host, &mut net.cx, at("127.0.0.1:0"))),
        ["0", "EINVAL", "EINVAL", "0", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "0", "EBADF"]),
    ("bind to a foreign address", |net, s| unit(s.bind(&net.host, &mut net.cx, at("8.8.8.8:0"))),
        ["EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EADDRNOTAVAIL", "EBADF"]),
    ("listen", |net, s| unit(s.listen(&net.host, &mut net.cx, 5)),
        ["0", "0", "EINVAL", "EINVAL", "0", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("accept", |_, s| answer(Accept::new(0).step(s), |_| 4),
        ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "EAGAIN", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("accept4 with an unknown flag", |_, s| answer(Accept::new(1).step(s), |_| 4),
        ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("connect", |net, s| net.connect(s, "127.0.0.1:8080"),
        ["EINPROGRESS", "EINPROGRESS", "EALREADY", "ECONNREFUSED", "EISCONN", "0", "EISCONN", "EISCONN", "EISCONN", "EBADF"]),
    ("connect to AF_UNSPEC", |net, s| unit(s.disconnect(&net.host, &mut net.cx)),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("send", |net, s| net.send(s, b"abcd", 0),
        ["EPIPE", "EPIPE", "EAGAIN", "ECONNREFUSED", "EPIPE", "4", "4", "4", "ECONNRESET", "EBADF"]),
    ("send of no byte", |net, s| net.send(s, b"", 0),
        ["EPIPE", "EPIPE", "EAGAIN", "ECONNREFUSED", "EPIPE", "0", "0", "0", "ECONNRESET", "EBADF"]),
    ("send with MSG_OOB", |net, s| net.send(s, b"abcd", abi::MSG_OOB),
        ["EPIPE", "EPIPE", "EAGAIN", "ECONNREFUSED", "EPIPE", "4", "4", "4", "ECONNRESET", "EBADF"]),
    ("send with MSG_FASTOPEN", |net, s| net.send(s, b"abcd", abi::MSG_FASTOPEN),
        ["EINPROGRESS", "EINPROGRESS", "EALREADY", "ECONNREFUSED", "EISCONN", "4", "EISCONN", "EISCONN", "EISCONN", "EBADF"]),
    ("send with MSG_FASTOPEN and no address", |net, s| {
        let mut call = crate::Send::new(abi::MSG_FASTOPEN, None);
        net.step_send(&mut call, s, b"abcd")
    },
        ["EINVAL", "EINVAL", "EALREADY", "ECONNREFUSED", "EISCONN", "4", "EISCONN", "EISCONN", "EISCONN", "EBADF"]),
    ("send with an unknown flag", |net, s| net.send(s, b"abcd", 0x80_0010),
        ["EPIPE", "EPIPE", "EAGAIN", "ECONNREFUSED", "EPIPE", "4", "4", "4", "ECONNRESET", "EBADF"]),
    ("recv", |net, s| net.recv(s, 8, 0),
        ["ENOTCONN", "ENOTCONN", "EAGAIN", "ECONNREFUSED", "ENOTCONN", "EAGAIN", "EAGAIN", "0", "ECONNRESET", "EBADF"]),
    ("recv without room", |net, s| net.recv(s, 0, 0),
        ["ENOTCONN", "ENOTCONN", "EAGAIN", "ECONNREFUSED", "ENOTCONN", "EAGAIN", "EAGAIN", "0", "ECONNRESET", "EBADF"]),
    ("read without room", |net, s| net.step_recv(&mut Recv::read(), s, &mut []),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("recv with MSG_OOB", |net, s| net.recv(s, 8, abi::MSG_OOB),
        ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "ENOTCONN", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("recv with MSG_ERRQUEUE", |net, s| net.recv(s, 8, abi::MSG_ERRQUEUE),
        ["EAGAIN", "EAGAIN", "EAGAIN", "EAGAIN", "EAGAIN", "EAGAIN", "EAGAIN", "EAGAIN", "EAGAIN", "EBADF"]),
    ("recv with an unknown flag", |net, s| net.recv(s, 8, 0x80_0000),
        ["ENOTCONN", "ENOTCONN", "EAGAIN", "ECONNREFUSED", "ENOTCONN", "EAGAIN", "EAGAIN", "0", "ECONNRESET", "EBADF"]),
    ("shutdown of reading", |net, s| unit(s.shutdown(&net.host, &mut net.cx, abi::SHUT_RD)),
        ["ENOTCONN", "ENOTCONN", "0", "ENOTCONN", "0", "0", "0", "0", "ENOTCONN", "EBADF"]),
    ("shutdown of writing", |net, s| unit(s.shutdown(&net.host, &mut net.cx, abi::SHUT_WR)),
        ["ENOTCONN", "ENOTCONN", "0", "ENOTCONN", "0", "0", "0", "0", "ENOTCONN", "EBADF"]),
    ("shutdown of an unknown half", |net, s| unit(s.shutdown(&net.host, &mut net.cx, 3)),
        ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("getsockname", |_, s| show(s.local_name().map(|_| 0)),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("getpeername", |net, s| show(s.peer_name(&net.host, &mut net.cx).map(|_| 0)),
        ["ENOTCONN", "ENOTCONN", "ENOTCONN", "ENOTCONN", "ENOTCONN", "0", "0", "0", "ENOTCONN", "EBADF"]),
    ("SO_ERROR", |net, s| option(net, s, (SocketOption::Error.level(), SocketOption::Error.number())),
        ["0", "0", "0", "111", "0", "0", "0", "0", "104", "EBADF"]),
    ("setsockopt", |net, s| unit(net.set(s, SocketOption::NoDelay, &1i32.to_ne_bytes())),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("setsockopt of an unknown option", |net, s| {
        unit(s.setsockopt(&net.host, &mut net.cx, (IPPROTO_TCP, 200), &[0; 4]))
    },
        ["ENOPROTOOPT"; 10]),
    ("setsockopt of TCP_INQ", |net, s| {
        unit(s.setsockopt(&net.host, &mut net.cx, (IPPROTO_TCP, abi::TCP_INQ), &1i32.to_ne_bytes()))
    },
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("setsockopt of TCP_INQ to 2", |net, s| {
        unit(s.setsockopt(&net.host, &mut net.cx, (IPPROTO_TCP, abi::TCP_INQ), &2i32.to_ne_bytes()))
    },
        ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("getsockopt of TCP_INQ", |net, s| option(net, s, (IPPROTO_TCP, abi::TCP_INQ)),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("FIONREAD", |net, s| ioctl(net, s, abi::FIONREAD),
        ["0", "0", "0", "0", "EINVAL", "0", "0", "0", "0", "EBADF"]),
    ("SIOCOUTQ", |net, s| ioctl(net, s, abi::SIOCOUTQ),
        ["0", "0", "0", "1", "EINVAL", "0", "0", "0", "0", "EBADF"]),
    ("SIOCOUTQNSD", |net, s| ioctl(net, s, abi::SIOCOUTQNSD),
        ["0", "0", "0", "0", "EINVAL", "0", "0", "0", "0", "EBADF"]),
    ("SIOCATMARK", |net, s| ioctl(net, s, abi::SIOCATMARK),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
    ("an unknown ioctl", |net, s| ioctl(net, s, 0x5429),
        ["ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "EBADF"]),
    ("F_GETFL", |_, s| show(s.fcntl(abi::F_GETFL, 0).map(i64::from)),
        ["2050", "2050", "2050", "2050", "2050", "2050", "2050", "2050", "2050", "EBADF"]),
    ("an unknown fcntl", |_, s| show(s.fcntl(77, 0).map(i64::from)),
        ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF"]),
    ("poll", |_, s| format!("{:#x}", s.poll_events()),
        ["0x114", "0x114", "0x0", "0x215d", "0x0", "0x104", "0x104", "0x2145", "0x215d", "0x20"]),
    ("close", |net, s| answer(Close::new().step(s, &net.host, &mut net.cx), |()| 0),
        ["0", "0", "0", "0", "0", "0", "0", "0", "0", "EBADF"]),
];

#[test]
fn every_call_answers_as_linux_in_every_state() {
    let mut wrong = Vec::new();
    for (name, call, expected) in TABLE {
        for (state, expected) in STATES.iter().zip(expected) {
            let mut net = Net::new();
            let socket = make(&mut net, state);
            let came = call(&mut net, &socket);
            if came != *expected {
                wrong.push(format!("{name}, {state}: expected {expected}, came {came}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_program_observes_these_states() {
    use SocketState as S;
    let expected = [
        S::Fresh,
        S::Bound,
        S::Connecting,
        S::Connecting,
        S::Listening,
        S::Connecting,
        S::Connected,
        S::Connected,
        S::Connected,
        S::Closed,
    ];
    for (state, expected) in STATES.iter().zip(expected) {
        let mut net = Net::new();
        assert_eq!(make(&mut net, state).state(), expected, "{state}");
    }
}

/// Runs calls of the table one after the other on one socket.
fn sequence(state: &str, calls: &[(&str, &str)]) {
    let mut net = Net::new();
    let socket = make(&mut net, state);
    for (at, (name, expected)) in calls.iter().enumerate() {
        let (_, call, _) = TABLE.iter().find(|(known, ..)| known == name).expect(name);
        let came = call(&mut net, &socket);
        net.poll();
        assert_eq!(came, *expected, "{state}: {name}, call {at} of {calls:?}");
    }
}

#[test]
fn a_failed_attempt_is_reported_once_and_can_be_repeated() {
    sequence(
        "refused",
        &[("connect", "ECONNREFUSED"), ("poll", "0x114"), ("connect", "EINPROGRESS")],
    );
}

#[test]
fn an_attempt_whose_error_was_taken_is_aborted() {
    sequence("refused", &[("SO_ERROR", "111"), ("connect", "ECONNABORTED"), ("poll", "0x114")]);
    let calls = [
        ("send", "ECONNREFUSED"),
        ("send", "EPIPE"),
        ("recv", "0"),
        ("connect", "ECONNABORTED"),
        ("poll", "0x114"),
    ];
    sequence("refused", &calls);
}

#[test]
fn a_shutdown_of_a_failed_attempt_forbids_another() {
    let calls = [("shutdown of writing", "ENOTCONN"), ("connect", "EINVAL"), ("listen", "EINVAL")];
    sequence("refused", &calls);
}

#[test]
fn a_shutdown_before_the_syn_ack_ends_the_attempt() {
    let calls = [
        ("shutdown of writing", "0"),
        ("poll", "0x11c"),
        ("SO_ERROR", "104"),
        ("poll", "0x114"),
        ("connect", "EINPROGRESS"),
    ];
    sequence("connecting", &calls);
    let calls = [("shutdown of reading", "0"), ("recv", "ECONNRESET"), ("recv", "ENOTCONN")];
    sequence("connecting", &calls);
    let calls = [("shutdown of writing", "0"), ("send", "ECONNRESET"), ("send", "EPIPE")];
    sequence("connecting", &calls);
}

#[test]
fn a_shutdown_of_a_listening_socket_makes_it_fresh() {
    let calls = [("shutdown of writing", "0"), ("accept", "EAGAIN")];
    sequence("listening", &calls);
    let calls = [
        ("shutdown of reading", "0"),
        ("poll", "0x114"),
        ("bind", "0"),
        ("listen", "0"),
        ("accept", "EAGAIN"),
    ];
    sequence("listening", &calls);
}

#[test]
fn a_shutdown_without_a_connection_ends_reading_all_the_same() {
    let calls =
        [("shutdown of reading", "ENOTCONN"), ("recv", "0"), ("poll", "0x2155"), ("send", "EPIPE")];
    sequence("fresh", &calls);
}

#[test]
fn af_unspec_disconnects() {
    let calls = [
        ("connect to AF_UNSPEC", "0"),
        ("poll", "0x11c"),
        ("SO_ERROR", "104"),
        ("bind", "0"),
        ("connect", "EINPROGRESS"),
    ];
    sequence("connected", &calls);
    let calls = [("connect to AF_UNSPEC", "0"), ("poll", "0x11c"), ("connect", "EINPROGRESS")];
    sequence("connecting", &calls);
    sequence("bound", &[("connect to AF_UNSPEC", "0"), ("bind", "EINVAL")]);
}

#[test]
fn a_handshake_is_reported_once_by_connect() {
    sequence("established", &[("connect", "0"), ("connect", "EISCONN")]);
    sequence("established", &[("send", "4"), ("connect", "0"), ("connect", "EISCONN")]);
    sequence("established", &[("shutdown of writing", "0"), ("connect", "EISCONN")]);
    sequence("established", &[("send with MSG_FASTOPEN", "4"), ("connect", "EISCONN")]);
}

#[test]
fn a_reset_is_reported_once() {
    let calls = [
        ("recv", "ECONNRESET"),
        ("recv", "0"),
        ("send", "EPIPE"),
        ("poll", "0x2155"),
        ("connect", "EISCONN"),
        ("getpeername", "ENOTCONN"),
    ];
    sequence("reset", &calls);
    let calls = [("send", "ECONNRESET"), ("send", "EPIPE"), ("recv", "0"), ("SO_ERROR", "0")];
    sequence("reset", &calls);
}

#[test]
fn sockets_of_other_kinds_are_refused() {
    let open = |domain, kind, protocol| show(Socket::open(domain, kind, protocol).map(|_| 3));
    assert_eq!(open(2, 1, 0), "3");
    assert_eq!(open(2, 1, 6), "3");
    assert_eq!(open(2, 1 | 0x10, 0), "EINVAL");
    assert_eq!(open(99, 1, 0), "EAFNOSUPPORT");
    assert_eq!(open(99, 11, 0), "EAFNOSUPPORT");
    assert_eq!(open(2, 11, 0), "EINVAL");
    assert_eq!(open(2, 5, 0), "ESOCKTNOSUPPORT");
    assert_eq!(open(2, 1, 17), "EPROTONOSUPPORT");
    assert_eq!(open(2, 1, -1), "EINVAL");
    assert_eq!(open(2, 1, 300), "EINVAL");
}
