//! The calls of a script's process, on the sockets of the host.
//!
//! States, errors and flags are those of crate `posix`. A call that blocks is kept by the
//! interpreter and stepped again whenever the host has done something, as a sleeping thread would
//! be woken.
//!
//! Here: calls that make, connect and end sockets. `transfer` moves bytes, `query` reads and sets.
//!
//! Not here: when a call may block (`run`).

mod query;
mod transfer;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::Instant;
use posix::{
    Accept, Close, Connect, GiveUp, Recv, Send, Socket, Step,
    abi::{AF_INET, AF_INET6},
};
use stack::{Errno, host::Host, socket::Connection};

use super::{
    ast::{Arg, Call},
    family::Family,
};
use crate::World;

/// Progress of a call after one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done(Result<i64, Errno>),
    /// The process sleeps in the call.
    Blocks,
}

/// A call with its progress.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) call: Call,
    progress: Progress,
    /// Moment at which a call with a time limit gives up. Set when the call blocks.
    until: Option<Instant>,
}

/// A call that may block. The interpreter steps it until it is done.
#[derive(Debug)]
enum Progress {
    /// No step was taken.
    New,
    Accept(Accept),
    Connect(Connect),
    Send {
        call: Send,
        bytes: Vec<u8>,
        /// Place of the first byte in the stream.
        start: u32,
    },
    Recv {
        call: Recv,
        buf: Vec<u8>,
        /// Place of the first byte in the stream.
        start: u32,
        flags: i32,
    },
    Close(Close, Arc<Socket>),
    Poll(Option<Duration>),
}

impl Running {
    pub(super) const fn new(call: Call) -> Self {
        Self { call, progress: Progress::New, until: None }
    }

    /// Bytes moved so far.
    pub(super) const fn moved(&self) -> usize {
        match &self.progress {
            Progress::Send { call, .. } => call.sent(),
            Progress::Recv { call, .. } => call.received(),
            _ => 0,
        }
    }

    pub(super) const fn until(&self) -> Option<Instant> {
        self.until
    }
}

#[derive(Debug)]
struct File {
    socket: Arc<Socket>,
    /// Bytes written and read: places in the two streams.
    written: u32,
    read: u32,
}

/// The sockets of a script.
#[derive(Debug)]
pub(super) struct Process {
    host_ip: Ipv4Addr,
    peer: SocketAddr,
    port: u16,
    family: Family,
    files: BTreeMap<i64, File>,
    /// Every connection of the process, closed ones included.
    sockets: Vec<Arc<Connection>>,
    /// Both ends of a connection that the process has begun since the interpreter last asked.
    pub(super) connected: Option<(SocketAddr, SocketAddr)>,
}

type Answer = Result<Outcome, String>;

const fn done(value: i64) -> Answer {
    Ok(Outcome::Done(Ok(value)))
}

const fn fail(errno: Errno) -> Answer {
    Ok(Outcome::Done(Err(errno)))
}

/// The answer of a call that returns 0.
fn done_if(result: Result<(), Errno>) -> Answer {
    Ok(Outcome::Done(result.map(|()| 0)))
}

fn done_bytes(bytes: usize) -> Answer {
    done(i64::try_from(bytes).unwrap_or(i64::MAX))
}

impl Process {
    pub(super) fn new(host_ip: Ipv4Addr, peer: SocketAddr, port: u16, family: Family) -> Self {
        let (files, sockets) = (BTreeMap::new(), Vec::new());
        Self { host_ip, peer, port, family, files, sockets, connected: None }
    }

    /// The latest connection of the process with these ends.
    pub(super) fn socket(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Arc<Connection>> {
        self.sockets
            .iter()
            .rev()
            .find(|socket| (socket.local(), socket.remote()) == (local, remote))
    }

    pub(super) fn sockets(&self) -> &[Arc<Connection>] {
        &self.sockets
    }

    /// Runs a call until it is done or blocks.
    ///
    /// # Errors
    /// When the call does not exist, or returns something else beside its value than the script
    /// expects.
    pub(super) fn run(&mut self, world: &mut World, running: &mut Running) -> Answer {
        let host = Arc::clone(&world.hosts[0]);
        if matches!(running.progress, Progress::New) {
            let Call { name, args, .. } = running.call.clone();
            match self.begin(world, &host, running, &name, &args)? {
                Outcome::Blocks => {}
                done @ Outcome::Done(_) => return Ok(done),
            }
        }
        let first = running.until.is_none();
        match self.step(world, &host, running)? {
            Outcome::Blocks => {}
            done @ Outcome::Done(_) => return Ok(done),
        }
        if first {
            running.until = self.limit(running)?.map(|limit| world.cx.now + limit);
        }
        if running.until.is_some_and(|until| world.cx.now >= until) {
            return self.give_up(world, &host, running);
        }
        Ok(Outcome::Blocks)
    }

    /// Begins a call: one that never blocks is done, another one is left in `running.progress`.
    fn begin(
        &mut self,
        world: &mut World,
        host: &Arc<Host>,
        running: &mut Running,
        name: &str,
        args: &[Arg],
    ) -> Answer {
        match name {
            "socket" => return self.open(args),
            "poll" => {
                let timeout = int(args.get(2), "poll needs a timeout")?;
                running.progress = Progress::Poll(posix::limit_of_ms(timeout));
                return Ok(Outcome::Blocks);
            }
            _ => {}
        }
        let fd = descriptor(args)?;
        let Some(file) = self.files.get(&fd) else { return fail(Errno::EBADF) };
        let socket = Arc::clone(&file.socket);
        running.progress = match name {
            "bind" => {
                let local = address(args.get(1), SocketAddr::new(self.host_ip.into(), self.port))?;
                let local = self.family.of_process(local);
                return done_if(socket.bind(host, &mut world.cx, local));
            }
            "listen" => {
                let backlog = int(args.get(1), "listen needs a backlog")?;
                return done_if(socket.listen(host, &mut world.cx, backlog));
            }
            "shutdown" => {
                let how = int(args.get(1), "shutdown needs a direction")?;
                return done_if(socket.shutdown(host, &mut world.cx, how));
            }
            "setsockopt" => return query::setsockopt(&socket, world, host, args),
            "getsockopt" => return query::getsockopt(&socket, world, host, args),
            "fcntl" => return query::fcntl(&socket, args),
            "ioctl" => return query::ioctl(&socket, world, host, args),
            "accept" | "accept4" => Progress::Accept(Accept::new(number_or(args.get(3), 0)?)),
            "connect" => {
                let remote = address(args.get(1), self.peer)?;
                Progress::Connect(Connect::new(self.family.of_process(remote)))
            }
            "write" | "send" | "sendto" => self.begin_send(file, args)?,
            "read" => transfer::begin_recv(file, args, None)?,
            "recv" | "recvfrom" => {
                transfer::begin_recv(file, args, Some(number_or(args.get(3), 0)?))?
            }
            "close" => {
                self.files.remove(&fd);
                Progress::Close(Close::new(), socket)
            }
            _ => return Err(format!("{name}: no such call")),
        };
        Ok(Outcome::Blocks)
    }

    fn step(&mut self, world: &mut World, host: &Arc<Host>, running: &mut Running) -> Answer {
        let args = &running.call.args;
        let cx = &mut world.cx;
        match &mut running.progress {
            Progress::New => Err(String::from("a call that was not begun")),
            Progress::Accept(call) => {
                let step = call.step(&self.file(args)?.socket);
                match step {
                    Ok(Step::Ready(accepted)) => {
                        self.sockets.extend(accepted.socket.stream());
                        done(self.add(accepted.socket))
                    }
                    Ok(Step::Blocks) => Ok(Outcome::Blocks),
                    Err(errno) => fail(errno),
                }
            }
            Progress::Connect(call) => {
                let socket = Arc::clone(&self.file(args)?.socket);
                let step = call.step(&socket, host, cx);
                self.note_begun(&socket);
                Ok(outcome(step, |()| 0))
            }
            Progress::Send { call, bytes, start } => {
                let step = self.step_send(args, (call, bytes, *start), host, cx)?;
                Ok(outcome(step, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
            }
            Progress::Recv { .. } => self.step_recv(world, host, running),
            Progress::Close(call, socket) => Ok(outcome(call.step(socket, host, cx), |()| 0)),
            Progress::Poll(_) => self.poll(args, false),
        }
    }

    /// Longest sleep of a call that blocks.
    fn limit(&mut self, running: &Running) -> Result<Option<Duration>, String> {
        let args = &running.call.args;
        Ok(match &running.progress {
            Progress::New => None,
            Progress::Accept(call) => call.limit(&self.file(args)?.socket),
            Progress::Connect(call) => call.limit(&self.file(args)?.socket),
            Progress::Send { call, .. } => call.limit(&self.file(args)?.socket),
            Progress::Recv { call, .. } => call.limit(&self.file(args)?.socket),
            Progress::Close(call, _) => call.limit(),
            Progress::Poll(limit) => *limit,
        })
    }

    /// Ends a call whose time is over.
    fn give_up(&mut self, world: &mut World, host: &Arc<Host>, running: &mut Running) -> Answer {
        let why = GiveUp::TimedOut;
        match &mut running.progress {
            Progress::Accept(call) => fail(call.give_up(why)),
            Progress::Connect(call) => fail(call.give_up(why)),
            Progress::Send { call, .. } => match call.give_up(why) {
                Ok(bytes) => done_bytes(bytes),
                Err(errno) => fail(errno),
            },
            Progress::Recv { .. } => self.give_up_recv(world, host, running),
            Progress::Poll(_) => self.poll(&running.call.args, true),
            Progress::New | Progress::Close(..) => done(0),
        }
    }

    fn file(&mut self, args: &[Arg]) -> Result<&mut File, String> {
        self.files.get_mut(&descriptor(args)?).ok_or_else(|| String::from("a closed descriptor"))
    }

    fn add(&mut self, socket: Socket) -> i64 {
        let fd = (3..).find(|fd| !self.files.contains_key(fd)).expect("a free number");
        self.files.insert(fd, File { socket: Arc::new(socket), written: 0, read: 0 });
        fd
    }

    fn open(&mut self, args: &[Arg]) -> Answer {
        let kind = int(args.get(1), "socket needs a type")?;
        let (domain, protocol) = (number_or(args.first(), AF_INET)?, number_or(args.get(2), 0)?);
        let domain = match (domain, self.family) {
            (AF_INET, Family::V6 | Family::Mapped) => AF_INET6,
            (domain, _) => domain,
        };
        match Socket::open(domain, kind, protocol) {
            Ok(socket) => done(self.add(socket)),
            Err(errno) => fail(errno),
        }
    }

    /// Records the connection that a call on `socket` has begun, if it has begun one.
    fn note_begun(&mut self, socket: &Socket) {
        let Some(stream) = socket.stream() else { return };
        if !self.sockets.iter().any(|known| Arc::ptr_eq(known, &stream)) {
            self.connected = Some((stream.local(), stream.remote()));
            self.sockets.push(stream);
        }
    }
}

fn outcome<T>(step: posix::Answer<T>, value: impl FnOnce(T) -> i64) -> Outcome {
    match step {
        Ok(Step::Ready(ready)) => Outcome::Done(Ok(value(ready))),
        Ok(Step::Blocks) => Outcome::Blocks,
        Err(errno) => Outcome::Done(Err(errno)),
    }
}

fn descriptor(args: &[Arg]) -> Result<i64, String> {
    args.first().ok_or_else(|| String::from("an argument is missing"))?.number()
}

/// An `int`; `missing` is the message when there is none.
fn int(arg: Option<&Arg>, missing: &str) -> Result<i32, String> {
    let number = arg.ok_or(missing)?.number()?;
    i32::try_from(number).map_err(|_| format!("{number} is more than an int holds"))
}

/// An `int`, or `default` for `...` and for a missing argument.
fn number_or(arg: Option<&Arg>, default: i32) -> Result<i32, String> {
    match arg {
        None | Some(Arg::Any) => Ok(default),
        arg => int(arg, "an argument is missing"),
    }
}

/// `...`, or a `sockaddr_in` with the fields that differ from `default`.
fn address(arg: Option<&Arg>, default: SocketAddr) -> Result<SocketAddr, String> {
    let arg = arg.ok_or("an address is missing")?;
    if *arg == Arg::Any {
        return Ok(default);
    }
    let port = arg.field("sin_port")?.number()?;
    let port = u16::try_from(port).map_err(|_| format!("{port} is not a port"))?;
    let ip = match arg.field("sin_addr") {
        Ok(Arg::Text(text)) => text.parse().map_err(|_| format!("{text} is not an address"))?,
        Ok(Arg::Names(names)) if names[0] == "INADDR_ANY" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => default.ip(),
    };
    Ok(SocketAddr::new(ip, port))
}
