//! A client in a stack, a relay, and a server of the kernel: bytes, half-closes, resets and limits
//! pass in both directions.

use std::net::{TcpListener as KernelListener, TcpStream as KernelStream};

use super::*;
use crate::{Stack, TcpListener, TcpStream, Wire, WireConfig};

/// The ends of a relayed flow, and the thread of the relay.
struct Flow {
    client: TcpStream,
    server: KernelStream,
    relay: thread::JoinHandle<io::Result<Relayed>>,
    _stacks: (Stack, Stack),
}

fn flow(limits: RelayLimits) -> Flow {
    let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
    let near = Stack::builder().device(left).address("10.0.0.1/24".parse().unwrap());
    let far = Stack::builder().device(right).address("10.0.0.2/24".parse().unwrap());
    let (near, far) = (near.build().unwrap(), far.build().unwrap());
    let listener = TcpListener::bind(&far, "10.0.0.2:80").unwrap();
    let client = TcpStream::connect(&near, "10.0.0.2:80").unwrap();
    let (inside, _) = listener.accept().unwrap();
    let listener = KernelListener::bind("127.0.0.1:0").unwrap();
    let outside = KernelStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let relay = thread::spawn(move || relay(&inside, &outside, &limits));
    Flow { client, server, relay, _stacks: (near, far) }
}

fn rest(mut from: impl io::Read) -> io::Result<Vec<u8>> {
    let mut rest = Vec::new();
    from.read_to_end(&mut rest).map(|_| rest)
}

/// Bytes whose period is a prime number, so that no cut is repeated at the same place.
fn pattern() -> Vec<u8> {
    let mut random = random(1);
    (0..1_000_003).map(|_| u8::try_from(random(256)).unwrap()).collect()
}

/// Returns a generator of numbers (xorshift).
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    }
}

fn write_pattern(mut to: impl io::Write, pattern: &[u8], total: usize, seed: u64) {
    let (mut random, mut sent) = (random(seed), 0);
    while sent < total {
        let rest = &pattern[sent % pattern.len()..];
        let longest = if random(4) == 0 { 100 } else { 100_000 };
        let len = (1 + random(longest)).min(rest.len()).min(total - sent);
        to.write_all(&rest[..len]).unwrap();
        sent += len;
    }
}

fn check_pattern(mut from: impl io::Read, pattern: &[u8], total: usize, seed: u64) {
    let (mut random, mut read, mut buf) = (random(seed), 0, vec![0; 100_000]);
    loop {
        let rest = &pattern[read % pattern.len()..];
        let len = (1 + random(buf.len())).min(rest.len());
        let count = from.read(&mut buf[..len]).unwrap();
        if count == 0 {
            break;
        }
        assert!(buf[..count] == rest[..count], "wrong bytes behind {read}");
        read += count;
    }
    assert_eq!(read, total);
}

#[test]
fn bytes_cut_at_random_pass_unchanged_in_both_directions() {
    const BYTES: usize = 64 << 20;
    let limits = RelayLimits::default().with_buffer_bytes(10_007);
    let Flow { client, server, relay, _stacks } = flow(limits);
    let pattern = &pattern();
    thread::scope(|scope| {
        scope.spawn(|| {
            write_pattern(&client, pattern, BYTES, 3);
            client.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            write_pattern(&server, pattern, BYTES / 2, 4);
            server.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| check_pattern(&client, pattern, BYTES / 2, 5));
        check_pattern(&server, pattern, BYTES, 6);
    });
    let relayed = relay.join().unwrap().unwrap();
    assert_eq!(relayed, Relayed { a_to_b: BYTES as u64, b_to_a: BYTES as u64 / 2 });
}

#[test]
fn a_half_close_leaves_the_other_direction_open() {
    for client_first in [true, false] {
        let Flow { client, server, relay, _stacks } = flow(RelayLimits::default());
        if client_first {
            (&client).write_all(b"request").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(rest(&server).unwrap(), b"request");
            (&server).write_all(b"answer").unwrap();
            drop(server);
            assert_eq!(rest(&client).unwrap(), b"answer");
        } else {
            (&server).write_all(b"hello").unwrap();
            server.shutdown(Shutdown::Write).unwrap();
            assert_eq!(rest(&client).unwrap(), b"hello");
            (&client).write_all(b"bye").unwrap();
            drop(client);
            assert_eq!(rest(&server).unwrap(), b"bye");
        }
        let Relayed { a_to_b, b_to_a } = relay.join().unwrap().unwrap();
        let expected = if client_first { (7, 6) } else { (3, 5) };
        assert_eq!((a_to_b, b_to_a), expected);
    }
}

#[test]
fn a_reset_passes_as_a_reset() {
    for by_client in [true, false] {
        let Flow { client, server, relay, _stacks } = flow(RelayLimits::default());
        (&client).write_all(b"x").unwrap();
        (&server).read_exact(&mut [0]).unwrap();
        let seen = if by_client {
            client.abort();
            rest(&server)
        } else {
            abort_kernel(&server);
            rest(&client)
        };
        assert_eq!(seen.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(relay.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_relay_without_progress_is_reset() {
    let limit = Some(Duration::from_millis(200));
    for half_closed in [false, true] {
        let limits = match half_closed {
            false => RelayLimits::default().with_idle(limit),
            true => RelayLimits::default().with_half_closed(limit),
        };
        let Flow { client, server, relay, _stacks } = flow(limits);
        if half_closed {
            client.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(relay.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(rest(&client).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        if half_closed {
            // Linux reports EPIPE for a reset after the end of the stream.
            let seen = (&server).write(b"x").unwrap_err();
            assert_eq!(seen.kind(), io::ErrorKind::BrokenPipe);
        } else {
            assert_eq!(rest(&server).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    }
}

/// The relay holds no more than its buffer and those of the sockets: a sender stops.
#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let Flow { client, server, relay, _stacks } = flow(RelayLimits::default());
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let chunk = vec![1; 1 << 20];
    let mut sent = 0;
    let stopped = loop {
        match (&client).write(&chunk) {
            Ok(count) => sent += count,
            Err(error) => break error.kind(),
        }
        assert!(sent < 200 << 20, "no back-pressure after {sent} bytes");
    };
    assert_eq!(stopped, io::ErrorKind::WouldBlock);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&server).unwrap().len(), sent);
    drop(server);
    relay.join().unwrap().unwrap();
}
