//! Simulated applications: what threads would do, as state that is stepped.

use std::{
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use stack::{
    Errno, Readiness,
    socket::{Listener, Reader, ShutdownHow, TcpSocket},
};
use tcp::State;

use crate::World;

/// Sends a known stream, then closes its half; reads until the end of the peer's.
#[derive(Debug)]
pub struct Sender {
    host: usize,
    socket: Arc<TcpSocket>,
    pattern: Pattern,
    sent: u64,
    length: u64,
    /// Largest single write, drawn for each write below it.
    write_max: u64,
    shut: bool,
}

/// Reads a stream and checks every byte, as a thread that waits in `recv`.
#[derive(Debug)]
pub struct Receiver {
    host: usize,
    socket: Arc<TcpSocket>,
    reader: Reader,
    pattern: Pattern,
    received: u64,
    ended: bool,
    /// Largest single read.
    read_max: usize,
}

/// A stream of bytes that can be computed at any offset.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(pub u64);

impl Pattern {
    /// The byte at `offset`.
    #[must_use]
    pub fn byte(self, offset: u64) -> u8 {
        self.word(offset / 8)[(offset % 8) as usize]
    }

    /// The eight bytes from `8 * index` on.
    fn word(self, index: u64) -> [u8; 8] {
        let word = index.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(self.0);
        (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
    }

    /// Writes the bytes from `offset` on.
    pub(crate) fn fill(self, offset: u64, bytes: &mut [u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let word = self.word(at / 8);
            let part = &word[(at % 8) as usize..];
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len() as u64;
            rest = later;
        }
    }

    /// The offset of the first of `bytes` that is not the one from `offset` on.
    pub(crate) fn first_other(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let word = self.word(at / 8);
            let part = &word[(at % 8) as usize..];
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            if *now != part[..now.len()] {
                let same = now.iter().zip(part).take_while(|(one, other)| one == other).count();
                return Some(at + same as u64);
            }
            at += now.len() as u64;
            rest = later;
        }
        None
    }
}

impl Sender {
    /// Sends `length` bytes of `pattern` through `socket` of host number `host`.
    #[must_use]
    pub fn new(host: usize, socket: Arc<TcpSocket>, pattern: Pattern, length: u64) -> Self {
        Self { host, socket, pattern, sent: 0, length, write_max: 100_000, shut: false }
    }

    /// Writes what the socket takes. True when everything has been handed over.
    ///
    /// # Panics
    /// When the connection fails.
    pub fn step(&mut self, world: &mut World) -> bool {
        let host = Arc::clone(&world.hosts[self.host]);
        while self.sent < self.length {
            if !self.socket.readiness().contains(Readiness::WRITE) {
                return false;
            }
            let bound = u32::try_from(self.write_max).expect("a write of less than 4 GB");
            let want = u64::from(world.cx.rng.below(bound) + 1).min(self.length - self.sent);
            let mut bytes = vec![0; usize::try_from(want).expect("a small write")];
            self.pattern.fill(self.sent, &mut bytes);
            match self.socket.send(&host, &mut world.cx, &[IoSlice::new(&bytes)]) {
                Ok(taken) => self.sent += taken as u64,
                Err(Errno::EAGAIN) => return false,
                Err(error) => panic!("send: {error} after {} bytes", self.sent),
            }
        }
        if !self.shut {
            // Everything may have left with the SYN, which nobody has answered yet: a shutdown now would end the attempt.
            let state = self.socket.with_tcb(&host, &mut world.cx, |tcb, _| tcb.state());
            if state == State::SynSent {
                return false;
            }
            match self.socket.shutdown(&host, &mut world.cx, ShutdownHow::Write) {
                Ok(()) => self.shut = true,
                Err(Errno::ENOTCONN) => return false,
                Err(error) => panic!("shutdown: {error}"),
            }
        }
        true
    }
}

impl Receiver {
    /// Reads `pattern` from `socket` of host number `host`, at most `read_max` bytes at a time.
    #[must_use]
    pub fn new(host: usize, socket: Arc<TcpSocket>, pattern: Pattern, read_max: usize) -> Self {
        let reader = Reader::new();
        Self { host, socket, reader, pattern, received: 0, ended: false, read_max }
    }

    /// Reads what has arrived. True at the end of the stream.
    ///
    /// # Panics
    /// When a byte is wrong or the connection fails.
    pub fn step(&mut self, world: &mut World) -> bool {
        let host = Arc::clone(&world.hosts[self.host]);
        let mut buf = vec![0; self.read_max];
        while !self.ended {
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            match self.socket.recv_or_wait(&host, &mut world.cx, &mut self.reader, bufs) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    for (at, &byte) in (self.received..).zip(&buf[..read]) {
                        assert_eq!(byte, self.pattern.byte(at), "byte {at} of the stream");
                    }
                    self.received += read as u64;
                }
                Err(Errno::EAGAIN) => return false,
                Err(error) => panic!("recv: {error} after {} bytes", self.received),
            }
        }
        true
    }

    /// Bytes received so far.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }
}

/// A connection between the two hosts of `World::pair`: the client's end on host 0 and the accepted end on host 1. A
/// bad wire may lose every ARP request or SYN of an attempt; then another is made.
///
/// # Panics
/// When ten attempts fail.
pub fn connect(world: &mut World, listener: &Listener) -> (Arc<TcpSocket>, Arc<TcpSocket>) {
    let host = Arc::clone(&world.hosts[0]);
    let to = SocketAddr::new([10, 0, 0, 2].into(), listener.local().port());
    for _ in 0..10 {
        let client =
            TcpSocket::connect(&host, &mut world.cx, None, to).expect("a route and a port");
        let mut accepted = None;
        let done = world.run(Duration::from_secs(300), |_| {
            if accepted.is_none() {
                accepted = listener.accept().ok();
            }
            let ready = client.readiness();
            ready.contains(Readiness::ERROR)
                || (accepted.is_some() && ready.contains(Readiness::WRITE))
        });
        match (done, accepted) {
            (Ok(()), Some(accepted)) => return (client, accepted),
            _ => client.close(&host, &mut world.cx),
        }
    }
    panic!("no connection: {:?}", host.counters())
}

/// A listener on host 1 of `World::pair`.
///
/// # Panics
/// When the port is taken.
pub fn listen(world: &mut World, port: u16) -> Arc<Listener> {
    let host = Arc::clone(&world.hosts[1]);
    let local = SocketAddr::new([10, 0, 0, 2].into(), port);
    Listener::listen(&host, &mut world.cx, local, 128).expect("a free port")
}
