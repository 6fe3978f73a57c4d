//! Headers compared with the bytes of a SYN, written and parsed again, and parsed from arbitrary
//! bytes.

use std::string::ToString;
use std::vec::Vec;

use pkt::DropReason;
use proptest::prelude::*;

use super::{
    Flags, HEADER_BYTES_MAX, HEADER_BYTES_MIN, PlainHeader, SegmentHeader, write_checksum,
};
use crate::wire::{option::Options, seq::SeqNum};

/// A SYN in Linux's layout; the numbers, checksum included, are invented.
const SYN: [u8; 40] = [
    0xd4, 0x31, 0x00, 0x50, 0xa1, 0xb2, 0xc3, 0xd4, 0x00, 0x00, 0x00, 0x00, 0xa0, 0x02, 0xfa, 0xf0,
    0xfe, 0x30, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x11, 0x22, 0x33, 0x44,
    0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x07,
];

fn emitted(header: &SegmentHeader) -> Vec<u8> {
    let mut bytes = std::vec![0xee; header.header_bytes()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    bytes
}

#[test]
fn a_syn_is_written_as_it_was_parsed() {
    let header = SegmentHeader::parse(&SYN).unwrap();
    assert_eq!((header.src_port, header.dst_port), (54321, 80));
    assert_eq!(header.seq, SeqNum(0xa1b2_c3d4));
    assert_eq!(header.flags, Flags::SYN);
    assert_eq!(header.window, 64240);
    assert_eq!(header.header_len, 40);
    assert_eq!(header.options.mss, Some(1460));
    assert_eq!(header.options.timestamps, Some((0x1122_3344, 0)));
    let mut bytes = emitted(&header);
    write_checksum(&mut bytes, 0xfe30);
    assert_eq!(bytes, SYN);
}

#[test]
fn truncated_headers_and_data_offsets_below_five_are_rejected() {
    for len in 0..SYN.len() {
        assert_eq!(SegmentHeader::parse(&SYN[..len]), Err(DropReason::TcpHeader), "{len}");
    }
    for data_offset in 0..5u8 {
        let mut bytes = SYN;
        bytes[12] = data_offset << 4;
        assert_eq!(SegmentHeader::parse(&bytes), Err(DropReason::TcpHeader), "{data_offset}");
    }
}

#[test]
fn reserved_bits_are_ignored() {
    let mut bytes = SYN;
    bytes[12] |= 0x0f;
    assert_eq!(SegmentHeader::parse(&bytes), SegmentHeader::parse(&SYN));
}

#[test]
fn emit_does_not_write_after_the_end_of_the_header() {
    let header = SegmentHeader { flags: Flags::ACK | Flags::PSH, ..SegmentHeader::default() };
    let mut bytes = [0xabu8; 30];
    assert_eq!(header.emit(&mut bytes), HEADER_BYTES_MIN);
    assert_eq!(bytes[HEADER_BYTES_MIN..], [0xab; 10]);
    assert_eq!(SegmentHeader::parse(&bytes).unwrap().header_len, 20);
}

#[test]
fn syn_and_fin_each_take_a_sequence_number() {
    let mut header = SegmentHeader::default();
    assert_eq!(header.segment_len(5), 5);
    header.flags = Flags::SYN;
    assert_eq!(header.segment_len(0), 1);
    header.flags = Flags::FIN | Flags::ACK;
    assert_eq!(header.segment_len(5), 6);
}

#[test]
fn ports_are_read_without_the_rest_of_the_header() {
    assert_eq!(SegmentHeader::ports(&SYN[..4]), Some((54321, 80)));
    assert_eq!(SegmentHeader::ports(&SYN[..3]), None);
}

#[test]
fn flags_print_as_in_tcpdump() {
    assert_eq!((Flags::SYN | Flags::ACK).to_string(), "[S.]");
    assert_eq!((Flags::PSH | Flags::ACK | Flags::FIN).to_string(), "[FP.]");
    assert_eq!(Flags::empty().to_string(), "[]");
}

proptest! {
    #[test]
    fn a_plain_header_has_the_same_bytes_as_the_general_header(
        ports: (u16, u16),
        numbers: (u32, u32),
        flags: u8,
        window: u16,
        timestamps: (u32, u32),
        checksum: u16,
    ) {
        let plain = PlainHeader {
            ports,
            seq: SeqNum(numbers.0),
            ack: SeqNum(numbers.1),
            flags: Flags::from_bits_retain(flags),
            window,
            timestamps,
        };
        let header = SegmentHeader {
            src_port: ports.0,
            dst_port: ports.1,
            seq: plain.seq,
            ack: plain.ack,
            flags: plain.flags,
            window,
            options: Options { timestamps: Some(timestamps), ..Options::new() },
            ..SegmentHeader::default()
        };
        let mut bytes = emitted(&header);
        write_checksum(&mut bytes, checksum);
        prop_assert_eq!(bytes, plain.bytes(checksum));
    }

    #[test]
    fn a_written_header_is_parsed_unchanged(
        ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, urgent: u16,
        timestamps: Option<(u32, u32)>, mss in proptest::option::of(1u16..),
    ) {
        let flags = Flags::from_bits_retain(flags);
        let mss = mss.filter(|_| flags.contains(Flags::SYN));
        let options = Options { timestamps, mss, ..Options::new() };
        let mut header = SegmentHeader {
            src_port: ports.0, dst_port: ports.1, seq: SeqNum(seq), ack: SeqNum(ack),
            flags, window, urgent, header_len: 0, options,
        };
        let bytes = emitted(&header);
        header.header_len = u8::try_from(bytes.len()).unwrap();
        prop_assert_eq!(SegmentHeader::parse(&bytes), Ok(header));
    }

    #[test]
    fn arbitrary_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(header) = SegmentHeader::parse(&bytes) {
            let header_len = usize::from(header.header_len);
            prop_assert!((HEADER_BYTES_MIN..=HEADER_BYTES_MAX).contains(&header_len));
            prop_assert!(header_len <= bytes.len());
            // The header that is parsed, written and parsed again keeps these fields.
            let again = SegmentHeader::parse(&emitted(&header)).unwrap();
            prop_assert_eq!(again.options.timestamps, header.options.timestamps);
            prop_assert_eq!((again.seq, again.ack, again.flags), (header.seq, header.ack, header.flags));
        }
    }
}
