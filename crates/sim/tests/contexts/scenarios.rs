//! What each prequeue does, in numbers: short scenarios, and the rules PQ1 to PQ10 (docs/invariants.md) one at a time.

use std::time::Duration;

use stack::{
    Errno, Readiness,
    base::counters::Counter,
    socket::Reader,
    sysctl::{Sysctls, modes::RxContext},
};
use tcp::{Counter as TcpCounter, Flags};

use super::waiting::{PREQUEUES, Waiting};

/// Steady state. Five packets come before the reader runs; one wake, one batch, no receive queue.
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
        assert_eq!(waiting.sent(), [], "an ACK is the reader's");
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

/// A batch of five packets from one poll is one wake as well.
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

/// The default: nobody is a reader, softirq context processes.
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

/// The rest of what does not fit stays in the receive queue, and the next read finds it there.
#[test]
fn a_short_buffer_takes_its_part() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.arrives(b"0123456789");
    waiting.arrives(b"abcdef");
    assert_eq!(waiting.read(4).expect("data"), b"0123");
    assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 4);
    assert_eq!(waiting.recv(100, false).expect("data"), b"456789abcdef");
    waiting.finish();
}

/// Ten packets fit, the eleventh brings all of them into softirq.
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
        assert!(!waiting.is_due(), "nothing waits any more");
        assert!(waiting.socket.readiness().contains(Readiness::READ));
        waiting.check();
        let read = waiting.read(2000).expect("data");
        assert_eq!((read.len(), read[0], read[1099]), (1100, 0, 10));
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPPrequeued), 0);
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 0);
        waiting.finish();
    }
}

/// The 32nd packet is one too many, whatever the buffer.
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

/// The limited prequeue counts what the receive queue holds as well.
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
    // A second thread brings them into the receive queue, before the first has run.
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

/// A reader that does not run for 150 ms. The delayed-ACK timer does its work.
#[test]
fn a_reader_that_is_not_scheduled_is_done_without() {
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

/// PQ2: whatever waits, somebody will take it: with every packet that waits a timer is armed that takes them all if the reader
/// does not, also behind an ACK that has left meanwhile, and whoever the reader was.
#[test]
fn what_waits_is_taken_by_the_reader_or_by_a_timer() {
    for context in PREQUEUES {
        for waits in 1..10 {
            let mut waiting = Waiting::new(context);
            waiting.wait();
            for _ in 0..waits {
                waiting.arrives(b"x");
                waiting.check();
            }
            // Data of ours leaves and takes the acknowledgement along that the timer stood for.
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

/// PQ9: a pure ACK neither waits for a reader nor wakes it; behind data it waits like everything.
#[test]
fn a_pure_ack_wakes_nobody() {
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

/// PQ10: whoever peeks is no reader.
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

/// PQ8: the prequeue is older than the backlog, whoever holds the socket.
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

/// A reader takes what came while it held the socket straight from the backlog.
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

/// A read into several buffers: the first directly, the others from the receive queue.
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

/// A wake that brings nothing is counted.
#[test]
fn a_reader_woken_for_nothing_counts() {
    let mut waiting = Waiting::new(RxContext::PrequeueDrop);
    waiting.wait();
    waiting.wait();
    assert_eq!(waiting.stack(Counter::SocketWakesSpurious), 1);
    let _ = Reader::new();
    waiting.finish();
}

/// The setting changes while packets wait: they are processed before the next one.
#[test]
fn the_context_changes_while_packets_wait() {
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
