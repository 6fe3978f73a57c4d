//! Growth and bounds of the receive buffer and of the announced window.

use core::time::Duration;

use super::net::{Net, Side};
use crate::{Counter, Readiness, SendError, tcb::TcbFlags};

/// Sends from A for `time` as fast as the buffers allow; with `reads`, B reads after every step.
/// Returns the bytes that B has read.
fn stream(net: &mut Net, time: Duration, reads: bool) -> usize {
    let (end, mut got) = (net.now + time, 0);
    while net.now < end {
        loop {
            match net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 16_384][..]], false)) {
                Ok(_) => {}
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        if !net.step() {
            break;
        }
        if reads {
            got += net.recv(Side::B).len();
        }
    }
    got
}

/// Returns the right edges of the windows that B has announced, in order. The edge of B's SYN,
/// whose window is not scaled, is left out.
fn edges(net: &Net, shift: u8) -> std::vec::Vec<crate::SeqNum> {
    let sent = net.log.iter().filter(|sent| sent.from == Side::B).skip(1);
    sent.map(|sent| sent.header.ack + (u32::from(sent.header.window) << shift)).collect()
}

#[test]
fn the_buffer_grows_with_the_reads_of_the_application_and_hardly_without_them() {
    for reads in [true, false] {
        let mut net = Net::new(1);
        net.delay = Duration::from_millis(25);
        net.open();
        let before = net.tcb(Side::B).rcvbuf();
        stream(&mut net, Duration::from_secs(3), reads);
        let after = net.tcb(Side::B).rcvbuf();
        if reads {
            assert!(after > 1_000_000, "{after}");
        } else {
            assert!(after <= before * 5 / 4, "{after}");
        }
        net.finish_clean();
    }
}

#[test]
fn the_buffer_holds_at_least_two_round_trips_of_data_of_a_reader_at_a_fixed_rate() {
    let mut net = Net::new(2);
    net.delay = Duration::from_millis(50);
    net.open();
    let mut buf = [0; 20_000];
    let mut turns = 0;
    while turns < 1000 {
        let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 40_000][..]], false));
        // 20 kB every 10 ms: 200 kB per round trip.
        net.run_for(Duration::from_millis(10));
        let _ = net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, false));
        turns += 1;
    }
    let info = net.tcb(Side::B).info();
    assert!((180_000..=320_000).contains(&info.rcv_space), "{}", info.rcv_space);
    let rcvbuf = net.tcb(Side::B).rcvbuf();
    assert!((400_000..2_500_000).contains(&rcvbuf), "{rcvbuf}");
    net.finish_clean();
}

#[test]
fn without_tcp_moderate_rcvbuf_the_buffer_keeps_its_default_size() {
    let mut net = Net::new(3);
    net.host(Side::B).config.tcp_moderate_rcvbuf = false;
    net.delay = Duration::from_millis(25);
    net.open();
    stream(&mut net, Duration::from_secs(2), true);
    assert_eq!(net.tcb(Side::B).rcvbuf(), 131_072);
    net.finish_clean();
}

#[test]
fn autotuning_stops_at_the_maximum_of_tcp_rmem() {
    let mut net = Net::new(4);
    net.host(Side::B).config.tcp_rmem.max = 400_000;
    net.delay = Duration::from_millis(100);
    net.open();
    stream(&mut net, Duration::from_secs(4), true);
    assert_eq!(net.tcb(Side::B).rcvbuf(), 400_000);
    net.finish_clean();
}

#[test]
fn the_round_trip_is_measured_with_and_without_timestamps() {
    for timestamps in [true, false] {
        let mut net = Net::new(5);
        net.host(Side::B).config.tcp_timestamps = timestamps;
        net.delay = Duration::from_millis(40);
        net.open();
        // Each timestamp echo gives only one sample. Later segments of a flight with the same echo
        // would give larger ones.
        stream(&mut net, Duration::from_secs(2), true);
        let rtt = net.tcb(Side::B).info().rcv_rtt;
        let longest = if timestamps { 130 } else { 200 };
        assert!(
            rtt >= Duration::from_millis(79) && rtt < Duration::from_millis(longest),
            "{rtt:?}"
        );
        net.finish_clean();
    }
}

#[test]
fn the_window_grows_with_the_arriving_data() {
    let mut net = Net::established(6);
    let start = net.tcb(Side::B).info().rcv_ssthresh;
    assert!(start <= 65_535, "{start}");
    net.send(Side::A, &[7; 1448 * 4]);
    net.run_for(Duration::from_millis(15));
    let after = net.tcb(Side::B).info().rcv_ssthresh;
    assert!(after > start || after >= net.tcb(Side::B).window_clamp(), "{start} to {after}");
    assert!(
        after - start <= 4 * 2 * 1460,
        "more than two segments for each received one: {}",
        after - start
    );
    net.finish_clean();
}

#[test]
fn tiny_segments_do_not_grow_the_window() {
    let mut net = Net::established(7);
    net.tcb(Side::A).set_nodelay(true);
    let start = net.tcb(Side::B).info().rcv_ssthresh;
    for _ in 0..50 {
        net.send(Side::A, &[7; 100]);
        net.run_for(Duration::from_millis(20));
        net.recv(Side::B);
    }
    assert_eq!(net.tcb(Side::B).info().rcv_ssthresh, start);
    net.finish_clean();
}

#[test]
fn a_window_clamp_bounds_the_announced_window() {
    let mut net = Net::new(8);
    net.host(Side::B).options.window_clamp = Some(20_000);
    net.delay = Duration::from_millis(25);
    net.open();
    stream(&mut net, Duration::from_secs(2), true);
    let shift = net.tcb(Side::B).info().window_scales.1;
    assert_eq!(shift, 0, "a window of 20,000 bytes is scaled");
    let largest = net.sent_by(Side::B, 0).iter().map(|sent| sent.header.window).max();
    assert!(largest.unwrap() <= 20_000, "{largest:?}");
    net.finish_clean();
}

#[test]
fn a_clamp_set_on_a_connection_reduces_the_window_only_as_data_arrives() {
    let mut net = Net::new(9);
    net.delay = Duration::from_millis(25);
    net.open();
    stream(&mut net, Duration::from_secs(1), true);
    net.call(Side::B, |tcb, _| tcb.set_window_clamp(30_000));
    let before = net.log.len();
    stream(&mut net, Duration::from_secs(2), true);
    let shift = net.tcb(Side::B).info().window_scales.1;
    let edges = edges(&net, shift);
    assert!(edges.windows(2).all(|pair| pair[1].ge(pair[0])), "the edge moved back");
    let last = net.sent_by(Side::B, before).last().unwrap().header.window;
    assert!(u32::from(last) << shift <= 30_000 + (1 << shift), "{last}");
    assert_eq!(net.tcb(Side::B).window_clamp(), 30_000);
    net.call(Side::B, |tcb, _| tcb.set_window_clamp(0));
    assert!(net.tcb(Side::B).window_clamp() > 100_000);
    net.finish_clean();
}

#[test]
fn a_smaller_buffer_set_on_a_connection_never_moves_the_announced_edge_back() {
    let mut net = Net::new(10);
    net.delay = Duration::from_millis(25);
    net.open();
    stream(&mut net, Duration::from_secs(1), true);
    net.call(Side::B, |tcb, _| tcb.set_rcvbuf(10_000));
    stream(&mut net, Duration::from_secs(2), true);
    let shift = net.tcb(Side::B).info().window_scales.1;
    assert!(edges(&net, shift).windows(2).all(|pair| pair[1].ge(pair[0])), "the edge moved back");
    assert_eq!(
        net.tcb(Side::B).rcvbuf(),
        10_000,
        "autotuning has changed the size that the application set"
    );
    net.finish_clean();
}

/// Shrinks B's buffer while a flight is on its way, and checks that the whole flight is accepted.
/// Returns the number of segments dropped because of a zero window, and of those beyond the window.
fn shrinking(shrink: bool) -> (u64, u64) {
    let mut net = Net::new(14);
    net.delay = Duration::from_millis(25);
    net.host(Side::B).config.tcp_shrink_window = shrink;
    net.open();
    stream(&mut net, Duration::from_secs(1), true);
    net.run_for(Duration::from_secs(1));
    net.recv(Side::B);
    let shift = net.tcb(Side::B).info().window_scales.1;
    let before = net.log.len();
    // The buffer shrinks while the first half of the flight is on its way.
    for _ in 0..10 {
        net.send(Side::A, &[7; 1448]);
        net.run_for(Duration::from_millis(1));
    }
    net.call(Side::B, |tcb, _| tcb.set_rcvbuf(40_000));
    for _ in 0..10 {
        net.send(Side::A, &[7; 1448]);
    }
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.recv(Side::B).len(), 20 * 1448);
    let moved_back = edges(&net, shift).windows(2).any(|pair| pair[1].lt(pair[0]));
    assert_eq!(
        moved_back, shrink,
        "the edge moved back without tcp_shrink_window, or stayed with it"
    );
    assert_eq!(net.tcb(Side::A).info().total_retrans, 0, "{:?}", net.sent_by(Side::B, before));
    let dropped = net.count(Side::B, Counter::TcpExtTCPZeroWindowDrop);
    let beyond = net.count(Side::B, Counter::TcpExtBeyondWindow);
    net.finish_clean();
    (dropped, beyond)
}

#[test]
fn tcp_shrink_window_retracts_the_edge_and_accepts_data_in_flight() {
    assert_eq!(shrinking(true), (0, 0));
    assert_eq!(shrinking(false), (0, 0));
}

#[test]
fn a_retracted_edge_is_remembered_until_rcv_nxt_passes_it() {
    let mut net = Net::new(15);
    net.delay = Duration::from_millis(25);
    net.host(Side::B).config.tcp_shrink_window = true;
    net.open();
    stream(&mut net, Duration::from_secs(1), true);
    net.run_for(Duration::from_secs(1));
    net.recv(Side::B);
    net.call(Side::B, |tcb, _| tcb.set_rcvbuf(40_000));
    net.send(Side::A, &[7; 1448]);
    net.run_for(Duration::from_secs(1));
    let tcb = net.tcb(Side::B);
    assert!(tcb.flags.contains(TcbFlags::RETRACTED | TcbFlags::HAS_RETRACTED));
    let (low, high) = (tcb.retracted_to, tcb.retracted_edge);
    assert!(
        low.lt(high) && low.ge(tcb.rcv_nxt),
        "the edge did not move back, or moved before RCV.NXT"
    );
    // RCV.NXT passes the new edge, but not the old one.
    while net.tcb(Side::B).rcv_nxt.le(low) {
        net.send(Side::A, &[7; 1448]);
        net.run_for(Duration::from_millis(100));
        net.recv(Side::B);
    }
    assert!(
        net.tcb(Side::B).rcv_nxt.lt(high),
        "no data is left between both edges, which the test needs"
    );
    assert!(net.tcb(Side::B).flags.contains(TcbFlags::HAS_RETRACTED));
    assert_eq!(net.tcb(Side::B).retracted_to, low);
    stream(&mut net, Duration::from_secs(10), true);
    assert!(net.tcb(Side::B).rcv_nxt.gt(high));
    assert!(!net.tcb(Side::B).flags.contains(TcbFlags::HAS_RETRACTED));
    net.run_for(Duration::from_secs(1));
    net.recv(Side::B);
    net.finish_clean();
}

#[test]
fn a_window_that_the_peer_has_shrunk_is_respected_without_data_loss() {
    let mut net = Net::established(11);
    net.run_for(Duration::from_millis(100));
    net.send(Side::A, &[7; 8 * 1448]);
    let una = net.tcb(Side::A).snd_una;
    net.run_for(Duration::from_millis(14));
    // RFC 9293 §3.8.6: a sender must be robust against a shrunk window. One segment is
    // acknowledged, and the window ends after the next one.
    let mut header = net.forge(Side::A);
    header.ack = una + 1448;
    header.window = u16::try_from(1448u32.div_ceil(1 << net.tcb(Side::A).snd_wscale)).unwrap();
    net.lose_in_flight();
    net.inject(Side::A, &header, b"");
    assert!(net.tcb(Side::A).info().snd_wnd < 2000);
    let before = net.log.len();
    let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[8; 1448][..]], false));
    assert!(net.sent_by(Side::A, before).is_empty(), "new data was sent beyond the window");
    net.run_for(Duration::from_secs(20));
    assert_eq!(net.recv(Side::B).len(), 9 * 1448);
    net.finish_clean();
}

#[test]
fn rcvlowat_delays_readability_until_enough_data_arrived() {
    let mut net = Net::new(12);
    net.host(Side::B).options.rcvlowat = Some(5000);
    net.open();
    net.send(Side::A, &[7; 4999]);
    net.run_for(Duration::from_millis(100));
    assert!(!net.tcb(Side::B).readiness().contains(Readiness::READ));
    net.send(Side::A, &[7; 1]);
    net.run_for(Duration::from_millis(100));
    assert!(net.tcb(Side::B).readiness().contains(Readiness::READ));
    net.recv(Side::B);
    net.send(Side::A, b"end");
    net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_millis(100));
    assert!(
        net.tcb(Side::B).readiness().contains(Readiness::READ),
        "the end of the stream did not make the socket readable"
    );
    net.finish_clean();
}

#[test]
fn rcvlowat_enlarges_the_buffer_and_is_at_most_half_of_its_limit() {
    let mut net = Net::established(13);
    net.call(Side::B, |tcb, cx| tcb.set_rcvlowat(cx, 1_000_000));
    assert_eq!(net.tcb(Side::B).rcvlowat(), 1_000_000);
    assert!(net.tcb(Side::B).window_clamp() >= 1_000_000);
    net.call(Side::B, |tcb, cx| tcb.set_rcvlowat(cx, u32::MAX));
    assert_eq!(net.tcb(Side::B).rcvlowat(), 6_291_456 / 2);
    net.call(Side::B, |tcb, cx| tcb.set_rcvlowat(cx, 0));
    assert_eq!(net.tcb(Side::B).rcvlowat(), 1);
    net.call(Side::B, |tcb, _| tcb.set_rcvbuf(20_000));
    net.call(Side::B, |tcb, cx| tcb.set_rcvlowat(cx, 1_000_000));
    assert_eq!(net.tcb(Side::B).rcvlowat(), 10_000);
    assert_eq!(net.tcb(Side::B).rcvbuf(), 20_000);
    net.finish_clean();
}

#[test]
fn a_rcvlowat_larger_than_the_window_does_not_stall() {
    let mut net = Net::new(14);
    net.host(Side::B).options.rcvbuf = Some(16_384);
    net.host(Side::B).options.rcvlowat = Some(1 << 20);
    net.open();
    let (mut sent, mut got) = (0, 0);
    let body = [7; 100_000];
    let start = net.now;
    while got < body.len() {
        if sent < body.len()
            && let Ok(n) = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&body[sent..]], false))
        {
            sent += n;
        }
        assert!(net.step());
        if net.tcb(Side::B).readiness().contains(Readiness::READ) {
            got += net.recv(Side::B).len();
        } else if sent == body.len() && net.tcb(Side::A).unacked_bytes() == 0 {
            // The tail is shorter than `SO_RCVLOWAT`, so the socket does not become readable before
            // the end of the stream.
            got += net.recv(Side::B).len();
        }
        assert!(net.now - start < Duration::from_secs(30), "{got} bytes so far");
    }
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPRcvQDrop), 0);
    net.finish_clean();
}
