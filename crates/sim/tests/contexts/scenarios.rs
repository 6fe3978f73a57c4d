//! The effects of each prequeue in numbers: short scenarios, and the rules PQ1 to PQ10
//! (docs/invariants.md) one at a time.

use std::time::Duration;

use stack::{
    Errno, Readiness,
    base::counters::Counter,
    socket::Reader,
    sysctl::{Sysctls, modes::RxContext},
};
use tcp::{Counter as TcpCounter, Flags};

use super::waiting::{PREQUEUES, Waiting};

/// Steady state: five packets arrive before the reader runs. One wake, one batch, no receive queue.
#[test]
fn five_packets_wake_a_reader_once_and_reach_its_buffer_directly() {
    for context in PREQUEUES {
        let mut waiting = Waiting::new(context);
        waiting.wait();
        let socket = std::sync::Arc::clone(&waiting.socket);
        let asleep = socket.waiters(Readiness::READ).prepare();
        for number in 0..5 {
            assert_eq!(waiting.is_due(), number > 0);
            waiting.arrives(&[number; 100]);
            waiting.check();
        }
        assert_eq!(waiting.stack(Counter::PrequeueWakes), 1);
        assert_eq!(waiting.sent(), [], "the reader sends the ACK");
        socket.waiters(Readiness::READ).cancel(asleep);
        let read = waiting.read(1000).expect("data");
        assert_eq!(read, [[0; 100], [1; 100], [2; 100], [3; 100], [4; 100]].concat());
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeued), 1);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 500);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPHPHitsToUser), 5);
        assert_eq!(waiting.stack(Counter::PrequeueLength4), 1);
        assert_eq!(waiting.stack(Counter::PrequeueQueued), 5);
        assert_eq!(waiting.stack(Counter::SocketWakesSpurious), 0);
        assert_eq!(waiting.sent(), [(Flags::ACK, 0)], "one ACK for all of them");
        assert!(!waiting.reader.is_installed() && !waiting.is_due());
        waiting.finish();
    }
}

/// Five packets of one poll cause one wake, too.
#[test]
fn a_batch_of_packets_is_one_wake() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    let socket = std::sync::Arc::clone(&waiting.socket);
    let asleep = socket.waiters(Readiness::READ).prepare();
    for number in 0..5 {
        waiting.reaches_device(Flags::ACK, &[number; 10]);
    }
    waiting.rig.settle();
    assert_eq!(waiting.stack(Counter::PrequeueWakes), 1);
    socket.waiters(Readiness::READ).cancel(asleep);
    assert_eq!(waiting.read(100).expect("data").len(), 50);
    waiting.finish();
}

/// The default: no thread is a reader, softirq context processes every packet.
#[test]
fn without_prequeue_softirq_processes_for_a_waiting_thread() {
    let off = Sysctls {
        rx_context: RxContext::PrequeueDrop,
        tcp_low_latency: true,
        ..Sysctls::default()
    };
    for sysctls in [Sysctls::default(), off] {
        let mut waiting = Waiting::with(sysctls);
        waiting.wait();
        assert!(!waiting.reader.is_installed());
        waiting.arrives(b"hello");
        assert!(waiting.socket.readiness().contains(Readiness::READ) && !waiting.is_due());
        assert_eq!(waiting.read(10).expect("data"), b"hello");
        assert_eq!(waiting.stack(Counter::PrequeueQueued), 0);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPHPHitsToUser), 0);
        waiting.finish();
    }
}

/// Data that does not fit the buffer stays in the receive queue, and the next read returns it.
#[test]
fn a_short_buffer_leaves_the_rest_in_the_receive_queue() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.arrives(b"0123456789");
    waiting.arrives(b"abcdef");
    assert_eq!(waiting.read(4).expect("data"), b"0123");
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 4);
    assert_eq!(waiting.recv(100, false).expect("data"), b"456789abcdef");
    waiting.finish();
}

/// Ten packets fit; the eleventh makes softirq process all of them.
#[test]
fn one_packet_too_many_processes_all_in_softirq() {
    for context in [RxContext::PrequeueRef, RxContext::PrequeueDrop] {
        let mut waiting = Waiting::new(context);
        let truesize = waiting.truesize_of(&[9; 100]);
        let Waiting { socket, host, rig, .. } = &mut waiting;
        socket.with_tcb(host, &mut rig.world.cx, |tcb, _| tcb.set_rcvbuf(10 * truesize));
        waiting.wait();
        for number in 0..10 {
            waiting.arrives(&[number; 100]);
            assert!(waiting.is_due());
        }
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 0);
        waiting.arrives(&[10; 100]);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 11);
        assert!(!waiting.is_due(), "the prequeue is empty");
        assert!(waiting.socket.readiness().contains(Readiness::READ));
        waiting.check();
        let read = waiting.read(2000).expect("data");
        assert_eq!((read.len(), read[0], read[1099]), (1100, 0, 10));
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeued), 0);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 0);
        waiting.finish();
    }
}

/// The 32nd packet exceeds the limit, whatever the size of the buffer.
#[test]
fn the_limited_prequeue_holds_less_than_32_packets() {
    let mut waiting = Waiting::new(RxContext::PrequeueDropLimited);
    waiting.wait();
    for _ in 0..31 {
        waiting.arrives(b"x");
    }
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 0);
    waiting.arrives(b"x");
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 32);
    assert_eq!(waiting.read(100).expect("data"), [b'x'; 32]);
    waiting.finish();
}

/// The limited prequeue counts the memory of the receive queue, too.
#[test]
fn the_limited_prequeue_and_the_receive_queue_share_the_buffer() {
    let mut waiting = Waiting::new(RxContext::PrequeueDropLimited);
    let truesize = waiting.truesize_of(&[9; 600]);
    let Waiting { socket, host, rig, .. } = &mut waiting;
    socket.with_tcb(host, &mut rig.world.cx, |tcb, _| tcb.set_rcvbuf(10 * truesize));
    waiting.wait();
    for _ in 0..5 {
        waiting.arrives(&[1; 600]);
    }
    // A second thread moves them into the receive queue before the first has run.
    waiting.reaches_device(Flags::ACK, &[1; 600]);
    waiting.hold(Duration::ZERO);
    assert!(!waiting.is_due());
    for _ in 0..4 {
        waiting.arrives(&[1; 600]);
    }
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 0);
    waiting.arrives(&[1; 600]);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeueDropped), 5);
    waiting.finish();
}

/// A reader is not scheduled for 150 ms. The delayed-ACK timer processes its packets.
#[test]
fn packets_of_an_unscheduled_reader_are_processed_by_a_timer() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.arrives(b"hello");
    waiting.rig.pass(Duration::from_millis(148));
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPSchedulerFailed), 0);
    assert_eq!(waiting.sent(), []);
    waiting.rig.pass(Duration::from_millis(5));
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPSchedulerFailed), 1);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtDelayedACKs), 1);
    assert_eq!(waiting.sent(), [(Flags::ACK, 0)]);
    assert!(waiting.socket.readiness().contains(Readiness::READ));
    assert_eq!(waiting.read(10).expect("data"), b"hello");
    waiting.finish();
}

/// PQ2: every queued packet is processed: its arrival arms a timer that processes all of them if
/// the reader does not run, also after an ACK has left meanwhile, and also when another thread
/// becomes the reader.
#[test]
fn queued_packets_are_processed_by_the_reader_or_by_a_timer() {
    for context in PREQUEUES {
        for waits in 1..10 {
            let mut waiting = Waiting::new(context);
            waiting.wait();
            for _ in 0..waits {
                waiting.arrives(b"x");
                waiting.check();
            }
            // Data of the host carries the acknowledgment that the timer was armed for.
            let Waiting { socket, host, rig, .. } = &mut waiting;
            let sent = socket.send(host, &mut rig.world.cx, &[std::io::IoSlice::new(b"mine")]);
            assert_eq!(sent, Ok(4));
            waiting.check();
            if waits % 2 == 0 {
                waiting.reader = Reader::new();
            }
            waiting.rig.pass(Duration::from_millis(160));
            assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPSchedulerFailed), 1, "{context:?}");
            assert_eq!(waiting.recv(20, false).expect("data").len(), waits, "{context:?}");
            waiting.check();
            waiting.finish();
        }
    }
}

/// PQ9: a pure ACK is not queued for a reader and does not wake it; behind queued data it is
/// queued, too.
#[test]
fn a_pure_ack_wakes_no_reader() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.peer.send_next(&mut waiting.rig, Flags::ACK, b"");
    assert_eq!((waiting.stack(Counter::PrequeueQueued), waiting.is_due()), (0, false));
    waiting.arrives(b"data");
    waiting.peer.send_next(&mut waiting.rig, Flags::ACK, b"");
    assert_eq!(waiting.stack(Counter::PrequeueQueued), 2);
    assert_eq!(waiting.read(10).expect("data"), b"data");
    waiting.finish();
}

/// PQ10: a thread that peeks is no reader.
#[test]
fn a_peek_installs_no_reader() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    assert_eq!(waiting.recv(10, true), Err(Errno::EAGAIN));
    waiting.arrives(b"data");
    assert_eq!(waiting.stack(Counter::PrequeueQueued), 0);
    assert_eq!(waiting.recv(10, true).expect("data"), b"data");
    assert_eq!(waiting.recv(10, false).expect("data"), b"data");
    waiting.finish();
}

/// PQ8: packets of the prequeue are older than those of the backlog, whichever thread owns the
/// socket.
#[test]
fn a_backlog_is_processed_after_the_prequeue() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    for number in 0..3 {
        waiting.arrives(&[number; 10]);
    }
    for number in 3..6 {
        waiting.reaches_device(Flags::ACK, &[number; 10]);
    }
    waiting.hold(Duration::ZERO);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPOFOQueue), 0, "nothing was out of order");
    let read = waiting.read(100).expect("data");
    assert_eq!(read, (0..6).flat_map(|number| [number; 10]).collect::<Vec<u8>>());
    waiting.finish();
}

/// A reader takes packets that arrived while it owned the socket directly from the backlog.
#[test]
fn a_reader_takes_the_backlog_directly() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.reaches_device(Flags::ACK, &[1; 600]);
    waiting.reaches_device(Flags::ACK, &[2; 600]);
    let Waiting { rig, host, socket, reader, .. } = &mut waiting;
    let mut buf = [0; 2000];
    let bufs = &mut [std::io::IoSliceMut::new(&mut buf)];
    let read = socket.recv_interrupted(host, &mut rig.world.cx, reader, bufs, |cx| {
        let _ = host.poll(cx);
    });
    assert_eq!(read, Ok(1200));
    assert_eq!((buf[0], buf[599], buf[600], buf[1199]), (1, 1, 2, 2));
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromBacklog), 1200);
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 0);
    assert!(!waiting.reader.is_installed());
    waiting.finish();
}

/// A read into several buffers: the first is filled directly, the others from the receive queue.
#[test]
fn a_vectored_read_fills_its_buffers_in_order() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.arrives(b"abcdefgh");
    waiting.arrives(b"ij");
    let Waiting { rig, host, socket, reader, .. } = &mut waiting;
    let (mut first, mut none, mut second) = ([0; 3], [0; 0], [0; 20]);
    let bufs = &mut [
        std::io::IoSliceMut::new(&mut none),
        std::io::IoSliceMut::new(&mut first),
        std::io::IoSliceMut::new(&mut second),
    ];
    assert_eq!(socket.recv_or_wait(host, &mut rig.world.cx, reader, bufs), Ok(10));
    assert_eq!((&first, &second[..7]), (b"abc", &b"defghij"[..]));
    waiting.finish();
}

/// A wake without data is counted.
#[test]
fn a_wake_without_data_is_counted() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.wait();
    assert_eq!(waiting.stack(Counter::SocketWakesSpurious), 1);
    let _ = Reader::new();
    waiting.finish();
}

/// The setting changes while packets are queued: they are processed before the next one.
#[test]
fn the_context_changes_while_packets_are_queued() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.arrives(b"old ");
    waiting.host.set_sysctl("net.quietline.rx_context", "bh").expect("a context");
    waiting.arrives(b"new");
    assert!(!waiting.is_due());
    assert_eq!(waiting.read(10).expect("data"), b"old new");
    assert!(!waiting.reader.is_installed());
    waiting.finish();
}
