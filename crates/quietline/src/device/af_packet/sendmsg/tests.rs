//! Behavior that shows only on the socket itself: the charge of a frame, a small send buffer,
//! invalid frames, reaps during a system call.

use std::time::Duration;

use pkt::Pool;
use rustix::net::sockopt;

use super::*;
use crate::device::af_packet::testing::{left_of_a_pair, with_pool};
use crate::device::af_packet::{AfPacketConfig, socket};
use crate::device::namespace::run;

const NOW: Instant = Instant::ZERO;

/// Returns the transmit path of one end of a veth pair.
fn open() -> TxCalls {
    let left = left_of_a_pair();
    let socket = socket::open_plain_sender(&left, &AfPacketConfig::new("left0")).expect("a socket");
    TxCalls::new(socket, 64, true)
}

/// Returns a frame of an experimental type (RFC 5342).
fn frame(pool: &mut Pool, len: usize) -> Packet {
    let mut bytes = vec![0xff; len];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    pool.alloc_from(&bytes).expect("memory")
}

fn none(reason: DropReason, _: Packet) {
    panic!("{reason}");
}

/// Waits until no packet is in flight. Returns the number of completed packets.
fn drain(calls: &TxCalls, pool: &mut Pool) -> usize {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    let mut done = 0;
    while calls.held.load(Ordering::Relaxed) > 0 || calls.retry_at().is_some() {
        let mut list = calls.reap();
        done += list.len();
        list.free_all(pool);
        assert_eq!(calls.send(NOW, &mut none), Ok(()));
        assert!(std::time::Instant::now() < deadline, "{done} completed");
    }
    done
}

/// The kernel's charge for a frame that does not leave is at least the computed charge, and less
/// than twice as much.
#[test]
fn the_computed_charge_of_a_frame_is_a_lower_bound() {
    with_pool(|pool| {
        let calls = open();
        run("ip link set left0 mtu 9000");
        run("tc qdisc add dev left0 root tbf rate 8kbit burst 10kb limit 1mb");
        // The burst, which leaves at once, and one frame that blocks the queue for seconds.
        let mut list: PacketList = (0..2).map(|_| frame(pool, 9000)).collect();
        assert!(calls.fill(&mut list, &mut none));
        assert_eq!(calls.send(NOW, &mut none), Ok(()));
        for len in [60, 300, 390, 500, 1000, 1514, 3000, 3900, 4100, 9000] {
            let before = send_buffer_used(calls.socket());
            let mut list = PacketList::from_iter([frame(pool, len)]);
            assert!(calls.fill(&mut list, &mut none));
            assert_eq!(calls.send(NOW, &mut none), Ok(()));
            let used = send_buffer_used(calls.socket()) - before;
            let known = calls.lock().in_flight.back().expect("the frame is in flight").charge;
            assert!(known <= used && used < 2 * known, "{len}: {known} computed, {used} used");
        }
        run("tc qdisc del dev left0 root");
        drain(&calls, pool);
    });
}

/// Linux's `struct sk_buff` (192 here), a head, and whole pages for the rest.
#[test]
fn the_charge_of_a_frame_counts_whole_pages_of_the_machine() {
    let headers = 66;
    assert_eq!(charge(65_226, headers, 4096), 192 + 512 + 65_536);
    assert_eq!(charge(65_226, headers, 65_536), 192 + 65_536, "the frame is linear");
    assert_eq!(charge(9000, headers, 4096), 192 + 512 + 12_288);
    assert_eq!(charge(9000, headers, 16_384), 192 + 16_384, "the frame is linear");
    assert_eq!(charge(20_000, headers, 16_384), 192 + 512 + 32_768);
}

#[test]
fn frames_without_room_in_the_send_buffer_are_offered_again() {
    with_pool(|pool| {
        let calls = open();
        // One frame per second: none leaves even if this thread is descheduled.
        run("tc qdisc add dev left0 root tbf rate 8kbit burst 2kb limit 1mb");
        // The kernel doubles the size, and charges about 2,300 for a frame.
        sockopt::set_socket_send_buffer_size(calls.socket(), 8000).expect("a small buffer");
        let mut list: PacketList = (0..80).map(|_| frame(pool, 1000)).collect();
        assert!(calls.fill(&mut list, &mut none));
        assert_eq!(list.len(), 16, "the queue accepts 64 frames");
        assert_eq!(calls.send(NOW, &mut none), Ok(()));
        assert!(calls.lock().in_flight.len() < 64);
        assert_eq!(calls.retry_at(), Some(NOW + RETRY));
        run("tc qdisc del dev left0 root");
        assert_eq!(drain(&calls, pool), 64);
        list.free_all(pool);
    });
}

/// The invalid frame is shorter than an Ethernet header. The frames after it are sent.
#[test]
fn an_invalid_frame_is_skipped_and_reported() {
    with_pool(|pool| {
        let calls = open();
        for wrong in 0..5 {
            let mut list: PacketList = (0..5)
                .map(|number| match number == wrong {
                    true => pool.alloc_from(&[0xff; 8]).expect("memory"),
                    false => frame(pool, 60),
                })
                .collect();
            assert!(calls.fill(&mut list, &mut none));
            let mut refused = Vec::new();
            let bad = &mut |reason, packet| refused.push((reason, packet));
            assert_eq!((calls.send(NOW, bad), calls.retry_at()), (Ok(()), None));
            let [(DropReason::DeviceTxError, packet)] = &refused[..] else { panic!("{refused:?}") };
            assert_eq!(packet.len(), 8);
            refused.drain(..).for_each(|(_, packet)| pool.free(packet));
            assert_eq!(drain(&calls, pool), 4);
        }
    });
}

/// The core reaps while another thread is in the system call that completes the packets. No other
/// event would wake the core.
#[test]
fn a_reap_during_the_system_call_is_repeated_after_it() {
    with_pool(|pool| {
        let calls = open();
        let mut list: PacketList = (0..3).map(|_| frame(pool, 60)).collect();
        assert!(calls.fill(&mut list, &mut none));
        let batch = calls.take_batch();
        assert_eq!(send(calls.socket(), &batch, true), Ok(3));
        assert!(calls.reap().is_empty(), "the packets are not recorded yet");
        calls.record_sent(batch, 3);
        for _ in 0..2 {
            // A later send keeps the request for a reap.
            assert_eq!(calls.send(NOW, &mut none), Ok(()));
            assert_eq!(calls.retry_at(), Some(NOW));
        }
        assert_eq!(drain(&calls, pool), 3);
        assert_eq!(calls.retry_at(), None);
    });
}
