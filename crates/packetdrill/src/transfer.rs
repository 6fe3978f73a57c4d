//! The calls that move bytes.
//!
//! Linux: `tcp_sendmsg_locked`, `tcp_recvmsg_locked`. A blocking write returns when everything is queued, a blocking
//! read when there is something.

use std::{
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    os::fd::RawFd,
    sync::Arc,
};

use stack::{
    Cx, Errno, Readiness,
    host::Host,
    socket::{SendFlags, TcpSocket},
};
use tcp::State;

use crate::{
    runtime::{Patience, Runtime, raw_errno},
    socket::{Kind, Way},
};

/// `SIOCOUTQNSD`: bytes queued and never sent. The libc crate does not name it.
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// Flags of `send` that have an effect here or need none.
const SEND_FLAGS: i32 =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_FASTOPEN;
/// Flags of `recv` likewise.
const RECV_FLAGS: i32 = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// What `recv` has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// `TCP_INQ`: what can be read next; one at the end of the stream.
    pub(crate) inq: Option<i32>,
}

impl Runtime {
    pub(crate) fn send(&self, fd: RawFd, bufs: &[IoSlice<'_>], flags: i32) -> Result<usize, Errno> {
        self.send_to(fd, bufs, flags, None)
    }

    /// `to` is where a call with `MSG_FASTOPEN` connects.
    pub(crate) fn send_to(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let patience = self.patience(fd, Way::Send, flags & libc::MSG_DONTWAIT != 0)?;
        if flags & libc::MSG_OOB != 0 {
            return self.send_oob(fd, bufs, patience);
        }
        if flags & !SEND_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut how = SendFlags::empty();
        how.set(SendFlags::MORE, flags & libc::MSG_MORE != 0);
        how.set(SendFlags::EOR, flags & libc::MSG_EOR != 0);
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let fast_open = flags & libc::MSG_FASTOPEN != 0;
        let opened = self.open_sending(fd, bufs, fast_open, to)?;
        if patience != Patience::None && opened.is_some_and(|sent| sent < total) {
            let stream = self.stream(fd)?.ok_or(Errno::EPIPE)?;
            self.run(|_, host, cx| stream.with_tcb(host, cx, |tcb, _| tcb.expect_write()));
        }
        let (mut sent, mut blocked) = (opened.unwrap_or(0), opened.is_some());
        // A write that the SYN takes along has failed when the handshake has, whatever was sent.
        let mut opening = opened.is_some();
        let result = self.wait_for(patience, |state, host, cx| {
            let stream = state.descriptors.stream(fd)?.ok_or(Errno::EPIPE)?;
            // A writer that has found the buffer full waits until a third of it is free.
            let woken = Readiness::WRITE | Readiness::HUP | Readiness::ERROR;
            if blocked && !stream.readiness().intersects(woken) {
                return Err(Errno::EAGAIN);
            }
            blocked = true;
            opening |= is_opening(&stream, host, cx);
            while sent < total {
                sent += stream.send_with_flags(host, cx, &rest_of(bufs, sent), how)?;
            }
            if opening && is_opening(&stream, host, cx) {
                return Err(Errno::EAGAIN);
            }
            if opening && let Some(errno) = stream.take_error(host, cx) {
                return Err(errno);
            }
            Ok(())
        });
        match result {
            Err(Errno::EAGAIN) if opened == Some(0) && sent == 0 => Err(Errno::EINPROGRESS),
            Err(errno) if opening && errno != Errno::EAGAIN => Err(errno),
            Err(_) if sent > 0 => Ok(sent),
            Err(errno) => Err(errno),
            Ok(()) => Ok(sent),
        }
    }

    /// The first write of a connection with Fast Open: what the SYN carries. With `MSG_FASTOPEN` it connects, too. `None` if the
    /// socket is connected already (Linux: `tcp_sendmsg_fastopen`, `__inet_stream_connect`).
    fn open_sending(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        fast_open: bool,
        to: Option<SocketAddr>,
    ) -> Result<Option<usize>, Errno> {
        let bufs: &[&[u8]] = &bufs.iter().map(|buf| &**buf).collect::<Vec<_>>();
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket_mut(fd)?;
            let stream = match &socket.kind {
                Kind::Stream(stream) => stream,
                Kind::Listening(_) if fast_open => return Err(Errno::EISCONN),
                Kind::Fresh if fast_open => {
                    let options = socket.settings.connect_options(socket.bound);
                    let to = to.ok_or(Errno::EINVAL)?;
                    let (stream, sent) = TcpSocket::connect_sending(host, cx, to, &options, bufs)?;
                    socket.connect_begun(stream);
                    return Ok(Some(sent));
                }
                Kind::Listening(_) | Kind::Fresh => return Ok(None),
            };
            if let Some(sent) = stream.send_with_syn(host, cx, bufs) {
                return Ok(Some(sent));
            }
            if fast_open && is_opening(stream, host, cx) {
                return Err(Errno::EALREADY);
            }
            // The first call after the handshake learns of it, as `connect` would.
            if fast_open && !std::mem::take(&mut socket.connecting) {
                return Err(Errno::EISCONN);
            }
            Ok(None)
        })
    }

    pub(crate) fn recv(
        &self,
        fd: RawFd,
        bufs: &mut [IoSliceMut<'_>],
        flags: i32,
    ) -> Result<Received, Errno> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.stream(fd)?.ok_or(Errno::ENOTCONN).and(Err(Errno::EAGAIN));
        }
        let patience = self.patience(fd, Way::Receive, flags & libc::MSG_DONTWAIT != 0)?;
        if flags & libc::MSG_OOB != 0 {
            return self.recv_oob(fd, bufs, flags & libc::MSG_PEEK != 0);
        }
        if flags & !RECV_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut gathered = Gathered {
            bytes: vec![0; bufs.iter().map(|buf| buf.len()).sum()],
            filled: 0,
            peek: flags & libc::MSG_PEEK != 0,
            all: flags & libc::MSG_WAITALL != 0,
        };
        let mut inq = None;
        let result = self.wait_for(patience, |state, host, cx| {
            let socket = state.descriptors.socket(fd)?;
            let stream = socket.stream().ok_or(Errno::ENOTCONN)?;
            let result = gathered.fill(stream, host, cx);
            if socket.inq {
                inq = Some(left_to_read(stream, host, cx));
            }
            result
        });
        match result {
            Err(errno) if gathered.filled == 0 => return Err(errno),
            _ => {}
        }
        if flags & libc::MSG_TRUNC == 0 {
            gathered.scatter(bufs);
        }
        Ok(Received { bytes: gathered.filled, inq })
    }

    /// The last byte of `bufs` is urgent.
    fn send_oob(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        patience: Patience,
    ) -> Result<usize, Errno> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.wait_for(patience, |state, host, cx| {
            let stream = state.descriptors.stream(fd)?.ok_or(Errno::EPIPE)?;
            stream.send_oob(host, cx, &bytes)
        })
    }

    /// Takes the urgent byte; it never waits.
    fn recv_oob(
        &self,
        fd: RawFd,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<Received, Errno> {
        self.run(|state, host, cx| {
            let stream = state.descriptors.stream(fd)?.ok_or(Errno::ENOTCONN)?;
            let byte = stream.recv_oob(host, cx, peek)?;
            let place = bufs.iter_mut().find_map(|buf| buf.first_mut());
            match (byte, place) {
                (Some(byte), Some(place)) => {
                    *place = byte;
                    Ok(Received { bytes: 1, inq: None })
                }
                _ => Ok(Received::default()),
            }
        })
    }

    pub(crate) fn ioctl(&self, fd: RawFd, request: libc::c_ulong) -> Result<i32, Errno> {
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket(fd)?;
            let Some(stream) = socket.stream() else {
                // A listener has no bytes; a fresh socket has none yet.
                return if socket.listener().is_some() { Err(Errno::EINVAL) } else { Ok(0) };
            };
            let bytes = stream.with_tcb(host, cx, |tcb, _| match request {
                libc::FIONREAD => Some(tcb.readable_bytes()),
                libc::TIOCOUTQ => Some(tcb.unacked_bytes()),
                SIOCOUTQNSD => Some(tcb.info().notsent_bytes as usize),
                _ => None,
            });
            let bytes = bytes.ok_or_else(|| raw_errno(libc::ENOTTY))?;
            Ok(i32::try_from(bytes).unwrap_or(i32::MAX))
        })
    }

    /// Moves bytes between a socket and a pipe by way of memory.
    pub(crate) fn splice(&self, fd: RawFd, way: Way, buf: &mut [u8]) -> Result<usize, Errno> {
        match way {
            Way::Receive => {
                self.recv(fd, &mut [IoSliceMut::new(buf)], 0).map(|received| received.bytes)
            }
            Way::Send => self.send(fd, &[IoSlice::new(buf)], 0),
        }
    }

    /// Whether `fd` is one of ours.
    pub(crate) fn knows(&self, fd: RawFd) -> bool {
        self.run(|state, _, _| state.descriptors.contains(fd))
    }
}

/// The answer to our SYN has not come.
fn is_opening(stream: &Arc<TcpSocket>, host: &Host, cx: &mut Cx) -> bool {
    stream.with_tcb(host, cx, |tcb, _| tcb.state() == State::SynSent)
}

/// `bufs` without their first `skip` bytes.
fn rest_of<'a>(bufs: &'a [IoSlice<'_>], mut skip: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(bufs.len());
    for buf in bufs {
        let passed = skip.min(buf.len());
        skip -= passed;
        if passed < buf.len() {
            rest.push(IoSlice::new(&buf[passed..]));
        }
    }
    rest
}

/// Bytes that can be read, as `TCP_INQ` tells them: one at the end of the stream, so that the program reads again.
fn left_to_read(stream: &Arc<TcpSocket>, host: &Host, cx: &mut Cx) -> i32 {
    let bytes = stream.with_tcb(host, cx, |tcb, _| tcb.readable_bytes());
    let ended = stream.readiness().intersects(Readiness::RDHUP | Readiness::HUP);
    if bytes == 0 && ended { 1 } else { i32::try_from(bytes).unwrap_or(i32::MAX) }
}

/// Received bytes on their way to the buffers of the program.
struct Gathered {
    bytes: Vec<u8>,
    filled: usize,
    peek: bool,
    /// `MSG_WAITALL`.
    all: bool,
}

impl Gathered {
    /// Takes what there is. `EAGAIN` when the call should wait for more.
    fn fill(&mut self, stream: &Arc<TcpSocket>, host: &Host, cx: &mut Cx) -> Result<(), Errno> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        if self.peek {
            self.filled = 0;
        }
        let bytes = stream.recv(host, cx, &mut self.bytes[self.filled..], self.peek)?;
        self.filled += bytes;
        let done = bytes == 0 || self.filled == self.bytes.len() || !self.all;
        if done { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn scatter(&self, bufs: &mut [IoSliceMut<'_>]) {
        let mut rest = &self.bytes[..self.filled];
        for buf in bufs {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
    }
}
