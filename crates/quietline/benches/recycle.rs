//! Cost of recycling packets that are freed on another core than their own, for the five modes of
//! `net.quietline.skb_recycle`.
//!
//! `cargo bench -p quietline --bench recycle [-- --smoke]` prints three tables. Each figure is the
//! median of the rounds with its quartiles:
//!
//! - *one way*: a thread allocates packets of 64 bytes, another frees them (nanoseconds per
//!   packet);
//! - *both ways*: each thread frees the packets that the other allocates, as with requests and
//!   responses (nanoseconds per packet);
//! - *requests*: requests and responses of 64 bytes over a wire to a host with a receiving worker
//!   and an application on another thread, with the packet memory operations of each request
//!   (nanoseconds per request).
//!
//! Every round runs every mode once, so that the figures of one run are comparable. In the first
//! two tables the modes that keep packets in sockets or free them after the lock are `Home`, as
//! they are for packet memory.

mod quartiles;

use std::{
    io::{Read, Write},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use pkt::{Domain, DomainConfig, FreeMode, Packet, Pool};
use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

use quartiles::quartiles;

/// Number of packets handed over at a time, as a poll does.
const BURST: usize = 32;

const FREE_MODES: [(&str, FreeMode); 3] = [
    ("home", FreeMode::Home),
    ("defer", FreeMode::Defer { max: 64 }),
    ("unified", FreeMode::Unified),
];

const RECYCLE: [&str; 5] =
    ["none", "socket_one", "list_after_unlock", "per_core_defer", "unified_pool"];

/// Packet memory of a thread and its two ends of the traffic.
struct Side {
    pool: Pool,
    out: SyncSender<Vec<Packet>>,
    inward: Receiver<Vec<Packet>>,
}

impl Side {
    fn send(&mut self) -> bool {
        let burst = (0..BURST).map(|_| self.pool.alloc_from(&[0x5a; 64]).expect("memory"));
        let burst = burst.collect();
        self.out.send(burst).is_ok()
    }

    fn free(&mut self) -> usize {
        let Ok(burst) = self.inward.recv() else { return 0 };
        let count = burst.len();
        burst.into_iter().for_each(|packet| self.pool.free(packet));
        count
    }
}

/// Exchanges packets between two threads for `time`. Returns the nanoseconds per packet.
fn exchange(mode: FreeMode, both_ways: bool, time: Duration) -> f64 {
    let domain = Domain::new(DomainConfig::default());
    let ((to_far, from_near), (to_near, from_far)) = (sync_channel(4), sync_channel(4));
    let side = |out, inward| {
        let mut pool = domain.pool();
        pool.set_free_mode(mode);
        Side { pool, out, inward }
    };
    let (mut near, mut far) = (side(to_far, from_far), side(to_near, from_near));
    let peer = thread::spawn(move || {
        while far.free() > 0 {
            far.pool.drain_returns();
            // An empty burst acknowledges that the packets were freed.
            let answered = if both_ways { far.send() } else { far.out.send(Vec::new()).is_ok() };
            if !answered {
                return;
            }
        }
    });
    let begin = Instant::now();
    let mut packets = 0;
    // As many bursts are in flight as fit, so that both threads work.
    for _ in 0..2 {
        near.send();
    }
    while begin.elapsed() < time {
        near.free();
        near.pool.drain_returns();
        near.send();
        packets += if both_ways { 2 * BURST } else { BURST };
    }
    let took = begin.elapsed();
    let Side { out, inward, .. } = near;
    drop(out);
    // Drain the remaining bursts.
    while inward.recv().is_ok() {}
    peer.join().expect("the peer does not panic");
    took.as_secs_f64() * 1e9 / packets as f64
}

/// Two hosts and a connection between them. The client polls itself; the server's application
/// sleeps while a worker receives.
struct Arm {
    mode: &'static str,
    near: TcpStream,
    server: Stack,
    _client: Stack,
    request_ns: Vec<f64>,
    requests: f64,
    /// Packet memory operations of the rounds, as in [`COUNTERS`]. Packet memory is shared by the
    /// process, so the operations of other arms are subtracted.
    counts: [u64; COUNTERS.len()],
}

/// Counters of packet memory, for both hosts together.
const COUNTERS: [(&str, &str); 5] = [
    ("allocs", "SkbAllocs"),
    ("remote", "SkbFreesRemote"),
    ("adopted", "SkbFreesAdopted"),
    ("sent home", "SkbDeferPushed"),
    ("depot", "SkbMagazineRefills"),
];

impl Arm {
    fn new(mode: &'static str) -> Self {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a valid wire");
        let build = |device, address: &str| {
            let builder =
                Stack::builder().device(device).address(address.parse().expect("an address"));
            builder.sysctl("net.quietline.skb_recycle", mode)
        };
        let client = build(left, "10.0.0.1/24").build().expect("a valid stack");
        let server = build(right, "10.0.0.2/24").build().expect("a valid stack");
        let listener = TcpListener::bind(&server, "10.0.0.2:0");
        let listener = listener.expect("a port");
        let to = listener.local_addr().expect("bound");
        let near = TcpStream::connect(&client, to).expect("a connection");
        let (mut far, _) = listener.accept().expect("a connection");
        for stream in [&near, &far] {
            stream.set_nodelay(true).expect("an option");
        }
        thread::spawn(move || {
            let mut buf = [0; 64];
            while far.read_exact(&mut buf).is_ok() && far.write_all(&buf).is_ok() {}
        });
        let mut arm = Self {
            mode,
            near,
            server,
            _client: client,
            request_ns: Vec::new(),
            requests: 0.0,
            counts: [0; COUNTERS.len()],
        };
        arm.round(Duration::from_millis(2));
        (arm.requests, arm.counts) = (0.0, [0; COUNTERS.len()]);
        arm
    }

    fn counters(&self) -> [u64; COUNTERS.len()] {
        let counters = self.server.counters();
        COUNTERS.map(|(_, name)| counters.get(name).expect("a counter"))
    }

    fn round(&mut self, time: Duration) -> f64 {
        let (mut buf, mut count) = ([1; 64], 0.0);
        let before = self.counters();
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..20 {
                self.near.write_all(&buf).expect("room");
                self.near.read_exact(&mut buf).expect("the answer");
                count += 1.0;
            }
        }
        let took = begin.elapsed();
        self.requests += count;
        let after = self.counters();
        for ((sum, after), before) in self.counts.iter_mut().zip(after).zip(before) {
            *sum += after - before;
        }
        took.as_secs_f64() * 1e9 / count
    }
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke" || argument == "--test");
    let (rounds, time) =
        if smoke { (1, Duration::from_millis(2)) } else { (21, Duration::from_millis(20)) };
    let mut arms: Vec<Arm> = RECYCLE.map(Arm::new).into();
    let mut packets: Vec<[Vec<f64>; 2]> = FREE_MODES.map(|_| [Vec::new(), Vec::new()]).into();
    for _ in 0..rounds {
        for ((_, mode), [one, both]) in FREE_MODES.iter().zip(&mut packets) {
            one.push(exchange(*mode, false, time));
            both.push(exchange(*mode, true, time));
        }
        for arm in &mut arms {
            let ns = arm.round(time);
            arm.request_ns.push(ns);
        }
    }
    println!("packets    one way, ns             both ways, ns");
    for ((name, _), [one, both]) in FREE_MODES.iter().zip(&mut packets) {
        let [low, median, high] = quartiles(one);
        let [fast, middle, slow] = quartiles(both);
        println!(
            "{name:<8} {median:7.1} ({low:.1}-{high:.1})   {middle:7.1} ({fast:.1}-{slow:.1})"
        );
    }
    let heads = COUNTERS.map(|(head, _)| format!("{head:>10}")).concat();
    println!("requests            ns                          {heads}");
    for arm in &mut arms {
        let [low, median, high] = quartiles(&mut arm.request_ns);
        let counts =
            arm.counts.map(|count| format!("{:10.2}", count as f64 / arm.requests)).concat();
        println!("{:<18} {median:8.0} ({low:.0}-{high:.0})   {counts}", arm.mode);
    }
}
