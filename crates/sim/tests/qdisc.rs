//! Hosts with queueing disciplines in front of their devices, in virtual time.
//!
//! `cargo test -p quietline-sim --test qdisc -- --nocapture` prints the figures.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
        suite::Version,
    };
    use stack::{
        Errno,
        device::{Impairment, WireConfig},
        socket::{
            Connection,
            options::{OptionValue, SocketOption},
        },
        transmit::tx_queue::TxQueueStats,
    };

    const MBIT: u64 = 1_000_000;

    /// A link with a ring of 64 slots at the sender's end and a delay of a millisecond. Frames
    /// occupy it one by one.
    fn link(rate_bps: u64) -> WireConfig {
        let delay = Duration::from_millis(1);
        let forward = Impairment {
            rate_bps: Some(rate_bps),
            ring_packets: Some(64),
            delay,
            ..Impairment::default()
        };
        let backward = Impairment { delay, ..Impairment::default() };
        WireConfig { tso: false, forward, backward, ..WireConfig::default() }
    }

    fn world(wire: &WireConfig, settings: &[(&str, &str)]) -> World {
        let world = World::pair(7, wire).expect("a valid wire");
        world.set(0, settings);
        world
    }

    /// Returns the statistics of the first host's transmit queue.
    fn queue(world: &mut World) -> TxQueueStats {
        let host = Arc::clone(&world.hosts[0]);
        host.tx_queue_stats(&mut world.cx).pop().expect("a row for the wire")
    }

    /// A request of one byte, answered by one byte, repeatedly.
    struct Exchange {
        client: Arc<Connection>,
        server: Arc<Connection>,
        sent_at: Option<Duration>,
        took: Vec<Duration>,
    }

    impl Exchange {
        fn read(world: &mut World, host: usize, socket: &Connection) -> bool {
            let host = Arc::clone(&world.hosts[host]);
            match socket.recv(&host, &mut world.cx, &mut [0; 1], false) {
                Ok(read) => read == 1,
                Err(Errno::EAGAIN) => false,
                Err(error) => panic!("recv: {error}"),
            }
        }

        fn write(world: &mut World, host: usize, socket: &Connection) {
            let host = Arc::clone(&world.hosts[host]);
            assert_eq!(socket.send(&host, &mut world.cx, &[IoSlice::new(&[1])]), Ok(1));
        }

        fn step(&mut self, world: &mut World) {
            if Self::read(world, 1, &self.server) {
                Self::write(world, 1, &self.server);
            }
            match self.sent_at {
                Some(at) if Self::read(world, 0, &self.client) => {
                    self.took.push(world.elapsed() - at);
                    self.sent_at = None;
                }
                Some(_) => {}
                None => {
                    self.sent_at = Some(world.elapsed());
                    Self::write(world, 0, &self.client);
                }
            }
        }

        fn median(&mut self) -> Duration {
            self.took.sort_unstable();
            self.took[self.took.len() / 2]
        }
    }

    #[derive(Debug)]
    struct Beside {
        /// Median duration of the exchange.
        median: Duration,
        /// Largest backlog of the discipline.
        backlog: u64,
        /// Bits per second of payload of the bulk transfer.
        bulk_bps: u64,
        /// Bits per second of payload at which the link counts as full.
        full_bps: u64,
    }

    /// Runs a bulk transfer and an exchange over one link of 100 Mbit/s.
    fn beside(settings: &[(&str, &str)]) -> Beside {
        const WARM: Duration = Duration::from_secs(2);
        const TIME: Duration = Duration::from_secs(2);
        // Congestion control without a delay signal: only the host can keep the queue short.
        let mut all = vec![("net.ipv4.tcp_congestion_control", "reno")];
        all.extend(settings);
        let mut world = world(&link(100 * MBIT), &all);
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        let (asks, answers) = connect(&mut world, &listener);
        let mut sender = Sender::new(0, client, Pattern(1), u64::MAX);
        let mut receiver = Receiver::new(1, server, Pattern(1), 1 << 20);
        let (sent_at, took) = (None, Vec::new());
        let mut exchange = Exchange { client: asks, server: answers, sent_at, took };
        let start = world.elapsed();
        let (mut backlog, mut warm) = (0, None);
        let done = world.run(Duration::from_secs(60), |world| {
            sender.step(world);
            receiver.step(world);
            exchange.step(world);
            backlog = backlog.max(queue(world).stats.backlog_bytes);
            let elapsed = world.elapsed() - start;
            if warm.is_none() && elapsed >= WARM {
                exchange.took.clear();
                warm = Some(receiver.received());
            }
            elapsed >= WARM + TIME
        });
        done.unwrap_or_else(|stalled| panic!("{settings:?}: {stalled:?}"));
        let received = receiver.received() - warm.expect("past the beginning");
        let bulk_bps = received * 8 / TIME.as_secs();
        // 1,448 bytes of a frame are payload. With IPv6, the frame has 20 bytes more. A percent is
        // left for ACKs and for the times without data.
        let frame = if world.version() == Version::V4 { 1538 } else { 1558 };
        let full_bps = (100 * 1448 / frame - 1) * MBIT;
        let outcome = Beside { median: exchange.median(), backlog, bulk_bps, full_bps };
        println!("{settings:?}: {outcome:?}");
        outcome
    }

    /// A bulk sender's queue stays below its limit plus one packet, and a concurrent exchange is
    /// short: within 10 ms where TCP makes single segments. Two superframes alone occupy this link
    /// for 11 ms, and the packet that passes the limit is a third. Without small queues a band
    /// holds 1,000 packets: single segments of at most 123 ms, and reno is at half of that as
    /// often.
    #[test]
    fn small_queues_keep_an_exchange_beside_bulk_short() {
        const PACKET: u64 = 70 * 1024;
        let seed = [
            ("net.quietline.tsq_limit", "static131072_ge"),
            ("net.ipv4.tcp_limit_output_bytes", "131072"),
        ];
        for (gso, median, without) in [("0", 10, 50), ("1", 25, 100)] {
            for mode in [&seed[..], &[]] {
                let mut settings = vec![("net.quietline.dev.default.gso", gso)];
                settings.extend(mode);
                let with = beside(&settings);
                assert!(with.median < Duration::from_millis(median), "{with:?}");
                assert!(with.backlog <= 131_072 + PACKET, "{with:?}");
                assert!(with.bulk_bps >= with.full_bps, "{with:?}");
            }
            let off = [("net.quietline.dev.default.gso", gso), ("net.quietline.tsq_limit", "off")];
            let off = beside(&off);
            assert!(off.median > Duration::from_millis(without), "{off:?}");
        }
    }

    /// Counters that Linux does not have: the bytes below a bulk sender, their delay, and the time
    /// for which the sender was stopped.
    #[test]
    fn histograms_show_the_queue_below_a_bulk_sender() {
        const LENGTH: u64 = 20_000_000;
        let run = |tsq_limit| {
            let settings = [
                ("net.quietline.tsq_limit", tsq_limit),
                ("net.quietline.dev.default.gso", "0"),
                ("net.ipv4.tcp_congestion_control", "reno"),
            ];
            let mut world = world(&link(100 * MBIT), &settings);
            let time = transfer(&mut world, LENGTH, |_, _| {});
            let counters = world.hosts[0].counters();
            let sum = |prefix: &str| -> Vec<u64> {
                let rows = counters.iter().filter(|(name, _)| name.starts_with(prefix));
                rows.map(|(_, value)| value).collect()
            };
            let bytes = sum("HostQueueBytes");
            // The last element is no bucket but their sum.
            let mut delays = sum("HostQueueDelay");
            let micros = delays.pop().expect("a sum");
            let mean = Duration::from_micros(micros / delays.iter().sum::<u64>().max(1));
            let stopped = counters.get("TsqThrottledMicros").expect("a counter");
            println!("{tsq_limit}: {bytes:?} {delays:?} {mean:?}, stopped {stopped} of {time:?}");
            (bytes, delays, mean, Duration::from_micros(stopped), time)
        };
        let (bytes, delays, mean, stopped, time) = run("static131072_ge");
        assert!(bytes[4] > bytes.iter().sum::<u64>() / 2, "64 to 256 KB: {bytes:?}");
        assert_eq!(bytes[5..], [0, 0], "never more than the limit and one packet");
        assert!(delays[3] > delays.iter().sum::<u64>() / 2, "1 to 10 ms: {delays:?}");
        assert!((2..8).contains(&mean.as_millis()), "57 packets are 7 ms: {mean:?}");
        assert!(stopped > time / 2 && stopped <= time, "{stopped:?} of {time:?}");
        let (bytes, delays, mean, stopped, _) = run("off");
        assert!(
            bytes[5] + bytes[6] > 0 && delays[4] + delays[5] > delays[3],
            "{bytes:?} {delays:?}"
        );
        assert!(mean > Duration::from_millis(30), "{mean:?}");
        assert_eq!(stopped, Duration::ZERO);
    }

    /// The defaults: CUBIC sees the queue of its superframes, ends slow start, and with it the
    /// pacing rate that doubles the limit of small queues.
    #[test]
    fn an_exchange_beside_bulk_is_short_by_default() {
        for gso in ["0", "1"] {
            let cubic = ("net.ipv4.tcp_congestion_control", "cubic");
            let outcome = beside(&[cubic, ("net.quietline.dev.default.gso", gso)]);
            assert!(outcome.median < Duration::from_millis(10), "{gso}: {outcome:?}");
            assert!(outcome.backlog <= 200 * 1024, "{gso}: {outcome:?}");
            assert!(outcome.bulk_bps >= outcome.full_bps, "{gso}: {outcome:?}");
        }
    }

    /// Where TCP does not keep its queue short, disciplines that serve flows in turn keep other
    /// flows out of it.
    #[test]
    fn fair_queueing_keeps_an_exchange_out_of_the_queue_of_bulk() {
        for qdisc in ["fq flow_limit 10000", "fq_codel"] {
            let settings =
                [("net.quietline.tsq_limit", "off"), ("net.quietline.dev.default.qdisc", qdisc)];
            let outcome = beside(&settings);
            assert!(outcome.median < Duration::from_millis(10), "{qdisc}: {outcome:?}");
            assert!(outcome.bulk_bps > 70 * MBIT, "{qdisc}: {outcome:?}");
        }
    }

    /// Transfers `length` bytes as fast as possible.
    fn transfer(
        world: &mut World,
        length: u64,
        prepare: impl FnOnce(&mut World, &Connection),
    ) -> Duration {
        let listener = listen(world, 80);
        let (client, server) = connect(world, &listener);
        prepare(world, &client);
        let mut sender = Sender::new(0, client, Pattern(1), length);
        let mut receiver = Receiver::new(1, server, Pattern(1), 1 << 20);
        let start = world.elapsed();
        let done = world.run(Duration::from_secs(600), |world| {
            let sent = sender.step(world);
            receiver.step(world) && sent
        });
        done.unwrap_or_else(|stalled| panic!("{stalled:?}: {:?}", queue(world)));
        world.elapsed() - start
    }

    fn megabits(length: u64, time: Duration) -> u64 {
        u64::try_from(u128::from(length) * 8 / time.as_micros()).expect("a rate")
    }

    /// The token bucket is the bottleneck, on the sender's side of the link.
    #[test]
    fn a_token_bucket_bounds_the_rate() {
        let qdisc = "tbf rate 50mbit burst 20kb latency 50ms";
        let settings = [("net.quietline.dev.default.qdisc", qdisc)];
        let mut world = world(&link(1000 * MBIT), &settings);
        let time = transfer(&mut world, 10_000_000, |_, _| {});
        let rate = megabits(10_000_000, time);
        assert!((45..=50).contains(&rate), "{rate} Mbit/s");
        let row = queue(&mut world);
        assert!(row.stats.overlimits > 0, "{row}");
        assert_eq!(row.stats.backlog_bytes, 0);
    }

    /// A queue that is too short drops packets; TCP is notified at once and continues.
    #[test]
    fn drops_of_a_discipline_make_tcp_slow_down() {
        let settings = [
            ("net.quietline.tsq_limit", "off"),
            ("net.quietline.dev.default.qdisc", "tbf rate 50mbit burst 10kb limit 30kb"),
        ];
        let mut world = world(&link(1000 * MBIT), &settings);
        let time = transfer(&mut world, 10_000_000, |_, _| {});
        let rate = megabits(10_000_000, time);
        assert!(rate > 15, "{rate} Mbit/s");
        let counters = world.hosts[0].counters();
        assert!(counters.get("QDISC_DROP").unwrap_or(0) > 0);
        assert_eq!(counters.get("QDISC_DROP"), Some(queue(&mut world).stats.drops));
    }

    /// `SO_MAX_PACING_RATE` where `fq` holds the packets: TCP only sets their departure times.
    #[test]
    fn fq_holds_packets_to_the_pace_that_tcp_stamps() {
        let settings = [("net.quietline.dev.default.qdisc", "fq")];
        let mut world = world(&link(1000 * MBIT), &settings);
        // Two megabytes per second.
        let time = transfer(&mut world, 10_000_000, |world, client| {
            let host = Arc::clone(&world.hosts[0]);
            let rate = OptionValue::Int(2_000_000);
            client
                .set_option(&host, &mut world.cx, SocketOption::MaxPacingRate, &rate)
                .expect("a pace");
        });
        let rate = megabits(10_000_000, time);
        assert!((15..=16).contains(&rate), "{rate} Mbit/s");
        assert!(queue(&mut world).stats.overlimits > 100, "{}", queue(&mut world));
    }

    /// BBR paces itself over `fq` as it does with its own timers.
    #[test]
    fn bbr_fills_the_link_over_fq() {
        for qdisc in ["fq", "pfifo_fast"] {
            let settings = [
                ("net.quietline.dev.default.qdisc", qdisc),
                ("net.ipv4.tcp_congestion_control", "bbr"),
            ];
            let mut world = world(&link(100 * MBIT), &settings);
            let time = transfer(&mut world, 20_000_000, |_, _| {});
            let rate = megabits(20_000_000, time);
            assert!(rate >= 75, "{qdisc}: {rate} Mbit/s");
        }
    }

    /// `SO_PRIORITY` and `IP_TOS` choose the band.
    #[test]
    fn an_urgent_connection_overtakes_bulk() {
        for (option, value) in [(SocketOption::Priority, 6), (SocketOption::TypeOfService, 0x10)] {
            let settings =
                [("net.quietline.tsq_limit", "off"), ("net.ipv4.tcp_congestion_control", "reno")];
            let mut world = world(&link(100 * MBIT), &settings);
            let listener = listen(&mut world, 80);
            let (client, server) = connect(&mut world, &listener);
            let (asks, answers) = connect(&mut world, &listener);
            let host = Arc::clone(&world.hosts[0]);
            asks.set_option(&host, &mut world.cx, option, &OptionValue::Int(value))
                .expect("no privilege is needed");
            let mut sender = Sender::new(0, client, Pattern(1), u64::MAX);
            let mut receiver = Receiver::new(1, server, Pattern(1), 1 << 20);
            let (sent_at, took) = (None, Vec::new());
            let mut exchange = Exchange { client: asks, server: answers, sent_at, took };
            let start = world.elapsed();
            let done = world.run(Duration::from_secs(60), |world| {
                sender.step(world);
                receiver.step(world);
                exchange.step(world);
                world.elapsed() - start > Duration::from_secs(2)
            });
            assert!(done.is_ok());
            let waits = queue(&mut world).stats.backlog_bytes;
            assert!(waits > 500_000, "bulk waits: {waits}");
            assert!(exchange.median() < Duration::from_millis(20), "{:?}", exchange.median());
        }
    }

    /// TSQ8: a device that orphans packets when it takes them defeats TCP Small Queues; a byte
    /// queue limit keeps the device's queue short, and packets in front of it are charged again.
    #[test]
    fn an_orphaning_device_is_kept_short_by_its_byte_limit_only() {
        let run = |orphan, qdisc| {
            let settings = [
                ("net.quietline.dev_orphan", orphan),
                ("net.quietline.dev.default.qdisc", qdisc),
                ("net.ipv4.tcp_congestion_control", "reno"),
            ];
            let mut wire = link(100 * MBIT);
            wire.forward.ring_packets = Some(100_000);
            let mut world = world(&wire, &settings);
            let listener = listen(&mut world, 80);
            let (client, server) = connect(&mut world, &listener);
            let mut sender = Sender::new(0, Arc::clone(&client), Pattern(1), u64::MAX);
            let mut receiver = Receiver::new(1, server, Pattern(1), 1 << 20);
            let start = world.elapsed();
            let (mut wmem, mut inflight) = (0, 0);
            let done = world.run(Duration::from_secs(60), |world| {
                sender.step(world);
                receiver.step(world);
                wmem = wmem.max(client.wmem_alloc());
                inflight = inflight.max(queue(world).bql_inflight.unwrap_or(0));
                world.elapsed() - start > Duration::from_secs(2)
            });
            assert!(done.is_ok());
            let srtt = client.with_tcb(&world.hosts[0], &mut world.cx, |tcb, _| {
                tcb.info().rtt.unwrap_or_default()
            });
            println!("{orphan} {qdisc}: {wmem} bytes below, {inflight} in the device, {srtt:?}");
            (wmem, inflight, srtt)
        };
        let (wmem, _, srtt) = run("xmit", "noqueue");
        assert!(wmem <= 1, "at most an entry of the tasklet is the socket's: {wmem}");
        assert!(srtt > Duration::from_millis(100), "nothing bounds the ring: {srtt:?}");
        let (wmem, inflight, srtt) = run("xmit", "pfifo_fast");
        assert!(wmem > 0 && inflight > 0);
        assert!(srtt < Duration::from_millis(50), "the byte limit does: {srtt:?}");
        let (_, _, srtt) = run("completion", "noqueue");
        assert!(srtt < Duration::from_millis(30), "the socket's limit does: {srtt:?}");
    }
}
