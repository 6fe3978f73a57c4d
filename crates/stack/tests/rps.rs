//! RPS and RFS between two complete hosts: which thread runs a core, which core a connection
//! belongs to, and the counters.

#[cfg(test)]
mod tests {
    use std::{
        io::{IoSlice, IoSliceMut},
        net::SocketAddr,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use pkt::Instant;
    use stack::{
        Cx, Errno, Memory, Readiness,
        base::{counters::Counter, ids::CoreId},
        core::{CoreRun, Kick},
        device::{Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{Connection, ListenOptions, Listener, Reader},
        sysctl::Sysctls,
    };

    const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 80);

    struct Bench {
        memory: Memory,
        cx: Cx,
        client: Arc<Host>,
        server: Arc<Host>,
    }

    impl Bench {
        /// Builds a client with `queues` cores and a server with two cores, connected by `queues`
        /// queues.
        fn new(queues: u16, settings: &[(&str, &str)]) -> Self {
            let memory = Memory::new(64 << 20);
            let mut cx = Cx::replay(&memory, 1);
            cx.now = Instant::from_secs(1000);
            let (near, far) =
                Wire::pair(&WireConfig { queues, ..WireConfig::default() }).expect("valid");
            let host = |device, address: &str, cores, sysctls| {
                let addresses = vec![address.parse().expect("an address with its prefix")];
                let devices = vec![DeviceConfig { device, addresses }];
                let config = HostConfig { devices, cores, sysctls, ..HostConfig::replay(0) };
                Host::new(&memory, config).expect("valid")
            };
            let mut sysctls = Sysctls::default();
            for (name, value) in settings {
                sysctls.set(name, value).expect("a setting");
            }
            let client = host(near, "10.0.0.1/24", queues, Sysctls::default());
            let server = host(far, "10.0.0.2/24", 2, sysctls);
            Self { memory, cx, client, server }
        }

        fn connect(&mut self, listener: &Listener) -> (Arc<Connection>, Arc<Connection>) {
            let socket = Connection::connect(&self.client, &mut self.cx, None, SERVER.into())
                .expect("a route");
            assert!(socket.readiness().contains(Readiness::WRITE), "the wire works at once");
            (socket, listener.accept().expect("established"))
        }

        fn listen(&mut self, options: &ListenOptions) -> Arc<Listener> {
            let local = SocketAddr::from(SERVER);
            Listener::listen_with(&self.server, &mut self.cx, local, options).expect("a free port")
        }

        /// Sends `bytes` from the client and reads them on the server.
        fn exchange(&mut self, (near, far): &(Arc<Connection>, Arc<Connection>), bytes: &[u8]) {
            let mut read = Vec::new();
            let mut buf = vec![0; 1 << 16];
            let mut sent = 0;
            while read.len() < bytes.len() {
                if let Ok(n) =
                    near.send(&self.client, &mut self.cx, &[IoSlice::new(&bytes[sent..])])
                {
                    sent += n;
                }
                while let Ok(n) = far.recv(&self.server, &mut self.cx, &mut buf, false) {
                    read.extend_from_slice(&buf[..n]);
                }
            }
            assert_eq!(read, bytes);
        }

        fn count(&self, counter: Counter) -> u64 {
            self.server.counters().stack(counter)
        }

        fn end(mut self, sockets: impl IntoIterator<Item = (Arc<Connection>, Arc<Connection>)>) {
            for (near, far) in sockets {
                near.abort(&self.client, &mut self.cx);
                far.abort(&self.server, &mut self.cx);
            }
        }
    }

    fn data() -> Vec<u8> {
        (0..300_000u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect()
    }

    #[test]
    fn an_rps_map_of_another_core_steers_all_packets_except_arp() {
        let mut bench = Bench::new(1, &[("net.quietline.dev.wire1.rps_cpus", "2")]);
        let listener = bench.listen(&ListenOptions::default());
        let pair = bench.connect(&listener);
        assert_eq!(
            pair.1.core(),
            CoreId(1),
            "a connection belongs to the core that processed its SYN"
        );
        bench.exchange(&pair, &data());
        let stats = bench.server.softnet_stat();
        let steered = bench.count(Counter::RpsPackets);
        assert!(steered > 10, "{steered}");
        assert_eq!((stats[0].processed, stats[1].processed), (1, steered), "one ARP request");
        assert!(stats[1].received_rps > 0 && stats[0].received_rps == 0);
        assert_eq!((stats[1].input_qlen, stats[1].process_qlen, stats[1].dropped), (0, 0, 0));
        assert_eq!(bench.count(Counter::ForeignCorePackets), 0);
        bench.end([pair]);
    }

    /// Repeated changes of RPS and RFS settings under one connection neither lose, reorder nor
    /// duplicate packets on the receive side.
    #[test]
    fn rps_toggled_under_a_connection_reorders_no_packets() {
        let mut bench = Bench::new(1, &[]);
        let listener = bench.listen(&ListenOptions::default());
        let pair = bench.connect(&listener);
        assert_eq!(pair.1.core(), CoreId(0));
        for round in 0..40 {
            let (name, value) = match round % 8 {
                0 => ("net.quietline.dev.wire1.rps_cpus", "2"),
                1 => ("net.quietline.dev.default.rps_cpus", "3"),
                2 => ("net.core.rps_sock_flow_entries", "1024"),
                3 => ("net.quietline.dev.wire1.rx-0.rps_flow_cnt", "64"),
                4 => ("net.quietline.dev.wire1.rps_cpus", "0"),
                5 => ("net.quietline.dev.wire1.rps_flow_cnt", "0"),
                6 => ("net.core.netdev_max_backlog", "300"),
                _ => ("net.core.rps_sock_flow_entries", "0"),
            };
            bench.server.set_sysctl(name, value).expect("a setting");
            bench.exchange(&pair, &data()[..30_000]);
        }
        let (client, server) = (bench.client.counters(), bench.server.counters());
        assert!(server.stack(Counter::RpsPackets) > 0);
        assert!(server.stack(Counter::ForeignCorePackets) > 0);
        assert_eq!(server.tcp(tcp::Counter::TcpExtTCPOFOQueue), 0);
        assert_eq!(client.tcp(tcp::Counter::TcpRetransSegs), 0);
        assert_eq!(server.dropped(), 0);
        bench.end([pair]);
    }

    /// Counts kicks; the test itself runs the core.
    #[derive(Debug, Default)]
    struct Sleeper(AtomicUsize);

    impl Kick for Sleeper {
        fn kick(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_core_with_a_worker_is_kicked_once_per_turn_and_not_run_by_the_sender() {
        let mut bench = Bench::new(1, &[("net.quietline.dev.wire1.rps_cpus", "2")]);
        let sleeper = Arc::new(Sleeper::default());
        let core = Arc::clone(&bench.server.cores()[1]);
        core.set_kick(Arc::clone(&sleeper) as Arc<dyn Kick>);
        let listener = bench.listen(&ListenOptions::default());
        let socket = Connection::connect(&bench.client, &mut bench.cx, None, SERVER.into())
            .expect("a route");
        assert!(!socket.readiness().contains(Readiness::WRITE), "the SYN waits for the worker");
        assert_eq!(sleeper.0.load(Ordering::Relaxed), 1);
        let stat = bench.server.softnet_stat()[1];
        assert_eq!((stat.processed, stat.input_qlen, stat.received_rps), (0, 1, 1));
        assert_eq!(core.try_run(&bench.server, &mut bench.cx), CoreRun::Idle);
        bench.cx.do_softirq();
        assert_eq!(core.try_run(&bench.server, &mut bench.cx), CoreRun::Idle);
        let accepted = listener.accept().expect("established");
        let kicks = sleeper.0.load(Ordering::Relaxed);
        let bytes = vec![7; 20_000];
        let sent = socket.send(&bench.client, &mut bench.cx, &[IoSlice::new(&bytes)]);
        assert!(sent.expect("room") > 10_000);
        assert_eq!(sleeper.0.load(Ordering::Relaxed), kicks + 1, "one kick for all its packets");
        assert_eq!(core.try_run(&bench.server, &mut bench.cx), CoreRun::Idle);
        bench.end([(socket, accepted)]);
    }

    /// The packets of a backlog are delivered in lists. GRO is off, so the segments of a superframe
    /// arrive one by one: the first looks up the connection, and the following ones match it by
    /// comparison.
    #[test]
    fn backlog_packets_are_delivered_in_lists() {
        let settings = [
            ("net.quietline.dev.wire1.rps_cpus", "2"),
            ("net.quietline.dev.wire1.gro", "0"),
            ("net.core.gro_normal_batch", "64"),
        ];
        let mut bench = Bench::new(1, &settings);
        bench.client.set_sysctl("net.quietline.dev.wire0.gso", "0").expect("a switch");
        let listener = bench.listen(&ListenOptions::default());
        let pair = bench.connect(&listener);
        bench.exchange(&pair, &data());
        let (steered, sublists) =
            (bench.count(Counter::RpsPackets), bench.count(Counter::RxSublists));
        assert!(steered > 200 && sublists * 3 < steered, "{steered} packets, {sublists} sublists");
        bench.end([pair]);
    }

    /// RFS with a prequeue: packets for a waiting reader are queued on the core that the reader
    /// polls, so the whole connection stays on that core.
    #[test]
    fn packets_for_a_prequeue_are_steered_to_the_core_of_its_reader() {
        let settings = [
            ("net.core.rps_sock_flow_entries", "64"),
            ("net.quietline.dev.wire1.rps_flow_cnt", "64"),
            ("net.quietline.rx_context", "prequeue_drop"),
        ];
        let mut bench = Bench::new(1, &settings);
        let cores = [0, 1].map(|core| Arc::clone(&bench.server.cores()[core]));
        let listener = bench.listen(&ListenOptions::default());
        let pair = bench.connect(&listener);
        let (mut reader, mut buf) = (Reader::new(), [0; 100]);
        let mut read = |bench: &mut Bench| {
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            pair.1.recv_or_wait(&bench.server, &mut bench.cx, &mut reader, bufs)
        };
        for (round, home) in [0, 1, 1, 0, 1].into_iter().enumerate() {
            // The reader's thread has just polled this core.
            assert_ne!(cores[home].try_run(&bench.server, &mut bench.cx), CoreRun::Elsewhere);
            assert_eq!(read(&mut bench), Err(Errno::EAGAIN));
            let queued = bench.count(Counter::PrequeueQueued);
            let sent = pair.0.send(&bench.client, &mut bench.cx, &[IoSlice::new(&[7; 64])]);
            assert_eq!(sent, Ok(64));
            assert_eq!(bench.count(Counter::PrequeueQueued), queued + 1, "round {round}");
            assert_eq!(usize::from(pair.1.incoming_core().0), home, "round {round}");
            assert_eq!(read(&mut bench), Ok(64));
        }
        bench.end([pair]);
    }

    /// RFS: a flow that follows its application to another core arms its timers there and reports
    /// that core (`SO_INCOMING_CPU`).
    #[test]
    fn timers_follow_the_flow_to_its_core() {
        let settings = [
            ("net.core.rps_sock_flow_entries", "64"),
            ("net.quietline.dev.wire1.rps_flow_cnt", "64"),
        ];
        let mut bench = Bench::new(1, &settings);
        let cores = [0, 1].map(|core| Arc::clone(&bench.server.cores()[core]));
        let listener = bench.listen(&ListenOptions::default());
        let pair = bench.connect(&listener);
        let incoming = |pair: &(_, Arc<Connection>)| pair.1.incoming_core().0;
        let own = pair.1.core();
        for (round, home) in [0, 1, 1, 0].into_iter().enumerate() {
            // The application's thread has just polled this core.
            assert_ne!(cores[home].try_run(&bench.server, &mut bench.cx), CoreRun::Elsewhere);
            bench.exchange(&pair, &data()[..10_000]);
            // Timers armed earlier have expired by then, on either core.
            bench.cx.now += std::time::Duration::from_secs(30);
            for core in &cores {
                assert_ne!(core.try_run(&bench.server, &mut bench.cx), CoreRun::Elsewhere);
            }
            assert_ne!(cores[home].try_run(&bench.server, &mut bench.cx), CoreRun::Elsewhere);
            let before = cores.each_ref().map(|core| core.timers_armed());
            bench.exchange(&pair, &data()[..10_000]);
            let (near, far) = &pair;
            let sent = far.send(&bench.server, &mut bench.cx, &[IoSlice::new(b"answer")]);
            assert_eq!(sent, Ok(6));
            let mut buf = [0; 10];
            assert_eq!(near.recv(&bench.client, &mut bench.cx, &mut buf, false), Ok(6));
            let after = cores.each_ref().map(|core| core.timers_armed());
            let armed = [0, 1].map(|core| after[core] > before[core]);
            assert_eq!(usize::from(incoming(&pair)), home, "round {round}");
            assert_eq!(armed, [home == 0, home == 1], "round {round}: {before:?} {after:?}");
            assert_eq!(pair.1.core(), own, "its transmit queue stays");
        }
        bench.end([pair]);
    }

    #[test]
    fn packets_that_wait_for_a_core_are_freed_with_the_host() {
        let mut bench = Bench::new(1, &[("net.quietline.dev.wire1.rps_cpus", "2")]);
        bench.server.cores()[1].set_kick(Arc::new(Sleeper::default()));
        let socket = Connection::connect(&bench.client, &mut bench.cx, None, SERVER.into())
            .expect("a route");
        assert_eq!(bench.server.softnet_stat()[1].input_qlen, 1);
        let core = Arc::clone(&bench.server.cores()[1]);
        let Bench { memory, mut cx, client, server } = bench;
        let live = |cx: &mut Cx| {
            cx.pool.drain_returns();
            memory.packets.stats().packets_live
        };
        let before = live(&mut cx);
        drop(server);
        assert_eq!(live(&mut cx), before - 1, "although the core outlives its host");
        drop(core);
        socket.abort(&client, &mut cx);
    }

    #[test]
    fn both_ends_of_a_connection_use_the_same_queue_and_core() {
        let mut bench = Bench::new(2, &[]);
        let listener = bench.listen(&ListenOptions::default());
        let pairs: Vec<_> = (0..16).map(|_| bench.connect(&listener)).collect();
        for pair in &pairs {
            assert_eq!(pair.0.core(), pair.1.core(), "both ends use the same queue");
            bench.exchange(pair, &data()[..20_000]);
        }
        let on_first = pairs.iter().filter(|pair| pair.1.core() == CoreId(0)).count();
        assert!((3..=13).contains(&on_first), "{on_first}");
        for host in [&bench.client, &bench.server] {
            assert_eq!(host.counters().stack(Counter::ForeignCorePackets), 0);
        }
        bench.end(pairs);
    }

    #[test]
    fn a_listener_of_a_core_gets_the_connections_of_its_core() {
        let mut bench = Bench::new(2, &[]);
        let options = |core| ListenOptions::default().reuse_port(true).incoming_core(core);
        let listeners = [0, 1].map(|core| bench.listen(&options(core)));
        let (client, cx) = (Arc::clone(&bench.client), &mut bench.cx);
        let sockets: Vec<_> = (0..16)
            .map(|_| Connection::connect(&client, cx, None, SERVER.into()).expect("a route"))
            .collect();
        let mut accepted = Vec::new();
        for (core, listener) in (0u16..).zip(&listeners) {
            while let Ok(socket) = listener.accept() {
                assert_eq!(socket.core(), CoreId(core));
                accepted.push(socket);
            }
        }
        assert_eq!(accepted.len(), 16);
        // The pairs do not match, which does not matter: all sockets are aborted.
        bench.end(sockets.into_iter().zip(accepted));
    }

    #[test]
    fn accept_prefers_the_caller_s_core_and_starves_no_connection() {
        let mut bench = Bench::new(2, &[]);
        let listener = bench.listen(&ListenOptions::default());
        let (client, cx) = (Arc::clone(&bench.client), &mut bench.cx);
        let sockets: Vec<_> = (0..32)
            .map(|_| Connection::connect(&client, cx, None, SERVER.into()).expect("a route"))
            .collect();
        let cores: Vec<_> = sockets.iter().map(|socket| socket.core().0).collect();
        let firsts = cores.iter().filter(|core| **core == 0).count();
        assert!((8..=24).contains(&firsts), "{cores:?}");
        let mut accepted: Vec<_> =
            (0..8).map(|_| listener.accept_near(Some(CoreId(0))).expect("one waits")).collect();
        assert!(accepted.iter().all(|socket| socket.core() == CoreId(0)));
        // The oldest waiting connection is not passed over forever.
        let mut others = 0;
        while let Ok(socket) = listener.accept_near(Some(CoreId(0))) {
            others += usize::from(socket.core() == CoreId(1));
            accepted.push(socket);
        }
        assert_eq!((accepted.len(), others), (32, 32 - firsts));
        assert_eq!(listener.accept().err(), Some(Errno::EAGAIN));
        bench.end(sockets.into_iter().zip(accepted));
    }
}
