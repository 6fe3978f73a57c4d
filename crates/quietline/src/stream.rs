//! `TcpStream`, as in `std::net`.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    socket::{ConnectOptions, Connection, Reader, SendFlags, ShutdownHow},
    sysctl::Sysctls,
};

use crate::{
    addresses::first_of,
    clock::{self, with_cx, with_cx_untimed},
    handle::Stack,
    wait::{Wait, poll_first, sleep_until, wait_until, yield_first},
};

mod blocking;
mod options;
mod ready;
mod urgent;
mod zero_copy;

/// A TCP connection. Clones from [`try_clone`](Self::try_clone) share it; dropping the last one
/// closes it. Any thread may use any clone; reads and writes may run at the same time.
pub struct TcpStream {
    shared: Arc<Shared>,
}

struct Shared {
    stack: Stack,
    socket: Arc<Connection>,
    nonblocking: AtomicBool,
}

impl TcpStream {
    /// Connects to `remote` and waits until the connection is established. If `remote` has several
    /// addresses, they are tried in order until one connects. As for `std::net`, the system
    /// resolves host names through its own network, not through `stack`.
    ///
    /// # Errors
    /// As connect(2): `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `EADDRNOTAVAIL`; `ENETUNREACH`
    /// without a route and for broadcast and multicast addresses. `InvalidInput` for text that is
    /// not an address, and the resolver's error for a host name. With several addresses, the error
    /// of the last one.
    pub fn connect(stack: &Stack, remote: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(stack, remote, &ConnectOptions::default())
    }

    /// Connects with further options: local address, `SO_REUSEADDR`, options of the connection.
    /// Otherwise as [`connect`](Self::connect).
    ///
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// # let stack = quietline::Stack::builder().build()?;
    /// use quietline::{ConnectOptions, TcpStream};
    ///
    /// let options = ConnectOptions::default().nodelay(true).receive_buffer(1 << 20);
    /// let stream = TcpStream::connect_with(&stack, "10.0.0.2:80", &options)?;
    /// # let _ = stream;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `EADDRINUSE` for a bound port that another socket owns.
    pub fn connect_with(
        stack: &Stack,
        remote: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        first_of(remote, |remote| {
            let stream = Self::start(stack, remote, options)?;
            stream.wait_connected(None)?;
            Ok(stream)
        })
    }

    /// Connects and waits at most `timeout`, for all addresses together if there are several. The
    /// time that the system's resolver needs for a host name does not count.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `ETIMEDOUT` when the time is over, `InvalidInput` if
    /// `timeout` is zero.
    pub fn connect_timeout(
        stack: &Stack,
        remote: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<Self> {
        Self::connect_timeout_with(stack, remote, timeout, &ConnectOptions::default())
    }

    /// As [`connect_timeout`](Self::connect_timeout), with further options.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with); `ETIMEDOUT` when the time is over, `InvalidInput`
    /// if `timeout` is zero.
    pub fn connect_timeout_with(
        stack: &Stack,
        remote: impl ToSocketAddrs,
        timeout: Duration,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        if timeout.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the timeout is zero"));
        }
        let mut deadline = None;
        first_of(remote, |remote| {
            let deadline = *deadline.get_or_insert_with(|| clock::now() + timeout);
            let stream = Self::start(stack, remote, options)?;
            stream.wait_connected(Some(deadline))?;
            Ok(stream)
        })
    }

    /// Connects and sends the beginning of `data` (`sendto` with `MSG_FASTOPEN`): in the SYN if the
    /// peer has sent a cookie before, otherwise when the connection is established. Returns the
    /// number of bytes taken, at least one if `data` is not empty. Only for requests that may be
    /// executed twice: the network may repeat a SYN, and with it the data.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with) and a write; `EOPNOTSUPP` if
    /// `net.ipv4.tcp_fastopen` does not allow clients.
    pub fn connect_with_data(
        stack: &Stack,
        remote: impl ToSocketAddrs,
        options: &ConnectOptions,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        first_of(remote, |remote| {
            let (stream, taken) = Self::start_sending(stack, remote, options, data)?;
            if taken == 0 && !data.is_empty() {
                stream.expect_write();
            }
            stream.wait_connected(None)?;
            let later = if taken == 0 { (&stream).write(data)? } else { 0 };
            Ok((stream, taken + later))
        })
    }

    /// Connects from address `local`; with port 0 the stack chooses a port.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `EADDRINUSE` for a port that another socket owns,
    /// `EADDRNOTAVAIL` if the stack does not have address `local`.
    pub fn connect_from(
        stack: &Stack,
        local: SocketAddr,
        remote: impl ToSocketAddrs,
    ) -> io::Result<Self> {
        Self::connect_with(stack, remote, &ConnectOptions::default().bind(local))
    }

    /// Starts to connect and returns at once. The stream is nonblocking and becomes writable when
    /// it is connected; [`take_error`](Self::take_error) returns the error of a failed attempt.
    /// Takes one address, because resolving a name and trying several addresses block.
    ///
    /// # Errors
    /// Errors that are known at once: no route, no free port.
    pub fn connect_nonblocking(stack: &Stack, remote: SocketAddr) -> io::Result<Self> {
        Self::connect_nonblocking_with(stack, remote, &ConnectOptions::default())
    }

    /// As [`connect_nonblocking`](Self::connect_nonblocking), with further options.
    ///
    /// # Errors
    /// Errors that are known at once: no route, no free port.
    pub fn connect_nonblocking_with(
        stack: &Stack,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let stream = Self::start(stack, remote, options)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    pub(crate) fn start(
        stack: &Stack,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let socket = with_cx(|cx| Connection::connect_with(stack.host(), cx, remote, options))?;
        Ok(Self::new(stack.clone(), socket))
    }

    /// As [`start`](Self::start); the SYN carries the beginning of `data`, whose length is
    /// returned.
    pub(crate) fn start_sending(
        stack: &Stack,
        remote: SocketAddr,
        options: &ConnectOptions,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        let (socket, sent) =
            with_cx(|cx| Connection::connect_and_send(stack.host(), cx, remote, options, &[data]))?;
        Ok((Self::new(stack.clone(), socket), sent))
    }

    /// Announces a write that follows as soon as the connection is established.
    pub(crate) fn expect_write(&self) {
        let Shared { stack, socket, .. } = &*self.shared;
        with_cx(|cx| socket.with_tcb(stack.host(), cx, |tcb, _| tcb.expect_write()));
    }

    pub(crate) fn new(stack: Stack, socket: Arc<Connection>) -> Self {
        Self { shared: Arc::new(Shared { stack, socket, nonblocking: AtomicBool::new(false) }) }
    }

    pub(crate) fn wait_connected(&self, deadline: Option<Instant>) -> io::Result<()> {
        if !self.wait(Readiness::WRITE, deadline) {
            return Err(Errno::ETIMEDOUT.into());
        }
        match self.shared.take_error() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// As [`wait_connected`](Self::wait_connected), but fails with `EINPROGRESS` after `limit`: the
    /// handshake continues in the background.
    pub(crate) fn wait_connected_within(&self, limit: Option<Duration>) -> io::Result<()> {
        let deadline = limit.map(|limit| clock::now() + limit);
        if !self.wait(Readiness::WRITE, deadline) {
            return Err(Errno::EINPROGRESS.into());
        }
        self.wait_connected(None)
    }

    fn recv(&self, buf: &mut [u8], peek: bool) -> io::Result<usize> {
        let Shared { stack, socket, nonblocking, .. } = &*self.shared;
        let mut got = if peek {
            self.blocking(Readiness::READ, || {
                with_cx(|cx| socket.recv(stack.host(), cx, buf, true))
            })?
        } else {
            self.receive(&mut [IoSliceMut::new(buf)])?
        };
        // SO_RCVLOWAT: a blocking read waits for this many bytes, for a full buffer, or for the end
        // of the stream.
        let target = buf.len().min(socket.rcvlowat() as usize);
        while got < target && got > 0 && !peek && !nonblocking.load(Ordering::Relaxed) {
            let at_mark = || with_cx(|cx| socket.at_mark(stack.host(), cx));
            if socket.readiness().contains(Readiness::ERROR) || at_mark() {
                // An error is left to the next call, because the call that reports it also clears
                // it. A read stops before urgent data.
                break;
            }
            let rest = &mut buf[got..];
            match self.receive(&mut [IoSliceMut::new(rest)]) {
                Ok(more @ 1..) => got += more,
                // Return the bytes already read; the next call reports the error or the end.
                Ok(_) | Err(_) => break,
            }
        }
        Ok(got)
    }

    /// Takes received data, or waits for it unless the socket is nonblocking. While the thread
    /// polls, it processes frames as a softirq does. Before it sleeps it becomes the socket's
    /// reader if `net.quietline.rx_context` enables readers.
    fn receive(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Shared { stack, socket, nonblocking, .. } = &*self.shared;
        let host = stack.host();
        let readable = Readiness::READ | Readiness::RDHUP | Readiness::HUP | Readiness::ERROR;
        let is_readable = || socket.readiness().intersects(readable);
        let waits = !nonblocking.load(Ordering::Relaxed) && bufs.iter().any(|buf| !buf.is_empty());
        // A blocking call skips the first attempt if nothing is readable: it checks again before it
        // sleeps. It does not skip the attempt with a low-water mark: the queue may then hold data
        // although the socket is not readable, and no more data arrives in front of urgent data.
        if !waits || is_readable() || socket.rcvlowat() > 1 {
            match with_cx_untimed(|cx| socket.recv_vectored(host, cx, bufs)) {
                Err(Errno::EAGAIN) if waits => {}
                result => return Ok(result?),
            }
        }
        let began = clock::now();
        let deadline = socket.receive_timeout().map(|limit| began + limit);
        let mut waiting = Waiting { shared: &self.shared, reader: Reader::new() };
        let wait = self.how_to_wait(Readiness::READ, began, deadline);
        let mut may_read = poll_first(&wait, &is_readable)
            || with_cx_untimed(|cx| cx.sysctls_of(host).has_prequeue())
            || yield_first(&wait, &is_readable);
        loop {
            if may_read {
                let step = |cx: &mut _| socket.recv_or_wait(host, cx, &mut waiting.reader, bufs);
                match with_cx_untimed(step) {
                    Err(Errno::EAGAIN) => {}
                    result => return Ok(result?),
                }
            }
            may_read = sleep_until(&wait, || {
                socket.sync_with_owner();
                is_readable() || socket.is_due(&waiting.reader)
            });
            if !may_read {
                let last = |cx: &mut _| socket.recv_and_leave(host, cx, &mut waiting.reader, bufs);
                return Ok(with_cx(last)?);
            }
        }
    }

    fn send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::WRITE, || with_cx(|cx| socket.send(stack.host(), cx, bufs)))
    }

    /// Writes with flags: [`SendFlags::MORE`] (`MSG_MORE`) if another write follows at once,
    /// [`SendFlags::EOR`] (`MSG_EOR`) if a record ends here. Returns the number of bytes taken, as
    /// `write` does.
    ///
    /// # Errors
    /// As send(2).
    pub fn send_with_flags(&self, buf: &[u8], flags: SendFlags) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::WRITE, || {
            with_cx(|cx| socket.send_with_flags(stack.host(), cx, &[IoSlice::new(buf)], flags))
        })
    }

    /// Copies received bytes and leaves them in the receive queue.
    ///
    /// # Errors
    /// As recv(2).
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf, true)
    }

    /// Closes the reading half, the writing half, or both.
    ///
    /// # Errors
    /// `ENOTCONN` when the stream is not connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => ShutdownHow::Read,
            Shutdown::Write => ShutdownHow::Write,
            Shutdown::Both => ShutdownHow::Both,
        };
        let Shared { stack, socket, .. } = &*self.shared;
        Ok(with_cx(|cx| socket.shutdown(stack.host(), cx, how))?)
    }

    /// Returns another handle to the same connection.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { shared: Arc::clone(&self.shared) })
    }

    /// Returns the stack of the connection.
    #[must_use]
    pub fn stack(&self) -> &Stack {
        &self.shared.stack
    }

    /// Returns the local address and port.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.socket.local())
    }

    /// Returns the peer's address and port.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.socket.remote())
    }

    /// Sets whether calls fail with `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether calls fail with `WouldBlock` instead of waiting.
    #[must_use]
    pub fn nonblocking(&self) -> bool {
        self.shared.nonblocking.load(Ordering::Relaxed)
    }

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared.take_error().map(io::Error::from))
    }

    /// Returns the readiness of the stream without a call into TCP.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.shared.socket.readiness()
    }
}

impl Shared {
    fn take_error(&self) -> Option<Errno> {
        with_cx(|cx| self.socket.take_error(self.stack.host(), cx))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let host = self.stack.host();
        let linger = with_cx(|cx| {
            let linger = self.socket.linger(host, cx);
            self.socket.close(host, cx);
            linger
        });
        if let Some(linger) = linger.filter(|linger| !linger.is_zero()) {
            let began = clock::now();
            let deadline = Some(began + linger);
            let socket = &self.socket;
            let wait = Wait {
                stack: &self.stack,
                core: socket.core(),
                events: socket.waiters(Readiness::READ),
                began,
                deadline,
                polling: |sysctls: &Sysctls| socket.busy_poll().for_event(sysctls),
            };
            wait_until(&wait, || {
                socket.sync_with_owner();
                !socket.is_finishing()
            });
        }
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf, false)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(bufs)
    }
}

/// A call of `receive` that may have installed the thread as the socket's reader. Dropping it
/// removes the reader on every path, so that no packet is left for a reader that has returned.
struct Waiting<'a> {
    shared: &'a Shared,
    reader: Reader,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.reader.is_installed() {
            let Shared { stack, socket, .. } = self.shared;
            // An empty buffer takes no data: received data stays in the receive queue.
            let _ =
                with_cx(|cx| socket.recv_and_leave(stack.host(), cx, &mut self.reader, &mut []));
        }
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.shared.socket.local())
            .field("peer", &self.shared.socket.remote())
            .finish_non_exhaustive()
    }
}
