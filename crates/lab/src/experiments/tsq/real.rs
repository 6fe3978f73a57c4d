//! The same on a queue of the kernel: an interface that the user names, through a packet socket.
//!
//! **Method.** Wall time: one thread runs a host on the interface, with an address that no other
//! host has. One, two or four bulk senders write as much as their sockets take to a port that
//! discards; a further connection sends 64 bytes to a port that echoes, and waits for them. The
//! device holds a packet until the kernel has released it, so that bytes below TCP are those in the
//! kernel's queue and in the driver's ring. The runs are bounded: a run sends for as long as the
//! method says, and at least [`MEASURE_MIN`].
//!
//! Needs root, or CAP_NET_RAW. The peer runs `quietline serve discard` and `quietline serve echo`,
//! or any services like them.

use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use quietline::{
    device::{AfPacket, AfPacketConfig},
    sans_io::{Connection, Cx, Device, DeviceConfig, Errno, Host, HostConfig, Memory, Readiness},
};

use super::{
    summary::{SAMPLES, mean, millis, over_time, percentile},
    workload::{PING_BYTES, ZEROS},
};
use crate::{
    experiment::{
        Better, Clock, Comparison, Condition, Error, Experiment, Metric, Observation, Series, Setup,
    },
    experiments::threads::{self, Pinned, STALL_MAX},
};

/// Shortest time of a measurement, and the part of it before, in which windows grow.
pub const MEASURE_MIN: Duration = Duration::from_secs(1);
const WARM_UP_MIN: Duration = Duration::from_millis(500);

/// Time between a response and the next request.
const PAUSE: Duration = Duration::from_millis(3);

/// Packet memory of the host.
const MEMORY_BYTES: usize = 256 << 20;

/// The link, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Real {
    /// Interface of the kernel, which is up.
    pub interface: String,
    /// Address of the host on it, with its prefix: `10.0.0.9/24`. No other host has it.
    pub address: String,
    /// Address of the peer, a neighbor on the link.
    pub peer: IpAddr,
    /// Port of the peer that discards what it reads.
    pub sink: u16,
    /// Port of the peer that echoes.
    pub echo: u16,
}

/// The declaration.
#[must_use]
pub fn experiment(real: &Real, quick: bool) -> Experiment {
    let senders: &[usize] = if quick { &[1] } else { &[1, 2, 4] };
    let senders = senders.to_vec();
    let compared = ["below", "ping_rtt", "throughput"];
    let against_off = |arm| compared.map(|metric| Comparison { baseline: "off", arm, metric });
    let real = real.clone();
    Experiment {
        name: "tsq-real",
        title: "TCP Small Queues on a queue of the kernel (Linux 3.6)",
        claim: super::CLAIM,
        workload: "Wall time: bulk senders write without end through a packet socket on an interface of the kernel; a further connection of the same host sends 64 bytes and receives 64, again and again.",
        limits: "What is queued is counted from the packet socket on: the queueing discipline and the driver's ring together. The peer is as fast as it is.",
        clock: Clock::Wall,
        conditions: senders
            .iter()
            .map(|count| Condition {
                name: format!("{count} sender{}", if *count == 1 { "" } else { "s" }),
                description: format!("{count} bulk senders on {}", real.interface),
                ceilings: Vec::new(),
                overhead: WARM_UP_MIN + MEASURE_MIN,
            })
            .collect(),
        arms: super::arms(),
        metrics: metrics(),
        controls: Vec::new(),
        comparisons: ["static131072_ge", "v619"].into_iter().flat_map(against_off).collect(),
        trial: Box::new(move |setup| run(&real, senders[setup.condition], setup)),
    }
}

/// Metrics of a run.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric("below", "KB", "mean packet memory of all senders below TCP", Better::Lower),
        metric("below_p99", "KB", "99th percentile of the same", Better::Lower),
        metric("ping_rtt", "ms", "median round trip of the other connection", Better::Lower),
        metric("ping_p99", "ms", "99th percentile of the same", Better::Lower),
        metric("cwnd", "KB", "mean congestion window of a bulk sender", Better::Lower),
        metric("throughput", "Mbit/s", "payload that the peer acknowledged", Better::Higher),
    ]
}

/// The host, its connections, and the notes of a run.
struct World {
    host: Arc<Host>,
    cx: Cx,
    bulk: Vec<Arc<Connection>>,
    ping: Arc<Connection>,
    /// When the request was sent, and how much of the response is missing.
    asked: Option<(Instant, usize)>,
    next_request: Instant,
    /// Seconds, and milliseconds of a round trip.
    round_trips: Vec<[f64; 2]>,
    /// Seconds, KB below TCP, KB of the first sender's window.
    samples: Vec<[f64; 3]>,
}

impl World {
    fn new(real: &Real, senders: usize, setup: &Setup<'_>) -> Result<Self, Error> {
        let device = AfPacket::open(&AfPacketConfig::new(&real.interface))?;
        let memory = Memory::new(MEMORY_BYTES);
        let addresses = vec![real.address.parse()?];
        let devices = vec![DeviceConfig { device: device as Arc<dyn Device>, addresses }];
        let host = Host::new(&memory, HostConfig { devices, ..HostConfig::replay(setup.seed) })?;
        // The kernel's queue is the only one, and the kernel reports what has left it.
        let qdisc = format!("net.quietline.dev.{}.qdisc", real.interface);
        let common = [
            (qdisc.as_str(), "noqueue"),
            ("net.quietline.dev_orphan", "completion"),
            ("net.ipv4.tcp_autocorking", "0"),
        ];
        for (name, value) in common.iter().chain(&setup.arm.settings) {
            host.set_sysctl(name, value)?;
        }
        let mut cx = Cx::replay(&memory, setup.seed).with_clock(threads::now);
        cx.set_now(threads::now());
        cx.linger();
        let mut connect = |port| connect(&host, &mut cx, SocketAddr::new(real.peer, port));
        let bulk = (0..senders).map(|_| connect(real.sink)).collect::<Result<_, _>>()?;
        let ping = connect(real.echo)?;
        ping.with_tcb(&host, &mut cx, |tcb, _| tcb.set_nodelay(true));
        let (round_trips, samples) = (Vec::new(), Vec::new());
        let next_request = Instant::now();
        Ok(Self { host, cx, bulk, ping, asked: None, next_request, round_trips, samples })
    }

    /// Lets everything happen for a time.
    fn run(&mut self, time: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        let step = time / SAMPLES;
        let mut next_sample = begin;
        while begin.elapsed() < time {
            turn(&self.host, &mut self.cx);
            for connection in &self.bulk {
                match connection.send(&self.host, &mut self.cx, &[IoSlice::new(&ZEROS)]) {
                    Ok(_) | Err(Errno::EAGAIN) => {}
                    Err(error) => return Err(format!("send: {error}").into()),
                }
            }
            self.ask(begin)?;
            if Instant::now() >= next_sample {
                next_sample += step;
                self.sample(begin.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    /// Sends a request when it is time, and takes the response.
    fn ask(&mut self, begin: Instant) -> Result<(), Error> {
        let mut buffer = [1; PING_BYTES];
        let now = Instant::now();
        let Some((asked, mut missing)) = self.asked else {
            if now >= self.next_request {
                let sent = self.ping.send(&self.host, &mut self.cx, &[IoSlice::new(&buffer)]);
                if sent != Ok(PING_BYTES) {
                    return Err(format!("request: {sent:?}").into());
                }
                self.asked = Some((now, PING_BYTES));
            }
            return Ok(());
        };
        match self.ping.recv(&self.host, &mut self.cx, &mut buffer, false) {
            Ok(0) => return Err("the echo has ended".into()),
            Ok(count) => missing = missing.saturating_sub(count),
            Err(Errno::EAGAIN) if asked.elapsed() < STALL_MAX => {}
            Err(error) => return Err(format!("response: {error}").into()),
        }
        self.asked = (missing > 0).then_some((asked, missing));
        if missing == 0 {
            self.round_trips.push([begin.elapsed().as_secs_f64(), millis(asked.elapsed())]);
            self.next_request = Instant::now() + PAUSE;
        }
        Ok(())
    }

    fn sample(&mut self, at_s: f64) {
        let below: f64 = self.bulk.iter().map(|own| f64::from(own.wmem_alloc())).sum();
        let Some(first) = self.bulk.first() else { return };
        let info = first.with_tcb(&self.host, &mut self.cx, |tcb, _| tcb.info());
        self.samples.push([at_s, below / 1e3, f64::from(info.cwnd) / 1e3]);
    }

    /// Bytes that the peer has acknowledged.
    fn acknowledged(&mut self) -> u64 {
        let (host, cx) = (&self.host, &mut self.cx);
        let of = |own: &Arc<Connection>| own.with_tcb(host, cx, |tcb, _| tcb.info().bytes_acked);
        self.bulk.iter().map(of).sum()
    }
}

fn turn(host: &Host, cx: &mut Cx) {
    cx.set_now(threads::now());
    let _ = host.poll(cx);
    cx.rest();
}

fn connect(host: &Arc<Host>, cx: &mut Cx, to: SocketAddr) -> Result<Arc<Connection>, Error> {
    let connection = Connection::connect(host, cx, None, to)?;
    let begin = Instant::now();
    while !connection.readiness().contains(Readiness::WRITE) {
        if begin.elapsed() > STALL_MAX {
            return Err(format!("no connection to {to}").into());
        }
        turn(host, cx);
    }
    Ok(connection)
}

/// Makes one run.
fn run(real: &Real, senders: usize, setup: &Setup<'_>) -> Result<Observation, Error> {
    let _pinned = Pinned::to(0);
    let mut world = World::new(real, senders, setup)?;
    world.run(setup.warm_up.max(WARM_UP_MIN))?;
    (world.round_trips, world.samples) = (Vec::new(), Vec::new());
    let (before, begin) = (world.acknowledged(), Instant::now());
    world.run(setup.measure.max(MEASURE_MIN))?;
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bits = (world.acknowledged() - before) as f64 * 8.0;
    let column = |place: usize| world.samples.iter().map(|own| own[place]).collect::<Vec<_>>();
    let trips: Vec<f64> = world.round_trips.iter().map(|own| own[1]).collect();
    if trips.is_empty() || bits < 1.0 {
        return Err("the link carried nothing".into());
    }
    let (below, windows) = (column(1), column(2));
    let pairs = |place: usize| world.samples.iter().map(|own| [own[0], own[place]]).collect();
    Ok(Observation {
        metrics: vec![
            mean(&below),
            percentile(&below, 99),
            percentile(&trips, 50),
            percentile(&trips, 99),
            mean(&windows),
            bits / seconds / 1e6,
        ],
        counters: Vec::new(),
        series: vec![
            over_time("memory below TCP", "KB", pairs(1)),
            over_time("congestion window", "KB", pairs(2)),
            over_time("round trip of the other connection", "ms", world.round_trips.clone()),
            Series::distribution("memory below TCP", "KB", below),
            Series::distribution("round trip of the other connection", "ms", trips),
        ],
    })
}
