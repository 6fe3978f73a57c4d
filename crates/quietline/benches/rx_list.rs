//! Cost of a received packet between the device and its socket when packets arrive in lists: one
//! flow, eight interleaved flows, and one flow without early demux.
//!
//! `cargo bench -p quietline --bench rx_list [-- --smoke] [PART OF A NAME]`. Small segments cross a
//! wire with a delay, so that a poll finds all of them; receive offload is off, so that each is a
//! packet. For instruction counts run the executable with `--smoke` under
//! `valgrind --tool=callgrind --toggle-collect='*receive_all*'`: one workload by its name, 10,240
//! packets.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use quietline::sans_io::{
    Connection, Cx, DeviceConfig, Host, HostConfig, Instant, Listener, Memory, Wire, WireConfig,
};

/// Number of packets of a poll.
const PACKETS: usize = 64;

/// Delay of the wire.
const DELAY: Duration = Duration::from_micros(10);

/// Settings of both hosts.
type Settings = &'static [(&'static str, &'static str)];

struct Net {
    cx: Cx,
    client: Arc<Host>,
    server: Arc<Host>,
    /// Both ends of each connection.
    flows: Vec<(Arc<Connection>, Arc<Connection>)>,
}

impl Net {
    fn new(flows: usize, settings: &[(&str, &str)]) -> Self {
        let memory = Memory::new(64 << 20);
        let mut config = WireConfig { tso: false, ..WireConfig::default() };
        config.forward.delay = DELAY;
        let (left, right) = Wire::pair(&config).expect("a valid wire");
        let host = |device: Arc<Wire>, address: &str| {
            let addresses = vec![address.parse().expect("an address")];
            let devices = vec![DeviceConfig { device, addresses }];
            let mut config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
            config.sysctls.set("net.quietline.dev.default.gro", "0").expect("a setting");
            for (name, value) in settings {
                config.sysctls.set(name, value).expect("a setting");
            }
            Host::new(&memory, config).expect("valid")
        };
        let (client, server) = (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"));
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1);
        let mut net = Self { cx, client, server, flows: Vec::new() };
        let to = "10.0.0.2:80".parse().expect("an address");
        let listener = Listener::listen(&net.server, &mut net.cx, to, 64).expect("a free port");
        for _ in 0..flows {
            let client = Connection::connect(&net.client, &mut net.cx, None, to).expect("a route");
            let server = loop {
                net.pass();
                if let Ok(server) = listener.accept() {
                    break server;
                }
            };
            client.with_tcb(&net.client, &mut net.cx, |tcb, _| tcb.set_nodelay(true));
            net.flows.push((client, server));
        }
        net
    }

    /// Polls both hosts and advances time.
    fn pass(&mut self) {
        self.cx.now += DELAY;
        for host in [&self.server, &self.client] {
            let _ = host.poll(&mut self.cx);
        }
    }

    /// Sends the packets of one poll, which arrive one delay later.
    fn send_all(&mut self) {
        for packet in 0..PACKETS {
            let (client, _) = &self.flows[packet % self.flows.len()];
            let sent = client.send(&self.client, &mut self.cx, &[std::io::IoSlice::new(&[7; 64])]);
            assert_eq!(sent, Ok(64));
        }
        self.cx.now += DELAY;
    }

    /// Reads the received data, and lets acknowledgments return.
    fn read_all(&mut self) {
        for (_, server) in &self.flows {
            let mut buf = [0; 64 * PACKETS];
            let read = server.recv(&self.server, &mut self.cx, &mut buf, false);
            assert_eq!(read, Ok(64 * PACKETS / self.flows.len()));
        }
        for _ in 0..4 {
            self.pass();
        }
    }
}

/// The measured function: the poll that receives the packets and delivers them.
#[inline(never)]
fn receive_all(net: &mut Net) {
    let _ = black_box(net.server.poll(&mut net.cx));
}

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let smoke = std::env::args().any(|argument| argument == "--smoke" || argument == "--test");
    let rounds = if smoke { 160 } else { 20_000 };
    let workloads: [(&str, usize, Settings); 4] = [
        ("one flow", 1, &[]),
        ("eight flows in turn", 8, &[]),
        ("one flow, lists of one", 1, &[("net.core.gro_normal_batch", "1")]),
        ("one flow, no early demux", 1, &[("net.ipv4.ip_early_demux", "0")]),
    ];
    for (name, flows, settings) in workloads {
        if filter.as_ref().is_some_and(|filter| filter != name) {
            continue;
        }
        let mut net = Net::new(flows, settings);
        let mut time = Duration::ZERO;
        for _ in 0..rounds {
            net.send_all();
            let begin = Clock::now();
            receive_all(&mut net);
            time += begin.elapsed();
            net.read_all();
        }
        let packets = rounds * PACKETS;
        println!("{name:<28}{:>8.1} ns per packet", time.as_nanos() as f64 / packets as f64);
    }
}
