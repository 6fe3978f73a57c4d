//! Tests of transmit queues with a queueing discipline.

use super::*;

#[test]
fn a_device_that_queues_packets_gets_the_default_discipline() {
    let kind = |async_completion, settings: &[(&str, &str)]| {
        let mut bench = Bench::new(async_completion, "default");
        for (name, value) in settings {
            bench.host.set_sysctl(name, value).expect("the setting exists");
        }
        bench.stats().qdisc.to_string()
    };
    assert_eq!(kind(true, &[]), "pfifo_fast");
    assert_eq!(kind(false, &[]), "noqueue");
    let fq = [("net.core.default_qdisc", "fq")];
    assert!(kind(true, &fq).starts_with("fq limit 10000"));
    assert_eq!(kind(false, &fq), "noqueue");
    let tbf = [("net.quietline.dev.few.qdisc", "tbf rate 1mbit burst 2kb limit 3kb")];
    assert_eq!(kind(false, &tbf), "tbf rate 1000000bit burst 2048b limit 3072b");
}

#[test]
fn urgent_packets_overtake_packets_that_wait_for_the_device() {
    let mut bench = Bench::new(true, "pfifo_fast");
    bench.room(1);
    // The first packet fills the byte limit. Priority 2 maps to the last band, priority 0 to the
    // middle one.
    let _ = bench.xmit([0, 200, 201, 1, 2]);
    assert_eq!(bench.sent().0, [0]);
    let stats = bench.stats().stats;
    assert_eq!((stats.qlen, stats.backlog_bytes), (4, 400));
    bench.room(9);
    bench.complete(1);
    bench.complete(1);
    bench.complete(2);
    assert_eq!(bench.sent().0, [1, 2, 200, 201]);
    assert_eq!(bench.stats().stats.packets, 5);
    bench.finish();
}

#[test]
fn a_full_band_reports_the_drop_to_its_sender() {
    let mut bench = Bench::new(true, "noqueue");
    bench.host.set_sysctl("net.quietline.dev.few.tx_queue_len", "3").expect("the length is valid");
    bench
        .host
        .set_sysctl("net.quietline.dev.few.qdisc", "pfifo_fast")
        .expect("the discipline is valid");
    assert_eq!(bench.xmit(0..1), NetXmit::Success);
    assert_eq!(bench.xmit(1..4), NetXmit::Success);
    assert!(matches!(bench.xmit(4..6), NetXmit::Drop(_)));
    assert_eq!((bench.dropped(DropReason::QdiscDrop), bench.stats().stats.drops), (2, 2));
    bench.finish();
}

#[test]
fn packets_that_bypass_an_empty_discipline_are_counted() {
    let mut bench = Bench::new(false, "pfifo_fast");
    bench.room(200);
    let _ = bench.xmit(0..99);
    assert_eq!(bench.sent().1, 1, "the list took more than one transmit call");
    assert_eq!(bench.stats().stats.bytes, 9900);
    bench.finish();
}

/// A context (`Cx`) that entered the host before a change of the settings sends after a context
/// that entered after the change.
#[test]
fn a_context_with_older_settings_does_not_restore_the_old_discipline() {
    let mut bench = Bench::new(true, "pfifo_fast");
    let mut old = Cx::replay(&bench.memory, 2);
    old.now = bench.cx.now;
    let entered = old.enter(&bench.host);
    bench.host.set_sysctl("net.quietline.dev.few.qdisc", "fq").expect("the discipline is valid");
    let _ = bench.xmit(0..5);
    let left = bench.stats().stats.qlen;
    let _ = bench.host.tx(DEVICE).xmit(&mut old, QUEUE, &mut PacketList::new());
    old.leave(entered);
    assert_eq!((bench.stats().stats.qlen, bench.dropped(DropReason::QueuePurge)), (left, 0));
    bench.finish();
}

/// The times at which a discipline wakes its core are exact, not rounded by a timer wheel.
#[test]
fn a_token_bucket_wakes_its_core_at_the_exact_time() {
    // 100 bytes take 100 µs.
    let mut bench = Bench::new(false, "tbf rate 8mbit burst 200b limit 10kb");
    let start = bench.cx.now;
    bench.room(99);
    let _ = bench.xmit(0..5);
    assert_eq!(bench.sent().0, [0, 1]);
    let mut moments = Vec::new();
    while let Some(at) = bench.host.poll(&mut bench.cx) {
        bench.cx.now = at;
        let _ = bench.host.poll(&mut bench.cx);
        let sent = bench.sent().0.len();
        moments.push((at.saturating_duration_since(start).as_nanos(), sent));
    }
    assert_eq!(moments, [(100_000, 1), (200_000, 1), (300_000, 1)]);
    assert_eq!(bench.stats().stats.overlimits, 3);
    bench.finish();
}

#[test]
fn a_sender_leaves_packets_beyond_its_quota_to_the_core() {
    let mut bench = Bench::new(false, "fq flow_limit 1000");
    bench.room(999);
    let _ = bench.xmit(0..99);
    assert_eq!(bench.sent().0.len(), QUOTA);
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.sent().0.len(), 99 - QUOTA);
    bench.finish();
}

#[test]
fn packets_in_a_replaced_discipline_are_dropped() {
    for qdisc in ["pfifo_fast", "fq", "fq_codel", "tbf rate 1kbit burst 200b limit 10kb"] {
        let mut bench = Bench::new(true, qdisc);
        bench.room(99);
        let _ = bench.xmit(0..9);
        let left = bench.stats().stats.qlen;
        assert!(left >= 7, "{qdisc}: {left}");
        bench
            .host
            .set_sysctl("net.quietline.dev.few.qdisc", "noqueue")
            .expect("the discipline is valid");
        assert_eq!(bench.stats().stats.qlen, 0);
        assert_eq!(bench.dropped(DropReason::QueuePurge), left, "{qdisc}");
        bench.complete(1);
        let _ = bench.xmit(20..21);
        assert!(bench.sent().0.ends_with(&[20]), "{qdisc}");
        bench.finish();
    }
}

/// Follows the limit of a queue that becomes empty at its first two completions.
#[test]
fn the_byte_limit_grows_while_the_device_starves() {
    let mut bench = Bench::new(true, "pfifo_fast");
    bench.bytes = 1514;
    bench.room(99);
    let mut number = 0;
    let mut queue = |bench: &mut Bench, packets: u8| {
        let _ = bench.xmit(number..number + packets);
        number += packets;
        bench.stats().bql_inflight.expect("the device reports completions") / 1514
    };
    let complete = |bench: &mut Bench, packets: usize| {
        bench.complete(packets);
        bench.stats().bql_limit.expect("the device reports completions")
    };
    assert_eq!(queue(&mut bench, 1), 1);
    assert_eq!(complete(&mut bench, 1), 1514);
    assert_eq!(queue(&mut bench, 2), 2, "the second packet exceeds the limit");
    assert_eq!(complete(&mut bench, 2), 4542);
    assert_eq!(queue(&mut bench, 3), 3);
    assert_eq!(complete(&mut bench, 1), 4542);
    assert_eq!(queue(&mut bench, 1), 3);
    assert_eq!(complete(&mut bench, 2), 4542);
    assert_eq!(queue(&mut bench, 2), 3);
    assert_eq!(complete(&mut bench, 3), 4542);
    assert_eq!(queue(&mut bench, 9), 4, "the fourth packet exceeds the limit, the others wait");
    assert_eq!(bench.stats().stats.qlen, 5);
    bench.finish();
}

/// The watchdog assumes after five seconds that completions are lost. Linux: `dev_watchdog`.
#[test]
fn a_byte_limit_is_reset_after_lost_completions() {
    let mut bench = Bench::new(true, "pfifo_fast");
    bench.room(99);
    let _ = bench.xmit([0]);
    assert_eq!(bench.host.tx(DEVICE).deadline(QUEUE), None, "no packet waits");
    let overdue_at = bench.cx.now + WATCHDOG;
    let _ = bench.xmit(1..3);
    bench.cx.now += Duration::from_secs(1);
    let _ = bench.xmit([3]);
    assert_eq!(bench.sent().0, [0]);
    assert_eq!(bench.host.tx(DEVICE).deadline(QUEUE), Some(overdue_at));
    bench.cx.now = overdue_at;
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.sent().0, [1], "a reset limit starts with one packet");
    assert_eq!(bench.host.counters().get("TxTimeouts"), Some(1));
    bench.complete(1);
    assert_eq!(bench.sent().0, [2, 3]);
    bench.finish();
}

#[test]
fn the_byte_limit_stays_within_its_bounds() {
    let mut bench = Bench::new(true, "pfifo_fast");
    bench
        .host
        .set_sysctl("net.quietline.dev.few.bql_limit_min", "1000")
        .expect("the limit is valid");
    bench
        .host
        .set_sysctl("net.quietline.dev.few.bql_limit_max", "1000")
        .expect("the limit is valid");
    bench.room(99);
    let _ = bench.xmit(0..99);
    assert_eq!(bench.sent().0.len(), 11, "ten packets, and one that exceeds the limit");
    bench.complete(11);
    assert_eq!((bench.sent().0.len(), bench.stats().bql_limit), (11, Some(1000)));
    bench.finish();
}
