//! A slow link of the kernel (`tbf`) that a bulk sender shares with 1-byte requests: the length of
//! the queue, by the kernel's own count, and the latency of the requests.
//!
//! Sender and echo are quietline on the link's near end, each at an address of its own, or for
//! comparison the kernel there. The clients are kernel sockets on the far end.
//!
//! Not here: a verdict.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::net::sockopt::set_tcp_congestion;

use crate::lab::STACK;
use crate::namespace::Namespace;
use crate::quietline::{Quietline, SUPERFRAMES};
use crate::veth::Veth;

/// Address of the echo service next to the sender.
const ECHO: &str = "10.77.0.3";

/// Ports of the endless sender and of the echo service.
const CHARGEN: u16 = 19;
const ECHO_PORT: u16 = 7;

/// Time of the sender before measurements begin.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Time between two requests, and between two readings of the queue.
const PAUSE: Duration = Duration::from_millis(5);

/// Times between two requests: spread evenly over the 11 ms that two superframes take at 100
/// Mbit/s.
const PAUSES: [Duration; 11] = [
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(6),
    Duration::from_millis(2),
    Duration::from_millis(9),
    Duration::from_millis(5),
    Duration::from_millis(1),
    Duration::from_millis(8),
    Duration::from_millis(4),
    Duration::from_millis(11),
    Duration::from_millis(7),
];

/// Limit of every step.
const LIMIT: Duration = Duration::from_secs(10);

/// The sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender<'a> {
    /// quietline with this `net.quietline.tsq_limit`, and `net.quietline.hystart_detect`.
    Quietline(&'a str, &'a str),
    /// The kernel, with this `tcp_limit_output_bytes` or its default.
    Kernel(Option<u32>),
}

/// The measurements.
#[derive(Debug)]
pub struct Seen {
    /// Payload bits per second of the bulk flow.
    pub bits_per_second: f64,
    /// Round trips of one byte, sorted.
    pub round_trips: Vec<Duration>,
    /// Bytes in the queue, sorted.
    pub backlogs: Vec<u64>,
}

impl Seen {
    /// Returns the median of the round trips.
    #[must_use]
    pub fn median(&self) -> Duration {
        self.round_trips[self.round_trips.len() / 2]
    }

    /// Returns the median of the queue.
    #[must_use]
    pub fn backlog_median(&self) -> u64 {
        self.backlogs[self.backlogs.len() / 2]
    }

    /// Returns the longest queue.
    #[must_use]
    pub fn backlog_max(&self) -> u64 {
        self.backlogs.last().copied().unwrap_or(0)
    }
}

/// Puts a `tbf` of this rate on the near end. Any superframe fits its burst, so that none is cut
/// before it has been queued, and its limit has room for all data that a sender may have in flight.
///
/// # Errors
/// When `tc` fails.
pub fn limit(veth: &Veth, rate: &str) -> Result<()> {
    let line =
        format!("qdisc replace dev {} root tbf rate {rate} burst 80kb limit 16mb", Veth::OURS);
    veth.ours.tool("tc", &line).map(drop)
}

/// Lets `sender` fill the link for `time`, and measures.
///
/// # Errors
/// When a part of it fails or nothing was measured.
pub fn share(kernel: &Namespace, veth: &Veth, sender: Sender<'_>, time: Duration) -> Result<Seen> {
    // Another sender may have used the addresses.
    kernel.ip(&format!("neighbour flush dev {}", Veth::PEER))?;
    match sender {
        Sender::Quietline(mode, hystart) => {
            let mode = format!("--sysctl=net.quietline.tsq_limit={mode}");
            let hystart = format!("--sysctl=net.quietline.hystart_detect={hystart}");
            // The kernel's queue is the only one.
            let noqueue = format!("--sysctl=net.quietline.dev.{}.qdisc=noqueue", Veth::OURS);
            let cubic = "--sysctl=net.ipv4.tcp_congestion_control=cubic";
            // Data whose completion is reported at once cannot be limited.
            let completion = "--sysctl=net.quietline.dev_orphan=completion";
            let mut words = vec!["chargen", cubic, completion, &noqueue, &mode, &hystart];
            words.extend(SUPERFRAMES);
            let chargen = veth.serve("", &words)?;
            let echo = veth.serve_at(ECHO, ",mac=02:00:00:00:00:03", &["echo"])?;
            let seen = watch(kernel, veth, time);
            for server in [chargen, echo] {
                Quietline::interrupt(server)?;
            }
            seen
        }
        Sender::Kernel(bytes) => {
            let own = Veth::OURS;
            let bytes = bytes.unwrap_or(4 << 20);
            veth.ours.shell(&format!(
                "ip address add {STACK}/24 dev {own}; ip address add {ECHO}/24 dev {own}
                 echo {bytes} >/proc/sys/net/ipv4/tcp_limit_output_bytes"
            ))?;
            let ended = AtomicBool::new(false);
            let seen = thread::scope(|scope| {
                let servers = scope.spawn(|| veth.ours.enter(|| kernel_servers(&ended)));
                let seen = watch(kernel, veth, time);
                ended.store(true, Ordering::Relaxed);
                // The servers must not wait for a client that failed to connect.
                let _woken = veth.ours.enter(|| {
                    let ports = [(ECHO, ECHO_PORT), (STACK, CHARGEN)];
                    Ok(ports.map(|port| TcpStream::connect(port).is_ok()))
                });
                servers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                seen
            });
            veth.ours.ip(&format!("address flush dev {own}"))?;
            seen
        }
    }
}

/// Sends to the first client of one port, and echoes to the first client of the other.
fn kernel_servers(ended: &AtomicBool) -> Result<()> {
    let chargen = TcpListener::bind((STACK, CHARGEN)).context("the sender's port")?;
    set_tcp_congestion(&chargen, "cubic").context("choosing cubic")?;
    let echo = TcpListener::bind((ECHO, ECHO_PORT)).context("the echo's port")?;
    thread::scope(|scope| {
        let bulk = scope.spawn(|| -> Result<()> {
            let (mut stream, _) = chargen.accept()?;
            let block = vec![b'x'; 256 << 10];
            while !ended.load(Ordering::Relaxed) && stream.write_all(&block).is_ok() {}
            Ok(())
        });
        let (mut stream, _) = echo.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
        bulk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs the far end: reads the bulk flow, sends requests and waits for responses, and samples the
/// queue meanwhile.
fn watch(kernel: &Namespace, veth: &Veth, time: Duration) -> Result<Seen> {
    let ended = AtomicBool::new(false);
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        let bulk = scope.spawn(|| kernel.enter(|| read_endlessly(&received, &ended)));
        // A new link may take seconds before it carries packets.
        while received.load(Ordering::Relaxed) == 0 && !bulk.is_finished() {
            thread::sleep(PAUSE);
        }
        thread::sleep(WARM_UP);
        let backlogs = scope.spawn(|| backlogs(veth, &ended));
        let (begin, before) = (Instant::now(), received.load(Ordering::Relaxed));
        let round_trips = kernel.enter(|| round_trips(time));
        let bytes = received.load(Ordering::Relaxed) - before;
        let seconds = begin.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        bulk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let backlogs = backlogs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let round_trips = round_trips?;
        ensure!(!backlogs.is_empty() && !round_trips.is_empty(), "nothing was measured");
        #[expect(clippy::cast_precision_loss, reason = "some seconds' worth")]
        let bits_per_second = bytes as f64 * 8.0 / seconds;
        Ok(Seen { bits_per_second, round_trips, backlogs })
    })
}

fn read_endlessly(received: &AtomicU64, ended: &AtomicBool) -> Result<()> {
    let mut stream = connect(STACK, CHARGEN)?;
    let mut block = vec![0; 1 << 20];
    while !ended.load(Ordering::Relaxed) {
        let count = stream.read(&mut block).context("the bulk flow")?;
        ensure!(count > 0, "the sender has ended");
        received.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Sends requests at times that are independent of the queue: after equal pauses, each request
/// would meet the superframe in front of it at the same point, and wait for one or two of them as
/// the pause is a little shorter or longer than one takes.
fn round_trips(time: Duration) -> Result<Vec<Duration>> {
    let mut stream = connect(ECHO, ECHO_PORT)?;
    stream.set_nodelay(true)?;
    let end = Instant::now() + time;
    let mut all = Vec::new();
    while Instant::now() < end {
        let begin = Instant::now();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0]).context("the answer")?;
        all.push(begin.elapsed());
        thread::sleep(PAUSES[all.len() % PAUSES.len()]);
    }
    all.sort_unstable();
    Ok(all)
}

/// The SYN of the handshake and ARP may wait in the queue, too.
fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let address: SocketAddr = format!("{host}:{port}").parse()?;
    let deadline = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                ensure!(Instant::now() < deadline, "no listener on {address}");
                thread::sleep(PAUSE);
            }
            stream => {
                let stream = stream.with_context(|| format!("connecting to {address}"))?;
                stream.set_read_timeout(Some(LIMIT))?;
                return Ok(stream);
            }
        }
    }
}

/// Samples the queue by `tc -s qdisc`, repeatedly.
fn backlogs(veth: &Veth, ended: &AtomicBool) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        all.push(qdisc_statistic(veth, "backlog")?);
        thread::sleep(PAUSE);
    }
    all.sort_unstable();
    Ok(all)
}

/// Reads a number that `tc -s qdisc` reports for the near end.
///
/// # Errors
/// When there is no number of that name.
pub fn qdisc_statistic(veth: &Veth, name: &str) -> Result<u64> {
    let text = veth.ours.tool("tc", &format!("-s -j qdisc show dev {}", Veth::OURS))?;
    let report: serde_json::Value = serde_json::from_str(&text).context("tc's JSON")?;
    report[0][name].as_u64().with_context(|| format!("no {name} in {text}"))
}
