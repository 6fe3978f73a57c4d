//! Defects of prequeues in versions of Linux, each with the test that detects it.

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

/// The reader processes a segment that is answered by a reset.
#[test]
fn a_prequeued_segment_may_be_answered_by_a_reset() {
    for context in PREQUEUES {
        let mut waiting = Waiting::new(context);
        waiting.wait();
        waiting.arrives(b"data");
        // Another thread shuts down both directions before the reader runs.
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

/// The read timeout of a reader expires while packets are queued for it.
#[test]
fn a_reader_that_leaves_takes_the_queued_packets() {
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

/// Packets of a killed reader are processed by the timer, and stop no other thread.
#[test]
fn packets_of_a_killed_reader_are_processed_by_a_timer() {
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

/// Ten thousand packets and a huge buffer: the limited prequeue never holds more than 32 of them.
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

/// Two threads wait in `recv`. Only one is the reader; the other does not receive its packets.
#[test]
fn the_second_of_two_readers_takes_no_packet() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    let mut first = std::mem::take(&mut waiting.reader);
    assert_eq!(waiting.read(10), Err(Errno::EAGAIN));
    assert!(!waiting.reader.is_installed() && first.is_installed());
    waiting.arrives(b"mine");
    assert!(!waiting.is_due(), "the prequeue belongs to the first");
    assert_eq!(waiting.read(10), Err(Errno::EAGAIN), "even if it runs");
    std::mem::swap(&mut waiting.reader, &mut first);
    assert!(waiting.is_due());
    assert_eq!(waiting.read(10).expect("data"), b"mine");
    // The prequeue has no reader now.
    std::mem::swap(&mut waiting.reader, &mut first);
    assert_eq!(waiting.read(10), Err(Errno::EAGAIN));
    assert!(waiting.reader.is_installed());
    waiting.finish();
}

/// Nothing is copied directly before urgent data; otherwise the urgent byte would be read in line.
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

/// A segment that fills a hole reaches the reader directly. The data behind the hole is returned by
/// the same read, as from the receive queue.
#[test]
fn data_behind_a_filled_hole_is_read_at_once() {
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

/// The end of the stream is queued behind the data.
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

/// A FIN without data wakes the reader through the state of the connection.
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
