//! PQ1, PQ2, PQ3, PQ4, PQ7 and PQ8 over random interleavings of arrivals, `recv`, peeks, a reader
//! that changes or is killed, timers, and threads that own the socket. `SEEDS=n` plays n of them
//! per context.

use std::{io::IoSliceMut, sync::Arc, time::Duration};

use sim::{
    World,
    apps::{Pattern, Sender, connect, listen},
};
use stack::{
    Errno, Readiness,
    base::counters::Counter,
    device::{Impairment, WireConfig},
    host::Host,
    socket::{Connection, Listener, Reader},
};

const CONTEXTS: [&str; 4] = ["bh", "prequeue_ref", "prequeue_drop", "prequeue_drop_limited"];

/// Bytes of one run.
const LENGTH: u64 = 300_000;

const PATTERN: Pattern = Pattern(7);

/// The threads of host 1: one that may sleep in `recv`, one that peeks or reads, one that owns the
/// socket.
struct Application {
    host: Arc<Host>,
    socket: Arc<Connection>,
    reader: Reader,
    received: u64,
    ended: bool,
}

impl Application {
    fn step(&mut self, world: &mut World) {
        let (short, long) = (world.cx.rng.below(3000), world.cx.rng.below(220));
        match world.cx.rng.below(16) {
            0..6 => world.pass(Duration::from_micros(u64::from(short))),
            // The reader runs only after a wake, and not after each.
            6..9 if self.is_woken() => self.read(world, false),
            9 if self.is_woken() => self.read(world, true),
            6..10 if !self.reader.is_installed() => self.read(world, false),
            10 => self.peek(world),
            11 => self.take(world),
            12 => self.reader = Reader::new(),
            13 => self.hold(world),
            14 => world.pass(Duration::from_millis(u64::from(long))),
            _ if long < 20 => self.host.invalidate_routes(),
            _ => self.change_context(world),
        }
        // PQ3, and the part of PQ2 that queued packets have a reader or a timer.
        let _ = self.socket.check(&self.host, &mut world.cx);
    }

    fn is_woken(&self) -> bool {
        self.socket.is_due(&self.reader) || self.socket.readiness().contains(Readiness::READ)
    }

    fn read(&mut self, world: &mut World, last: bool) {
        let mut buf = vec![0; world.cx.rng.below(6000) as usize + 1];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let Self { host, socket, reader, .. } = self;
        let read = if last {
            socket.recv_and_leave(host, &mut world.cx, reader, bufs)
        } else if world.cx.rng.below(3) == 0 {
            let hosts = world.hosts.clone();
            socket.recv_interrupted(host, &mut world.cx, reader, bufs, |cx| {
                for host in &hosts {
                    let _ = host.poll(cx);
                }
            })
        } else {
            socket.recv_or_wait(host, &mut world.cx, reader, bufs)
        };
        self.received(read, &buf);
    }

    fn take(&mut self, world: &mut World) {
        let mut buf = vec![0; world.cx.rng.below(3000) as usize + 1];
        let read = self.socket.recv(&self.host, &mut world.cx, &mut buf, false);
        self.received(read, &buf);
    }

    fn received(&mut self, read: Result<usize, Errno>, buf: &[u8]) {
        match read {
            Ok(0) => self.ended = true,
            Ok(read) => {
                self.compare(&buf[..read]);
                self.received += read as u64;
            }
            Err(error) => assert_eq!(error, Errno::EAGAIN),
        }
    }

    fn peek(&self, world: &mut World) {
        let mut buf = [0; 500];
        if let Ok(read) = self.socket.recv(&self.host, &mut world.cx, &mut buf, true) {
            self.compare(&buf[..read]);
        }
    }

    fn compare(&self, bytes: &[u8]) {
        for (at, &byte) in (self.received..).zip(bytes) {
            assert_eq!(byte, PATTERN.byte(at), "byte {at} of the stream");
        }
    }

    /// Owns the socket while descheduled, up to the length of a delayed ACK.
    fn hold(&self, world: &mut World) {
        let time = Duration::from_micros(u64::from(world.cx.rng.below(60_000)));
        let hosts = world.hosts.clone();
        self.socket.hold(&self.host, &mut world.cx, |cx| {
            for part in 1..4 {
                cx.now += time / part / 3;
                for host in &hosts {
                    let _ = host.poll(cx);
                }
            }
        });
    }

    fn change_context(&self, world: &mut World) {
        if world.cx.rng.below(8) == 0 {
            let low_latency = if world.cx.rng.below(2) == 0 { "0" } else { "1" };
            self.host.set_sysctl("net.ipv4.tcp_low_latency", low_latency).expect("a switch");
        }
    }
}

/// Plays one run; returns the number of packets queued to backlogs and to prequeues.
fn play(seed: u64, context: &str) -> [u64; 2] {
    let bad = Impairment {
        rate_bps: Some(30_000_000),
        delay: Duration::from_micros(300),
        loss: 0.01,
        reorder: 0.02,
        reorder_delay: Duration::from_micros(900),
        ..Impairment::default()
    };
    let wire = WireConfig { forward: bad, backward: bad, seed, ..WireConfig::default() };
    let mut world = World::pair(seed, &wire).expect("a valid wire");
    let host = Arc::clone(&world.hosts[1]);
    host.set_sysctl("net.quietline.rx_context", context).expect("a context");
    let listener = listen(&mut world, 80);
    let (client, socket) = connect(&mut world, &listener);
    let mut sender = Sender::new(0, client, PATTERN, LENGTH);
    let reader = Reader::new();
    let mut application = Application { host, socket, reader, received: 0, ended: false };
    for step in 0.. {
        if application.ended {
            break;
        }
        assert!(step < 200_000, "seed {seed}, {context}: stuck at {}", application.received);
        sender.step(&mut world);
        application.step(&mut world);
    }
    assert_eq!(application.received, LENGTH, "seed {seed}, {context}");
    let counters = application.host.counters();
    let queued = [Counter::SocketBacklogQueued, Counter::PrequeueQueued].map(|q| counters.stack(q));
    finish(world, sender, application, listener);
    queued
}

/// Asserts that nothing is left (PQ7).
fn finish(mut world: World, sender: Sender, application: Application, listener: Arc<Listener>) {
    let Application { host, socket, .. } = application;
    socket.close(&host, &mut world.cx);
    listener.close(&host, &mut world.cx);
    drop((sender, socket, host, listener));
    world.pass(Duration::from_secs(200));
    for host in world.hosts.clone() {
        host.shut_down(&mut world.cx);
    }
    world.hosts.clear();
    assert_eq!(world.packets_alive(), 0, "packets leaked");
}

#[test]
fn any_interleaving_delivers_the_stream() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100_u64);
    for context in CONTEXTS {
        let mut sums = [0; 2];
        for seed in 0..seeds.max(100) {
            let queued = play(seed, context);
            sums = [sums[0] + queued[0], sums[1] + queued[1]];
        }
        assert!(sums[0] > 100, "{context}: {sums:?} packets went to backlogs and prequeues");
        assert_eq!(sums[1] > 100, context != "bh", "{context}: {sums:?}");
    }
}
