//! Pacing: departure times, packet sizes, and a change of the algorithm during a transfer.

use core::time::Duration;
use std::vec;

use super::net::{Impairment, Net, Side};
use super::stress::transfer;
use crate::{Algorithm, Counter, Cx, Tcb};

/// Sends for `time` as fast as the connection accepts data, and returns the delivered bytes.
fn send_for(net: &mut Net, time: Duration) -> u64 {
    let end = net.now + time;
    let mut got = 0;
    while net.now < end {
        let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 50_000][..]], false));
        net.run_for(Duration::from_millis(1));
        got += net.recv(Side::B).len() as u64;
    }
    got
}

#[test]
fn so_max_pacing_rate_determines_the_rate() {
    let mut net = Net::new(1);
    net.host(Side::A).options.max_pacing_rate = Some(1_000_000);
    net.open();
    send_for(&mut net, Duration::from_millis(200));
    let from = net.log.len();
    let got = send_for(&mut net, Duration::from_secs(2));
    assert!((1_950_000..=2_050_000).contains(&got), "{got}");
    let sent = net.sent_by(Side::A, from);
    for pair in sent.windows(2) {
        // A packet of 1,448 bytes takes 1,448 us at 1 MB/s. A late timer may double the gap, and
        // the next packets make up for the delay.
        assert!(pair[1].at - pair[0].at <= Duration::from_micros(2900));
    }
    assert_eq!(net.tcb(Side::A).info().max_pacing_rate, Some(1_000_000));
    assert_eq!(net.tcb(Side::A).info().pacing_rate, Some(1_000_000));
    net.tcb(Side::A).set_max_pacing_rate(None);
    let got = send_for(&mut net, Duration::from_secs(2));
    assert!(got > 4_000_000, "{got} bytes, although the limit was removed");
    net.lose_in_flight();
    net.finish_clean();
}

#[test]
fn a_minimal_pacing_rate_does_not_stall_a_transfer() {
    let mut net = Net::new(2);
    net.host(Side::A).options.max_pacing_rate = Some(2000);
    net.open();
    transfer(&mut net, 2, (40_000, 500), |_| {});
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    net.finish_clean();
}

#[test]
fn the_pacing_rate_is_200_percent_in_slow_start_and_120_percent_later() {
    let mut net = Net::new(3);
    // Room for more than a window, so that data follows the lost segments.
    net.host(Side::A).options.sndbuf = Some(1 << 20);
    net.open();
    send_for(&mut net, Duration::from_millis(60));
    let info = net.tcb(Side::A).info();
    let per_second =
        u64::from(info.cwnd) * 1_000_000 / u64::try_from(info.rtt.unwrap().as_micros()).unwrap();
    let rate = info.pacing_rate.unwrap();
    assert!(rate.abs_diff(2 * per_second) < per_second / 10, "{rate} of {per_second}");
    net.drop_segments(&[1, 2, 3, 4, 5]);
    send_for(&mut net, Duration::from_millis(400));
    let info = net.tcb(Side::A).info();
    assert!(info.cwnd >= info.ssthresh / 2);
    let per_second = u64::from(info.cwnd.max(info.in_flight)) * 1_000_000
        / u64::try_from(info.rtt.unwrap().as_micros()).unwrap();
    let rate = info.pacing_rate.unwrap();
    assert!(rate.abs_diff(per_second * 6 / 5) < per_second / 5, "{rate} of {per_second}");
    // Pacing is not enabled: the rate is computed, but no packet is delayed.
    assert!(net.log.iter().filter(|sent| sent.len > 0).all(|sent| sent.departs == sent.at));
    net.lose_in_flight();
    net.finish_clean();
}

#[test]
fn a_packet_carries_a_millisecond_of_data_on_long_paths_and_more_on_short_ones() {
    let mut largest = [0; 2];
    for (index, delay) in
        [Duration::from_millis(20), Duration::from_micros(100)].into_iter().enumerate()
    {
        let mut net = Net::new(4);
        net.delay = delay;
        net.host(Side::A).path.gso_bytes_max = 65_536;
        net.open();
        let mut rate = 0;
        for _ in 0..30 {
            let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 60_000][..]], false));
            net.run_for(delay * 2);
            net.recv(Side::B);
            rate = rate.max(net.tcb(Side::A).info().pacing_rate.unwrap());
        }
        let info = net.tcb(Side::A).info();
        largest[index] = net.sent_by(Side::A, 0).iter().map(|sent| sent.len).max().unwrap();
        if index == 0 {
            let millisecond = rate / 1024;
            let limit = millisecond.max(2 * u64::from(info.snd_mss));
            assert!(u64::from(largest[0]) <= limit, "{} of {limit}", largest[0]);
        }
        net.lose_in_flight();
        net.finish_clean();
    }
    assert!(largest[1] > 30_000 && largest[0] < largest[1], "{largest:?}");
}

/// A superframe is a packet of several segments. If the congestion window has room for only a part
/// of it, the sender waits for an ACK that is due within a millisecond, or else sends the part.
#[test]
fn a_partial_superframe_is_deferred_only_for_a_near_ack() {
    for (divisor, wait_us, segments) in [(3, 25_000, 10), (3, 39_500, 9), (0, 39_500, 10)] {
        let mut net = Net::new(8);
        net.delay = Duration::from_millis(20);
        net.host(Side::A).path.gso_bytes_max = 65_536;
        net.host(Side::A).config.tcp_tso_win_divisor = divisor;
        net.open();
        net.run_for(Duration::from_millis(100));
        let mss = net.tcb(Side::A).info().snd_mss;
        let from = net.log.len();
        net.send(Side::A, &vec![1; 3 * mss as usize]);
        net.run_for(Duration::from_micros(wait_us));
        // The window of ten segments has room for seven: three packets of two segments, and a
        // partial packet.
        net.send(Side::A, &[1; 60_000]);
        let sent: u32 = net.sent_by(Side::A, from).iter().map(|sent| sent.len).sum();
        assert_eq!(sent, segments * mss, "{divisor}, {wait_us} us");
        net.lose_in_flight();
        net.finish_clean();
    }
}

/// Action after the last write: none, a FIN, or the end of a record.
type End = fn(&mut Tcb, &mut Cx<'_>);

/// A superframe that fits into the window is deferred as well, because later writes may enlarge it.
/// After a FIN or the end of a record no write can enlarge it, so it is sent at once, unless it
/// fills the window: Linux's tcp_tso_should_defer also checks the congestion window first, and the
/// FIN only if the packet is smaller than the windows allow.
#[test]
fn a_superframe_that_may_still_grow_is_deferred_for_a_near_ack() {
    const NOTHING: End = |_, _| ();
    const FIN: End = |tcb, cx| tcb.shutdown_write(cx);
    const RECORD: End = |tcb, _| tcb.end_record();
    // The window has room for three segments. Columns: segments written, the action after them,
    // segments sent at once, and `tcp_min_tso_segs`.
    let cases = [
        (1, NOTHING, 1, 5),
        (2, NOTHING, 0, 5),
        (2, FIN, 2, 5),
        (2, RECORD, 2, 5),
        (3, NOTHING, 0, 5),
        (3, FIN, 0, 5),
        (3, RECORD, 0, 5),
        (2, NOTHING, 2, 2),
        (2, NOTHING, 0, 4),
    ];
    for (case, (written, end, leave, enough)) in cases.into_iter().enumerate() {
        let mut net = Net::new(9);
        net.delay = Duration::from_millis(20);
        net.host(Side::A).path.gso_bytes_max = 65_536;
        net.host(Side::A).config.tcp_min_tso_segs = enough;
        net.open();
        net.run_for(Duration::from_millis(100));
        let mss = net.tcb(Side::A).info().snd_mss;
        let segments = |count: u32| vec![1; (count * mss) as usize];
        net.send(Side::A, &segments(3));
        net.run_for(Duration::from_micros(39_500));
        net.send(Side::A, &segments(4));
        let sent = |net: &Net, from| -> u32 {
            net.sent_by(Side::A, from).iter().map(|sent| sent.len).sum()
        };
        let from = net.log.len();
        net.send(Side::A, &segments(written));
        net.call(Side::A, end);
        assert_eq!(sent(&net, from), leave * mss, "case {case}");
        net.run_for(Duration::from_millis(1));
        assert_eq!(sent(&net, from), written * mss, "case {case}");
        net.run_for(Duration::from_secs(1));
        assert_eq!(net.recv(Side::B).len(), segments(7 + written).len());
        net.finish_clean();
    }
}

#[test]
fn bbr_paces_its_segments() {
    let mut net = Net::new(5);
    net.host(Side::A).options.congestion = Some(Algorithm::Bbr);
    net.host(Side::A).options.sndbuf = Some(200_000);
    net.open();
    send_for(&mut net, Duration::from_secs(1));
    let from = net.log.len();
    send_for(&mut net, Duration::from_millis(200));
    let sent = net.sent_by(Side::A, from);
    let moments: std::collections::BTreeSet<_> = sent.iter().map(|sent| sent.at).collect();
    assert!(moments.len() > sent.len() / 8, "{} moments of {}", moments.len(), sent.len());
    net.lose_in_flight();
    net.finish_clean();
}

#[test]
fn the_algorithm_can_change_during_a_transfer() {
    for seed in 0..20 {
        let mut net = Net::established(seed);
        net.impairment = Impairment { loss: 10, reorder: 20, ..Impairment::default() };
        let mut turn = 0u32;
        transfer(&mut net, seed, (400_000, 50_000), |net| {
            turn += 1;
            if turn.is_multiple_of(40) {
                let algorithm = Algorithm::ALL[(turn / 40) as usize % 4];
                for side in [Side::A, Side::B] {
                    if net.host(side).tcb.is_some() {
                        net.call(side, |tcb, _| tcb.set_congestion(algorithm));
                        assert_eq!(net.tcb(side).congestion(), algorithm);
                    }
                }
            }
        });
        net.finish_clean();
    }
}

/// Returns the congestion window before and after three idle seconds.
fn windows_around_idling(algorithm: Algorithm, slow_start_after_idle: bool) -> (u32, u32) {
    let mut net = Net::new(6);
    net.host(Side::A).options.congestion = Some(algorithm);
    net.host(Side::A).config.tcp_slow_start_after_idle = slow_start_after_idle;
    net.open();
    send_for(&mut net, Duration::from_millis(300));
    net.run_for(Duration::from_millis(500));
    net.recv(Side::B);
    let before = net.tcb(Side::A).info().cwnd;
    net.run_for(Duration::from_secs(3));
    net.send(Side::A, &[1; 1000]);
    let after = net.tcb(Side::A).info().cwnd;
    net.lose_in_flight();
    net.finish_clean();
    (before, after)
}

#[test]
fn the_congestion_window_is_reduced_when_idle_unless_the_setting_or_bbr_prevents_it() {
    for algorithm in Algorithm::ALL {
        let (before, after) = windows_around_idling(algorithm, true);
        assert!(before > 40_000, "{algorithm}: {before}");
        if algorithm == Algorithm::Bbr {
            assert_eq!(after, before, "{algorithm}");
        } else {
            assert!(after < before, "{algorithm}: {after} of {before}");
        }
        let (before, after) = windows_around_idling(algorithm, false);
        assert_eq!(after, before, "{algorithm}");
    }
}
