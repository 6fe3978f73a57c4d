//! TCP Small Queues in virtual time: the queue below a bulk sender, with the limit and without, and
//! the throughput.
//!
//! `cargo test -p quietline-sim --test small_queues -- --nocapture` prints the table: rate,
//! superframes, completion delay, and the resulting delay and throughput.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
    };
    use stack::{
        base::counters::Counter,
        device::{Impairment, QueueId, Waits, Wire, WireConfig},
        host::config::{DeviceConfig, HostConfig},
    };
    use tcp::Counter as TcpCounter;

    const MBIT: u64 = 1_000_000;
    /// Completion as soon as the packet has left.
    const PROMPT: Duration = Duration::from_nanos(1);

    /// Longest transfer in bytes.
    const MOST: u64 = 16_000_000;

    /// One bulk transfer.
    #[derive(Clone, Copy, Debug)]
    struct Setup {
        rate_bps: u64,
        /// Whether the device takes superframes; otherwise single segments.
        superframes: bool,
        completion_delay: Duration,
        tsq_limit: &'static str,
        /// `tcp_limit_output_bytes`, if it differs from the mode's.
        limit_bytes: Option<u32>,
        /// `net.quietline.dev_orphan`.
        dev_orphan: &'static str,
        /// `net.quietline.hystart_detect`.
        hystart_detect: &'static str,
    }

    impl Setup {
        fn new(rate_bps: u64, superframes: bool, completion_delay: Duration) -> Self {
            Self {
                rate_bps,
                superframes,
                completion_delay,
                tsq_limit: "static131072_ge",
                limit_bytes: None,
                dev_orphan: "completion",
                // An ACK train would end slow start at a window that does not fill a small queue
                // for seconds.
                hystart_detect: "delay",
            }
        }
    }

    #[derive(Debug)]
    struct Outcome {
        /// Queueing delays of the packets before the link, after slow start.
        waits: Waits,
        /// Their mean.
        wait: Duration,
        /// Most bytes of truesize below the socket.
        most_below: u32,
        /// Share of the link's rate that arrived as payload, with headers and framing counted as
        /// used.
        utilization: f64,
        throttled: u64,
    }

    /// Bytes that a frame with 1,448 bytes of payload occupies on the link.
    const FRAME: u64 = 1538;
    const PAYLOAD: u64 = 1448;
    /// Truesize of its packet.
    const TRUESIZE: u64 = 2152;

    /// Makes two hosts on a wire; the first has the settings of `setup`.
    fn world(setup: Setup) -> (World, Arc<Wire>) {
        let forward = Impairment {
            rate_bps: Some(setup.rate_bps),
            completion_delay: setup.completion_delay,
            // The length of `pfifo_fast`.
            queue_packets: 1000,
            ..Impairment::default()
        };
        let wire = WireConfig { tso: setup.superframes, forward, ..WireConfig::default() };
        let (left, right) = Wire::pair(&wire).expect("a valid wire");
        let mut world = World::new(7);
        for (index, end) in [Arc::clone(&left), right].into_iter().enumerate() {
            let addresses = vec![format!("10.0.0.{}/24", index + 1).parse().expect("an address")];
            let devices = vec![DeviceConfig { device: end, addresses }];
            world
                .add_host(HostConfig { devices, cores: 1, ..HostConfig::replay(0) })
                .expect("valid");
        }
        let set = |name: &str, value: &str| {
            world.hosts[0].set_sysctl(name, value).expect("a setting");
        };
        set("net.quietline.tsq_limit", setup.tsq_limit);
        if let Some(bytes) = setup.limit_bytes {
            set("net.ipv4.tcp_limit_output_bytes", &bytes.to_string());
        }
        set("net.quietline.dev_orphan", setup.dev_orphan);
        set("net.quietline.hystart_detect", setup.hystart_detect);
        // The queue is measured in the wire.
        set("net.quietline.dev.default.qdisc", "noqueue");
        // Autocorking stops senders, too.
        set("net.ipv4.tcp_autocorking", "0");
        set("net.quietline.dev.default.gso", if setup.superframes { "1" } else { "0" });
        (world, left)
    }

    fn transfer(setup: Setup) -> Outcome {
        let (mut world, wire) = world(setup);
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        // Two seconds of the link, but no more than is quick to simulate. Superframes are quick,
        // and two seconds of a slow link are too few of them for a distribution.
        let length = if setup.superframes { MOST } else { (setup.rate_bps / 4).min(MOST) };
        let mut sender = Sender::new(0, Arc::clone(&client), Pattern(1), length);
        let mut receiver = Receiver::new(1, Arc::clone(&server), Pattern(1), 1 << 20);
        let (mut most_below, mut warm) = (0, false);
        let start = world.elapsed();
        let mut end = None;
        let done = world.run(Duration::from_secs(600), |world| {
            let sent = sender.step(world);
            let ended = receiver.step(world);
            most_below = most_below.max(client.wmem_alloc());
            if !warm && receiver.received() > length / 3 {
                warm = true;
                wire.take_waits(QueueId(0));
            }
            // Completions after the end do not count as throughput.
            if ended && end.is_none() {
                end = Some(world.elapsed());
            }
            sent && ended && client.wmem_alloc() == 0
        });
        done.unwrap_or_else(|stalled| panic!("{setup:?}: {stalled:?}"));
        let took = end.expect("it has ended") - start;
        let bits = length * 8 / PAYLOAD * FRAME;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let utilization = bits as f64 / took.as_secs_f64() / setup.rate_bps as f64;
        let waits = wire.take_waits(QueueId(0));
        Outcome {
            waits,
            wait: waits.mean(),
            most_below,
            utilization,
            throttled: world.hosts[0].counters().stack(Counter::TsqThrottled),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    fn float(number: u64) -> f64 {
        number as f64
    }

    fn show(setup: Setup, outcome: &Outcome) {
        println!(
            "{:>5} Mbit/s, superframes {:>5}, completion {:>5?}, {:>15}: waits {:>8.3} ms, \
             half {:>8.3}, 99 % {:>8.3}, longest {:>8.3}, {:>8} bytes below, {:>5.1} % of the \
             link, throttled {}",
            setup.rate_bps / MBIT,
            setup.superframes,
            setup.completion_delay,
            setup.tsq_limit,
            outcome.wait.as_secs_f64() * 1e3,
            outcome.waits.quantile(50).as_secs_f64() * 1e3,
            outcome.waits.quantile(99).as_secs_f64() * 1e3,
            outcome.waits.longest.as_secs_f64() * 1e3,
            outcome.most_below,
            outcome.utilization * 100.0,
            outcome.throttled,
        );
    }

    /// Returns delay and throughput of one sender, with the limit of the seed and without.
    fn compare(rate_bps: u64, superframes: bool, completion_delay: Duration) -> (Outcome, Outcome) {
        let setup =
            |tsq_limit| Setup { tsq_limit, ..Setup::new(rate_bps, superframes, completion_delay) };
        let [off, seed] = ["off", "static131072_ge"].map(|tsq_limit| {
            let outcome = transfer(setup(tsq_limit));
            show(setup(tsq_limit), &outcome);
            outcome
        });
        assert_eq!(off.throttled, 0);
        assert!(seed.throttled > 100);
        assert!(seed.utilization >= 0.99 * off.utilization, "{seed:?} {off:?}");
        (off, seed)
    }

    /// Asserts that no packet waits longer than the link takes for the bytes that the limit of
    /// 131,072 admits in front of it, one packet beyond (TSQ2), and the packet that the link has
    /// begun, and that without a limit half of the packets wait longer than twice that.
    fn assert_no_packet_waits_longer(off: &Outcome, seed: &Outcome, setup: Setup) {
        let limit = 131_072;
        let ahead = if setup.superframes {
            limit * FRAME / PAYLOAD
        } else {
            (limit.div_ceil(TRUESIZE) + 2) * FRAME
        };
        let bound = Duration::from_secs_f64(float(ahead * 8) / float(setup.rate_bps));
        for Outcome { waits, .. } in [off, seed] {
            assert!(waits.packets > 100 && waits.longest >= waits.mean(), "{waits:?}");
            assert_eq!(waits.histogram.iter().sum::<u64>(), waits.packets, "{waits:?}");
        }
        assert!(seed.waits.longest <= bound, "{bound:?} {seed:?}");
        // In two seconds at 10 Mbit/s the window of slow start is the whole queue.
        let is_short = setup.rate_bps == 10 * MBIT && !setup.superframes;
        let half = off.waits.quantile(50);
        assert!(is_short || half > 2 * seed.waits.longest, "{off:?} {seed:?}");
    }

    /// TSQ9: the delay is below 1 ms at 1 Gbit/s and below 8 ms at 100 Mbit/s, with superframes and
    /// without, at no cost in throughput.
    #[test]
    fn a_bulk_sender_keeps_its_queue_short_and_its_throughput() {
        for superframes in [false, true] {
            for completion_delay in [PROMPT, Duration::from_micros(50)] {
                for (rate_bps, limit_ms) in [(10, 80), (100, 8), (1000, 1), (10_000, 1)] {
                    let (off, seed) = compare(rate_bps * MBIT, superframes, completion_delay);
                    assert!(seed.wait < Duration::from_millis(limit_ms), "{seed:?}");
                    let setup = Setup::new(rate_bps * MBIT, superframes, completion_delay);
                    assert_no_packet_waits_longer(&off, &seed, setup);
                    // At 10 Mbit/s the window of slow start is the whole queue.
                    assert!(rate_bps == 10 || off.wait > 5 * seed.wait, "{off:?} {seed:?}");
                    // A thousand packets of the discipline, single segments or superframes.
                    let most = Duration::from_millis(if superframes { 250 } else { 130 });
                    let full = Duration::from_millis(30)..most;
                    assert!(rate_bps != 100 || full.contains(&off.wait), "{off:?}");
                }
            }
        }
    }

    /// TSQ8: a device that orphans packets when it takes them defeats small queues at any
    /// limit.
    #[test]
    fn a_device_that_orphans_keeps_a_bulk_sender_s_whole_queue() {
        for rate_bps in [10, 100, 1000, 10_000] {
            for superframes in [false, true] {
                let held = Setup::new(rate_bps * MBIT, superframes, PROMPT);
                let orphaned = Setup { dev_orphan: "xmit", ..held };
                let [held, orphaned] = [held, orphaned].map(|setup| {
                    let outcome = transfer(setup);
                    show(setup, &outcome);
                    outcome
                });
                // The entry of the tasklet's list counts as one byte.
                assert!(orphaned.throttled == 0 && orphaned.most_below <= 1, "{orphaned:?}");
                assert!(orphaned.utilization >= 0.99 * held.utilization, "{held:?} {orphaned:?}");
                // At 10 Mbit/s the window of slow start is the whole queue.
                assert!(rate_bps == 10 || orphaned.wait > 5 * held.wait, "{held:?} {orphaned:?}");
            }
        }
    }

    /// Without a limit late completions stop no sender, and keep no queue short.
    #[test]
    fn late_completions_without_a_limit_cost_no_throughput() {
        for superframes in [false, true] {
            for rate_bps in [10 * MBIT, 100 * MBIT, 1000 * MBIT, 10_000 * MBIT] {
                let off = Setup { tsq_limit: "off", ..Setup::new(rate_bps, superframes, PROMPT) };
                let prompt = transfer(off);
                show(off, &prompt);
                for delay_ms in [1, 4] {
                    let setup = Setup { completion_delay: Duration::from_millis(delay_ms), ..off };
                    let late = transfer(setup);
                    show(setup, &late);
                    assert_eq!(late.throttled, 0);
                    assert!(late.utilization >= 0.99 * prompt.utilization, "{prompt:?} {late:?}");
                    assert!(late.wait * 2 > prompt.wait, "{prompt:?} {late:?}");
                }
            }
        }
    }

    /// Late completions throttle the sender by the uncompleted bytes: the throughput is the limit
    /// divided by the delay, if that is less than the link's rate.
    #[test]
    fn late_completions_bound_the_throughput_by_the_limit() {
        for superframes in [false, true] {
            for delay_ms in [1, 4] {
                for rate_bps in [10 * MBIT, 100 * MBIT, 1000 * MBIT, 10_000 * MBIT] {
                    let delay = Duration::from_millis(delay_ms);
                    let setup = Setup::new(rate_bps, superframes, delay);
                    let outcome = transfer(setup);
                    show(setup, &outcome);
                    let bits = float(131_072 * 8 * FRAME / TRUESIZE);
                    let bound = (bits / delay.as_secs_f64() / float(rate_bps)).min(1.0);
                    assert!(outcome.utilization > 0.8 * bound, "{bound} {outcome:?}");
                    let limit = Duration::from_secs_f64(960_000.0 / float(rate_bps));
                    assert!(outcome.wait < limit, "{limit:?} {outcome:?}");
                }
            }
        }
    }

    /// Completions 4 ms late at 100 Mbit/s. A limit of a millisecond of the pacing rate is below
    /// that and costs throughput; an extra packet allowed with none or one in flight lets ACKs
    /// drive the sender.
    #[test]
    fn the_exception_for_an_empty_flight_outweighs_late_completions() {
        let setup = Setup::new(100 * MBIT, false, Duration::from_millis(4));
        let millisecond = Some(12_500);
        let [strict, exempt, exempt_with_one] =
            [("static131072_ge", millisecond), ("dyn_min2", None), ("v619", None)].map(
                |(tsq_limit, limit_bytes)| {
                    let setup = Setup { tsq_limit, limit_bytes, ..setup };
                    let outcome = transfer(setup);
                    show(setup, &outcome);
                    outcome
                },
            );
        assert!(strict.utilization < 0.5, "{strict:?}");
        assert!(exempt.utilization > 0.9, "{exempt:?}");
        assert!(exempt_with_one.utilization > 0.99, "{exempt_with_one:?}");
    }

    /// The defaults (CUBIC, `v619`): an ACK train ends slow start when its queue is a millisecond
    /// long, and with it the pacing rate of twice the link, whose millisecond is the limit. A
    /// kernel sender keeps 2 to 2.7 ms at 1 Gbit/s on a real queue.
    #[test]
    fn by_default_a_bulk_sender_keeps_about_a_millisecond_at_1_gbit() {
        for superframes in [false, true] {
            let [delay, both] = ["delay", "both"].map(|hystart_detect| {
                let setup = Setup::new(1000 * MBIT, superframes, PROMPT);
                let setup = Setup { tsq_limit: "v619", hystart_detect, ..setup };
                let outcome = transfer(setup);
                show(setup, &outcome);
                outcome
            });
            assert!(both.wait < Duration::from_millis(2), "{both:?}");
            assert!(both.wait < delay.wait, "{delay:?} {both:?}");
            assert!(both.utilization > 0.98, "{both:?}");
        }
    }

    /// Makes many small writes on a slow link, with `tcp_autocorking` or without. Returns the
    /// number of data segments, and of writes held back.
    fn small_writes(autocorking: &str) -> (u64, u64) {
        let setup = Setup { tsq_limit: "off", ..Setup::new(10 * MBIT, true, PROMPT) };
        let (mut world, _) = world(setup);
        world.hosts[0].set_sysctl("net.ipv4.tcp_autocorking", autocorking).expect("a setting");
        let host = Arc::clone(&world.hosts[0]);
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        client.with_tcb(&host, &mut world.cx, |tcb, _| tcb.set_nodelay(true));
        let (mut written, mut read) = (0, 0);
        let bytes = [7; 100];
        let mut buffer = [0; 4096];
        let done = world.run(Duration::from_secs(60), |world| {
            if written < 1000 && client.send(&host, &mut world.cx, &[IoSlice::new(&bytes)]).is_ok()
            {
                written += 1;
            }
            let peer = Arc::clone(&world.hosts[1]);
            while let Ok(more @ 1..) = server.recv(&peer, &mut world.cx, &mut buffer, false) {
                read += more;
            }
            read == 100_000
        });
        done.unwrap_or_else(|stalled| panic!("{stalled:?}"));
        let counters = host.counters();
        client.abort(&host, &mut world.cx);
        server.abort(&world.hosts[1].clone(), &mut world.cx);
        listener.close(&world.hosts[1].clone(), &mut world.cx);
        let count = |counter| counters.tcp(counter);
        (count(TcpCounter::TcpExtTCPOrigDataSent), count(TcpCounter::TcpExtTCPAutoCorking))
    }

    /// `tcp_autocorking`: while a packet waits for the link, written data is added to the next one.
    #[test]
    fn small_writes_are_combined_while_a_packet_is_queued() {
        let (corked, held) = small_writes("1");
        let (free, never) = small_writes("0");
        println!("1000 writes: {corked} segments and {held} held back, without {free}");
        assert_eq!(never, 0);
        assert!(held > 100, "{held}");
        assert!(corked * 2 < free, "{corked} {free}");
    }
}
