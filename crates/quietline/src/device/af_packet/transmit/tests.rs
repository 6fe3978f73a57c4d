//! What only a wrong frame in the ring brings about.

use pkt::{Domain, DomainConfig, PacketList};

use super::*;
use crate::device::af_packet::receive::{Received, RxRing};
use crate::device::af_packet::{AfPacketConfig, socket};
use crate::device::interface::Interface;
use crate::device::namespace::{in_namespace, run};

/// A frame that the kernel cannot read is taken out, and those behind it are sent in their order.
#[test]
fn a_wrong_frame_is_skipped_and_named() {
    in_namespace(|| {
        run("ip link add left0 type veth peer name right0");
        run("ip link set left0 up");
        run("ip link set right0 up");
        let config = AfPacketConfig { tx_ring_frames: 16, ..AfPacketConfig::new("left0") };
        let left = Interface::find("left0").expect("left0");
        let right = Interface::find("right0").expect("right0");
        let (socket, mapping) = socket::open_sender(&left, &config).expect("a ring");
        let (_receiver, mapping_there, geometry) =
            socket::open_receiver(&right, &config).expect("a ring");
        let mut ring = TxRing::new(socket, mapping, true);
        let mut there = RxRing::new(mapping_there, geometry, true);
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        let none = &mut |reason, _| panic!("{reason}");
        // Round the ring more than once, with the wrong one at every position.
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
            // Longer than a place.
            ring.copy_in(index * PLACE_BYTES + LEN_AT, &100_000u32.to_ne_bytes());
            let mut refused = Vec::new();
            let sent =
                ring.send(Instant::ZERO, &mut |reason, packet| refused.push((reason, packet)));
            assert_eq!(sent, Ok(None));
            let [(DropReason::DeviceTxError, packet)] = &refused[..] else { panic!("{refused:?}") };
            assert_eq!(usize::from(packet.to_vec()[15]), wrong);
            refused.drain(..).for_each(|(_, packet)| pool.free(packet));
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            let mut done = 0;
            while done < 4 {
                let mut list = ring.reap();
                done += list.len();
                list.free_all(&mut pool);
                assert!(std::time::Instant::now() < deadline, "{done} completed");
            }
            let mut arrived = Vec::new();
            while let Received::Good(packet) = there.receive(&mut pool, Instant::ZERO) {
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
        drop(pool);
        assert_eq!(domain.balance(), 0);
    });
}
