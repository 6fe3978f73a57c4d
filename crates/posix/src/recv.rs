//! `recv`, `recvmsg`, `read`: moves received bytes into the program's buffers.
//!
//! Linux: `tcp_recvmsg_locked`, `tcp_recv_urg`, `tcp_inq_hint`.

use std::{
    io::IoSliceMut,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use stack::{
    Cx, Errno, Readiness,
    host::Host,
    socket::{Connection, Reader},
};

use crate::{
    abi::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL},
    socket::{Inner, Open as _, Socket, State},
    step::{Answer, GiveUp, Step},
};

/// Result of a call that receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes received; 0 is the end of the stream.
    pub bytes: usize,
    /// `msg_flags` of recvmsg(2): `MSG_OOB` for an urgent byte, `MSG_TRUNC` for one without room.
    pub flags: i32,
    /// Value of the control message of `TCP_INQ`, if the program has asked for it: bytes left to
    /// read, 1 at the end of the stream.
    pub inq: Option<i32>,
}

/// A call of read(2), recv(2) or their like.
#[derive(Debug, Default)]
pub struct Recv {
    flags: i32,
    /// read(2) with empty buffers returns at once; recv(2) waits for data.
    is_read: bool,
    received: usize,
    reader: Reader,
    /// The driver waits for the readiness of the socket only, so no packet may wait for the thread
    /// of the call.
    without_reader: bool,
}

impl Recv {
    /// A call of recv(2), recvfrom(2) or recvmsg(2). Unknown flags are ignored, as in Linux.
    #[must_use]
    pub fn new(flags: i32) -> Self {
        Self { flags, ..Self::default() }
    }

    /// A call of read(2) or readv(2).
    #[must_use]
    pub fn read() -> Self {
        Self { is_read: true, ..Self::default() }
    }

    /// Makes every packet go to the queue of the socket, where [`Watched`](crate::Watched)
    /// observers learn of it. For a driver whose threads do not look for [`is_due`](Self::is_due).
    #[must_use]
    pub fn without_reader(mut self) -> Self {
        self.without_reader = true;
        self
    }

    /// Bytes received so far.
    #[must_use]
    pub const fn received(&self) -> usize {
        self.received
    }

    /// Whether packets wait for the thread of this call, beside the readiness of the socket.
    #[must_use]
    pub fn is_due(&self, socket: &Socket) -> bool {
        socket.stream().is_some_and(|stream| stream.is_due(&self.reader))
    }

    const fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Receives into `bufs`, which are the same in every step.
    ///
    /// A blocking call returns with at least `SO_RCVLOWAT` bytes, or all with `MSG_WAITALL`; less
    /// at the end of the stream, before urgent data, and with an error, which stays pending.
    ///
    /// # Errors
    /// `ENOTCONN` without a connection, `EAGAIN`, `EINVAL` without urgent data for `MSG_OOB`; the
    /// error of the connection.
    pub fn step(
        &mut self,
        socket: &Socket,
        host: &Host,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Answer<Received> {
        let inner = socket.lock().open()?;
        if self.has(MSG_ERRQUEUE) {
            return Err(Errno::EAGAIN);
        }
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        if self.is_read && room == 0 {
            return Ok(Step::Ready(Received::default()));
        }
        let wants_inq = inner.inq;
        let Some(stream) = self.stream_of(inner)? else {
            return Ok(Step::Ready(Received::default()));
        };
        if self.has(MSG_OOB) {
            return self.recv_oob(&stream, host, cx, bufs).map(Step::Ready);
        }
        let waits = !socket.is_nonblocking() && !self.has(MSG_DONTWAIT);
        let target = self.target(&stream, room, waits);
        loop {
            match self.fill(&stream, host, cx, waits, bufs) {
                Ok(bytes) if self.has(MSG_PEEK) => self.received = bytes,
                Ok(0) => break,
                Ok(bytes) => self.received += bytes,
                Err(Errno::EAGAIN) if waits => return Ok(Step::Blocks),
                Err(_) if self.received > 0 => break,
                Err(errno) => return Err(errno),
            }
            if self.received >= target || self.is_over(&stream, host, cx) {
                break;
            }
            if self.has(MSG_PEEK) {
                return Ok(Step::Blocks);
            }
        }
        let inq = wants_inq.then(|| left_to_read(&stream, host, cx));
        Ok(Step::Ready(Received { bytes: self.received, flags: 0, inq }))
    }

    /// The connection; `None` after a `shutdown` without one, which ends the stream.
    fn stream_of(
        &self,
        mut inner: MutexGuard<'_, Inner>,
    ) -> Result<Option<Arc<Connection>>, Errno> {
        match &inner.state {
            State::Stream(stream, _) => Ok(Some(Arc::clone(stream))),
            // Linux looks for urgent data before it looks at the state.
            State::Unconnected if self.has(MSG_OOB) => Err(Errno::EINVAL),
            State::Unconnected => match inner.error.take() {
                Some(errno) => Err(errno),
                None if inner.shut_read => Ok(None),
                None => Err(Errno::ENOTCONN),
            },
            State::Listening(_) => Err(Errno::ENOTCONN),
            State::Closed => Err(Errno::EBADF),
        }
    }

    /// Bytes with which the call returns.
    fn target(&self, stream: &Connection, room: usize, waits: bool) -> usize {
        if !waits {
            return 0;
        }
        if self.has(MSG_WAITALL) { room } else { room.min(stream.rcvlowat() as usize) }
    }

    /// Whether no further byte of this call can come: the end of the stream, an error that is the
    /// next call's, urgent data before which a read stops.
    fn is_over(&self, stream: &Connection, host: &Host, cx: &mut Cx) -> bool {
        let ready = stream.readiness();
        let ended = Readiness::RDHUP | Readiness::HUP;
        ready.contains(Readiness::ERROR)
            || stream.at_mark(host, cx)
            || (self.has(MSG_PEEK) && ready.intersects(ended | Readiness::PRI))
    }

    /// One take from the receive queue.
    fn fill(
        &mut self,
        stream: &Connection,
        host: &Host,
        cx: &mut Cx,
        waits: bool,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        if room == 0 {
            // recv(2) with empty buffers waits for data, and takes none.
            return stream.recv(host, cx, &mut [0], true).map(|_| 0);
        }
        if self.has(MSG_PEEK | MSG_TRUNC) {
            let peek = self.has(MSG_PEEK);
            let taken = if peek { 0 } else { self.received };
            let mut bytes = vec![0; room - taken];
            let received = stream.recv(host, cx, &mut bytes, peek)?;
            if !self.has(MSG_TRUNC) {
                scatter(&bytes[..received], bufs);
            }
            return Ok(received);
        }
        if self.received == 0 {
            return self.take(stream, host, cx, waits, bufs);
        }
        let mut rest = rest_of(bufs, self.received);
        self.take(stream, host, cx, waits, &mut rest)
    }

    fn take(
        &mut self,
        stream: &Connection,
        host: &Host,
        cx: &mut Cx,
        waits: bool,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        if waits && !self.without_reader {
            stream.recv_or_wait(host, cx, &mut self.reader, bufs)
        } else {
            stream.recv_vectored(host, cx, bufs)
        }
    }

    /// Takes the urgent byte. It never waits.
    fn recv_oob(
        &self,
        stream: &Connection,
        host: &Host,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<Received, Errno> {
        let Some(byte) = stream.recv_oob(host, cx, self.has(MSG_PEEK))? else {
            return Ok(Received::default());
        };
        let Some(place) = bufs.iter_mut().find_map(|buf| buf.first_mut()) else {
            return Ok(Received { flags: MSG_OOB | MSG_TRUNC, ..Received::default() });
        };
        if !self.has(MSG_TRUNC) {
            *place = byte;
        }
        Ok(Received { bytes: 1, flags: MSG_OOB, inq: None })
    }

    /// Longest sleep (`SO_RCVTIMEO`); `None` is no limit.
    #[must_use]
    pub fn limit(&self, socket: &Socket) -> Option<Duration> {
        socket.lock().settings.receive_limit()
    }

    /// Ends the call with the bytes that have come.
    ///
    /// # Errors
    /// `EAGAIN` or `EINTR` when none has.
    pub fn give_up(
        &mut self,
        socket: &Socket,
        host: &Host,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
        why: GiveUp,
    ) -> Result<Received, Errno> {
        let stream = socket.stream();
        if let Some(stream) = stream.as_ref().filter(|_| self.reader.is_installed()) {
            let mut rest = rest_of(bufs, self.received);
            let last = stream.recv_and_leave(host, cx, &mut self.reader, &mut rest);
            self.received += last.unwrap_or(0);
        }
        if self.received == 0 {
            return Err(why.errno(Errno::EAGAIN));
        }
        let wants_inq = socket.lock().inq;
        let inq = stream.filter(|_| wants_inq).map(|stream| left_to_read(&stream, host, cx));
        Ok(Received { bytes: self.received, flags: 0, inq })
    }
}

/// `bufs` without their first `skip` bytes.
fn rest_of<'a>(bufs: &'a mut [IoSliceMut<'_>], mut skip: usize) -> Vec<IoSliceMut<'a>> {
    let mut rest = Vec::with_capacity(bufs.len());
    for buf in bufs {
        let passed = skip.min(buf.len());
        skip -= passed;
        rest.push(IoSliceMut::new(&mut buf[passed..]));
    }
    rest
}

fn scatter(mut bytes: &[u8], bufs: &mut [IoSliceMut<'_>]) {
    for buf in bufs {
        let (now, later) = bytes.split_at(bytes.len().min(buf.len()));
        buf[..now.len()].copy_from_slice(now);
        bytes = later;
    }
}

/// Bytes that can be read, as `TCP_INQ` reports them: 1 at the end of the stream, so that the
/// program reads again.
fn left_to_read(stream: &Connection, host: &Host, cx: &mut Cx) -> i32 {
    let bytes = stream.with_tcb(host, cx, |tcb, _| tcb.readable_bytes());
    let ended = stream.readiness().intersects(Readiness::RDHUP | Readiness::HUP);
    if bytes == 0 && ended { 1 } else { i32::try_from(bytes).unwrap_or(i32::MAX) }
}
