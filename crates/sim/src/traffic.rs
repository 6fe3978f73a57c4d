//! Random applications: two streams over one connection, with the variety of behavior that socket
//! programs have.
//!
//! An [`End`] writes its stream in pieces from one byte to many superframes, with pauses, corks,
//! `MSG_MORE` and changing options, and reads the peer's in the same way. It shuts down its half
//! before or after the peer, closes at once, or aborts. Every byte read is compared. A connection
//! that was not aborted must deliver all of them, and the end of the stream.
//!
//! Not here: which hosts connect (`scenario`), the network.

use std::{
    io::{IoSlice, IoSliceMut},
    sync::Arc,
    time::Duration,
};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    host::Host,
    socket::{Connection, Reader, SendFlags, ShutdownHow},
};
use tcp::{Algorithm, Keepalive, Rng, State};

use crate::{World, apps::Pattern};

/// How an application behaves.
#[derive(Clone, Debug)]
pub struct Behavior {
    /// Number of bytes the application sends before it ends its half.
    pub length: u64,
    /// Largest write, at least one byte; the size of each is drawn.
    pub write_max: u32,
    /// Pause after a write, if drawn.
    pub write_pause: Duration,
    /// Largest read, at least one byte.
    pub read_max: u32,
    /// Pause after a read, if drawn.
    pub read_pause: Duration,
    /// Whether the application sleeps in `recv`, as a thread does. Otherwise it polls readiness.
    pub waits: bool,
    /// Number of writes and reads per thousand that are followed by a pause.
    pub pauses: u32,
    /// Number of writes per thousand with `MSG_MORE`.
    pub more: u32,
    /// Number of steps per thousand that change an option.
    pub option_changes: u32,
    /// End of the application's side.
    pub ending: Ending,
    /// Header prediction for the lifetime of the connection. `None`: on, and one of the options
    /// that may change.
    pub prediction: Option<bool>,
}

/// How an application ends its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `shutdown(SHUT_WR)` after the last byte, then reads to the end.
    First,
    /// Reads to the end of the peer's stream, then shuts down its own.
    Last,
    /// `close` right after the last byte: for an application whose peer sends nothing.
    Close,
    /// Aborts once it has written and read this many bytes in total.
    Abort(u64),
}

/// One end of a connection with its application.
#[derive(Debug)]
pub struct End {
    host: usize,
    socket: Option<Arc<Connection>>,
    reader: Reader,
    behavior: Behavior,
    out: Pattern,
    sent: u64,
    inward: Pattern,
    expected: u64,
    received: u64,
    shut: bool,
    ended: bool,
    aborted: bool,
    failed: Option<Errno>,
    write_at: Instant,
    read_at: Instant,
    rng: Rng,
}

impl End {
    /// Makes an application on `socket` of host number `host`. The peer's application sends
    /// `expected` bytes of `inward`.
    #[must_use]
    pub fn new(
        (host, socket): (usize, Arc<Connection>),
        behavior: Behavior,
        out: Pattern,
        (inward, expected): (Pattern, u64),
        seed: u64,
    ) -> Self {
        Self {
            host,
            socket: Some(socket),
            reader: Reader::new(),
            behavior,
            out,
            sent: 0,
            inward,
            expected,
            received: 0,
            shut: false,
            ended: false,
            aborted: false,
            failed: None,
            write_at: Instant::ZERO,
            read_at: Instant::ZERO,
            rng: Rng::new(seed),
        }
    }

    /// As [`new`](Self::new), when `sent` bytes have left with the SYN.
    #[must_use]
    pub fn with_sent(
        sent: u64,
        end: (usize, Arc<Connection>),
        behavior: Behavior,
        out: Pattern,
        inward: (Pattern, u64),
        seed: u64,
    ) -> Self {
        Self { sent, ..Self::new(end, behavior, out, inward, seed) }
    }

    /// Makes all progress that is possible at this moment. Returns true if there was any.
    ///
    /// # Panics
    /// When a received byte is wrong.
    pub fn step(&mut self, world: &mut World) -> bool {
        let Some(socket) = self.socket.clone() else { return false };
        if self.draws(self.behavior.option_changes) {
            self.change_option(world, &socket);
        }
        let wrote = self.write(world, &socket);
        let read = self.read(world, &socket);
        if self.is_done() {
            self.close(world);
            return true;
        }
        wrote || read
    }

    /// Whether nothing is left to do, in good order or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let closed = self.behavior.ending == Ending::Close && self.shut;
        self.socket.is_none()
            || self.failed.is_some()
            || self.aborted
            || closed
            || self.shut && self.ended
    }

    /// Closes the socket, if it is still open.
    pub fn close(&mut self, world: &mut World) {
        if let Some(socket) = self.socket.take() {
            let host = Arc::clone(&world.hosts[self.host]);
            if self.reader.is_installed() {
                // A read timeout: the sleeping thread leaves `recv`. Data that it still reads is
                // ignored.
                let bufs = &mut [IoSliceMut::new(&mut [])];
                let _ = socket.recv_and_leave(&host, world.app(self.host), &mut self.reader, bufs);
            }
            socket.close(&host, world.app(self.host));
        }
    }

    /// Returns the time of the next write or read that waits for a pause to end.
    #[must_use]
    pub fn wakes_at(&self, now: Instant) -> Option<Instant> {
        self.socket.as_ref()?;
        [self.write_at, self.read_at].into_iter().filter(|at| *at > now).min()
    }

    /// Whether the application has aborted the connection.
    #[must_use]
    pub const fn has_aborted(&self) -> bool {
        self.aborted
    }

    /// Returns the number of bytes sent and received so far.
    #[must_use]
    pub const fn moved(&self) -> u64 {
        self.sent + self.received
    }

    /// Asserts that everything was sent and received; for connections that were not aborted.
    ///
    /// # Panics
    /// When something is missing.
    pub fn check_complete(&self) {
        assert_eq!(self.failed, None, "the connection failed: {}", self.summary());
        assert_eq!(self.sent, self.behavior.length, "bytes sent: {}", self.summary());
        assert_eq!(self.received, self.expected, "bytes received: {}", self.summary());
    }

    /// Describes the state of the application for a message.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self { sent, received, expected, shut, ended, failed, .. } = self;
        let (length, ready) = (self.behavior.length, self.socket.as_ref().map(|s| s.readiness()));
        format!(
            "sent {sent}/{length} received {received}/{expected} shut {shut} ended {ended} \
             failed {failed:?} ready {ready:?} {:?}",
            self.behavior.ending
        )
    }

    fn write(&mut self, world: &mut World, socket: &Arc<Connection>) -> bool {
        let host = Arc::clone(&world.hosts[self.host]);
        let mut wrote = false;
        while !self.shut && self.failed.is_none() && self.write_at <= world.cx.now {
            if let Ending::Abort(after) = self.behavior.ending
                && self.moved() >= after
            {
                self.aborted = true;
                socket.abort(&host, world.app(self.host));
                return true;
            }
            if self.sent == self.behavior.length {
                return self.finish_writing(world, socket) || wrote;
            }
            if !socket.readiness().contains(Readiness::WRITE) {
                break;
            }
            let bytes = self.next_write();
            let more = self.draws(self.behavior.more);
            let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
            let bytes = [IoSlice::new(&bytes)];
            match socket.send_with_flags(&host, world.app(self.host), &bytes, flags) {
                Ok(taken) => {
                    self.sent += taken as u64;
                    wrote = true;
                    if self.draws(self.behavior.pauses) {
                        self.write_at = world.cx.now + self.behavior.write_pause;
                    }
                }
                Err(Errno::EAGAIN | Errno::ENOBUFS) => break,
                Err(error) => self.failed = Some(error),
            }
        }
        wrote
    }

    fn next_write(&mut self) -> Vec<u8> {
        let left = self.behavior.length - self.sent;
        let want = u64::from(1 + self.rng.below(self.behavior.write_max)).min(left);
        let bytes = (self.sent..self.sent + want).map(|at| self.out.byte(at));
        bytes.collect()
    }

    /// Ends the half after the last write, at once or after the peer's.
    fn finish_writing(&mut self, world: &mut World, socket: &Arc<Connection>) -> bool {
        let host = Arc::clone(&world.hosts[self.host]);
        let state = socket.with_tcb(&host, world.app(self.host), |tcb, _| tcb.state());
        if state == State::SynSent {
            // Everything has left with the SYN: a shutdown now would abort the attempt.
            return false;
        }
        match self.behavior.ending {
            Ending::Last if !self.ended => return false,
            // `step` closes the socket.
            Ending::Close => {}
            _ => match socket.shutdown(&host, world.app(self.host), ShutdownHow::Write) {
                Ok(()) => {}
                Err(error) => self.failed = Some(error),
            },
        }
        self.shut = true;
        true
    }

    fn read(&mut self, world: &mut World, socket: &Arc<Connection>) -> bool {
        let host = Arc::clone(&world.hosts[self.host]);
        let mut read = false;
        while !self.ended
            && !self.aborted
            && self.failed.is_none()
            && self.read_at <= world.cx.now
            && self.behavior.ending != Ending::Close
        {
            let mut buf = vec![0; 1 + self.rng.below(self.behavior.read_max) as usize];
            // A thread that sleeps in a call makes no other call.
            let peek = !self.reader.is_installed() && self.draws(20);
            match self.receive(world, (&host, socket), &mut buf, peek) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    let wrong = self.inward.first_other(self.received, &buf[..count]);
                    assert_eq!(wrong, None, "offset of the first wrong byte of the stream");
                    if peek {
                        continue;
                    }
                    self.received += count as u64;
                    assert!(self.received <= self.expected, "more than was sent");
                    if self.draws(self.behavior.pauses) {
                        self.read_at = world.cx.now + self.behavior.read_pause;
                    }
                }
                Err(Errno::EAGAIN) => {
                    if self.reader.is_installed() && self.draws(self.behavior.pauses) {
                        // A thread is woken, but not scheduled at once.
                        self.read_at = world.cx.now + self.behavior.read_pause;
                    }
                    break;
                }
                Err(error) => self.failed = Some(error),
            }
            read = true;
        }
        read
    }

    /// Makes a reading call, or the next step of one that sleeps.
    fn receive(
        &mut self,
        world: &mut World,
        (host, socket): (&Arc<Host>, &Connection),
        buf: &mut [u8],
        peek: bool,
    ) -> Result<usize, Errno> {
        if peek || !self.behavior.waits {
            return socket.recv(host, world.app(self.host), buf, peek);
        }
        let bufs = &mut [IoSliceMut::new(buf)];
        if self.draws(100) {
            // Packets arrive while the call owns the socket.
            let hosts = world.hosts.clone();
            return socket.recv_interrupted(
                host,
                world.app(self.host),
                &mut self.reader,
                bufs,
                |cx| {
                    for host in &hosts {
                        let _ = host.poll(cx);
                    }
                },
            );
        }
        socket.recv_or_wait(host, world.app(self.host), &mut self.reader, bufs)
    }

    /// Changes a random option.
    fn change_option(&mut self, world: &mut World, socket: &Arc<Connection>) {
        let host = Arc::clone(&world.hosts[self.host]);
        let (what, value) = (self.rng.below(14), self.rng.next_u32());
        let on = value & 1 == 1;
        let prediction = self.behavior.prediction;
        socket.with_tcb(&host, world.app(self.host), |tcb, cx| match what {
            0 => tcb.set_nodelay(on),
            1 => tcb.set_cork(on),
            2 => tcb.set_quickack(on),
            3 => tcb.set_rcvbuf(2304 + value % 300_000),
            4 => tcb.set_sndbuf(4608 + value % 300_000),
            5 => tcb.set_notsent_lowat(1 + value % 100_000),
            6 => tcb.set_header_prediction(prediction.unwrap_or(on)),
            7 => {
                let choices = Algorithm::ALL;
                tcb.set_congestion(choices[value as usize % choices.len()]);
            }
            8 => tcb.set_maxseg(536 + (value % 1000) as u16),
            9 => {
                let often = Keepalive {
                    time: Duration::from_millis(u64::from(1 + value % 5000)),
                    interval: Duration::from_millis(500),
                    // No blackout is long enough for so many unanswered probes.
                    probes: 255,
                };
                tcb.set_keepalive(cx, on.then_some(often));
            }
            10 => tcb.set_window_clamp(value % 100_000),
            11 => tcb.set_rcvlowat(cx, 1 + value % 50_000),
            12 => tcb.set_oob_inline(on),
            // The result is ignored: the call must have no effect on the stream.
            _ => drop(tcb.info()),
        });
    }

    fn draws(&mut self, of_a_thousand: u32) -> bool {
        of_a_thousand > 0 && self.rng.below(1000) < of_a_thousand
    }
}
