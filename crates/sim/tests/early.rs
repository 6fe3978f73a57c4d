//! SYN cookies and Fast Open between two hosts whose wire loses, repeats and reorders frames:
//! handshakes without a request, and with data. Every byte arrives once and every control block
//! keeps its invariants.

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender},
    };
    use stack::{
        Readiness,
        device::{Impairment, WireConfig},
        socket::{ConnectOptions, Connection, ListenOptions, Listener},
    };
    use tcp::Counter as TcpCounter;

    struct Bench {
        world: World,
        listener: Arc<Listener>,
        fast_open: bool,
    }

    impl Bench {
        fn new(seed: u64, settings: &[(&str, &str)], fast_open: bool) -> Self {
            let half = Impairment {
                delay: Duration::from_millis(5),
                loss: 0.03,
                reorder: 0.03,
                reorder_delay: Duration::from_millis(3),
                duplicate: 0.02,
                ..Impairment::default()
            };
            let wire = WireConfig { seed, forward: half, backward: half, ..WireConfig::default() };
            let mut world = World::pair(seed, &wire).expect("a wire");
            for (name, value) in settings {
                for host in &world.hosts {
                    host.set_sysctl(&format!("net.ipv4.{name}"), value).expect("a setting");
                }
            }
            let host = Arc::clone(&world.hosts[1]);
            let options = ListenOptions::default().fast_open(16);
            let local = SocketAddr::new(world.version().address(1), 80);
            let listener = Listener::listen_with(&host, &mut world.cx, local, &options);
            Self { world, listener: listener.expect("a free port"), fast_open }
        }

        fn connect(&mut self) -> Arc<Connection> {
            let host = Arc::clone(&self.world.hosts[0]);
            let options = ConnectOptions::default().fast_open_connect(self.fast_open);
            let to = self.listener.local();
            Connection::connect_with(&host, &mut self.world.cx, to, &options).expect("a port")
        }

        /// Exchanges a stream in each direction, the client's first. Returns false if the wire has
        /// lost the whole attempt.
        fn exchange(&mut self, seed: u64, there: u64, back: u64) -> bool {
            let client = self.connect();
            let mut request = Sender::new(0, Arc::clone(&client), Pattern(seed), there);
            let mut answer = Receiver::new(0, Arc::clone(&client), Pattern(!seed), 5000);
            let mut server: Option<(Receiver, Sender, Arc<Connection>)> = None;
            let listener = Arc::clone(&self.listener);
            let mut failed = false;
            let done = self.world.run(Duration::from_secs(600), |world| {
                while let Ok(socket) = listener.accept() {
                    if socket.remote() == client.local() && server.is_none() {
                        server = Some((
                            Receiver::new(1, Arc::clone(&socket), Pattern(seed), 5000),
                            Sender::new(1, Arc::clone(&socket), Pattern(!seed), back),
                            socket,
                        ));
                    } else {
                        // A SYN that the wire duplicated, and that arrived after its connection had
                        // ended.
                        let host = Arc::clone(&world.hosts[1]);
                        socket.abort(&host, &mut world.cx);
                    }
                }
                if server.is_none() && client.readiness().contains(Readiness::ERROR) {
                    failed = true;
                    return true;
                }
                let sent = request.step(world);
                let Some((receiver, sender, socket)) = &mut server else { return false };
                let done = [receiver.step(world), sender.step(world), answer.step(world), sent];
                for (host, socket) in [(0, &client), (1, socket)] {
                    let host = Arc::clone(&world.hosts[host]);
                    socket.with_tcb(&host, &mut world.cx, |tcb, _| tcb.check());
                }
                done == [true; 4]
            });
            done.unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
            let hosts = self.world.hosts.clone();
            client.close(&hosts[0], &mut self.world.cx);
            if let Some((receiver, _, socket)) = server {
                assert_eq!((receiver.received(), answer.received()), (there, back), "seed {seed}");
                socket.close(&hosts[1], &mut self.world.cx);
            }
            !failed
        }

        fn end(mut self) {
            let hosts = self.world.hosts.clone();
            self.listener.close(&hosts[1], &mut self.world.cx);
            self.world.pass(Duration::from_secs(1200));
            assert_eq!(hosts[0].established_len() + hosts[1].established_len(), 0);
            drop((hosts, self.listener));
            self.world.hosts.clear();
            assert_eq!(self.world.packets_alive(), 0, "packets leaked");
        }

        fn count(&self, host: usize, counter: TcpCounter) -> u64 {
            self.world.hosts[host].counters().tcp(counter)
        }
    }

    /// Plays five exchanges per seed, from no segment to many. Returns two counters, of the client
    /// and of the server.
    fn play(
        settings: &[(&str, &str)],
        fast_open: bool,
        (at_client, at_server): (TcpCounter, TcpCounter),
    ) -> (u64, u64) {
        let mut sums = (0, 0);
        for seed in 0..60 {
            let mut bench = Bench::new(seed, settings, fast_open);
            for (round, bytes) in [10, 700, 3000, 40_000, 1].into_iter().enumerate() {
                let there = bytes + seed % 7;
                let mut attempts = 0;
                while !bench.exchange(seed * 8 + round as u64, there, 2 * bytes) {
                    attempts += 1;
                    assert!(attempts < 5, "seed {seed}: no connection");
                }
            }
            sums.0 += bench.count(0, at_client);
            sums.1 += bench.count(1, at_server);
            bench.end();
        }
        sums
    }

    #[test]
    fn syn_cookies_deliver_every_byte() {
        let counters = (TcpCounter::TcpActiveOpens, TcpCounter::TcpExtSyncookiesRecv);
        let (opened, believed) = play(&[("tcp_syncookies", "2")], false, counters);
        assert!(believed >= 300, "{believed} of {opened}");
    }

    #[test]
    fn fast_open_delivers_every_byte() {
        let counters = (TcpCounter::TcpExtTCPFastOpenActive, TcpCounter::TcpExtTCPFastOpenPassive);
        let (active, passive) = play(&[("tcp_fastopen", "3")], true, counters);
        assert!(active >= 150 && passive >= 150, "{active} {passive}");
    }

    #[test]
    fn fast_open_without_cookies_delivers_every_byte() {
        let counters = (TcpCounter::TcpExtTCPFastOpenActive, TcpCounter::TcpExtTCPFastOpenPassive);
        let (active, passive) = play(&[("tcp_fastopen", "519")], true, counters);
        assert!(active >= 200 && passive >= 200, "{active} {passive}");
    }
}
