//! `quietline serve`: assigns threads to connections, and ends cleanly at Ctrl-C.
//!
//! Connections of http wait for requests without a thread (`clients`), and one thread accepts them.
//! The other services transfer data all the time: each of their connections is served by the thread
//! that accepted it (`pool`).
//!
//! Below: `endpoint` sockets. The services themselves are in `serve/`.
//!
//! Not here: opening the link (`link`).

mod acceptor;
mod buffer;
mod chargen;
mod clients;
mod datagrams;
mod discard;
mod echo;
mod handler;
mod http;
mod log;
mod meter;
mod peers;
mod pool;
mod session;

use std::{
    fmt::Display,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::link::{StackStats, listening_address, loss, watch};
use anyhow::Context as _;

use self::{
    acceptor::{Acceptor, accept_clients},
    clients::Clients,
    handler::Handler,
    log::Log,
    meter::{Metered, Totals},
    peers::{Peers, Permit},
    pool::Pool,
    session::Session,
};
use crate::{
    args::{ServeArgs, Service, Stats},
    endpoint::{Datagrams as _, Host, KernelHost, Listener as _, StackHost, Stream},
    failure::Failure,
    output,
    signal::{Signals, Wake},
};

/// Size of a service's reads and writes: a few superframes, and small compared with the socket
/// buffers.
const BUFFER_BYTES: usize = 128 * 1024;

/// Time limit for connection threads to end. They only have to return from a call.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let link = args.link.check(&args.observe)?;
    let server = Arc::new(Server {
        handler: Handler::prepare(args)?,
        totals: Arc::default(),
        log: Arc::new(Log::new(args.verbose)),
        start: Instant::now(),
    });
    raise_descriptor_limit();
    // Installed before the link exists, so that a signal cannot leave the link behind.
    let signals = Signals::install().context("cannot install signal handlers")?;
    let Some(config) = link else {
        let address = SocketAddr::from(([127, 0, 0, 1], args.port()));
        let report = |at_end| server.report(args, address, None, at_end);
        let served = serve(KernelHost, address, args, &server, &signals, || report(false));
        let reported = report(true);
        return served.and(reported);
    };
    let mut link = args.link.open(&config, &args.observe, server.handler.files())?;
    server.handler.check_files()?;
    watch(&link.stack, signals.waker()?)?;
    let is_datagrams = matches!(args.service, Service::UdpEcho | Service::UdpDiscard);
    let address = SocketAddr::new(listening_address(&config, is_datagrams), args.port());
    let host = StackHost(link.stack.clone());
    let served = link.lease(&config, &signals).and_then(|()| {
        serve(host, address, args, &server, &signals, || {
            server.report(args, address, Some(&link.stack_stats()), false)
        })
    });
    let lost = loss(&link.stack).map_or(Ok(()), Err);
    // Closing ends every connection and its thread, which then publishes its byte counts.
    let (stack_stats, captured) = link.close();
    server.totals.settle(SETTLE_MAX);
    let reported = server.report(args, address, Some(&stack_stats), true);
    served.and(lost).and(captured).and(reported)
}

/// Serves until a signal, the loss of the link, or a permanent failure of accept. Calls `report` to
/// print statistics meanwhile.
fn serve<H: Host>(
    host: H,
    address: SocketAddr,
    args: &ServeArgs,
    server: &Arc<Server>,
    signals: &Signals,
    report: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let listening = |address: SocketAddr| {
        output::remark(&format!("quietline: {} listening on {address}", args.service.name()));
    };
    let broken = Arc::new(Mutex::new(None));
    if matches!(server.handler, Handler::UdpEcho | Handler::UdpDiscard) {
        let socket =
            host.bind_datagrams(address).with_context(|| format!("cannot listen on {address}"))?;
        listening(socket.local_addr().unwrap_or(address));
        datagrams::start(socket, Arc::clone(server), Arc::clone(&broken), signals.waker()?)?;
        return wait(args, server, signals, &broken, report);
    }
    let listener = host.bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listening(listener.local_addr().unwrap_or(address));
    let acceptor = Acceptor {
        listener,
        peers: Peers::new(args.max_per_peer),
        server: Arc::clone(server),
        broken: Arc::clone(&broken),
        waker: signals.waker()?,
    };
    let max = usize::try_from(args.max_connections).unwrap_or(usize::MAX);
    match &server.handler {
        Handler::Http(service) => {
            let clients = Clients::new(&host, max)?;
            let service = Arc::clone(service);
            let accept = move || accept_clients(&acceptor, &service, &clients);
            thread::Builder::new().name("acceptor".to_owned()).spawn(accept)?;
        }
        _ => Pool::start(max, acceptor)?,
    }
    wait(args, server, signals, &broken, report)
}

/// Waits until a signal, the loss of the link, or a permanent failure that a thread has stored in
/// `broken`.
fn wait(
    args: &ServeArgs,
    server: &Server,
    signals: &Signals,
    broken: &Mutex<Option<io::Error>>,
    report: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    // The threads are not joined: they block in calls, and end with the stack or the process.
    let every = args.observe.stats.and_then(|stats| stats.every);
    let wake = signals.wait_reporting(every, report);
    server.log.end();
    match wake? {
        Wake::Signal(_) | Wake::TimedOut | Wake::Report => Ok(()),
        Wake::Woken => {
            let error = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
            match error.filter(|error| error.kind() != ErrorKind::NetworkDown) {
                Some(error) => {
                    let context = match server.handler {
                        Handler::UdpEcho | Handler::UdpDiscard => "cannot receive datagrams",
                        _ => "cannot accept connections",
                    };
                    Err(anyhow::Error::new(error).context(context).into())
                }
                // The link is gone: the caller reports it after the statistics.
                None => Ok(()),
            }
        }
    }
}

/// Raises the limit of open files to the hard limit, because every served file and kernel socket
/// holds a descriptor. The default of 1024 exists for programs that use select(2). A failure is
/// ignored: the server works with the lower limit.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A service with its connection counters and its log.
#[derive(Debug)]
struct Server {
    handler: Handler,
    totals: Arc<Totals>,
    log: Arc<Log>,
    start: Instant,
}

impl Server {
    /// Starts the accounting of one served connection.
    fn session(&self, peer: SocketAddr, permit: Permit) -> Session {
        Session::begin(&self.totals, &self.log, peer, permit)
    }

    /// Serves one connection until it ends.
    fn serve<S: Stream>(&self, stream: S, session: Session) {
        let mut stream = Metered::new(stream, &self.totals);
        let outcome = self.handler.serve(&mut stream);
        session.end(&outcome, stream.moved());
    }

    /// Counts and logs a connection that was closed before it was served.
    fn refused(&self, peer: SocketAddr, reason: impl Display) {
        self.totals.refused();
        self.log.refused(peer, reason);
    }

    /// Prints statistics: at the end only those that `--stats` and `--json` request; before the end
    /// always.
    fn report(
        &self,
        args: &ServeArgs,
        address: SocketAddr,
        stack_stats: Option<&StackStats>,
        at_end: bool,
    ) -> Result<(), Failure> {
        let (totals, seconds) = (&self.totals, self.start.elapsed().as_secs_f64());
        let stats = args.observe.stats.or_else(|| (!at_end).then(Stats::default));
        let service = args.service.name();
        if !args.observe.json {
            let Some(stats) = stats else { return Ok(()) };
            let stack_stats =
                stack_stats.map_or_else(String::new, |stack_stats| stack_stats.text(stats.all));
            return output::print(&format!(
                "#{service} {address} after {seconds:.1} s: {}\n{stack_stats}",
                totals.sentence()
            ));
        }
        let mut summary = serde_json::json!({
            "command": "serve",
            "service": service,
            "address": address.to_string(),
            "seconds": seconds,
            "connections": totals.connections(),
            "open": totals.open(),
            "refused": totals.refusals(),
            "failed": totals.failures(),
            "bytes_received": totals.bytes_received(),
            "bytes_sent": totals.bytes_sent(),
        });
        if let Some(stack_stats) = stack_stats.filter(|_| stats.is_some()) {
            stack_stats.add_to(&mut summary);
        }
        output::print_json(&summary)
    }
}
