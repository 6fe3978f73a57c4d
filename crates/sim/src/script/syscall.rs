//! The calls of a script's process, on the sockets of the host.
//!
//! The stack's calls do not block. One that would is kept by the interpreter and tried again whenever the host has moved,
//! as a sleeping thread would be woken.
//!
//! Here: calls that make, connect and end sockets. `transfer` moves bytes, `query` asks and sets.
//!
//! Not here: values of options (`sockopt`), when a call may block (`run`).

mod query;
mod transfer;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    host::Host,
    socket::{Listener, Reader, ShutdownHow, TcpSocket, options::SocketSettings},
};

use super::{
    ast::{Arg, Call},
    constants::O_NONBLOCK,
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
    /// The thread that sleeps in a read.
    reader: Reader,
    /// It connects, and nobody has been told how that ended.
    connecting: bool,
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
        let file = File {
            kind,
            nonblocking,
            local: None,
            settings,
            reader: Reader::new(),
            connecting: false,
            written: 0,
            read: 0,
        };
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
                // With Fast Open and a cookie the first write connects.
                if nonblocking && !socket.readiness().contains(Readiness::WRITE) {
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
        let file = self.file(fd);
        (file.kind, file.connecting) = (Kind::Stream(Arc::clone(socket)), true);
        self.connected = Some((socket.local(), socket.remote()));
        self.sockets.push(Arc::clone(socket));
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
}

fn done_bytes(bytes: usize) -> Answer {
    done(i64::try_from(bytes).unwrap_or(i64::MAX))
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
