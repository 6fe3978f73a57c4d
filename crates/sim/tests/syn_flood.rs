//! A SYN flood against a busy host: its cost for established connections, and for memory.
//!
//! Every SYN has a source address of its own, and the flood has a link of its own, so that only the
//! host's own state can slow other connections down. Virtual time; SYN_FLOOD_SEGMENTS sets the
//! length of the flood (a million by default), and `--nocapture` prints the figures.

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        sync::Arc,
        time::{Duration, Instant},
    };

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender},
        byte_link::ByteLink,
        frame::{self, Ipv4},
    };
    use stack::{
        Capabilities,
        base::counters::Snapshot,
        device::{Impairment, LinkType, Wire, WireConfig},
        header::ip::protocol,
        host::config::{DeviceConfig, HostConfig},
        route::fib::RouteSpec,
        socket::{Connection, Listener},
    };
    use tcp::{Counter as TcpCounter, Flags, Options, SegmentHeader, SeqNum};

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    /// The server's address on the link of the flood.
    const EXPOSED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const BACKLOG: u32 = 128;
    const MEMORY_BYTES: usize = 64 << 20;
    /// SYNs per millisecond of virtual time: half a million a second.
    const SYNS_PER_MS: u32 = 500;

    struct Bench {
        world: World,
        flood: Arc<ByteLink>,
        listener: Arc<Listener>,
        client: Arc<Connection>,
        server: Arc<Connection>,
        sender: Sender,
        receiver: Receiver,
        syns: u32,
        accepted: u32,
    }

    fn flood_link() -> Arc<ByteLink> {
        Arc::new(ByteLink::new(Capabilities::plain("flood", 1500, LinkType::Ip)))
    }

    impl Bench {
        /// Starts a bulk transfer over a link of 1 Gbit/s with a millisecond of delay, and adds a
        /// second link for the flood.
        fn new() -> Self {
            let mut world = World::with_memory(1, MEMORY_BYTES);
            let half = Impairment {
                rate_bps: Some(1_000_000_000),
                delay: Duration::from_millis(1),
                queue_packets: 1000,
                ..Impairment::default()
            };
            let config = WireConfig { forward: half, backward: half, ..WireConfig::default() };
            let (left, right) = Wire::pair(&config).expect("a wire");
            let flood = flood_link();
            let at = |device, ip: Ipv4Addr| DeviceConfig {
                device,
                addresses: vec![format!("{ip}/24").parse().expect("a prefix")],
            };
            world
                .add_host(HostConfig {
                    devices: vec![at(left, CLIENT)],
                    cores: 1,
                    ..HostConfig::replay(0)
                })
                .expect("a client");
            let everywhere = "0.0.0.0/0".parse().expect("a prefix");
            world
                .add_host(HostConfig {
                    devices: vec![at(right, SERVER), at(Arc::clone(&flood) as _, EXPOSED)],
                    routes: vec![RouteSpec::via(everywhere, Ipv4Addr::new(192, 0, 2, 254).into())],
                    cores: 1,
                    ..HostConfig::replay(0)
                })
                .expect("a server");
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80);
            let host = Arc::clone(&world.hosts[1]);
            let listener =
                Listener::listen(&host, &mut world.cx, any, BACKLOG).expect("a free port");
            let (client, server) = connect(&mut world, &listener);
            let sender = Sender::new(0, Arc::clone(&client), Pattern(1), u64::MAX);
            let receiver = Receiver::new(1, Arc::clone(&server), Pattern(1), 1 << 20);
            let (syns, accepted) = (0, 0);
            Self { world, flood, listener, client, server, sender, receiver, syns, accepted }
        }

        /// Lets a millisecond pass, with `syns` SYNs spread over it.
        fn step(&mut self, syns: u32) {
            for _ in 0..4 {
                for _ in 0..syns / 4 {
                    let frame = self.syn();
                    assert!(self.flood.deliver(&mut self.world.cx, &frame), "memory for a SYN");
                }
                self.world.pass(Duration::from_micros(250));
                self.sender.step(&mut self.world);
                self.receiver.step(&mut self.world);
                while self.flood.take().is_some() {}
            }
        }

        /// Builds the next SYN of the flood, with a source address that no other has.
        fn syn(&mut self) -> Vec<u8> {
            self.syns += 1;
            let source = Ipv4Addr::from_bits(Ipv4Addr::new(100, 0, 0, 0).to_bits() + self.syns);
            let header = SegmentHeader {
                src_port: 1024 + u16::try_from(self.syns % 60_000).expect("a port"),
                dst_port: 80,
                seq: SeqNum(self.syns.wrapping_mul(0x9e37_79b9)),
                flags: Flags::SYN,
                window: 64_240,
                options: Options {
                    mss: Some(1460),
                    window_scale: Some(7),
                    sack_permitted: true,
                    timestamps: Some((self.syns, 0)),
                    ..Options::default()
                },
                ..SegmentHeader::default()
            };
            let segment = frame::tcp(source, EXPOSED, &header, b"");
            Ipv4::new(source, EXPOSED, protocol::TCP).with(&segment)
        }

        /// An honest client connects, sends nothing and closes.
        fn visit(&mut self) {
            let (visitor, accepted) = connect(&mut self.world, &self.listener);
            let hosts = self.world.hosts.clone();
            visitor.abort(&hosts[0], &mut self.world.cx);
            accepted.abort(&hosts[1], &mut self.world.cx);
            self.accepted += 1;
        }

        /// Returns the bytes of the bulk transfer in so many steps, with short visits of clients in
        /// between.
        fn play(&mut self, steps: u32, syns: u32) -> u64 {
            let before = self.receiver.received();
            for step in 0..steps {
                self.step(syns);
                assert!(self.listener.requests() <= BACKLOG as usize);
                assert!(self.world.hosts[1].established_len() <= BACKLOG as usize + 8);
                if step % 50 == 25 {
                    self.visit();
                }
            }
            self.receiver.received() - before
        }

        fn counters(&self) -> Snapshot {
            self.world.hosts[1].counters()
        }
    }

    /// Connects the client and accepts at the server.
    fn connect(world: &mut World, listener: &Arc<Listener>) -> (Arc<Connection>, Arc<Connection>) {
        let hosts = world.hosts.clone();
        let remote = SocketAddr::new(SERVER.into(), 80);
        let client = Connection::connect(&hosts[0], &mut world.cx, None, remote).expect("a route");
        // The transfer fills the queue of the wire: a round trip takes up to 14 ms.
        for _ in 0..1000 {
            world.pass(Duration::from_micros(100));
            if let Ok(server) = listener.accept() {
                assert_eq!(server.remote(), client.local());
                return (client, server);
            }
        }
        panic!("not accepted within 100 ms");
    }

    fn segments() -> u32 {
        let set = std::env::var("SYN_FLOOD_SEGMENTS").ok();
        set.map_or(1_000_000, |text| text.parse().expect("SYN_FLOOD_SEGMENTS is a number"))
    }

    #[test]
    fn a_syn_flood_costs_established_connections_nothing() {
        let mut bench = Bench::new();
        let steps = segments() / SYNS_PER_MS;
        // Pass slow start.
        (0..200).for_each(|_| bench.step(0));
        let quiet = bench.play(steps, 0);
        let quiet_bytes = bench.world.memory().packets.stats().bytes;
        let started = Instant::now();
        let flooded = bench.play(steps, SYNS_PER_MS);
        let took = started.elapsed();
        let flooded_bytes = bench.world.memory().packets.stats().bytes;
        let counters = bench.counters();
        println!(
            "{} SYNs: bulk {flooded} bytes against {quiet} ({:.1} %), {} visitors accepted, {} cookies, \
             packet memory {quiet_bytes} -> {flooded_bytes} bytes, {} ns per SYN with everything else",
            bench.syns,
            per_cent(flooded, quiet),
            bench.accepted,
            counters.tcp(TcpCounter::TcpExtSyncookiesSent),
            took.as_nanos() / u128::from(bench.syns),
        );
        assert!(flooded * 10 >= quiet * 9, "{flooded} of {quiet} bytes");
        // A millisecond of the flood is queued in the device, its answers in the other: nothing
        // accumulates.
        assert!(flooded_bytes <= quiet_bytes + (4 << 20), "{quiet_bytes} -> {flooded_bytes}");
        assert_eq!(bench.accepted, (steps + 24) / 50 * 2, "every honest client");
        let cookies = counters.tcp(TcpCounter::TcpExtSyncookiesSent);
        assert!(
            cookies + u64::from(2 * BACKLOG) + u64::from(bench.accepted) >= u64::from(bench.syns)
        );
        assert_eq!(counters.tcp(TcpCounter::TcpExtListenDrops), 0);
        bench.end();
    }

    impl Bench {
        fn end(mut self) {
            let hosts = self.world.hosts.clone();
            self.client.abort(&hosts[0], &mut self.world.cx);
            self.server.abort(&hosts[1], &mut self.world.cx);
            self.listener.close(&hosts[1], &mut self.world.cx);
            assert_eq!(hosts[1].established_len(), 0, "the flood has left no request");
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    fn per_cent(part: u64, whole: u64) -> f64 {
        part as f64 * 100.0 / whole as f64
    }
}
