//! The calls of a script's process, on the sockets of the host.
//!
//! The stack's calls do not block. One that would is kept by the interpreter and tried again whenever the host has moved,
//! as a sleeping thread would be woken.
//!
//! Not here: options (`sockopt`), when a call may block (`run`).

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    host::Host,
    socket::{Listener, ShutdownHow, TcpSocket, options::SocketSettings},
};

use super::{
    ast::{Arg, Call},
    conn::stream_bytes,
    constants::{MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_WAITALL, O_NONBLOCK},
    sockopt,
};
use crate::World;

/// What a call has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done(Result<i64, Errno>),
    /// It sleeps.
    Blocks,
}

/// A call with how far it has come.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) call: Call,
    /// Bytes moved so far.
    moved: usize,
    /// It has done what is done once.
    begun: bool,
    /// When a call with a time limit gives up.
    until: Option<Instant>,
}

impl Running {
    pub(super) const fn new(call: Call) -> Self {
        Self { call, moved: 0, begun: false, until: None }
    }

    pub(super) const fn moved(&self) -> usize {
        self.moved
    }

    pub(super) const fn until(&self) -> Option<Instant> {
        self.until
    }
}

#[derive(Debug)]
struct File {
    kind: Kind,
    nonblocking: bool,
    local: Option<SocketAddr>,
    /// Options, until there is a connection or a listener to keep them.
    settings: SocketSettings,
    /// Bytes written and read: places in the two streams.
    written: u32,
    read: u32,
}

#[derive(Clone, Debug)]
enum Kind {
    Fresh,
    Listener(Arc<Listener>),
    Stream(Arc<TcpSocket>),
}

/// The sockets of a script.
#[derive(Debug)]
pub(super) struct Process {
    host_ip: Ipv4Addr,
    peer: SocketAddr,
    port: u16,
    files: BTreeMap<i64, File>,
    /// Every connection the process has had, closed or not.
    sockets: Vec<Arc<TcpSocket>>,
    /// A connection that `connect` has begun since the last look.
    pub(super) connected: Option<(SocketAddr, SocketAddr)>,
}

type Answer = Result<Outcome, String>;

const fn done(value: i64) -> Answer {
    Ok(Outcome::Done(Ok(value)))
}

const fn fail(errno: Errno) -> Answer {
    Ok(Outcome::Done(Err(errno)))
}

impl Process {
    pub(super) const fn new(host_ip: Ipv4Addr, peer: SocketAddr, port: u16) -> Self {
        Self { host_ip, peer, port, files: BTreeMap::new(), sockets: Vec::new(), connected: None }
    }

    /// The connection with these ends, if the process has had one. The latest, when there were several.
    pub(super) fn socket(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Arc<TcpSocket>> {
        self.sockets
            .iter()
            .rev()
            .find(|socket| (socket.local(), socket.remote()) == (local, remote))
    }

    pub(super) fn sockets(&self) -> &[Arc<TcpSocket>] {
        &self.sockets
    }

    /// Runs a call, or goes on with it.
    ///
    /// # Errors
    /// When the call is none, or what it returns beside its value is not what the script expects.
    pub(super) fn run(&mut self, world: &mut World, running: &mut Running) -> Answer {
        let host = Arc::clone(&world.hosts[0]);
        let Call { name, args, .. } = running.call.clone();
        let fd = || args.first().ok_or_else(|| String::from("an argument is missing"))?.number();
        match name.as_str() {
            "socket" => self.open(&args),
            "poll" => self.poll(world, running, &args),
            _ if !self.files.contains_key(&fd()?) => fail(Errno::EBADF),
            "bind" => self.bind(fd()?, &args),
            "listen" => self.listen(world, &host, fd()?, &args),
            "accept" | "accept4" => self.accept(fd()?, &args),
            "connect" => self.connect(world, &host, running, fd()?, &args),
            "write" | "send" | "sendto" => self.send(world, &host, running, fd()?, &args),
            "read" | "recv" | "recvfrom" => self.recv(world, &host, running, fd()?, &args),
            "shutdown" => self.shutdown(world, &host, fd()?, &args),
            "close" => self.close(world, &host, running, fd()?),
            "setsockopt" => self.setsockopt(world, &host, fd()?, &args),
            "getsockopt" => self.getsockopt(world, &host, fd()?, &args),
            "fcntl" => self.fcntl(fd()?, &args),
            "ioctl" => self.ioctl(world, &host, fd()?, &args),
            _ => Err(format!("{name}: no such call")),
        }
    }

    fn file(&mut self, fd: i64) -> &mut File {
        self.files.get_mut(&fd).expect("checked by run")
    }

    fn add(&mut self, kind: Kind, nonblocking: bool) -> i64 {
        let fd = (3..).find(|fd| !self.files.contains_key(fd)).expect("a free number");
        let settings = SocketSettings::default();
        let file = File { kind, nonblocking, local: None, settings, written: 0, read: 0 };
        self.files.insert(fd, file);
        fd
    }

    fn open(&mut self, args: &[Arg]) -> Answer {
        let kind = args.get(1).ok_or("socket needs a type")?.number()?;
        done(self.add(Kind::Fresh, kind & O_NONBLOCK != 0))
    }

    fn bind(&mut self, fd: i64, args: &[Arg]) -> Answer {
        let local = address(args.get(1), SocketAddr::new(self.host_ip.into(), self.port))?;
        self.file(fd).local = Some(local);
        done(0)
    }

    fn listen(&mut self, world: &mut World, host: &Arc<Host>, fd: i64, args: &[Arg]) -> Answer {
        let backlog = args.get(1).ok_or("listen needs a backlog")?.number()?;
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let local = self.file(fd).local.unwrap_or(any);
        let options = self.file(fd).settings.listen_options(backlog);
        match Listener::listen_with(host, &mut world.cx, local, &options) {
            Ok(listener) => self.file(fd).kind = Kind::Listener(listener),
            Err(errno) => return fail(errno),
        }
        done(0)
    }

    fn accept(&mut self, fd: i64, args: &[Arg]) -> Answer {
        let file = self.file(fd);
        let Kind::Listener(listener) = &file.kind else { return fail(Errno::EINVAL) };
        let flags = args.get(3).map_or(Ok(0), Arg::number)?;
        let socket = match listener.accept() {
            Ok(socket) => socket,
            Err(Errno::EAGAIN) if !file.nonblocking => return Ok(Outcome::Blocks),
            Err(errno) => return fail(errno),
        };
        self.sockets.push(Arc::clone(&socket));
        done(self.add(Kind::Stream(socket), flags & O_NONBLOCK != 0))
    }

    fn connect(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let remote = address(args.get(1), self.peer)?;
        let file = self.file(fd);
        let nonblocking = file.nonblocking;
        let socket = match &file.kind {
            Kind::Stream(socket) => Arc::clone(socket),
            Kind::Listener(_) => return fail(Errno::EISCONN),
            Kind::Fresh => {
                let options = file.settings.connect_options(file.local);
                let begun = TcpSocket::connect_with(host, &mut world.cx, remote, &options);
                let Ok(socket) = begun else { return Ok(Outcome::Done(begun.map(|_| 0))) };
                running.begun = true;
                self.begin_stream(fd, &socket);
                if nonblocking {
                    return fail(Errno::EINPROGRESS);
                }
                socket
            }
        };
        let ready = socket.readiness();
        if ready.intersects(Readiness::ERROR | Readiness::HUP) {
            return match socket.take_error(host, &mut world.cx) {
                Some(errno) => fail(errno),
                None => fail(Errno::ECONNABORTED),
            };
        }
        match (ready.contains(Readiness::WRITE), running.begun) {
            (true, true) => done(0),
            (true, false) => fail(Errno::EISCONN),
            (false, false) if nonblocking => fail(Errno::EALREADY),
            (false, _) => {
                running.begun = true;
                Ok(Outcome::Blocks)
            }
        }
    }

    /// A fresh socket has become a connection.
    fn begin_stream(&mut self, fd: i64, socket: &Arc<TcpSocket>) {
        self.file(fd).kind = Kind::Stream(Arc::clone(socket));
        self.connected = Some((socket.local(), socket.remote()));
        self.sockets.push(Arc::clone(socket));
    }

    fn send(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let len = size(args.get(2))?;
        let flags = args.get(3).map_or(Ok(0), Arg::number)?;
        known_flags(flags, MSG_DONTWAIT | MSG_MORE | MSG_NOSIGNAL | MSG_OOB)?;
        let file = self.file(fd);
        let Kind::Stream(socket) = &file.kind else { return fail(Errno::EPIPE) };
        let waits = !file.nonblocking && flags & MSG_DONTWAIT == 0;
        let bytes = stream_bytes(file.written, len - running.moved);
        let sent = if flags & MSG_OOB != 0 {
            socket.send_oob(host, &mut world.cx, &bytes)
        } else if flags & MSG_MORE == 0 {
            socket.send(host, &mut world.cx, &[std::io::IoSlice::new(&bytes)])
        } else {
            send_more(world, host, socket, &bytes)
        };
        match sent {
            Ok(sent) => {
                file.written = file.written.wrapping_add(u32::try_from(sent).expect("a write"));
                running.moved += sent;
                if waits && running.moved < len {
                    Ok(Outcome::Blocks)
                } else {
                    done_bytes(running.moved)
                }
            }
            Err(Errno::EAGAIN) if waits => Ok(Outcome::Blocks),
            Err(_) if running.moved > 0 => done_bytes(running.moved),
            Err(errno) => fail(errno),
        }
    }

    fn recv(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        fd: i64,
        args: &[Arg],
    ) -> Answer {
        let len = size(args.get(2))?;
        let flags = args.get(3).map_or(Ok(0), Arg::number)?;
        known_flags(flags, MSG_DONTWAIT | MSG_OOB | MSG_PEEK | MSG_WAITALL)?;
        let file = self.file(fd);
        let Kind::Stream(socket) = &file.kind else { return fail(Errno::ENOTCONN) };
        let waits = !file.nonblocking && flags & MSG_DONTWAIT == 0;
        let peek = flags & MSG_PEEK != 0;
        if flags & MSG_OOB != 0 {
            return match socket.recv_oob(host, &mut world.cx, peek) {
                Ok(byte) => done_bytes(usize::from(byte.is_some())),
                Err(errno) => fail(errno),
            };
        }
        // The urgent byte is none of the stream's.
        let skips = socket.with_tcb(host, &mut world.cx, |tcb, _| {
            tcb.at_mark() && !tcb.oob_inline() && tcb.readable_bytes() == 0
        });
        let mut buf = vec![0; len - running.moved];
        match socket.recv(host, &mut world.cx, &mut buf, peek) {
            Ok(read) => {
                let before = file.read;
                file.read = file.read.wrapping_add(u32::from(skips && read > 0));
                if buf[..read] != stream_bytes(file.read, read) {
                    return Err(format!("read: wrong bytes at {} of the stream", file.read));
                }
                if peek {
                    file.read = before;
                } else {
                    file.read = file.read.wrapping_add(u32::try_from(read).expect("a read"));
                    running.moved += read;
                }
                let all = running.moved == len || read == 0 || flags & MSG_WAITALL == 0;
                if all {
                    done_bytes(if peek { read } else { running.moved })
                } else {
                    Ok(Outcome::Blocks)
                }
            }
            Err(Errno::EAGAIN) if waits => Ok(Outcome::Blocks),
            Err(_) if running.moved > 0 => done_bytes(running.moved),
            Err(errno) => fail(errno),
        }
    }

    fn shutdown(&mut self, world: &mut World, host: &Arc<Host>, fd: i64, args: &[Arg]) -> Answer {
        let how = match args.get(1).ok_or("shutdown needs a direction")?.number()? {
            0 => ShutdownHow::Read,
            1 => ShutdownHow::Write,
            2 => ShutdownHow::Both,
            _ => return fail(Errno::EINVAL),
        };
        let Kind::Stream(socket) = &self.file(fd).kind else { return fail(Errno::ENOTCONN) };
        match socket.shutdown(host, &mut world.cx, how) {
            Ok(()) => done(0),
            Err(errno) => fail(errno),
        }
    }

    fn close(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        fd: i64,
    ) -> Answer {
        match &self.file(fd).kind {
            Kind::Fresh => {}
            Kind::Listener(listener) => listener.close(host, &mut world.cx),
            Kind::Stream(socket) => {
                let linger = socket.linger(host, &mut world.cx).filter(|time| !time.is_zero());
                if !running.begun {
                    running.begun = true;
                    socket.close(host, &mut world.cx);
                    running.until = linger.map(|time| world.cx.now + time);
                }
                let timed_out = running.until.is_none_or(|until| world.cx.now >= until);
                if socket.is_finishing() && !timed_out {
                    return Ok(Outcome::Blocks);
                }
            }
        }
        self.files.remove(&fd);
        done(0)
    }

    fn setsockopt(&mut self, world: &mut World, host: &Arc<Host>, fd: i64, args: &[Arg]) -> Answer {
        let [_, _, name, value, ..] = args else { return Err(String::from("too few arguments")) };
        let (option, value) = (sockopt::option(name.name()?)?, sockopt::value(value)?);
        let file = self.file(fd);
        let set = match &file.kind {
            Kind::Fresh => file.settings.set(option, &value, &host.sysctls()),
            Kind::Listener(listener) => listener.set_option(host, option, &value),
            Kind::Stream(socket) => socket.set_option(host, &mut world.cx, option, &value),
        };
        Ok(Outcome::Done(set.map(|()| 0)))
    }

    fn getsockopt(&mut self, world: &mut World, host: &Arc<Host>, fd: i64, args: &[Arg]) -> Answer {
        let [_, _, name, expected, ..] = args else {
            return Err(String::from("too few arguments"));
        };
        let (option, expected) = (sockopt::option(name.name()?)?, sockopt::value(expected)?);
        let file = self.file(fd);
        let value = match &file.kind {
            Kind::Fresh => file.settings.get(option, &host.sysctls()),
            Kind::Listener(listener) => listener.option(host, &world.cx, option),
            Kind::Stream(socket) => socket.option(host, &mut world.cx, option),
        };
        match value {
            Ok(value) => same(option.name(), expected, value),
            Err(errno) => fail(errno),
        }
    }

    fn fcntl(&mut self, fd: i64, args: &[Arg]) -> Answer {
        let file = self.file(fd);
        match args.get(1).ok_or("fcntl needs a command")?.name()? {
            "F_GETFL" => done(2 | if file.nonblocking { O_NONBLOCK } else { 0 }),
            "F_SETFL" => {
                let flags = args.get(2).ok_or("F_SETFL needs flags")?.number()?;
                file.nonblocking = flags & O_NONBLOCK != 0;
                done(0)
            }
            other => Err(format!("fcntl: {other}: no such command")),
        }
    }

    fn ioctl(&mut self, world: &mut World, host: &Arc<Host>, fd: i64, args: &[Arg]) -> Answer {
        let [_, name, expected] = args else { return Err(String::from("ioctl takes three")) };
        let Kind::Stream(socket) = &self.file(fd).kind else { return fail(Errno::EINVAL) };
        let (inq, outq, at_mark) = socket.with_tcb(host, &mut world.cx, |tcb, _| {
            (tcb.readable_bytes(), tcb.unacked_bytes(), tcb.at_mark())
        });
        let bytes = match name.name()? {
            "SIOCINQ" | "FIONREAD" => inq,
            "SIOCOUTQ" => outq,
            "SIOCATMARK" => usize::from(at_mark),
            other => return Err(format!("ioctl: {other}: no such request")),
        };
        same(name.name()?, expected.number()?, i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 1000)`
    fn poll(&self, world: &World, running: &mut Running, args: &[Arg]) -> Answer {
        let [Arg::List(list), _, timeout] = args else {
            return Err(String::from("poll takes three"));
        };
        let timeout = timeout.number()?;
        let mut ready = Vec::new();
        for entry in list {
            let events = entry.field("events")?.number()?;
            let Some(file) = self.files.get(&entry.field("fd")?.number()?) else {
                return Err(String::from("poll: no such descriptor"));
            };
            ready.push(events_of(&file.kind) & (events | 8 | 16));
        }
        let count = ready.iter().filter(|events| **events != 0).count();
        if !running.begun {
            running.begun = true;
            let limit = u64::try_from(timeout).ok().map(std::time::Duration::from_millis);
            running.until = limit.map(|limit| world.cx.now + limit);
        }
        if count == 0 && running.until.is_none_or(|until| world.cx.now < until) {
            return Ok(Outcome::Blocks);
        }
        for (entry, events) in list.iter().zip(&ready) {
            let expected = entry.field("revents")?.number()?;
            if expected != *events {
                return Err(format!("poll: expected revents {expected:#x}, came {events:#x}"));
            }
        }
        done_bytes(count)
    }
}

/// `events` of poll(2) from what a socket is ready for.
fn events_of(kind: &Kind) -> i64 {
    match kind {
        Kind::Fresh => 4 | 16,
        Kind::Listener(listener) => i64::from(listener.is_ready()),
        Kind::Stream(socket) => {
            let ready = socket.readiness();
            let bits = [
                (Readiness::READ, 1),
                (Readiness::WRITE, 4),
                (Readiness::ERROR, 8),
                (Readiness::HUP, 16),
                (Readiness::RDHUP, 0x2000),
                (Readiness::PRI, 2),
            ];
            bits.into_iter().filter(|(bit, _)| ready.contains(*bit)).map(|(_, event)| event).sum()
        }
    }
}

fn send_more(
    world: &mut World,
    host: &Arc<Host>,
    socket: &TcpSocket,
    bytes: &[u8],
) -> Result<usize, Errno> {
    use tcp::SendError;
    socket.with_tcb(host, &mut world.cx, |tcb, cx| tcb.send(cx, &[bytes], true)).map_err(|error| {
        match error {
            SendError::WouldBlock => Errno::EAGAIN,
            SendError::BrokenPipe => Errno::EPIPE,
            SendError::NoMemory => Errno::ENOBUFS,
            SendError::Connection(error) => error.into(),
        }
    })
}

fn done_bytes(bytes: usize) -> Answer {
    done(i64::try_from(bytes).unwrap_or(i64::MAX))
}

fn same<T: PartialEq + std::fmt::Debug>(name: &str, expected: T, came: T) -> Answer {
    if expected == came {
        done(0)
    } else {
        Err(format!("{name}: expected {expected:?}, came {came:?}"))
    }
}

fn size(arg: Option<&Arg>) -> Result<usize, String> {
    let value = arg.ok_or("a length is missing")?.number()?;
    usize::try_from(value).map_err(|_| format!("{value} is no length"))
}

fn known_flags(flags: i64, known: i64) -> Result<(), String> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(format!("flags {:#x}: not known here", flags & !known))
    }
}

/// `...`, or a `sockaddr_in` with the fields that differ from `default`.
fn address(arg: Option<&Arg>, default: SocketAddr) -> Result<SocketAddr, String> {
    let arg = arg.ok_or("an address is missing")?;
    if *arg == Arg::Any {
        return Ok(default);
    }
    let port = arg.field("sin_port")?.number()?;
    let port = u16::try_from(port).map_err(|_| format!("{port} is no port"))?;
    let ip = match arg.field("sin_addr") {
        Ok(Arg::Text(text)) => text.parse().map_err(|_| format!("{text} is no address"))?,
        Ok(Arg::Names(names)) if names[0] == "INADDR_ANY" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => default.ip(),
    };
    Ok(SocketAddr::new(ip, port))
}
