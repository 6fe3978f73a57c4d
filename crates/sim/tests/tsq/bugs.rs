//! Defects of small queues in other stacks and in versions of Linux, each with the test that
//! detects it. Lost wake-ups are races, whose tests are in `sync::small_queue`; a close and an
//! owned socket are in `scenarios`; late completions need a link (`small_queues`).

use std::{
    io::IoSlice,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, PacketOwner};
use sim::apps;
use stack::base::counters::Counter;

use super::manual_device::Lab;

/// With `TCP_NODELAY` the TSQ run sends the small tail, too, and does not leave it to an ACK or the
/// timer.
#[test]
fn a_small_tail_without_nagle_leaves_with_the_run() {
    let mut lab = Lab::new(&[]);
    lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_nodelay(true));
    lab.device.set_mute(true);
    // With small segments in flight, Nagle would hold another.
    lab.write(100);
    lab.write(150_000);
    lab.world.settle();
    let unsent = |lab: &mut Lab| {
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info().notsent_bytes)
    };
    assert!(unsent(&mut lab) > 0, "the limit holds the rest");
    while lab.device.len() > 0 {
        lab.complete(1);
    }
    assert_eq!(unsent(&mut lab), 0, "without an ACK, and at the same moment");
    lab.finish();
}

/// A device that completes a packet only when the next one arrives must stop neither autocorking
/// nor the limit forever. Without the exception for an empty flight, a small packet behind a large
/// one waited for the persist timer.
#[test]
fn a_device_that_keeps_its_last_packet_stops_no_sender() {
    // The first version has no exception: at a limit that one packet exceeds it would wait forever.
    let limited = ["dyn_max", "dyn_min2", "paced_exempt", "v619"];
    let corked = ["static131072_ge"].iter().chain(&limited).map(|mode| (mode, "131072", "1"));
    for (mode, limit, autocorking) in corked.chain(limited.iter().map(|mode| (mode, "1000", "0"))) {
        let settings = [
            ("net.quietline.tsq_limit", *mode),
            ("net.ipv4.tcp_limit_output_bytes", limit),
            ("net.ipv4.tcp_autocorking", autocorking),
        ];
        let mut lab = Lab::new(&settings);
        let client = Arc::clone(&lab.client);
        client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| {
            // Nagle would hold back the packets under test.
            tcb.set_nodelay(true);
            // A pacing rate whose millisecond is below the limit.
            let slow = *mode == "dyn_max" && limit == "1000";
            tcb.set_max_pacing_rate(slow.then_some(500_000));
        });
        let stops = lab.count(Counter::TsqThrottled);
        let corks = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking);
        for round in 0..100 {
            let bytes = 100 + 700 * (round % 7);
            lab.write(bytes);
            lab.write(10);
            let lazy = lab.device.len().saturating_sub(1);
            lab.complete(lazy);
            // Shorter than any timeout.
            lab.world.pass(Duration::from_millis(100));
            assert_eq!(lab.read(), bytes + 10, "{mode}, {limit}, round {round}");
        }
        // Each mode has stopped the sender often.
        assert!(lab.count(Counter::TsqThrottled) > stops + 50, "{mode}, {limit}");
        let corked = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking) - corks;
        assert_eq!(corked > 50, autocorking == "1", "{mode}, {limit}");
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPTimeouts), 0);
        drop(client);
        lab.finish();
    }
}

/// A connection with nothing in flight may send, however many bytes are below it, except in the
/// first version; in the newest version also a connection with one packet in flight. Its
/// completions may be late, and no other event would resume it.
#[test]
fn late_completions_leave_a_connection_its_first_packets() {
    for (mode, beside) in
        [("static131072_ge", 0), ("dyn_max", 1), ("dyn_min2", 1), ("paced_exempt", 1), ("v619", 2)]
    {
        let settings =
            [("net.quietline.tsq_limit", mode), ("net.ipv4.tcp_limit_output_bytes", "1000")];
        let mut lab = Lab::new(&settings);
        lab.write(1448);
        lab.world.settle();
        assert_eq!(
            (lab.read(), lab.device.len()),
            (1448, 1),
            "{mode}: it has arrived, and is not completed"
        );
        // It is acknowledged, even if by a delayed ACK: nothing is in flight.
        lab.world.pass(Duration::from_millis(50));
        // From here on also with a pacing rate whose millisecond is below the limit.
        for rate in [Some(500_000), None] {
            lab.client
                .with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_max_pacing_rate(rate));
        }
        lab.device.set_mute(true);
        lab.write(4 * 1448);
        lab.world.settle();
        assert_eq!(lab.device.len(), 1 + beside, "{mode}");
        lab.finish();
    }
}

/// TSQ1: a packet uncharges the amount that it charged, even if it changes in between.
#[test]
fn a_packet_uncharges_what_it_charged() {
    #[derive(Debug, Default)]
    struct Owner(AtomicU32);
    impl PacketOwner for Owner {
        fn on_complete(&self, truesize: u32) {
            self.0.fetch_add(truesize, Ordering::Relaxed);
        }
    }
    let mut lab = Lab::new(&[]);
    let pool = &mut lab.world.cx.pool;
    let owner = Arc::new(Owner::default());
    let mut packet = pool.alloc_from(&[1; 1000]).expect("memory");
    let charged = packet.truesize();
    packet.set_owner(Arc::clone(&owner) as _);
    assert_eq!(packet.append(pool, &[2; 30_000]), 30_000);
    assert!(packet.truesize() > charged);
    pool.free(packet);
    assert_eq!(owner.0.load(Ordering::Relaxed), charged);
    lab.finish();
}

/// TSQ4: a thousand connections are stopped by one packet each, and completed in one batch. Each
/// runs once and sends one packet.
#[test]
fn a_thousand_connections_get_one_run_each() {
    let mut lab = Lab::new(&[]);
    let mut ends = Vec::new();
    lab.device.set_prompt(true);
    for _ in 0..1000 {
        ends.push(apps::connect(&mut lab.world, &lab.listener));
    }
    lab.device.set_prompt(false);
    lab.host.set_sysctl("net.ipv4.tcp_limit_output_bytes", "4096").expect("a setting");
    lab.device.set_mute(true);
    for (client, _) in &ends {
        let data = [7; 1448 * 4];
        client.send(&lab.host, &mut lab.world.cx, &[IoSlice::new(&data)]).expect("room");
    }
    lab.world.settle();
    let each = lab.device.len() / 1000;
    assert!((1..3).contains(&each) && lab.device.len() == 1000 * each, "{}", lab.device.len());
    let runs = lab.count(Counter::TsqRuns);
    lab.complete(1000 * each);
    assert_eq!(lab.count(Counter::TsqRuns), runs + 1000);
    assert_eq!(
        lab.device.len(),
        1000 * (4 - each).min(each),
        "every connection got the same share"
    );
    let peer = Arc::clone(&lab.world.hosts[1]);
    lab.device.set_mute(false);
    for (client, server) in ends {
        client.abort(&lab.host, &mut lab.world.cx);
        server.abort(&peer, &mut lab.world.cx);
    }
    lab.finish();
}

/// A limit of zero disables the limit.
#[test]
fn a_limit_of_zero_disables_the_limit() {
    for mode in ["static131072_ge", "dyn_min2", "v619"] {
        let settings =
            [("net.quietline.tsq_limit", mode), ("net.ipv4.tcp_limit_output_bytes", "0")];
        let mut lab = Lab::new(&settings);
        lab.device.set_mute(true);
        lab.write(400_000);
        lab.world.settle();
        assert!(lab.client.wmem_alloc() > 262_144, "{mode}: {}", lab.client.wmem_alloc());
        assert_eq!(lab.count(Counter::TsqThrottled), 0);
        lab.finish();
    }
}

/// The limit shrinks and grows while a sender is stopped. TSQ3: completions alone make it finish.
#[test]
fn a_changed_limit_applies_to_a_stopped_sender_and_does_not_block_it() {
    let mut lab = Lab::new(&[]);
    lab.device.set_mute(true);
    lab.write(150_000);
    lab.world.settle();
    let set = |lab: &Lab, limit| {
        lab.host.set_sysctl("net.ipv4.tcp_limit_output_bytes", limit).expect("a setting");
    };
    set(&lab, "10000");
    let before = lab.device.len();
    lab.complete(1);
    assert_eq!(lab.device.len(), before - 1, "above the new limit nothing is sent");
    while lab.client.wmem_alloc() > 12_000 {
        lab.complete(1);
    }
    set(&lab, "20000");
    let unsent = |lab: &mut Lab| {
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info().notsent_bytes)
    };
    assert!(unsent(&mut lab) > 0);
    while lab.device.len() > 0 {
        lab.complete(1);
        assert!(lab.client.wmem_alloc() < 20_000 + 2304);
    }
    assert_eq!(unsent(&mut lab), 0);
    lab.finish();
}

/// Requests and responses over a device whose completions are some exchanges late. The first packet
/// of an exchange is never held back for them: only its own answer would resume the sender.
#[test]
fn requests_do_not_wait_for_completions() {
    let mut lab = Lab::new(&[("net.ipv4.tcp_autocorking", "1")]);
    let before = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking);
    for round in 0..100 {
        let start = lab.world.elapsed();
        lab.write(64);
        lab.world.settle();
        assert_eq!(lab.read(), 64, "round {round}");
        assert_eq!(lab.world.elapsed(), start, "without a delay");
        lab.answer(64);
        lab.world.pass(Duration::from_micros(16));
        let overdue = lab.device.len().saturating_sub(3);
        lab.complete(overdue);
    }
    assert_eq!(lab.device.len(), 3, "the same number is below in each round");
    assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPAutoCorking), before);
    lab.finish();
}

/// Retransmissions have twice the limit. Stopped ones resume with completions, before new data and
/// without a timeout.
#[test]
fn stopped_retransmissions_resume_with_completions() {
    const LOST: usize = 20;
    let mut lab = Lab::new(&[]);
    lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_nodelay(true));
    lab.device.set_mute(true);
    lab.write(LOST * 1448);
    lab.complete(LOST);
    lab.device.set_mute(false);
    // Some of the following segments arrive, which reveals the loss, and stay uncompleted.
    lab.host.set_sysctl("net.ipv4.tcp_limit_output_bytes", "12000").expect("a setting");
    lab.write(20 * 1448);
    lab.world.settle();
    let unsent = |lab: &mut Lab| {
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info().notsent_bytes)
    };
    let repeated =
        |lab: &Lab| usize::try_from(lab.tcp(tcp::Counter::TcpRetransSegs)).expect("a few");
    let (waits, sent_again) = (unsent(&mut lab), repeated(&lab));
    assert!(waits > 0 && (1..LOST).contains(&sent_again), "{waits}, {sent_again}");
    let below = lab.client.wmem_alloc();
    assert!((24_000..24_000 + 2304).contains(&below), "twice the limit: {below}");
    for completions in 1..=LOST - sent_again {
        lab.complete(1);
        assert_eq!(repeated(&lab), sent_again + completions);
        assert_eq!(unsent(&mut lab), waits, "new data waits");
    }
    while lab.device.len() > 0 {
        lab.complete(1);
    }
    assert_eq!((unsent(&mut lab), repeated(&lab)), (0, LOST));
    assert_eq!(lab.read(), (LOST + 20) * 1448);
    assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPTimeouts), 0);
    lab.finish();
}

/// The TSQ run is on the core of the connection, whichever core completes. No core becomes the
/// sender for all.
#[test]
fn completions_on_another_core_run_the_connection_on_its_own_core() {
    let mut lab = Lab::with_cores(2, &[]);
    lab.write(1_000_000);
    lab.world.settle();
    let host = Arc::clone(&lab.host);
    let home = usize::from(lab.client.core().0);
    let (below, runs) = (lab.device.len(), lab.count(Counter::TsqRuns));
    lab.device.complete(3);
    for (core, ran) in [(1 - home, 0), (home, 1)] {
        let _ = host.cores()[core].try_run(&host, &mut lab.world.cx);
        assert_eq!(lab.count(Counter::TsqRuns), runs + ran, "core {core}");
    }
    assert_eq!(lab.device.len(), below);
    lab.finish();
}

/// Drops of the local queueing discipline reduce the window at once, before the peer can detect a
/// loss (`tcp_enter_cwr`).
#[test]
fn drops_of_the_local_queue_reduce_the_window() {
    let mut lab = Lab::new(&[("net.quietline.tsq_limit", "off")]);
    let queue = [
        ("net.quietline.dev.default.tx_queue_len", "8"),
        ("net.quietline.dev.default.qdisc", "pfifo_fast"),
    ];
    lab.world.set(0, &queue);
    let window = |lab: &mut Lab| {
        let info = lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info());
        (info.cwnd, info.ssthresh)
    };
    let (cwnd, before) = window(&mut lab);
    lab.device.set_mute(true);
    lab.write(400_000);
    lab.world.settle();
    assert!(lab.host.counters().drops(DropReason::QdiscDrop) > 0);
    let (_, ssthresh) = window(&mut lab);
    // CUBIC's reduction.
    assert!(before > cwnd / 10 * 8 && ssthresh <= cwnd / 10 * 8, "{cwnd}: {before}, {ssthresh}");
    // The packets of the queue are dropped with it, and completions no longer report to the byte
    // queue limit: the watchdog resets its accounting.
    lab.device.set_mute(false);
    lab.world.set(0, &[("net.quietline.dev.default.qdisc", "noqueue")]);
    lab.world.pass(Duration::from_secs(6));
    lab.finish();
}
