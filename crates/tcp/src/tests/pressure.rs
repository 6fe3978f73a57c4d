//! Restrictions of connections under memory pressure (`tcp_mem[1]` was exceeded) and under
//! exhaustion (`tcp_mem[2]` is exceeded).

use core::time::Duration;

use super::net::{Net, Side};
use crate::{Counter, MemoryPressure, MemoryState, Readiness, SendError};

const PRESSURE: MemoryState =
    MemoryState { pressure: MemoryPressure::Pressure, share_bytes: u32::MAX };
const EXHAUSTED: MemoryState =
    MemoryState { pressure: MemoryPressure::Exhausted, share_bytes: 100_000 };

/// Writes `len` bytes on A.
fn write(net: &mut Net, len: usize) -> Result<usize, SendError> {
    net.call(Side::A, |tcb, cx| tcb.send(cx, &[&std::vec![7; len][..]], false))
}

/// Sends from A for `time` as fast as possible while B reads. Returns the number of bytes read.
fn stream(net: &mut Net, time: Duration) -> usize {
    let (end, mut got) = (net.now + time, 0);
    while net.now < end {
        while write(net, 8000).is_ok() {}
        if !net.step() {
            break;
        }
        got += net.recv(Side::B).len();
    }
    got
}

#[test]
fn under_pressure_no_buffer_grows() {
    let mut net = Net::new(1);
    net.delay = Duration::from_millis(25);
    net.open();
    stream(&mut net, Duration::from_millis(200));
    for side in [Side::A, Side::B] {
        net.host(side).memory = PRESSURE;
    }
    let (sndbuf, rcvbuf) = (net.tcb(Side::A).sndbuf(), net.tcb(Side::B).rcvbuf());
    let got = stream(&mut net, Duration::from_secs(2));
    assert!(got > 100_000, "{got}");
    assert_eq!((net.tcb(Side::A).sndbuf(), net.tcb(Side::B).rcvbuf()), (sndbuf, rcvbuf));
    assert_eq!(
        net.tcb(Side::B).info().rcv_ssthresh,
        4 * 1460,
        "the window is not limited to four segments"
    );
    for side in [Side::A, Side::B] {
        net.host(side).memory = MemoryState::PLENTY;
    }
    stream(&mut net, Duration::from_secs(2));
    assert!(net.tcb(Side::B).rcvbuf() > rcvbuf && net.tcb(Side::A).sndbuf() > sndbuf);
    net.finish_clean();
}

#[test]
fn under_pressure_a_window_closes_as_data_arrives_and_never_shrinks() {
    let mut net = Net::new(2);
    net.delay = Duration::from_millis(25);
    net.open();
    stream(&mut net, Duration::from_secs(1));
    net.host(Side::B).memory = PRESSURE;
    stream(&mut net, Duration::from_secs(1));
    let shift = net.tcb(Side::B).info().window_scales.1;
    let mut edge = None;
    for sent in net.log.iter().filter(|sent| sent.from == Side::B).skip(1) {
        let end = sent.header.ack + (u32::from(sent.header.window) << shift);
        assert!(edge.is_none_or(|edge| end.ge(edge)), "the edge moved back");
        edge = Some(end);
    }
    assert!(net.tcb(Side::B).info().rcv_wnd <= 4 * 1460 + (1 << shift));
    net.finish_clean();
}

#[test]
fn under_exhaustion_a_writer_gets_only_the_minimum_of_tcp_wmem() {
    let mut net = Net::established(3);
    net.run_for(Duration::from_millis(100));
    net.host(Side::A).memory = EXHAUSTED;
    let mut written = 0;
    while let Ok(n) = write(&mut net, 1000) {
        written += n;
    }
    assert!((2000..12_000).contains(&written), "{written}");
    assert!(
        net.tcb(Side::A).send_queue.wmem_queued() >= 4096,
        "a writer got less than tcp_wmem[0]"
    );
    assert!(!net.tcb(Side::A).readiness().contains(Readiness::WRITE));
    // After the acknowledgment the writer may write again.
    net.run_for(Duration::from_millis(100));
    assert!(net.tcb(Side::A).readiness().contains(Readiness::WRITE));
    assert!(write(&mut net, 1000).is_ok());
    net.finish_clean();
}

#[test]
fn a_fixed_send_buffer_is_kept_and_not_writable_under_exhaustion() {
    let mut net = Net::new(4);
    net.host(Side::A).options.sndbuf = Some(200_000);
    net.open();
    net.run_for(Duration::from_millis(100));
    net.host(Side::A).memory = EXHAUSTED;
    while write(&mut net, 1000).is_ok() {}
    assert_eq!(net.tcb(Side::A).sndbuf(), 200_000);
    assert!(
        !net.tcb(Side::A).readiness().contains(Readiness::WRITE),
        "the socket is writable, so that a writer would spin"
    );
    net.host(Side::A).memory = MemoryState::PLENTY;
    net.call(Side::A, |_, _| ());
    assert!(net.tcb(Side::A).readiness().contains(Readiness::WRITE));
    net.finish_clean();
}

#[test]
fn under_pressure_a_connection_above_its_share_gets_no_memory() {
    for (share_bytes, fits) in [(20_000, false), (1_000_000, true)] {
        let mut net = Net::new(5);
        net.host(Side::A).options.sndbuf = Some(100_000);
        net.open();
        net.run_for(Duration::from_millis(100));
        net.host(Side::A).memory = MemoryState { pressure: MemoryPressure::Pressure, share_bytes };
        while write(&mut net, 1000).is_ok() {}
        let held = net.tcb(Side::A).memory_bytes();
        assert_eq!(held >= 100_000, fits, "{held}");
        assert!(fits || (20_000..25_000).contains(&held), "{held}");
        net.finish_clean();
    }
}

#[test]
fn under_exhaustion_out_of_order_data_is_dropped_first() {
    let mut net = Net::established(6);
    net.run_for(Duration::from_millis(100));
    let first = net.forge(Side::B);
    for index in (1..9).rev() {
        let mut header = first.clone();
        header.seq += index * 1000;
        net.inject(Side::B, &header, &[7; 1000]);
    }
    net.host(Side::B).memory = EXHAUSTED;
    net.inject(Side::B, &first, &[7; 1000]);
    assert!(net.tcb(Side::B).reassembly.is_empty());
    assert_eq!(net.count(Side::B, Counter::TcpExtOfoPruned), 1);
    assert_eq!(net.recv(Side::B).len(), 1000, "data in order was dropped");
    net.finish_clean();
}

#[test]
fn under_exhaustion_unread_data_is_limited_to_the_minimum_of_tcp_rmem_without_loss() {
    let mut net = Net::established(7);
    net.run_for(Duration::from_millis(100));
    net.host(Side::B).memory = EXHAUSTED;
    for _ in 0..20 {
        let _ = write(&mut net, 4000);
        net.run_for(Duration::from_millis(30));
    }
    let held = net.tcb(Side::B).memory_bytes();
    assert!(held <= 4096 + 2 * 2152, "more than tcp_rmem[0] and two packets: {held}");
    assert!(net.count(Side::B, Counter::TcpExtTCPRcvQDrop) > 0);
    assert!(net.tcb(Side::B).readiness().contains(Readiness::READ));
    net.host(Side::B).memory = MemoryState::PLENTY;
    let (total, mut got) = (net.tcb(Side::A).unacked_bytes(), net.recv(Side::B).len());
    let start = net.now;
    while net.tcb(Side::A).unacked_bytes() > 0 {
        assert!(net.step() && net.now - start < Duration::from_secs(60), "{got} of {total}");
        got += net.recv(Side::B).len();
    }
    net.finish_clean();
}

#[test]
fn a_transfer_continues_under_exhaustion() {
    let mut net = Net::established(8);
    for side in [Side::A, Side::B] {
        net.host(side).memory = EXHAUSTED;
    }
    let got = stream(&mut net, Duration::from_secs(10));
    assert!(got > 200_000, "{got}");
    net.finish_clean();
}

#[test]
fn under_pressure_rcvlowat_does_not_delay_readability() {
    let mut net = Net::new(9);
    net.host(Side::B).options.rcvlowat = Some(50_000);
    net.open();
    net.run_for(Duration::from_millis(100));
    net.host(Side::B).memory = PRESSURE;
    net.send(Side::A, b"little");
    net.run_for(Duration::from_millis(100));
    assert!(net.tcb(Side::B).readiness().contains(Readiness::READ));
    net.finish_clean();
}
