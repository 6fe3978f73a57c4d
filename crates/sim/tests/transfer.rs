//! Streams across impaired wires: the received bytes equal the sent bytes, and every packet is
//! accounted for.
//!
//! `SEED=n cargo test -p quietline-sim --test transfer` replays one seed; `SEEDS=n` runs that many.

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
        suite::Version,
    };
    use stack::{
        base::{counters::Counter as StackCounter, limits::BIG_TCP_BYTES_MAX},
        device::{Impairment, WireConfig},
    };
    use tcp::Counter;

    /// Draws the impairments of one direction.
    fn impairment(rng: &mut tcp::Rng, checksums: bool) -> Impairment {
        let mut fraction = |max: f64| f64::from(rng.below(1000)) / 1000.0 * max;
        let loss = fraction(0.05);
        let reorder = fraction(0.1);
        let duplicate = fraction(0.05);
        let corrupt = if checksums { fraction(0.03) } else { 0.0 };
        Impairment {
            rate_bps: (rng.below(2) == 0).then(|| 1_000_000 * u64::from(1 + rng.below(1000))),
            delay: Duration::from_micros(u64::from(rng.below(50_000))),
            loss,
            reorder,
            reorder_delay: Duration::from_micros(u64::from(rng.below(5000))),
            duplicate,
            corrupt,
            queue_packets: 20 + rng.below(1000) as usize,
            mark: if rng.below(4) == 0 { 0.02 } else { 0.0 },
            mark_above: (rng.below(4) == 0).then(|| Duration::from_millis(5)),
            completion_delay: Duration::from_micros(u64::from(rng.below(3) * 1000)),
            ring_packets: None,
            path_mtu: None,
        }
    }

    fn wire(seed: u64) -> WireConfig {
        let mut rng = tcp::Rng::new(seed);
        let checksums = rng.below(2) == 0;
        WireConfig {
            mtu: [576, 1280, 1500, 9000][rng.below(4) as usize],
            tso: rng.below(2) == 0,
            checksums,
            forward: impairment(&mut rng, checksums),
            backward: impairment(&mut rng, checksums),
            seed,
            ..WireConfig::default()
        }
    }

    /// Sends in both directions at once over one connection and closes it; nothing may be left
    /// afterwards.
    fn both_ways(seed: u64, wire: &WireConfig, length: u64) {
        let mut world = World::pair(seed, wire).expect("a valid wire");
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        let (up, down) = (Pattern(seed), Pattern(!seed));
        let mut senders = [
            Sender::new(0, Arc::clone(&client), up, length),
            Sender::new(1, Arc::clone(&server), down, length / 2),
        ];
        let mut receivers = [
            Receiver::new(1, Arc::clone(&server), up, 70_000),
            Receiver::new(0, Arc::clone(&client), down, 1000),
        ];
        let result = world.run(Duration::from_secs(3600), |world| {
            // Every application takes its step, even if another is not done.
            let sent = senders.each_mut().map(|app| app.step(world));
            let received = receivers.each_mut().map(|app| app.step(world));
            sent.into_iter().chain(received).all(|done| done)
        });
        result.unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?} with {wire:?}"));
        assert_eq!(receivers[0].received(), length, "seed {seed}");
        assert_eq!(receivers[1].received(), length / 2, "seed {seed}");
        let hosts = world.hosts.clone();
        client.close(&hosts[0], &mut world.cx);
        server.close(&hosts[1], &mut world.cx);
        listener.close(&hosts[1], &mut world.cx);
        drop((client, server, senders, receivers));
        world.pass(Duration::from_secs(1200));
        for host in &hosts {
            assert_eq!(host.established_len(), 0, "seed {seed}: {} still has sockets", host.name());
        }
        assert_eq!(world.packets_alive(), 0, "seed {seed}: packets leaked");
    }

    /// Both ends shrink and grow their buffers all the time, and their windows follow, below data
    /// in flight.
    fn while_windows_shrink(seed: u64, wire: &WireConfig, length: u64) {
        let mut world = World::pair(seed, wire).expect("a valid wire");
        for host in &world.hosts {
            host.set_sysctl("net.ipv4.tcp_shrink_window", "1").expect("a setting");
        }
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        let ends = [client, server];
        let mut senders =
            [0, 1].map(|end| Sender::new(end, Arc::clone(&ends[end]), Pattern(seed), length));
        let mut receivers =
            [0, 1].map(|end| Receiver::new(end, Arc::clone(&ends[end]), Pattern(seed), 5000));
        let result = world.run(Duration::from_secs(3600), |world| {
            for (end, socket) in ends.iter().enumerate() {
                let host = Arc::clone(&world.hosts[end]);
                let bytes = 2304 << world.cx.rng.below(8);
                socket.with_tcb(&host, &mut world.cx, |tcb, _| tcb.set_rcvbuf(bytes));
            }
            let sent = senders.each_mut().map(|app| app.step(world));
            let received = receivers.each_mut().map(|app| app.step(world));
            sent.into_iter().chain(received).all(|done| done)
        });
        result.unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?} with {wire:?}"));
        assert_eq!(receivers.each_ref().map(Receiver::received), [length; 2], "seed {seed}");
        let hosts = world.hosts.clone();
        for (host, socket) in hosts.iter().zip(&ends) {
            let closed = host.counters().tcp(Counter::TcpExtTCPToZeroWindowAdv);
            assert!(closed > 0 || length < 1_000_000, "seed {seed}");
            socket.close(host, &mut world.cx);
        }
        listener.close(&hosts[1], &mut world.cx);
    }

    #[test]
    fn two_hosts_with_shrinking_windows_deliver_every_byte() {
        let delay = Duration::from_millis(5);
        let clean = Impairment { delay, ..Impairment::default() };
        let wire = WireConfig { forward: clean, backward: clean, ..WireConfig::default() };
        while_windows_shrink(1, &wire, 1_000_000);
        while_windows_shrink(2, &WireConfig { tso: false, ..wire }, 1_000_000);
        for seed in 0..100 {
            while_windows_shrink(seed, &self::wire(seed), 100_000);
        }
    }

    #[test]
    fn a_perfect_wire_delivers_every_byte() {
        both_ways(1, &WireConfig::default(), 3_000_000);
        both_ways(2, &WireConfig { tso: false, ..WireConfig::default() }, 3_000_000);
        both_ways(3, &WireConfig { checksums: true, ..WireConfig::default() }, 3_000_000);
    }

    /// BIG TCP: with a wide window superframes become as large as wire and settings allow, whole
    /// across the wire or cut by software in front of it, and every byte arrives.
    #[test]
    fn superframes_beyond_64_kb_cross_a_wire() {
        const BIG: u32 = BIG_TCP_BYTES_MAX;
        let [small, big] = ["65536", "524280"];
        let of_linux = superframes(true, small, BIG);
        let default = superframes(true, "default", BIG);
        let bounded_by_wire = superframes(true, big, 100_000);
        let bounded_by_setting = superframes(true, "200000", BIG);
        let unbounded = superframes(true, big, BIG);
        let sent = [of_linux, default, bounded_by_wire, bounded_by_setting, unbounded];
        assert!(sent.is_sorted_by(|fewer, more| fewer.0 > more.0), "{sent:?}");
        assert!(sent.iter().all(|(_, cut)| *cut == 0), "{sent:?}");
        assert!(LENGTH / unbounded.0 > 65_536, "{sent:?}");
        let (packets, cut) = superframes(false, big, BIG);
        assert!(LENGTH / packets > 65_536 && cut >= LENGTH / 1448, "{packets} packets, {cut} cut");
    }

    /// The copy into a superframe computes the sums that its segments need, for any number of
    /// segments: with small segments, a superframe of the wire's size would need more sums than it
    /// can store.
    #[test]
    fn no_segment_is_summed_twice() {
        for mtu in [1500, 1280, 1100] {
            let delay = Duration::from_micros(300);
            let clean = Impairment { delay, ..Impairment::default() };
            let wire = WireConfig {
                mtu,
                checksums: true,
                forward: clean,
                backward: clean,
                ..WireConfig::default()
            };
            let mut world = World::pair(1, &wire).expect("a valid wire");
            for host in 0..world.hosts.len() {
                // Otherwise the pacing rate bounds superframes.
                world.set(host, &[("net.ipv4.tcp_tso_rtt_log", "31")]);
            }
            one_way(&mut world);
            let counters = world.hosts[0].counters();
            let [all, copied] = [StackCounter::TxChecksumSoftware, StackCounter::TxChecksumCopied]
                .map(|counter| counters.stack(counter));
            assert!(copied * 100 >= all * 99, "MTU {mtu}: {copied} of {all}");
        }
    }

    /// Bytes of a transfer of superframes.
    const LENGTH: u64 = 20_000_000;

    /// Transfers `LENGTH` bytes. Returns the packets that IP was given, and the segments that
    /// software cut from them. The hosts use IPv4, whose setting has the value `default`.
    fn superframes(tso: bool, asked: &str, passes: u32) -> (u64, u64) {
        let delay = Duration::from_micros(300);
        let clean = Impairment { delay, ..Impairment::default() };
        let bounds = WireConfig { tso, gso_max_bytes: passes, ..WireConfig::default() };
        let wire = WireConfig { forward: clean, backward: clean, ..bounds };
        let mut world = World::new(1);
        world.join_with(Version::V4, &wire).expect("a valid wire");
        for host in 0..world.hosts.len() {
            world.set(
                host,
                &[
                    ("net.quietline.dev.default.gso_ipv4_max_size", asked),
                    ("net.ipv4.tcp_rmem", "4096 8000000 16000000"),
                    ("net.ipv4.tcp_wmem", "4096 4000000 16000000"),
                    // Otherwise the pacing rate bounds them.
                    ("net.ipv4.tcp_tso_rtt_log", "31"),
                ],
            );
        }
        one_way(&mut world);
        let counters = world.hosts[0].counters();
        let [packets, whole, cut] = [
            StackCounter::IpOutRequests,
            StackCounter::DeviceTxSuperframes,
            StackCounter::GsoSegments,
        ]
        .map(|counter| counters.stack(counter));
        assert_eq!(whole > 0, tso, "{whole} of {packets} packets are superframes");
        (packets, cut)
    }

    /// Transfers `LENGTH` bytes from host 0 to host 1.
    fn one_way(world: &mut World) {
        let listener = listen(world, 80);
        let (client, server) = connect(world, &listener);
        let mut sender = Sender::new(0, client, Pattern(1), LENGTH);
        let mut receiver = Receiver::new(1, server, Pattern(1), 1 << 20);
        let result = world.run(Duration::from_secs(60), |world| {
            let sent = sender.step(world);
            receiver.step(world) && sent
        });
        result.unwrap_or_else(|stalled| panic!("{stalled:?}"));
        assert_eq!(receiver.received(), LENGTH);
    }

    #[test]
    fn impaired_wires_deliver_every_byte() {
        if let Ok(seed) = std::env::var("SEED") {
            let seed = seed.parse().expect("SEED is a number");
            return both_ways(seed, &wire(seed), 300_000);
        }
        let seeds = std::env::var("SEEDS").map_or(2000, |seeds| seeds.parse().expect("a number"));
        for seed in 0..seeds {
            both_ways(seed, &wire(seed), 100_000);
        }
    }
}
