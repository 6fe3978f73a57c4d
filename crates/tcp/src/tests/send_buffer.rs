//! Growth of the send buffer, writability, the rules that hold small segments back, and the limit
//! of the segment size (`TCP_MAXSEG`).

use core::time::Duration;
use std::vec::Vec;

use pkt::Pages;

use super::net::{Net, Side};
use crate::{Counter, Readiness, SendError};

fn writable(net: &mut Net) -> bool {
    net.tcb(Side::A).readiness().contains(Readiness::WRITE)
}

/// Writes `len` bytes on A.
fn write(net: &mut Net, len: usize) -> Result<usize, SendError> {
    net.call(Side::A, |tcb, cx| tcb.send(cx, &[&std::vec![7; len][..]], false))
}

/// Writes on A until the send buffer is full. Returns the number of bytes written.
fn fill(net: &mut Net) -> usize {
    core::iter::from_fn(|| write(net, 4000).ok()).sum()
}

#[test]
fn notsent_lowat_bounds_the_unsent_data() {
    for lowat in [None, Some(20_000)] {
        let mut net = Net::new(1);
        net.host(Side::A).options.notsent_lowat = lowat;
        net.host(Side::A).options.sndbuf = Some(1 << 20);
        net.open();
        net.run_for(Duration::from_millis(100));
        fill(&mut net);
        let unsent = net.tcb(Side::A).info().notsent_bytes;
        match lowat {
            None => assert!(unsent > 300_000, "{unsent}"),
            Some(lowat) => assert!((lowat..lowat + 2 * 1448).contains(&unsent), "{unsent}"),
        }
        net.finish_clean();
    }
}

#[test]
fn a_notsent_lowat_of_zero_removes_the_limit() {
    let mut net = Net::new(12);
    net.host(Side::A).options.notsent_lowat = Some(5000);
    net.open();
    net.call(Side::A, |tcb, _| tcb.set_notsent_lowat(0));
    net.run_for(Duration::from_millis(100));
    assert!(fill(&mut net) > 20_000);
    net.finish_clean();
}

#[test]
fn the_socket_becomes_writable_at_half_of_notsent_lowat() {
    let mut net = Net::new(2);
    net.host(Side::A).config.tcp_notsent_lowat = 20_000;
    net.host(Side::A).options.sndbuf = Some(1 << 20);
    net.open();
    net.run_for(Duration::from_millis(100));
    fill(&mut net);
    assert!(!writable(&mut net));
    while !writable(&mut net) {
        let unsent = net.tcb(Side::A).info().notsent_bytes;
        assert!(unsent >= 10_000, "{unsent} unsent bytes, and not writable");
        assert!(net.step());
        net.recv(Side::B);
    }
    assert!(net.tcb(Side::A).info().notsent_bytes < 10_000);
    assert!(write(&mut net, 1000).is_ok());
    net.finish_clean();
}

#[test]
fn a_tiny_notsent_lowat_does_not_stall_a_transfer() {
    let mut net = Net::new(3);
    net.host(Side::A).options.notsent_lowat = Some(1);
    net.open();
    let (mut sent, mut got) = (0, 0);
    let start = net.now;
    while got < 100_000 {
        if sent < 100_000 && writable(&mut net) {
            sent += write(&mut net, 1000).unwrap_or(0);
        }
        if net.next_event().is_some() {
            net.step();
        }
        got += net.recv(Side::B).len();
        assert!(net.now - start < Duration::from_secs(60), "{got} of {sent}");
    }
    net.finish_clean();
}

#[test]
fn the_socket_becomes_writable_when_a_third_of_the_buffer_is_free() {
    let mut net = Net::new(4);
    net.host(Side::A).options.sndbuf = Some(60_000);
    net.open();
    net.run_for(Duration::from_millis(100));
    fill(&mut net);
    while !writable(&mut net) {
        let queued = net.tcb(Side::A).send_queue.wmem_queued();
        assert!(queued > 40_000, "{queued} queued bytes, and not writable");
        net.step();
        net.recv(Side::B);
    }
    assert!(net.tcb(Side::A).send_queue.wmem_queued() <= 40_000);
    net.finish_clean();
}

#[test]
fn the_send_buffer_grows_to_two_windows_and_not_beyond_its_limit() {
    for limit in [4_194_304, 150_000] {
        let mut net = Net::new(5);
        net.host(Side::A).config.tcp_wmem.max = limit;
        net.open();
        let end = net.now + Duration::from_secs(3);
        while net.now < end {
            fill(&mut net);
            net.step();
            net.recv(Side::B);
        }
        let (sndbuf, cwnd) = (net.tcb(Side::A).sndbuf(), net.tcb(Side::A).info().cwnd);
        assert!(sndbuf <= limit, "{sndbuf}");
        if limit > 1_000_000 {
            assert!(sndbuf >= (2 * cwnd).min(limit), "{sndbuf} for {cwnd}");
        } else {
            assert_eq!(sndbuf, limit);
        }
        net.finish_clean();
    }
}

/// As in Linux, where tcp_new_space computes the size of the buffer again with every
/// acknowledgment.
#[test]
fn a_raised_limit_takes_effect_without_window_growth() {
    let mut net = Net::new(6);
    net.host(Side::A).config.tcp_wmem.max = 16_000;
    net.open();
    net.run_for(Duration::from_millis(100));
    let (cwnd, sndbuf) = (net.tcb(Side::A).info().cwnd, net.tcb(Side::A).sndbuf());
    assert!(sndbuf <= 16_384, "{sndbuf}");
    net.host(Side::A).config.tcp_wmem.max = 4_194_304;
    net.send(Side::A, &[1; 100]);
    net.run_for(Duration::from_millis(200));
    assert_eq!(net.tcb(Side::A).info().cwnd, cwnd);
    assert!(net.tcb(Side::A).sndbuf() > 2 * cwnd, "{}", net.tcb(Side::A).sndbuf());
    net.finish_clean();
}

#[test]
fn data_held_by_a_cork_or_by_msg_more_is_sent_after_200_ms() {
    for more in [false, true] {
        let mut net = Net::established(6);
        net.run_for(Duration::from_millis(500));
        net.call(Side::A, |tcb, _| tcb.set_cork(!more));
        let (before, now) = (net.log.len(), net.now);
        let sent = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&b"tail"[..]], more));
        assert_eq!(sent, Ok(4));
        net.run_for(Duration::from_secs(1));
        let waits: Vec<Duration> =
            net.sent_by(Side::A, before).iter().map(|sent| sent.at - now).collect();
        assert_eq!(waits[0], Duration::from_millis(200));
        assert_eq!(net.recv(Side::B), b"tail");
        net.finish_clean();
    }
}

#[test]
fn a_corked_tail_after_data_in_flight_is_sent_200_ms_after_its_ack() {
    let mut net = Net::established(7);
    net.run_for(Duration::from_millis(500));
    net.call(Side::A, |tcb, _| tcb.set_cork(true));
    let (before, now) = (net.log.len(), net.now);
    net.send(Side::A, &[7; 1448 + 10]);
    net.run_for(Duration::from_secs(1));
    let sent = net.sent_by(Side::A, before);
    assert_eq!((sent[0].len, sent[0].at), (1448, now));
    let tail = sent.iter().find(|sent| sent.len == 10).unwrap();
    assert!(tail.at - now <= Duration::from_millis(20 + 40 + 200), "{:?}", tail.at - now);
    net.finish_clean();
}

#[test]
fn maxseg_before_connect_is_announced_and_used() {
    let mut net = Net::new(8);
    net.host(Side::A).options.maxseg = Some(600);
    net.open();
    assert_eq!(net.log[0].header.options.mss, Some(600));
    for (from, side) in [(Side::A, Side::B), (Side::B, Side::A)] {
        let before = net.log.len();
        net.send(from, &[7; 5000]);
        net.run_for(Duration::from_millis(200));
        let largest = net.sent_by(from, before).iter().map(|sent| sent.len).max();
        assert_eq!(
            largest,
            Some(588),
            "the largest segment is not 600 bytes less those of the timestamps"
        );
        net.recv(side);
    }
    net.finish_clean();
}

#[test]
fn maxseg_on_a_connection_reduces_the_segment_size_and_never_raises_it() {
    let mut net = Net::established(9);
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, _| tcb.set_maxseg(700));
    let before = net.log.len();
    net.send(Side::A, &[7; 5000]);
    assert_eq!(net.sent_by(Side::A, before)[0].len, 688);
    net.call(Side::A, |tcb, _| tcb.set_maxseg(9000));
    assert_eq!(net.tcb(Side::A).mss(), 688);
    net.run_for(Duration::from_millis(200));
    assert_eq!(net.recv(Side::B).len(), 5000);
    net.finish_clean();
}

/// RFC 9293 §3.8.6.2.1: data waits for a larger window if the window is smaller than a segment and
/// smaller than half of the largest window that the peer has announced.
#[test]
fn a_silly_window_is_not_used_before_the_override_timer() {
    let mut net = Net::established(10);
    net.run_for(Duration::from_millis(100));
    // The peer, which has announced a window of 64 KB, now announces only 300 bytes.
    let mut header = net.forge(Side::A);
    header.seq += 1;
    header.window = u16::try_from(300 >> net.tcb(Side::A).snd_wscale).unwrap();
    header.seq -= 1;
    header.ack = net.tcb(Side::A).snd_una;
    net.tcb(Side::A).snd_wl1 -= 1;
    net.inject(Side::A, &header, b"");
    assert!((1..=300).contains(&net.tcb(Side::A).info().snd_wnd));
    let (before, now) = (net.log.len(), net.now);
    net.send(Side::A, &[7; 1000]);
    assert!(net.sent_by(Side::A, before).is_empty(), "a segment was sent into the small window");
    net.run_for(Duration::from_millis(200));
    let sent = net.sent_by(Side::A, before);
    assert_eq!(
        sent[0].at - now,
        Duration::from_millis(200),
        "the override timer did not send data after 200 ms"
    );
    assert!((1..=300).contains(&sent[0].len));
    net.finish_clean();
}

#[test]
fn probes_of_a_closed_window_end_with_the_user_timeout() {
    let mut net = Net::new(11);
    net.host(Side::A).options.user_timeout = Some(Duration::from_secs(10));
    net.host(Side::B).options.rcvbuf = Some(8192);
    net.open();
    for _ in 0..30 {
        fill(&mut net);
        net.run_for(Duration::from_millis(100));
    }
    assert_eq!(net.tcb(Side::A).info().snd_wnd, 0);
    // The peer does not answer from now on.
    net.impairment.loss = 1000;
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == crate::State::Close);
    let took = net.now - start;
    assert!(took >= Duration::from_secs(9) && took < Duration::from_secs(40), "{took:?}");
    assert!(net.count(Side::A, Counter::TcpExtTCPAbortOnTimeout) == 1);
    net.finish_clean();
}

/// A keepalive probe counts, too, so its time is the begin of the user timeout.
#[test]
fn a_window_probe_after_an_unanswered_keepalive_probe_does_not_end_the_connection() {
    let mut net = Net::new(12);
    net.host(Side::A).options.user_timeout = Some(Duration::from_secs(20));
    net.open();
    let keepalive = crate::Keepalive {
        time: Duration::from_secs(60),
        interval: Duration::from_secs(10),
        probes: 9,
    };
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(keepalive)));
    net.run_for(Duration::from_secs(59));
    net.impairment.loss = 1000;
    net.run_until(|net| net.count(Side::A, Counter::TcpExtTCPKeepAlive) == 1);
    let probed = net.now;
    // A cork holds the data back until the persist timer.
    net.call(Side::A, |tcb, _| tcb.set_cork(true));
    net.send(Side::A, b"held");
    net.run_until(|net| net.state(Side::A) == crate::State::Close);
    let took = net.now - probed;
    assert!(took >= Duration::from_secs(20), "the connection ended after {took:?}");
    net.finish_clean();
}

/// The limit is checked only for a new packet, as by Linux's sk_stream_memory_free. In both stacks
/// the last write may be partial.
#[test]
fn a_writer_fills_the_last_packet_and_exceeds_the_buffer_by_at_most_one_packet() {
    for (sndbuf, size) in [(20_000, 1000), (20_000, 300), (4608, 1000), (100_000, 50_000)] {
        let mut net = Net::new(13);
        net.host(Side::A).options.sndbuf = Some(sndbuf);
        net.open();
        net.run_for(Duration::from_millis(100));
        let taken: Vec<usize> = core::iter::from_fn(|| write(&mut net, size).ok()).collect();
        let (last, whole) = taken.split_last().expect("an empty buffer accepts data");
        assert!(whole.iter().all(|taken| *taken == size) || size > 1448, "{taken:?}");
        assert!(*last <= size);
        let tcb = net.tcb(Side::A);
        let (goal, queued) = (tcb.mss.size_goal(), tcb.send_queue.wmem_queued());
        assert_eq!(tcb.send_queue.tail_room(goal), 0, "the last packet has room and was not sent");
        assert!((sndbuf..sndbuf + goal + 1024).contains(&queued), "{queued} of {sndbuf}");
        net.finish_clean();
    }
}

/// The last packet is filled only as long as it accepts another fragment. Here each write needs
/// another fragment, because its byte does not follow the previous byte in memory. When the last
/// packet accepts no more fragments, the writer must not start a new packet in a full buffer.
#[test]
fn a_last_packet_that_accepts_no_more_fragments_does_not_bypass_the_limits() {
    const SNDBUF: u32 = 20_000;
    for lowat in [None, Some(200)] {
        let mut net = Net::new(15);
        net.host(Side::A).options.sndbuf = Some(SNDBUF);
        net.host(Side::A).options.notsent_lowat = lowat;
        net.open();
        net.run_for(Duration::from_millis(100));
        let pages =
            net.call(Side::A, |_, cx| Pages::new(cx.pool, 1000)).expect("the pool has memory");
        let write =
            |net: &mut Net| net.call(Side::A, |tcb, cx| tcb.send(cx, &[pages.range(0..1)], true));
        let writes = (0..3000).take_while(|_| write(&mut net) == Ok(1)).count();
        assert_eq!(write(&mut net), Err(SendError::WouldBlock), "after {writes}");
        let tcb = net.tcb(Side::A);
        let (goal, queued) = (tcb.mss.size_goal(), tcb.send_queue.wmem_queued());
        assert!(queued < SNDBUF + goal + 1024, "{queued} after {writes}");
        let unsent = tcb.info().notsent_bytes;
        assert!(lowat.is_none_or(|lowat| unsent < lowat + goal), "{unsent} after {writes}");
        // The rejected writer can write again after an acknowledgment.
        assert!(!writable(&mut net));
        net.run_until(writable);
        assert_eq!(write(&mut net), Ok(1));
        // Pages that outlive their domain keep its memory alive.
        drop(pages);
        net.finish_clean();
    }
}

/// Memory charges are adjusted at every change of a packet in the queue: split, partial
/// acknowledgment, retransmission. After all data is acknowledged, no charge is left.
#[test]
fn memory_charges_are_released_exactly() {
    let mut net = Net::new(14);
    net.host(Side::A).options.sndbuf = Some(200_000);
    net.host(Side::A).path.gso_bytes_max = 65_536;
    net.open();
    net.run_for(Duration::from_millis(100));
    net.impairment.loss = 50;
    let end = net.now + Duration::from_secs(5);
    let mut most = 0;
    while net.now < end {
        let _ = write(&mut net, 7001);
        if !net.step() {
            break;
        }
        net.recv(Side::B);
        net.tcb(Side::A).check();
        most = most.max(net.tcb(Side::A).send_queue.wmem_queued());
    }
    assert!(most > 50_000, "{most}");
    net.impairment.loss = 0;
    while net.tcb(Side::A).send_queue.wmem_queued() > 0 {
        assert!(net.step(), "no event is left, but data is unacknowledged");
        net.recv(Side::B);
    }
    assert_eq!((net.tcb(Side::A).memory_bytes(), net.tcb(Side::B).memory_bytes()), (0, 0));
    net.finish_clean();
}
