//! Behavior that shows only on the ring itself: malformed frames, a small send buffer, and reaps
//! during a system call.

use pkt::{PacketList, Pool};
use rustix::net::sockopt;

use super::*;
use crate::device::af_packet::receive::{Received, RxRing};
use crate::device::af_packet::testing::{left_of_a_pair, with_pool};
use crate::device::af_packet::{AfPacketConfig, socket};
use crate::device::interface::Interface;
use crate::device::namespace::run;

/// Returns the transmit ring of one end of a veth pair, with 16 slots.
fn open_ring() -> TxRing {
    let config = AfPacketConfig { tx_ring_frames: 16, ..AfPacketConfig::new("left0") };
    let left = left_of_a_pair();
    let (socket, mapping) = socket::open_sender(&left, &config).expect("a ring");
    TxRing::new(socket, mapping, true)
}

/// Returns frames of an experimental type (RFC 5342).
fn frames(pool: &mut Pool, count: usize) -> PacketList {
    let mut bytes = [0xff; 1000];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    (0..count).map(|_| pool.alloc_from(&bytes).expect("memory")).collect()
}

/// The kernel reports success if the send buffer is full after a few frames. The others are offered
/// again, also with a list for which the ring has no room.
#[test]
fn frames_without_room_in_the_send_buffer_are_offered_again() {
    with_pool(|pool| {
        let ring = open_ring();
        run("tc qdisc add dev left0 root tbf rate 8mbit burst 2kb limit 1mb");
        sockopt::set_socket_send_buffer_size(&ring.socket, 1).expect("the smallest buffer");
        let none = &mut |reason, _| panic!("{reason}");
        assert!(ring.fill(&mut frames(pool, 16), none));
        assert_eq!(ring.send(Instant::ZERO, none), Ok(()));
        assert_eq!(ring.retry_at(), Some(Instant::ZERO + RETRY));
        let mut more = frames(pool, 1);
        assert!(ring.fill(&mut more, none), "a full ring with waiting frames is to be sent");
        assert_eq!(more.len(), 1);
        more.free_all(pool);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let mut done = 0;
        while done < 16 {
            let mut list = ring.reap();
            done += list.len();
            list.free_all(pool);
            if ring.retry_at().is_some() {
                assert_eq!(ring.send(Instant::ZERO, none), Ok(()));
            }
            assert!(std::time::Instant::now() < deadline, "{done} completed");
        }
        assert_eq!(ring.retry_at(), None);
    });
}

/// A frame that a queueing discipline refuses looks completed for a moment before the kernel resets
/// its slot. It is not reaped then, and the caller must reap again when the system call has
/// returned.
#[test]
fn a_slot_that_the_kernel_has_not_passed_is_not_reaped() {
    with_pool(|pool| {
        let ring = open_ring();
        let none = &mut |reason, _| panic!("{reason}");
        let now = Instant::from_nanos(1_000);
        assert!(ring.fill(&mut frames(pool, 3), none));
        // The state in the middle of a system call.
        ring.set_status(0, libc::TP_STATUS_AVAILABLE);
        assert!(ring.reap().is_empty());
        ring.set_status(0, libc::TP_STATUS_SEND_REQUEST);
        assert_eq!((ring.send(now, none), ring.retry_at()), (Ok(()), Some(now)));
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let mut done = 0;
        while done < 3 {
            let mut list = ring.reap();
            done += list.len();
            list.free_all(pool);
            assert!(std::time::Instant::now() < deadline, "{done} completed");
        }
        assert_eq!((ring.send(now, none), ring.retry_at()), (Ok(()), None));
    });
}

/// A frame that the kernel rejects is removed, and the frames after it are sent in order.
#[test]
fn a_malformed_frame_is_skipped_and_reported() {
    with_pool(|pool| {
        let mut ring = open_ring();
        let config = AfPacketConfig::new("right0");
        let right = Interface::find("right0").expect("right0");
        let there = socket::open_receiver(&right, &config).expect("a ring");
        let (_receiver, geometry) = (there.fd, there.geometry);
        let mut there = RxRing::new(there.mapping, geometry, true);
        let none = &mut |reason, _| panic!("{reason}");
        // Go around the ring more than once, with the malformed frame at every position.
        for round in 0..40u8 {
            let wrong = usize::from(round % 5);
            let frames = (0..5u8).map(|number| {
                let mut bytes = [0xff; 60];
                bytes[12..16].copy_from_slice(&[0x88, 0xb5, round, number]);
                pool.alloc_from(&bytes).expect("memory")
            });
            let mut list: PacketList = frames.collect();
            assert!(ring.fill(&mut list, none));
            let state = ring.state.get_mut().expect("one thread");
            let index = (state.tail + wrong) % state.packets.len();
            // Longer than a slot.
            ring.copy_in(index * SLOT_BYTES + LEN_AT, &100_000u32.to_ne_bytes());
            let mut refused = Vec::new();
            let sent =
                ring.send(Instant::ZERO, &mut |reason, packet| refused.push((reason, packet)));
            assert_eq!((sent, ring.retry_at()), (Ok(()), None));
            let [(DropReason::DeviceTxError, packet)] = &refused[..] else { panic!("{refused:?}") };
            assert_eq!(usize::from(packet.to_vec()[15]), wrong);
            refused.drain(..).for_each(|(_, packet)| pool.free(packet));
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            let mut done = 0;
            while done < 4 {
                let mut list = ring.reap();
                done += list.len();
                list.free_all(pool);
                assert!(std::time::Instant::now() < deadline, "{done} completed");
            }
            let mut arrived = Vec::new();
            while let Received::Good(packet) = there.receive(pool, Instant::ZERO) {
                let bytes = packet.to_vec();
                if bytes[12..14] == [0x88, 0xb5] {
                    assert_eq!(bytes[14], round);
                    arrived.push(usize::from(bytes[15]));
                }
                pool.free(packet);
            }
            let expected: Vec<_> = (0..5).filter(|&number| number != wrong).collect();
            assert_eq!(arrived, expected, "round {round}");
        }
    });
}
