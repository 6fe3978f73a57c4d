//! Superframes that a device turns out not to take at their size.

use pkt::{Gso, GsoKind, TxChecksum};

use super::*;
use crate::header::ip::ETHER_TYPE_IPV4;

/// Segments of the superframes here, of 1,000 bytes each.
const SEGMENTS: usize = 200;

/// Headers of IPv4 and TCP.
const HEADER_BYTES: usize = 40;

impl Bench {
    fn refusing(async_completion: bool, qdisc: &str) -> Self {
        let bench = Self::new(async_completion, qdisc);
        bench.device.held().refuses_above = Some(GSO_BYTES_MAX);
        bench.room(usize::MAX / 2);
        bench
    }

    fn xmit_superframe(&mut self, segments: usize) {
        let mut packet = self.cx.pool.alloc().expect("memory");
        let payload = vec![0; segments * 1000];
        assert_eq!(packet.append(&mut self.cx.pool, &payload), payload.len());
        let headers = packet.push(HEADER_BYTES);
        headers.fill(0);
        (headers[0], headers[9], headers[32]) = (0x45, 6, 0x50);
        let meta = packet.meta_mut();
        meta.protocol = ETHER_TYPE_IPV4;
        meta.tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
        let segs = u16::try_from(segments).expect("a few");
        meta.gso = Gso { kind: GsoKind::TcpV4, size: 1000, segs, ..Gso::default() };
        let mut list = PacketList::from_iter([packet]);
        assert_eq!(send_list(&self.host, &mut self.cx, &mut list), NetXmit::Success);
        // What is more than one caller carries is left to the core.
        let _ = self.host.poll(&mut self.cx);
    }

    /// Frames that have arrived since the last call; superframes that were refused, and segments that were cut, so far.
    fn outcome(&self) -> [u64; 3] {
        let count = |name| self.host.counters().get(name).expect("a counter");
        [self.sent().0.len() as u64, count("DeviceTxRefused"), count("GsoSegments")]
    }
}

#[test]
fn a_superframe_that_is_refused_for_its_size_arrives_in_segments() {
    let segments = SEGMENTS as u64;
    for qdisc in ["noqueue", "pfifo_fast", "fq", "fq_codel"] {
        let mut bench = Bench::refusing(false, qdisc);
        let generation = bench.host.route_generation();
        bench.xmit_superframe(SEGMENTS);
        assert_eq!(bench.outcome(), [segments, 1, segments], "{qdisc}");
        // Those who make them hear of it, once.
        assert_eq!(bench.host.tx(1).superframe_max(), GSO_BYTES_MAX);
        assert_eq!(bench.host.route_generation(), generation + 1);
        // What was made before that is not even tried.
        bench.xmit_superframe(SEGMENTS);
        assert_eq!(bench.outcome(), [segments, 1, 2 * segments], "{qdisc}");
        assert_eq!(bench.host.route_generation(), generation + 1);
        // And 64 KB go as they are.
        bench.xmit_superframe(65);
        assert_eq!(bench.outcome(), [1, 1, 2 * segments], "{qdisc}");
        assert_eq!(bench.dropped(DropReason::NoMemory), 0);
        bench.finish();
    }
}

/// Its books are kept in the segments that it takes.
#[test]
fn a_device_that_completes_what_was_refused_owes_nothing_at_the_end() {
    let mut bench = Bench::refusing(true, "pfifo_fast");
    bench.xmit_superframe(SEGMENTS);
    let bytes = SEGMENTS * (1000 + HEADER_BYTES);
    assert_eq!(bench.outcome()[0], SEGMENTS as u64);
    assert_eq!(bench.stats().bql_inflight, u32::try_from(bytes).ok());
    bench.device.held().done = Completed { packets: SEGMENTS, bytes };
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.stats().bql_inflight, Some(0));
    bench.finish();
}

#[test]
fn a_superframe_that_finds_no_room_waits_for_it() {
    let mut bench = Bench::refusing(false, "noqueue");
    bench.device.held().room = 0;
    bench.xmit_superframe(65);
    assert_eq!(bench.outcome(), [0, 0, 0]);
    bench.room(1);
    bench.cx.now += RETRY;
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.outcome(), [1, 0, 0]);
    assert_eq!(bench.host.tx(1).superframe_max(), BIG_TCP_BYTES_MAX);
    bench.finish();
}

#[test]
fn a_device_that_is_taken_up_again_is_tried_again() {
    let mut bench = Bench::refusing(false, "noqueue");
    bench.xmit_superframe(SEGMENTS);
    assert_eq!(bench.outcome()[1], 1);
    bench.device.held().refuses_above = None;
    for up in [false, true] {
        bench.host.set_device_up(&mut bench.cx, 1, up).expect("it is there");
    }
    assert_eq!(bench.host.tx(1).superframe_max(), BIG_TCP_BYTES_MAX);
    bench.xmit_superframe(SEGMENTS);
    assert_eq!(bench.outcome()[..2], [1, 1]);
    bench.finish();
}
