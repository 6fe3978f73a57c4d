//! `quietline connect`: copies stdin to the socket, and the socket to stdout.
//!
//! The end of stdin closes the local side only. The command ends when the peer closes its side,
//! when the reader of stdout closes its pipe, or by a signal. After the peer has closed its side,
//! the command still sends the rest of a file or pipe on stdin; it does not wait for a terminal.
//! `--udp` selects datagrams ([`datagrams`]).
//!
//! A host name is looked up over the stack if a name server is known, otherwise by the system's
//! resolver over the machine's own network, before the link is opened (`target`).

use std::{
    io::{self, ErrorKind, IsTerminal as _, Read as _, Write as _},
    net::{Shutdown, SocketAddr},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::link::{StackStats, loss, watch};
use anyhow::{Context as _, anyhow};

use self::target::Target;

use crate::{
    args::{ConnectArgs, Stats},
    endpoint::{Host, KernelHost, StackHost, Stream},
    failure::Failure,
    output,
    sandbox::Files,
    signal::{Signals, Wake, Waker},
};

mod datagrams;
mod target;

/// Largest number of bytes that one read or write moves.
const BUFFER_BYTES: usize = 64 * 1024;

/// Idle limit of stdin after the peer has closed its side: a longer silence ends the command.
const STDIN_QUIET: Duration = Duration::from_secs(2);

/// Time limit for the peer to acknowledge the sent data when the command ends.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &ConnectArgs) -> Result<(), Failure> {
    let config = args.link.check(&args.observe)?;
    let target = Target::parse(&args.host, args.port)?;
    // By the machine's own network, and before the sandbox closes it.
    let early = match &config {
        Some(config) => target.early(config)?,
        None => Some(target.by_system()?),
    };
    let signals = Signals::install().context("cannot install signal handlers")?;
    let moved = Arc::new(Moved::default());
    let Some(config) = config else {
        let report = |at_end| report(args, &moved, None, at_end);
        let find = move || Ok(early.unwrap_or_default());
        let outcome = connect(KernelHost, args, find, &moved, &signals, || report(false));
        let reported = report(true);
        return outcome.and(reported);
    };
    let mut link = args.link.open(&config, &args.observe, Files::default())?;
    watch(&link.stack, signals.waker()?)?;
    let host = StackHost(link.stack.clone());
    let outcome = link.lease(&config, &signals).and_then(|()| {
        let (resolver, stack) = (link.resolver(&config.dns), link.stack.clone());
        let find = move || match early {
            Some(remotes) => Ok(remotes),
            None => target.by_stack(&resolver, &stack),
        };
        connect(host, args, find, &moved, &signals, || {
            report(args, &moved, Some(&link.stack_stats()), false)
        })
    });
    // When the link is gone, report its loss instead of the broken connection that it caused.
    let outcome = loss(&link.stack).map_or(outcome, Err);
    let (stack_stats, captured) = link.close();
    let reported = report(args, &moved, Some(&stack_stats), true);
    outcome.and(captured).and(reported)
}

/// Result of the transfer, for the main thread. `None` until the transfer ends.
type Ending = Arc<Mutex<Option<Result<(), Failure>>>>;

/// Bytes moved so far. Relaxed: read after the end, or for a report that needs no exact value.
#[derive(Debug, Default)]
struct Moved {
    sent: AtomicU64,
    received: AtomicU64,
    /// Address that accepted the connection.
    remote: OnceLock<SocketAddr>,
}

/// Connects to one of the addresses that `find` returns, and moves bytes until the connection ends.
/// `find` runs in another thread, so that a signal ends the command at once.
fn connect<H: Host>(
    host: H,
    args: &ConnectArgs,
    find: impl FnOnce() -> Result<Vec<SocketAddr>, Failure> + Send + 'static,
    moved: &Arc<Moved>,
    signals: &Signals,
    report: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ending: Ending = Arc::default();
    let (waker, udp) = (signals.waker()?, args.udp);
    {
        let (ending, moved) = (Arc::clone(&ending), Arc::clone(moved));
        // Neither this thread nor the sender thread is joined: both may block in a call that a
        // signal does not interrupt.
        thread::Builder::new().name("receiver".to_owned()).spawn(move || {
            let outcome = find().and_then(|remotes| {
                if udp {
                    let socket = datagrams::connect_to_any(&host, &remotes, &moved)?;
                    datagrams::exchange(socket, &moved)
                } else {
                    exchange(connect_to_any(&host, &remotes, &moved)?, &moved)
                }
            });
            end(&ending, &waker, outcome);
        })?;
    }
    let every = args.observe.stats.and_then(|stats| stats.every);
    match signals.wait_reporting(every, report)? {
        Wake::Signal(number) => Err(Failure::Signal(number)),
        Wake::Woken | Wake::Report | Wake::TimedOut => {
            ending.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(Ok(()))
        }
    }
}

/// Connects to the first address that accepts; returns the error of the last one if none does.
fn connect_to_any<H: Host>(
    host: &H,
    remotes: &[SocketAddr],
    moved: &Moved,
) -> Result<H::Stream, Failure> {
    let mut failure = anyhow!("the host has no address");
    for &remote in remotes {
        match host.connect(remote) {
            Ok(stream) => {
                let _ = moved.remote.set(remote);
                return Ok(stream);
            }
            Err(error) => {
                failure = anyhow::Error::new(error).context(format!("cannot connect to {remote}"));
            }
        }
    }
    Err(failure.into())
}

fn end(ending: &Ending, waker: &Waker, outcome: Result<(), Failure>) {
    *ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    waker.wake();
}

/// Moves bytes both ways until the peer closes its side.
fn exchange<S: Stream>(stream: S, moved: &Arc<Moved>) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    stream.wait_on_close(CLOSE_MAX)?;
    let sender = stream.try_clone()?;
    let (done, sending) = mpsc::channel();
    {
        let moved = Arc::clone(moved);
        thread::Builder::new().name("sender".to_owned()).spawn(move || {
            // The channel is closed if the receiver has already ended the command.
            let _ = done.send(send(sender, &moved));
        })?;
    }
    receive(stream, moved)?;
    // A reset is reported once, to the thread that asks first: the receiver may have seen an
    // ordinary end.
    match wait_while_sending(&sending, moved) {
        Some(Err(error)) => Err(anyhow::Error::new(error).context("the connection broke").into()),
        _ => Ok(()),
    }
}

/// Waits while the sender makes progress, and returns its result if it has ended.
fn wait_while_sending(
    sending: &mpsc::Receiver<io::Result<()>>,
    moved: &Moved,
) -> Option<io::Result<()>> {
    if io::stdin().is_terminal() {
        return sending.try_recv().ok();
    }
    let mut before = moved.sent.load(Ordering::Relaxed);
    loop {
        match sending.recv_timeout(STDIN_QUIET) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let sent = moved.sent.load(Ordering::Relaxed);
        if sent == before {
            return None;
        }
        before = sent;
    }
}

fn send<S: Stream>(mut stream: S, moved: &Moved) -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) => return stream.shutdown(Shutdown::Write),
            Ok(count) => {
                stream.write_all(&buffer[..count])?;
                moved.sent.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn receive<S: Stream>(mut stream: S, moved: &Moved) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                moved.received.fetch_add(count as u64, Ordering::Relaxed);
                let written = stdout.write_all(&buffer[..count]).and_then(|()| stdout.flush());
                output::reader_gone(written)?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(anyhow::Error::new(error).context("the connection broke").into());
            }
        }
    }
}

/// Prints statistics to stderr, because stdout carries the stream. At the end only those that
/// `--stats` and `--json` request; before the end always.
fn report(
    args: &ConnectArgs,
    moved: &Moved,
    stack_stats: Option<&StackStats>,
    at_end: bool,
) -> Result<(), Failure> {
    let stats = args.observe.stats.or_else(|| (!at_end).then(Stats::default));
    let received = moved.received.load(Ordering::Relaxed);
    let sent = moved.sent.load(Ordering::Relaxed);
    let remote = moved.remote.get().map(SocketAddr::to_string);
    if args.observe.json {
        let mut summary = serde_json::json!({
            "command": "connect",
            "host": args.host,
            "remote": remote,
            "bytes_received": received,
            "bytes_sent": sent,
        });
        if let Some(stack_stats) = stack_stats.filter(|_| stats.is_some()) {
            stack_stats.add_to(&mut summary);
        }
        output::remark(output::json_line(&summary)?.trim_end());
    } else if let Some(stats) = stats {
        let remote = remote.as_deref().unwrap_or("not connected");
        let stack_stats =
            stack_stats.map_or_else(String::new, |stack_stats| stack_stats.text(stats.all));
        let text = format!("#{remote}: {received} bytes received, {sent} sent\n{stack_stats}");
        output::remark(text.trim_end());
    }
    Ok(())
}
