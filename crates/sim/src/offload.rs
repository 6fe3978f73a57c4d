//! Receive offload against any train of frames: a string of bytes as segments, irregular frames and
//! ends of polls.
//!
//! Below: the fuzz target `offload`, and the tests that replay its corpus. Any string is a valid
//! input; most frames continue their flow as a real sender would, so that few bytes lead to long
//! superframes.
//!
//! Requirements: no panic; the independent code of this crate cuts every superframe into exactly
//! the frames it was made of; no frame is lost, invented or altered; the frames of a flow are
//! passed up in their order, except in the one mode that is known to reorder; no frame is held
//! behind the end of a poll; at the end no packet is left.
//!
//! Not here: the processing in IP and TCP (`hostile`).

use std::{
    cell::RefCell,
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use pkt::{EtherType, GsoKind, Instant, PacketList};
use stack::{
    Cx, Memory,
    base::limits::{BIG_TCP_BYTES_MAX, GRO_BYTES_MAX},
    header::{ethernet::MacAddr, ip::protocol},
    receive::gro::StandaloneGro,
    sysctl::modes::GroExit,
};
use tcp::{Flags, Options, SegmentHeader, SeqNum};

use crate::{
    byte_link,
    frame::{self, Ipv4},
    hostile::input::Input,
    network::edit,
};

/// Frames of one run.
const FRAMES_MAX: usize = 300;

/// Bytes of the frames of a brief run, of which a fuzzer makes some thousand per second.
/// Superframes larger than that are in the corpus, which is also played without this bound
/// (`tests/offload.rs`).
const BRIEF_BYTES_MAX: usize = 16 << 10;

/// Bytes before the IP header.
const LINK: usize = 14;

/// Flows of one run.
const FLOWS: u8 = 8;

/// Payload: its bytes count up from the last byte of the sequence number. It is copied from here,
/// so that the oracle takes less time than the code under test.
static RAMP: [u8; LENGTH_MAX + 256] = {
    let mut ramp = [0; LENGTH_MAX + 256];
    let mut at = 0;
    while at < ramp.len() {
        ramp[at] = at.to_le_bytes()[0];
        at += 1;
    }
    ramp
};

/// The longest payload.
const LENGTH_MAX: usize = 9000;

/// Packet memory of a run.
const MEMORY_BYTES: usize = 64 << 20;

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SRC_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const DST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Frames received.
    pub frames: usize,
    /// Superframes built from them.
    pub superframes: usize,
    /// IPv6 superframes among these.
    pub superframes_v6: usize,
    /// Number of segments of the largest superframe.
    pub largest: usize,
    /// Bytes of the longest IP packet.
    pub largest_bytes: usize,
}

/// One sender.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    seq: u32,
    id: u16,
}

/// Plays `input`.
///
/// # Panics
/// When receive offload violates a requirement of the module head.
pub fn run(input: &[u8]) -> Outcome {
    let memory = Memory::new(MEMORY_BYTES);
    play(input, &mut Cx::replay(&memory, 1), &memory, usize::MAX)
}

/// Plays the beginning of `input` in bounded time, with packet memory that the thread keeps: for
/// fuzzers.
///
/// # Panics
/// When receive offload violates a requirement of the module head.
pub fn run_brief(input: &[u8]) -> Outcome {
    thread_local! {
        static KEPT: RefCell<(Memory, Cx)> = RefCell::new({
            let memory = Memory::new(MEMORY_BYTES);
            let cx = Cx::replay(&memory, 1);
            (memory, cx)
        });
    }
    KEPT.with_borrow_mut(|(memory, cx)| {
        cx.now = Instant::ZERO;
        play(input, cx, memory, BRIEF_BYTES_MAX)
    })
}

/// Plays `input` until the frames have `bytes_max` bytes.
fn play(input: &[u8], cx: &mut Cx, memory: &Memory, bytes_max: usize) -> Outcome {
    let mut input = Input::new(input);
    let (how, limits) = (input.next(), input.next());
    let exit = [
        GroExit::UnifiedListSegments,
        GroExit::UnifiedListPackets,
        GroExit::Immediate,
        GroExit::NormalOnlyList,
    ][usize::from(how & 3)];
    let paged = how & 4 != 0;
    let max_bytes = [GRO_BYTES_MAX, BIG_TCP_BYTES_MAX, 4000, 0][usize::from(limits & 3)];
    let mut bytes_left = bytes_max;
    let mut gro = StandaloneGro::new(exit, 1 + u32::from(limits >> 2), max_bytes, LINK);
    let (mut came, mut went) = (Vec::new(), Vec::new());
    let mut flows = [Flow::default(); FLOWS as usize];
    let mut outcome = Outcome::default();
    while let Some(first) = input.byte().filter(|_| came.len() < FRAMES_MAX && bytes_left > 0) {
        let number = first % FLOWS;
        // Each half of the flows has one bit that selects its IP version.
        let v6 = how >> (3 + number / (FLOWS / 2)) & 1 != 0;
        let bytes = next_frame(&mut flows[usize::from(number)], number, v6, &mut input);
        bytes_left = bytes_left.saturating_sub(bytes.len());
        let packet = byte_link::receive(cx, &bytes, paged).expect("memory for a play");
        came.push(bytes);
        let up = gro.receive(cx, packet);
        collect(cx, (up, max_bytes), &mut went, &mut outcome);
        if first & 0x80 != 0 {
            // The end of a poll, or of one cycle of a poll that continues.
            let old_only = first & 0x40 != 0;
            cx.now += Duration::from_micros(300);
            let up = gro.end_poll(cx, old_only);
            collect(cx, (up, max_bytes), &mut went, &mut outcome);
            assert!(old_only || gro.is_empty(), "held behind the end of a poll");
        }
    }
    let up = gro.end_poll(cx, false);
    collect(cx, (up, max_bytes), &mut went, &mut outcome);
    assert!(gro.is_empty(), "held behind the last poll");
    compare(&came, &went, exit);
    drop(gro);
    assert_eq!(memory.packets.balance(), 0, "packets leaked");
    outcome.frames = came.len();
    outcome
}

/// Builds the next frame of flow `number`, with its irregularity.
fn next_frame(flow: &mut Flow, number: u8, v6: bool, input: &mut Input<'_>) -> Vec<u8> {
    let (length, oddity) = (input.next(), input.next());
    let number = u16::from(number);
    let length = match length {
        0..160 => 500,
        160 => 0,
        161..200 => 1448,
        // Large enough that the frags of a superframe hold more than 64 KB (BIG TCP).
        250.. => LENGTH_MAX,
        length => usize::from(length) * 2,
    };
    let mut header = SegmentHeader {
        src_port: 1000 + number,
        dst_port: 80,
        seq: SeqNum(flow.seq),
        ack: SeqNum(77),
        flags: Flags::ACK,
        window: 500,
        options: Options { timestamps: Some((1000, 2000)), ..Options::default() },
        ..SegmentHeader::default()
    };
    match oddity {
        128..136 => header.flags |= Flags::from_bits_truncate(1 << (oddity - 128)),
        136 => header.options.timestamps = Some((1001, 2000)),
        137 => header.options.timestamps = None,
        138 => header.window = 499,
        139 => header.ack = SeqNum(78),
        140 => header.urgent = 3,
        141 => header.seq = SeqNum(flow.seq.wrapping_sub(1)),
        142 => header.seq = SeqNum(flow.seq.wrapping_add(1)),
        143 => header.flags |= Flags::PSH | Flags::URG,
        _ => {}
    }
    let begin = usize::from(flow.seq.to_le_bytes()[0]);
    let payload = &RAMP[begin..begin + length];
    flow.seq = flow.seq.wrapping_add(u32::try_from(length).expect("a segment"));
    // Half of the senders count their packets in the 16-bit IP ID.
    flow.id = flow.id.wrapping_add(number % 2);
    let id = if oddity == 144 { flow.id ^ 0x8000 } else { flow.id };
    let packet = if v6 {
        let segment = frame::tcp(SRC_V6, DST_V6, &header, payload);
        packet_v6(&segment, oddity, input)
    } else {
        let segment = frame::tcp(SRC, DST, &header, payload);
        packet_v4(&segment, id, oddity, input)
    };
    let ether_type = match oddity {
        152 => EtherType(0x8100),
        _ if v6 => EtherType::IPV6,
        _ => EtherType::IPV4,
    };
    let source = MacAddr::local(if oddity == 153 { 3 } else { 2 });
    let mut bytes = frame::ethernet(MacAddr::local(1), source, ether_type, &packet);
    match oddity {
        // Change any byte; the checksums stay as they were.
        154..200 => {
            let at = usize::from(input.next_u16()) % bytes.len();
            bytes[at] ^= input.next();
        }
        200..210 => bytes.truncate(usize::from(input.next()).max(1)),
        210..216 => bytes.extend([0; 6]),
        _ => {}
    }
    bytes
}

/// Builds the IPv4 packet of a segment, with the irregularity of its header.
fn packet_v4(segment: &[u8], id: u16, oddity: u8, input: &mut Input<'_>) -> Vec<u8> {
    let mut packet = Ipv4::new(SRC, DST, protocol::TCP).with(segment);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    match oddity {
        145 => packet[8] = 63,
        146 => packet[1] = input.next(),
        147 => packet[6] ^= 0x40,
        148 => packet[6] |= 0x20,
        149 => packet[7] |= 1,
        150 => packet[9] = input.next(),
        151 => packet[0] = input.next(),
        _ => {}
    }
    frame::fix_ipv4_checksum(&mut packet);
    packet
}

/// Builds the IPv6 packet of a segment, with the irregularity of its header.
fn packet_v6(segment: &[u8], oddity: u8, input: &mut Input<'_>) -> Vec<u8> {
    let mut packet = frame::ipv6(SRC_V6, DST_V6, protocol::TCP, segment);
    match oddity {
        // The payload length of a jumbogram (RFC 2675), and of a BIG TCP superframe.
        144 => packet[4..6].fill(0),
        145 => packet[7] = 63,
        146 => packet[1] = input.next(),
        147 => packet[3] ^= 1,
        // Next header 44: a fragment header, which does not follow.
        148 => packet[6] = 44,
        149 => packet[23] ^= 1,
        150 => packet[6] = input.next(),
        151 => packet[0] = input.next(),
        _ => {}
    }
    packet
}

/// Collects the packets passed up, superframes as the frames they stand for.
fn collect(
    cx: &mut Cx,
    (mut up, max_bytes): (PacketList, u32),
    went: &mut Vec<Vec<u8>>,
    outcome: &mut Outcome,
) {
    while let Some(packet) = up.pop_front() {
        let (gso, bytes) = (packet.meta().gso, packet.to_vec());
        cx.pool.free(packet);
        if gso.kind == GsoKind::None {
            went.push(bytes);
            continue;
        }
        let (link, ip) = bytes.split_at(LINK);
        let cut = edit::segments(ip, gso);
        let v6 = ip[0] >> 4 == 6;
        assert_eq!(gso.kind, if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 });
        assert_eq!(cut.len(), usize::from(gso.segs), "{gso:?}");
        assert!(cut.len() > 1 && ip.len() < max_bytes as usize, "{gso:?}, {} bytes", ip.len());
        outcome.superframes += 1;
        outcome.superframes_v6 += usize::from(v6);
        outcome.largest = outcome.largest.max(cut.len());
        outcome.largest_bytes = outcome.largest_bytes.max(ip.len());
        went.extend(cut.into_iter().map(|segment| [link, &segment].concat()));
    }
}

/// Asserts that the frames passed up are the received ones, those of a flow in their order.
fn compare(came: &[Vec<u8>], went: &[Vec<u8>], exit: GroExit) {
    let (came, went) = (by_flow(came, exit), by_flow(went, exit));
    assert_eq!(came.len(), went.len(), "{exit:?}: frames in and out");
    let differ = came.iter().zip(&went).find(|(came, went)| came != went);
    if let Some((came, went)) = differ {
        // Headers are enough to find the difference: the payload follows from the sequence number.
        let start = |frame: &(_, &[u8])| frame.1[..frame.1.len().min(LINK + 60)].to_vec();
        panic!("{exit:?}: came {:02x?}, went up {:02x?}", start(came), start(went));
    }
}

/// Returns frames with the key of their flow, those of one flow in the order that must be kept.
fn by_flow(frames: &[Vec<u8>], exit: GroExit) -> Vec<(Vec<u8>, &[u8])> {
    let mut sorted: Vec<_> = frames.iter().map(|bytes| (flow_of(bytes), &bytes[..])).collect();
    // A stable sort keeps the order within a flow.
    match exit {
        GroExit::NormalOnlyList => sorted.sort(),
        _ => sorted.sort_by(|one, two| one.0.cmp(&two.0)),
    }
    sorted
}

/// Returns the addresses and ports of the flow whose order must be kept. Empty for a frame that is
/// not a valid TCP segment: it is passed on, for the upper layers to drop, and may overtake held
/// frames of the flow it claims to belong to. The same holds for a fragment, which belongs to no
/// flow before reassembly.
fn flow_of(bytes: &[u8]) -> Vec<u8> {
    let found = match bytes.get(12..LINK) {
        Some([0x08, 0x00]) => segment_v4(&bytes[LINK..]),
        Some([0x86, 0xdd]) => segment_v6(&bytes[LINK..]),
        _ => None,
    };
    match found.filter(|(addresses, segment)| is_sound(addresses, segment)) {
        Some((addresses, segment)) => [addresses, &segment[..4]].concat(),
        None => Vec::new(),
    }
}

/// Returns addresses and TCP segment of an IPv4 packet, if its header is valid.
fn segment_v4(ip: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = usize::from(ip.first()? & 0x0f) * 4;
    let length = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let is_fragment = ip.get(6)? & 0x3f != 0 || *ip.get(7)? != 0;
    if ip[0] >> 4 != 4 || header < 20 || is_fragment || *ip.get(9)? != protocol::TCP {
        return None;
    }
    let found = (ip.get(12..20)?, ip.get(header..length)?);
    (frame::checksum(&[&ip[..header]]) == 0).then_some(found)
}

/// Returns addresses and TCP segment of an IPv6 packet without extension headers.
fn segment_v6(ip: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
    if ip[0] >> 4 != 6 || *ip.get(6)? != protocol::TCP {
        return None;
    }
    Some((ip.get(8..40)?, ip.get(40..40 + length)?))
}

/// Whether the header is complete and the checksum correct.
fn is_sound(addresses: &[u8], segment: &[u8]) -> bool {
    let Ok(length) = u16::try_from(segment.len()) else { return false };
    let pseudo = [addresses, &[0, protocol::TCP], &length.to_be_bytes()].concat();
    length >= 20 && frame::checksum(&[&pseudo, segment]) == 0
}
