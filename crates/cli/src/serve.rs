//! `quietline serve`: threads for the connections that have something to do, and a clean end at Ctrl-C.
//!
//! The connections of http wait for requests without a thread (`clients`), and one thread accepts them; each connection of the other
//! services, which talk all the time, has the thread that has accepted it (`pool`).
//!
//! Below: `endpoint` sockets. The services themselves are in `serve/`.
//!
//! Not here: how a link is opened (`link`).

mod buffer;
mod chargen;
mod clients;
mod discard;
mod door;
mod echo;
mod handler;
mod http;
mod log;
mod meter;
mod peers;
mod pool;
mod visit;

use std::{
    fmt::Display,
    io::ErrorKind,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::link::{StackStats, loss, watch};
use anyhow::Context as _;

use self::{
    clients::Clients,
    door::{Door, accept_clients},
    handler::Handler,
    log::Log,
    meter::{Metered, Totals},
    peers::{Peers, Place},
    pool::Pool,
    visit::Visit,
};
use crate::{
    args::{ServeArgs, Stats},
    endpoint::{Host, KernelHost, Listener as _, StackHost, Stream},
    failure::Failure,
    output,
    signal::{Signals, Wake},
};

/// Bytes moved by one read or write of a service: a few superframes, and small beside the socket buffers.
const BUFFER_BYTES: usize = 128 * 1024;

/// How long the end waits for connection threads to notice it. They only have to return from a call.
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
    // Before the link exists, so that no moment is left in which a signal could leave it behind.
    let signals = Signals::install().context("cannot install signal handlers")?;
    let Some(config) = link else {
        let address = SocketAddr::from(([127, 0, 0, 1], args.port()));
        let report = |at_end| server.report(args, address, None, at_end);
        let served = serve(KernelHost, address, args, &server, &signals, || report(false));
        let reported = report(true);
        return served.and(reported);
    };
    let link = args.link.open(&config, &args.observe, server.handler.files())?;
    server.handler.check_files()?;
    watch(&link.stack, signals.waker()?)?;
    let address = SocketAddr::new(link.address, args.port());
    let host = StackHost(link.stack.clone());
    let served = serve(host, address, args, &server, &signals, || {
        server.report(args, address, Some(&link.stack_stats()), false)
    });
    let lost = loss(&link.stack).map_or(Ok(()), Err);
    // Ends every connection, and with it its thread, which then publishes what it counted.
    let (stack_stats, captured) = link.close();
    server.totals.settle(SETTLE_MAX);
    let reported = server.report(args, address, Some(&stack_stats), true);
    served.and(lost).and(captured).and(reported)
}

/// Serves until a signal, the loss of the link or until accepting fails for good. `report` prints statistics meanwhile.
fn serve<H: Host>(
    host: H,
    address: SocketAddr,
    args: &ServeArgs,
    server: &Arc<Server>,
    signals: &Signals,
    report: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let listener = host.bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr().unwrap_or(address);
    output::remark(&format!("quietline: {} listening on {address}", args.service.name()));

    let broken = Arc::new(Mutex::new(None));
    let door = Door {
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
            let acceptor = move || accept_clients(&door, &service, &clients);
            thread::Builder::new().name("acceptor".to_owned()).spawn(acceptor)?;
        }
        _ => Pool::start(max, door)?,
    }
    // No thread is joined: they sit in calls and end with the stack or the process.
    let every = args.observe.stats.and_then(|stats| stats.every);
    let wake = signals.wait_reporting(every, report);
    server.log.end();
    match wake? {
        Wake::Signal(_) | Wake::TimedOut | Wake::Report => Ok(()),
        Wake::Woken => {
            let error = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
            match error.filter(|error| error.kind() != ErrorKind::NetworkDown) {
                Some(error) => {
                    Err(anyhow::Error::new(error).context("cannot accept connections").into())
                }
                // The link is gone: the caller says so, after what was counted.
                None => Ok(()),
            }
        }
    }
}

/// A served file holds a descriptor, and so does a kernel socket: the soft limit of 1024 is for programs
/// that use select(2). Failing to raise it is no reason not to serve.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A service, its connections in numbers, and its log.
#[derive(Debug)]
struct Server {
    handler: Handler,
    totals: Arc<Totals>,
    log: Arc<Log>,
    start: Instant,
}

impl Server {
    /// A connection is served from here on.
    fn visit(&self, peer: SocketAddr, place: Place) -> Visit {
        Visit::begin(&self.totals, &self.log, peer, place)
    }

    /// Serves one connection to its end.
    fn serve<S: Stream>(&self, stream: S, visit: Visit) {
        let mut stream = Metered::new(stream, &self.totals);
        let outcome = self.handler.serve(&mut stream);
        visit.end(&outcome, stream.moved());
    }

    /// A connection was closed before it was served.
    fn refused(&self, peer: SocketAddr, reason: impl Display) {
        self.totals.refused();
        self.log.refused(peer, reason);
    }

    /// Prints statistics: at the end those that `--stats` and `--json` ask for, before it in any case.
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
