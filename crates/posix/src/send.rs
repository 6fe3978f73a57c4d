//! `send`, `sendmsg`, `write`: moves bytes of the program into the send queue.
//!
//! Linux: `tcp_sendmsg_locked`, `tcp_sendmsg_fastopen`, `sk_stream_wait_memory`. A blocking call
//! returns when every byte is queued.

use std::{io::IoSlice, mem, net::SocketAddr, sync::Arc, time::Duration};

use stack::{
    Cx, Errno, Readiness,
    host::Host,
    socket::{Connection, SendFlags},
};
use tcp::State as TcpState;

use crate::{
    abi::{MSG_DONTWAIT, MSG_EOR, MSG_FASTOPEN, MSG_MORE, MSG_OOB},
    connect::{finish, is_syn_held},
    socket::{Inner, Open as _, Phase, Socket, State, is_opening, tcp_state},
    step::{Answer, GiveUp, Step},
};

/// Bit of `net.ipv4.tcp_fastopen` that allows clients (`TFO_CLIENT_ENABLE`).
const FAST_OPEN_CLIENT: u32 = 1;

/// A call of write(2), send(2) or their like.
#[derive(Debug)]
pub struct Send {
    flags: i32,
    /// Address to which a call with `MSG_FASTOPEN` connects.
    to: Option<SocketAddr>,
    sent: usize,
    stage: Stage,
}

/// Progress of a call.
#[derive(Clone, Debug)]
enum Stage {
    /// No step was taken.
    New,
    /// The call waits for the handshake of this connection; the errno is that of a call without
    /// wait.
    Opening(Arc<Connection>, Errno),
    /// Bytes are queued. The next step tries at once.
    Sending,
    /// The send buffer was full. The next step waits until a third of the buffer is free.
    Full,
}

impl Send {
    /// A call with flags of send(2). `to` is the address of sendto(2), which only `MSG_FASTOPEN`
    /// reads. Unknown flags are ignored, as in Linux.
    #[must_use]
    pub const fn new(flags: i32, to: Option<SocketAddr>) -> Self {
        Self { flags, to, sent: 0, stage: Stage::New }
    }

    /// Bytes queued so far, those in a SYN included.
    #[must_use]
    pub const fn sent(&self) -> usize {
        self.sent
    }

    const fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Queues bytes of `bufs`, which are the same in every step.
    ///
    /// # Errors
    /// `EPIPE` without a connection or after a shutdown, `EAGAIN`, with Fast Open those of
    /// `connect` and `EOPNOTSUPP` where `net.ipv4.tcp_fastopen` does not allow clients; the error
    /// of the connection. An error after bytes were queued stays pending, and the call returns
    /// their number.
    pub fn step(
        &mut self,
        socket: &Socket,
        host: &Arc<Host>,
        cx: &mut Cx,
        bufs: &[IoSlice<'_>],
    ) -> Answer<usize> {
        let waits = !socket.is_nonblocking() && !self.has(MSG_DONTWAIT);
        let mut inner = socket.lock().open()?;
        if matches!(self.stage, Stage::New) {
            self.stage = self.begin(&mut inner, host, cx, bufs)?;
            // As in `Connect`: the program does not see a handshake that has finished in this call.
            if !waits && matches!(self.stage, Stage::Opening(_, Errno::EINPROGRESS)) {
                return self.opened().map(Step::Ready);
            }
        }
        if let Stage::Opening(stream, _) = &self.stage {
            match finish(&mut inner, stream, host, cx)? {
                Step::Ready(()) => self.stage = Stage::Sending,
                Step::Blocks if waits => {
                    if self.sent < total(bufs) {
                        stream.with_tcb(host, cx, |tcb, _| tcb.expect_write());
                    }
                    return Ok(Step::Blocks);
                }
                Step::Blocks => return self.opened().map(Step::Ready),
            }
        }
        let stream = match &inner.state {
            State::Stream(stream, _) => Arc::clone(stream),
            _ => return Err(inner.error.take().unwrap_or(Errno::EPIPE)),
        };
        drop(inner);
        self.send(&stream, host, cx, waits, bufs)
    }

    /// The first step: with Fast Open the SYN leaves, with as many bytes as it carries.
    fn begin(
        &mut self,
        inner: &mut Inner,
        host: &Arc<Host>,
        cx: &mut Cx,
        bufs: &[IoSlice<'_>],
    ) -> Result<Stage, Errno> {
        let bytes: &[&[u8]] = &bufs.iter().map(|buf| &**buf).collect::<Vec<_>>();
        if let State::Stream(stream, Phase::Connecting) = &inner.state
            && is_syn_held(stream, host, cx)
        {
            self.sent = stream.send_with_syn(host, cx, bytes).unwrap_or(0);
            return Ok(Stage::Opening(Arc::clone(stream), Errno::EINPROGRESS));
        }
        if !self.has(MSG_FASTOPEN) {
            return Ok(Stage::Sending);
        }
        if host.sysctls().tcp_fastopen & FAST_OPEN_CLIENT == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        match &inner.state {
            State::Closed => Err(Errno::EBADF),
            State::Listening(_) | State::Stream(_, Phase::Connected) => Err(Errno::EISCONN),
            State::Stream(_, Phase::Disconnecting) => Err(Errno::EINVAL),
            State::Stream(stream, Phase::Connecting) => {
                Ok(Stage::Opening(Arc::clone(stream), Errno::EALREADY))
            }
            State::Unconnected => {
                let to = self.to.ok_or(Errno::EINVAL)?;
                let options = inner.connect_options();
                let (stream, sent) = Connection::connect_and_send(host, cx, to, &options, bytes)?;
                self.sent = sent;
                inner.begin(Arc::clone(&stream));
                Ok(Stage::Opening(stream, Errno::EINPROGRESS))
            }
        }
    }

    /// Result of a call that does not wait for the handshake: the bytes in the SYN.
    const fn opened(&self) -> Result<usize, Errno> {
        match &self.stage {
            Stage::Opening(_, errno) if self.sent == 0 => Err(*errno),
            _ => Ok(self.sent),
        }
    }

    fn send(
        &mut self,
        stream: &Connection,
        host: &Host,
        cx: &mut Cx,
        waits: bool,
        bufs: &[IoSlice<'_>],
    ) -> Answer<usize> {
        let woken = Readiness::WRITE | Readiness::HUP | Readiness::ERROR;
        if matches!(self.stage, Stage::Full) && !stream.readiness().intersects(woken) {
            return Ok(Step::Blocks);
        }
        let total = total(bufs);
        if total == 0 {
            return send_nothing(stream, host, cx, waits);
        }
        while self.sent < total {
            if self.sent > 0 && stream.readiness().contains(Readiness::ERROR) {
                // Sending would take the error, which is the next call's.
                return Ok(Step::Ready(self.sent));
            }
            match self.send_some(stream, host, cx, bufs) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::EAGAIN) if waits => {
                    self.stage = Stage::Full;
                    return Ok(Step::Blocks);
                }
                Err(_) if self.sent > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(Step::Ready(self.sent))
    }

    fn send_some(
        &self,
        stream: &Connection,
        host: &Host,
        cx: &mut Cx,
        bufs: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let rest = rest_of(bufs, self.sent);
        if self.has(MSG_OOB) {
            let bytes: Vec<u8> = rest.iter().flat_map(|buf| buf.iter().copied()).collect();
            return stream.send_oob(host, cx, &bytes);
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::MORE, self.has(MSG_MORE));
        flags.set(SendFlags::EOR, self.has(MSG_EOR));
        stream.send_with_flags(host, cx, &rest, flags)
    }

    /// Longest sleep (`SO_SNDTIMEO`); `None` is no limit.
    #[must_use]
    pub fn limit(&self, socket: &Socket) -> Option<Duration> {
        socket.lock().settings.send_limit()
    }

    /// Ends the call with the bytes that are queued.
    ///
    /// # Errors
    /// `EAGAIN`, `EINPROGRESS`, `EALREADY` or `EINTR` when none is.
    pub fn give_up(&mut self, why: GiveUp) -> Result<usize, Errno> {
        match mem::replace(&mut self.stage, Stage::Sending) {
            _ if self.sent > 0 => Ok(self.sent),
            Stage::Opening(_, errno) => Err(why.errno(errno)),
            _ => Err(why.errno(Errno::EAGAIN)),
        }
    }
}

/// A call without bytes reports the state of the connection, and queues nothing.
fn send_nothing(stream: &Connection, host: &Host, cx: &mut Cx, waits: bool) -> Answer<usize> {
    if stream.readiness().contains(Readiness::ERROR)
        && let Some(errno) = stream.take_error(host, cx)
    {
        return Err(errno);
    }
    match tcp_state(stream, host, cx) {
        TcpState::Established | TcpState::CloseWait => Ok(Step::Ready(0)),
        state if is_opening(state) && waits => Ok(Step::Blocks),
        state if is_opening(state) => Err(Errno::EAGAIN),
        _ => Err(Errno::EPIPE),
    }
}

fn total(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
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
