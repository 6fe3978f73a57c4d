use proptest::prelude::*;

use super::*;

fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

fn sample_v4() -> IpHeader {
    IpHeader {
        src: v4(10, 0, 0, 1),
        dst: v4(10, 0, 0, 2),
        protocol: protocol::TCP,
        hop_limit: 64,
        traffic_class: 0x02,
        flow_label: 0,
        id: 0x1234,
        fragment: Fragment::DONT,
        header_len: 20,
        payload_len: 8,
    }
}

fn sample_v6() -> IpHeader {
    IpHeader {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        flow_label: 0xabcde,
        traffic_class: 0x5a,
        id: 0,
        fragment: Fragment::default(),
        header_len: 40,
        ..sample_v4()
    }
}

fn bytes_of<const V4: bool>(header: &IpHeader) -> Vec<u8> {
    let mut bytes = vec![0; fixed_len::<V4>() + header.payload_len as usize];
    header.emit::<V4>(&mut bytes);
    bytes
}

/// Returns an IPv4 header with `options` (a multiple of 4 bytes) and a valid checksum, followed by
/// 8 bytes of payload.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = bytes_of::<true>(&sample_v4());
    bytes.splice(20..20, options.iter().copied());
    bytes[0] = 0x45 + u8::try_from(options.len() / 4).unwrap();
    let total_len = u16::try_from(bytes.len()).unwrap();
    bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
    refresh_checksum(&mut bytes);
    bytes
}

fn refresh_checksum(bytes: &mut [u8]) {
    let header_len = usize::from(bytes[0] & 15) * 4;
    bytes[10..12].fill(0);
    let sum = header_checksum(&bytes[..header_len]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn edited(edit: impl FnOnce(&mut [u8])) -> Result<IpHeader, DropReason> {
    let mut bytes = bytes_of::<true>(&sample_v4());
    edit(&mut bytes);
    refresh_checksum(&mut bytes);
    parse::<true>(&bytes, bytes.len())
}

#[test]
fn v4_bytes_are_those_of_rfc_791() {
    let bytes = bytes_of::<true>(&sample_v4());
    let expected =
        [0x45, 0x02, 0, 28, 0x12, 0x34, 0x40, 0, 64, 6, 0x14, 0xa4, 10, 0, 0, 1, 10, 0, 0, 2];
    assert_eq!(bytes[..20], expected);
    assert_eq!(parse::<true>(&bytes, bytes.len()), Ok(sample_v4()));
}

#[test]
fn v6_bytes_are_those_of_rfc_8200() {
    let bytes = bytes_of::<false>(&sample_v6());
    assert_eq!(bytes[..8], [0x65, 0xaa, 0xbc, 0xde, 0, 8, 6, 64]);
    assert_eq!(parse::<false>(&bytes, bytes.len()), Ok(sample_v6()));
}

#[test]
fn every_truncation_is_too_short() {
    let four = bytes_of::<true>(&sample_v4());
    for len in 0..four.len() {
        assert_eq!(
            parse::<true>(&four[..len], len),
            Err(DropReason::PacketTooShort),
            "the first {len} bytes were not refused as too short"
        );
    }
    let six = bytes_of::<false>(&sample_v6());
    for len in 0..six.len() {
        assert_eq!(
            parse::<false>(&six[..len], len),
            Err(DropReason::PacketTooShort),
            "the first {len} bytes were not refused as too short"
        );
    }
}

#[test]
fn a_packet_whose_linear_part_ends_with_the_header_is_parsed() {
    let bytes = bytes_of::<true>(&sample_v4());
    assert!(parse::<true>(&bytes[..20], bytes.len()).is_ok());
}

#[test]
fn padding_after_the_packet_is_not_payload() {
    let mut bytes = bytes_of::<true>(&sample_v4());
    bytes.resize(46, 0);
    let header = parse::<true>(&bytes, bytes.len()).unwrap();
    assert_eq!(header.total_len(), 28);
}

#[test]
fn a_header_of_the_other_version_is_rejected() {
    let four = bytes_of::<true>(&sample_v4());
    let six = bytes_of::<false>(&sample_v6());
    assert_eq!(parse::<false>(&four, four.len()), Err(DropReason::IpVersion));
    assert_eq!(parse::<true>(&six, six.len()), Err(DropReason::IpVersion));
    assert_eq!(claimed_len::<true>(&[]), Err(DropReason::PacketTooShort));
    assert_eq!(claimed_len::<true>(&[0x44]), Err(DropReason::IpHeaderLength));
    assert_eq!(claimed_len::<true>(&[0x4f]), Ok(60));
    assert_eq!(claimed_len::<false>(&[0x60]), Ok(40));
}

#[test]
fn header_and_total_length_must_be_consistent() {
    assert_eq!(edited(|b| b[3] = 19), Err(DropReason::IpLength));
    assert_eq!(edited(|b| b[3] = 29), Err(DropReason::PacketTooShort));
    assert_eq!(edited(|b| b[3] = 20).unwrap().payload_len, 0);
}

#[test]
fn a_flipped_bit_after_the_first_byte_breaks_the_checksum() {
    let good = bytes_of::<true>(&sample_v4());
    for bit in 8..160 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            parse::<true>(&bytes, bytes.len()),
            Err(DropReason::IpCsum),
            "a header with bit {bit} flipped was not refused"
        );
    }
}

#[test]
fn fragments_are_recognized() {
    let more = edited(|b| b[6] = 0x20).unwrap().fragment;
    assert!(more.is_fragment() && more.more);
    let last = edited(|b| b[6..8].copy_from_slice(&[0x00, 0xb9])).unwrap().fragment;
    assert!(last.is_fragment());
    assert_eq!(last.offset, 1480);
    assert!(!Fragment::DONT.is_fragment());
}

#[test]
fn options_are_checked_and_ignored() {
    let header = |options: &[u8]| {
        let bytes = with_options(options);
        parse::<true>(&bytes, bytes.len())
    };
    let tolerated = header(&[7, 7, 4, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!((tolerated.header_len, tolerated.payload_len), (28, 8));
    assert_eq!(header(&[131, 7, 4, 10, 0, 0, 1, 0]), Err(DropReason::IpOptions));
    assert_eq!(header(&[1, 1, 1, 7]), Err(DropReason::IpOptions));
}

#[test]
fn invalid_addresses_are_rejected() {
    let src = |a: [u8; 4]| edited(|b| b[12..16].copy_from_slice(&a)).map(|_| ());
    assert_eq!(src([224, 0, 0, 1]), Err(DropReason::IpSourceInvalid));
    assert_eq!(src([255, 255, 255, 255]), Err(DropReason::IpSourceInvalid));
    assert_eq!(src([0, 0, 0, 0]), Err(DropReason::IpSourceInvalid));
    assert_eq!(src([0, 1, 2, 3]), Err(DropReason::IpSourceInvalid));
    assert_eq!(src([127, 0, 0, 1]), Ok(()), "a loopback source was refused");
    let dst = |a: [u8; 4]| edited(|b| b[16..20].copy_from_slice(&a)).map(|_| ());
    assert_eq!(dst([0, 0, 0, 0]), Err(DropReason::IpDestinationInvalid));
    assert_eq!(dst([224, 0, 0, 1]), Ok(()));
    let asks = edited(|b| {
        b[12..16].fill(0);
        b[16..20].fill(255);
    });
    assert!(asks.is_ok(), "a request of a host without an address was refused");

    let group = IpHeader { src: "ff02::1".parse().unwrap(), ..sample_v6() };
    let bytes = bytes_of::<false>(&group);
    assert_eq!(parse::<false>(&bytes, bytes.len()), Err(DropReason::IpSourceInvalid));
}

#[test]
fn jumbograms_are_rejected() {
    let jumbo = IpHeader { payload_len: 0, protocol: 0, ..sample_v6() };
    let bytes = bytes_of::<false>(&jumbo);
    assert_eq!(parse::<false>(&bytes, bytes.len()), Err(DropReason::IpLength));
}

#[test]
fn segments_of_a_superframe_have_valid_headers() {
    let mut bytes = with_options(&[1, 1, 1, 0]);
    set_segment::<true>(&mut bytes, 4, 3);
    let header = parse::<true>(&bytes, 28).unwrap();
    assert_eq!((header.payload_len, header.id, header.header_len), (4, 0x1237, 24));

    let mut bytes = bytes_of::<false>(&sample_v6());
    set_segment::<false>(&mut bytes, 4, 3);
    assert_eq!(parse::<false>(&bytes, bytes.len()).unwrap().payload_len, 4);
}

/// BIG TCP: a length of 0 means the packet's own length only for a superframe that is too long for
/// the length field.
#[test]
fn a_superframe_beyond_64_kb_has_the_length_of_its_packet() {
    let memory = crate::cx::Memory::new(4 << 20);
    let mut cx = crate::cx::Cx::replay(&memory, 1);
    fn check<const V4: bool>(cx: &mut crate::cx::Cx, sample: IpHeader) {
        let (own, other) = match V4 {
            true => (GsoKind::TcpV4, GsoKind::TcpV6),
            false => (GsoKind::TcpV6, GsoKind::TcpV4),
        };
        let fixed = fixed_len::<V4>();
        for (bytes, kind, whole) in [
            (200_000, own, true),
            (65_516, own, V4),
            (65_536, own, true),
            (65_496, own, false),
            (200_000, GsoKind::None, false),
            (200_000, other, false),
            (1000, own, false),
        ] {
            let mut packet = cx.pool.alloc().unwrap();
            assert_eq!(packet.append(&mut cx.pool, &vec![0; bytes as usize]), bytes as usize);
            // The field has 16 bits and cannot express this length.
            let header = IpHeader { payload_len: 1 << 20, ..sample };
            header.emit::<V4>(packet.push(fixed));
            packet.push(14).fill(0);
            packet.meta_mut().gso.kind = kind;
            let read = parse_packet::<V4>(&packet, 14);
            let expected = match (whole, V4) {
                (true, _) => Ok(IpHeader { payload_len: bytes, ..sample }),
                (false, true) => Err(DropReason::IpLength),
                (false, false) => Ok(IpHeader { payload_len: 0, ..sample }),
            };
            assert_eq!(
                read, expected,
                "a payload of {bytes} bytes in a packet of kind {kind:?} was not read as expected"
            );
            cx.pool.free(packet);
        }
    }
    check::<true>(&mut cx, sample_v4());
    check::<false>(&mut cx, sample_v6());
    assert_eq!(memory.packets.balance(), 0);
}

#[test]
#[should_panic(expected = "not of the version")]
fn emit_panics_for_addresses_of_the_other_family() {
    sample_v6().emit::<true>(&mut [0; 40]);
}

proptest! {
    #[test]
    fn emitted_v4_headers_are_parsed_as_written(
        src in 1_u32..0x7f00_0000, dst in 1_u32..0x7f00_0000, id: u16, class: u8, ttl: u8, protocol: u8,
        dont: bool, more: bool, offset in 0_u16..0x2000, payload_len in 0_u32..=65_515,
    ) {
        let src = Ipv4Addr::from_bits(src | 0x0100_0000);
        let dst = Ipv4Addr::from_bits(dst | 0x0100_0000);
        let header = IpHeader {
            src: src.into(), dst: dst.into(), protocol, hop_limit: ttl, traffic_class: class, flow_label: 0, id,
            fragment: Fragment { dont, more, offset: offset << 3 }, header_len: 20, payload_len,
        };
        let mut bytes = [0; 20];
        header.emit::<true>(&mut bytes);
        prop_assert_eq!(parse::<true>(&bytes, 20 + payload_len as usize), Ok(header));
    }

    #[test]
    fn emitted_v6_headers_are_parsed_as_written(
        src in 1_u128..1 << 120, dst in 1_u128..1 << 120, class: u8, hop_limit: u8, flow_label in 0_u32..1 << 20,
        protocol in 1_u8.., payload_len in 0_u32..=65_535,
    ) {
        let header = IpHeader {
            src: Ipv6Addr::from_bits(src).into(), dst: Ipv6Addr::from_bits(dst).into(), protocol, hop_limit,
            traffic_class: class, flow_label, id: 0, fragment: Fragment::default(), header_len: 40, payload_len,
        };
        let mut bytes = [0; 40];
        header.emit::<false>(&mut bytes);
        prop_assert_eq!(parse::<false>(&bytes, 40 + payload_len as usize), Ok(header));
    }

    #[test]
    fn parsing_never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80), longer in 0_usize..80) {
        let packet_len = bytes.len() + longer;
        if let Ok(header) = parse::<true>(&bytes, packet_len) {
            prop_assert!(header.total_len() <= packet_len);
        }
        if let Ok(header) = parse::<false>(&bytes, packet_len) {
            prop_assert!(header.total_len() <= packet_len);
        }
    }

    /// The reference sum follows the definition of RFC 1071, sixteen bits at a time.
    #[test]
    fn the_checksum_agrees_with_its_definition(words in proptest::collection::vec(any::<u32>(), 5..=15)) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut sum = 0_u32;
        for pair in bytes.as_chunks::<2>().0 {
            sum += u32::from(u16::from_be_bytes(*pair));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        prop_assert_eq!(header_checksum(&bytes), !u16::try_from(sum).unwrap());
    }
}
