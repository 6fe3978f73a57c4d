//! Simulated applications, each a state machine that the test steps in place of a thread.

use std::{
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use stack::{
    Errno, Readiness,
    socket::{Connection, Listener, Reader, ShutdownHow},
};
use tcp::State;

use crate::World;

/// Sends a known stream, then shuts down its sending direction, and reads until the peer's FIN.
#[derive(Debug)]
pub struct Sender {
    host: usize,
    socket: Arc<Connection>,
    pattern: Pattern,
    sent: u64,
    length: u64,
    /// Upper bound of a write; the size of each write is drawn below it.
    write_max: u64,
    shut: bool,
}

/// Reads a stream and checks every byte, like a thread that sleeps in `recv`.
#[derive(Debug)]
pub struct Receiver {
    host: usize,
    socket: Arc<Connection>,
    reader: Reader,
    pattern: Pattern,
    received: u64,
    ended: bool,
    /// Buffer of every read. Steps outnumber reads, so a step must not make one.
    buffer: Vec<u8>,
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

    /// Writes the bytes of the stream from `offset` on. Whole words are written one by one, because
    /// a copy of constant length needs no call.
    pub(crate) fn fill(self, offset: u64, bytes: &mut [u8]) {
        let (head, rest) = bytes.split_at_mut(before_word(offset).min(bytes.len()));
        let begin = offset + head.len() as u64;
        let (words, tail) = rest.as_chunks_mut::<8>();
        for (index, word) in (begin / 8..).zip(&mut *words) {
            *word = self.word(index);
        }
        let end = begin + 8 * words.len() as u64;
        for (at, byte) in (offset..).zip(head).chain((end..).zip(tail)) {
            *byte = self.byte(at);
        }
    }

    /// Returns the stream offset of the first of `bytes` that differs from the pattern, where
    /// `bytes` starts at `offset`.
    pub(crate) fn first_other(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let head = before_word(offset).min(bytes.len());
        let (words, _) = bytes[head..].as_chunks::<8>();
        let first = (offset + head as u64) / 8;
        let same = (first..).zip(words).take_while(|&(index, word)| *word == self.word(index));
        // Equal words need no second comparison, unless bytes before them differ.
        let same = head + 8 * same.count();
        let other = |range: Range<usize>| {
            let from = offset + range.start as u64;
            (from..).zip(&bytes[range]).find(|&(at, &byte)| byte != self.byte(at))
        };
        let end = bytes.len().min(same + 8);
        other(0..head).or_else(|| other(same..end)).map(|(at, _)| at)
    }
}

/// Bytes from `offset` to the next whole word.
const fn before_word(offset: u64) -> usize {
    (offset.wrapping_neg() % 8) as usize
}

impl Sender {
    /// Sends `length` bytes of `pattern` through `socket` of host number `host`.
    #[must_use]
    pub fn new(host: usize, socket: Arc<Connection>, pattern: Pattern, length: u64) -> Self {
        Self { host, socket, pattern, sent: 0, length, write_max: 100_000, shut: false }
    }

    /// Writes as much as the socket accepts. Returns true when the whole stream is written and shut
    /// down.
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
            // The whole stream may have left with a SYN that is still unanswered; a shutdown in
            // SYN-SENT would abort the attempt.
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
    pub fn new(host: usize, socket: Arc<Connection>, pattern: Pattern, read_max: usize) -> Self {
        let reader = Reader::new();
        let buffer = vec![0; read_max];
        Self { host, socket, reader, pattern, received: 0, ended: false, buffer }
    }

    /// Reads the available data. Returns true at the end of the stream.
    ///
    /// # Panics
    /// When a byte is wrong or the connection fails.
    pub fn step(&mut self, world: &mut World) -> bool {
        let host = Arc::clone(&world.hosts[self.host]);
        while !self.ended {
            let bufs = &mut [IoSliceMut::new(&mut self.buffer)];
            match self.socket.recv_or_wait(&host, &mut world.cx, &mut self.reader, bufs) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    let wrong = self.pattern.first_other(self.received, &self.buffer[..read]);
                    assert_eq!(wrong, None, "offset of the first wrong byte of the stream");
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

/// Opens a connection between the two hosts of `World::pair`: the client's end on host 0, the
/// accepted end on host 1. A lossy wire may drop every ARP request or SYN of an attempt, so up to
/// ten attempts are made.
///
/// # Panics
/// When ten attempts fail.
pub fn connect(world: &mut World, listener: &Listener) -> (Arc<Connection>, Arc<Connection>) {
    let host = Arc::clone(&world.hosts[0]);
    let to = SocketAddr::new(world.version.address(1), listener.local().port());
    for _ in 0..10 {
        let client =
            Connection::connect(&host, &mut world.cx, None, to).expect("a route and a port");
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

/// Listens on host 1 of `World::pair`.
///
/// # Panics
/// When the port is taken.
pub fn listen(world: &mut World, port: u16) -> Arc<Listener> {
    let host = Arc::clone(&world.hosts[1]);
    let local = SocketAddr::new(world.version.address(1), port);
    Listener::listen(&host, &mut world.cx, local, 128).expect("a free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_written_by_words_equals_its_bytes() {
        let pattern = Pattern(0x0e0f);
        for offset in 0..20 {
            for len in 0..40 {
                let mut bytes = vec![0; len];
                pattern.fill(offset, &mut bytes);
                let expected: Vec<u8> = (offset..).take(len).map(|at| pattern.byte(at)).collect();
                assert_eq!(bytes, expected, "{len} bytes from {offset}");
                assert_eq!(pattern.first_other(offset, &bytes), None);
                for at in 0..len {
                    // A second difference behind the first must not change the result.
                    let mut other = bytes.clone();
                    other[at] ^= 1;
                    other[len - 1] ^= 2;
                    assert_eq!(pattern.first_other(offset, &other), Some(offset + at as u64));
                }
            }
        }
    }
}
