//! GRO1, GRO2, GRO6: random sequences of segments are delivered completely and in order, and
//! superframes (packets of several segments) are segmented into their original segments.

use pkt::PacketList;
use proptest::prelude::*;

use super::*;
use crate::{sysctl::modes::GroExit, transmit::gso};

/// One arriving segment: flow, payload length and an optional anomaly.
#[derive(Clone, Debug)]
struct Arrival {
    flow: u16,
    len: u32,
    anomaly: u8,
    /// True if the poll ends after this segment.
    ends: bool,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let len = prop_oneof![6 => Just(500u32), 1 => Just(0), 2 => 1..900u32, 1 => Just(1)];
    let arrival = (0..4u16, len, 0..24u8, prop::bool::weighted(0.1))
        .prop_map(|(flow, len, anomaly, ends)| Arrival { flow, len, anomaly, ends });
    prop::collection::vec(arrival, 1..60)
}

/// Builds the frames of a sequence of arrivals. Flows with an even number increment their IPv4
/// identifications; the others keep them constant.
fn frames(arrivals: &[Arrival], v4: bool) -> Vec<Frame> {
    let mut next = [0u32, 0xffff_fe00, 5, 70_000];
    let mut ids = [0xfff8u16, 9, 100, 200];
    let make = |arrival: &Arrival| {
        let flow = usize::from(arrival.flow);
        let mut frame = Frame { v4, ..Frame::new(arrival.flow, next[flow], arrival.len) };
        frame.id = if v4 { ids[flow] } else { 0 };
        match arrival.anomaly {
            0 => frame = frame.with(Flags::PSH),
            1 => frame = frame.with(Flags::FIN),
            2 => frame = frame.with(Flags::CWR),
            3 => frame.timestamps = Some((1001, 2000)),
            4 => frame.window = 499,
            5 => frame.ack = 78,
            6 => frame.hop_limit = 63,
            7 => frame.traffic_class = 3,
            8 => frame = frame.with(Flags::URG),
            9 => frame.timestamps = None,
            _ => {}
        }
        next[flow] = next[flow].wrapping_add(arrival.len);
        if flow % 2 == 0 {
            ids[flow] = ids[flow].wrapping_add(1);
        }
        frame
    };
    arrivals.iter().map(make).collect()
}

/// Segments a superframe, completes the checksums and restores the link headers, so that the frames
/// can be compared with those that were merged.
pub(super) fn cut(cx: &mut Cx, mut packet: Packet) -> Vec<Vec<u8>> {
    let link = packet.linear()[..LINK.min(packet.linear().len())].to_vec();
    if packet.meta().gso.segs < 2 {
        return vec![packet.to_vec()];
    }
    assert!(packet.pull(LINK));
    let RxChecksum::Partial { start, offset } = packet.meta().rx_checksum else {
        panic!("a superframe has no partial checksum")
    };
    let v4 = packet.linear()[0] >> 4 == 4;
    let meta = packet.meta_mut();
    meta.tx_checksum = TxChecksum::Partial { start, offset };
    meta.protocol = if v4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let segs = usize::from(meta.gso.segs);
    let mut list = PacketList::new();
    gso::segment(cx, packet, 0, gso::Checksums::Owed, &mut list);
    assert_eq!(list.len(), segs);
    list.map(|segment| {
        let mut bytes = segment.to_vec();
        let (start, field) = (usize::from(start), usize::from(start + offset));
        let sum = pkt::Sum::of(&bytes[start..]).finish();
        bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        [&link[..], &bytes[..]].concat()
    })
    .collect()
}

fn flow_of(bytes: &[u8]) -> u16 {
    let transport = LINK + if bytes[LINK] >> 4 == 4 { 20 } else { 40 };
    u16::from_be_bytes([bytes[transport], bytes[transport + 1]])
}

/// Passes a sequence of arrivals through GRO, and checks that the frames of each flow are delivered
/// unchanged and, with `in_order`, in order.
fn check(arrivals: &[Arrival], v4: bool, exit: GroExit, batch: u32, in_order: bool) {
    let mut bench = Bench::new(exit);
    bench.mode.batch = batch;
    let frames: Vec<Vec<u8>> = frames(arrivals, v4).iter().map(Frame::bytes).collect();
    for (arrival, bytes) in arrivals.iter().zip(&frames) {
        bench.receive_bytes(bytes);
        assert!(bench.gro.table.len() <= 64, "GRO5: more than 64 packets are held");
        if arrival.ends {
            bench.complete();
            bench.cx.now += std::time::Duration::from_micros(700);
        }
    }
    bench.complete();
    if exit != GroExit::NormalOnlyList && batch < 16 {
        let longer = [Counter::RxListSize16To31, Counter::RxListSize32To63, Counter::RxListSize64];
        assert_eq!(longer.map(|size| bench.count(size)), [0; 3], "GRO8: a batch of {batch}");
    }
    let merged = bench.count(Counter::GroMerged) + bench.count(Counter::GroMergedFree);
    let mut out = Vec::new();
    for packet in std::mem::take(&mut bench.up) {
        assert!(packet.len() - LINK < 65_536, "GRO7: a superframe exceeds the limit");
        out.extend(cut(&mut bench.cx, packet));
    }
    assert_eq!(out.len(), frames.len(), "GRO2: {merged} merged");
    for flow in 0..4 {
        let of = |list: &[Vec<u8>]| -> Vec<Vec<u8>> {
            list.iter().filter(|bytes| flow_of(bytes) == flow).cloned().collect()
        };
        let (mut arrived, mut delivered) = (of(&frames), of(&out));
        if !in_order {
            arrived.sort();
            delivered.sort();
        }
        assert_eq!(arrived, delivered, "flow {flow}, {exit:?}");
    }
}

proptest! {
    #[test]
    fn superframes_are_segmented_into_their_original_segments(
        arrivals in arrivals(), v4: bool, batch in 1..20u32,
    ) {
        for exit in
            [GroExit::Immediate, GroExit::UnifiedListPackets, GroExit::UnifiedListSegments]
        {
            check(&arrivals, v4, exit, batch, true);
        }
        // `NormalOnlyList` loses no packet, but does not keep the order.
        check(&arrivals, v4, GroExit::NormalOnlyList, batch, false);
    }
}
