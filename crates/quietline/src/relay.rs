//! Relaying: the bytes of one connection go out on another one, in both directions.
//!
//! [`relay`] is the blocking form, with one thread for each direction; `tokio::relay` (feature
//! `tokio`) is the asynchronous one. Both have the same semantics:
//!
//! - **Bytes** pass unchanged and in order. A direction reads only after it has written what it
//!   read before, so a receiver that does not read closes the window of the sender (back-pressure).
//! - **A half-close** passes as a half-close: after the last byte the other connection gets FIN,
//!   and the opposite direction goes on.
//! - **A reset**, or any other error of one connection, resets the other one (RST). Bytes on their
//!   way are lost then, as they are in a reset connection.
//! - **Limits**: connections without progress for [`RelayLimits::idle`] are reset, and for
//!   [`RelayLimits::half_closed`] once one direction has ended.
//!
//! Below: any socket ([`RelayStream`]). Not here: accepting and dialing.

use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use pkt::Instant;

use crate::clock;

#[cfg(test)]
mod tests;

/// Limits of a relay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RelayLimits {
    /// Time without a byte in either direction after which both connections are reset; `None` is no
    /// limit. Default: 2 hours and 4 minutes (RFC 5382, REQ-5).
    pub idle: Option<Duration>,
    /// The same once one direction has ended. Default: 30 minutes, well above the 4 minutes of
    /// RFC 5382, REQ-5.
    pub half_closed: Option<Duration>,
    /// Bytes of the buffer of each direction. Default: 64 KiB, the size of a superframe.
    pub buffer_bytes: usize,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            idle: Some(Duration::from_secs(124 * 60)),
            half_closed: Some(Duration::from_secs(30 * 60)),
            buffer_bytes: 64 * 1024,
        }
    }
}

impl RelayLimits {
    /// Sets [`idle`](Self::idle).
    #[must_use]
    pub const fn with_idle(mut self, limit: Option<Duration>) -> Self {
        self.idle = limit;
        self
    }

    /// Sets [`half_closed`](Self::half_closed).
    #[must_use]
    pub const fn with_half_closed(mut self, limit: Option<Duration>) -> Self {
        self.half_closed = limit;
        self
    }

    /// Sets [`buffer_bytes`](Self::buffer_bytes); 0 means 1.
    #[must_use]
    pub const fn with_buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Returns a buffer of one direction.
    pub(crate) fn buffer(&self) -> Box<[u8]> {
        vec![0; self.buffer_bytes.max(1)].into_boxed_slice()
    }

    /// Returns the limit while one direction has `ended` or none has.
    pub(crate) const fn limit(&self, ended: bool) -> Option<Duration> {
        if ended { self.half_closed } else { self.idle }
    }
}

/// Bytes that a relay has passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relayed {
    /// Bytes of the first connection that the second one has taken.
    pub a_to_b: u64,
    /// Bytes of the second connection that the first one has taken.
    pub b_to_a: u64,
}

/// A connection that [`relay`] may use from two threads. Implemented for
/// [`TcpStream`](crate::TcpStream) and the streams of `std`.
pub trait RelayStream: Sync {
    /// Reads, and waits for the first byte; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` after the time of [`set_timeout`](Self::set_timeout); any other error ends the
    /// relay.
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes, and waits until at least one byte is taken.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn send(&self, buf: &[u8]) -> io::Result<usize>;

    /// Ends the sending direction: FIN after the bytes that were written.
    ///
    /// # Errors
    /// An error ends the relay.
    fn finish(&self) -> io::Result<()>;

    /// Ends the connection at once, with RST where the protocol has one. Calls of the other thread
    /// return.
    fn abort(&self);

    /// Sets the time that `receive` and `send` wait.
    ///
    /// # Errors
    /// An error ends the relay before it begins.
    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
}

macro_rules! relay_streams {
    ($($stream:ty: $abort:path;)*) => {$(
        impl RelayStream for $stream {
            fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
                let mut stream = self;
                stream.read(buf)
            }

            fn send(&self, buf: &[u8]) -> io::Result<usize> {
                let mut stream = self;
                stream.write(buf)
            }

            fn finish(&self) -> io::Result<()> {
                match self.shutdown(Shutdown::Write) {
                    // The peer has reset the connection: `receive` reports that.
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
                    result => result,
                }
            }

            fn abort(&self) {
                $abort(self);
            }

            fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(limit)?;
                self.set_write_timeout(limit)
            }
        }
    )*};
}

relay_streams! {
    crate::TcpStream: crate::TcpStream::abort;
    std::net::TcpStream: abort_kernel;
    std::os::unix::net::UnixStream: close;
}

/// Ends a connection that knows no reset.
fn close(socket: &std::os::unix::net::UnixStream) {
    let _ = socket.shutdown(Shutdown::Both);
}

/// Resets a TCP connection of the kernel.
pub(crate) fn abort_kernel(socket: &impl std::os::fd::AsFd) {
    // Linux sends RST when an open connection is dissolved (`tcp_disconnect`).
    if rustix::net::connect_unspec(socket.as_fd()).is_err() {
        // Some versions refuse while another thread waits in a call (EBUSY). That thread returns,
        // no FIN is sent, and a second abort succeeds.
        let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Read);
    }
}

/// Relays both directions until both have ended. The calling thread relays from `a` to `b`, a
/// second thread from `b` to `a`.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// # let stack = quietline::Stack::builder().build()?;
/// use quietline::{RelayLimits, TcpListener, relay};
///
/// // Connections to port 80 of the stack go to a web server that the kernel reaches.
/// for inside in TcpListener::bind(&stack, "10.0.0.2:80")?.incoming() {
///     let (inside, outside) = (inside?, std::net::TcpStream::connect("127.0.0.1:8080")?);
///     std::thread::spawn(move || relay(&inside, &outside, &RelayLimits::default()));
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The error of the connection that has failed; `TimedOut` after the time without progress. Both
/// connections are reset then.
pub fn relay(
    a: &impl RelayStream,
    b: &impl RelayStream,
    limits: &RelayLimits,
) -> io::Result<Relayed> {
    let shared = Shared {
        limits,
        progress_ns: AtomicU64::new(clock::now().as_nanos()),
        ended: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        error: Mutex::new(None),
        relayed: [AtomicU64::new(0), AtomicU64::new(0)],
    };
    let tick = limits.idle.into_iter().chain(limits.half_closed).min().map(tick);
    a.set_timeout(tick)?;
    b.set_timeout(tick)?;
    thread::scope(|scope| {
        let backward = thread::Builder::new().name(String::from("relay"));
        let backward = backward.spawn_scoped(scope, || shared.run(b, a, 1));
        match backward {
            Ok(_) => shared.run(a, b, 0),
            Err(error) => shared.fail(error, a, b),
        }
    });
    match shared.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => {
            // No thread waits any more ([`abort_kernel`]).
            a.abort();
            b.abort();
            Err(error)
        }
        None => {
            let [a_to_b, b_to_a] = shared.relayed.map(AtomicU64::into_inner);
            Ok(Relayed { a_to_b, b_to_a })
        }
    }
}

/// Time between two checks of a limit: a connection is reset at most a quarter too late.
fn tick(limit: Duration) -> Duration {
    (limit / 4).clamp(Duration::from_millis(1), Duration::from_secs(60))
}

/// State of both directions.
struct Shared<'a> {
    limits: &'a RelayLimits,
    /// Time of the last byte. Relaxed, as the following: each value stands for itself.
    progress_ns: AtomicU64,
    /// Number of directions that have ended.
    ended: AtomicUsize,
    failed: AtomicBool,
    /// First error.
    error: Mutex<Option<io::Error>>,
    relayed: [AtomicU64; 2],
}

impl Shared<'_> {
    /// Relays one direction, and resets both connections if it fails.
    fn run(&self, from: &impl RelayStream, to: &impl RelayStream, direction: usize) {
        if let Err(error) = self.copy(from, to, direction) {
            self.fail(error, from, to);
        }
    }

    fn fail(&self, error: io::Error, from: &impl RelayStream, to: &impl RelayStream) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
        from.abort();
        to.abort();
    }

    fn copy(
        &self,
        from: &impl RelayStream,
        to: &impl RelayStream,
        direction: usize,
    ) -> io::Result<()> {
        let mut buffer = self.limits.buffer();
        loop {
            let count = self.patiently(|| from.receive(&mut buffer))?;
            if count == 0 {
                break;
            }
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let taken = self.patiently(|| to.send(rest))?;
                if taken == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                rest = &rest[taken..];
                self.relayed[direction].fetch_add(taken as u64, Ordering::Relaxed);
            }
        }
        to.finish()?;
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.progress_ns.store(clock::now().as_nanos(), Ordering::Relaxed);
        Ok(())
    }

    /// Repeats a call that has timed out, until the relay has made no progress for too long.
    fn patiently(&self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match call() {
                Ok(count) => {
                    self.progress_ns.store(clock::now().as_nanos(), Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => self.check_limit()?,
                    // TimedOut, too: TCP has given up the connection (ETIMEDOUT).
                    _ => return Err(error),
                },
            }
        }
    }

    fn check_limit(&self) -> io::Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let last = Instant::from_nanos(self.progress_ns.load(Ordering::Relaxed));
        let idle = clock::now().checked_duration_since(last).unwrap_or_default();
        let limit = self.limits.limit(self.ended.load(Ordering::Relaxed) > 0);
        match limit {
            Some(limit) if idle >= limit => Err(too_long(limit)),
            _ => Ok(()),
        }
    }
}

/// Error of a relay without progress.
pub(crate) fn too_long(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no progress for {} s", limit.as_secs_f64()))
}
