//! Pacing in virtual time: its accuracy with timers and with `fq`, and the cost of its timers.
//!
//! `cargo test -p quietline-sim --test pacing -- --nocapture` prints the figures.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
    };
    use stack::{
        base::counters::Counter,
        device::{Impairment, WireConfig},
        socket::{
            Connection, Listener,
            options::{OptionValue, SocketOption},
        },
    };

    const MBIT: u64 = 1_000_000;
    const MSS: usize = 1448;
    /// Segments that are sent without pacing at the start.
    const UNPACED: usize = 10;

    /// Makes two hosts, with a link of 1 Gbit/s and a delay of a millisecond.
    fn world(settings: &[(&str, &str)]) -> World {
        let delay = Duration::from_millis(1);
        let forward = Impairment {
            rate_bps: Some(1000 * MBIT),
            ring_packets: Some(256),
            delay,
            ..Impairment::default()
        };
        let backward = Impairment { delay, ..Impairment::default() };
        let wire = WireConfig { forward, backward, ..WireConfig::default() };
        let world = World::pair(7, &wire).expect("a valid wire");
        world.set(0, settings);
        world
    }

    fn set_pace(world: &mut World, socket: &Connection, pace: OptionValue) {
        let host = Arc::clone(&world.hosts[0]);
        socket
            .set_option(&host, &mut world.cx, SocketOption::MaxPacingRate, &pace)
            .expect("a pace");
    }

    fn pace(world: &mut World, socket: &Connection) -> OptionValue {
        let host = Arc::clone(&world.hosts[0]);
        socket.option(&host, &mut world.cx, SocketOption::MaxPacingRate).expect("an option")
    }

    /// Measures the arriving bytes per second after the first second, over 580,000 bytes or two
    /// seconds: packets of two segments at either end are one percent at most.
    fn rate(world: &mut World, listener: &Listener, pace: Option<OptionValue>) -> u64 {
        const WARM: Duration = Duration::from_secs(1);
        const TIME: Duration = Duration::from_secs(2);
        const BYTES: u64 = 400 * 1448;
        let (client, server) = connect(world, listener);
        if let Some(pace) = pace {
            set_pace(world, &client, pace);
        }
        let mut sender = Sender::new(0, Arc::clone(&client), Pattern(1), u64::MAX);
        let mut receiver = Receiver::new(1, Arc::clone(&server), Pattern(1), 1 << 20);
        let (start, mut warm) = (world.elapsed(), None);
        let done = world.run(Duration::from_secs(60), |world| {
            sender.step(world);
            receiver.step(world);
            let elapsed = world.elapsed() - start;
            if warm.is_none() && elapsed >= WARM {
                warm = Some((receiver.received(), elapsed));
            }
            let enough = |(before, _)| receiver.received() - before >= BYTES;
            elapsed >= WARM + TIME && warm.is_some_and(enough)
        });
        done.unwrap_or_else(|stalled| panic!("{stalled:?}"));
        let (before, since) = warm.expect("past the beginning");
        let micros = (world.elapsed() - start - since).as_micros();
        let bytes = u128::from(receiver.received() - before);
        let (near, far) = (Arc::clone(&world.hosts[0]), Arc::clone(&world.hosts[1]));
        client.abort(&near, &mut world.cx);
        server.abort(&far, &mut world.cx);
        world.pass(Duration::from_secs(1));
        u64::try_from(bytes * 1_000_000 / micros).expect("a rate")
    }

    /// ACKs that follow each other closely for half of a round trip: the window fills the path, and
    /// no queue has formed yet.
    #[test]
    fn a_train_of_acknowledgments_ends_slow_start() {
        let settings =
            [("net.quietline.hystart_detect", "train"), ("net.quietline.dev.default.gso", "0")];
        let mut world = world(&settings);
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        let mut sender = Sender::new(0, Arc::clone(&client), Pattern(1), 16 << 20);
        let mut receiver = Receiver::new(1, Arc::clone(&server), Pattern(1), 1 << 20);
        let count = |world: &World, counter| world.hosts[0].counters().tcp(counter);
        let done = world.run(Duration::from_secs(5), |world| {
            sender.step(world);
            receiver.step(world);
            count(world, tcp::Counter::TcpExtTCPHystartTrainDetect) > 0
        });
        done.unwrap_or_else(|stalled| panic!("{stalled:?}"));
        let window = count(&world, tcp::Counter::TcpExtTCPHystartTrainCwnd);
        // 2 ms at 1 Gbit/s are 167 segments.
        assert!((16..=400).contains(&window), "{window} segments");
        assert_eq!(count(&world, tcp::Counter::TcpExtTCPHystartDelayDetect), 0);
        assert_eq!(count(&world, tcp::Counter::TcpRetransSegs), 0);
    }

    /// `SO_MAX_PACING_RATE` through the table of options, in both of its widths: the arrival rate
    /// is within 2 %, whether timers or `fq` hold the packets; the largest number of either width
    /// removes the limit.
    #[test]
    fn so_max_pacing_rate_is_kept_by_timers_and_by_fq() {
        for qdisc in ["pfifo_fast", "fq"] {
            let mut world = world(&[("net.quietline.dev.default.qdisc", qdisc)]);
            let listener = listen(&mut world, 80);
            let free = rate(&mut world, &listener, None);
            for wanted in [50_000u32, 1_000_000, 2_000_000, 12_500_000, 50_000_000] {
                let narrow = OptionValue::Int(wanted.cast_signed());
                for pace in [narrow, OptionValue::Long(wanted.into())] {
                    let got = rate(&mut world, &listener, Some(pace));
                    println!("{qdisc}: {wanted} wanted, {got} bytes per second");
                    let most = u64::from(wanted) / 50;
                    assert!(got.abs_diff(wanted.into()) <= most, "{qdisc}: {got} of {wanted}");
                }
            }
            for unlimited in [OptionValue::Int(-1), OptionValue::Long(u64::MAX)] {
                let got = rate(&mut world, &listener, Some(unlimited));
                println!("{qdisc}: unlimited, {got} bytes per second");
                assert!(got.abs_diff(free) <= free / 50, "{qdisc}: {got} of {free}");
            }
        }
    }

    /// The value is unsigned: 3 GB/s is a rate, and ~0U none. The answer is 64 bits wide.
    #[test]
    fn a_pacing_rate_is_unsigned() {
        let mut world = world(&[]);
        let listener = listen(&mut world, 80);
        let (client, _server) = connect(&mut world, &listener);
        assert_eq!(pace(&mut world, &client), OptionValue::Long(u64::MAX), "the default");
        let large = 3_000_000_000u32;
        for (given, read) in [
            (OptionValue::Int(large.cast_signed()), large.into()),
            (OptionValue::Int(-1), u64::MAX),
            (OptionValue::Long(u32::MAX.into()), u32::MAX.into()),
            (OptionValue::Long(1 << 40), 1 << 40),
            (OptionValue::Long(u64::MAX), u64::MAX),
        ] {
            set_pace(&mut world, &client, given.clone());
            assert_eq!(pace(&mut world, &client), OptionValue::Long(read), "{given:?}");
        }
    }

    /// Packets that `fq` drops take no time of the pacing rate: they do not advance the departure
    /// times of later packets. Otherwise the drops would leave gaps, or departure times would run
    /// ahead of the clock until every packet is beyond the horizon.
    #[test]
    fn packets_dropped_by_fq_take_no_time_of_the_pacing_rate() {
        let settings = [
            ("net.quietline.dev.default.qdisc", "fq flow_limit 2"),
            ("net.quietline.tsq_limit", "off"),
            ("net.quietline.dev.default.gso", "0"),
        ];
        let mut world = world(&settings);
        let listener = listen(&mut world, 80);
        let wanted = 1_000_000;
        let got = rate(&mut world, &listener, Some(OptionValue::Int(wanted)));
        let dropped = world.hosts[0].counters().get("QDISC_DROP").unwrap_or(0);
        println!("{got} of {wanted} bytes per second, {dropped} dropped");
        assert!(dropped > 10, "{dropped}");
        assert!(got > 900_000, "{got} of {wanted}, {dropped} dropped");
    }

    /// Returns the timer counts of so many paced connections: packets sent, entries that became
    /// due, and turns that found any.
    fn timers(connections: usize) -> (u64, u64, u64) {
        const SEGMENTS: usize = 10;
        let mut world = World::with_memory(7, 1 << 30);
        world.join(&WireConfig::default()).expect("a valid wire");
        let (near, listener) = (Arc::clone(&world.hosts[0]), listen(&mut world, 80));
        near.set_sysctl("net.quietline.dev.default.gso", "0").expect("a setting");
        let mut ends = Vec::new();
        let data = vec![7; MSS * UNPACED.max(SEGMENTS)];
        let mut buffer = data.clone();
        for number in 0..connections {
            let (client, server) = connect(&mut world, &listener);
            client.with_tcb(&near, &mut world.cx, |tcb, _| tcb.set_sndbuf(1 << 18));
            // A segment in 10 to 20 ms, at different times for each connection.
            let wanted = u64::try_from(MSS * (50 + number * 50 / connections)).expect("small");
            set_pace(&mut world, &client, OptionValue::Long(wanted));
            let (far, data) = (Arc::clone(&world.hosts[1]), &data[..MSS * UNPACED]);
            assert_eq!(client.send(&near, &mut world.cx, &[IoSlice::new(data)]), Ok(data.len()));
            world.settle();
            assert_eq!(server.recv(&far, &mut world.cx, &mut buffer, false), Ok(data.len()));
            ends.push((client, server));
        }
        let count = |world: &World, counter| world.hosts[0].counters().stack(counter);
        let segments =
            |world: &World| world.hosts[0].counters().tcp(tcp::Counter::TcpExtTCPOrigDataSent);
        let before = [Counter::TimerExpired, Counter::TimerRuns].map(|it| count(&world, it));
        let sent = segments(&world);
        for (client, _) in &ends {
            let data = &data[..MSS * SEGMENTS];
            assert_eq!(client.send(&near, &mut world.cx, &[IoSlice::new(data)]), Ok(data.len()));
        }
        world.pass(Duration::from_millis(500));
        let [entries, runs] = [Counter::TimerExpired, Counter::TimerRuns];
        let (entries, runs) = (count(&world, entries) - before[0], count(&world, runs) - before[1]);
        let paced = segments(&world) - sent;
        assert_eq!(paced, (connections * SEGMENTS) as u64, "all of it has left");
        let far = Arc::clone(&world.hosts[1]);
        for (client, server) in ends {
            client.abort(&near, &mut world.cx);
            server.abort(&far, &mut world.cx);
        }
        (paced, entries, runs)
    }

    /// Many pacing timers cause no storm: the timers of all connections of a core are in one wheel,
    /// and entries of one tick are due together. The core wakes for them once per tick at most; for
    /// one connection it wakes once per packet.
    #[test]
    fn pacing_timers_of_one_tick_are_due_together() {
        for connections in [1, 100, 10_000] {
            let (paced, entries, runs) = timers(connections);
            let per_thousand = |count: u64| count * 1000 / paced;
            println!(
                "{connections:>6} connections: {paced} packets held to a pace; {} timers and {} timer turns per 1000",
                per_thousand(entries),
                per_thousand(runs),
            );
            // One tick is 1.05 ms. The other bound is one turn per packet.
            let ticks = Duration::from_millis(500).as_nanos() >> 20;
            assert!(u128::from(runs) <= ticks + 1, "{runs} of {ticks}");
            assert!(runs <= paced + 10, "{runs} of {paced}");
            // Few entries are stale: each packet is one entry, each connection some.
            assert!(entries <= paced + 10 * connections as u64, "{entries} for {paced}");
        }
    }
}
