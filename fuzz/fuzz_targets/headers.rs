//! Every header parser on arbitrary bytes: it must not panic, must not claim more bytes than it was
//! given, and must parse the header it has written to the same values. The first byte of the input
//! selects the parser, so that each has inputs of its own in the corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stack::header::{
    arp::{ARP_LEN, ArpPacket},
    ethernet::{EthernetHeader, HEADER_LEN},
    extension,
    icmp::{IcmpMessage, Quote},
    ip::{self, IPV4_HEADER_LEN, IpHeader},
    ndp::{self, NdpMessage},
    option,
    repeat::SeenHeader,
};
use tcp::SegmentHeader;

fuzz_target!(|data: &[u8]| {
    let Some((&parser, bytes)) = data.split_first() else { return };
    match parser % 11 {
        0 => ethernet(bytes),
        1 => arp(bytes),
        2 => ip::<true>(bytes),
        3 => ip::<false>(bytes),
        4 => icmp::<true>(bytes),
        5 => icmp::<false>(bytes),
        6 => segment(bytes),
        7 => ip_options(bytes),
        9 => extensions(bytes),
        10 => discovery(bytes),
        _ => repeated(bytes),
    }
});

/// The first byte is the Next Header of the fixed header.
fn extensions(bytes: &[u8]) {
    let Some((&first, chain)) = bytes.split_first() else { return };
    if let Ok(read) = extension::read(first, chain) {
        let len = usize::from(read.len);
        assert!(len <= chain.len().min(extension::CHAIN_BYTES_MAX) && len % 8 == 0);
        assert!(read.fragment.is_fragment() || !extension::is_extension(read.protocol));
        // The bytes after the chain are not read.
        assert_eq!(extension::read(first, &chain[..len]), Ok(read));
    }
}

fn discovery(bytes: &[u8]) {
    match NdpMessage::parse(bytes) {
        Ok(NdpMessage::RouterAdvertisement(told)) => {
            assert!(told.prefixes.iter().all(|prefix| prefix.len <= 128));
        }
        Ok(NdpMessage::Redirect { .. }) | Err(_) => {}
        Ok(message) => {
            let mut written = [0; ndp::MESSAGE_LEN_MAX];
            let len = message.emit(&mut written);
            // A host writes one link address; of the one it may not write, nothing remains.
            let read = NdpMessage::parse(&written[..len]).expect("its own message");
            assert_eq!(read, message);
        }
    }
}

fn ethernet(bytes: &[u8]) {
    if let Ok(header) = EthernetHeader::parse(bytes) {
        let mut written = [0; HEADER_LEN];
        header.emit(&mut written);
        assert_eq!(written, bytes[..HEADER_LEN]);
    }
}

fn arp(bytes: &[u8]) {
    if let Ok(packet) = ArpPacket::parse(bytes) {
        let mut written = [0; ARP_LEN];
        packet.emit(&mut written);
        assert_eq!(written, bytes[..ARP_LEN]);
        let reply = packet.reply(packet.target_mac);
        assert_eq!((reply.target_mac, reply.target_ip), (packet.sender_mac, packet.sender_ip));
    }
}

/// The checksum is repaired first, because random bytes would nearly always fail at it. Bytes too
/// short for a header are parsed as they are.
fn ip<const V4: bool>(bytes: &[u8]) {
    read_ip::<V4>(bytes);
    let mut repaired = bytes.to_vec();
    if V4 && bytes.len() >= ip::fixed_len::<V4>() {
        let header_len = ip::claimed_len::<V4>(bytes).unwrap_or_default();
        repair_checksum(&mut repaired, header_len);
        read_ip::<V4>(&repaired);
    }
}

fn read_ip<const V4: bool>(bytes: &[u8]) {
    let Ok(read) = ip::parse::<V4>(bytes, bytes.len()) else { return };
    assert!(read.total_len() <= bytes.len());
    assert!(usize::from(read.header_len) >= ip::fixed_len::<V4>());
    assert_eq!(read.src.is_ipv4(), V4);
    assert_eq!(read.dst.is_ipv4(), V4);
    let fixed_len = ip::fixed_len::<V4>();
    let plain = IpHeader { header_len: u16::try_from(fixed_len).unwrap(), ..read };
    let mut written = [0; 40];
    plain.emit::<V4>(&mut written);
    let packet_len = plain.total_len();
    assert_eq!(ip::parse::<V4>(&written[..fixed_len], packet_len), Ok(plain));

    let mut segment = bytes[..usize::from(read.header_len)].to_vec();
    let half = read.payload_len / 2;
    ip::set_segment::<V4>(&mut segment, u16::try_from(half).unwrap(), 1);
    let again = ip::parse::<V4>(&segment, bytes.len()).ok();
    // A length of zero with next header 0 announces a jumbogram, which is refused.
    let refused = !V4 && half == 0 && read.protocol == 0;
    assert_eq!(again.map(|again| again.payload_len), (!refused).then_some(half));
}

/// Writes the checksum by the plain algorithm of RFC 1071.
fn repair_checksum(packet: &mut [u8], header_len: usize) {
    let Some(header) = packet.get_mut(..header_len).filter(|header| !header.is_empty()) else {
        return;
    };
    header[10..12].fill(0);
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!u16::try_from(folded).unwrap()).to_be_bytes());
}

fn icmp<const V4: bool>(bytes: &[u8]) {
    let Ok(message) = IcmpMessage::parse::<V4>(bytes) else { return };
    assert_eq!(IcmpMessage::parse::<V4>(&message.header_bytes::<V4>()), Ok(message));
    if message.is_error()
        && let Ok(quote) = Quote::parse::<V4>(&bytes[8..])
    {
        assert_eq!(quote.src.is_ipv4(), V4);
        assert_eq!(quote.ports().0.to_be_bytes(), quote.payload[..2]);
        assert_eq!(quote.tcp_seq().to_be_bytes(), quote.payload[4..]);
    }
}

/// A header may be written in fewer bytes than it was read from: padding is dropped, and so are
/// SACK blocks that do not fit beside timestamps. After one rewrite, reading and writing change
/// nothing.
fn segment(bytes: &[u8]) {
    let ports = SegmentHeader::ports(bytes);
    let Ok(read) = SegmentHeader::parse(bytes) else { return };
    assert_eq!(ports, Some((read.src_port, read.dst_port)));
    assert!(usize::from(read.header_len) <= bytes.len());
    let first = rewritten(&read);
    assert_eq!((first.src_port, first.dst_port), (read.src_port, read.dst_port));
    assert_eq!((first.seq, first.ack, first.flags), (read.seq, read.ack, read.flags));
    assert_eq!((first.window, first.urgent), (read.window, read.urgent));
    assert_eq!(first.options.timestamps, read.options.timestamps);
    assert_eq!(rewritten(&first), first);
}

fn rewritten(header: &SegmentHeader) -> SegmentHeader {
    let mut written = [0; tcp::wire::header::HEADER_BYTES_MAX];
    let len = header.emit(&mut written);
    SegmentHeader::parse(&written[..len]).expect("a header written by this stack")
}

fn ip_options(bytes: &[u8]) {
    let options = &bytes[..bytes.len().min(40)];
    if let Err(pointer) = option::check(options) {
        assert!((20..=60).contains(&pointer));
    }
}

/// A packet, and the next one of its flow: the same bytes except for some changes, with its
/// checksum repaired or not, and truncated or not. It must be recognized exactly if it differs only
/// in fields that may differ within a flow and the full parser accepts it. The result must then
/// equal that of the full parser.
fn repeated(bytes: &[u8]) {
    let Some((&[how, cut, ref changes @ ..], packet)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let mut first = packet.to_vec();
    repair_checksum(&mut first, ip::claimed_len::<true>(packet).unwrap_or_default());
    let Ok(header) = ip::parse::<true>(&first, first.len()) else { return };
    let is_plain =
        usize::from(header.header_len) == IPV4_HEADER_LEN && !header.fragment.is_fragment();
    let ports_end = IPV4_HEADER_LEN + 4;
    let seen = SeenHeader::new::<true>(&first, &header);
    assert_eq!(seen.is_some(), is_plain && first.len() >= ports_end);
    let Some(seen) = seen else { return };

    let mut next = first.clone();
    for change in changes.chunks_exact(2).take(usize::from(how & 3)) {
        next[usize::from(change[0]) % ports_end] ^= change[1];
    }
    if how & 4 != 0 {
        repair_checksum(&mut next, IPV4_HEADER_LEN);
    }
    if how & 8 != 0 {
        next.truncate(next.len() - usize::from(cut).min(next.len()));
    }
    // All fields except the length, the identification, the TTL and the checksum.
    let repeats = [0..2, 6..8, 9..10, 12..ports_end]
        .into_iter()
        .all(|range| next.get(range.clone()) == Some(&first[range]));
    let read = ip::parse::<true>(&next, next.len()).ok();
    assert_eq!(seen.repeated_in::<true>(&next, next.len()), read.filter(|_| repeats));
}
