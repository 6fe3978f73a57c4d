//! The same on a queue of the kernel: an interface that the user names, through a packet socket.
//!
//! **Method.** Wall time: one thread runs a host on the interface, with an address that no other
//! host has. One, two or four bulk senders write as much as their sockets take to a port that
//! discards; a further connection sends 64 bytes to a port that echoes, and waits for them. The
//! device holds a packet until the kernel has released it, so that bytes below TCP are those in the
//! kernel's queue and in the driver's ring, and the delay of a packet is the time from the call
//! that takes it until its release. Small packets are those of the connection that asks: their
//! delays are the queue as another flow sees it. The runs are bounded: a run sends for as long as
//! the method says, and at least [`MEASURE_MIN`].
//!
//! Two metrics of the simulation have no counterpart. An interface does not tell when the first bit
//! of a packet leaves, and its rate, of which the utilization would be a part, is unknown.
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
    summary::{SAMPLES, mean, millis, over_time, percentile, rates, thinned},
    workload::{PING_BYTES, ZEROS},
};
use crate::{
    experiment::{
        Better, Clock, Comparison, Condition, Error, Experiment, Metric, Observation, Series, Setup,
    },
    experiments::{
        delay_meter::{Delay, DelayMeter},
        threads::{self, Pinned, STALL_MAX},
    },
};

/// Shortest time of a measurement, and the part of it before, in which windows grow.
pub const MEASURE_MIN: Duration = Duration::from_secs(1);
const WARM_UP_MIN: Duration = Duration::from_millis(500);

/// Time between a response and the next request.
const PAUSE: Duration = Duration::from_millis(3);

/// Frames that bulk senders exceed; those of the connection that asks do not.
const SMALL_FRAME_MAX: usize = 200;

/// Counters per packet of a bulk sender.
const COUNTERS: [&str; 4] = ["TsqThrottled", "TsqRuns", "TsqRecheck", "TcpRetransSegs"];

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
    let compared = ["below", "wait", "ping_wait", "ping_rtt", "throughput"];
    let against_off = |arm| compared.map(|metric| Comparison { baseline: "off", arm, metric });
    let real = real.clone();
    Experiment {
        name: "tsq-real",
        title: "TCP Small Queues on a queue of the kernel (Linux 3.6)",
        claim: super::CLAIM,
        workload: "Wall time: bulk senders write without end through a packet socket on an interface of the kernel; a further connection of the same host sends 64 bytes and receives 64, again and again.",
        limits: "What is queued is counted from the packet socket on: the queueing discipline and the driver's ring together, until the kernel releases the packet. On a link without a queue nothing is throttled, and the comparisons are invalid. The peer is as fast as it is.",
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
        controls: super::controls(),
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
        metric("wait", "ms", "mean time of a bulk packet in the kernel's queue", Better::Lower),
        metric("wait_p99", "ms", "99th percentile of the same", Better::Lower),
        metric(
            "ping_wait",
            "ms",
            "median time of the other connection's packets in the kernel's queue",
            Better::Lower,
        ),
        metric("ping_rtt", "ms", "median round trip of the other connection", Better::Lower),
        metric("ping_p99", "ms", "99th percentile of the same", Better::Lower),
        metric("cwnd", "KB", "mean congestion window of a bulk sender", Better::Lower),
        metric("throughput", "Mbit/s", "payload that the peer acknowledged", Better::Higher),
    ]
}

/// State of the senders at one moment.
#[derive(Clone, Copy)]
struct Sample {
    at_s: f64,
    /// Packet memory below TCP of all bulk senders, and window of the first one.
    below_kb: f64,
    cwnd_kb: f64,
    /// Payload of all bulk senders that the peer has acknowledged.
    acknowledged_bytes: f64,
}

/// The host, its connections, and the notes of a run.
struct World {
    host: Arc<Host>,
    meter: Arc<DelayMeter>,
    cx: Cx,
    bulk: Vec<Arc<Connection>>,
    ping: Arc<Connection>,
    /// When the request was sent, and how much of the response is missing.
    asked: Option<(Instant, usize)>,
    next_request: Instant,
    /// Seconds, and milliseconds of a round trip.
    round_trips: Vec<[f64; 2]>,
    samples: Vec<Sample>,
}

impl World {
    fn new(real: &Real, senders: usize, setup: &Setup<'_>) -> Result<Self, Error> {
        let socket = AfPacket::open(&AfPacketConfig::new(&real.interface))?;
        let meter = Arc::new(DelayMeter::new(socket as Arc<dyn Device>));
        let device = Arc::clone(&meter) as Arc<dyn Device>;
        let memory = Memory::new(MEMORY_BYTES);
        let addresses = vec![real.address.parse()?];
        let devices = vec![DeviceConfig { device, addresses }];
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
        Ok(Self { host, meter, cx, bulk, ping, asked: None, next_request, round_trips, samples })
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
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let acknowledged_bytes = self.acknowledged() as f64;
        self.samples.push(Sample {
            at_s,
            below_kb: below / 1e3,
            cwnd_kb: f64::from(info.cwnd) / 1e3,
            acknowledged_bytes,
        });
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
    world.meter.take();
    let (before, counted) = (world.acknowledged(), world.host.counters());
    let begin = Instant::now();
    world.run(setup.measure.max(MEASURE_MIN))?;
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bits = (world.acknowledged() - before) as f64 * 8.0;
    let (small, bulk): (Vec<Delay>, Vec<Delay>) =
        world.meter.take().into_iter().partition(|own| own.bytes <= SMALL_FRAME_MAX);
    if world.round_trips.is_empty() || bulk.is_empty() || small.is_empty() || bits < 1.0 {
        return Err("the link carried nothing".into());
    }
    let change = world.host.counters().since(&counted);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let packets = bulk.len() as f64;
    let counters = threads::per_operation(&change, &COUNTERS, packets);
    Ok(Observation { counters, ..summarize(&world, begin, &bulk, &small, bits / seconds) })
}

/// Metrics and series of a run that began at `begin`.
fn summarize(
    world: &World,
    begin: Instant,
    bulk: &[Delay],
    small: &[Delay],
    bits_per_s: f64,
) -> Observation {
    let sampled = |value: fn(&Sample) -> f64| {
        world.samples.iter().map(|own| [own.at_s, value(own)]).collect::<Vec<_>>()
    };
    let of = |points: &[[f64; 2]]| points.iter().map(|own| own[1]).collect::<Vec<_>>();
    let delays = |of: &[Delay]| {
        let at = |own: &Delay| own.taken.saturating_duration_since(begin).as_secs_f64();
        of.iter().map(|own| [at(own), millis(own.delay)]).collect::<Vec<_>>()
    };
    let (below, windows) = (sampled(|own| own.below_kb), sampled(|own| own.cwnd_kb));
    let (bulk, small) = (delays(bulk), delays(small));
    let [below_kb, trips, waits, small_waits] =
        [&below, &world.round_trips, &bulk, &small].map(|points| of(points));
    Observation {
        metrics: vec![
            mean(&below_kb),
            percentile(&below_kb, 99),
            mean(&waits),
            percentile(&waits, 99),
            percentile(&small_waits, 50),
            percentile(&trips, 50),
            percentile(&trips, 99),
            mean(&of(&windows)),
            bits_per_s / 1e6,
        ],
        counters: Vec::new(),
        series: vec![
            over_time("wait of bulk packets", "ms", thinned(bulk)),
            over_time("wait of the other connection's packets", "ms", thinned(small)),
            over_time("memory below TCP", "KB", below),
            over_time("congestion window", "KB", windows),
            over_time("throughput", "Mbit/s", rates(&sampled(|own| own.acknowledged_bytes))),
            over_time("round trip of the other connection", "ms", world.round_trips.clone()),
            Series::distribution("memory below TCP", "KB", below_kb),
            Series::distribution("wait of bulk packets", "ms", waits),
            Series::distribution("wait of the other connection's packets", "ms", small_waits),
            Series::distribution("round trip of the other connection", "ms", trips),
        ],
    }
}
