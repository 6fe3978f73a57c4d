//! Fixed work whose instructions `cargo xtask perf` counts: one scenario per run, in virtual time,
//! on one thread.
//!
//! `instructions SCENARIO` joins two hosts by a wire, repeats the scenario until the caches of
//! packets, pages and routes are warm, then calls [`measured`] once and prints the number of units
//! that this call processed. Callgrind collects within `measured` only. Time is an argument of the
//! stack and random numbers have a seed, so that a run repeats to the instruction.
//!
//! Not here: the counting and the comparison (`xtask/src/perf.rs`), and time
//! (`crates/quietline/benches`).

#![forbid(unsafe_code)]

use std::{io::IoSlice, process::ExitCode, sync::Arc, time::Duration};

use quietline::{
    ReceiveMessage, SendMessage, SocketSettings,
    sans_io::{
        Connection, Cx, DatagramSocket, DeviceConfig, Errno, Host, HostConfig, Instant, Listener,
        Memory, Wire, WireConfig,
    },
};

/// Makes a scenario.
type Make = fn() -> Box<dyn Scenario>;

/// The scenarios by name; `--list` prints the names.
const SCENARIOS: [(&str, Make); 19] = [
    ("segment", || Bulk::over(V4, &segments())),
    ("segment-v6", || Bulk::over(V6, &segments())),
    ("segment-checksum", || Bulk::over(V4, &WireConfig { checksums: true, ..segments() })),
    ("segment-checksum-v6", || Bulk::over(V6, &WireConfig { checksums: true, ..segments() })),
    ("superframe", || Bulk::over(V4, &WireConfig::default())),
    ("superframe-v6", || Bulk::over(V6, &WireConfig::default())),
    ("round-trip", || Box::new(RoundTrip(Pair::connect(V4, &WireConfig::default())))),
    ("round-trip-v6", || Box::new(RoundTrip(Pair::connect(V6, &WireConfig::default())))),
    ("connection", || Box::new(OpenAndClose(Network::new(V4, &WireConfig::default())))),
    ("connection-v6", || Box::new(OpenAndClose(Network::new(V6, &WireConfig::default())))),
    ("idle-turn", || Box::new(IdleTurn(Pair::connect(V4, &WireConfig::default())))),
    ("small-frames", || Box::new(SmallFrames(Pair::connect(V4, &segments())))),
    ("datagrams", || Box::new(Datagrams::over(V4, 1))),
    ("datagrams-v6", || Box::new(Datagrams::over(V6, 1))),
    ("datagrams-batch", || Box::new(Datagrams::over(V4, 32))),
    ("loopback-noref", || Loopback::counting("noref")),
    ("loopback-cas", || Loopback::counting("cas_inc_not_zero")),
    ("loopback-rcuref", || Loopback::counting("rcuref")),
    ("loopback-sharded", || Loopback::counting("sharded")),
];

/// Repetitions before the count begins. With 200 ms of virtual time per connection this outlasts
/// the minute of TIME-WAIT.
const WARM: u32 = 400;
/// Repetitions that are counted.
const COUNTED: u32 = 200;

/// Addresses of a scenario.
struct Family {
    client: &'static str,
    server: &'static str,
    /// Address and port of the listener.
    service: &'static str,
    /// Payload of a full segment on a link of MTU 1500, with timestamps.
    segment_bytes: usize,
}

const V4: &Family = &Family {
    client: "10.0.0.1/24",
    server: "10.0.0.2/24",
    service: "10.0.0.2:7",
    segment_bytes: 1448,
};

const V6: &Family = &Family {
    client: "fd00::1/64",
    server: "fd00::2/64",
    service: "[fd00::2]:7",
    segment_bytes: 1428,
};

/// A wire that takes frames of one segment each.
fn segments() -> WireConfig {
    WireConfig { tso: false, ..WireConfig::default() }
}

/// A kind of work that repeats.
trait Scenario {
    /// Does the work once and returns the number of its units.
    fn repeat(&mut self) -> u64;
}

/// Two hosts on one wire, the context that runs both, and the server's listener.
struct Network {
    family: &'static Family,
    client: Arc<Host>,
    server: Arc<Host>,
    listener: Arc<Listener>,
    cx: Cx,
}

impl Network {
    fn new(family: &'static Family, config: &WireConfig) -> Self {
        let memory = Memory::new(256 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1);
        let (left, right) = Wire::pair(config).expect("a valid wire");
        let host = |device: Arc<Wire>, address: &str, seed| {
            let addresses = vec![address.parse().expect("an address with its prefix")];
            let devices = vec![DeviceConfig { device, addresses }];
            Host::new(&memory, HostConfig { devices, ..HostConfig::replay(seed) })
                .expect("a valid host")
        };
        let (client, server) = (host(left, family.client, 2), host(right, family.server, 3));
        let address = family.service.parse().expect("an address");
        let listener = Listener::listen(&server, &mut cx, address, 16).expect("a free port");
        Self { family, client, server, listener, cx }
    }

    /// Runs both hosts for one turn.
    fn turn(&mut self) {
        let _ = self.client.poll(&mut self.cx);
        let _ = self.server.poll(&mut self.cx);
    }

    /// Moves the clock to the next deadline of either host.
    fn jump(&mut self) {
        let deadlines = [self.client.next_deadline(), self.server.next_deadline()];
        if let Some(next) = deadlines.into_iter().flatten().min() {
            self.cx.now = self.cx.now.max(next);
        }
    }

    /// Runs both hosts until `ready` returns a value. The clock moves after each unsuccessful turn.
    fn until<T>(&mut self, mut ready: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            self.turn();
            if let Some(value) = ready(self) {
                return value;
            }
            self.jump();
        }
    }

    /// Opens a connection; returns the client's and the server's end.
    fn open(&mut self) -> (Arc<Connection>, Arc<Connection>) {
        let address = self.family.service.parse().expect("an address");
        let opened = Connection::connect(&self.client, &mut self.cx, None, address);
        let opened = opened.expect("a free port");
        let accepted = self.until(|network| network.listener.accept().ok());
        for (host, socket) in [(&self.client, &opened), (&self.server, &accepted)] {
            socket.with_tcb(host, &mut self.cx, |tcb, _| tcb.set_nodelay(true));
        }
        (opened, accepted)
    }
}

/// A network with one connection.
struct Pair {
    network: Network,
    client: Arc<Connection>,
    server: Arc<Connection>,
    /// Bytes to write, and room to read.
    block: Vec<u8>,
}

impl Pair {
    fn connect(family: &'static Family, config: &WireConfig) -> Self {
        let mut network = Network::new(family, config);
        let (client, server) = network.open();
        Self { network, client, server, block: vec![0x5a; 64 << 10] }
    }

    /// Writes `length` bytes at the client; returns the number that the send buffer took.
    fn send(&mut self, length: usize) -> usize {
        let Network { client, cx, .. } = &mut self.network;
        match self.client.send(client, cx, &[IoSlice::new(&self.block[..length])]) {
            Ok(sent) => sent,
            Err(Errno::EAGAIN) => 0,
            Err(error) => panic!("send: {error}"),
        }
    }

    /// Reads all that the server has received.
    fn receive(&mut self) -> usize {
        let Network { server, cx, .. } = &mut self.network;
        let mut received = 0;
        loop {
            match self.server.recv(server, cx, &mut self.block, false) {
                Ok(0) => panic!("the stream ended"),
                Ok(length) => received += length,
                Err(Errno::EAGAIN) => return received,
                Err(error) => panic!("recv: {error}"),
            }
        }
    }
}

/// Writes of 64 KiB, read as they arrive. The unit is the payload of one frame.
struct Bulk {
    pair: Pair,
    frame_bytes: usize,
    /// Received bytes that do not fill a unit.
    rest: usize,
}

impl Bulk {
    fn over(family: &'static Family, config: &WireConfig) -> Box<dyn Scenario> {
        let frame_bytes = if config.tso { 64 << 10 } else { family.segment_bytes };
        Box::new(Self { pair: Pair::connect(family, config), frame_bytes, rest: 0 })
    }
}

impl Scenario for Bulk {
    fn repeat(&mut self) -> u64 {
        self.pair.send(64 << 10);
        self.pair.network.turn();
        let received = self.pair.receive();
        if received == 0 {
            self.pair.network.jump();
        }
        self.rest += received;
        let units = self.rest / self.frame_bytes;
        self.rest %= self.frame_bytes;
        units as u64
    }
}

/// One byte to the server and back. Each host runs once, after the byte has arrived.
struct RoundTrip(Pair);

impl Scenario for RoundTrip {
    fn repeat(&mut self) -> u64 {
        let Pair { network, client: near, server: far, .. } = &mut self.0;
        let Network { client, server, cx, .. } = network;
        let mut byte = [0];
        near.send(client, cx, &[IoSlice::new(&byte)]).expect("room");
        let _ = server.poll(cx);
        far.recv(server, cx, &mut byte, false).expect("the byte has arrived");
        far.send(server, cx, &[IoSlice::new(&byte)]).expect("room");
        let _ = client.poll(cx);
        near.recv(client, cx, &mut byte, false).expect("the byte has arrived");
        1
    }
}

/// One byte to another socket of the same host and one back. Each of the two packets with data and
/// of the acknowledgments holds a reference to its route entry if `net.quietline.dst_ref` counts.
struct Loopback {
    host: Arc<Host>,
    near: Arc<Connection>,
    far: Arc<Connection>,
    cx: Cx,
}

impl Loopback {
    fn counting(mode: &str) -> Box<dyn Scenario> {
        let memory = Memory::new(256 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1);
        let mut config = HostConfig { cores: 1, ..HostConfig::replay(2) };
        config.sysctls.set("net.quietline.dst_ref", mode).expect("a mode");
        let host = Host::new(&memory, config).expect("a valid host");
        let address = "127.0.0.1:7".parse().expect("an address");
        let listener = Listener::listen(&host, &mut cx, address, 16).expect("a free port");
        let near = Connection::connect(&host, &mut cx, None, address).expect("a free port");
        let far = loop {
            let _ = host.poll(&mut cx);
            if let Ok(far) = listener.accept() {
                break far;
            }
            cx.now = cx.now.max(host.next_deadline().expect("a deadline"));
        };
        for socket in [&near, &far] {
            socket.with_tcb(&host, &mut cx, |tcb, _| tcb.set_nodelay(true));
        }
        Box::new(Self { host, near, far, cx })
    }
}

impl Scenario for Loopback {
    fn repeat(&mut self) -> u64 {
        let Self { host, near, far, cx } = self;
        let mut byte = [0];
        for (from, to) in [(&near, &far), (&far, &near)] {
            from.send(host, cx, &[IoSlice::new(&byte)]).expect("room");
            let _ = host.poll(cx);
            to.recv(host, cx, &mut byte, false).expect("the byte has arrived");
        }
        1
    }
}

/// A connection that is opened, carries a byte in each direction and is closed by both sides, the
/// client first.
struct OpenAndClose(Network);

impl Scenario for OpenAndClose {
    fn repeat(&mut self) -> u64 {
        let network = &mut self.0;
        let (client, server) = network.open();
        let mut byte = [0];
        client.send(&network.client, &mut network.cx, &[IoSlice::new(&byte)]).expect("room");
        network
            .until(|network| server.recv(&network.server, &mut network.cx, &mut byte, false).ok());
        server.send(&network.server, &mut network.cx, &[IoSlice::new(&byte)]).expect("room");
        network
            .until(|network| client.recv(&network.client, &mut network.cx, &mut byte, false).ok());
        client.close(&network.client, &mut network.cx);
        let end = network
            .until(|network| server.recv(&network.server, &mut network.cx, &mut byte, false).ok());
        assert_eq!(end, 0, "the client has closed");
        server.close(&network.server, &mut network.cx);
        network.turn();
        network.cx.now += Duration::from_millis(200);
        network.turn();
        1
    }
}

/// A turn of a host that has a connection and no work.
struct IdleTurn(Pair);

impl Scenario for IdleTurn {
    fn repeat(&mut self) -> u64 {
        let Network { client, cx, .. } = &mut self.0.network;
        for _ in 0..10 {
            let _ = client.poll(cx);
        }
        10
    }
}

/// Ten frames of 10 bytes that arrive together and are merged by receive offload.
struct SmallFrames(Pair);

impl Scenario for SmallFrames {
    fn repeat(&mut self) -> u64 {
        for _ in 0..10 {
            assert_eq!(self.0.send(10), 10, "room");
        }
        let mut received = 0;
        while received < 100 {
            self.0.network.turn();
            received += self.0.receive();
            if received < 100 {
                self.0.network.jump();
            }
        }
        // The acknowledgment, so that the next ten find the whole window open.
        self.0.network.turn();
        10
    }
}

/// Payload bytes of a datagram.
const DATAGRAM_BYTES: usize = 64;

/// Datagrams of 64 bytes from one connected socket to another: `batch` with one call at each end,
/// or for 1 with the calls for a single datagram.
struct Datagrams {
    network: Network,
    client: Arc<DatagramSocket>,
    server: Arc<DatagramSocket>,
    batch: usize,
}

impl Datagrams {
    fn over(family: &'static Family, batch: usize) -> Self {
        let mut network = Network::new(family, &WireConfig::default());
        let Network { client, server, cx, .. } = &mut network;
        let bind = |host: &Arc<Host>, cx: &mut Cx, address: &str| {
            let (ip, _) = address.split_once('/').expect("an address with its prefix");
            let end = std::net::SocketAddr::new(ip.parse().expect("an address"), 0);
            DatagramSocket::bind(host, cx, end, &SocketSettings::default()).expect("a free port")
        };
        let near = bind(client, cx, family.client);
        let far = bind(server, cx, family.server);
        let ends = [near.local(client, cx), far.local(server, cx)];
        near.connect(client, cx, ends[1]).expect("a route");
        far.connect(server, cx, ends[0]).expect("a route");
        // The first datagram waits until the neighbor is resolved.
        near.send(client, cx, &SendMessage::new(&[0; DATAGRAM_BYTES])).expect("room");
        network.until(|network| {
            far.recv(&network.server, &mut network.cx, &mut [0; DATAGRAM_BYTES], false).ok()
        });
        Self { network, client: near, server: far, batch }
    }

    fn one(&mut self) {
        let Network { client, server, cx, .. } = &mut self.network;
        let mut buffer = [0x5a; DATAGRAM_BYTES];
        self.client.send(client, cx, &SendMessage::new(&buffer)).expect("room");
        let received = self.server.recv(server, cx, &mut buffer, false);
        assert_eq!(received.expect("the datagram has arrived").len, DATAGRAM_BYTES);
    }
}

impl Scenario for Datagrams {
    fn repeat(&mut self) -> u64 {
        if self.batch == 1 {
            self.one();
            return 1;
        }
        let Network { client, server, cx, .. } = &mut self.network;
        let mut buffers = [[0x5a; DATAGRAM_BYTES]; 32];
        let messages = buffers.each_ref().map(|buffer| SendMessage::new(buffer));
        let sent = self.client.send_batch(client, cx, &messages[..self.batch]);
        let mut room = buffers.each_mut().map(|buffer| ReceiveMessage::new(buffer));
        let received = self.server.recv_batch(server, cx, &mut room[..self.batch]);
        assert_eq!((sent, received), (Ok(self.batch), Ok(self.batch)), "all have arrived");
        self.batch as u64
    }
}

/// The counted part of the run. Callgrind finds it by its name, so it must not be inlined.
#[inline(never)]
fn measured(scenario: &mut dyn Scenario) -> u64 {
    (0..COUNTED).map(|_| scenario.repeat()).sum()
}

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    match wanted.as_deref() {
        Some("--list") => {
            SCENARIOS.iter().for_each(|(name, _)| println!("{name}"));
            ExitCode::SUCCESS
        }
        None => {
            for (name, make) in SCENARIOS {
                println!("{name}: {} units", run(make));
            }
            ExitCode::SUCCESS
        }
        Some(wanted) => match SCENARIOS.iter().find(|(name, _)| *name == wanted) {
            Some((_, make)) => {
                println!("{}", run(*make));
                ExitCode::SUCCESS
            }
            None => {
                eprintln!("instructions: there is no scenario {wanted:?}; --list prints them");
                ExitCode::from(2)
            }
        },
    }
}

/// Warms a scenario up and runs its counted part; returns the units of that part.
fn run(make: Make) -> u64 {
    let mut scenario = make();
    for _ in 0..WARM {
        scenario.repeat();
    }
    measured(&mut *scenario)
}
