//! TCP Small Queues with one connection and a device that completes on demand, in numbers: the
//! invariants TSQ1 to TSQ10 (docs/invariants.md), except the races.

use std::sync::Arc;

use stack::base::counters::Counter;

use super::manual_device::Lab;

/// `tcp_limit_output_bytes` of the first version.
pub(crate) const LIMIT: u32 = 131_072;

/// Truesize of a packet with 1,448 bytes of payload.
const TRUESIZE: u32 = 2152;

/// Makes a lab whose sender has stopped at the limit. Returns it with the truesize of one packet.
pub(crate) fn stopped(settings: &[(&str, &str)]) -> (Lab, u32) {
    let mut lab = Lab::new(settings);
    lab.write(1_000_000);
    lab.world.settle();
    let (truesize, _) = lab.device.oldest();
    (lab, truesize)
}

/// TSQ1, TSQ2, TSQ6: the first burst exceeds the limit by less than a packet; from then on each
/// completion causes one run and one packet. Linux's 57 packets of 2,304 bytes, 7.01 ms at 100
/// Mbit/s, are 61 here, of 2,152. The last of them waits for 60 frames of 123.04 µs, 7.4 ms
/// (`small_queues`).
#[test]
fn each_completion_sends_one_packet() {
    for protocol in ["seed", "robust"] {
        let (mut lab, truesize) = stopped(&[("net.quietline.tsq_protocol", protocol)]);
        let burst = LIMIT.div_ceil(truesize);
        assert_eq!((truesize, burst), (TRUESIZE, 61));
        assert_eq!(lab.device.len(), burst as usize);
        assert_eq!(lab.client.wmem_alloc(), burst * truesize, "TSQ1: charged");
        assert!(lab.client.wmem_alloc() < LIMIT + truesize, "TSQ2: below the limit and a packet");
        let before = lab.count(Counter::TsqRuns);
        let deferred = lab.count(Counter::TsqDeferred);
        for completions in 1..=100 {
            lab.complete(1);
            assert_eq!(lab.device.len(), burst as usize);
            assert_eq!(lab.client.wmem_alloc(), burst * truesize);
            assert_eq!(
                lab.count(Counter::TsqRuns),
                before + completions,
                "TSQ6: one run per completion"
            );
        }
        assert_eq!(lab.count(Counter::TsqDeferred), deferred);
        lab.finish();
    }
}

/// If the truesize divides the limit, reaching it exactly stops the first version and not the next.
#[test]
fn meeting_the_limit_stops_the_first_version_only() {
    let (lab, truesize) = stopped(&[]);
    lab.finish();
    let limit = (64 * truesize).to_string();
    for (mode, packets) in [("static131072_ge", 64), ("dyn_max", 65)] {
        // The pacing rate of a round trip without delay exceeds any limit, so that only the fixed
        // bound applies.
        let settings =
            [("net.quietline.tsq_limit", mode), ("net.ipv4.tcp_limit_output_bytes", &*limit)];
        let mut lab = Lab::new(&settings);
        let pace = 1_000_000;
        lab.client
            .with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_max_pacing_rate(Some(pace)));
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_max_pacing_rate(None));
        lab.device.set_mute(true);
        lab.write(1_000_000);
        lab.world.settle();
        assert_eq!(lab.device.len(), packets, "{mode}");
        lab.finish();
    }
}

/// Sixteen completions at once cause one run, which sends sixteen packets.
#[test]
fn a_batch_of_completions_is_one_run() {
    let (mut lab, truesize) = stopped(&[]);
    let burst = LIMIT.div_ceil(truesize) as usize;
    let (runs, stops) = (lab.count(Counter::TsqRuns), lab.count(Counter::TsqThrottled));
    // Mute: an ACK would find the limit reached once more.
    lab.device.set_mute(true);
    lab.complete(16);
    assert_eq!(lab.device.len(), burst, "sixteen were sent");
    assert_eq!(lab.count(Counter::TsqRuns), runs + 1);
    assert_eq!(lab.count(Counter::TsqThrottled), stops + 1);
    lab.finish();
}

/// A thread owns the socket while completions arrive. Their work is deferred to it once, and done
/// once.
#[test]
fn an_owner_of_the_socket_sends_once_when_it_releases_it() {
    let (mut lab, truesize) = stopped(&[]);
    let burst = LIMIT.div_ceil(truesize) as usize;
    lab.device.set_mute(true);
    let (runs, deferred) = (lab.count(Counter::TsqRuns), lab.count(Counter::TsqDeferred));
    let (device, host) = (Arc::clone(&lab.device), Arc::clone(&lab.host));
    lab.client.hold(&lab.host, &mut lab.world.cx, |cx| {
        for _ in 0..8 {
            device.complete(1);
            let _ = host.poll(cx);
        }
        assert_eq!(device.len(), burst - 8, "nothing is sent meanwhile");
    });
    assert_eq!(lab.device.len(), burst, "eight were sent");
    assert_eq!(lab.count(Counter::TsqRuns), runs + 1);
    assert_eq!(lab.count(Counter::TsqDeferred), deferred + 1);
    lab.finish();
}

/// TSQ7, TSQ10: the connection ends with packets in the device and an entry on the TSQ list.
/// Nothing is sent afterwards, and the memory is freed with the later of the last completion and
/// the run.
#[test]
fn a_connection_that_ends_is_freed_after_its_last_packet() {
    for run_first in [true, false] {
        let (mut lab, _) = stopped(&[]);
        let (_, owner) = lab.device.oldest();
        let left = lab.device.len();
        lab.device.complete(left - 10);
        let runs = lab.count(Counter::TsqRuns);
        lab.client.abort(&lab.host, &mut lab.world.cx);
        let socket = Arc::downgrade(&lab.client);
        lab.client = Arc::clone(&lab.server);
        if run_first {
            lab.world.settle();
            assert_eq!(lab.device.len(), 10, "TSQ10: a closed connection sends nothing");
            assert!(owner.strong_count() > 0);
            lab.device.complete(10);
        } else {
            lab.device.complete(10);
            lab.world.settle();
        }
        assert_eq!(lab.device.len(), 0);
        assert!(lab.count(Counter::TsqRuns) <= runs + 1);
        // Packets return to their pool after the grace period.
        lab.world.packets_alive();
        assert_eq!((socket.strong_count(), owner.strong_count()), (0, 0), "run first: {run_first}");
        lab.finish();
    }
}

/// TSQ8: the limit does not apply to a device that orphans packets when it takes them.
#[test]
fn a_device_that_orphans_takes_everything() {
    let mut lab = Lab::new(&[("net.quietline.dev_orphan", "xmit")]);
    lab.device.set_mute(true);
    let sent = lab.tcp(tcp::Counter::TcpExtTCPOrigDataSent);
    lab.write(400_000);
    lab.world.settle();
    assert_eq!((lab.device.len(), lab.client.wmem_alloc()), (0, 0));
    let sent = lab.tcp(tcp::Counter::TcpExtTCPOrigDataSent) - sent;
    assert!(sent * u64::from(TRUESIZE) > u64::from(LIMIT) * 2, "{sent} segments left at once");
    assert_eq!(lab.count(Counter::TsqThrottled), 0);
    lab.finish();
}

/// `net.quietline.tsq_limit` at the first version: a superframe is at most half of the limit, so
/// that two are below the limit, and at most a third exceeds it.
#[test]
fn a_superframe_is_at_most_half_the_limit_of_the_first_version() {
    for (limit, most) in [("131072", 65_160), ("40000", 18_824), ("10000", 4344), ("1000", 1448)] {
        let mut lab = Lab::new(&[]);
        let settings = [
            ("net.quietline.dev.default.gso", "1"),
            ("net.ipv4.tcp_limit_output_bytes", limit),
            // No millisecond of a pacing rate makes them smaller.
            ("net.ipv4.tcp_tso_rtt_log", "31"),
        ];
        lab.world.set(0, &settings);
        // Data written from here on uses the new path.
        lab.write(100);
        lab.complete(1);
        assert_eq!(lab.read(), 100);
        lab.device.set_mute(true);
        lab.write(200_000);
        lab.world.settle();
        let lengths = lab.device.payloads();
        assert_eq!(lengths.iter().max(), Some(&most), "{limit}: {lengths:?}");
        assert!(limit == "1000" || lengths.len() >= 2, "{limit}: {lengths:?}");
        lab.finish();
    }
}

/// TSQ2 counts memory, while `tc` counts transmitted bytes: a superframe of 45 segments and one of
/// 44 are less than the limit, so that a third exceeds it. That is 195.5 kB of memory, and 202,876
/// bytes with the headers of each segment.
#[test]
fn a_third_superframe_passes_the_limit_behind_one_that_is_not_full() {
    let mut lab = Lab::new(&[]);
    // No millisecond of a pacing rate makes them smaller.
    let whole = [("net.quietline.dev.default.gso", "1"), ("net.ipv4.tcp_tso_rtt_log", "31")];
    lab.world.set(0, &whole);
    // Data written from here on uses the new path.
    lab.write(100);
    lab.complete(1);
    assert_eq!(lab.read(), 100);
    lab.device.set_mute(true);
    for segments in [45, 44, 45, 45] {
        lab.write(segments * 1448);
        lab.world.settle();
    }
    assert_eq!(lab.device.payloads(), [45 * 1448, 44 * 1448, 45 * 1448], "the fourth waits");
    let (truesize, _) = lab.device.oldest();
    let below = lab.client.wmem_alloc();
    assert!(below - truesize < LIMIT && LIMIT < below, "TSQ2: {below}");
    let wire: usize =
        lab.device.payloads().iter().map(|payload| payload + payload.div_ceil(1448) * 66).sum();
    assert_eq!(wire, 202_876);
    lab.finish();
}

/// TSQ5: a completion sends nothing and takes no lock, because it may come from within a call that
/// owns the socket, or from a device that is called with any lock held. The run on the core sends.
#[test]
fn a_completion_itself_sends_nothing() {
    let (mut lab, truesize) = stopped(&[]);
    let before = lab.device.len();
    lab.device.complete(3);
    // The entry of the list counts as one byte.
    assert_eq!(lab.client.wmem_alloc() as usize, (before - 3) * truesize as usize + 1, "TSQ1");
    assert_eq!(lab.device.len(), before - 3);
    let (device, host) = (Arc::clone(&lab.device), Arc::clone(&lab.host));
    lab.client.hold(&host, &mut lab.world.cx, |_| {
        device.complete(3);
        assert_eq!(device.len(), before - 6, "and a completion does not wait for the owner");
    });
    lab.world.settle();
    assert_eq!(lab.device.len(), before);
    lab.finish();
}
