//! Two hosts in virtual time: bulk senders, and a connection that asks.
//!
//! Above: the declaration. Below: `simulation`.

use std::{io::IoSlice, sync::Arc, time::Duration};

use quietline::sans_io::{Connection, Errno, Impairment, Instant};

use super::{
    Traffic,
    summary::{Notes, SAMPLES, Sample, millis, summarize},
};
use crate::{
    experiment::{Error, Observation, Setup},
    experiments::{simulation::Simulation, threads},
};

/// Places of the queue before the link: the default length of `pfifo_fast`.
const QUEUE_PACKETS: usize = 1000;

/// Bytes of one write of a bulk sender.
const WRITE_BYTES: usize = 64 * 1024;

/// Bytes of a request and of its response.
pub(super) const PING_BYTES: usize = 64;

/// Bytes on the link that requests and ACKs do not reach.
const BULK_BYTES_MIN: u64 = 200;

/// Bytes that bulk senders write.
pub(super) static ZEROS: [u8; WRITE_BYTES] = [0; WRITE_BYTES];

/// A connection that writes without end, and its receiver.
struct Bulk {
    client: Arc<Connection>,
    server: Arc<Connection>,
    received: u64,
}

/// A connection with one request under way.
struct Ping {
    client: Arc<Connection>,
    server: Arc<Connection>,
    /// When the request was sent, and how much of the response is missing.
    asked: Option<(Instant, usize)>,
    /// How much of the request the server has.
    at_server: usize,
    next: Instant,
    pause: Duration,
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
pub(super) fn run(traffic: Traffic, setup: &Setup<'_>) -> Result<Observation, Error> {
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
    let names = [
        "TsqThrottled",
        "TsqRuns",
        "TsqRecheck",
        "TcpRetransSegs",
        "TcpExtTCPSpuriousRtxHostQueues",
    ];
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
