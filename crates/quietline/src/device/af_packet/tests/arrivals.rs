//! Received frames: each arrives once, on the queue of its flow, and missed frames are counted.

use std::collections::HashMap;
use std::thread::sleep;

use pkt::TxChecksum;
use stack::base::counters::Counter;

use super::*;

#[test]
fn a_full_receive_ring_is_counted() {
    in_namespace(|| {
        let right = AfPacketConfig { rx_ring_bytes: 1 << 20, ..AfPacketConfig::new("right0") };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            // The ring has 15 slots, and no thread polls it.
            let mut list: PacketList = (0..40).map(|number| left.frame(number, 100)).collect();
            left.transmit(&mut list);
            witness.has_seen(40);
            let mut packets = right.received(0);
            let mut list: PacketList = (40..50).map(|number| left.frame(number, 100)).collect();
            left.transmit(&mut list);
            witness.has_seen(10);
            packets.extend(right.received(0));
            let missed = right.cx.counters().stack.value(Counter::DeviceRxMissed);
            assert_eq!(packets.len() as u64 + missed, 50, "{missed} missed");
            assert!(missed >= 25, "{missed} missed");
            free(right, packets);
        });
    });
}

/// A block that the timeout has closed is used up, even with one frame in it.
#[test]
fn rare_frames_without_a_poll_do_not_exhaust_the_blocks() {
    in_namespace(|| {
        let right = AfPacketConfig { rx_format: RxFormat::Blocks, ..AfPacketConfig::new("right0") };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            for number in 0..64 {
                let mut list = PacketList::from_iter([left.frame(number, 100)]);
                left.transmit(&mut list);
                left.completed(1);
                witness.has_seen(1);
                sleep(Duration::from_millis(3));
            }
            let packets = right.received(0);
            assert_eq!(right.cx.counters().stack.value(Counter::DeviceRxMissed), 0);
            assert_eq!(packets.len(), 64);
            free(right, packets);
        });
    });
}

#[test]
fn a_full_receive_buffer_is_counted() {
    in_namespace(|| {
        let right = AfPacketConfig {
            rx_format: RxFormat::Calls,
            rx_ring_bytes: 1 << 20,
            ..AfPacketConfig::new("right0")
        };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            let mut send = |left: &mut End, count: usize| {
                let mut list: PacketList =
                    (0..count).map(|number| left.frame(number, 1400)).collect();
                left.transmit(&mut list);
                left.completed(count);
                witness.has_seen(count);
            };
            // No thread polls, and the buffer of 2 MB has room for 900 frames with their overhead.
            for _ in 0..20 {
                send(left, 100);
            }
            let mut packets = right.received(0);
            send(left, 10);
            packets.extend(right.received(0));
            let missed = right.cx.counters().stack.value(Counter::DeviceRxMissed);
            assert_eq!(packets.len() as u64 + missed, 2010, "{missed} missed");
            assert!(missed >= 500, "{missed} missed");
            free(right, packets);
        });
    });
}

/// Before the queues join the fanout group, each of them receives every frame.
#[test]
fn discard_drops_all_waiting_frames() {
    in_namespace(|| {
        let config = AfPacketConfig::new("left0");
        pair(&config, &AfPacketConfig::new("right0"), |left, witness| {
            for vnet_hdr in [true, false] {
                // The kernel delivers a frame to the newest socket first: when the witness has a
                // frame, the device has it.
                let rx_format = RxFormat::Calls;
                let config =
                    AfPacketConfig { rx_format, vnet_hdr, ..AfPacketConfig::new("right0") };
                let mut end = End::new(&Memory::new(64 << 20), &config);
                let mut list: PacketList = (0..10).map(|number| left.frame(number, 100)).collect();
                left.transmit(&mut list);
                let packets = witness.receive(10);
                free(witness, packets);
                RxCalls::discard(end.device.queues[0].receiver());
                let packets = end.received(0);
                assert!(packets.is_empty(), "{} frames are left", packets.len());
                left.completed(10);
            }
        });
    });
}

#[test]
fn flows_are_spread_over_queues_and_stay_on_their_queue() {
    for_each_tx_format(|tx_format| {
        let right = AfPacketConfig {
            queues: 2,
            rx_format: rx_format_for(tx_format),
            ..AfPacketConfig::new("right0")
        };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            let mut queue_of = HashMap::new();
            let mut seen = [0; 2];
            for round in 0..3 {
                let mut list = PacketList::new();
                for port in 1000..1032 {
                    let mut packet = left.packet(&tcp_frame(10, port));
                    packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
                    list.push_back(packet);
                }
                left.transmit(&mut list);
                left.completed(32);
                witness.has_seen(32);
                for queue in 0..2 {
                    let packets = right.received(queue);
                    for packet in &packets {
                        let bytes = packet.to_vec();
                        let port = u16::from_be_bytes([bytes[34], bytes[35]]);
                        assert_eq!(*queue_of.entry(port).or_insert(queue), queue, "port {port}");
                        seen[usize::from(queue)] += 1;
                    }
                    free(right, packets);
                }
                assert_eq!(seen[0] + seen[1], (round + 1) * 32, "each frame arrives once");
            }
            assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
        });
    });
}
