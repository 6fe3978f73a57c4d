//! Frames of every receive and transmit format arrive unchanged.

use pkt::{Gso, GsoKind, RxChecksum, TxChecksum};

use super::*;

/// Checks that frames of all lengths arrive unchanged and in order, and that each completes.
fn frames_cross(rx_format: RxFormat, tx_format: TxFormat, vnet_hdr: bool, qdisc: KernelQdisc) {
    in_namespace(move || {
        let left = AfPacketConfig { tx_format, vnet_hdr, qdisc, ..AfPacketConfig::new("left0") };
        let right = AfPacketConfig { rx_format, vnet_hdr, ..AfPacketConfig::new("right0") };
        pair(&left, &right, |left, right| {
            let (mut sent, mut bytes, mut completed) = (0, 0, Completed::NONE);
            while sent < 600 {
                let mut list = PacketList::new();
                for number in sent..sent + 60 {
                    let len = 60 + number * 97 % 1440;
                    bytes += len;
                    list.push_back(left.frame(number, len));
                }
                left.transmit(&mut list);
                assert!(list.is_empty(), "the device has room for 128 frames");
                let packets = right.receive(60);
                for (number, packet) in (sent..).zip(&packets) {
                    assert_eq!(number_of(packet), number);
                    assert_eq!(packet.len(), 60 + number * 97 % 1440);
                    let tail = packet.to_vec().split_off(HEADER_LEN + 8);
                    assert!(tail.iter().all(|&byte| usize::from(byte) == number % 256));
                }
                free(right, packets);
                sent += 60;
                let done = left.completed(60);
                completed.packets += done.packets;
                completed.bytes += done.bytes;
            }
            assert_eq!(completed, Completed { packets: sent, bytes });
            assert!(left.received(0).is_empty(), "sent frames are not received");
        });
    });
}

#[test]
fn frames_cross_a_ring_of_slots() {
    frames_cross(RxFormat::Frames, TxFormat::Ring, true, KernelQdisc::Through);
}

#[test]
fn frames_cross_in_blocks() {
    frames_cross(RxFormat::Blocks, TxFormat::Ring, true, KernelQdisc::Through);
}

#[test]
fn frames_cross_with_system_calls() {
    frames_cross(RxFormat::Calls, TxFormat::Calls, true, KernelQdisc::Through);
}

#[test]
fn frames_cross_without_offload_headers_and_around_the_qdisc() {
    frames_cross(RxFormat::Frames, TxFormat::Ring, false, KernelQdisc::Bypass);
    frames_cross(RxFormat::Blocks, TxFormat::Calls, false, KernelQdisc::Bypass);
    frames_cross(RxFormat::Calls, TxFormat::Ring, false, KernelQdisc::Bypass);
}

fn superframe_crosses(rx_format: RxFormat, tx_format: TxFormat) {
    in_namespace(move || {
        let left = AfPacketConfig { tx_format, ..AfPacketConfig::new("left0") };
        let right = AfPacketConfig { rx_format, ..AfPacketConfig::new("right0") };
        pair(&left, &right, |left, right| {
            let largest = usize::try_from(left.device.caps().gso_max_bytes).expect("bytes") - 40;
            for payload in [2_000, 20_000, 64_000, largest] {
                let bytes = tcp_frame(payload, 1000);
                let mut packet = left.packet(&bytes);
                let segs = u16::try_from(payload.div_ceil(1000)).expect("segments");
                let gso =
                    Gso { kind: GsoKind::TcpV4, ecn: true, fixed_id: false, size: 1000, segs };
                packet.meta_mut().gso = gso;
                packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
                left.transmit(&mut PacketList::from_iter([packet]));
                let mut packets = right.receive(1);
                assert_eq!(packets[0].meta().gso, gso);
                let partial = RxChecksum::Partial { start: 20, offset: 16 };
                assert_eq!(packets[0].meta().rx_checksum, partial);
                assert!(packets[0].to_vec() == bytes, "{payload} bytes arrived changed");
                right.cx.pool.free(packets.remove(0));
                assert_eq!(left.completed(1).bytes, bytes.len());
            }
        });
    });
}

#[test]
fn superframes_cross_whole() {
    superframe_crosses(RxFormat::Frames, TxFormat::Ring);
    superframe_crosses(RxFormat::Blocks, TxFormat::Calls);
    superframe_crosses(RxFormat::Calls, TxFormat::Calls);
}
