//! Passive opens with requests (the objects for connections in SYN-RECEIVED, Linux's request
//! sockets), and the options of the handshake.

use core::time::Duration;

use pkt::DropReason;

use super::net::{Net, Side};
use crate::{Algorithm, Counter, Flags, PathMetrics, Request, State, Tcb, TcpError, TimeWait};

#[test]
fn sizes_of_requests_connections_and_time_waits_are_bounded() {
    assert!(size_of::<Request>() <= 256, "{}", size_of::<Request>());
    assert!(size_of::<TimeWait>() <= 128, "{}", size_of::<TimeWait>());
    assert!(size_of::<Tcb>() <= 1472, "{}", size_of::<Tcb>());
}

#[test]
fn a_full_accept_queue_drops_the_ack_and_a_later_segment_establishes() {
    let mut net = Net::new(1);
    net.host(Side::B).listening = true;
    net.host(Side::B).accept_room = false;
    net.connect(Side::A);
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.state(Side::B), State::SynRecv);
    assert_eq!(net.host(Side::B).drops, [DropReason::ListenOverflow]);
    assert_eq!(net.count(Side::B, Counter::TcpExtListenOverflows), 1);
    net.send(Side::A, b"early");
    net.host(Side::B).accept_room = true;
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.state(Side::B), State::Established);
    assert_eq!(net.recv(Side::B), b"early");
    net.finish_clean();
}

#[test]
fn data_establishes_the_connection_if_the_ack_of_the_handshake_was_lost() {
    let mut net = Net::new(2);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.run_until(|net| net.state(Side::A) == State::Established);
    net.lose_in_flight();
    net.send(Side::A, b"hello");
    net.step();
    assert_eq!(net.state(Side::B), State::Established);
    assert_eq!(net.recv(Side::B), b"hello");
    net.finish_clean();
}

#[test]
fn the_handshake_completes_although_a_syn_ack_was_lost() {
    let mut net = Net::new(3);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.step();
    net.lose_in_flight();
    net.run_until(|net| net.state(Side::B) == State::Established);
    assert_eq!(net.state(Side::A), State::Established);
    assert!(net.count(Side::A, Counter::TcpExtTCPSynRetrans) <= 1);
    net.finish_clean();
}

#[test]
fn a_wrong_ack_of_the_syn_ack_is_answered_by_a_reset() {
    let mut net = Net::new(4);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.step();
    net.run_until(|net| net.state(Side::A) == State::Established);
    let mut wrong = net.log[0].header.clone();
    wrong.flags = Flags::ACK;
    wrong.seq += 1;
    wrong.ack = net.log[1].header.seq + 99;
    wrong.options = crate::Options::new();
    net.inject(Side::B, &wrong, b"");
    let rst = net.log.last().unwrap();
    assert_eq!((rst.header.flags, rst.header.seq), (Flags::RST, wrong.ack));
    assert_eq!(net.state(Side::B), State::SynRecv);
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::B), State::Established);
    net.finish_clean();
}

#[test]
fn a_reset_removes_a_request() {
    let mut net = Net::new(5);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.step();
    let mut rst = net.log[0].header.clone();
    rst.flags = Flags::RST;
    rst.seq += 1;
    net.inject(Side::B, &rst, b"");
    assert_eq!(net.state(Side::B), State::Listen);
    assert_eq!(net.count(Side::B, Counter::TcpExtEmbryonicRsts), 1);
    net.finish_clean();
}

#[test]
fn options_are_used_only_when_both_sides_offer_them() {
    for (a, b) in [(true, false), (false, true), (false, false)] {
        let mut net = Net::new(6);
        net.host(Side::A).config.tcp_timestamps = a;
        net.host(Side::A).config.tcp_window_scaling = a;
        net.host(Side::B).config.tcp_timestamps = b;
        net.host(Side::B).config.tcp_window_scaling = b;
        net.open();
        for side in [Side::A, Side::B] {
            let info = net.tcb(side).info();
            assert!(!info.timestamps);
            assert_eq!(info.window_scales, (0, 0));
            assert_eq!(info.snd_mss, 1460);
        }
        let syn_ack = &net.log[1].header.options;
        assert_eq!((syn_ack.window_scale, syn_ack.timestamps), (None, None));
        net.finish_clean();
    }
}

#[test]
fn both_sides_use_the_smaller_mss() {
    let mut net = Net::new(7);
    net.host(Side::B).path.mtu = 600;
    net.host(Side::B).path.receive_mtu = 600;
    net.host(Side::A).options.maxseg = Some(1000);
    net.open();
    assert_eq!(net.log[0].header.options.mss, Some(1000));
    assert_eq!(net.log[1].header.options.mss, Some(560));
    assert_eq!(net.tcb(Side::A).mss(), 548);
    assert_eq!(net.tcb(Side::B).mss(), 548);
    net.finish_clean();
}

#[test]
fn metrics_of_the_route_shape_the_connection() {
    let mut net = Net::new(10);
    net.host(Side::A).path.metrics = PathMetrics {
        window: 20_000,
        rtt_ms: 400,
        advmss: 1000,
        initcwnd: 3,
        initrwnd: 2,
        quickack: true,
        congctl: Some(Algorithm::Reno),
    };
    net.host(Side::A).options.congestion = Some(Algorithm::Dctcp);
    net.open();
    assert_eq!(net.log[0].header.options.mss, Some(1000));
    assert_eq!(net.log[0].header.window, 2000);
    assert_eq!(net.tcb(Side::B).mss(), 988);
    let tcb = net.tcb(Side::A);
    let info = tcb.info();
    assert_eq!(info.cwnd, 3 * info.snd_mss);
    assert_eq!(tcb.congestion(), Algorithm::Reno, "not the algorithm of the route");
    assert_eq!(tcb.window_clamp(), 20_000);
    assert!(tcb.ack.is_quick(), "quick ACKs have not started before any data");
    // The measured 20 ms are below the metric of 400 ms, so the RTO is 400 ms plus 2 · 400 ms.
    assert_eq!(info.rto, Duration::from_millis(1200));
    assert_eq!(net.tcb(Side::B).info().cwnd, 10 * 988, "the peer's route changed its window");
    net.finish_clean();
}

#[test]
fn the_first_rto_follows_from_the_measured_rtt_if_the_metric_is_smaller() {
    let mut net = Net::new(11);
    net.host(Side::A).path.metrics.rtt_ms = 10;
    net.open();
    assert_eq!(net.tcb(Side::A).info().rto, Duration::from_millis(220));
    net.finish_clean();
}

#[test]
fn a_listener_applies_the_metrics_of_the_route_to_the_client() {
    let mut net = Net::new(12);
    let metrics = PathMetrics { advmss: 700, initrwnd: 4, initcwnd: 5, ..PathMetrics::default() };
    net.host(Side::B).path.metrics = metrics;
    net.open();
    assert_eq!(net.log[1].header.options.mss, Some(700));
    assert_eq!(net.log[1].header.window, 2800);
    let info = net.tcb(Side::B).info();
    assert_eq!(info.cwnd, 5 * info.snd_mss);
    net.finish_clean();
}

#[test]
fn a_small_path_mtu_does_not_lower_the_mss_option() {
    for narrow in [Side::A, Side::B] {
        let mut net = Net::new(9);
        net.host(narrow).path.mtu = 600;
        net.open();
        assert_eq!(net.log[0].header.options.mss, Some(1460));
        assert_eq!(net.log[1].header.options.mss, Some(1460));
        let mss = |side| net.tcb(side).mss();
        let sizes = [Side::A, Side::B].map(mss);
        assert_eq!(sizes, if narrow == Side::A { [548, 1448] } else { [1448, 548] });
        net.finish_clean();
    }
}

#[test]
fn after_a_lost_syn_the_congestion_window_is_one_segment() {
    let mut net = Net::new(8);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.lose_in_flight();
    net.run_until(|net| net.state(Side::B) == State::Established);
    let info = net.tcb(Side::A).info();
    assert_eq!(info.cwnd, info.snd_mss);
    // The timestamp echo shows that the second SYN was answered, so the sample is valid.
    assert_eq!(info.rtt, Some(Duration::from_millis(20)));
    net.finish_clean();
}

#[test]
fn with_tcp_defer_accept_a_handshake_waits_for_data() {
    let mut net = Net::new(9);
    net.host(Side::B).listening = true;
    net.host(Side::B).options.defer_accept = Some(Duration::from_secs(3));
    net.connect(Side::A);
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.state(Side::B), State::SynRecv);
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPDeferAcceptDrop), 1);
    net.send(Side::A, b"request");
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::B), State::Established);
    assert_eq!(net.recv(Side::B), b"request");
    net.finish_clean();
}

/// Three seconds are the time of two retransmissions of the SYN-ACK. The first one is suppressed.
/// The second one makes the peer, which has no data to send, send one more ACK.
#[test]
fn a_handshake_deferred_by_tcp_defer_accept_completes_after_its_timeout() {
    let mut net = Net::new(10);
    net.host(Side::B).listening = true;
    net.host(Side::B).options.defer_accept = Some(Duration::from_secs(3));
    net.connect(Side::A);
    net.run_for(Duration::from_millis(1500));
    assert_eq!(net.state(Side::B), State::SynRecv);
    let syn_acks = |net: &Net| {
        net.sent_by(Side::B, 0).iter().filter(|sent| sent.header.has(Flags::SYN)).count()
    };
    assert_eq!(
        syn_acks(&net),
        1,
        "the first retransmission was not suppressed, although the peer has answered the SYN-ACK"
    );
    net.run_for(Duration::from_secs(2));
    assert_eq!(syn_acks(&net), 2);
    assert_eq!(net.state(Side::B), State::Established);
    net.finish_clean();
}

#[test]
fn with_tcp_abort_on_overflow_a_full_accept_queue_sends_a_reset() {
    let mut net = Net::new(11);
    net.host(Side::B).listening = true;
    net.host(Side::B).accept_room = false;
    net.host(Side::B).config.tcp_abort_on_overflow = true;
    net.connect(Side::A);
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::B), State::Listen);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionReset));
    assert_eq!(net.count(Side::B, Counter::TcpExtListenOverflows), 1);
    net.finish_clean();
}
