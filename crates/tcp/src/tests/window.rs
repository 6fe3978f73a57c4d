//! The window: scaling, closing and reopening, probes, avoidance of silly windows, and growing
//! buffers.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Readiness, SendError, State};

/// Writes on A until the send buffer is full. Returns the number of bytes written.
fn fill(net: &mut Net) -> usize {
    let chunk = [9; 10_000];
    let mut total = 0;
    loop {
        match net.call(Side::A, |tcb, cx| tcb.send(cx, &[&chunk[..]], false)) {
            Ok(n) => total += n,
            Err(SendError::WouldBlock) => return total,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A connection on which A has filled B's window, and the number of bytes that A has written.
fn stalled(seed: u64) -> (Net, usize) {
    let mut net = Net::new(seed);
    net.host(Side::B).options.rcvbuf = Some(16_384);
    net.open();
    let mut written = 0;
    for _ in 0..40 {
        written += fill(&mut net);
        net.run_for(Duration::from_millis(50));
    }
    assert_eq!(net.tcb(Side::A).info().snd_wnd, 0, "the window is not closed");
    (net, written)
}

#[test]
fn a_closed_window_is_probed_at_growing_intervals() {
    let (mut net, _) = stalled(1);
    let before = net.log.len();
    net.run_for(Duration::from_secs(60));
    let una = net.tcb(Side::A).snd_una;
    let probes = net.sent_by(Side::A, before);
    assert!((5..=9).contains(&probes.len()), "{} probes", probes.len());
    assert!(probes.iter().all(|probe| probe.len == 0 && probe.header.seq == una - 1));
    let first = probes[1].at - probes[0].at;
    let last = probes[probes.len() - 1].at - probes[probes.len() - 2].at;
    assert!(last >= first * 4, "{first:?} to {last:?}");
    net.finish_clean();
}

#[test]
fn a_closed_window_is_probed_for_as_long_as_the_peer_answers() {
    let (mut net, _) = stalled(2);
    net.run_for(Duration::from_secs(24 * 3600));
    assert_eq!(net.state(Side::A), State::Established);
    net.impairment = Impairment { loss: 1000, ..Impairment::default() };
    net.run_until(|net| net.state(Side::A) == State::Close);
    net.finish_clean();
}

#[test]
fn an_orphan_does_not_wait_forever_for_a_closed_window() {
    let (mut net, _) = stalled(3);
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_secs(1200));
    assert_eq!(net.state(Side::A), State::Close);
    net.finish_clean();
}

#[test]
fn reading_reopens_a_closed_window_at_once() {
    let (mut net, written) = stalled(4);
    let mut got = 0;
    let start = net.now;
    while got < written {
        got += net.recv(Side::B).len();
        net.run_for(Duration::from_millis(20));
        assert!(net.now - start < Duration::from_secs(5), "{got} of {written}");
    }
    assert!(net.count(Side::B, Counter::TcpExtTCPToZeroWindowAdv) >= 1);
    assert!(net.count(Side::B, Counter::TcpExtTCPFromZeroWindowAdv) >= 1);
    net.finish_clean();
}

#[test]
fn a_lost_window_update_is_recovered_by_a_probe() {
    let (mut net, written) = stalled(5);
    net.run_for(Duration::from_secs(1));
    let mut got = net.recv(Side::B).len();
    net.lose_in_flight();
    net.run_until(|net| net.tcb(Side::A).info().snd_wnd > 0);
    while got < written {
        net.run_for(Duration::from_millis(100));
        got += net.recv(Side::B).len();
    }
    net.finish_clean();
}

#[test]
fn the_announced_edge_never_moves_back_and_small_reads_send_no_ack() {
    let (mut net, _) = stalled(6);
    let before = net.log.len();
    let mut byte = [0; 1];
    for _ in 0..200 {
        let read = net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut byte, false));
        assert_eq!(read, Ok(1));
    }
    assert!(net.sent_by(Side::B, before).is_empty(), "reads of single bytes announced a window");
    let mut edge = None;
    let scale = net.tcb(Side::B).info().window_scales.1;
    for sent in net.log.iter().filter(|sent| sent.from == Side::B).skip(1) {
        let end = sent.header.ack + (u32::from(sent.header.window) << scale);
        assert!(edge.is_none_or(|edge| end.ge(edge)), "the edge moved back");
        edge = Some(end);
    }
    net.finish_clean();
}

#[test]
fn scaled_windows_exceed_64_kilobytes() {
    let mut net = Net::established(7);
    net.delay = Duration::from_millis(50);
    let mut read = 0;
    while read < 4_000_000 {
        fill(&mut net);
        net.step();
        read += net.recv(Side::B).len();
    }
    assert!(net.tcb(Side::A).info().snd_wnd > 400_000, "{:?}", net.tcb(Side::A).info());
    net.finish_clean();
}

#[test]
fn without_scaling_the_window_fits_into_sixteen_bits() {
    let mut net = Net::new(8);
    net.host(Side::B).config.tcp_window_scaling = false;
    net.open();
    assert_eq!(net.tcb(Side::A).info().window_scales, (0, 0));
    let mut read = 0;
    while read < 1_000_000 {
        fill(&mut net);
        net.step();
        read += net.recv(Side::B).len();
        assert!(net.tcb(Side::A).info().snd_wnd <= 65_535);
    }
    net.finish_clean();
}

#[test]
fn the_receive_buffer_grows_with_the_read_rate_unless_it_is_fixed() {
    for fixed in [None, Some(100_000)] {
        let mut net = Net::new(9);
        net.host(Side::B).options.rcvbuf = fixed;
        net.delay = Duration::from_millis(20);
        net.open();
        let mut read = 0;
        while read < 3_000_000 {
            fill(&mut net);
            net.step();
            read += net.recv(Side::B).len();
        }
        let rcvbuf = net.tcb(Side::B).rcvbuf();
        match fixed {
            Some(bytes) => assert_eq!(rcvbuf, bytes),
            None => assert!(rcvbuf > 500_000, "{rcvbuf}"),
        }
        net.finish_clean();
    }
}

#[test]
fn the_send_buffer_grows_with_the_window_and_is_not_writable_when_full() {
    let mut net = Net::established(10);
    let first = fill(&mut net);
    assert!(!net.tcb(Side::A).readiness().contains(Readiness::WRITE));
    let mut read = 0;
    while read < 2_000_000 {
        net.step();
        fill(&mut net);
        read += net.recv(Side::B).len();
    }
    let sndbuf = net.tcb(Side::A).sndbuf();
    assert!(sndbuf > 300_000 && sndbuf <= 4_194_304, "{sndbuf}");
    net.run_for(Duration::from_secs(1));
    assert!(first < 100_000);
    net.finish_clean();
}

#[test]
fn a_transfer_completes_although_the_window_is_smaller_than_a_segment() {
    let mut net = Net::new(11);
    net.host(Side::B).options.rcvbuf = Some(2304);
    net.open();
    let window = net.tcb(Side::A).info().snd_wnd;
    assert!(window > 0 && window < 1448, "{window}");
    let body = [3; 20_000];
    let (mut sent, mut got) = (0, 0);
    let start = net.now;
    while got < body.len() {
        if sent < body.len()
            && let Ok(n) = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&body[sent..]], false))
        {
            sent += n;
        }
        assert!(net.step());
        got += net.recv(Side::B).len();
        assert!(net.now - start < Duration::from_secs(60), "{got} bytes so far");
    }
    net.finish_clean();
}

#[test]
fn tiny_segments_are_coalesced_in_the_receive_queue() {
    let mut net = Net::established(12);
    net.tcb(Side::A).set_nodelay(true);
    for _ in 0..3000 {
        net.send(Side::A, b"tiny");
        net.run_for(Duration::from_millis(1));
    }
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPRcvQDrop), 0);
    assert!(net.count(Side::B, Counter::TcpExtTCPRcvCoalesce) > 2900);
    assert_eq!(net.recv(Side::B).len(), 12_000);
    net.finish_clean();
}
