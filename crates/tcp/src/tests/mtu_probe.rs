//! Path MTU discovery by probing (RFC 4821): delivered probes, lost probes, and black holes (paths
//! that drop large packets without an ICMP report).

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::net::{Net, Side};
use crate::Counter;

/// A connection that probes from the handshake on, over a path that carries IP packets of `mtu`
/// bytes.
fn searching(seed: u64, mtu: u32, gso: u32) -> Net {
    let mut net = Net::new(seed);
    net.host(Side::A).config.tcp_mtu_probing = 2;
    net.host(Side::A).path.gso_bytes_max = gso;
    net.path_mtu = Some(mtu);
    net.open();
    net.run_for(Duration::from_millis(100));
    net
}

/// Sends `total` bytes as fast as the buffer accepts them, and checks the received data.
fn transfer(net: &mut Net, total: usize) {
    let body: Vec<u8> = (0..total).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let (mut sent, mut got) = (0, vec![]);
    net.run_until(|net| {
        while sent < total {
            let piece = &body[sent..total.min(sent + 30_000)];
            match net.call(Side::A, |tcb, cx| tcb.send(cx, &[piece], false)) {
                Ok(taken) => sent += taken,
                Err(_) => break,
            }
        }
        got.extend(net.recv(Side::B));
        got.len() >= total
    });
    assert_eq!(got, body);
}

#[test]
fn a_search_starts_at_tcp_base_mss_and_finds_the_mtu_without_icmp() {
    for (seed, gso) in [(1, 0), (2, 65_535)] {
        for mtu in [1500, 1400, 1280] {
            let mut net = searching(seed, mtu, gso);
            assert_eq!(net.tcb(Side::A).mss(), 1024, "the search did not start at tcp_base_mss");
            transfer(&mut net, 2_000_000);
            let found = net.tcb(Side::A).mss() + 52;
            assert!(found <= mtu && found + 8 > mtu, "{found} of {mtu}, gso {gso}");
            assert!(net.count(Side::A, Counter::TcpExtTCPMTUPSuccess) > 0);
            let failed = net.count(Side::A, Counter::TcpExtTCPMTUPFail);
            assert_eq!(failed > 0, mtu < 1500, "{failed} probes lost at {mtu}");
            assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
            net.finish_clean();
        }
    }
}

#[test]
fn a_lost_probe_does_not_reduce_the_window() {
    let mut net = searching(3, 1100, 0);
    let mut seen = 0;
    let body = vec![5; 400_000];
    let mut sent = 0;
    net.run_until(|net| {
        while let Ok(taken) = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&body[sent..]], false)) {
            sent += taken;
            if sent == body.len() {
                break;
            }
        }
        seen += net.recv(Side::B).len();
        net.count(Side::A, Counter::TcpExtTCPMTUPFail) >= 2
    });
    let tcb = net.tcb(Side::A);
    assert_eq!(tcb.congestion.ssthresh(), u32::MAX, "a loss counted as congestion");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 0);
    net.finish_clean();
}

#[test]
fn a_probe_lost_together_with_segments_indicates_congestion() {
    let mut net = searching(4, 1500, 0);
    // A flight of a probe and full segments; the probe and the next segment are lost.
    net.send(Side::A, &vec![5; 20_000]);
    net.run_for(Duration::from_millis(100));
    net.recv(Side::B);
    let before = net.log.len();
    net.drop_segments(&[0, 1]);
    net.send(Side::A, &vec![5; 20_000]);
    let probe = net.sent_by(Side::A, before)[0].len;
    net.run_for(Duration::from_secs(1));
    assert!(probe > net.tcb(Side::A).mss(), "the first segment is not a probe: {probe} bytes");
    assert_eq!(
        net.count(Side::A, Counter::TcpExtTCPMTUPFail),
        0,
        "a probe lost with its successor counted as failed (RFC 4821 §7.6.2)"
    );
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 1);
    net.finish_clean();
}

#[test]
fn timeouts_detect_a_black_hole_and_lower_the_mss() {
    let mut net = Net::new(5);
    net.host(Side::A).config.tcp_mtu_probing = 1;
    net.open();
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.tcb(Side::A).mss(), 1448);
    // The handshake and small messages pass this path, so they do not reveal the black hole.
    net.path_mtu = Some(700);
    let start = net.now;
    transfer(&mut net, 100_000);
    let took = net.now - start;
    assert!((3..60).contains(&took.as_secs()), "{took:?}");
    assert!(net.tcb(Side::A).mss() <= 700 - 52);
    net.finish_clean();
}

#[test]
fn without_probing_a_black_hole_stalls_the_connection() {
    let mut net = Net::new(6);
    net.open();
    net.run_for(Duration::from_millis(100));
    net.path_mtu = Some(700);
    net.send(Side::A, &vec![1; 5000]);
    net.run_for(Duration::from_secs(120));
    assert!(net.recv(Side::B).is_empty(), "a segment that is too large for the path was delivered");
    net.finish_clean();
}

#[test]
fn black_hole_detection_halves_the_mss_down_to_tcp_mtu_probe_floor() {
    let mut net = Net::new(7);
    net.host(Side::A).config.tcp_mtu_probing = 1;
    net.host(Side::A).config.tcp_mtu_probe_floor = 200;
    net.open();
    net.run_for(Duration::from_millis(100));
    net.path_mtu = Some(100);
    net.send(Side::A, &vec![1; 5000]);
    net.run_for(Duration::from_secs(300));
    assert_eq!(net.tcb(Side::A).mss(), 200);
    net.finish_clean();
}

#[test]
fn a_finished_search_restarts_after_its_interval() {
    let mut net = searching(8, 1280, 0);
    transfer(&mut net, 1_000_000);
    assert!(net.tcb(Side::A).mss() + 52 <= 1280);
    net.path_mtu = None;
    transfer(&mut net, 1_000_000);
    assert!(net.tcb(Side::A).mss() + 52 <= 1280, "the search restarted before the interval");
    net.run_for(Duration::from_secs(600));
    transfer(&mut net, 1_000_000);
    assert!(net.tcb(Side::A).mss() > 1430, "the search did not restart after tcp_probe_interval");
    net.finish_clean();
}

#[test]
fn an_icmp_report_below_the_found_mtu_lowers_the_mss() {
    let mut net = searching(9, 1500, 0);
    transfer(&mut net, 1_000_000);
    assert!(net.tcb(Side::A).mss() > 1300, "the search found no larger MSS than its first");
    net.path_mtu = Some(800);
    net.call(Side::A, |tcb, _| tcb.set_path_mtu(800));
    transfer(&mut net, 300_000);
    assert!(net.tcb(Side::A).mss() <= 800 - 40);
    net.finish_clean();
}
