//! Defects of prequeues in versions of Linux, each as the test that would have shown it.

use std::time::Duration;

use pkt::DropReason;
use stack::{
    Errno, Readiness,
    base::counters::Counter,
    socket::{Reader, ShutdownHow},
    sysctl::modes::RxContext,
};
use tcp::{Counter as TcpCounter, Flags, SegmentHeader};

use super::waiting::{PREQUEUES, PSH_ACK, Waiting};

/// A segment that is answered by a reset, processed by the reader.
#[test]
fn a_prequeued_segment_may_be_answered_by_a_reset() {
    for context in PREQUEUES {
        let mut waiting = Waiting::new(context);
        waiting.wait();
        waiting.arrives(b"data");
        // Another thread closes both halves while the reader has not run yet.
        let Waiting { socket, host, rig, .. } = &mut waiting;
        assert_eq!(socket.shutdown(host, &mut rig.world.cx, ShutdownHow::Both), Ok(()));
        waiting.sent();
        waiting.arrives(b"more");
        assert!(waiting.is_due());
        assert_eq!(waiting.read(10).expect("data"), b"data");
        let sent = waiting.sent();
        assert!(sent.iter().any(|(flags, _)| flags.contains(Flags::RST)), "{sent:?}");
        assert_eq!(waiting.rig.drops(DropReason::TcpAbortOnData), 1);
        waiting.finish();
    }
}

/// The time of a reader is up while packets wait for it.
#[test]
fn a_reader_that_leaves_takes_what_waits() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    assert_eq!(waiting.leave(10), Err(Errno::EAGAIN));
    assert!(!waiting.reader.is_installed());
    waiting.wait();
    waiting.arrives(b"late");
    assert_eq!(waiting.leave(2).expect("data"), b"la");
    assert!(!waiting.reader.is_installed());
    waiting.check();
    assert_eq!(waiting.recv(10, false).expect("data"), b"te");
    waiting.finish();
}

/// A reader that is killed leaves its packets to the timer, and to nobody else's harm.
#[test]
fn a_reader_that_is_killed_holds_nothing_back_for_long() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.reader = Reader::new();
    waiting.arrives(b"one");
    assert_eq!(waiting.recv(10, false), Err(Errno::EAGAIN));
    waiting.rig.pass(Duration::from_millis(160));
    assert_eq!(waiting.recv(10, false).expect("data"), b"one");
    waiting.arrives(b"two");
    assert_eq!(waiting.recv(10, false).expect("data"), b"two");
    waiting.finish();
}

/// Ten thousand packets and a huge buffer. The limited prequeue never holds more than 32 of them.
#[test]
fn a_huge_buffer_does_not_make_a_huge_batch() {
    let mut waiting = Waiting::new(RxContext::PrequeueDropLimited);
    let Waiting { socket, host, rig, .. } = &mut waiting;
    socket.with_tcb(host, &mut rig.world.cx, |tcb, _| tcb.set_rcvbuf(32 << 20));
    waiting.wait();
    for _ in 0..10_000 {
        waiting.arrives(b"x");
    }
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 9_984, "312 times 32");
    assert_eq!(waiting.stack(Counter::PrequeueLength32), 312, "each of them 32 and no more");
    assert_eq!(waiting.read(20_000).expect("data").len(), 10_000);
    waiting.finish();
}

/// Two threads wait. One is the reader; the other takes nothing of its.
#[test]
fn the_second_of_two_readers_steals_nothing() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    let mut first = std::mem::take(&mut waiting.reader);
    assert_eq!(waiting.read(10), Err(Errno::EAGAIN));
    assert!(!waiting.reader.is_installed() && first.is_installed());
    waiting.arrives(b"mine");
    assert!(!waiting.is_due(), "not for the second");
    assert_eq!(waiting.read(10), Err(Errno::EAGAIN), "even if it runs");
    std::mem::swap(&mut waiting.reader, &mut first);
    assert!(waiting.is_due());
    assert_eq!(waiting.read(10).expect("data"), b"mine");
    // Now the place is free.
    std::mem::swap(&mut waiting.reader, &mut first);
    assert_eq!(waiting.read(10), Err(Errno::EAGAIN));
    assert!(waiting.reader.is_installed());
    waiting.finish();
}

/// Urgent data. Nothing is copied directly, or the urgent byte would be among the others.
#[test]
fn urgent_data_takes_the_receive_queue() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    let header = waiting.peer.header(Flags::PSH | Flags::ACK);
    let urgent = SegmentHeader { flags: header.flags | Flags::URG, urgent: 3, ..header };
    waiting.peer.send(&mut waiting.rig, &urgent, b"ab!cd");
    assert!(waiting.is_due());
    assert_eq!(waiting.read(10).expect("data"), b"ab", "up to the mark");
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 0);
    assert_eq!(waiting.read(10).expect("data"), b"cd");
    waiting.finish();
}

/// A segment that fills a hole reaches the reader directly; what lay behind the hole comes with the same read, as it does from
/// the receive queue.
#[test]
fn a_hole_that_is_filled_is_read_to_its_end() {
    for context in PREQUEUES.into_iter().chain([RxContext::Bh]) {
        let mut waiting = Waiting::new(context);
        waiting.wait();
        let header = waiting.peer.header(PSH_ACK);
        let behind = SegmentHeader { seq: header.seq + 4, ..waiting.peer.header(PSH_ACK) };
        waiting.peer.send(&mut waiting.rig, &behind, b"efgh");
        assert_eq!(waiting.read(10), Err(Errno::EAGAIN), "{context:?}");
        waiting.peer.send(&mut waiting.rig, &header, b"abcd");
        assert_eq!(waiting.read(10).expect("data"), b"abcdefgh", "{context:?}");
        waiting.finish();
    }
}

/// The end of the stream waits behind its data.
#[test]
fn a_prequeued_fin_ends_the_stream_after_its_data() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.arrives(b"last words");
    waiting.peer.send_next(&mut waiting.rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(waiting.stack(Counter::PrequeueQueued), 2);
    assert!(!waiting.socket.readiness().contains(Readiness::RDHUP));
    assert_eq!(waiting.read(100).expect("data"), b"last words");
    assert_eq!(waiting.read(100).expect("the end"), b"");
    assert!(waiting.socket.readiness().contains(Readiness::RDHUP));
    waiting.finish();
}

/// A FIN alone wakes a reader by what it does to the connection.
#[test]
fn a_fin_without_data_is_processed_at_once() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.peer.send_next(&mut waiting.rig, Flags::FIN | Flags::ACK, b"");
    assert!(waiting.socket.readiness().contains(Readiness::RDHUP));
    assert_eq!(waiting.read(10).expect("the end"), b"");
    assert!(!waiting.reader.is_installed());
    waiting.finish();
}
