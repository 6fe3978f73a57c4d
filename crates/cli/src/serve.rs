//! `quietline serve`: one acceptor, a pool of connection threads, and a clean end at Ctrl-C.
//!
//! Below: `endpoint` sockets. The services themselves are in `serve/`.
//!
//! Not here: how a link is opened (`link`).

mod chargen;
mod discard;
mod echo;
mod http;
mod meter;
mod pool;

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::link::{Books, LinkSpec};
use anyhow::Context as _;

use self::{
    http::HttpService,
    meter::{Metered, Totals},
    pool::Pool,
};
use crate::{
    args::{ServeArgs, Service},
    endpoint::{Host, KernelHost, Listener, StackHost, Stream},
    failure::Failure,
    output,
    signal::{Signals, Wake},
};

/// Bytes moved by one read or write of a service: a few superframes, and small beside the socket buffers.
const BUFFER_BYTES: usize = 128 * 1024;

/// How long to stay away from `accept` after it failed for lack of memory or descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How long the end waits for connection threads to notice it. They only have to return from a call.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let link = args.link.check(&args.observe)?;
    let handler = Arc::new(Handler::prepare(args)?);
    raise_descriptor_limit();
    // Before the link exists, so that no moment is left in which a signal could leave it behind.
    let signals = Signals::install().context("cannot install signal handlers")?;
    let Some(config) = link else {
        let address = SocketAddr::from(([127, 0, 0, 1], args.port()));
        let totals = serve(KernelHost, address, args, handler, &signals)?;
        return report(args, address, &totals, None);
    };
    let link = args.link.open(&config, &args.observe)?;
    let address = SocketAddr::new(link.address, args.port());
    let totals = serve(StackHost(link.stack.clone()), address, args, handler, &signals)?;
    // Ends every connection, and with it its thread, which then publishes what it counted.
    let books = link.close()?;
    totals.settle(SETTLE_MAX);
    report(args, address, &totals, Some(&books))
}

/// Serves until a signal or until accepting fails for good.
fn serve<H: Host>(
    host: H,
    address: SocketAddr,
    args: &ServeArgs,
    handler: Arc<Handler>,
    signals: &Signals,
) -> Result<Arc<Totals>, Failure> {
    let listener = host.bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr().unwrap_or(address);
    output::remark(&format!("quietline: {} listening on {address}", args.service.name()));

    let totals = Arc::new(Totals::default());
    let broken = Arc::new(Mutex::new(None));
    let waker = signals.waker()?;
    let max = usize::try_from(args.max_connections).unwrap_or(usize::MAX);
    let acceptor = {
        let (totals, broken) = (Arc::clone(&totals), Arc::clone(&broken));
        move || {
            let error = accept_connections(&listener, max, &handler, &totals);
            *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            waker.wake();
        }
    };
    // Not joined: it sits in `accept` and ends with the stack or the process.
    thread::Builder::new().name("acceptor".to_owned()).spawn(acceptor)?;
    match signals.wait(None)? {
        Wake::Signal(_) | Wake::TimedOut => Ok(totals),
        Wake::Woken => {
            let error = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
            let error = error.unwrap_or_else(|| ErrorKind::Other.into());
            Err(anyhow::Error::new(error).context("cannot accept connections").into())
        }
    }
}

/// Accepts for ever; returns the error that made it impossible.
fn accept_connections<L: Listener>(
    listener: &L,
    max: usize,
    handler: &Arc<Handler>,
    totals: &Arc<Totals>,
) -> io::Error {
    let pool = {
        let (handler, totals) = (Arc::clone(handler), Arc::clone(totals));
        Pool::new(max, move |stream: L::Stream| handler.serve(&mut Metered::new(stream, &totals)))
    };
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                totals.connection();
                if pool.submit(stream).is_err() {
                    totals.refused();
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) if is_shortage(&error) => thread::sleep(ACCEPT_PAUSE),
            Err(error) => return error,
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

/// The connection died between handshake and accept: accept(2) says to try again.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}

fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .into_iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Prints what `--stats` and `--json` ask for.
fn report(
    args: &ServeArgs,
    address: SocketAddr,
    totals: &Totals,
    books: Option<&Books>,
) -> Result<(), Failure> {
    let books = books.filter(|_| args.observe.stats);
    if !args.observe.json {
        return books.map_or(Ok(()), |books| output::print(&books.text()));
    }
    let mut summary = serde_json::json!({
        "command": "serve",
        "service": args.service.name(),
        "address": address.to_string(),
        "connections": totals.connections(),
        "refused": totals.refusals(),
        "bytes_received": totals.bytes_received(),
        "bytes_sent": totals.bytes_sent(),
    });
    if let Some(books) = books {
        books.add_to(&mut summary);
    }
    output::print_json(&summary)
}

/// A service ready to take connections.
#[derive(Debug)]
enum Handler {
    /// RFC 862.
    Echo,
    /// RFC 863.
    Discard,
    /// RFC 864.
    Chargen {
        /// Without a copy.
        zero_copy: bool,
    },
    /// RFC 9112.
    Http(HttpService),
}

impl Handler {
    fn prepare(args: &ServeArgs) -> Result<Self, Failure> {
        if args.service != Service::Http && (args.dir.is_some() || args.upload) {
            let message = format!("--dir and --upload have no use with {}", args.service.name());
            return Err(Failure::Usage(message));
        }
        let can_zero_copy = args.service == Service::Chargen && args.link.link != LinkSpec::Kernel;
        if args.zerocopy && !can_zero_copy {
            let message = "--zerocopy is for chargen, and has no use with --link kernel";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(match args.service {
            Service::Echo => Self::Echo,
            Service::Discard => Self::Discard,
            Service::Chargen => Self::Chargen { zero_copy: args.zerocopy },
            Service::Http => {
                let Some(dir) = &args.dir else {
                    return Err(Failure::Usage("http needs --dir DIR".to_owned()));
                };
                let service = HttpService::open(dir, args.upload)
                    .map_err(|error| Failure::option("--dir", dir.display(), error))?;
                Self::Http(service)
            }
        })
    }

    /// Serves one connection to its end. What goes wrong on it is the peer's business alone, so the error
    /// ends here.
    fn serve<S: Stream>(&self, stream: &mut Metered<'_, S>) {
        let _ = match self {
            Self::Echo => echo::serve(stream),
            Self::Discard => discard::serve(stream),
            Self::Chargen { zero_copy } => chargen::serve(stream, *zero_copy),
            Self::Http(service) => service.serve(stream),
        };
    }
}
