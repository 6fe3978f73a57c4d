//! `quietline connect`: stdin to the socket, the socket to stdout.
//!
//! The end of stdin closes our side only; the command ends when the peer closes its side, when stdout's reader
//! goes away, or by a signal. A peer that closes its side first still gets what a file or pipe on stdin has for
//! it; a terminal is not waited for.

use std::{
    io::{self, ErrorKind, IsTerminal as _, Read as _, Write as _},
    net::Shutdown,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::link::Books;
use anyhow::Context as _;

use crate::{
    args::ConnectArgs,
    endpoint::{Host, KernelHost, StackHost, Stream},
    failure::Failure,
    output,
    signal::{Signals, Wake, Waker},
};

/// Bytes moved by one read or write.
const BUFFER_BYTES: usize = 64 * 1024;

/// After the peer ended its side, stdin that brings nothing for this long has nothing more for the peer.
const STDIN_QUIET: Duration = Duration::from_secs(2);

/// How long the end of the command waits for the peer to acknowledge what it was sent.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &ConnectArgs) -> Result<(), Failure> {
    let link = args.link.check(&args.observe)?;
    if args.host.is_unspecified() || args.host.is_multicast() {
        return Err(Failure::option("HOST", args.host, "no host has this address"));
    }
    if link.as_ref().is_some_and(|link| link.address.addr().is_ipv4() != args.host.is_ipv4()) {
        return Err(Failure::option("HOST", args.host, "not of the same family as --address"));
    }
    let signals = Signals::install().context("cannot install signal handlers")?;
    let moved = Arc::new(Moved::default());
    let Some(config) = link else {
        let outcome = connect(KernelHost, args, &moved, &signals);
        report(args, &moved, None)?;
        return outcome;
    };
    let link = args.link.open(&config, &args.observe)?;
    let outcome = connect(StackHost(link.stack.clone()), args, &moved, &signals);
    let books = link.close()?;
    report(args, &moved, Some(&books))?;
    outcome
}

/// How one direction or the whole ended, told to the main thread.
type Ending = Arc<Mutex<Option<Result<(), Failure>>>>;

/// Bytes moved so far. Relaxed: read after the end or for a summary only.
#[derive(Debug, Default)]
struct Moved {
    sent: AtomicU64,
    received: AtomicU64,
}

fn connect<H: Host>(
    host: H,
    args: &ConnectArgs,
    moved: &Arc<Moved>,
    signals: &Signals,
) -> Result<(), Failure> {
    let ending: Ending = Arc::default();
    let waker = signals.waker()?;
    let remote = args.remote();
    {
        let (ending, moved) = (Arc::clone(&ending), Arc::clone(moved));
        // Not joined, and neither is the thread it starts: both may sit in a call that a signal does not end.
        thread::Builder::new().name("receiver".to_owned()).spawn(move || {
            let outcome = host
                .connect(remote)
                .with_context(|| format!("cannot connect to {remote}"))
                .map_err(Failure::from)
                .and_then(|stream| exchange(stream, &moved));
            end(&ending, &waker, outcome);
        })?;
    }
    match signals.wait(None)? {
        Wake::Signal(number) => Err(Failure::Signal(number)),
        Wake::Woken | Wake::TimedOut => {
            ending.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(Ok(()))
        }
    }
}

fn end(ending: &Ending, waker: &Waker, outcome: Result<(), Failure>) {
    *ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    waker.wake();
}

/// Moves bytes both ways until the peer ends its side.
fn exchange<S: Stream>(stream: S, moved: &Arc<Moved>) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    stream.wait_on_close(CLOSE_MAX)?;
    let sender = stream.try_clone()?;
    let (done, sending) = mpsc::channel();
    {
        let moved = Arc::clone(moved);
        thread::Builder::new().name("sender".to_owned()).spawn(move || {
            // Nobody listens when the receiving side has ended the command already.
            let _ = done.send(send(sender, &moved));
        })?;
    }
    receive(stream, moved)?;
    // A reset is told once, to whichever side asks first: the receiving side may have seen a mere end.
    match wait_while_sending(&sending, moved) {
        Some(Err(error)) => Err(anyhow::Error::new(error).context("the connection broke").into()),
        _ => Ok(()),
    }
}

/// How sending ended, as far as it has.
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

/// Prints what `--stats` and `--json` ask for, to stderr: stdout carried the stream.
fn report(args: &ConnectArgs, moved: &Moved, books: Option<&Books>) -> Result<(), Failure> {
    let books = books.filter(|_| args.observe.stats);
    if args.observe.json {
        let mut summary = serde_json::json!({
            "command": "connect",
            "remote": args.remote().to_string(),
            "bytes_received": moved.received.load(Ordering::Relaxed),
            "bytes_sent": moved.sent.load(Ordering::Relaxed),
        });
        if let Some(books) = books {
            books.add_to(&mut summary);
        }
        output::remark(output::json_line(&summary)?.trim_end());
    } else if let Some(books) = books {
        output::remark(books.text().trim_end());
    }
    Ok(())
}
