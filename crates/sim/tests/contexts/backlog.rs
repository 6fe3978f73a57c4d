//! Processing of the backlog by the thread that owned the socket.

use std::time::Duration;

use pkt::DropReason;
use stack::{
    base::counters::Counter,
    sysctl::{Sysctls, modes::RxContext},
};
use tcp::{Counter as TcpCounter, Flags};

use super::waiting::Waiting;

/// Contiguous segments are coalesced.
#[test]
fn contiguous_segments_of_a_backlog_are_coalesced() {
    let mut waiting = Waiting::new(RxContext::Bh);
    for number in 0..4 {
        waiting.reaches_device(Flags::ACK, &[number; 1000]);
    }
    waiting.hold(Duration::ZERO);
    assert_eq!(waiting.stack(Counter::SocketBacklogQueued), 4);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPBacklogCoalesce), 3);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPHPHits), 1, "the engine saw one segment");
    let read = waiting.recv(5000, false).expect("data");
    let sent: Vec<u8> = (0..4).flat_map(|number| [number; 1000]).collect();
    assert_eq!(read, sent);
    waiting.finish();
}

/// A FIN is coalesced, and nothing is coalesced behind it; segments with PSH may be, too.
#[test]
fn a_fin_ends_a_coalesced_segment() {
    let mut waiting = Waiting::new(RxContext::Bh);
    waiting.reaches_device(Flags::ACK, &[1; 600]);
    waiting.reaches_device(Flags::ACK | Flags::PSH, &[2; 600]);
    waiting.reaches_device(Flags::ACK | Flags::FIN, &[3; 10]);
    waiting.reaches_device(Flags::ACK, b"");
    waiting.hold(Duration::ZERO);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPBacklogCoalesce), 2);
    assert_eq!(waiting.recv(5000, false).expect("data").len(), 1210);
    assert_eq!(waiting.recv(10, false).expect("the end"), b"");
    waiting.finish();
}

/// Two contiguous segments with equal marks are coalesced, and each of these differences alone
/// prevents that. Those that this peer cannot send: `segments_that_differ_are_not_joined` beside
/// `Segment::join`.
#[test]
fn different_segments_are_not_coalesced() {
    const ACK: Flags = Flags::ACK;
    for (what, first, second, gap, coalesced) in [
        ("nothing", ACK, ACK, 0, 1),
        ("PSH", ACK, ACK | Flags::PSH, 0, 1),
        ("a gap", ACK, ACK, 600, 0),
        ("URG", ACK, ACK | Flags::URG, 0, 0),
        ("URG before", ACK | Flags::URG, ACK, 0, 0),
        ("CWR", ACK, ACK | Flags::CWR, 0, 0),
        ("CWR before", ACK | Flags::CWR, ACK, 0, 0),
        ("ECE", ACK, ACK | Flags::ECE, 0, 0),
        ("RST", ACK, ACK | Flags::RST, 0, 0),
    ] {
        let mut waiting = Waiting::new(RxContext::Bh);
        waiting.reaches_device(first, &[1; 600]);
        waiting.peer.snd_nxt += gap;
        waiting.reaches_device(second, &[2; 600]);
        waiting.hold(Duration::ZERO);
        assert_eq!(waiting.stack(Counter::SocketBacklogQueued), 2, "{what}");
        let count = waiting.tcp(TcpCounter::TcpExtTCPBacklogCoalesce);
        assert_eq!(count, coalesced, "{what}");
        // A read ends before urgent data, and a reset ends the connection.
        if !(first | second).intersects(Flags::URG | Flags::RST) {
            let read = waiting.recv(5000, false).expect("data");
            assert_eq!(read.len(), if gap == 0 { 1200 } else { 600 }, "{what}");
        }
        waiting.finish();
    }
}

/// Duplicate ACKs count one by one (RFC 5681 §3.2) and are not coalesced; ACKs that advance SND.UNA
/// are.
#[test]
fn duplicate_acks_are_not_coalesced() {
    let mut waiting = Waiting::new(RxContext::Bh);
    let Waiting { socket, host, rig, .. } = &mut waiting;
    let sent = socket.send(host, &mut rig.world.cx, &[std::io::IoSlice::new(&[7; 5000])]);
    assert_eq!(sent, Ok(5000));
    let heard = waiting.rig.take();
    let first = waiting.peer.rcv_nxt;
    waiting.peer.hear(&heard);
    for ack in [first, first, first, first + 1460, first + 2920] {
        waiting.peer.rcv_nxt = ack;
        waiting.reaches_device(Flags::ACK, b"");
    }
    waiting.hold(Duration::ZERO);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPBacklogCoalesce), 2);
    waiting.finish();
}

/// One ACK acknowledges a backlog. With `tcp_backlog_ack_defer` off, each segment of a new
/// connection is acknowledged by its own ACK.
#[test]
fn a_backlog_is_acknowledged_by_one_ack() {
    for (defer, acks) in [(true, 1), (false, 4)] {
        let mut waiting =
            Waiting::with(Sysctls { tcp_backlog_ack_defer: defer, ..Sysctls::default() });
        for number in 0..4 {
            // Different flags prevent coalescing.
            let flags = if number % 2 == 0 { Flags::ACK } else { Flags::ACK | Flags::CWR };
            waiting.reaches_device(flags, &[number; 1000]);
        }
        waiting.hold(Duration::ZERO);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPBacklogCoalesce), 0);
        let sent = waiting.sent();
        assert_eq!((sent.len(), sent.last()), (acks, Some(&(Flags::ACK, 0))), "{defer}");
        let deferred = waiting.stack(Counter::SocketBacklogAckDeferred);
        assert_eq!(deferred, if defer { 4 } else { 0 });
        waiting.finish();
    }
}

/// The limit of the backlog is twice the receive buffer, half the send buffer and 64 KB, less the
/// unread data (Linux: sk_rcvqueues_full).
#[test]
fn a_backlog_is_bounded_by_the_buffers() {
    for unread in [0, 10] {
        fill_backlog(unread);
    }
}

/// Sends as many segments as the backlog takes and seven more, with `unread` packets in the receive
/// queue.
fn fill_backlog(unread: usize) {
    let mut waiting = Waiting::new(RxContext::Bh);
    let truesize = waiting.truesize_of(&[9; 100]);
    let Waiting { socket, host, rig, .. } = &mut waiting;
    let limit = socket.with_tcb(host, &mut rig.world.cx, |tcb, _| {
        tcb.set_rcvbuf(20 * truesize);
        2 * tcb.rcvbuf() + tcb.sndbuf() / 2 + 64 * 1024
    });
    for _ in 0..unread {
        waiting.arrives(&[9; 100]);
    }
    let Waiting { socket, host, rig, .. } = &mut waiting;
    let rmem_alloc = socket.with_tcb(host, &mut rig.world.cx, |tcb, _| tcb.rmem_alloc());
    assert_eq!(rmem_alloc > truesize, unread > 0, "{rmem_alloc}");
    let fit = u64::from((limit - rmem_alloc) / truesize);
    for _ in 0..fit + 7 {
        waiting.reaches_device(Flags::ACK, &[1; 100]);
    }
    let Waiting { socket, host, rig, .. } = &mut waiting;
    socket.hold(host, &mut rig.world.cx, |cx| {
        for _ in 0..10 {
            let _ = host.poll(cx);
        }
    });
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPBacklogDrop), 7);
    assert_eq!(waiting.rig.drops(DropReason::SocketBacklog), 7);
    assert_eq!(waiting.stack(Counter::SocketBacklogQueued), fit);
    // An emptied backlog accepts as many segments again.
    waiting.reaches_device(Flags::ACK, b"");
    waiting.hold(Duration::ZERO);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPBacklogDrop), 7);
    waiting.finish();
}

/// A delayed-ACK timer that finds the socket owned leaves its work to the owner.
#[test]
fn a_delayed_ack_timer_waits_for_the_owner() {
    let mut waiting = Waiting::new(RxContext::Bh);
    let Waiting { socket, host, rig, .. } = &mut waiting;
    socket.with_tcb(host, &mut rig.world.cx, |tcb, _| tcb.set_quickack(false));
    waiting.arrives(b"data");
    assert_eq!(waiting.sent(), []);
    waiting.hold(Duration::from_millis(210));
    // The owner's own output comes first and sends the overdue ACK.
    assert_eq!(waiting.tcp(TcpCounter::TcpExtDelayedACKLocked), 1);
    assert_eq!(waiting.sent(), [(Flags::ACK, 0)]);
    waiting.finish();
}
