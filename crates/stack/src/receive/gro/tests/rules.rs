//! Merge rules, case by case, for both families.

use super::*;

use crate::base::limits::GRO_BYTES_MAX;

/// Returns the payload lengths of the packets delivered when `frames` arrive in one poll.
fn lengths(frames: &[Frame]) -> Vec<u32> {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    frames.iter().for_each(|frame| bench.receive(frame));
    bench.complete();
    let delivered = bench.delivered();
    assert!(!is_reordered(&delivered) || frames.iter().any(|frame| frame.seq > 50_000));
    delivered.iter().map(|(_, len, _)| *len).collect()
}

/// Returns the delivered payload lengths of two consecutive segments, for IPv4 and for IPv6.
/// `change` modifies the second segment.
fn second(change: impl Fn(Frame) -> Frame) -> [Vec<u32>; 2] {
    [true, false].map(|v4| {
        let first = Frame { v4, ..Frame::new(1, 0, 100) };
        let next = Frame { v4, id: u16::from(v4), ..Frame::new(1, 100, 100) };
        lengths(&[first, change(next)])
    })
}

const MERGED: [[u32; 1]; 2] = [[200]; 2];
const APART: [[u32; 2]; 2] = [[100, 100]; 2];

#[test]
fn consecutive_segments_merge() {
    assert_eq!(second(|frame| frame), MERGED);
    assert_eq!(second(|frame| frame.with(Flags::PSH)), MERGED);
    assert_eq!(second(|frame| frame.with(Flags::FIN)), MERGED);
}

#[test]
fn segments_with_different_shared_header_fields_do_not_merge() {
    assert_eq!(second(|frame| frame.with(Flags::SYN)), APART);
    assert_eq!(second(|frame| frame.with(Flags::RST)), APART);
    assert_eq!(second(|frame| frame.with(Flags::URG)), APART);
    assert_eq!(second(|frame| frame.with(Flags::ECE)), APART);
    assert_eq!(
        second(|frame| frame.with(Flags::CWR)),
        APART,
        "a second segment with CWR was merged"
    );
    assert_eq!(second(|frame| Frame { ack: 78, ..frame }), APART);
    assert_eq!(second(|frame| Frame { window: 501, ..frame }), APART);
    assert_eq!(second(|frame| Frame { timestamps: Some((1001, 2000)), ..frame }), APART);
    assert_eq!(second(|frame| Frame { timestamps: None, ..frame }), APART);
    assert_eq!(second(|frame| Frame { hop_limit: 63, ..frame }), APART);
    assert_eq!(
        second(|frame| Frame { traffic_class: 4, ..frame }),
        APART,
        "a segment with another DSCP was merged"
    );
    assert_eq!(
        second(|frame| Frame { traffic_class: 3, ..frame }),
        APART,
        "a segment with another ECN mark was merged"
    );
    assert_eq!(second(|frame| Frame { seq: 90_000, ..frame }), APART);
    assert_eq!(
        second(|frame| Frame { src_port: 2, seq: 90_000, ..frame }),
        APART,
        "segments of two flows were merged"
    );
}

#[test]
fn the_first_segment_may_carry_cwr() {
    let first = Frame::new(1, 0, 100).with(Flags::CWR);
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&first);
    bench.receive(&Frame { id: 1, ..Frame::new(1, 100, 100) });
    bench.complete();
    assert_eq!(bench.delivered(), [(0, 200, 2)]);
    assert!(bench.up[0].meta().gso.ecn);
}

#[test]
fn segments_of_equal_length_and_a_shorter_last_one_merge() {
    let row = |lens: &[u32]| {
        let mut seq = 0;
        let frames: Vec<Frame> = (0..)
            .zip(lens)
            .map(|(id, len)| {
                let frame = Frame { id, ..Frame::new(1, seq, *len) };
                seq += len;
                frame
            })
            .collect();
        lengths(&frames)
    };
    assert_eq!(row(&[100, 100, 100]), [300]);
    assert_eq!(row(&[100, 60]), [160], "a shorter segment was not merged");
    assert_eq!(row(&[100, 60, 60]), [160, 60], "a shorter segment did not end the aggregate");
    assert_eq!(row(&[60, 100]), [60, 100], "a longer segment was merged");
    assert_eq!(row(&[0, 0]), [0, 0], "pure ACKs were merged");
    assert_eq!(row(&[100, 0, 100]), [100, 0, 100]);
    assert_eq!(row(&[1, 1, 1]), [3]);
}

/// The second segment decides whether the identifications of an aggregate are constant or
/// increment, and the third must follow. The rule is the same with and without DF. DF must be equal
/// in all segments.
#[test]
fn ipv4_identifications_of_merged_segments_are_constant_or_increment() {
    for dont_fragment in [true, false] {
        let row = |ids: &[u16]| {
            let frames: Vec<Frame> = (0..)
                .zip(ids)
                .map(|(at, id)| Frame { id: *id, dont_fragment, ..Frame::new(1, at * 100, 100) })
                .collect();
            lengths(&frames)
        };
        assert_eq!(row(&[7, 8, 9]), [300]);
        assert_eq!(row(&[7, 7, 7]), [300]);
        assert_eq!(row(&[0xffff, 0, 1]), [300], "an identification that wraps was not merged");
        assert_eq!(
            row(&[7, 8, 8]),
            [200, 100],
            "a third identification that does not increment was merged"
        );
        assert_eq!(
            row(&[7, 7, 8]),
            [200, 100],
            "a third identification that is not constant was merged"
        );
        assert_eq!(row(&[7, 9]), [100, 100]);
    }
    let without_df = Frame { dont_fragment: false, id: 1, ..Frame::new(1, 100, 100) };
    assert_eq!(
        lengths(&[Frame::new(1, 0, 100), without_df]),
        [100, 100],
        "a segment with another DF was merged"
    );
}

/// A packet with another link header, with a trailer or with IP options cannot be merged, but
/// completes the held packet of its flow.
#[test]
fn packets_that_cannot_be_merged_keep_their_order() {
    for change in 0..3 {
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        bench.receive(&Frame::new(1, 0, 100));
        let mut bytes = Frame { id: 1, ..Frame::new(1, 100, 100) }.bytes();
        match change {
            0 => bytes[6] ^= 4,
            1 => bytes.extend([0; 3]),
            _ => {
                // An IPv4 header with one word of options: end of list.
                bytes.splice(LINK + 20..LINK + 20, [0; 4]);
                bytes[LINK] = 0x46;
                let total = u16::from_be_bytes([bytes[LINK + 2], bytes[LINK + 3]]) + 4;
                bytes[LINK + 2..LINK + 4].copy_from_slice(&total.to_be_bytes());
                bytes[LINK + 10..LINK + 12].fill(0);
                let sum = pkt::Sum::of(&bytes[LINK..LINK + 24]).finish();
                bytes[LINK + 10..LINK + 12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        bench.receive_bytes(&bytes);
        assert_eq!(bench.count(Counter::GroFlushHeader), 1, "change {change}");
        bench.complete();
        assert_eq!(bench.up.len(), 2);
        assert_eq!(bench.delivered()[0], (0, 100, 1));
    }
}

/// A packet with a wrong checksum of TCP or IP, another protocol, or a wrong version is not merged,
/// and the held packet stays held.
#[test]
fn an_invalid_segment_is_passed_on_unchanged() {
    for place in [LINK + 10, LINK + 9, LINK + 40 + 20, LINK] {
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        bench.receive(&Frame::new(1, 0, 100));
        let good = Frame { id: 1, ..Frame::new(1, 100, 100) }.bytes();
        let mut bad = good.clone();
        bad[place] ^= 0x11;
        bench.receive_bytes(&bad);
        assert_eq!(bench.gro.table.len(), 1, "byte {place}");
        bench.receive_bytes(&good);
        bench.complete();
        assert_eq!(bench.up.len(), 2, "byte {place}");
        assert_eq!(bench.delivered()[1], (0, 200, 2), "byte {place}");
    }
}

/// A fragment completes the held packets of all flows between its addresses, because only the first
/// fragment has ports. So no earlier packet of its flow is delivered after it.
#[test]
fn a_fragment_completes_all_packets_held_between_its_addresses() {
    for offset in [0u16, 100] {
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        for port in [1, 2] {
            bench.receive(&Frame::new(port, 0, 100));
            bench.receive(&Frame { id: 1, ..Frame::new(port, 100, 100) });
        }
        let mut other_host = Frame { id: 7, ..Frame::new(3, 0, 100) }.bytes();
        other_host[LINK + 15] = 9;
        fix_ip_checksum(&mut other_host);
        let mut other_host = bench.packet(&other_host);
        other_host.meta_mut().rx_checksum = RxChecksum::Unnecessary;
        bench.receive_packet(other_host);
        assert_eq!(bench.gro.table.len(), 3);
        let mut piece = Frame { id: 2, ..Frame::new(1, 200, 100) }.bytes();
        let more = if offset == 0 { 0x2000 } else { 0 };
        piece[LINK + 6..LINK + 8].copy_from_slice(&(more | (offset / 8)).to_be_bytes());
        fix_ip_checksum(&mut piece);
        bench.receive_bytes(&piece);
        assert_eq!(bench.gro.table.len(), 1, "the packet of another host was completed");
        assert_eq!(bench.count(Counter::GroFlushHeader), 2);
        bench.complete();
        let delivered = bench.delivered();
        assert_eq!(delivered[..2], [(0, 200, 2); 2], "offset {offset}");
        assert_eq!(
            (delivered[2].2, delivered.len()),
            (1, 4),
            "the fragment and the packet of the other host are not last"
        );
    }
}

/// GRO1: the flow of an IPv6 packet with extension headers is not determined, so it completes all
/// packets held between its addresses.
#[test]
fn extension_headers_and_ipv6_fragments_complete_the_packets_held_between_their_addresses() {
    const FRAGMENT: u8 = protocol::FRAGMENT;
    const OPTIONS: u8 = protocol::DESTINATION_OPTIONS;
    let pad_n = [1, 4, 0, 0, 0, 0];
    // Number of the first header, Next Header and the other bytes of that header, whether it is
    // a part of a TCP flow.
    let cases: [(u8, u8, [u8; 6], bool); 9] = [
        (protocol::HOP_BY_HOP, protocol::TCP, pad_n, true),
        (OPTIONS, protocol::TCP, pad_n, true),
        (protocol::ROUTING, protocol::TCP, [0; 6], true),
        // The first fragment, a later one, an atomic one, and one of a packet with options.
        (FRAGMENT, protocol::TCP, [0, 1, 0, 0, 0, 9], true),
        (FRAGMENT, protocol::TCP, [0, 8, 0, 0, 0, 9], true),
        (FRAGMENT, protocol::TCP, [0, 0, 0, 0, 0, 9], true),
        (FRAGMENT, OPTIONS, [0, 8, 0, 0, 0, 9], true),
        (OPTIONS, protocol::UDP, pad_n, false),
        // IP input refuses this chain: a segment is left.
        (protocol::ROUTING, protocol::TCP, [0, 1, 0, 0, 0, 0], false),
    ];
    for (first, next, rest, is_tcp) in cases {
        let frame = |port, seq| Frame { v4: false, ..Frame::new(port, seq, 100) };
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        for port in [1, 2] {
            bench.receive(&frame(port, 0));
            bench.receive(&frame(port, 100));
        }
        let mut bytes = frame(1, 200).bytes();
        let chain_at = LINK + IPV6_HEADER_LEN;
        let payload_len = u16::try_from(bytes.len() - chain_at + 8).unwrap();
        bytes[LINK + 4..LINK + 6].copy_from_slice(&payload_len.to_be_bytes());
        bytes[LINK + 6] = first;
        let header: Vec<u8> = [next, 0].into_iter().chain(rest).collect();
        bytes.splice(chain_at..chain_at, header);
        bench.receive_bytes(&bytes);
        let case = format!("header {first}, then {next}, {rest:?}");
        let completed = if is_tcp { 2 } else { 0 };
        assert_eq!(bench.gro.table.len(), 2 - completed, "{case}");
        assert_eq!(bench.count(Counter::GroFlushHeader), completed as u64, "{case}");
        bench.complete();
        let place = bench.up.iter().position(|packet| packet.len() == bytes.len());
        assert_eq!(place, Some(completed), "{case}");
        assert_eq!(bench.up[completed].to_vec(), bytes, "{case}");
    }
}

/// Corrects the IP header checksum. The TCP checksum of a fragment is not verified.
fn fix_ip_checksum(bytes: &mut [u8]) {
    bytes[LINK + 10..LINK + 12].fill(0);
    let sum = pkt::Sum::of(&bytes[LINK..LINK + 20]).finish();
    bytes[LINK + 10..LINK + 12].copy_from_slice(&sum.to_be_bytes());
}

/// The test passes every truncation of a frame, and every value of the bytes with the IP header
/// length and the TCP data offset.
#[test]
fn frames_with_wrong_header_lengths_are_passed_on_unchanged() {
    for v4 in [true, false] {
        let good = Frame { v4, ..Frame::new(1, 0, 300) }.bytes();
        for len in 0..good.len() {
            let mut bench = Bench::new(GroExit::UnifiedListSegments);
            bench.receive_bytes(&good[..len]);
            assert_eq!(bench.gro.table.len(), 0, "{len} bytes");
            bench.complete();
            assert_eq!(bench.up[0].len(), len);
        }
        for value in 0..=255 {
            for place in [LINK, LINK + if v4 { 20 } else { 40 } + 12] {
                let mut bytes = good.clone();
                bytes[place] = value;
                let mut bench = Bench::new(GroExit::UnifiedListSegments);
                bench.receive_bytes(&bytes);
                bench.complete();
                assert_eq!(bench.up[0].to_vec(), bytes);
            }
        }
    }
}

/// GRO7: a segment with which a superframe (a packet of several segments) would reach 64 KB begins
/// a new one. The segments are clones of one packet and share its pages, so the number of frags
/// sets no limit here.
#[test]
fn superframes_stay_below_their_limit() {
    for v4 in [true, false] {
        // 45 segments with one set of headers fit into 65,535 bytes.
        grow(v4, GRO_BYTES_MAX, 100, 45);
    }
}

/// GRO6, GRO7: for a device with BIG TCP, a superframe may exceed 64 KB, up to the setting. The
/// length field of its IP header is then 0, and the superframe is still segmented into its original
/// segments.
#[test]
fn a_big_tcp_device_receives_superframes_beyond_64_kb() {
    for v4 in [true, false] {
        grow(v4, 100_000, 150, 69);
        grow(v4, 500_000, 362, 345);
        grow(v4, BIG_TCP_BYTES_MAX, 362, 362);
    }
}

/// IPv4 and IPv6 have separate limits.
#[test]
fn each_family_has_its_own_size_limit() {
    for v4 in [true, false] {
        let mut bench = Bench::new(GroExit::Immediate);
        (bench.mode.ipv4_max_bytes, bench.mode.max_bytes) = (200_000, 4000);
        arrive(&mut bench, v4, 100);
        let expected = if v4 { (0, 100 * MSS, 100) } else { (0, 2 * MSS, 2) };
        assert_eq!(bench.delivered()[0], expected);
    }
}

/// Merges `count` full segments, which are contiguous in memory, and checks that the first
/// superframe has `largest` segments.
fn grow(v4: bool, max_bytes: u32, count: u32, largest: u16) {
    let mut bench = Bench::new(GroExit::Immediate);
    (bench.mode.ipv4_max_bytes, bench.mode.max_bytes) = (max_bytes, max_bytes);
    let arrived = arrive(&mut bench, v4, count);
    let full = count / u32::from(largest);
    assert!(
        bench.count(Counter::GroFlushSize)
            >= u64::from(full - u32::from(full * u32::from(largest) == count))
    );
    let delivered = bench.delivered();
    assert_eq!(
        delivered.iter().map(|(_, len, _)| len).sum::<u32>(),
        count * MSS,
        "GRO2: a byte was lost or delivered twice"
    );
    assert_eq!(delivered[0], (0, u32::from(largest) * MSS, largest), "{delivered:?}");
    assert!(
        bench.up.iter().all(|packet| packet.len() - LINK < max_bytes as usize),
        "GRO7: a superframe exceeds the limit"
    );
    assert!(!is_reordered(&delivered));
    for packet in &bench.up {
        let ip = &packet.linear()[LINK..];
        let (field, bytes) = match v4 {
            true => (&ip[2..4], packet.len() - LINK),
            false => (&ip[4..6], packet.len() - LINK - 40),
        };
        assert_eq!(field, u16::try_from(bytes).unwrap_or(0).to_be_bytes(), "{bytes} bytes");
    }
    let mut segments = Vec::new();
    for packet in std::mem::take(&mut bench.up) {
        segments.extend(oracle::cut(&mut bench.cx, packet));
    }
    assert!(
        arrived == segments,
        "GRO6: the superframes are not segmented into the original segments"
    );
}

/// Passes `count` full segments of one flow to GRO in one poll. The segments are clones of one
/// packet. Returns the frames.
fn arrive(bench: &mut Bench, v4: bool, count: u32) -> Vec<Vec<u8>> {
    let stream: Vec<u8> = (0..count * MSS).map(stream_byte).collect();
    let mut whole = bench.cx.pool.alloc().unwrap();
    assert_eq!(whole.append(&mut bench.cx.pool, &stream), stream.len());
    let mut frames = Vec::new();
    for index in 0..count {
        let id = if v4 { u16::try_from(index).unwrap() } else { 0 };
        let bytes = Frame { v4, id, ..Frame::new(1, index * MSS, MSS) }.bytes();
        let headers = bytes.len() - MSS as usize;
        let at = (index * MSS) as usize;
        let mut packet = whole.clone_range(&mut bench.cx.pool, at, MSS as usize).unwrap();
        packet.push(headers).copy_from_slice(&bytes[..headers]);
        bench.receive_packet(packet);
        frames.push(bytes);
    }
    bench.complete();
    bench.cx.pool.free(whole);
    frames
}

#[test]
fn a_checksum_verdict_of_the_device_is_trusted_and_its_sum_is_verified() {
    let verdict = |rx_checksum, spoil: bool| {
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        for frame in [Frame::new(1, 0, 300), Frame { id: 1, ..Frame::new(1, 300, 300) }] {
            let mut bytes = frame.bytes();
            if spoil {
                bytes[LINK + 80] ^= 1;
            }
            let mut packet = bench.packet(&bytes);
            packet.meta_mut().rx_checksum = match rx_checksum {
                RxChecksum::Complete(_) => {
                    RxChecksum::Complete(pkt::Sum::of(&bytes[LINK..]).fold())
                }
                other => other,
            };
            bench.receive_packet(packet);
        }
        bench.complete();
        (bench.up.len(), bench.count(Counter::RxChecksumSoftware))
    };
    assert_eq!(verdict(RxChecksum::None, false), (1, 2));
    assert_eq!(verdict(RxChecksum::None, true), (2, 2));
    assert_eq!(
        verdict(RxChecksum::Complete(0), false),
        (1, 0),
        "the sum of the device was not used"
    );
    assert_eq!(verdict(RxChecksum::Complete(0), true), (2, 2));
    assert_eq!(verdict(RxChecksum::Unnecessary, false), (1, 0));
    let partial = RxChecksum::Partial { start: 20, offset: 16 };
    assert_eq!(verdict(partial, false), (1, 0));
}

/// While no packet is held, GRO passes on a frame that can be neither merged nor held without
/// verifying its checksum.
#[test]
fn the_checksum_of_a_frame_that_can_be_neither_merged_nor_held_is_not_verified() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    for frame in [Frame::new(1, 0, 10).with(Flags::PSH), Frame::new(1, 10, 0)] {
        for v4 in [true, false] {
            let packet = bench.packet(&Frame { v4, ..frame.clone() }.bytes());
            assert!(read::cannot_merge(&packet, LINK));
            bench.receive_packet(packet);
        }
    }
    let packet = bench.packet(&Frame::new(1, 0, 10).bytes());
    assert!(!read::cannot_merge(&packet, LINK));
    bench.receive_packet(packet);
    bench.complete();
    assert_eq!(bench.count(Counter::RxChecksumSoftware), 1);
    assert_eq!(bench.count(Counter::GroNormal), 4);
}
