//! One connection of the stress test: both ends derive their actions from one number.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    thread,
    time::Duration,
};

use quietline::{Stack, TcpStream};

/// Time limit beyond the planned duration, far more than any retransmission of a test needs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit of aborted connections: a reset can be lost, and its receiver would wait in vain.
const ABORTED_TIMEOUT: Duration = Duration::from_secs(1);

/// Deterministic random numbers: SplitMix64.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a small number, for lengths and indices.
    pub(crate) fn below_usize(&mut self, bound: u64) -> usize {
        usize::try_from(self.below(bound)).expect("a small number")
    }
}

/// Ways to end a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client half-closes, the server answers to the end.
    Orderly,
    /// As `Orderly`, and the client's last drop waits for the acknowledgment.
    OrderlyWithLinger,
    /// Both directions at the same time, from two threads of the client.
    Duplex,
    /// The server sends and closes; the client only receives.
    ServerFirst,
    /// The client resets in the middle of its data.
    ClientAborts,
    /// The server closes with unread data.
    ServerAborts,
    /// The client closes with unread data.
    ClientLeaves,
    /// The client shuts both directions while the server still sends.
    ShutdownBoth,
    /// The client closes without sending.
    Silent,
}

/// Parameters of a conversation, derived from a number that the client sends first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    seed: u64,
    pub(crate) end: End,
    up: usize,
    down: usize,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let end = match random.below(16) {
            0..=4 => End::Orderly,
            5 => End::OrderlyWithLinger,
            6..=7 => End::Duplex,
            8..=9 => End::ServerFirst,
            10 => End::ClientAborts,
            11 => End::ServerAborts,
            12 => End::ClientLeaves,
            13 => End::ShutdownBoth,
            _ => End::Silent,
        };
        let mut length = || {
            let most = [1, 100, 2_000, 60_000, 300_000][random.below_usize(5)];
            random.below_usize(most) + 1
        };
        Self { seed, end, up: length(), down: length() }
    }

    pub(crate) fn is_orderly(&self) -> bool {
        matches!(self.end, End::Orderly | End::OrderlyWithLinger | End::Duplex | End::ServerFirst)
    }
}

fn byte(seed: u64, at: usize) -> u8 {
    (seed.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Writes `length` bytes of the stream of `seed` in pieces of random size.
fn write_stream(mut stream: &TcpStream, seed: u64, length: usize) -> io::Result<()> {
    let bytes: Vec<u8> = (0..length).map(|at| byte(seed, at)).collect();
    let mut random = Random(seed ^ 1);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let piece = rest.len().min(1 + random.below_usize(70_000));
        let written = stream.write(&rest[..piece])?;
        assert!(written > 0 && written <= piece);
        rest = &rest[written..];
    }
    Ok(())
}

/// Reads and checks at most `length` bytes of the stream of `seed`; fewer at its end.
fn read_stream(mut stream: &TcpStream, seed: u64, length: usize) -> io::Result<usize> {
    let mut random = Random(seed ^ 2);
    let mut buf = vec![0; 70_000];
    let mut got = 0;
    while got < length {
        let piece = (length - got).min(1 + random.below_usize(70_000));
        let read = stream.read(&mut buf[..piece])?;
        if read == 0 {
            break;
        }
        for (at, &found) in (got..).zip(&buf[..read]) {
            assert_eq!(found, byte(seed, at), "byte {at} of stream {seed:#x}");
        }
        got += read;
    }
    Ok(got)
}

/// Checks that the stream ends here.
fn expect_end(mut stream: &TcpStream) -> io::Result<()> {
    assert_eq!(stream.read(&mut [0; 16])?, 0, "more data than was sent");
    Ok(())
}

fn down_seed(plan: &Plan) -> u64 {
    !plan.seed
}

pub(crate) fn client(stack: &Stack, to: SocketAddr, plan: &Plan) -> io::Result<()> {
    let stream = TcpStream::connect(stack, to)?;
    if !plan.is_orderly() {
        stream.set_read_timeout(Some(ABORTED_TIMEOUT))?;
        stream.set_write_timeout(Some(ABORTED_TIMEOUT))?;
    }
    if plan.end == End::Silent {
        return Ok(());
    }
    (&stream).write_all(&plan.seed.to_be_bytes())?;
    let Plan { seed, end, up, down } = *plan;
    let answer = down_seed(plan);
    match end {
        End::Orderly | End::OrderlyWithLinger => {
            write_stream(&stream, seed, up)?;
            stream.shutdown(Shutdown::Write)?;
            assert_eq!(read_stream(&stream, answer, down)?, down, "{plan:?}");
            expect_end(&stream)?;
            if end == End::OrderlyWithLinger {
                stream.set_linger(Some(Duration::from_secs(5)))?;
            }
        }
        End::Duplex => {
            let writer = stream.try_clone()?;
            let writing = thread::spawn(move || {
                write_stream(&writer, seed, up)?;
                writer.shutdown(Shutdown::Write)
            });
            assert_eq!(read_stream(&stream, answer, down)?, down, "{plan:?}");
            expect_end(&stream)?;
            writing.join().expect("the writer does not panic")?;
        }
        End::ServerFirst => {
            assert_eq!(read_stream(&stream, answer, down)?, down, "{plan:?}");
            expect_end(&stream)?;
        }
        End::ClientAborts => {
            write_stream(&stream, seed, up / 2)?;
            stream.set_linger(Some(Duration::ZERO))?;
        }
        End::ServerAborts => {
            write_stream(&stream, seed, up)?;
            read_stream(&stream, answer, down)?;
        }
        End::ClientLeaves => {
            write_stream(&stream, seed, up)?;
            read_stream(&stream, answer, down / 2)?;
        }
        End::ShutdownBoth => {
            write_stream(&stream, seed, up)?;
            stream.shutdown(Shutdown::Both)?;
            read_stream(&stream, answer, down)?;
        }
        End::Silent => {}
    }
    Ok(())
}

/// Runs the server's side. Returns the plan, if it was received, and the result.
pub(crate) fn server(stream: &TcpStream) -> (Option<Plan>, io::Result<()>) {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a valid timeout");
    let mut seed = [0; 8];
    let mut reader = stream;
    if let Err(error) = reader.read_exact(&mut seed) {
        return (None, Err(error));
    }
    let plan = Plan::new(u64::from_be_bytes(seed));
    (Some(plan), answer(stream, &plan))
}

fn answer(stream: &TcpStream, plan: &Plan) -> io::Result<()> {
    if !plan.is_orderly() {
        stream.set_read_timeout(Some(ABORTED_TIMEOUT))?;
        stream.set_write_timeout(Some(ABORTED_TIMEOUT))?;
    }
    let Plan { seed, end, up, down } = *plan;
    match end {
        End::ServerFirst => write_stream(stream, down_seed(plan), down),
        End::ServerAborts => {
            read_stream(stream, seed, up / 2)?;
            Ok(())
        }
        End::Duplex => {
            let reader = stream.try_clone()?;
            let reading = thread::spawn(move || {
                let read = read_stream(&reader, seed, up)?;
                expect_end(&reader)?;
                Ok::<_, io::Error>(read)
            });
            write_stream(stream, down_seed(plan), down)?;
            stream.shutdown(Shutdown::Write)?;
            assert_eq!(reading.join().expect("the reader does not panic")?, up, "{plan:?}");
            Ok(())
        }
        _ => {
            let read = read_stream(stream, seed, up)?;
            if plan.is_orderly() {
                assert_eq!(read, up, "{plan:?}");
                expect_end(stream)?;
            }
            write_stream(stream, down_seed(plan), down)
        }
    }
}
