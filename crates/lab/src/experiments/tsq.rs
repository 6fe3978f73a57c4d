//! TCP Small Queues (Linux 3.6): how much of a bulk sender waits below TCP, and who else waits
//! behind it.
//!
//! **Claim.** With a limit of 128 KB per socket on what is queued below TCP, the queue of a bulk
//! sender shrinks from 50 ms to less than 1 ms at 1 Gbit/s (with TSO), and from 132 ms to less than
//! 8 ms at 100 Mbit/s, without loss of throughput (tg3 and ixgbe, pfifo_fast, netperf).
//!
//! **Model check.** A frame of 1,448 bytes of payload occupies 1,538 bytes of a link, and its
//! packet has 2,152 bytes of memory here (2,304 in Linux): 61 packets reach a limit of 131,072
//! bytes (57 in Linux), which is 0.75 ms at 1 Gbit/s and 7.5 ms at 100 Mbit/s. Two superframes of
//! 64 KB are 1.09 ms and 10.9 ms: the published figure for 100 Mbit/s describes single segments, or
//! a mean.
//!
//! **Method.** Virtual time: two sans-IO hosts, a link of one rate behind a queue of 1,000 packets,
//! which is `pfifo_fast`. Completion when the last bit has left. One to four bulk senders write as
//! much as their sockets take; a further connection sends 64 bytes and gets 64 back, again and
//! again, and its round-trip time is what others suffer. Nothing is measured before the link has
//! carried a third of the transfer (slow start).

use std::{io::IoSlice, sync::Arc, time::Duration};

use quietline::sans_io::{Errno, Impairment, Instant, TcpSocket};

use super::{link_meter::Departure, simulation::Simulation, threads};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Series, Setup,
};

const MBIT: u64 = 1_000_000;

/// Bytes of a frame with a full segment on the link, and its payload.
const FRAME_BYTES: f64 = 1538.0;
const PAYLOAD_BYTES: f64 = 1448.0;

/// Places of the queue before the link: the default length of `pfifo_fast`.
const QUEUE_PACKETS: usize = 1000;

/// Bytes of one write of a bulk sender.
const WRITE_BYTES: usize = 64 * 1024;

/// Bytes of a request and of its response.
const PING_BYTES: usize = 64;

/// Bytes on the link that requests and ACKs do not reach.
const BULK_BYTES_MIN: u64 = 200;

/// Samples of a quantity over time.
const SAMPLES: u32 = 400;

/// One kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) rate_bps: u64,
    pub(super) senders: usize,
    /// Whether the device takes superframes; otherwise single segments.
    pub(super) superframes: bool,
}

impl Traffic {
    fn condition(self) -> Condition {
        let rate = match self.rate_bps / MBIT {
            rate if rate >= 1000 => format!("{}G", rate / 1000),
            rate => format!("{rate}M"),
        };
        let (senders, packets) =
            (self.senders, if self.superframes { "superframes" } else { "segments" });
        let plural = if senders == 1 { "" } else { "s" };
        let description = format!(
            "{senders} bulk sender{plural} on a link of {rate}bit/s, which takes {packets}"
        );
        let name = format!("{rate}, {senders} sender{plural}, {packets}");
        Condition { name, description, ceilings: Vec::new() }
    }

    /// Virtual time of a run: two seconds of the link, but no more than 12 MB, which is quick to
    /// simulate and 8 windows of slow start at 10 Gbit/s.
    fn time(self) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let of_bytes = 12e6 * 8.0 / self.rate_bps as f64;
        Duration::from_secs_f64(of_bytes.min(2.0))
    }
}

fn traffic(quick: bool) -> Vec<Traffic> {
    let rates: &[u64] = if quick { &[100, 1000] } else { &[10, 100, 1000, 10_000] };
    let kinds: &[(usize, bool)] =
        if quick { &[(1, true)] } else { &[(1, true), (1, false), (2, true), (4, true)] };
    let of = |&rate: &u64| {
        kinds.iter().map(move |&(senders, superframes)| Traffic {
            rate_bps: rate * MBIT,
            senders,
            superframes,
        })
    };
    rates.iter().flat_map(of).collect()
}

const ARMS: [&str; 6] = ["off", "static131072_ge", "dyn_max", "dyn_min2", "paced_exempt", "v619"];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let traffic = traffic(quick);
    let metric = Metric::new;
    let compared = ["wait_first_bit", "ping_rtt", "utilization"];
    let against_off = |arm| compared.map(|metric| Comparison { baseline: "off", arm, metric });
    Experiment {
        name: "tsq",
        title: "TCP Small Queues (Linux 3.6)",
        claim: "Bytes below TCP of one bulk sender: less than 1 ms at 1 Gbit/s (50 ms before, with TSO), less than 8 ms at 100 Mbit/s (132 ms before), and no loss of throughput.",
        workload: "Virtual time: bulk senders write without end over a link of one rate, behind a queue of 1,000 packets; a further connection of the same host sends 64 bytes and receives 64, again and again.",
        limits: "The propagation delay is zero, as between neighbors on one switch. The link completes a packet when its last bit has left. A superframe counts with its whole transmission time: the wait to its first bit and the wait to its last bit are two metrics. At 100 Mbit/s two superframes of 64 KB are 10.9 ms, so that the published 8 ms describe single segments or a mean.",
        clock: Clock::Virtual,
        conditions: traffic.iter().map(|traffic| traffic.condition()).collect(),
        arms: ARMS
            .iter()
            .map(|&limit| {
                // An ACK train would end slow start at a window that does not fill the queue for
                // seconds, and hide what the limit does.
                let settings =
                    [("net.quietline.tsq_limit", limit), ("net.quietline.hystart_detect", "delay")];
                Arm::new(limit, &settings)
            })
            .collect(),
        metrics: vec![
            metric(
                "wait_first_bit",
                "ms",
                "mean wait of a bulk packet until its first bit leaves",
                Better::Lower,
            ),
            metric(
                "wait_last_bit",
                "ms",
                "mean wait of a bulk packet until its last bit has left",
                Better::Lower,
            ),
            metric("wait_p99", "ms", "99th percentile of the wait to the first bit", Better::Lower),
            metric(
                "below",
                "KB",
                "largest packet memory of one connection below TCP",
                Better::Lower,
            ),
            metric("ping_rtt", "ms", "median round trip of the other connection", Better::Lower),
            metric("cwnd", "KB", "mean congestion window of a bulk sender", Better::Lower),
            metric(
                "utilization",
                "%",
                "part of the link that arrived as payload, with headers counted as used",
                Better::Higher,
            ),
        ],
        controls: vec![Control {
            counter: "TsqThrottled",
            conditions: Vec::new(),
            moves_in: vec!["static131072_ge"],
            at_least: 0.01,
            still_in: vec!["off"],
            at_most: 0.0,
        }],
        comparisons: ["static131072_ge", "v619"].into_iter().flat_map(against_off).collect(),
        trial: Box::new(move |setup| run(traffic[setup.condition], setup)),
    }
}

/// Bytes that bulk senders write.
static ZEROS: [u8; WRITE_BYTES] = [0; WRITE_BYTES];

/// A connection that writes without end, and its receiver.
struct Bulk {
    client: Arc<TcpSocket>,
    server: Arc<TcpSocket>,
    received: u64,
}

/// A connection with one request under way.
struct Ping {
    client: Arc<TcpSocket>,
    server: Arc<TcpSocket>,
    /// When the request was sent, and how much of the response is missing.
    asked: Option<(Instant, usize)>,
    /// How much of the request the server has.
    at_server: usize,
    next: Instant,
    pause: Duration,
}

/// State of a bulk sender at one moment.
#[derive(Clone, Copy)]
struct Sample {
    at_s: f64,
    /// Packet memory below TCP, and congestion window.
    below_bytes: f64,
    cwnd_bytes: f64,
    /// Payload that has arrived, of all bulk senders.
    received_bytes: f64,
}

/// What a run notes.
#[derive(Default)]
struct Notes {
    departures: Vec<Departure>,
    round_trips: Vec<(f64, f64)>,
    below_max: u32,
    /// At equal distances of time, of the first bulk sender.
    samples: Vec<Sample>,
    next_sample: Option<Instant>,
}

/// The applications of both hosts.
struct Applications {
    bulk: Vec<Bulk>,
    ping: Ping,
    notes: Notes,
    buffer: Vec<u8>,
    /// Distance of samples.
    sample_step: Duration,
}

/// Makes one run.
fn run(traffic: Traffic, setup: &Setup<'_>) -> Result<Observation, Error> {
    let forward = Impairment {
        rate_bps: Some(traffic.rate_bps),
        completion_delay: Duration::from_nanos(1),
        queue_packets: QUEUE_PACKETS,
        ..Impairment::default()
    };
    let mut settings = setup.arm.settings.clone();
    settings.extend([
        // The queue is in the link; a discipline would only hand on what it gets.
        ("net.quietline.dev.default.qdisc", "noqueue"),
        // Autocorking stops senders, too.
        ("net.ipv4.tcp_autocorking", "0"),
        // As in the original measurement: a wire would take 80 KB by default.
        ("net.quietline.dev.default.gso_ipv4_max_size", "65536"),
        ("net.quietline.dev.default.gso", if traffic.superframes { "1" } else { "0" }),
    ]);
    let mut world = Simulation::new(setup.seed, forward, traffic.superframes, &settings)?;
    let mut applications = Applications::new(traffic, setup.seed, &mut world)?;
    let time = traffic.time();
    let part = time / 3;
    world.run(part, |world| applications.step(world))?;
    world.link.take();
    applications.notes = Notes::default();
    let before = applications.received();
    let counted = world.client.counters();
    world.run(time - part, |world| applications.step(world))?;
    let received = applications.received() - before;
    let mut notes = applications.notes;
    notes.departures = world.link.take();
    // Requests wait as long as others do, but are more of them than of superframes.
    notes.departures.retain(|departure| departure.bytes > BULK_BYTES_MIN);
    let change = world.client.counters().since(&counted);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let packets = notes.departures.len() as f64;
    let names = ["TsqThrottled", "TsqRuns", "TsqRecheck", "TcpRetransSegs"];
    let counters = threads::per_operation(&change, &names, packets);
    Ok(Observation { counters, ..summarize(traffic, &notes, received, time - part)? })
}

impl Applications {
    fn new(traffic: Traffic, seed: u64, world: &mut Simulation) -> Result<Self, Error> {
        let mut bulk = Vec::new();
        for _ in 0..traffic.senders {
            let (client, server) = world.connect()?;
            bulk.push(Bulk { client, server, received: 0 });
        }
        let (client, server) = world.connect()?;
        client.with_tcb(&world.client, &mut world.cx, |tcb, _| tcb.set_nodelay(true));
        let pause = traffic.time() / 500;
        // The seed decides when the first request meets the queue.
        let phase = pause / 16 * (seed % 16) as u32;
        let next = world.cx.now + phase;
        let ping = Ping { client, server, asked: None, at_server: 0, next, pause };
        let sample_step = traffic.time() / SAMPLES;
        let buffer = vec![0; WRITE_BYTES];
        Ok(Self { bulk, ping, notes: Notes::default(), buffer, sample_step })
    }

    /// Payload that has arrived from all bulk senders.
    fn received(&self) -> u64 {
        self.bulk.iter().map(|bulk| bulk.received).sum()
    }

    /// Lets every application do what it can at this moment; returns when one wants to be called
    /// again.
    fn step(&mut self, world: &mut Simulation) -> Result<Option<Instant>, Error> {
        for own in &mut self.bulk {
            loop {
                match own.client.send(&world.client, &mut world.cx, &[IoSlice::new(&ZEROS)]) {
                    Ok(_) => {}
                    Err(Errno::EAGAIN) => break,
                    Err(error) => return Err(format!("send: {error}").into()),
                }
            }
            while let Ok(count @ 1..) =
                own.server.recv(&world.server, &mut world.cx, &mut self.buffer, false)
            {
                own.received += count as u64;
            }
            self.notes.below_max = self.notes.below_max.max(own.client.wmem_alloc());
        }
        self.ping.step(world, &mut self.notes)?;
        self.sample(world);
        let waits = if self.ping.asked.is_none() { Some(self.ping.next) } else { None };
        Ok(waits.into_iter().chain(self.notes.next_sample).min())
    }

    /// Notes memory and window of the first connection at equal distances of time.
    fn sample(&mut self, world: &mut Simulation) {
        let now = world.cx.now;
        if self.notes.next_sample.is_some_and(|next| now < next) {
            return;
        }
        let Some(first) = self.bulk.first() else { return };
        let info = first.client.with_tcb(&world.client, &mut world.cx, |tcb, _| tcb.info());
        let below = f64::from(first.client.wmem_alloc());
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let received_bytes = self.received() as f64;
        self.notes.samples.push(Sample {
            at_s: world.elapsed().as_secs_f64(),
            below_bytes: below,
            cwnd_bytes: f64::from(info.cwnd),
            received_bytes,
        });
        self.notes.next_sample = Some(now + self.sample_step);
    }
}

impl Ping {
    fn step(&mut self, world: &mut Simulation, notes: &mut Notes) -> Result<(), Error> {
        let message = [1; PING_BYTES];
        let mut buffer = [0; PING_BYTES];
        if self.asked.is_none() && world.cx.now >= self.next {
            let sent = self.client.send(&world.client, &mut world.cx, &[IoSlice::new(&message)]);
            if sent != Ok(PING_BYTES) {
                return Err(format!("request: {sent:?}").into());
            }
            self.asked = Some((world.cx.now, PING_BYTES));
        }
        while let Ok(count @ 1..) =
            self.server.recv(&world.server, &mut world.cx, &mut buffer, false)
        {
            self.at_server += count;
        }
        if self.at_server >= PING_BYTES {
            self.at_server -= PING_BYTES;
            let sent = self.server.send(&world.server, &mut world.cx, &[IoSlice::new(&message)]);
            if sent != Ok(PING_BYTES) {
                return Err(format!("response: {sent:?}").into());
            }
        }
        let Some((asked, mut missing)) = self.asked else { return Ok(()) };
        while let Ok(count @ 1..) =
            self.client.recv(&world.client, &mut world.cx, &mut buffer, false)
        {
            missing = missing.saturating_sub(count);
        }
        self.asked = (missing > 0).then_some((asked, missing));
        if missing == 0 {
            let round_trip = millis(world.cx.now - asked);
            notes.round_trips.push((world.elapsed().as_secs_f64(), round_trip));
            self.next = world.cx.now + self.pause;
        }
        Ok(())
    }
}

fn summarize(
    traffic: Traffic,
    notes: &Notes,
    received: u64,
    time: Duration,
) -> Result<Observation, Error> {
    let mut first: Vec<f64> =
        notes.departures.iter().map(|departure| millis(departure.first_bit)).collect();
    let last: Vec<f64> =
        notes.departures.iter().map(|departure| millis(departure.last_bit)).collect();
    let mut trips: Vec<f64> = notes.round_trips.iter().map(|(_, trip)| *trip).collect();
    if first.is_empty() || trips.is_empty() {
        return Err("the link carried nothing".into());
    }
    let over_time = |name: &str, unit: &str, points: Vec<[f64; 2]>| Series {
        name: name.to_owned(),
        x_unit: "s".to_owned(),
        y_unit: unit.to_owned(),
        points,
    };
    let sampled = |value: fn(&Sample) -> f64| {
        notes.samples.iter().map(|own| [own.at_s, value(own) / 1e3]).collect::<Vec<_>>()
    };
    let values = |value: fn(&Sample) -> f64| {
        notes.samples.iter().map(|own| value(own) / 1e3).collect::<Vec<_>>()
    };
    let throughput = notes.samples.windows(2).filter_map(|pair| {
        let time = pair[1].at_s - pair[0].at_s;
        let bytes = pair[1].received_bytes - pair[0].received_bytes;
        (time > 0.0).then(|| [pair[1].at_s, bytes * 8.0 / time / 1e6])
    });
    let start = notes.departures[0].at;
    let begin = notes.samples.first().map_or(0.0, |sample| sample.at_s);
    let waits = notes.departures.iter().map(|departure| {
        [begin + (departure.at - start).as_secs_f64(), millis(departure.first_bit)]
    });
    let series = vec![
        over_time("wait to the first bit", "ms", thinned(waits.collect())),
        over_time("memory below TCP", "KB", sampled(|sample| sample.below_bytes)),
        over_time("congestion window", "KB", sampled(|sample| sample.cwnd_bytes)),
        over_time("throughput", "Mbit/s", throughput.collect()),
        over_time(
            "round trip of the other connection",
            "ms",
            notes.round_trips.iter().map(|&(at, trip)| [at, trip]).collect(),
        ),
        Series::distribution("memory below TCP", "KB", values(|sample| sample.below_bytes)),
        Series::distribution("wait to the first bit", "ms", first.clone()),
        Series::distribution("wait to the last bit", "ms", last.clone()),
        Series::distribution("round trip of the other connection", "ms", trips.clone()),
    ];
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let (bits, rate) = (received as f64 * 8.0, traffic.rate_bps as f64);
    let utilization = bits / PAYLOAD_BYTES * FRAME_BYTES / time.as_secs_f64() / rate * 100.0;
    first.sort_by(f64::total_cmp);
    trips.sort_by(f64::total_cmp);
    Ok(Observation {
        metrics: vec![
            mean(&first),
            mean(&last),
            first[(first.len() - 1) * 99 / 100],
            f64::from(notes.below_max) / 1e3,
            trips[trips.len() / 2],
            mean(&values(|sample| sample.cwnd_bytes)),
            utilization,
        ],
        counters: Vec::new(),
        series,
    })
}

/// At most [`SAMPLES`] of the points, evenly chosen.
fn thinned(points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let step = points.len().div_ceil(SAMPLES as usize).max(1);
    points.into_iter().step_by(step).collect()
}

fn mean(values: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let count = values.len().max(1) as f64;
    values.iter().sum::<f64>() / count
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;
