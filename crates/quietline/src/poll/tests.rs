//! Events of sockets over a wire in memory: none is lost, and none is reported without news.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{Stack, TcpListener, TcpStream, UdpSocket, Wire, WireConfig};

const SECONDS: Option<Duration> = Some(Duration::from_secs(10));
const SOON: Option<Duration> = Some(Duration::from_millis(20));

fn stacks() -> (Stack, Stack) {
    let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse().unwrap());
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse().unwrap());
    (client.build().unwrap(), server.build().unwrap())
}

/// A connection whose second end is nonblocking, and its stacks.
fn connection() -> (TcpStream, TcpStream, (Stack, Stack)) {
    let (client, server) = stacks();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let stream = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    (stream, accepted, (client, server))
}

fn events_of(poller: &Poller, limit: Option<Duration>) -> Vec<(usize, Readiness)> {
    let mut events = Events::with_capacity(8);
    poller.poll(&mut events, limit);
    events.iter().map(|event| (event.token().0, event.readiness())).collect()
}

fn read_all(mut stream: &TcpStream) -> usize {
    let (mut total, mut buf) = (0, [0; 4096]);
    loop {
        match stream.read(&mut buf) {
            Ok(0) => return total,
            Ok(count) => total += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return total,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_level_is_reported_while_it_holds_and_an_edge_once() {
    for trigger in [Trigger::Level, Trigger::Edge, Trigger::OneShot] {
        let (mut peer, stream, _stacks) = connection();
        let poller = Poller::new();
        poller.register(&stream, Token(1), Interest::READABLE, trigger).unwrap();
        assert!(events_of(&poller, SOON).is_empty());
        peer.write_all(b"one").unwrap();
        assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::READ)]);
        let again = events_of(&poller, SOON);
        assert_eq!(again.len(), usize::from(trigger == Trigger::Level), "{trigger:?}");
        // Data behind data that was not read is news for an edge.
        peer.write_all(b"two").unwrap();
        let more = events_of(&poller, if trigger == Trigger::OneShot { SOON } else { SECONDS });
        assert_eq!(more.len(), usize::from(trigger != Trigger::OneShot), "{trigger:?}");
        assert_eq!(read_all(&stream), 6);
        assert!(events_of(&poller, SOON).is_empty(), "{trigger:?}");
        if trigger == Trigger::OneShot {
            peer.write_all(b"three").unwrap();
            assert!(events_of(&poller, SOON).is_empty());
            poller.reregister(&stream, Token(2), Interest::READABLE, trigger).unwrap();
            assert_eq!(events_of(&poller, SECONDS), [(2, Readiness::READ)]);
        }
    }
}

#[test]
fn space_after_a_write_that_found_none_is_an_edge() {
    let (mut peer, mut stream, _stacks) = connection();
    let poller = Poller::new();
    poller.register(&stream, Token(1), Interest::WRITABLE, Trigger::Edge).unwrap();
    assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::WRITE)]);
    let (mut written, mut read, bytes) = (0, 0, [7; 16 * 1024]);
    let mut buf = vec![0; 256 * 1024];
    for _ in 0..20 {
        loop {
            match stream.write(&bytes) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        while read < written {
            read += peer.read(&mut buf).unwrap();
        }
        assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::WRITE)], "after {written} bytes");
    }
}

#[test]
fn the_end_of_the_stream_and_a_reset_are_reported() {
    let (peer, stream, _stacks) = connection();
    let poller = Poller::new();
    poller.register(&stream, Token(1), Interest::READABLE, Trigger::Edge).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::READ | Readiness::RDHUP)]);
    peer.abort();
    let [(1, ready)] = events_of(&poller, SECONDS)[..] else { panic!("no event") };
    assert!(ready.contains(Readiness::HUP | Readiness::ERROR), "{ready:?}");
}

#[test]
fn every_connection_and_every_datagram_is_an_edge() {
    let (client, server) = stacks();
    let poller = Poller::new();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    poller.register(&listener, Token(1), Interest::READABLE, Trigger::Edge).unwrap();
    let _first = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::READ)]);
    let _second = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::READ)], "behind the first one");
    listener.close();
    assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::READ | Readiness::HUP)]);

    let socket = UdpSocket::bind(&server, "10.0.0.2:7").unwrap();
    poller.register(&socket, Token(2), Interest::READABLE, Trigger::Edge).unwrap();
    let sender = UdpSocket::bind(&client, "10.0.0.1:0").unwrap();
    for _ in 0..3 {
        sender.send_to(b"x", "10.0.0.2:7").unwrap();
        assert_eq!(events_of(&poller, SECONDS), [(2, Readiness::READ)]);
    }
}

#[test]
fn registrations_end_with_the_socket_or_the_poller() {
    let (mut peer, stream, _stacks) = connection();
    let (poller, other) = (Poller::new(), Poller::new());
    let both = Interest::READABLE | Interest::WRITABLE;
    poller.register(&stream, Token(1), both, Trigger::Level).unwrap();
    other.register(&stream, Token(2), Interest::READABLE, Trigger::Edge).unwrap();
    let twice = poller.register(&stream, Token(1), both, Trigger::Edge).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
    assert_eq!(events_of(&poller, SECONDS), [(1, Readiness::WRITE)]);
    poller.deregister(&stream).unwrap();
    assert_eq!(poller.deregister(&stream).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(events_of(&poller, SOON).is_empty(), "the entry was on the list");
    peer.write_all(b"data").unwrap();
    assert_eq!(events_of(&other, SECONDS), [(2, Readiness::READ)]);
    poller.register(&stream, Token(3), both, Trigger::Level).unwrap();
    drop(stream);
    assert!(events_of(&poller, SOON).is_empty() && events_of(&other, SOON).is_empty());
    drop(other);
    let _ = peer.write(b"more");
}

#[test]
fn a_waker_and_the_descriptor_wake_other_loops() {
    let (mut peer, stream, _stacks) = connection();
    let poller = Poller::new();
    poller.register(&stream, Token(1), Interest::READABLE, Trigger::Edge).unwrap();
    let fd = poller.event_fd().unwrap();
    let readable = |wait| {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let limit = Timespec { tv_sec: if wait { 10 } else { 0 }, tv_nsec: 0 };
        poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    assert!(!readable(false));
    let waker = poller.waker(Token(9));
    waker.wake();
    std::task::Waker::from(Arc::new(waker)).wake();
    assert!(readable(false));
    assert_eq!(events_of(&poller, Some(Duration::ZERO)), [(9, Readiness::READ)]);
    assert!(!readable(false));
    peer.write_all(b"data").unwrap();
    assert!(readable(true));
    assert_eq!(events_of(&poller, Some(Duration::ZERO)), [(1, Readiness::READ)]);
    assert!(!readable(false), "an edge was reported");
    poller.reregister(&stream, Token(1), Interest::READABLE, Trigger::Level).unwrap();
    assert_eq!(events_of(&poller, SECONDS).len(), 1);
    assert!(readable(false), "the level holds");
    assert_eq!(read_all(&stream), 4);
    assert!(events_of(&poller, Some(Duration::ZERO)).is_empty());
    assert!(!readable(false));
}

/// A request and an answer, 200 times, edge-triggered: one wake for each at most, and no
/// examination without an event. An idle socket makes none.
#[test]
fn there_is_no_wake_without_news() {
    const ROUNDS: usize = 200;
    let (mut peer, mut stream, stacks) = connection();
    let poller = Poller::new();
    poller.register(&stream, Token(1), Interest::READABLE, Trigger::Edge).unwrap();
    let client = std::thread::spawn(move || {
        let mut buf = [0; 1];
        for _ in 0..ROUNDS {
            peer.write_all(b"?").unwrap();
            peer.read_exact(&mut buf).unwrap();
        }
        peer
    });
    let mut reported = 0;
    let mut answered = 0;
    while answered < ROUNDS {
        reported += events_of(&poller, SECONDS).len();
        let requests = read_all(&stream);
        answered += requests;
        (0..requests).for_each(|_| stream.write_all(b"!").unwrap());
    }
    let _peer = client.join().unwrap();
    assert!(events_of(&poller, Some(Duration::from_millis(100))).is_empty());
    let counts = poller.counts();
    assert!(reported <= ROUNDS && counts.wakes <= ROUNDS, "{reported} events, {counts:?}");
    let calls = stacks.1.counters().get("SocketWatchCalls").unwrap();
    assert!(calls <= 2 * ROUNDS as u64, "{calls} calls");
}
