//! Dst entries on the packet path: reference counts, route lookups, and the effect of a route
//! change on connections that hold an entry.

#[cfg(test)]
mod tests {
    use std::{
        io::{IoSlice, IoSliceMut},
        net::SocketAddr,
        sync::Arc,
    };

    use pkt::Instant;
    use stack::{
        Cx, Memory, Readiness,
        base::ids::DeviceIndex,
        device::{Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{Connection, Listener, Reader},
        transmit::dst::DstInfo,
    };

    const REF_MODES: [&str; 4] = ["cas_inc_not_zero", "rcuref", "sharded", "noref"];
    const LAYOUTS: [&str; 3] = ["packed", "padded", "filled"];

    /// Two hosts connected by a wire, and the context that runs both.
    struct Net {
        cx: Cx,
        client: Arc<Host>,
        server: Arc<Host>,
    }

    /// A connection between two hosts, or of one host to itself.
    struct Pair {
        client: Arc<Connection>,
        server: Arc<Connection>,
        listener: Arc<Listener>,
    }

    impl Net {
        fn new(settings: &[(&str, &str)]) -> Self {
            let memory = Memory::new(64 << 20);
            let (left, right) = Wire::pair(&WireConfig::default()).expect("valid");
            let host = |device, address: &str| {
                let addresses = vec![address.parse().expect("an address with its prefix")];
                let devices = vec![DeviceConfig { device, addresses }];
                let mut config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
                for (name, value) in settings {
                    config.sysctls.set(name, value).expect("a setting");
                }
                Host::new(&memory, config).expect("valid")
            };
            let (client, server) = (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"));
            let mut cx = Cx::replay(&memory, 1);
            cx.now = Instant::from_secs(1000);
            Self { cx, client, server }
        }

        fn connect(&mut self) -> Pair {
            let (client, server) = (Arc::clone(&self.client), Arc::clone(&self.server));
            connect(&mut self.cx, &client, &server, "10.0.0.2:80")
        }

        /// Connects the server to itself.
        fn connect_over_loopback(&mut self) -> Pair {
            let server = Arc::clone(&self.server);
            connect(&mut self.cx, &server, &server, "127.0.0.1:81")
        }

        fn send(&mut self, from: &Host, socket: &Connection, bytes: &[u8]) {
            let sent = socket.send(from, &mut self.cx, &[IoSlice::new(bytes)]);
            assert_eq!(sent, Ok(bytes.len()));
        }

        fn count(&self, name: &str) -> u64 {
            self.server.counters().get(name).expect("a counter")
        }
    }

    fn connect(cx: &mut Cx, from: &Arc<Host>, to: &Arc<Host>, at: &str) -> Pair {
        let at: SocketAddr = at.parse().expect("an address");
        let listener = Listener::listen(to, cx, at, 1).expect("a free port");
        let client = Connection::connect(from, cx, None, at).expect("a route");
        assert!(client.readiness().contains(Readiness::WRITE), "the wire works at once");
        let server = listener.accept().expect("established");
        Pair { client, server, listener }
    }

    fn input_routes(host: &Host) -> Vec<DstInfo> {
        host.dst_entries()
            .into_iter()
            .filter(|entry| entry.is_input && entry.device != DeviceIndex(0))
            .collect()
    }

    /// PQ5 in the default receive context: in the steady state early demux finds the route with the
    /// socket, so a packet from a wire neither looks up a route nor changes a reference count, in
    /// any mode.
    #[test]
    fn established_packets_over_a_wire_take_no_reference_and_look_up_no_route() {
        for mode in REF_MODES {
            let mut net = Net::new(&[("net.quietline.dst_ref", mode)]);
            let pair = net.connect();
            let client = Arc::clone(&net.client);
            net.send(&client, &pair.client, b"first");
            let before = net.server.counters();
            for _ in 0..10 {
                net.send(&client, &pair.client, b"data");
            }
            let change = net.server.counters().since(&before);
            assert_eq!(change.get("TcpInSegs"), Some(10), "{mode}");
            for name in ["DstGet", "DstPut", "DstForce", "RxRouteLookups", "DstAllocs"] {
                assert_eq!(change.get(name), Some(0), "{mode}: {name}");
            }
        }
    }

    /// A loopback packet carries its dst from the sender to the receiver, which costs one get and
    /// one put.
    #[test]
    fn a_loopback_packet_costs_one_get_and_one_put_where_references_are_counted() {
        for layout in LAYOUTS {
            for mode in REF_MODES {
                let settings =
                    [("net.quietline.dst_ref", mode), ("net.quietline.dst_layout", layout)];
                let mut net = Net::new(&settings);
                let pair = net.connect_over_loopback();
                let server = Arc::clone(&net.server);
                net.send(&server, &pair.client, b"first");
                let before = net.server.counters();
                for _ in 0..10 {
                    net.send(&server, &pair.client, b"data");
                }
                let change = net.server.counters().since(&before);
                let packets = change.get("IpInReceives").expect("a counter");
                let expected = if mode == "noref" { 0 } else { packets };
                assert!(packets >= 10, "{mode}");
                assert_eq!(change.get("DstGet"), Some(expected), "{mode} {layout}");
                assert_eq!(change.get("DstPut"), Some(expected), "{mode} {layout}");
                assert_eq!(change.get("RxRouteLookups"), Some(0), "{mode} {layout}");
            }
        }
    }

    /// `dst_check`: with `entry`, the sender and the receiver of each packet read the entry, in
    /// every layout and mode of counting; with `generation` no packet does. The result is the same.
    #[test]
    fn a_check_reads_the_entry_or_its_cached_generation() {
        for (check, reads) in [("entry", true), ("generation", false)] {
            for layout in LAYOUTS {
                for mode in REF_MODES {
                    let settings = [
                        ("net.quietline.dst_ref", mode),
                        ("net.quietline.dst_layout", layout),
                        ("net.quietline.dst_check", check),
                    ];
                    let mut net = Net::new(&settings);
                    let server = Arc::clone(&net.server);
                    let pair = net.connect_over_loopback();
                    net.send(&server, &pair.client, b"first");
                    let before = net.server.counters();
                    for _ in 0..10 {
                        net.send(&server, &pair.client, b"data");
                    }
                    let change = net.server.counters().since(&before);
                    let get = |name| change.get(name).expect("a counter");
                    let what = format!("{check} {layout} {mode}");
                    let checks = get("DstCheckEntry");
                    // One for the sender and one for the receiver, at least.
                    assert!(if reads { checks >= 20 } else { checks == 0 }, "{what}: {checks}");
                    let changed = ["DstMiss", "DstAllocs", "RxRouteLookups", "RxDstInvalidated"];
                    assert_eq!(changed.map(get), [0; 4], "{what}");
                }
            }
        }
    }

    /// DST4: a change of `dst_check` applies to connections that live, and in both modes the next
    /// packet notices a change of the routes.
    #[test]
    fn the_check_of_routes_can_change_while_connections_live() {
        let mut net = Net::new(&[]);
        let pair = net.connect();
        let client = Arc::clone(&net.client);
        net.send(&client, &pair.client, b"first");
        for check in ["entry", "generation", "entry"] {
            net.server.set_sysctl("net.quietline.dst_check", check).expect("a word");
            net.send(&client, &pair.client, b"again");
            let before = net.server.counters();
            net.send(&client, &pair.client, b"data");
            net.server.invalidate_routes();
            net.send(&client, &pair.client, b"data");
            net.send(&client, &pair.client, b"data");
            let change = net.server.counters().since(&before);
            assert_eq!(change.get("DstCheckEntry") > Some(0), check == "entry", "{check}");
            assert_eq!(change.get("RxDstInvalidated"), Some(1), "{check}");
            assert_eq!(change.get("RxRouteLookups"), Some(1), "{check}");
            assert_eq!(change.get("RxDstSet"), Some(1), "{check}");
        }
    }

    /// All connections share one input route entry for an address and device; each holds one
    /// reference. The count is exact in every layout and mode of counting.
    #[test]
    fn all_connections_share_one_input_route() {
        for layout in LAYOUTS {
            for mode in REF_MODES {
                let settings =
                    [("net.quietline.dst_ref", mode), ("net.quietline.dst_layout", layout)];
                let mut net = Net::new(&settings);
                let first = net.connect();
                first.listener.close(&Arc::clone(&net.server), &mut net.cx);
                let second = net.connect();
                let client = Arc::clone(&net.client);
                net.send(&client, &first.client, b"one");
                net.send(&client, &second.client, b"two");
                let routes = input_routes(&net.server);
                assert_eq!(routes.len(), 1, "{routes:?}");
                assert_eq!((routes[0].refs, routes[0].is_current), (3, true), "{mode} {layout}");
            }
        }
    }

    /// PQ7, DST3: once the sockets are closed, only the tables hold references.
    #[test]
    fn reference_counts_return_to_their_initial_value_when_sockets_close() {
        for mode in REF_MODES {
            let mut net = Net::new(&[("net.quietline.dst_ref", mode)]);
            let (client, server) = (Arc::clone(&net.client), Arc::clone(&net.server));
            for pair in [net.connect(), net.connect_over_loopback()] {
                net.send(&server, &pair.server, b"data");
                pair.client.abort(&server, &mut net.cx);
                pair.server.abort(&server, &mut net.cx);
                pair.listener.close(&server, &mut net.cx);
            }
            for host in [client, server] {
                host.poll(&mut net.cx);
                for entry in host.dst_entries() {
                    assert_eq!(entry.refs, 1, "{mode}: {entry:?}");
                }
            }
        }
    }

    /// DST4, A2: the first packet after a route change looks up its route and stores it in the
    /// connection.
    #[test]
    fn a_change_of_routes_is_noticed_by_the_next_packet() {
        let mut net = Net::new(&[]);
        let pair = net.connect();
        let client = Arc::clone(&net.client);
        net.send(&client, &pair.client, b"first");
        net.server.invalidate_routes();
        assert_eq!(input_routes(&net.server), []);
        let before = net.server.counters();
        for _ in 0..5 {
            net.send(&client, &pair.client, b"data");
        }
        let change = net.server.counters().since(&before);
        assert_eq!(change.get("RxRouteLookups"), Some(1));
        assert_eq!(change.get("RxDstInvalidated"), Some(1));
        assert_eq!(change.get("RxDstSet"), Some(1));
        assert!(input_routes(&net.server).iter().all(|entry| entry.is_current));
    }

    #[test]
    fn without_early_demux_every_packet_looks_up_its_route() {
        for name in ["net.ipv4.ip_early_demux", "net.ipv4.tcp_early_demux"] {
            let mut net = Net::new(&[]);
            let pair = net.connect();
            let client = Arc::clone(&net.client);
            net.server.set_sysctl(name, "0").expect("a setting");
            let before = net.count("RxRouteLookups");
            for _ in 0..5 {
                net.send(&client, &pair.client, b"data");
            }
            assert_eq!(net.count("RxRouteLookups") - before, 5, "{name}");
            let mut buf = [0; 64];
            assert_eq!(pair.server.recv(&net.server, &mut net.cx, &mut buf, false), Ok(20));
        }
    }

    /// Performs one step of a thread that reads and may wait.
    fn read(net: &mut Net, pair: &Pair, reader: &mut Reader) -> Option<usize> {
        let mut buf = [0; 4096];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        pair.server.recv_or_wait(&net.server, &mut net.cx, reader, bufs).ok()
    }

    /// PQ5: dst operations per data packet for a waiting reader: two with `prequeue_ref`, none with
    /// `prequeue_drop`, none in softirq.
    #[test]
    fn a_waiting_reader_costs_two_dst_operations_a_packet_or_none() {
        let expected =
            [("prequeue_ref", 1), ("prequeue_drop", 0), ("prequeue_drop_limited", 0), ("bh", 0)];
        for (context, per_packet) in expected {
            let mut net = Net::new(&[("net.quietline.rx_context", context)]);
            let pair = net.connect();
            let (client, mut reader) = (Arc::clone(&net.client), Reader::new());
            net.send(&client, &pair.client, b"first");
            assert_eq!(read(&mut net, &pair, &mut reader), Some(5), "{context}");
            let before = net.server.counters();
            for _ in 0..10 {
                assert_eq!(read(&mut net, &pair, &mut reader), None, "the reader waits");
                net.send(&client, &pair.client, b"data");
                assert_eq!(read(&mut net, &pair, &mut reader), Some(4), "{context}");
            }
            let change = net.server.counters().since(&before);
            let queued = if context == "bh" { 0 } else { 10 };
            assert_eq!(change.get("PrequeueQueued"), Some(queued), "{context}");
            assert_eq!(change.get("DstGet"), Some(10 * per_packet), "{context}");
            assert_eq!(change.get("DstPut"), Some(10 * per_packet), "{context}");
            assert_eq!(change.get("DstForce"), Some(10 * per_packet), "{context}");
            assert_eq!(change.get("DstDropNoref"), Some(queued * (1 - per_packet)), "{context}");
        }
    }

    /// PQ6: the routes change while the prequeue holds packets without a dst. The connection
    /// invalidates its cached route and cannot replace it from those packets; the next packet that
    /// arrives stores a new route.
    #[test]
    fn a_route_that_changes_under_a_prequeue_is_looked_up_again() {
        for queued in [1, 2, 5, 9] {
            let mut net = Net::new(&[("net.quietline.rx_context", "prequeue_drop")]);
            let pair = net.connect();
            let (client, mut reader) = (Arc::clone(&net.client), Reader::new());
            net.send(&client, &pair.client, b"first");
            assert_eq!(read(&mut net, &pair, &mut reader), Some(5));
            assert_eq!(read(&mut net, &pair, &mut reader), None);
            // Full segments: the Nagle algorithm sends them at once, and the initial window admits
            // all of them.
            let before = net.server.counters();
            for _ in 0..queued {
                net.send(&client, &pair.client, &[7; 1448]);
            }
            let waiting = net.server.counters().since(&before).get("PrequeueQueued");
            net.server.invalidate_routes();
            while read(&mut net, &pair, &mut reader).is_some() {}
            let change = net.server.counters().since(&before);
            assert_eq!(change.get("RxDstInvalidated"), Some(1), "{queued}");
            assert_eq!(change.get("RxDstSetNullSkipped"), waiting, "{queued}");
            net.send(&client, &pair.client, b"next");
            assert_eq!(read(&mut net, &pair, &mut reader), Some(4));
            let change = net.server.counters().since(&before);
            assert_eq!(change.get("RxRouteLookups"), Some(1), "{queued}");
            assert_eq!(change.get("RxDstSet"), Some(1), "{queued}");
            assert_eq!(change.get("DstForce"), Some(1), "by the packet without a cached route");
        }
    }

    /// Packets in the backlog follow `rx_dst_mode`: they hold a dst reference always (`force`), or
    /// drop the dst when the socket has a route cached.
    #[test]
    fn a_backlogged_packet_holds_a_dst_reference_only_in_force_mode() {
        for (mode, forced) in [("force", 1), ("optimistic_drop", 0), ("rcu_clear_then_release", 0)]
        {
            let mut net = Net::new(&[("net.quietline.rx_dst_mode", mode)]);
            let pair = net.connect();
            let (client, server) = (Arc::clone(&net.client), Arc::clone(&net.server));
            net.send(&client, &pair.client, b"first");
            let before = server.counters();
            let mut buf = [0; 64];
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            let sender = &pair.client;
            let read = pair.server.recv_interrupted(
                &server,
                &mut net.cx,
                &mut Reader::new(),
                bufs,
                |cx| {
                    let sent = sender.send(&client, cx, &[IoSlice::new(b"data")]);
                    assert_eq!(sent, Ok(4));
                },
            );
            assert!(read.is_ok());
            let change = server.counters().since(&before);
            assert_eq!(change.get("SocketBacklogQueued"), Some(1), "{mode}");
            assert_eq!(change.get("DstForce"), Some(forced), "{mode}");
            assert_eq!(change.get("DstPut"), Some(forced), "{mode}");
            assert_eq!(change.get("DstDropNoref"), Some(1 - forced), "{mode}");
        }
    }

    /// A change of the reference-counting mode allocates new entries.
    #[test]
    fn the_reference_mode_can_change_while_connections_live() {
        let mut net = Net::new(&[]);
        let pair = net.connect_over_loopback();
        let server = Arc::clone(&net.server);
        for mode in REF_MODES.into_iter().cycle().take(7) {
            net.server.set_sysctl("net.quietline.dst_ref", mode).expect("a word");
            net.send(&server, &pair.client, b"data");
            net.send(&server, &pair.server, b"back");
        }
        let mut buf = [0; 64];
        assert_eq!(pair.server.recv(&net.server, &mut net.cx, &mut buf, false), Ok(28));
    }

    #[test]
    fn the_layout_is_chosen_when_the_host_is_built() {
        let net = Net::new(&[("net.quietline.dst_layout", "packed")]);
        let refused = net.server.set_sysctl("net.quietline.dst_layout", "filled").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "net.quietline.dst_layout: \"filled\" is not allowed: expected packed: it is chosen when the host is built"
        );
        net.server.set_sysctl("net.quietline.dst_layout", "packed").expect("no change");
    }
}
