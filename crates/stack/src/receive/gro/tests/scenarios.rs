//! The numbered scenarios of the order in which packets leave.

use super::*;

const P: Flags = Flags::PSH;

/// p0 with PSH goes up as it came, p1 is held, p2 with PSH closes it.
fn three() -> [Frame; 3] {
    [
        Frame::new(1, 0, MSS).with(P),
        Frame { id: 1, ..Frame::new(1, MSS, MSS) },
        Frame { id: 2, ..Frame::new(1, 2 * MSS, MSS) }.with(P),
    ]
}

/// The list for what was not merged, and the direct way for what was, invert.
#[test]
fn two_doors_reorder_and_one_does_not() {
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

/// The inversion in the other direction: the list for aggregates alone, as one stable kernel had it. No mode of ours has that,
/// and none lets the second overtake the first, the one with two doors included.
#[test]
fn a_list_for_aggregates_alone_reorders_too() {
    let first = Frame::new(1, 0, MSS);
    let other = Frame { timestamps: Some((1001, 2000)), id: 1, ..Frame::new(1, MSS, MSS) }.with(P);
    for exit in [
        GroExit::Immediate,
        GroExit::NormalOnlyList,
        GroExit::UnifiedListPackets,
        GroExit::UnifiedListSegments,
    ] {
        let mut bench = Bench::new(exit);
        for frame in [&first, &other] {
            bench.receive(frame);
        }
        assert_eq!(bench.count(Counter::GroFlushOptions), 1, "{exit:?}");
        bench.complete();
        assert_eq!(bench.delivered(), [(0, MSS, 1), (MSS, MSS, 1)], "{exit:?}");
    }

    // By hand: what was completed waits, what was not merged goes at once.
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    let mut list = Vec::new();
    let mut up = Vec::new();
    let mut table = Table::default();
    for frame in [&first, &other] {
        let packet = bench.packet(&frame.bytes());
        let received = table.receive(&mut bench.cx, LINK, &bench.mode, packet);
        list.extend(received.completed.map(|completed| completed.into_packet(&bench.cx)));
        if let Outcome::Normal(packet) = received.outcome {
            up.push(packet);
        }
    }
    up.append(&mut list);
    let delivered: Vec<_> = up.iter().map(seen).collect();
    assert!(is_reordered(&delivered), "{delivered:?}");
}

/// Three superframes of three segments count three packets or nine segments.
#[test]
fn superframes_count_one_or_their_segments() {
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
        assert_eq!(bench.lists.len(), at_once, "{exit:?}: the ninth segment fills the list");
        bench.complete();
        assert_eq!(bench.lists, lists, "{exit:?}");
        assert_eq!(bench.count(Counter::GroSuperframeSegments), 9);
        assert_eq!(bench.count(Counter::RxListSize2To3), 1);
    }
}

/// After a poll that took its whole weight nothing waits in the list, and what is held is of this
/// millisecond; the next poll finds the queue empty and leaves nothing at all.
#[test]
fn a_full_poll_empties_the_list_and_the_next_the_rest() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.mode.batch = 1000;
    for index in 0..64 {
        let flow = u16::try_from(index % 5).unwrap();
        let id = u16::try_from(index / 5).unwrap();
        bench.receive(&Frame { id, ..Frame::new(flow, index / 5 * MSS, MSS) });
    }
    bench.gro.flush(&bench.cx, &bench.mode, true);
    bench.drain();
    assert_eq!((bench.gro.table.len(), bench.up.len()), (5, 0), "held since this millisecond");
    bench.cx.now = Instant::from_millis(1);
    bench.gro.flush(&bench.cx, &bench.mode, true);
    bench.drain();
    assert_eq!(bench.count(Counter::GroFlushAge), 5);
    bench.complete();
    let segments: u16 = bench.delivered().iter().map(|(_, _, segs)| segs).sum();
    assert_eq!(segments, 64);
}

/// GRO5: nine flows in one bucket: the ninth completes the oldest.
#[test]
fn a_full_bucket_completes_its_oldest() {
    let mut bench = Bench::new(GroExit::Immediate);
    let bucket = |port: u16| {
        let (src, dst) = Frame::new(port, 0, 1).addresses();
        read::FlowKey { src, dst, ports: (port, 80) }.bucket(3)
    };
    let ports: Vec<u16> = (1..2000).filter(|port| bucket(*port) == bucket(1)).take(9).collect();
    for (index, port) in ports.iter().enumerate() {
        bench.receive(&Frame::new(*port, u32::from(*port), MSS));
        assert_eq!(bench.gro.table.len(), (index + 1).min(8), "GRO5: at most 8 in a bucket");
    }
    assert_eq!(bench.count(Counter::GroFlushFullBucket), 1);
    assert_eq!(bench.delivered(), [(u32::from(ports[0]), MSS, 1)], "the oldest");
    bench.complete();
    let order: Vec<u32> = bench.delivered().iter().map(|seen| seen.0).collect();
    assert_eq!(order, ports.iter().map(|port| u32::from(*port)).collect::<Vec<_>>());
}

/// A pure ACK is refused by the unsigned test of the length, and goes up behind what it completes.
#[test]
fn a_pure_ack_completes_what_is_held_and_follows_it() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&Frame::new(1, 0, MSS));
    bench.receive(&Frame { id: 1, ..Frame::new(1, MSS, 0) });
    assert_eq!(bench.count(Counter::GroFlushLen), 1);
    bench.complete();
    assert_eq!(bench.delivered(), [(0, MSS, 1), (MSS, 0, 1)]);
}

/// A small aggregate of a slow flow goes up when the poll ends, not when eight have come.
#[test]
fn nothing_waits_for_a_full_list_beyond_its_poll() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    for frame in &three()[1..] {
        bench.receive(frame);
    }
    assert_eq!(bench.delivered(), []);
    bench.complete();
    assert_eq!(bench.delivered(), [(MSS, 2 * MSS, 2)]);
}

/// Data without PSH that a busy-polling thread holds goes up with the first cycle that finds nothing, or after a
/// millisecond; by Linux's rule it waits for the end of the polling.
#[test]
fn busy_cycles_bound_how_long_data_is_held() {
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
    assert_eq!(bench.up.len(), 1, "not even the list");
    bench.gro.end_cycle(&bench.cx, &bench.mode, BusyPollFlush::RxListPerCycle, 1);
    bench.drain();
    assert_eq!(bench.up.len(), 2);
}

/// GRO8: a list has at most a batch less one of packets before the one that fills it.
#[test]
fn lists_are_as_long_as_the_batch() {
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

/// GRO10: with a batch of one the unified modes deliver what `immediate` does, packet by packet.
#[test]
fn a_batch_of_one_is_no_batch() {
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
            "each went up with what it completed: {lists:?}"
        );
    }
}

/// What an instance holds when its device goes away is freed.
#[test]
fn held_packets_of_a_closed_instance_are_freed() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&three()[0]);
    bench.receive(&three()[1]);
    assert!(!bench.gro.is_empty());
    bench.gro = Gro::default();
    assert_eq!(bench.memory.packets.balance(), 0);
}

/// Switched off, nothing is merged, and what was held before leaves first.
#[test]
fn switched_off_it_merges_nothing() {
    let mut bench = Bench::new(GroExit::UnifiedListSegments);
    bench.receive(&Frame::new(1, 0, MSS));
    bench.mode.merges = false;
    bench.receive(&Frame { id: 1, ..Frame::new(1, MSS, MSS) });
    bench.receive(&Frame { id: 2, ..Frame::new(1, 2 * MSS, MSS) });
    bench.complete();
    assert_eq!(bench.delivered(), [(0, MSS, 1), (MSS, MSS, 1), (2 * MSS, MSS, 1)]);
    assert_eq!((bench.count(Counter::GroMerged), bench.count(Counter::GroHeld)), (0, 1));
}
