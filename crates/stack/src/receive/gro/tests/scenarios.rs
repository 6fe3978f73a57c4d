//! Scenarios of the delivery order.

use super::*;

const P: Flags = Flags::PSH;

const EXITS: [GroExit; 4] = [
    GroExit::Immediate,
    GroExit::NormalOnlyList,
    GroExit::UnifiedListPackets,
    GroExit::UnifiedListSegments,
];

/// Whether completed packets wait in the list in this mode.
fn is_unified(exit: GroExit) -> bool {
    matches!(exit, GroExit::UnifiedListPackets | GroExit::UnifiedListSegments)
}

/// Returns three segments: the first, with PSH, passes unchanged; the second is held; the third,
/// with PSH, is merged and completes it.
fn three() -> [Frame; 3] {
    [
        Frame::new(1, 0, MSS).with(P),
        Frame { id: 1, ..Frame::new(1, MSS, MSS) },
        Frame { id: 2, ..Frame::new(1, 2 * MSS, MSS) }.with(P),
    ]
}

/// With `NormalOnlyList`, unchanged packets wait in the list while completed packets are delivered
/// directly, which inverts their order.
#[test]
fn only_the_mode_normal_only_list_reorders_packets() {
    for (exit, reorders) in [
        (GroExit::Immediate, false),
        (GroExit::NormalOnlyList, true),
        (GroExit::UnifiedListPackets, false),
        (GroExit::UnifiedListSegments, false),
    ] {
        let mut bench = Bench::new(exit);
        three().iter().for_each(|frame| bench.receive(frame));
        bench.complete();
        let delivered = bench.delivered();
        assert_eq!(is_reordered(&delivered), reorders, "{exit:?}: {delivered:?}");
        let mut expected = vec![(0, MSS, 1), (MSS, 2 * MSS, 2)];
        if reorders {
            expected.reverse();
        }
        assert_eq!(delivered, expected, "{exit:?}");
    }
}

/// GRO1: a change of `gro_exit`, while one packet waits in the list and another is held, reorders
/// no packets unless the new mode is `NormalOnlyList`. With `poll_ends`, the end of the poll
/// completes the held packet; otherwise the third segment does.
#[test]
fn a_change_of_mode_reorders_packets_only_if_the_new_mode_does() {
    for (old, new) in EXITS.iter().flat_map(|old| EXITS.map(|new| (*old, new))) {
        for poll_ends in [false, true] {
            let mut bench = Bench::new(old);
            let [first, second, third] = three();
            bench.receive(&first);
            bench.receive(&second);
            assert_eq!(bench.gro.normal_list.is_empty(), old == GroExit::Immediate, "{old:?}");
            assert!(!bench.gro.table.is_empty(), "{old:?}: the second segment is not held");
            bench.mode.exit = new;
            if !poll_ends {
                bench.receive(&third);
            }
            bench.complete();
            let delivered = bench.delivered();
            let (segments, segs) = if poll_ends { (1, 1) } else { (2, 2) };
            let mut expected = vec![(0, MSS, 1), (MSS, segments * MSS, segs)];
            if new == GroExit::NormalOnlyList && old != GroExit::Immediate {
                expected.reverse();
            }
            assert_eq!(delivered, expected, "from {old:?} to {new:?}, {poll_ends}");
        }
    }
}

/// Returns two segments: the first is held, and the second, with other timestamps and PSH,
/// completes it and passes unchanged.
fn two() -> [Frame; 2] {
    let other = Frame { timestamps: Some((1001, 2000)), id: 1, ..Frame::new(1, MSS, MSS) };
    [Frame::new(1, 0, MSS), other.with(P)]
}

/// The opposite of `NormalOnlyList`: only completed packets wait in the list, and unchanged packets
/// are delivered directly, as in Linux 5.4.18 for drivers that call `napi_gro_receive`. This stack
/// has no such mode, so the test itself connects the table and the list in this way.
#[test]
fn a_list_for_completed_packets_alone_reorders_packets() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    for frame in two() {
        let packet = bench.packet(&frame.bytes());
        let Bench { cx, gro, mode, .. } = &mut bench;
        let received = gro.table.receive(cx, LINK, mode, packet);
        if let Some(completed) = received.completed {
            gro.normal_list.wait(cx, mode, completed.into_packet(cx), 1);
        }
        match received.outcome {
            Outcome::Held => {}
            Outcome::Normal(packet) => gro.normal_list.pass(cx, packet),
            other => panic!("{other:?}"),
        }
        bench.drain();
    }
    assert_eq!(bench.count(Counter::GroFlushOptions), 1);
    assert_eq!(bench.delivered(), [(MSS, MSS, 1)], "the second packet did not overtake the first");
    bench.complete();
    assert_eq!(bench.delivered(), [(MSS, MSS, 1), (0, MSS, 1)]);
    assert!(is_reordered(&bench.delivered()));
}

/// GRO1: in every mode, even `NormalOnlyList`, an unchanged packet follows the held packet that it
/// completes.
#[test]
fn an_unchanged_packet_follows_the_held_packet_that_it_completes() {
    let [first, other] = two();
    for exit in EXITS {
        let mut bench = Bench::new(exit);
        for frame in [&first, &other] {
            bench.receive(frame);
        }
        assert_eq!(bench.count(Counter::GroFlushOptions), 1, "{exit:?}");
        bench.complete();
        assert_eq!(bench.delivered(), [(0, MSS, 1), (MSS, MSS, 1)], "{exit:?}");
    }

    // The order is kept even if the mode changes between the completed packet and the packet after
    // it.
    for (old, new) in EXITS.iter().flat_map(|old| EXITS.map(|new| (*old, new))) {
        let mut bench = Bench::new(old);
        bench.receive(&first);
        let packet = bench.packet(&other.bytes());
        let Bench { cx, gro, mode, .. } = &mut bench;
        let received = gro.table.receive(cx, LINK, mode, packet);
        let completed = received.completed.expect("the second segment completes the held packet");
        gro.normal_list.completed(cx, mode, completed);
        assert_eq!(
            gro.normal_list.is_empty(),
            !is_unified(old),
            "{old:?}: the completed packet is wrongly in the list, or missing there"
        );
        mode.exit = new;
        let Outcome::Normal(packet) = received.outcome else {
            panic!("a segment with PSH was held")
        };
        gro.normal_list.normal(cx, mode, packet);
        bench.complete();
        let delivered = bench.delivered();
        assert_eq!(delivered, [(0, MSS, 1), (MSS, MSS, 1)], "from {old:?} to {new:?}");
    }
}

/// Three superframes (packets of several segments) of three segments each count as three packets or
/// as nine segments. The batch is eight.
#[test]
fn a_superframe_counts_as_one_packet_or_as_its_segments() {
    for (exit, lists) in
        [(GroExit::UnifiedListPackets, vec![3]), (GroExit::UnifiedListSegments, vec![3])]
    {
        let mut bench = Bench::new(exit);
        for flow in 1..=3 {
            for index in 0..3 {
                let flags = if index == 2 { P } else { Flags::empty() };
                let id = u16::try_from(index).unwrap();
                bench.receive(&Frame { id, ..Frame::new(flow, index * MSS, MSS) }.with(flags));
            }
        }
        let at_once = usize::from(exit == GroExit::UnifiedListSegments);
        assert_eq!(
            bench.lists.len(),
            at_once,
            "{exit:?}: the list of eight was not delivered exactly when it was full"
        );
        bench.complete();
        assert_eq!(bench.lists, lists, "{exit:?}");
        assert_eq!(bench.count(Counter::GroSuperframeSegments), 9);
        assert_eq!(bench.count(Counter::RxListSize2To3), 1);
    }
}

/// A poll that used its whole weight completes the packets held since an earlier millisecond. The
/// others stay held.
#[test]
fn a_full_poll_completes_only_packets_held_since_an_earlier_millisecond() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.mode.batch = 1000;
    for index in 0..64 {
        let flow = u16::try_from(index % 5).unwrap();
        let id = u16::try_from(index / 5).unwrap();
        bench.receive(&Frame { id, ..Frame::new(flow, index / 5 * MSS, MSS) });
    }
    bench.gro.flush(&bench.cx, &bench.mode, true);
    bench.drain();
    assert_eq!(
        (bench.gro.table.len(), bench.up.len()),
        (5, 0),
        "packets of the present millisecond were completed"
    );
    bench.cx.now = Instant::from_millis(1);
    bench.gro.flush(&bench.cx, &bench.mode, true);
    bench.drain();
    assert_eq!(bench.count(Counter::GroFlushAge), 5);
    bench.complete();
    let segments: u16 = bench.delivered().iter().map(|(_, _, segs)| segs).sum();
    assert_eq!(segments, 64);
}

/// GRO5: the first packet of a ninth flow in one bucket completes the oldest held packet.
#[test]
fn a_full_bucket_completes_its_oldest_packet() {
    let mut bench = Bench::new(GroExit::Immediate);
    let bucket = |port: u16| {
        let (src, dst) = Frame::new(port, 0, 1).addresses();
        read::FlowKey { src, dst, ports: (port, 80) }.bucket(3)
    };
    let ports: Vec<u16> = (1..2000).filter(|port| bucket(*port) == bucket(1)).take(9).collect();
    for (index, port) in ports.iter().enumerate() {
        bench.receive(&Frame::new(*port, u32::from(*port), MSS));
        assert_eq!(
            bench.gro.table.len(),
            (index + 1).min(8),
            "GRO5: the bucket does not hold the 8 newest packets"
        );
    }
    assert_eq!(bench.count(Counter::GroFlushFullBucket), 1);
    assert_eq!(
        bench.delivered(),
        [(u32::from(ports[0]), MSS, 1)],
        "the bucket did not complete its oldest packet"
    );
    bench.complete();
    let order: Vec<u32> = bench.delivered().iter().map(|seen| seen.0).collect();
    assert_eq!(order, ports.iter().map(|port| u32::from(*port)).collect::<Vec<_>>());
}

/// A pure ACK is not merged, and is delivered after the held packet that it completes.
#[test]
fn a_pure_ack_completes_the_held_packet_and_follows_it() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&Frame::new(1, 0, MSS));
    bench.receive(&Frame { id: 1, ..Frame::new(1, MSS, 0) });
    assert_eq!(bench.count(Counter::GroFlushLen), 1);
    bench.complete();
    assert_eq!(bench.delivered(), [(0, MSS, 1), (MSS, 0, 1)]);
}

/// An aggregate of a slow flow is delivered at the end of the poll, and does not wait until the
/// list has eight packets.
#[test]
fn no_packet_waits_for_a_full_list_beyond_its_poll() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    for frame in &three()[1..] {
        bench.receive(frame);
    }
    assert_eq!(bench.delivered(), []);
    bench.complete();
    assert_eq!(bench.delivered(), [(MSS, 2 * MSS, 2)]);
}

/// With `RxListAndOldGroPerCycle`, a segment held during busy polling is delivered by the first
/// cycle that receives no frame, or after a millisecond. With the other modes, such as that of
/// Linux (`RxListPerCycle`), the segment waits until busy polling stops.
#[test]
fn a_busy_poll_cycle_without_frames_delivers_held_packets() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&Frame::new(1, 0, MSS));
    for (flush, received, up) in [
        (BusyPollFlush::None, 0, 0),
        (BusyPollFlush::RxListPerCycle, 0, 0),
        (BusyPollFlush::RxListAndOldGroPerCycle, 1, 0),
        (BusyPollFlush::RxListAndOldGroPerCycle, 0, 1),
    ] {
        bench.gro.end_cycle(&bench.cx, &bench.mode, flush, received);
        bench.drain();
        assert_eq!(bench.up.len(), up, "{flush:?}");
    }
    bench.receive(&Frame { id: 1, ..Frame::new(1, MSS, MSS) }.with(P));
    bench.gro.end_cycle(&bench.cx, &bench.mode, BusyPollFlush::None, 1);
    bench.drain();
    assert_eq!(bench.up.len(), 1, "the list was flushed in the mode `None`");
    bench.gro.end_cycle(&bench.cx, &bench.mode, BusyPollFlush::RxListPerCycle, 1);
    bench.drain();
    assert_eq!(bench.up.len(), 2);
}

/// GRO8: the list is flushed as soon as its count reaches the batch.
#[test]
fn a_list_is_flushed_when_its_count_reaches_the_batch() {
    for batch in [1, 8, 64] {
        let mut bench = Bench::new(GroExit::UnifiedListSegments);
        bench.mode.batch = batch;
        for index in 0..200 {
            bench.receive(&Frame::new(1, index * 100, 100).with(P));
        }
        assert!(bench.lists.iter().all(|len| *len == batch as usize), "{:?}", bench.lists);
        bench.complete();
        assert_eq!(bench.lists.iter().sum::<usize>(), 200);
        assert_eq!(bench.count(Counter::RxListPackets), 200);
    }
}

/// GRO10: with a batch of one, the unified modes deliver packets one by one, as `Immediate` does.
#[test]
fn a_batch_of_one_delivers_packets_one_by_one() {
    let run = |exit| {
        let mut bench = Bench::new(exit);
        bench.mode.batch = 1;
        three().iter().for_each(|frame| bench.receive(frame));
        bench.receive(&Frame { id: 3, ..Frame::new(1, 3 * MSS, MSS) });
        bench.receive(&Frame { id: 4, ..Frame::new(1, 4 * MSS, 0) });
        bench.complete();
        (bench.delivered(), bench.lists.clone())
    };
    let (packets, _) = run(GroExit::Immediate);
    for exit in [GroExit::UnifiedListPackets, GroExit::UnifiedListSegments] {
        let (list, lists) = run(exit);
        assert_eq!(list, packets, "{exit:?}");
        assert!(
            lists.iter().all(|len| *len <= 2),
            "a list has more than a packet and the packet it completed: {lists:?}"
        );
    }
}

#[test]
fn held_packets_of_a_dropped_instance_are_freed() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&three()[0]);
    bench.receive(&three()[1]);
    assert!(!bench.gro.is_empty());
    bench.gro = Gro::default();
    assert_eq!(bench.memory.packets.balance(), 0);
}

/// With merging disabled, no segment is merged, and a packet that was held before is delivered
/// first.
#[test]
fn disabled_receive_offload_merges_no_segments() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&Frame::new(1, 0, MSS));
    bench.mode.merges = false;
    bench.receive(&Frame { id: 1, ..Frame::new(1, MSS, MSS) });
    bench.receive(&Frame { id: 2, ..Frame::new(1, 2 * MSS, MSS) });
    bench.complete();
    assert_eq!(bench.delivered(), [(0, MSS, 1), (MSS, MSS, 1), (2 * MSS, MSS, 1)]);
    assert_eq!((bench.count(Counter::GroMerged), bench.count(Counter::GroHeld)), (0, 1));
}
