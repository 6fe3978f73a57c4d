//! Tests that the word comparison (`held::next`) recognizes only segments that full parsing
//! accepts.

use super::*;

/// Payload length: odd, and longer than the linear part of a packet.
const LEN: u32 = 501;

/// Passes `frames` to GRO in one poll, and returns the bytes, the checksum state and the GSO fields
/// of each delivered packet. With `apart`, headers are linear and the payload is in pages, as from
/// a device with header split. The word comparison recognizes only such frames; others are parsed.
fn judged(
    bench: &mut Bench,
    frames: [&[u8]; 2],
    headers: usize,
    apart: bool,
) -> Vec<(Vec<u8>, RxChecksum, pkt::Gso)> {
    for bytes in frames {
        let packet = if apart {
            let mut packet = bench.packet(&bytes[headers..]);
            packet.push(headers).copy_from_slice(&bytes[..headers]);
            packet
        } else {
            bench.packet(bytes)
        };
        bench.receive_packet(packet);
    }
    bench.complete();
    let up = std::mem::take(&mut bench.up).into_iter();
    up.map(|packet| (packet.to_vec(), packet.meta().rx_checksum, packet.meta().gso)).collect()
}

/// Corrects the checksums, assuming that the headers have their usual offsets.
fn fix_checksums(bytes: &mut [u8], v4: bool, ip: bool, tcp: bool) {
    let (addresses, transport) =
        if v4 { (LINK + 12..LINK + 20, LINK + 20) } else { (LINK + 8..LINK + 40, LINK + 40) };
    if ip && v4 {
        bytes[LINK + 10..LINK + 12].fill(0);
        let sum = pkt::Sum::of(&bytes[LINK..transport]).finish();
        bytes[LINK + 10..LINK + 12].copy_from_slice(&sum.to_be_bytes());
    }
    if tcp {
        bytes[transport + 16..transport + 18].fill(0);
        let mut sum = pkt::Sum::of(&bytes[addresses]);
        sum.add_u32(u32::from(protocol::TCP));
        sum.add_u32(u32::try_from(bytes.len() - transport).unwrap());
        sum.add_sum(pkt::Sum::of(&bytes[transport..]));
        bytes[transport + 16..transport + 18].copy_from_slice(&sum.finish().to_be_bytes());
    }
}

/// Flips every bit of the second segment's headers, one at a time, with right and with wrong
/// checksums. Also passes a truncated segment and one with a trailer.
#[test]
fn word_comparison_and_full_parsing_give_the_same_result() {
    for (v4, timestamps, flags) in [
        (true, Some((1000, 2000)), Flags::ACK),
        (true, None, Flags::ACK | Flags::CWR),
        (false, Some((1000, 2000)), Flags::ACK | Flags::CWR),
        (false, None, Flags::ACK),
    ] {
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        let frame = Frame { v4, timestamps, ..Frame::new(1, 0, LEN) };
        let first = Frame { flags, ..frame.clone() }.bytes();
        let good = Frame { seq: LEN, id: u16::from(v4), ..frame }.bytes();
        let headers = good.len() - LEN as usize;
        let mut compare = |second: &[u8], what: &str| {
            let [read, apart] =
                [false, true].map(|apart| judged(&mut bench, [&first[..], second], headers, apart));
            assert!(
                read == apart,
                "{what}, {}: the results differ",
                if v4 { "IPv4" } else { "IPv6" }
            );
            read.len()
        };
        // CWR on the first segment does not prevent merging with a second one without CWR.
        assert_eq!(compare(&good, "unchanged"), 1);
        assert_eq!(compare(&good[..good.len() - 1], "cut short"), 2);
        assert_eq!(compare(&[&good[..], &[0; 3]].concat(), "with a trailer"), 2);
        for bit in 0..8 * headers {
            for (ip, tcp) in [(false, false), (true, false), (true, true)] {
                let mut second = good.clone();
                second[bit / 8] ^= 1 << (bit % 8);
                fix_checksums(&mut second, v4, ip, tcp);
                compare(&second, &format!("bit {} of byte {}, {ip} {tcp}", bit % 8, bit / 8));
            }
        }
    }
}
