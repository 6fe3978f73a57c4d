//! Values of `TCP_INFO`, group by group, for connections with a known history.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Readiness, TcpInfo};

fn info(net: &mut Net, side: Side) -> TcpInfo {
    let now = net.now;
    net.tcb(side).info_at(now)
}

#[test]
fn segment_and_byte_counts_match_the_network() {
    let mut net = Net::established(21);
    net.send(Side::A, &[1; 4344]);
    net.run_for(Duration::from_millis(300));
    assert_eq!(net.recv(Side::B).len(), 4344);
    let (a, b) = (info(&mut net, Side::A), info(&mut net, Side::B));
    assert_eq!((a.data_segs_out, b.data_segs_in), (3, 3));
    assert_eq!((a.bytes_sent, a.bytes_acked, b.bytes_received), (4344, 4344, 4344));
    assert_eq!((a.bytes_delivered, a.bytes_retrans), (4344, 0));
    assert_eq!((a.unacked, a.sacked, a.lost, a.retrans, a.notsent_bytes), (0, 0, 0, 0, 0));
    assert_eq!((a.data_segs_in, b.data_segs_out), (0, 0));
    assert_eq!(a.ca_state, 0);
    assert!(a.last_data_sent >= Duration::from_millis(200), "{:?}", a.last_data_sent);
    assert_eq!(a.last_data_received, None);
    assert!(b.last_data_received.is_some());
    net.finish_clean();
}

#[test]
fn an_acknowledged_fin_counts_as_an_acknowledged_byte() {
    let mut net = Net::established(23);
    net.send(Side::A, &[1; 1000]);
    net.run_for(Duration::from_millis(300));
    net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_millis(300));
    let a = info(&mut net, Side::A);
    assert_eq!((a.bytes_sent, a.bytes_acked), (1000, 1001));
    net.finish_clean();
}

#[test]
fn a_timeout_and_its_retransmissions_are_counted() {
    let mut net = Net::established(22);
    net.impairment = Impairment { loss: 1000, ..Impairment::default() };
    net.send(Side::A, &[1; 1448]);
    net.run_until(|net| info(net, Side::A).total_rto > 0);
    let during = info(&mut net, Side::A);
    assert_eq!((during.total_rto, during.total_rto_recoveries, during.ca_state), (1, 1, 4));
    assert!(during.total_retrans >= 1 && during.bytes_retrans >= 1448);
    net.impairment = Impairment::default();
    net.run_for(Duration::from_secs(2));
    let after = info(&mut net, Side::A);
    assert_eq!(after.bytes_acked, 1448);
    assert!(after.total_rto_time > Duration::ZERO);
    net.run_for(Duration::from_secs(2));
    let later = info(&mut net, Side::A);
    assert_eq!(
        later.total_rto_time, after.total_rto_time,
        "the series of timeouts did not end when data was acknowledged"
    );
    assert_eq!(net.recv(Side::B).len(), 1448);
    net.finish_clean();
}

#[test]
fn segments_received_out_of_order_are_counted() {
    let mut net = Net::established(23);
    net.tcb(Side::A).set_nodelay(true);
    net.send(Side::A, &[1; 100]);
    net.lose_in_flight();
    for _ in 0..3 {
        net.send(Side::A, &[2; 100]);
    }
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.recv(Side::B).len(), 400);
    assert_eq!(info(&mut net, Side::B).rcv_ooopack, 3);
    assert_eq!(info(&mut net, Side::A).dsack_dups, 0);
    net.finish_clean();
}

#[test]
fn time_limited_by_the_receive_window_is_counted() {
    let mut net = Net::new(24);
    net.host(Side::B).options.rcvbuf = Some(16_384);
    net.open();
    net.tcb(Side::A).set_sndbuf(1 << 20);
    let mut sent = 0;
    for _ in 0..20 {
        net.send(Side::A, &[1; 4096]);
        sent += 4096;
        net.run_for(Duration::from_millis(200));
    }
    let time = info(&mut net, Side::A).sender_time;
    assert!(time.rwnd_limited > Duration::from_secs(1), "{time:?}");
    assert!(time.busy >= time.rwnd_limited, "{time:?}");
    let mut got = 0;
    while got < sent {
        net.run_for(Duration::from_millis(50));
        got += net.recv(Side::B).len();
    }
    net.run_for(Duration::from_secs(1));
    let idle = info(&mut net, Side::A).sender_time;
    net.run_for(Duration::from_secs(5));
    assert_eq!(
        info(&mut net, Side::A).sender_time,
        idle,
        "an empty queue counts as busy or limited"
    );
    net.finish_clean();
}

#[test]
fn time_limited_by_the_send_buffer_ends_with_the_ack_that_frees_buffer_space() {
    let mut net = Net::established(26);
    net.tcb(Side::A).set_sndbuf(16_384);
    net.run_for(Duration::from_millis(100));
    while net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 1448][..]], false)).is_ok() {}
    let start = net.now;
    let full = |net: &mut Net| !net.tcb(Side::A).readiness().contains(Readiness::WRITE);
    assert!(full(&mut net) && net.tcb(Side::A).send_queue.first_unsent().is_none());
    net.run_until(|net| !full(net));
    let (now, waited) = (net.now, net.now - start);
    assert!(waited >= Duration::from_millis(20), "{waited:?}");
    let time = net.tcb(Side::A).info_at(now).sender_time;
    assert_eq!(time.sndbuf_limited, waited);
    net.run_for(Duration::from_secs(1));
    assert_eq!(info(&mut net, Side::A).sender_time.sndbuf_limited, waited);
    net.recv(Side::B);
    net.finish_clean();
}

#[test]
fn time_limited_by_the_send_buffer_is_counted() {
    let mut net = Net::established(25);
    net.tcb(Side::A).set_sndbuf(4608);
    for _ in 0..10 {
        while net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 1448][..]], false)).is_ok() {}
        net.run_for(Duration::from_millis(100));
        net.recv(Side::B);
    }
    let time = info(&mut net, Side::A).sender_time;
    assert!(time.sndbuf_limited > Duration::from_millis(50), "{time:?}");
    assert_eq!(time.rwnd_limited, Duration::ZERO);
    net.finish_clean();
}
