//! Threads that ask and threads that answer over one stack's loopback.
//!
//! Above: the declaration. Below: a stack without workers, so that the sending thread
//! processes the packet, as over loopback in Linux.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use quietline::{Snapshot, Stack, TcpListener, TcpStream};

use crate::{
    experiment::{Error, Observation, Setup},
    experiments::threads::{self, Pinned, STALL_MAX},
};

/// Bytes of a GET, of the response to a SET, and of a value with its header.
const SHORT_BYTES: usize = 32;
const LONG_BYTES: usize = 132;
/// One SET comes with so many GETs.
const GETS_PER_SET: u32 = 100;

/// Fewest requests of a result. The requests that are under way when the count begins or ends are
/// a small part of so many.
const REQUESTS_MIN: f64 = 500.0;

/// Rounds of requests on every connection before the measurement. The first packets of a
/// connection look up routes and take references in every arm, until its sockets have cached the
/// entries.
const WARM_ROUNDS: usize = 2;

/// Time without a response after which the client polls the stack. A thread that has run a core for
/// long leaves the rest of the work to the next thread that polls (`CoreLeft`), and this stack has
/// no workers. A poll in every wait would be work that the loopback of Linux does not have.
const POLL_AFTER: Duration = Duration::from_millis(1);

const SET: u8 = 1;
const GET: u8 = 2;

const COUNTERS: [&str; 5] = ["DstGet", "DstPut", "DstForce", "DstCheckEntry", "RxRouteLookups"];

/// One end of a connection with the bytes that are missing of a message.
struct End {
    stream: TcpStream,
    kind: u8,
    missing: usize,
}

/// Requests of one thread, on lines of their own. Relaxed: a count orders nothing.
#[derive(Default)]
#[repr(align(128))]
struct Requests(AtomicU64);

/// Makes one run.
pub(super) fn run(connections: usize, setup: &Setup<'_>) -> Result<Observation, Error> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let pairs = (cpus / 2).max(1);
    let cores = u16::try_from(cpus.clamp(2, 64)).unwrap_or(2);
    let mut builder = Stack::builder().cores(cores).manual();
    for (name, value) in &setup.arm.settings {
        builder = builder.sysctl(name, value);
    }
    let stack = builder.build()?;
    let listener = TcpListener::bind(&stack, "127.0.0.1:0")?;
    let counts: Vec<Requests> = (0..pairs).map(|_| Requests::default()).collect();
    // The ends outlive the threads: a thread that stops first closes no connection of another.
    let mut ends = Vec::new();
    for _ in 0..pairs {
        ends.push(connect(&stack, &listener, connections)?);
    }
    let stop = AtomicBool::new(false);
    let (requests, seconds, change) = thread::scope(|scope| {
        let mut all = Vec::new();
        for (pair, ((clients, servers), requests)) in ends.iter_mut().zip(&counts).enumerate() {
            let (stack, stop) = (&stack, &stop);
            all.push(scope.spawn(move || {
                let _pinned = Pinned::to(2 * pair + 1);
                answer(servers, stop)
            }));
            all.push(scope.spawn(move || {
                let _pinned = Pinned::to(2 * pair);
                ask(stack, clients, &requests.0, stop)
            }));
        }
        let measured = measure(&stack, &counts, connections, setup);
        // Relaxed: the threads look again and again, and the joins order the rest.
        stop.store(true, Ordering::Relaxed);
        for thread in all {
            thread.join().map_err(|_| Error::from("a thread panicked"))??;
        }
        Ok::<_, Error>(measured)
    })?;
    if requests < 1.0 {
        return Err("no response arrived".into());
    }
    let count = |name| threads::count(&change, name) / requests;
    Ok(Observation {
        metrics: vec![
            seconds * 1e9 / requests,
            requests / seconds,
            count("DstGet") + count("DstPut"),
            count("DstCheckEntry"),
        ],
        counters: threads::per_operation(&change, &COUNTERS, requests),
        series: Vec::new(),
    })
}

/// Opens connections; returns their clients and servers.
fn connect(
    stack: &Stack,
    listener: &TcpListener,
    connections: usize,
) -> Result<(Vec<End>, Vec<End>), Error> {
    let to = listener.local_addr()?;
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let client = TcpStream::connect(stack, to)?;
        let (server, _) = listener.accept()?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        clients.push(End { stream: client, kind: 0, missing: 0 });
        servers.push(End { stream: server, kind: 0, missing: 0 });
    }
    Ok((clients, servers))
}

/// Requests, seconds and counters of the measured time.
fn measure(
    stack: &Stack,
    counts: &[Requests],
    connections: usize,
    setup: &Setup<'_>,
) -> (f64, f64, Snapshot) {
    let requests = || {
        let sum: u64 = counts.iter().map(|own| own.0.load(Ordering::Relaxed)).sum();
        #[expect(clippy::cast_precision_loss, reason = "a few million")]
        let sum = sum as f64;
        (sum, Instant::now(), stack.counters())
    };
    thread::sleep(setup.warm_up);
    let warm = (WARM_ROUNDS * connections) as u64;
    let waits = Instant::now();
    while counts.iter().any(|own| own.0.load(Ordering::Relaxed) < warm)
        && waits.elapsed() < STALL_MAX
    {
        thread::sleep(Duration::from_millis(1));
    }
    let (before, begin, counters) = requests();
    thread::sleep(setup.measure);
    let (mut after, mut end, mut changed) = requests();
    // On a busy machine a short run may get no CPU. It lasts until it has a result.
    while after - before < REQUESTS_MIN && end - begin < STALL_MAX {
        thread::sleep(setup.measure);
        (after, end, changed) = requests();
    }
    (after - before, (end - begin).as_secs_f64(), changed.since(&counters))
}

/// Reads the available bytes, up to the missing ones; returns true if the message is complete.
fn take(end: &mut End, buffer: &mut [u8; LONG_BYTES]) -> Result<bool, Error> {
    match end.stream.read(&mut buffer[..end.missing]) {
        Ok(0) => Err("the connection ended".into()),
        Ok(count) => {
            end.missing -= count;
            Ok(end.missing == 0)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The client: requests on all connections, then all responses.
fn ask(
    stack: &Stack,
    clients: &mut [End],
    requests: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let mut buffer = [0; LONG_BYTES];
    let mut number = 0_u32;
    loop {
        for client in &mut *clients {
            number = number.wrapping_add(1);
            let is_set = number.is_multiple_of(GETS_PER_SET + 1);
            let (kind, length, response) = if is_set {
                (SET, LONG_BYTES, SHORT_BYTES)
            } else {
                (GET, SHORT_BYTES, LONG_BYTES)
            };
            buffer[0] = kind;
            client.stream.write_all(&buffer[..length])?;
            (client.kind, client.missing) = (kind, response);
        }
        for client in &mut *clients {
            let asked = Instant::now();
            while !take(client, &mut buffer)? {
                std::hint::spin_loop();
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let waited = asked.elapsed();
                if waited > POLL_AFTER {
                    // Polled again at the next turn of this loop.
                    let _ = stack.poll();
                }
                if waited > STALL_MAX {
                    return Err("no response for 10 s".into());
                }
            }
            requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The server: the first byte of a request says how much follows.
fn answer(servers: &mut [End], stop: &AtomicBool) -> Result<(), Error> {
    let mut buffer = [0; LONG_BYTES];
    while !stop.load(Ordering::Relaxed) {
        for server in &mut *servers {
            if server.missing == 0 {
                server.missing = 1;
                if !take(server, &mut buffer)? {
                    server.missing = 0;
                    continue;
                }
                server.kind = buffer[0];
                let length = if server.kind == SET { LONG_BYTES } else { SHORT_BYTES };
                server.missing = length - 1;
            }
            if take(server, &mut buffer)? {
                let response = if server.kind == SET { SHORT_BYTES } else { LONG_BYTES };
                server.stream.write_all(&buffer[..response])?;
            }
        }
    }
    Ok(())
}
