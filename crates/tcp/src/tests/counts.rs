//! Counters that need a separate scenario. Most counters are asserted by the tests of the mechanism
//! that increments them.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Net, Side};
use crate::Counter;

#[test]
fn a_reset_that_fails_for_lack_of_memory_is_counted() {
    let mut net = Net::established(1);
    net.run_for(Duration::from_millis(100));
    let held: Vec<_> = core::iter::from_fn(|| net.host(Side::A).pool.alloc()).collect();
    net.call(Side::A, crate::Tcb::abort);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPAbortFailed), 1);
    assert_eq!(net.count(Side::A, Counter::TcpOutRsts), 0);
    drop(held);
    net.call(Side::B, crate::Tcb::abort);
    net.finish_clean();
}

#[test]
fn a_sack_block_inside_a_superframe_splits_it() {
    let mut net = Net::new(2);
    net.host(Side::A).path.gso_bytes_max = 65_536;
    net.open();
    for _ in 0..8 {
        net.send(Side::A, &[1; 14_480]);
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.recv(Side::B).len(), 14_480);
    }
    // The network splits the superframe (a packet of several segments), and loses one segment.
    net.impairment.split = true;
    net.drop_segments(&[2]);
    net.send(Side::A, &[1; 14_480]);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.recv(Side::B).len(), 14_480);
    assert!(net.count(Side::A, Counter::TcpExtTCPSackShiftFallback) > 0);
    net.finish_clean();
}

#[test]
fn a_growing_rtt_ends_slow_start_and_is_counted() {
    let mut net = Net::established(3);
    net.tcb(Side::A).set_sndbuf(8 << 20);
    let end = net.now + Duration::from_secs(4);
    while net.now < end && net.count(Side::A, Counter::TcpExtTCPHystartDelayDetect) == 0 {
        while net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 14_480][..]], false)).is_ok() {}
        net.delay += Duration::from_micros(20);
        assert!(net.step());
        net.recv(Side::B);
    }
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPHystartDelayDetect), 1);
    let cwnd = net.tcb(Side::A).info().cwnd / 1448;
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPHystartDelayCwnd), u64::from(cwnd));
    net.run_for(Duration::from_secs(20));
    net.recv(Side::B);
}
