//! Two hosts with two wires between them.

use std::{
    io::IoSlice,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use pkt::{DropReason, Instant};
use stack::{
    Cx, Errno, Memory,
    device::{Wire, WireConfig},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    route::fib::RouteSpec,
    socket::{Connection, Listener},
};

/// Two hosts: 10.0.0.0/24 is on device 1 and 10.1.0.0/24 on device 2. The server also has
/// 192.0.2.9, which the client reaches by the routes of the test.
pub(crate) struct Net {
    memory: Memory,
    pub(crate) cx: Cx,
    pub(crate) client: Arc<Host>,
    pub(crate) server: Arc<Host>,
    /// The client's ends of the wires.
    pub(crate) devices: [Weak<Wire>; 2],
}

/// Returns a route to 192.0.2.0/24.
pub(crate) fn via(next_hop: &str) -> RouteSpec {
    let prefix = "192.0.2.0/24".parse().expect("a prefix");
    RouteSpec::via(prefix, next_hop.parse().expect("an address"))
}

impl Net {
    /// Adds `routes` to the client. Settings of one device are those of the client's.
    pub(crate) fn new(
        wire: &WireConfig,
        settings: &[(&str, &str)],
        routes: Vec<RouteSpec>,
    ) -> Self {
        let memory = Memory::new(64 << 20);
        let pair = |name: &str| {
            let config = WireConfig { name: name.to_owned(), ..wire.clone() };
            Wire::pair(&config).expect("valid")
        };
        let [(left0, right0), (left1, right1)] = [pair("red"), pair("blue")];
        let devices = [&left0, &left1].map(Arc::downgrade);
        let host = |ends: [Arc<Wire>; 2], addresses: [&[&str]; 2], routes, is_client| {
            let devices = ends
                .into_iter()
                .zip(addresses)
                .map(|(device, addresses)| DeviceConfig {
                    device,
                    addresses: addresses.iter().map(|a| a.parse().expect("one")).collect(),
                })
                .collect();
            let mut config = HostConfig { devices, routes, cores: 1, ..HostConfig::replay(0) };
            let is_device = |name: &str| {
                name.strip_prefix("net.quietline.dev.")
                    .is_some_and(|row| !row.starts_with("default."))
            };
            for (name, value) in settings.iter().filter(|row| is_client || !is_device(row.0)) {
                config.sysctls.set(name, value).expect("a setting");
            }
            Host::new(&memory, config).expect("valid")
        };
        let client = host([left0, left1], [&["10.0.0.1/24"], &["10.1.0.1/24"]], routes, true);
        let server = host(
            [right0, right1],
            [&["10.0.0.2/24"], &["10.1.0.2/24", "192.0.2.9/32"]],
            Vec::new(),
            false,
        );
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1000);
        Self { memory, cx, client, server, devices }
    }

    /// Connects the client to a new listener of the server.
    pub(crate) fn connect(&mut self, at: &str) -> (Arc<Connection>, Arc<Connection>) {
        let at: SocketAddr = at.parse().expect("an address");
        let listener = Listener::listen(&self.server, &mut self.cx, at, 1).expect("free");
        let client = Connection::connect(&self.client, &mut self.cx, None, at).expect("a route");
        let server = loop {
            match listener.accept() {
                Ok(server) => break server,
                Err(_) => self.pass(Duration::from_millis(1)),
            }
        };
        listener.close(&self.server, &mut self.cx);
        (client, server)
    }

    pub(crate) fn send(&mut self, socket: &Connection, bytes: &[u8]) {
        let sent = socket.send(&self.client, &mut self.cx, &[IoSlice::new(bytes)]);
        assert_eq!(sent, Ok(bytes.len()));
    }

    pub(crate) fn received(&mut self, socket: &Connection) -> Result<usize, Errno> {
        socket.recv(&self.server, &mut self.cx, &mut [0; 65_536], false)
    }

    /// Runs both hosts for `time`.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.cx.now + time;
        while self.cx.now < end {
            let hosts = [&self.client, &self.server];
            for host in hosts {
                let _ = host.poll(&mut self.cx);
            }
            let next = hosts.into_iter().filter_map(|host| host.next_deadline()).min();
            self.cx.now = next.unwrap_or(end).clamp(self.cx.now + Duration::from_nanos(1), end);
        }
    }

    /// Returns the number of packets that the client dropped because a device was down.
    pub(crate) fn drops(&self) -> u64 {
        self.client.counters().drops(DropReason::DeviceDown)
    }

    /// Frees all objects that wait for a grace period.
    pub(crate) fn reclaim(&self) {
        for _ in 0..4 {
            self.memory.rcu.reclaim();
        }
    }
}
