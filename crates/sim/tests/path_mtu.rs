//! A path narrower than the link: path MTU discovery of whole stacks over a wire with a router in
//! the middle.

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
    };
    use stack::{
        device::{Device, Impairment, PathMtu, TooBigReport, Wire, WireConfig},
        host::config::{DeviceConfig, HostConfig},
        socket::{Connection, ShutdownHow},
        sysctl::Sysctls,
    };
    use tcp::Counter;

    /// Two hosts, a wire and one connection from host 0 to host 1.
    struct Path {
        world: World,
        wire: Arc<Wire>,
        client: Arc<Connection>,
        server: Arc<Connection>,
    }

    /// Makes a wire with 5 ms in each direction and this router in the direction from host 0.
    fn narrow(path_mtu: Option<PathMtu>) -> WireConfig {
        let backward = Impairment { delay: Duration::from_millis(5), ..Impairment::default() };
        WireConfig {
            forward: Impairment { path_mtu, ..backward },
            backward,
            ..WireConfig::default()
        }
    }

    impl Path {
        fn new(config: &WireConfig, settings: &[(&str, &str)]) -> Self {
            let mut sysctls = Sysctls::default();
            for (name, value) in settings {
                sysctls.set(name, value).expect("a setting");
            }
            let mut world = World::new(1);
            let (left, right) = Wire::pair(config).expect("a wire");
            for (number, end) in [(1, Arc::clone(&left)), (2, right)] {
                let address = format!("10.0.0.{number}/24").parse().expect("a prefix");
                let device: Arc<dyn Device> = end;
                let added = world.add_host(HostConfig {
                    name: format!("host{number}"),
                    devices: vec![DeviceConfig { device, addresses: vec![address] }],
                    cores: 1,
                    sysctls: sysctls.clone(),
                    ..HostConfig::replay(0)
                });
                added.expect("a valid configuration");
            }
            let listener = listen(&mut world, 80);
            let (client, server) = connect(&mut world, &listener);
            let host = Arc::clone(&world.hosts[1]);
            listener.close(&host, &mut world.cx);
            Self { world, wire: left, client, server }
        }

        /// Sends `length` bytes and the end of the stream to host 1. Returns the duration.
        fn stream(&mut self, length: u64) -> Duration {
            let (start, pattern) = (self.world.elapsed(), Pattern(7));
            let mut sender = Sender::new(0, Arc::clone(&self.client), pattern, length);
            let mut receiver = Receiver::new(1, Arc::clone(&self.server), pattern, 70_000);
            let result = self.world.run(Duration::from_secs(3600), |world| {
                let sent = sender.step(world);
                receiver.step(world) && sent
            });
            result.unwrap_or_else(|stalled| panic!("{stalled:?}"));
            assert_eq!(receiver.received(), length);
            self.world.elapsed() - start
        }

        fn count(&self, counter: Counter) -> u64 {
            self.world.hosts[0].counters().get(counter.name()).expect("a counter")
        }

        fn mss(&mut self) -> u32 {
            let host = Arc::clone(&self.world.hosts[0]);
            self.client.with_tcb(&host, &mut self.world.cx, |tcb, _| tcb.mss())
        }

        fn finish(mut self) {
            let hosts = self.world.hosts.clone();
            let _ = self.server.shutdown(&hosts[1], &mut self.world.cx, ShutdownHow::Write);
            self.client.close(&hosts[0], &mut self.world.cx);
            self.server.close(&hosts[1], &mut self.world.cx);
            drop((self.client, self.server, self.wire));
            self.world.pass(Duration::from_secs(1200));
            for host in &hosts {
                assert_eq!(host.established_len(), 0, "{} still has sockets", host.name());
            }
            assert_eq!(self.world.packets_alive(), 0, "packets leaked");
        }
    }

    #[test]
    fn a_router_that_reports_costs_one_flight_and_no_timeout() {
        for tso in [true, false] {
            let router = PathMtu { bytes: 1280, report: TooBigReport::Mtu };
            let mut path = Path::new(&WireConfig { tso, ..narrow(Some(router)) }, &[]);
            let took = path.stream(1_000_000);
            assert_eq!(path.mss(), 1280 - 52);
            assert_eq!(path.count(Counter::TcpExtTCPTimeouts), 0);
            assert!(took < Duration::from_secs(1), "{took:?} with tso {tso}");
            path.finish();
        }
    }

    #[test]
    fn a_router_without_rfc_1191_is_passed_plateau_by_plateau() {
        let router = PathMtu { bytes: 1000, report: TooBigReport::NoMtu };
        let settings = [("net.ipv4.route.min_pmtu", "500")];
        let mut path = Path::new(&narrow(Some(router)), &settings);
        path.stream(300_000);
        assert_eq!(path.mss(), 508 - 52, "1492, 1006, 508");
        path.finish();
    }

    #[test]
    fn a_connection_follows_a_path_that_narrows() {
        let mut path = Path::new(&narrow(None), &[]);
        let host = Arc::clone(&path.world.hosts[0]);
        for bytes in [1400, 900, 600] {
            path.wire.set_path_mtu(Some(PathMtu { bytes, report: TooBigReport::Mtu }));
            let bytes_sent = [std::io::IoSlice::new(&[1; 100_000])];
            let taken = path.client.send(&host, &mut path.world.cx, &bytes_sent).expect("room");
            assert!(taken > 1000);
            path.world.pass(Duration::from_secs(1));
            let other = Arc::clone(&path.world.hosts[1]);
            let mut buf = vec![0; 100_000];
            let mut read = 0;
            while let Ok(count @ 1..) =
                path.server.recv(&other, &mut path.world.cx, &mut buf, false)
            {
                read += count;
                path.world.pass(Duration::from_millis(100));
            }
            assert_eq!(read, taken);
            assert_eq!(path.mss(), bytes - 52);
        }
        assert_eq!(path.count(Counter::TcpExtTCPTimeouts), 0);
        path.finish();
    }
    #[test]
    fn mtu_probing_passes_a_black_hole_and_finds_the_mtu() {
        for tso in [true, false] {
            let router = PathMtu { bytes: 1300, report: TooBigReport::Silent };
            let settings = [("net.ipv4.tcp_mtu_probing", "1")];
            let mut path = Path::new(&WireConfig { tso, ..narrow(Some(router)) }, &settings);
            let took = path.stream(3_000_000);
            assert!(took < Duration::from_secs(30), "{took:?}");
            let found = path.mss() + 52;
            assert!((1292..=1300).contains(&found), "{found}: within tcp_probe_threshold");
            assert!(path.count(Counter::TcpExtTCPMTUPSuccess) > 0);
            assert!(path.count(Counter::TcpExtTCPMTUPFail) > 0);
            path.finish();
        }
    }

    #[test]
    fn mtu_probing_from_the_start_causes_no_timeout() {
        let router = PathMtu { bytes: 1300, report: TooBigReport::Silent };
        let settings = [("net.ipv4.tcp_mtu_probing", "2")];
        let mut path = Path::new(&narrow(Some(router)), &settings);
        path.stream(3_000_000);
        assert!((1292..=1300).contains(&(path.mss() + 52)));
        assert_eq!(path.count(Counter::TcpExtTCPTimeouts), 0);
        path.finish();
    }
    /// Completions arrive a second after transmission, as from a device with a long ring, and the
    /// path loses the packets sent.
    #[test]
    fn uncompleted_packets_are_not_retransmitted() {
        let mut config = narrow(None);
        config.forward.completion_delay = Duration::from_secs(1);
        // A byte queue limit would hold the handshake back, too.
        let settings = [("net.quietline.dev.default.qdisc", "noqueue")];
        let mut path = Path::new(&config, &settings);
        path.world.pass(Duration::from_secs(5));
        let hole = PathMtu { bytes: 100, report: TooBigReport::Silent };
        path.wire.set_path_mtu(Some(hole));
        let host = Arc::clone(&path.world.hosts[0]);
        let sent =
            path.client.send(&host, &mut path.world.cx, &[std::io::IoSlice::new(&[1; 1000])]);
        assert_eq!(sent, Ok(1000));
        path.world.pass(Duration::from_millis(990));
        assert_eq!(path.count(Counter::TcpRetransSegs), 0);
        assert!(path.count(Counter::TcpExtTCPSpuriousRtxHostQueues) > 0);
        path.wire.set_path_mtu(None);
        path.world.pass(Duration::from_secs(5));
        assert!(path.count(Counter::TcpRetransSegs) > 0);
        let other = Arc::clone(&path.world.hosts[1]);
        let read = path.server.recv(&other, &mut path.world.cx, &mut [0; 2000], false);
        assert_eq!(read, Ok(1000));
        path.finish();
    }
}
