//! Receive offload, on and off, with its four delivery modes and lists of one, eight and 64
//! packets.
//!
//! `cargo bench -p quietline --bench gro [-- --smoke]` prints, per setting, the time per segment of
//! a bulk transfer over a wire without superframes, and the time per round trip of one byte, as the
//! median of the rounds with its quartiles. One thread runs both ends, and every round runs every
//! setting once, so that the figures of one run are comparable.

mod quartiles;

use std::{
    io::{ErrorKind, Read, Write},
    time::{Duration, Instant},
};

use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

use quartiles::quartiles;

/// Payload of a full segment.
const MSS: f64 = 1448.0;

/// Settings of the receiver: `gro`, `gro_exit`, `gro_normal_batch`.
type Setting = (&'static str, &'static str, &'static str);

const SETTINGS: [Setting; 12] = [
    ("0", "immediate", "8"),
    ("0", "normal_only_list", "8"),
    ("0", "unified_list_packets", "8"),
    ("0", "unified_list_segments", "1"),
    ("0", "unified_list_segments", "8"),
    ("0", "unified_list_segments", "64"),
    ("1", "immediate", "8"),
    ("1", "normal_only_list", "8"),
    ("1", "unified_list_packets", "8"),
    ("1", "unified_list_segments", "1"),
    ("1", "unified_list_segments", "8"),
    ("1", "unified_list_segments", "64"),
];

/// Two hosts, a connection between them, and the results.
struct Arm {
    setting: Setting,
    server: Stack,
    _client: Stack,
    near: TcpStream,
    far: TcpStream,
    segment_ns: Vec<f64>,
    round_trip_ns: Vec<f64>,
}

impl Arm {
    fn new(setting: Setting) -> Self {
        let config = WireConfig { tso: false, ..WireConfig::default() };
        let (left, right) = Wire::pair(&config).expect("a valid wire");
        let (gro, exit, batch) = setting;
        let build = |device: std::sync::Arc<Wire>, address: &str| {
            let address = address.parse().expect("an address");
            let builder = Stack::builder().device(device).address(address);
            let builder = builder
                .sysctl("net.quietline.dev.default.gro", gro)
                .sysctl("net.quietline.gro_exit", exit)
                .sysctl("net.core.gro_normal_batch", batch);
            builder.manual().build().expect("a valid stack")
        };
        let client = build(left, "10.0.0.1/24");
        let server = build(right, "10.0.0.2/24");
        let listener = TcpListener::bind(&server, "10.0.0.2:0");
        let listener = listener.expect("a port");
        let to = listener.local_addr().expect("bound");
        let near = TcpStream::connect(&client, to).expect("a connection");
        let (far, _) = listener.accept().expect("a connection");
        for stream in [&near, &far] {
            stream.set_nodelay(true).expect("an option");
            stream.set_nonblocking(true).expect("an option");
        }
        let (segment_ns, round_trip_ns) = (Vec::new(), Vec::new());
        Self { setting, server, _client: client, near, far, segment_ns, round_trip_ns }
    }

    fn bulk(&mut self, time: Duration) -> f64 {
        let data = vec![0x5a; 64 * 1024];
        let mut buf = vec![0; 256 * 1024];
        let mut received = 0.0;
        let begin = Instant::now();
        while begin.elapsed() < time {
            if let Err(error) = self.near.write(&data) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
            received += drain(&mut self.far, &mut buf);
        }
        let took = begin.elapsed();
        while self.server.poll().is_some_and(|wait| wait.is_zero()) {}
        drain(&mut self.far, &mut buf);
        took.as_secs_f64() * 1e9 / (received / MSS)
    }

    fn round_trips(&mut self, time: Duration) -> f64 {
        let mut byte = [0];
        let mut count = 0.0;
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..100 {
                self.near.write_all(&[1]).expect("room");
                self.far.read_exact(&mut byte).expect("the byte");
                self.far.write_all(&byte).expect("room");
                self.near.read_exact(&mut byte).expect("the byte");
                count += 1.0;
            }
        }
        begin.elapsed().as_secs_f64() * 1e9 / count
    }
}

/// Reads all received data. Returns the number of bytes.
fn drain(stream: &mut TcpStream, buf: &mut [u8]) -> f64 {
    let mut received = 0.0;
    loop {
        match stream.read(buf) {
            Ok(read) => received += read as f64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return received;
            }
        }
    }
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke" || argument == "--test");
    let (rounds, time) =
        if smoke { (1, Duration::from_millis(2)) } else { (21, Duration::from_millis(20)) };
    let mut round_trips: Vec<Arm> = SETTINGS.map(Arm::new).into();
    let mut bulk: Vec<Arm> = SETTINGS.map(Arm::new).into();
    for _ in 0..rounds {
        for arm in &mut round_trips {
            let ns = arm.round_trips(time);
            arm.round_trip_ns.push(ns);
        }
        for arm in &mut bulk {
            let ns = arm.bulk(time);
            arm.segment_ns.push(ns);
        }
    }
    println!(
        "gro exit                   batch   ns per segment        segments per packet   ns per round trip"
    );
    for (arm, trips) in bulk.iter_mut().zip(&mut round_trips) {
        let (gro, exit, batch) = arm.setting;
        let [low, median, high] = quartiles(&mut arm.segment_ns);
        let counters = arm.server.counters();
        let count = |name: &str| {
            let found = counters.iter().find(|(counter, _)| counter == &name);
            found.map_or(0.0, |(_, value)| value as f64)
        };
        let per_packet = count("DeviceRxPackets") / count("RxListPackets").max(1.0);
        let [fast, trip, slow] = quartiles(&mut trips.round_trip_ns);
        println!(
            "{gro:>3} {exit:<22} {batch:>5}   {median:7.1} ({low:.1}-{high:.1})   {per_packet:7.2}   {trip:9.1} ({fast:.1}-{slow:.1})"
        );
    }
}
