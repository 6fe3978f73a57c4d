//! Lists of packets in the receive path (Linux 5.4): what a list saves, and what a list of segments
//! that were not merged does to latency.
//!
//! **Claim.** Two 10 Gbit/s hosts, six runs of 120 s each. One stream with receive offload off and
//! `busy_read` at 50: 6.488 to 7.351 Gbit/s (+13.3 %). 100 request/response streams of 8,000 bytes
//! with `busy_read` at 50: 3.0 % worse. The published p-values are one-sided; two-sided, the first
//! one is 0.052, and after a correction for the twenty tests only the second one remains.
//!
//! **Method.** The rows of the original table: one and four streams, and 100 request/response
//! streams of 1 and of 8,000 bytes, with receive offload off and on, `busy_read` 0 and 50, and the
//! five ways out of receive offload. The receiver's application is on the second CPU, its softirq
//! on the first, where the sender is as well. The device takes no superframes, so that packets
//! arrive as segments. One row has a link of 10 Gbit/s: its runs cannot exceed 9.415 Gbit/s, and
//! those that reach it count as censored.

use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use quietline::{Impairment, Snapshot, Stack, TcpListener, TcpStream, Wire, WireConfig};

use super::threads::{self, Pinned, STALL_MAX};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Setup,
};

/// Payload of a link of 10 Gbit/s with frames of 1,538 bytes, in Gbit/s.
const LINE_RATE_GBPS: f64 = 10.0 * 1448.0 / 1538.0;
/// Bytes of a write and of a read of a stream.
const STREAM_BYTES: usize = 64 * 1024;
/// Streams of a row of requests.
const REQUEST_STREAMS: usize = 100;

const COUNTERS: [&str; 9] = [
    "RxListFlushes",
    "RxListPackets",
    "RxListSize1",
    "RxListSize8To15",
    "GroHeld",
    "GroSuperframes",
    "GroFlushComplete",
    "TcpExtTCPOFOQueue",
    "TcpExtBusyPollRxPackets",
];

/// One row of the table.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// Streams in one direction, on a link of 10 Gbit/s or without a limit.
    Streams { count: usize, limited: bool },
    /// Requests and responses of so many bytes.
    Requests { bytes: usize },
}

impl Row {
    fn condition(self) -> Condition {
        let (name, description) = match self {
            Self::Streams { count, limited: false } => {
                (format!("streams {count}"), format!("bulk data on {count} connections"))
            }
            Self::Streams { count, limited: true } => (
                format!("streams {count}, 10G"),
                format!("bulk data on {count} connections, on a link of 10 Gbit/s"),
            ),
            Self::Requests { bytes } => (
                format!("requests of {bytes} bytes"),
                format!("{REQUEST_STREAMS} connections, requests and responses of {bytes} bytes"),
            ),
        };
        let is_limited = matches!(self, Self::Streams { limited: true, .. });
        let ceilings = if is_limited { vec![("throughput", LINE_RATE_GBPS)] } else { Vec::new() };
        Condition { name, description, ceilings }
    }
}

fn rows(quick: bool) -> Vec<Row> {
    let unlimited = |count| Row::Streams { count, limited: false };
    if quick {
        return vec![unlimited(1), Row::Requests { bytes: 1 }];
    }
    vec![
        unlimited(1),
        unlimited(4),
        Row::Streams { count: 1, limited: true },
        Row::Requests { bytes: 1 },
        Row::Requests { bytes: 8000 },
    ]
}

/// Ways out of receive offload: name, `gro_exit`, `gro_normal_batch`.
const EXITS: [(&str, &str, &str); 5] = [
    ("immediate", "immediate", "8"),
    ("normal_only 8", "normal_only_list", "8"),
    ("segments 1", "unified_list_segments", "1"),
    ("segments 8", "unified_list_segments", "8"),
    ("segments 64", "unified_list_segments", "64"),
];

/// Receive offload and `busy_read`: name, values.
const SIDES: [(&str, &str, &str); 4] = [
    ("gro off, busy 0", "0", "0"),
    ("gro off, busy 50", "0", "50"),
    ("gro on, busy 0", "1", "0"),
    ("gro on, busy 50", "1", "50"),
];

/// Names of all arms, sides by exits.
const NAMES: [[&str; 5]; 4] = [
    [
        "gro off, busy 0, immediate",
        "gro off, busy 0, normal_only 8",
        "gro off, busy 0, segments 1",
        "gro off, busy 0, segments 8",
        "gro off, busy 0, segments 64",
    ],
    [
        "gro off, busy 50, immediate",
        "gro off, busy 50, normal_only 8",
        "gro off, busy 50, segments 1",
        "gro off, busy 50, segments 8",
        "gro off, busy 50, segments 64",
    ],
    [
        "gro on, busy 0, immediate",
        "gro on, busy 0, normal_only 8",
        "gro on, busy 0, segments 1",
        "gro on, busy 0, segments 8",
        "gro on, busy 0, segments 64",
    ],
    [
        "gro on, busy 50, immediate",
        "gro on, busy 50, normal_only 8",
        "gro on, busy 50, segments 1",
        "gro on, busy 50, segments 8",
        "gro on, busy 50, segments 64",
    ],
];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let rows = rows(quick);
    let sides: &[usize] = if quick { &[0, 2] } else { &[0, 1, 2, 3] };
    let exits: &[usize] = if quick { &[0, 3] } else { &[0, 1, 2, 3, 4] };
    let names = |of: &dyn Fn(usize, usize) -> bool| {
        let all = sides.iter().flat_map(|&side| exits.iter().map(move |&exit| (side, exit)));
        all.filter(|&(side, exit)| of(side, exit))
            .map(|(side, exit)| NAMES[side][exit])
            .collect::<Vec<_>>()
    };
    let arms = sides.iter().flat_map(|&side| {
        exits.iter().map(move |&exit| {
            let (_, gro, busy_read) = SIDES[side];
            let (_, gro_exit, batch) = EXITS[exit];
            let settings = [
                ("net.quietline.dev.default.gro", gro),
                ("net.core.busy_read", busy_read),
                ("net.quietline.gro_exit", gro_exit),
                ("net.core.gro_normal_batch", batch),
            ];
            Arm::new(NAMES[side][exit], &settings)
        })
    });
    let comparisons = sides.iter().flat_map(|&side| {
        let others = exits.iter().filter(|&&exit| exit != 0);
        others.map(move |&exit| Comparison {
            baseline: NAMES[side][0],
            arm: NAMES[side][exit],
            metric: "throughput",
        })
    });
    Experiment {
        name: "gro-batch",
        title: "Lists of received packets (Linux 5.4)",
        claim: "One stream, receive offload off, busy_read 50: +13.3 % throughput (two-sided p = 0.052); 100 request/response streams of 8,000 bytes, busy_read 50: 3.0 % worse (p < 0.001).",
        workload: "The rows of the original table: 1 and 4 streams, 100 request/response streams of 1 and of 8,000 bytes. Application of the receiver on the second CPU, softirq and sender on the first, packets as single segments.",
        limits: "The sender is not free: its work is on the CPU of the softirq, the same in all arms. The changes of the first two patches of the series concern interrupt moderation of one driver and cannot be shown. The table's values without censored runs are those of this machine, not of a link.",
        clock: Clock::Wall,
        conditions: rows.iter().map(|row| row.condition()).collect(),
        arms: arms.collect(),
        metrics: metrics(),
        controls: controls(&names),
        comparisons: comparisons.collect(),
        trial: Box::new(move |setup| run(rows[setup.condition], setup)),
    }
}
/// What a run measures.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric("throughput", "Gbit/s", "payload that the receiver read", Better::Higher),
        metric(
            "operation_time",
            "ns",
            "time of a received frame (streams) or of a request",
            Better::Lower,
        ),
        metric(
            "application_cpu",
            "ns",
            "CPU time of the receiver's application per operation",
            Better::Lower,
        ),
    ]
}
/// Proofs that the mechanisms ran.
fn controls(names: &dyn Fn(&dyn Fn(usize, usize) -> bool) -> Vec<&'static str>) -> Vec<Control> {
    vec![
        Control {
            counter: "GroHeld",
            conditions: vec!["streams"],
            moves_in: names(&|side, _| side >= 2),
            at_least: 0.001,
            still_in: names(&|side, _| side < 2),
            at_most: 0.0,
        },
        Control {
            counter: "RxListSize8To15",
            conditions: vec!["streams"],
            moves_in: Vec::new(),
            at_least: 0.0,
            still_in: names(&|_, exit| exit == 0 || exit == 2),
            at_most: 0.0,
        },
        Control {
            counter: "TcpExtBusyPollRxPackets",
            conditions: Vec::new(),
            moves_in: Vec::new(),
            at_least: 0.0,
            still_in: names(&|side, _| side % 2 == 0),
            at_most: 0.0,
        },
    ]
}

/// Two hosts and their connections: the sender's ends, and the receiver's.
struct Connections {
    _sender: Stack,
    receiver: Stack,
    near: Vec<TcpStream>,
    far: Vec<TcpStream>,
}

fn connect(row: Row, setup: &Setup<'_>) -> Result<Connections, Error> {
    let (count, limited) = match row {
        Row::Streams { count, limited } => (count, limited),
        Row::Requests { .. } => (REQUEST_STREAMS, false),
    };
    let rate_bps = limited.then_some(10_000_000_000);
    let forward = Impairment { rate_bps, ..Impairment::default() };
    let config = WireConfig { tso: false, forward, seed: setup.seed, ..WireConfig::default() };
    let (left, right) = Wire::pair(&config)?;
    let sender = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let mut receiver = Stack::builder().device(right).address("10.0.0.2/24".parse()?);
    for (name, value) in &setup.arm.settings {
        receiver = receiver.sysctl(name, value);
    }
    let receiver = receiver.build()?;
    let listener = TcpListener::bind(&receiver, "10.0.0.2:80")?;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let stream = TcpStream::connect(&sender, "10.0.0.2:80")?;
        let (accepted, _) = listener.accept()?;
        for stream in [&stream, &accepted] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STALL_MAX))?;
            stream.set_write_timeout(Some(STALL_MAX))?;
        }
        near.push(stream);
        far.push(accepted);
    }
    Ok(Connections { _sender: sender, receiver, near, far })
}

/// Counts of the receiver at one moment.
struct Mark {
    at: Instant,
    bytes: u64,
    requests: u64,
    counters: Snapshot,
}

/// What both sides count for each other. Relaxed throughout: a count orders nothing.
#[derive(Default)]
struct Counts {
    /// Payload that the receiver has read.
    bytes: AtomicU64,
    /// Responses that the sender has got.
    requests: AtomicU64,
}

impl Counts {
    fn mark(&self, receiver: &Stack) -> Mark {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        Mark { at: Instant::now(), bytes, requests, counters: receiver.counters() }
    }
}

/// Makes one run.
fn run(row: Row, setup: &Setup<'_>) -> Result<Observation, Error> {
    // The workers of both stacks inherit the first CPU.
    let _pinned = Pinned::to(0);
    let Connections { _sender, receiver, mut near, far } = connect(row, setup)?;
    let (counts, stop) = (Counts::default(), AtomicBool::new(false));
    let (marks, cpu_s) = thread::scope(|scope| {
        let mut applications = Vec::new();
        match row {
            Row::Streams { .. } => applications
                .extend(far.into_iter().map(|stream| scope.spawn(|| read_stream(stream, &counts)))),
            Row::Requests { bytes } => {
                let counts = &counts;
                applications.push(scope.spawn(move || answer(far, bytes, counts)));
            }
        }
        let sender = scope.spawn(|| {
            let sent = match row {
                Row::Streams { .. } => send_streams(&mut near, &stop),
                Row::Requests { bytes } => ask(&mut near, bytes, &counts, &stop),
            };
            for stream in &near {
                let how = if sent.is_ok() { Shutdown::Write } else { Shutdown::Both };
                let _ = stream.shutdown(how);
            }
            sent
        });
        thread::sleep(setup.warm_up);
        let before = counts.mark(&receiver);
        thread::sleep(setup.measure);
        let after = counts.mark(&receiver);
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| Error::from("the sender panicked"))??;
        let mut cpu_s = 0.0;
        for application in applications {
            let ended = application.join().map_err(|_| Error::from("a receiver panicked"))?;
            cpu_s += ended?;
        }
        Ok::<_, Error>(([before, after], cpu_s))
    })?;
    observation(row, &marks, cpu_s, &counts)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn observation(
    row: Row,
    [before, after]: &[Mark; 2],
    cpu_s: f64,
    counts: &Counts,
) -> Result<Observation, Error> {
    let change = after.counters.since(&before.counters);
    let bytes = (after.bytes - before.bytes) as f64;
    let operations = match row {
        Row::Streams { .. } => threads::count(&change, "DeviceRxPackets"),
        Row::Requests { .. } => (after.requests - before.requests) as f64,
    };
    if operations < 1.0 || bytes < 1.0 {
        return Err("nothing arrived".into());
    }
    let seconds = (after.at - before.at).as_secs_f64();
    // CPU time of the whole run, warm-up included, in proportion.
    let part = bytes / counts.bytes.load(Ordering::Relaxed) as f64;
    Ok(Observation {
        metrics: vec![
            bytes * 8.0 / seconds / 1e9,
            seconds * 1e9 / operations,
            cpu_s * part * 1e9 / operations,
        ],
        counters: threads::per_operation(&change, &COUNTERS, operations),
        series: Vec::new(),
    })
}

fn send_streams(near: &mut [TcpStream], stop: &AtomicBool) -> Result<(), Error> {
    let bytes = vec![7; STREAM_BYTES];
    while !stop.load(Ordering::Relaxed) {
        for stream in &mut *near {
            stream.write_all(&bytes)?;
        }
    }
    Ok(())
}

fn read_stream(mut stream: TcpStream, counts: &Counts) -> Result<f64, Error> {
    let _pinned = Pinned::to(1);
    let mut buffer = vec![0; STREAM_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(threads::thread_cpu_s()),
            count => counts.bytes.fetch_add(count as u64, Ordering::Relaxed),
        };
    }
}

/// The sender of requests: one on each connection, then all responses.
fn ask(
    near: &mut [TcpStream],
    bytes: usize,
    counts: &Counts,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let mut message = vec![7; bytes];
    while !stop.load(Ordering::Relaxed) {
        for stream in &mut *near {
            stream.write_all(&message)?;
        }
        for stream in &mut *near {
            stream.read_exact(&mut message)?;
            counts.requests.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// The receiver of requests.
fn answer(mut far: Vec<TcpStream>, bytes: usize, counts: &Counts) -> Result<f64, Error> {
    let _pinned = Pinned::to(1);
    let mut message = vec![0; bytes];
    loop {
        for stream in &mut far {
            match stream.read_exact(&mut message) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(threads::thread_cpu_s());
                }
                Err(error) => return Err(error.into()),
            }
            stream.write_all(&message)?;
            counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_of_arms_are_side_and_exit() {
        for (side, names) in SIDES.iter().zip(NAMES) {
            for (exit, name) in EXITS.iter().zip(names) {
                assert_eq!(name, format!("{}, {}", side.0, exit.0));
            }
        }
    }

    #[test]
    fn every_row_runs_with_and_without_lists() {
        let experiment = experiment(false);
        for condition in 0..experiment.conditions.len() {
            for arm in [&experiment.arms[0], &experiment.arms[13]] {
                let (warm_up, measure) = (Duration::from_millis(10), Duration::from_millis(30));
                let setup = Setup { condition, arm, seed: 5, warm_up, measure };
                let observed = (experiment.trial)(&setup);
                let observed = observed.unwrap_or_else(|error| panic!("{condition}: {error}"));
                assert!(observed.metrics.iter().all(|value| *value > 0.0), "{observed:?}");
            }
        }
    }
}
