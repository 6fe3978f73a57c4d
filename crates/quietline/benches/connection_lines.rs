//! Cost of the cache lines of a connection that two threads use: the layout of
//! `stack::socket::Connection` by reader and writer.
//!
//! `cargo bench -p quietline --bench connection_lines [-- --smoke]`. One thread sends a byte over
//! loopback to the other end of the connection and one back; it runs both ends and softirq context.
//! Meanwhile a second thread uses one end, in one of these ways:
//!
//! - `alone`: not at all. All other arms are compared with this one.
//! - `addresses`: reads the lookup key. No thread writes its lines in the steady state, so that the
//!   first thread must not become slower: a ratio below 1 beyond the quartiles shows that a field
//!   that is written has come to these lines.
//! - `readiness`: reads the state that the owner publishes. Its line moves for each byte.
//! - `owner`: owns the lock for an empty read. The word of the lock, the published state and the
//!   owner's state move.
//!
//! The second thread pauses between two uses, so that it is as frequent in all arms. The arms run
//! in turn, each round beginning with another one. No other program may run on the two cores
//! meanwhile (`chrt -f 5` ensures that). The bench prints the median time per round trip, and the
//! ratio of `alone` to each arm, round by round, with its quartiles.

mod quartiles;

use std::{
    hint::{black_box, spin_loop},
    io::IoSlice,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant as Clock,
};

use quartiles::quartiles;
use quietline::sans_io::{Connection, Cx, Errno, Host, HostConfig, Instant, Listener, Memory};

/// Number of rounds, each of which runs every arm once.
const ROUNDS: usize = 24;
/// Round trips of one run.
const ROUND_TRIPS: u32 = 10_000;
/// Iterations of the pause between two uses by the second thread.
const PAUSE: u32 = 50;

/// Use of one end by the second thread.
type Use = fn(&Host, &mut Cx, &Connection);

const ARMS: [(&str, Option<Use>); 4] = [
    ("alone", None),
    (
        "addresses",
        Some(|_, _, far| {
            black_box((far.local(), far.remote()));
        }),
    ),
    (
        "readiness",
        Some(|_, _, far| {
            black_box((far.readiness(), far.rcvlowat()));
        }),
    ),
    (
        "owner",
        Some(|host, cx, far| {
            // Reads nothing: the byte is the first thread's.
            assert_eq!(far.recv(host, cx, &mut [], false), Ok(0));
        }),
    ),
];

/// A host with a connection to itself.
struct Pair {
    memory: Memory,
    host: Arc<Host>,
    near: Arc<Connection>,
    far: Arc<Connection>,
    cx: Cx,
}

impl Pair {
    fn new() -> Self {
        let memory = Memory::new(64 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1);
        let config = HostConfig { cores: 1, ..HostConfig::replay(2) };
        let host = Host::new(&memory, config).expect("a valid host");
        let address = "127.0.0.1:7".parse().expect("an address");
        let listener = Listener::listen(&host, &mut cx, address, 16).expect("a free port");
        let near = Connection::connect(&host, &mut cx, None, address).expect("a free port");
        let far = loop {
            let _ = host.poll(&mut cx);
            if let Ok(far) = listener.accept() {
                break far;
            }
            cx.now = cx.now.max(host.next_deadline().expect("a deadline"));
        };
        for end in [&near, &far] {
            end.with_tcb(&host, &mut cx, |tcb, _| tcb.set_nodelay(true));
        }
        Self { memory, host, near, far, cx }
    }

    /// Returns the nanoseconds per round trip.
    fn run(&mut self, second: Option<Use>, round_trips: u32) -> f64 {
        let Self { memory, host, near, far, cx } = self;
        let (stop, barrier) = (AtomicBool::new(false), Barrier::new(2));
        thread::scope(|scope| {
            let (host, far) = (&*host, &*far);
            scope.spawn(|| {
                let mut cx = Cx::replay(memory, 2);
                cx.now = Instant::from_secs(1);
                barrier.wait();
                while !stop.load(Ordering::Relaxed) {
                    if let Some(second) = second {
                        second(host, &mut cx, far);
                    }
                    (0..PAUSE).for_each(|_| spin_loop());
                }
            });
            barrier.wait();
            let begin = Clock::now();
            for _ in 0..round_trips {
                for (from, to) in [(&**near, &**far), (far, near)] {
                    from.send(host, cx, &[IoSlice::new(&[1])]).expect("room for a byte");
                    take_byte(host, cx, to);
                }
            }
            let each = begin.elapsed().as_nanos() as f64 / f64::from(round_trips);
            stop.store(true, Ordering::Relaxed);
            each
        })
    }
}

/// Runs the host until the byte has arrived at `end`, and reads it. While the second thread owns
/// the lock, the segment waits in the backlog.
fn take_byte(host: &Host, cx: &mut Cx, end: &Connection) {
    loop {
        let _ = host.poll(cx);
        match end.recv(host, cx, &mut [0], false) {
            Ok(read) => return assert_eq!(read, 1, "the stream is open"),
            Err(error) => assert_eq!(error, Errno::EAGAIN),
        }
    }
}

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--smoke" || arg == "--test");
    let (rounds, round_trips) = if smoke { (1, 100) } else { (ROUNDS, ROUND_TRIPS) };
    let mut results = ARMS.map(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..ARMS.len() {
            let index = (round + turn) % ARMS.len();
            // Each run has a new connection: the placement of its memory makes a difference.
            results[index].push(Pair::new().run(ARMS[index].1, round_trips));
        }
    }
    println!("{:<12} {:>12} {:>20}", "", "ns each", "alone / this");
    for (index, (name, _)) in ARMS.iter().enumerate() {
        let alone = results[0].iter().zip(&results[index]);
        let [low, ratio, high] =
            quartiles(&mut alone.map(|(alone, own)| alone / own).collect::<Vec<_>>());
        let [_, median, _] = quartiles(&mut results[index].clone());
        println!("{name:<12} {median:>12.1} {ratio:>7.2} ({low:.2} – {high:.2})");
    }
}
