//! Defects of small queues in other stacks and in versions of Linux, each as the test that would have shown it. The lost wake-ups
//! are races and have their tests in `sync::small_queue`; a close and a held socket are in `scenarios`; late completions need a
//! link (`small_queues`).

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

use super::shelf::Lab;

/// With `TCP_NODELAY` the run sends the small tail too, and does not leave it to an ACK or the timer.
#[test]
fn a_small_tail_without_nagle_leaves_with_the_run() {
    let mut lab = Lab::new(&[]);
    lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_nodelay(true));
    lab.shelf.set_mute(true);
    // Small segments on their way already: Nagle would hold another.
    lab.write(100);
    lab.write(150_000);
    lab.world.settle();
    let unsent = |lab: &mut Lab| {
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info().notsent_bytes)
    };
    assert!(unsent(&mut lab) > 0, "the limit holds the rest");
    while lab.shelf.len() > 0 {
        lab.complete(1);
    }
    assert_eq!(unsent(&mut lab), 0, "without an ACK, and at the same moment");
    lab.finish();
}

/// A device that completes a packet only when the next one comes. Neither autocorking nor the limit may wait for ever.
/// Without the exception for an empty flight a small packet behind a large one waited for the persist timer.
#[test]
fn a_device_that_keeps_its_last_packet_stops_nobody() {
    // The first version has no exception: behind a limit that one packet exceeds it would wait for ever.
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
            // Nagle would hold back what is for the others to.
            tcb.set_nodelay(true);
            // A pace whose millisecond is below the limit.
            let slow = *mode == "dyn_max" && limit == "1000";
            tcb.set_max_pacing_rate(slow.then_some(500_000));
        });
        let stops = lab.count(Counter::TsqThrottled);
        let corks = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking);
        for round in 0..100 {
            let bytes = 100 + 700 * (round % 7);
            lab.write(bytes);
            lab.write(10);
            let lazy = lab.shelf.len().saturating_sub(1);
            lab.complete(lazy);
            // Shorter than any timeout.
            lab.world.pass(Duration::from_millis(100));
            assert_eq!(lab.read(), bytes + 10, "{mode}, {limit}, round {round}");
        }
        // Each had much to hold back.
        assert!(lab.count(Counter::TsqThrottled) > stops + 50, "{mode}, {limit}");
        let corked = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking) - corks;
        assert_eq!(corked > 50, autocorking == "1", "{mode}, {limit}");
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPTimeouts), 0);
        drop(client);
        lab.finish();
    }
}

/// However much waits below, a connection with nothing in flight may send, but for the first version; in the newest also one with
/// one packet in flight. Its completions may be late, and nothing else would ever let it go on.
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
        assert_eq!((lab.read(), lab.shelf.len()), (1448, 1), "{mode}: it arrived, and is below");
        // Acknowledged, late as that may be: nothing is in flight.
        lab.world.pass(Duration::from_millis(50));
        // From here on a pace whose millisecond is below the limit too.
        for rate in [Some(500_000), None] {
            lab.client
                .with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_max_pacing_rate(rate));
        }
        lab.shelf.set_mute(true);
        lab.write(4 * 1448);
        lab.world.settle();
        assert_eq!(lab.shelf.len(), 1 + beside, "{mode}");
        lab.finish();
    }
}

/// TSQ1: what a packet charges is what it gives back, whatever becomes of it in between.
#[test]
fn a_packet_gives_back_what_it_charged() {
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

/// TSQ4: a thousand connections stopped by one packet each, and one batch of completions. Each runs once and sends one packet.
#[test]
fn a_thousand_connections_get_one_turn_each() {
    let mut lab = Lab::new(&[]);
    let mut ends = Vec::new();
    lab.shelf.set_prompt(true);
    for _ in 0..1000 {
        ends.push(apps::connect(&mut lab.world, &lab.listener));
    }
    lab.shelf.set_prompt(false);
    lab.host.set_sysctl("net.ipv4.tcp_limit_output_bytes", "4096").expect("a setting");
    lab.shelf.set_mute(true);
    for (client, _) in &ends {
        let data = [7; 1448 * 4];
        client.send(&lab.host, &mut lab.world.cx, &[IoSlice::new(&data)]).expect("room");
    }
    lab.world.settle();
    let each = lab.shelf.len() / 1000;
    assert!((1..3).contains(&each) && lab.shelf.len() == 1000 * each, "{}", lab.shelf.len());
    let runs = lab.count(Counter::TsqRuns);
    lab.complete(1000 * each);
    assert_eq!(lab.count(Counter::TsqRuns), runs + 1000);
    assert_eq!(lab.shelf.len(), 1000 * (4 - each).min(each), "nobody got more than another");
    let peer = Arc::clone(&lab.world.hosts[1]);
    lab.shelf.set_mute(false);
    for (client, server) in ends {
        client.abort(&lab.host, &mut lab.world.cx);
        server.abort(&peer, &mut lab.world.cx);
    }
    lab.finish();
}

/// A limit of zero is none.
#[test]
fn a_limit_of_zero_is_none() {
    for mode in ["static131072_ge", "dyn_min2", "v619"] {
        let settings =
            [("net.quietline.tsq_limit", mode), ("net.ipv4.tcp_limit_output_bytes", "0")];
        let mut lab = Lab::new(&settings);
        lab.shelf.set_mute(true);
        lab.write(400_000);
        lab.world.settle();
        assert!(lab.client.wmem_alloc() > 262_144, "{mode}: {}", lab.client.wmem_alloc());
        assert_eq!(lab.count(Counter::TsqThrottled), 0);
        lab.finish();
    }
}

/// The limit becomes smaller, and larger, while a sender waits. TSQ3: completions alone carry it to the end.
#[test]
fn a_limit_that_changes_under_a_stopped_sender_holds_and_stops_nobody_for_ever() {
    let mut lab = Lab::new(&[]);
    lab.shelf.set_mute(true);
    lab.write(150_000);
    lab.world.settle();
    let set = |lab: &Lab, limit| {
        lab.host.set_sysctl("net.ipv4.tcp_limit_output_bytes", limit).expect("a setting");
    };
    set(&lab, "10000");
    let before = lab.shelf.len();
    lab.complete(1);
    assert_eq!(lab.shelf.len(), before - 1, "above the new limit nothing is sent");
    while lab.client.wmem_alloc() > 12_000 {
        lab.complete(1);
    }
    set(&lab, "20000");
    let unsent = |lab: &mut Lab| {
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info().notsent_bytes)
    };
    assert!(unsent(&mut lab) > 0);
    while lab.shelf.len() > 0 {
        lab.complete(1);
        assert!(lab.client.wmem_alloc() < 20_000 + 2304);
    }
    assert_eq!(unsent(&mut lab), 0);
    lab.finish();
}

/// Requests and responses over a device whose completions come late, some exchanges later. The first packet of an exchange is
/// never held back for them: nothing but its own answer would send it on.
#[test]
fn requests_do_not_wait_for_completions() {
    let mut lab = Lab::new(&[("net.ipv4.tcp_autocorking", "1")]);
    let before = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking);
    for round in 0..100 {
        let start = lab.world.elapsed();
        lab.write(64);
        lab.world.settle();
        assert_eq!(lab.read(), 64, "round {round}");
        assert_eq!(lab.world.elapsed(), start, "at the same moment");
        lab.answer(64);
        lab.world.pass(Duration::from_micros(16));
        let overdue = lab.shelf.len().saturating_sub(3);
        lab.complete(overdue);
    }
    assert_eq!(lab.shelf.len(), 3, "as many were below each time");
    assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPAutoCorking), before);
    lab.finish();
}

/// Retransmissions have twice the limit; those that meet it go on with completions, before anything new and without a timeout.
#[test]
fn retransmissions_that_were_stopped_go_on_with_completions() {
    const LOST: usize = 20;
    let mut lab = Lab::new(&[]);
    lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_nodelay(true));
    lab.shelf.set_mute(true);
    lab.write(LOST * 1448);
    lab.complete(LOST);
    lab.shelf.set_mute(false);
    // Of what follows some arrives, which tells of the loss, and stays below: nothing completes.
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
        assert_eq!(unsent(&mut lab), waits, "what is new waits");
    }
    while lab.shelf.len() > 0 {
        lab.complete(1);
    }
    assert_eq!((unsent(&mut lab), repeated(&lab)), (0, LOST));
    assert_eq!(lab.read(), (LOST + 20) * 1448);
    assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPTimeouts), 0);
    lab.finish();
}

/// Whichever core completes, the run is for the core of the connection. No core becomes the sender for all.
#[test]
fn the_core_of_a_connection_runs_it_whoever_completes() {
    let mut lab = Lab::with_cores(2, &[]);
    lab.write(1_000_000);
    lab.world.settle();
    let host = Arc::clone(&lab.host);
    let home = usize::from(lab.client.core().0);
    let (below, runs) = (lab.shelf.len(), lab.count(Counter::TsqRuns));
    lab.shelf.complete(3);
    for (core, ran) in [(1 - home, 0), (home, 1)] {
        let _ = host.cores()[core].try_run(&host, &mut lab.world.cx);
        assert_eq!(lab.count(Counter::TsqRuns), runs + ran, "core {core}");
    }
    assert_eq!(lab.shelf.len(), below);
    lab.finish();
}

/// What the discipline of our own device drops makes the window smaller at once, before anybody can miss it (`tcp_enter_cwr`).
#[test]
fn what_our_own_queue_drops_makes_the_window_smaller() {
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
    lab.shelf.set_mute(true);
    lab.write(400_000);
    lab.world.settle();
    assert!(lab.host.counters().drops(DropReason::QdiscDrop) > 0);
    let (_, ssthresh) = window(&mut lab);
    // CUBIC's part of it.
    assert!(before > cwnd / 10 * 8 && ssthresh <= cwnd / 10 * 8, "{cwnd}: {before}, {ssthresh}");
    // What waits in the queue is dropped with it, and what completes tells the byte limit nothing: the watchdog begins its books anew.
    lab.shelf.set_mute(false);
    lab.world.set(0, &[("net.quietline.dev.default.qdisc", "noqueue")]);
    lab.world.pass(Duration::from_secs(6));
    lab.finish();
}
