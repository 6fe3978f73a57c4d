use pkt::Pool;
use proptest::prelude::*;

use super::*;
use crate::device::with_pool;

const ETHERNET: u16 = 14;
const IP_START: usize = 14;
const TCP_START: usize = 34;

/// Returns an Ethernet frame with an IP version nibble, a TCP data offset and `payload` bytes after
/// a 20-byte header.
fn tcp_frame(pool: &mut Pool, version: u8, data_offset: u8, payload: usize) -> Packet {
    let mut bytes = vec![0; TCP_START + 20 + payload];
    bytes[IP_START] = version << 4 | 5;
    bytes[TCP_START + TCP_DATA_OFFSET] = data_offset << 4;
    let mut packet = pool.alloc().expect("memory");
    assert_eq!(packet.append(pool, &bytes), bytes.len());
    packet
}

/// A TCP superframe over IPv4 as the kernel describes it.
const SUPERFRAME: VnetHdr = VnetHdr {
    flags: F_NEEDS_CSUM,
    gso_type: GSO_TCPV4,
    hdr_len: 54,
    gso_size: 1000,
    csum_start: 34,
    csum_offset: 16,
    num_buffers: 0,
};

#[test]
fn fields_have_the_offsets_of_virtio() {
    let bytes = SUPERFRAME.to_bytes();
    assert_eq!(bytes[..2], [1, 1]);
    assert_eq!(bytes[6..8], 34u16.to_ne_bytes());
    assert_eq!(VnetHdr::from_bytes(bytes), SUPERFRAME);
}

#[test]
fn an_empty_header_does_not_change_metadata() {
    with_pool(|pool| {
        let mut frame = tcp_frame(pool, 4, 5, 10);
        let before = *frame.meta();
        assert_eq!(VnetHdr::default().apply_to(&mut frame, ETHERNET), Ok(()));
        assert_eq!(*frame.meta(), before);
        pool.free(frame);
    });
}

#[test]
fn a_superframe_becomes_metadata() {
    with_pool(|pool| {
        for (version, gso_type, kind) in
            [(4, GSO_TCPV4, GsoKind::TcpV4), (6, GSO_TCPV6 | GSO_ECN, GsoKind::TcpV6)]
        {
            let mut frame = tcp_frame(pool, version, 5, 2500);
            let header = VnetHdr { gso_type, ..SUPERFRAME };
            assert_eq!(header.apply_to(&mut frame, ETHERNET), Ok(()));
            let ecn = gso_type & GSO_ECN != 0;
            assert_eq!(frame.meta().gso, Gso { kind, ecn, fixed_id: false, size: 1000, segs: 3 });
            let partial = RxChecksum::Partial { start: 20, offset: 16 };
            assert_eq!(frame.meta().rx_checksum, partial);
            pool.free(frame);
        }
    });
}

#[test]
fn a_superframe_of_datagrams_becomes_metadata_and_the_same_header() {
    with_pool(|pool| {
        for version in [4, 6] {
            let mut frame = tcp_frame(pool, version, 5, 2488);
            let header =
                VnetHdr { gso_type: GSO_UDP_L4, hdr_len: 42, csum_offset: 6, ..SUPERFRAME };
            assert_eq!(header.apply_to(&mut frame, ETHERNET), Ok(()));
            // 2,488 bytes, and the 12 by which a TCP header is longer.
            let gso = Gso { kind: GsoKind::Udp, size: 1000, segs: 3, ..Gso::default() };
            assert_eq!(frame.meta().gso, gso);
            frame.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 6 };
            assert_eq!(VnetHdr::of(&frame, ETHERNET), Ok(header));
            pool.free(frame);
        }
    });
}

#[test]
fn a_verified_frame_needs_no_checksum() {
    with_pool(|pool| {
        let mut frame = tcp_frame(pool, 4, 5, 0);
        let header = VnetHdr { flags: F_DATA_VALID, ..VnetHdr::default() };
        assert_eq!(header.apply_to(&mut frame, ETHERNET), Ok(()));
        assert_eq!(frame.meta().rx_checksum, RxChecksum::Unnecessary);
        pool.free(frame);
    });
}

#[test]
fn headers_that_contradict_the_frame_are_refused() {
    let none = VnetHdr { gso_type: GSO_NONE, gso_size: 0, ..SUPERFRAME };
    let contradictions = [
        ("checksum in the link header", VnetHdr { csum_start: 13, ..none }),
        ("checksum beyond the frame", VnetHdr { csum_start: 2553, csum_offset: 0, ..none }),
        ("sums that overflow", VnetHdr { csum_start: 65_535, csum_offset: 65_535, ..none }),
        ("superframe without partial checksum", VnetHdr { flags: 0, ..SUPERFRAME }),
        ("superframe that is not TCP", VnetHdr { csum_offset: 6, ..SUPERFRAME }),
        ("no segment size", VnetHdr { gso_size: 0, ..SUPERFRAME }),
        ("wrong family", VnetHdr { gso_type: GSO_TCPV6, ..SUPERFRAME }),
        ("UDP fragmentation", VnetHdr { gso_type: 3, ..SUPERFRAME }),
        ("datagrams with the checksum of TCP", VnetHdr { gso_type: GSO_UDP_L4, ..SUPERFRAME }),
        (
            "datagrams with ECN",
            VnetHdr { gso_type: GSO_UDP_L4 | GSO_ECN, csum_offset: 6, ..SUPERFRAME },
        ),
        (
            "UDP header beyond the frame",
            VnetHdr { gso_type: GSO_UDP_L4, csum_start: 2547, csum_offset: 6, ..SUPERFRAME },
        ),
        ("ECN without a type", VnetHdr { gso_type: GSO_ECN, ..SUPERFRAME }),
        ("TCP header beyond the frame", VnetHdr { csum_start: 2536, ..SUPERFRAME }),
    ];
    with_pool(|pool| {
        for (what, header) in contradictions {
            let mut frame = tcp_frame(pool, 4, 5, 2500);
            let before = *frame.meta();
            let refused = header.apply_to(&mut frame, ETHERNET);
            assert_eq!(refused, Err(DropReason::VnetHeader), "{what}");
            assert_eq!(*frame.meta(), before, "{what}");
            pool.free(frame);
        }
        for data_offset in [0, 4] {
            let mut frame = tcp_frame(pool, 4, data_offset, 2500);
            let refused = SUPERFRAME.apply_to(&mut frame, ETHERNET);
            assert_eq!(refused, Err(DropReason::VnetHeader), "data offset {data_offset}");
            pool.free(frame);
        }
    });
}

#[test]
fn metadata_becomes_a_header() {
    with_pool(|pool| {
        let mut frame = tcp_frame(pool, 4, 5, 2500);
        assert_eq!(VnetHdr::of(&frame, ETHERNET), Ok(VnetHdr::default()));
        frame.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
        let partial = VnetHdr { gso_type: GSO_NONE, gso_size: 0, hdr_len: 0, ..SUPERFRAME };
        assert_eq!(VnetHdr::of(&frame, ETHERNET), Ok(partial));
        frame.meta_mut().gso =
            Gso { kind: GsoKind::TcpV4, ecn: false, fixed_id: false, size: 1000, segs: 3 };
        assert_eq!(VnetHdr::of(&frame, ETHERNET), Ok(SUPERFRAME));
        frame.meta_mut().gso.ecn = true;
        let ecn = VnetHdr { gso_type: GSO_TCPV4 | GSO_ECN, ..SUPERFRAME };
        assert_eq!(VnetHdr::of(&frame, ETHERNET), Ok(ecn));
        // One segment needs no segmentation.
        frame.meta_mut().gso.size = 2500;
        assert_eq!(VnetHdr::of(&frame, ETHERNET), Ok(partial));
        pool.free(frame);
    });
}

#[test]
fn metadata_that_does_not_fit_the_packet_is_refused() {
    with_pool(|pool| {
        let mut frame = tcp_frame(pool, 4, 5, 100);
        frame.meta_mut().gso =
            Gso { kind: GsoKind::TcpV4, ecn: false, fixed_id: false, size: 10, segs: 10 };
        assert_eq!(VnetHdr::of(&frame, ETHERNET), Err(DropReason::VnetHeader));
        for (start, offset) in [(u16::MAX, 0), (138, 1), (20, u16::MAX), (130, 16)] {
            frame.meta_mut().tx_checksum = TxChecksum::Partial { start, offset };
            let refused = VnetHdr::of(&frame, ETHERNET);
            assert_eq!(refused, Err(DropReason::VnetHeader), "{start} + {offset}");
        }
        pool.free(frame);
    });
}

proptest! {
    /// For any header, metadata never points outside of the frame, and metadata accepted from the
    /// kernel converts back to the same header.
    #[test]
    fn accepted_metadata_lies_inside_the_frame(
        bytes in any::<[u8; VNET_HDR_LEN]>(),
        plausible in any::<bool>(),
        version in prop_oneof![Just(4u8), Just(6), 0u8..16],
        data_offset in 0u8..16,
        payload in 0usize..3000,
        link_header_len in prop_oneof![Just(0u16), Just(ETHERNET)],
    ) {
        with_pool(|pool| {
            let mut header = VnetHdr::from_bytes(bytes);
            if plausible {
                header = VnetHdr { gso_size: header.gso_size, ..SUPERFRAME };
            }
            let mut frame = tcp_frame(pool, version, data_offset, payload);
            if header.apply_to(&mut frame, link_header_len).is_ok() {
                let meta = *frame.meta();
                if let RxChecksum::Partial { start, offset } = meta.rx_checksum {
                    let end = usize::from(link_header_len) + usize::from(start) + usize::from(offset) + 2;
                    assert!(end <= frame.len());
                    frame.meta_mut().tx_checksum = TxChecksum::Partial { start, offset };
                }
                if meta.gso.kind != GsoKind::None {
                    assert!(meta.gso.size > 0 && meta.gso.segs > 0);
                    let back = VnetHdr::of(&frame, link_header_len).expect("it was accepted");
                    assert_eq!(back.csum_start, header.csum_start);
                    if meta.gso.segs > 1 {
                        assert_eq!(back.gso_type, header.gso_type);
                        assert_eq!(back.gso_size, header.gso_size);
                    }
                }
            }
            pool.free(frame);
        });
    }
}
