//! The same stack on each kind of link, with the kernel at the other end: bulk transfers in both
//! directions and one-byte round trips.
//!
//! By hand, as root: `cargo build --release -p quietline-cli -p netns-tests &&
//! QUIETLINE_BIN=target/release/quietline target/release/links [repeats]`. Every measurement has a
//! new link and a new server; links take turns, in reversed order every other round. The tables
//! show medians with the minimum and the maximum.
//!
//! With af_packet a veth pair keeps all of its offloads. AF_XDP does not report unfinished
//! checksums, so the kernel's end finishes them.
//!
//! Not here: correctness (`tests/`), other stacks (`bench-peers`).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{KERNEL, Namespace, Quietline, STACK};

/// Duration of one measurement.
const TIME: Duration = Duration::from_secs(2);

/// Default number of rounds.
const REPEATS: usize = 5;

/// The kernel's end of a veth pair.
const PEER: &str = "peer0";

/// A kind of link: its name, the arguments of quietline, and the offloads of the kernel's end of
/// its veth pair.
struct Kind {
    name: &'static str,
    words: &'static [&'static str],
    veth: Option<&'static str>,
}

const KINDS: [Kind; 5] = [
    Kind { name: "tap", words: &["--link=tap:ql0", "--peer=10.77.0.1/24"], veth: None },
    Kind {
        name: "tap, no vnet_hdr",
        words: &["--link=tap:ql0", "--peer=10.77.0.1/24", "--no-vnet-hdr"],
        veth: None,
    },
    Kind { name: "af_packet", words: &["--link=af_packet:ql0"], veth: Some("tx on") },
    Kind {
        name: "af_xdp, generic",
        words: &["--link=af_xdp:ql0,mode=generic"],
        veth: Some("tx off"),
    },
    Kind {
        name: "af_xdp, native",
        words: &["--link=af_xdp:ql0,mode=native"],
        veth: Some("tx off"),
    },
];

/// What a measurement transfers.
#[derive(Debug, Clone, Copy)]
enum Task {
    Send,
    Receive,
    RoundTrips,
}

const TASKS: [Task; 3] = [Task::Send, Task::Receive, Task::RoundTrips];

impl Task {
    const fn service(self) -> (&'static str, u16) {
        match self {
            Self::Send => ("chargen", 19),
            Self::Receive => ("discard", 9),
            Self::RoundTrips => ("echo", 7),
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Send => "stack to kernel",
            Self::Receive => "kernel to stack",
            Self::RoundTrips => "one-byte round trips",
        }
    }
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Gbit/s, or microseconds of the median round trip.
    value: f64,
    /// Frames per second in both directions, as the kernel's end counts them: a superframe is one.
    frames: f64,
    /// CPU time of quietline per second.
    cores: f64,
}

fn main() -> Result<()> {
    let repeats = match std::env::args().nth(1) {
        Some(text) => text.parse().context("repeats")?,
        None => REPEATS,
    };
    let mut samples = vec![Vec::new(); KINDS.len() * TASKS.len()];
    for round in 0..repeats {
        for (row, task) in TASKS.into_iter().enumerate() {
            let mut order: Vec<usize> = (0..KINDS.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let kind = &KINDS[index];
                let sample =
                    measure(kind, task).with_context(|| format!("{} {task:?}", kind.name))?;
                samples[row * KINDS.len() + index].push(sample);
            }
        }
    }
    for (row, task) in TASKS.into_iter().enumerate() {
        let unit = if matches!(task, Task::RoundTrips) { "p50, µs" } else { "Gbit/s" };
        println!("\n| {} | {unit} | least – most | frames/s | cores |", task.title());
        println!("|---|---|---|---|---|");
        for (index, kind) in KINDS.iter().enumerate() {
            let all = &samples[row * KINDS.len() + index];
            let [least, value, most] = spread(all.iter().map(|sample| sample.value));
            let [_, frames, _] = spread(all.iter().map(|sample| sample.frames));
            let [_, cores, _] = spread(all.iter().map(|sample| sample.cores));
            let name = kind.name;
            println!("| {name} | {value:.2} | {least:.2} – {most:.2} | {frames:.0} | {cores:.2} |");
        }
    }
    Ok(())
}

/// Returns minimum, median and maximum.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match (sorted.first(), sorted.last()) {
        (Some(&least), Some(&most)) => [least, sorted[sorted.len() / 2], most],
        _ => [f64::NAN; 3],
    }
}

/// Makes one measurement on a link of its own.
fn measure(kind: &Kind, task: Task) -> Result<Sample> {
    let kernel = Namespace::create()?;
    let own = kind.veth.map(|offloads| veth(&kernel, offloads)).transpose()?;
    let (service, port) = task.service();
    let (port_word, address) = (format!("--port={port}"), format!("--address={STACK}/24"));
    let words = [&[service, port_word.as_str(), &address], kind.words].concat();
    let server = Quietline::serve_with(own.as_ref().unwrap_or(&kernel), &words)?;
    let interface = if own.is_some() { PEER } else { "ql0" };
    let sample = kernel.enter(|| {
        let mut stream = TcpStream::connect((STACK, port)).context("connecting")?;
        stream.set_nodelay(true)?;
        work(&mut stream, task, Duration::from_millis(200))?;
        let (frames, ticks) = (frames(&kernel, interface)?, cpu_ticks(server.id())?);
        let start = Instant::now();
        let value = work(&mut stream, task, TIME)?;
        let seconds = start.elapsed().as_secs_f64();
        let frames = self::frames(&kernel, interface)? - frames;
        Ok(Sample {
            value,
            frames: frames / seconds,
            cores: (cpu_ticks(server.id())? - ticks) / 100.0 / seconds,
        })
    })?;
    server.kill();
    Ok(sample)
}

/// Makes a veth pair between `kernel` and a new namespace.
fn veth(kernel: &Namespace, offloads: &str) -> Result<Namespace> {
    let own = Namespace::create()?;
    kernel.ip(&format!("link add {PEER} type veth peer name ql0"))?;
    kernel.ip(&format!("link set ql0 netns {}", own.name()))?;
    kernel.ip(&format!("address add {KERNEL}/24 dev {PEER}"))?;
    kernel.ip(&format!("link set {PEER} up"))?;
    own.ip("link set ql0 up")?;
    kernel.tool("ethtool", &format!("-K {PEER} {offloads}"))?;
    Ok(own)
}

/// Transfers bytes for `time`.
fn work(stream: &mut TcpStream, task: Task, time: Duration) -> Result<f64> {
    let mut buffer = vec![0x55; 256 << 10];
    let (start, mut bytes, mut trips) = (Instant::now(), 0, Vec::new());
    while start.elapsed() < time {
        match task {
            Task::Send => bytes += stream.read(&mut buffer)?,
            Task::Receive => bytes += stream.write(&buffer)?,
            Task::RoundTrips => {
                let begin = Instant::now();
                stream.write_all(&[1])?;
                stream.read_exact(&mut buffer[..1])?;
                trips.push(begin.elapsed());
            }
        }
    }
    if let Task::RoundTrips = task {
        trips.sort_unstable();
        let median = trips.get(trips.len() / 2).context("no round trip")?;
        return Ok(median.as_secs_f64() * 1e6);
    }
    ensure!(bytes > 0, "nothing moved");
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bits = bytes as f64 * 8.0;
    Ok(bits / start.elapsed().as_secs_f64() / 1e9)
}

/// Returns the frames that an interface has counted in both directions.
fn frames(namespace: &Namespace, interface: &str) -> Result<f64> {
    let directory = format!("/sys/class/net/{interface}/statistics");
    let printed = namespace.shell(&format!("cat {directory}/rx_packets {directory}/tx_packets"))?;
    let numbers = printed.split_whitespace().map(str::parse::<f64>);
    numbers.sum::<Result<f64, _>>().context("no number")
}

/// Returns the CPU time of a process in clock ticks, hundredths of a second.
fn cpu_ticks(process: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // utime and stime are the 14th and 15th field; the second, a name, ends with the last
    // parenthesis.
    let fields = stat.rsplit(')').next().context("no name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    ticks.sum::<Result<f64, _>>().context("no number")
}
