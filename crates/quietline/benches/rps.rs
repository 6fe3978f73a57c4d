//! Small packets from one queue, with one core and with two: cost and gain of receive packet
//! steering.
//!
//! `cargo bench -p quietline --bench rps [-- --smoke]` prints, per setting, the rate of packets and
//! how many changed core. A client thread writes small segments on several connections (Nagle off),
//! and a server with two cores and workers reads them; the settings are interleaved. Compare only
//! figures of one run.

use std::{
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

/// Number of connections, each with a reading thread.
const FLOWS: usize = 4;

/// Payload of a segment.
const BYTES: usize = 64;

/// Settings of the server.
struct Setting {
    name: &'static str,
    sysctls: &'static [(&'static str, &'static str)],
}

const SETTINGS: [Setting; 3] = [
    Setting { name: "off", sysctls: &[] },
    Setting {
        name: "rps, the other core",
        sysctls: &[("net.quietline.dev.default.rps_cpus", "2")],
    },
    Setting { name: "rps, both cores", sysctls: &[("net.quietline.dev.default.rps_cpus", "3")] },
];

/// Results of a run.
#[derive(Clone, Copy)]
struct Outcome {
    packets_per_second: f64,
    steered: f64,
    processed: [f64; 2],
}

fn run(setting: &Setting, time: Duration) -> Outcome {
    let config = WireConfig { tso: false, ..WireConfig::default() };
    let (near, far) = Wire::pair(&config).expect("a valid wire");
    let client = Stack::builder().device(near).address("10.0.0.1/24".parse().expect("an address"));
    let client = client.manual().build().expect("a valid stack");
    let mut server =
        Stack::builder().device(far).address("10.0.0.2/24".parse().expect("an address")).cores(2);
    for (name, value) in setting.sysctls {
        server = server.sysctl(name, value);
    }
    let server = server.build().expect("a valid stack");
    let listener = TcpListener::bind(&server, "10.0.0.2:0");
    let listener = listener.expect("a port");
    let to = listener.local_addr().expect("bound");
    let acceptor = thread::spawn(move || {
        (0..FLOWS).map(|_| listener.accept().expect("a connection").0).collect::<Vec<_>>()
    });
    let mut senders: Vec<_> =
        (0..FLOWS).map(|_| TcpStream::connect(&client, to).expect("a connection")).collect();
    let accepted = acceptor.join().expect("accepted");
    let readers: Vec<_> = accepted
        .into_iter()
        .map(|mut stream| {
            thread::spawn(move || {
                let mut buf = vec![0; 64 * 1024];
                while matches!(stream.read(&mut buf), Ok(1..)) {}
            })
        })
        .collect();
    let before = (server.counters(), server.softnet_stat(), Instant::now());
    for stream in &senders {
        stream.set_nodelay(true).expect("an option");
    }
    while before.2.elapsed() < time {
        for stream in &mut senders {
            for _ in 0..16 {
                stream.write_all(&[0x5a; BYTES]).expect("room, after a while");
            }
        }
    }
    let seconds = before.2.elapsed().as_secs_f64();
    let counted = server.counters().since(&before.0);
    let count = |name| counted.get(name).expect("a counter") as f64;
    let softnet = server.softnet_stat();
    let processed = [0, 1]
        .map(|core: usize| (softnet[core].processed - before.1[core].processed) as f64 / seconds);
    drop(senders);
    for reader in readers {
        reader.join().expect("a reader ends");
    }
    Outcome {
        packets_per_second: count("TcpInSegs") / seconds,
        steered: count("RpsPackets") / count("TcpInSegs"),
        processed,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke" || argument == "--test");
    let (rounds, time) =
        if smoke { (1, Duration::from_millis(20)) } else { (21, Duration::from_millis(200)) };
    let mut outcomes: [Vec<Outcome>; 3] = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (setting, outcomes) in SETTINGS.iter().zip(&mut outcomes) {
            outcomes.push(run(setting, time));
        }
    }
    for (setting, outcomes) in SETTINGS.iter().zip(&outcomes) {
        let of = |pick: &dyn Fn(&Outcome) -> f64| median(outcomes.iter().map(pick).collect());
        println!(
            "{:<22} {:8.0} k packets/s, {:3.0} % steered; core 0 {:6.0} k/s, core 1 {:6.0} k/s  (n = {rounds})",
            setting.name,
            of(&|outcome| outcome.packets_per_second) / 1e3,
            of(&|outcome| outcome.steered) * 100.0,
            of(&|outcome| outcome.processed[0]) / 1e3,
            of(&|outcome| outcome.processed[1]) / 1e3,
        );
    }
}
