//! `relay` of the feature `tokio`. The head of [`crate::relay`] has the semantics.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ::tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};
use stack::Readiness;

use super::TcpStream;
use crate::relay::{RelayLimits, Relayed, abort_kernel, too_long};

#[cfg(test)]
mod tests;

/// A connection that [`relay`] may use. Implemented for [`TcpStream`] and `tokio::net::TcpStream`;
/// [`Plain`] makes one of any other stream.
pub trait RelayEnd: AsyncRead + AsyncWrite + Unpin {
    /// Ends the connection at once, with RST where the protocol has one.
    fn abort(&mut self);

    /// Returns the error of a connection that was reset, although received bytes may wait to be
    /// read, or registers the task. A connection that cannot tell reports the error when it is read
    /// or written.
    fn poll_reset(&mut self, _task: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Pending
    }
}

impl RelayEnd for TcpStream {
    fn abort(&mut self) {
        Self::abort(self);
    }

    fn poll_reset(&mut self, task: &mut Context<'_>) -> Poll<io::Error> {
        self.poll_error(task)
    }
}

impl RelayEnd for ::tokio::net::TcpStream {
    fn abort(&mut self) {
        abort_kernel(&*self);
    }
}

/// Any stream as an end of a [`relay`]: a TLS session, a pipe in memory. An abort only ends the
/// relay; the connection ends when the stream is dropped.
#[derive(Debug)]
pub struct Plain<T>(pub T);

impl<T: AsyncRead + AsyncWrite + Unpin> RelayEnd for Plain<T> {
    fn abort(&mut self) {}
}

impl<T: AsyncRead + Unpin> AsyncRead for Plain<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(task, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Plain<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(task, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(task)
    }
}

/// Relays both directions until both have ended. Needs a runtime with its time enabled.
///
/// A future that is dropped leaves both connections as they are; bytes on their way are lost, so
/// the caller should abort both.
///
/// # Errors
/// The error of the connection that has failed; `TimedOut` after the time without progress. Both
/// connections are aborted then.
pub async fn relay<A: RelayEnd, B: RelayEnd>(
    a: &mut A,
    b: &mut B,
    limits: &RelayLimits,
) -> io::Result<Relayed> {
    let mut flow = Flow {
        forward: Direction::new(limits),
        backward: Direction::new(limits),
        watch: Watch::new(limits),
    };
    let result = poll_fn(|task| flow.poll(task, a, b)).await;
    if result.is_err() {
        a.abort();
        b.abort();
    }
    result.map(|()| Relayed { a_to_b: flow.forward.total, b_to_a: flow.backward.total })
}

struct Flow<'a> {
    forward: Direction,
    backward: Direction,
    watch: Watch<'a>,
}

impl Flow<'_> {
    fn poll<A: RelayEnd, B: RelayEnd>(
        &mut self,
        task: &mut Context<'_>,
        a: &mut A,
        b: &mut B,
    ) -> Poll<io::Result<()>> {
        let Self { forward, backward, watch } = self;
        let before = (forward.moved, backward.moved);
        let forward_ends = forward.poll(task, a, b)?.is_ready();
        let backward_ends = backward.poll(task, b, a)?.is_ready();
        if forward_ends && backward_ends {
            return Poll::Ready(Ok(()));
        }
        for reset in [a.poll_reset(task), b.poll_reset(task)] {
            if let Poll::Ready(error) = reset {
                return Poll::Ready(Err(error));
            }
        }
        if (forward.moved, backward.moved) != before {
            watch.last = Instant::now();
        }
        watch.poll(task, forward_ends || backward_ends).map(Err)
    }
}

/// Bytes from one connection to the other.
struct Direction {
    buffer: Box<[u8]>,
    /// Bytes of `buffer` that were read and not written.
    start: usize,
    end: usize,
    state: State,
    /// Whether bytes were written since the last flush.
    unflushed: bool,
    /// Bytes written.
    total: u64,
    /// Bytes read and written, and the end: grows with all progress.
    moved: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The end of the stream was read, and the other connection does not know it yet.
    Ending,
    Ended,
}

impl Direction {
    fn new(limits: &RelayLimits) -> Self {
        Self {
            buffer: limits.buffer(),
            start: 0,
            end: 0,
            state: State::Open,
            unflushed: false,
            total: 0,
            moved: 0,
        }
    }

    fn poll(
        &mut self,
        task: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write(task, to))?;
            match self.state {
                State::Open => {
                    if self.poll_fill(task, from)?.is_pending() {
                        if self.unflushed {
                            ready!(Pin::new(&mut *to).poll_flush(task))?;
                            self.unflushed = false;
                        }
                        return Poll::Pending;
                    }
                }
                State::Ending => {
                    ready!(Pin::new(&mut *to).poll_shutdown(task))?;
                    self.state = State::Ended;
                    self.moved += 1;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_fill(
        &mut self,
        task: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<()>> {
        let mut buf = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(from).poll_read(task, &mut buf))?;
        (self.start, self.end) = (0, buf.filled().len());
        self.moved += self.end as u64;
        if self.end == 0 {
            self.state = State::Ending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &mut self,
        task: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while self.start < self.end {
            let rest = &self.buffer[self.start..self.end];
            let taken = ready!(Pin::new(&mut *to).poll_write(task, rest))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.start += taken;
            self.total += taken as u64;
            self.moved += taken as u64;
            self.unflushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

/// The limits of time. The timer is not moved for every byte: when it fires, it is set again if
/// there was progress.
struct Watch<'a> {
    limits: &'a RelayLimits,
    timer: Option<Pin<Box<Sleep>>>,
    /// Time of the last progress.
    last: Instant,
}

impl<'a> Watch<'a> {
    fn new(limits: &'a RelayLimits) -> Self {
        Self { limits, timer: None, last: Instant::now() }
    }

    fn poll(&mut self, task: &mut Context<'_>, ended: bool) -> Poll<io::Error> {
        let Some(limit) = self.limits.limit(ended) else { return Poll::Pending };
        // A limit beyond the clock is no limit.
        let Some(deadline) = self.last.checked_add(limit) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(task));
            if Instant::now() >= deadline {
                return Poll::Ready(too_long(limit));
            }
            timer.as_mut().reset(deadline);
        }
    }
}

impl TcpStream {
    /// Returns the error of a connection that has failed, or registers the task of the relay.
    fn poll_error(&self, task: &Context<'_>) -> Poll<io::Error> {
        let socket = &**self.as_nonblocking().socket();
        let failed = || socket.readiness().contains(Readiness::ERROR);
        if !failed() {
            socket.watchers().set_task(self.relay_key(), Readiness::ERROR.bits(), task.waker());
            socket.sync_with_owner();
            if !failed() {
                return Poll::Pending;
            }
        }
        match self.take_error() {
            Ok(Some(error)) | Err(error) => Poll::Ready(error),
            // The reading or the writing direction has taken the error, and reports it.
            Ok(None) => Poll::Pending,
        }
    }
}
