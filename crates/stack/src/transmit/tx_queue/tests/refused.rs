//! Tests of superframes (packets of several segments) that a device refuses for their size.

use pkt::{Gso, GsoKind, TxChecksum};

use super::*;
use crate::header::ip::ETHER_TYPE_IPV4;

/// Number of segments of 1,000 bytes in a test superframe.
const SEGMENTS: usize = 200;

/// Length of the IPv4 and TCP headers.
const HEADER_BYTES: usize = 40;

impl Bench {
    fn refusing(async_completion: bool, qdisc: &str) -> Self {
        let bench = Self::new(async_completion, qdisc);
        bench.device.held().refuses_above = Some(GSO_BYTES_MAX);
        bench.room(usize::MAX / 2);
        bench
    }

    fn xmit_superframe(&mut self, segments: usize) {
        let mut packet = self.cx.pool.alloc().expect("the pool has memory");
        let payload = vec![0; segments * 1000];
        assert_eq!(packet.append(&mut self.cx.pool, &payload), payload.len());
        let headers = packet.push(HEADER_BYTES);
        headers.fill(0);
        (headers[0], headers[9], headers[32]) = (0x45, 6, 0x50);
        let meta = packet.meta_mut();
        meta.protocol = ETHER_TYPE_IPV4;
        meta.tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
        let segs = u16::try_from(segments).expect("there are few segments");
        meta.gso = Gso { kind: GsoKind::TcpV4, size: 1000, segs, ..Gso::default() };
        let mut list = PacketList::from_iter([packet]);
        assert_eq!(send_list(&self.host, &mut self.cx, &mut list), NetXmit::Success);
        // The core sends the packets beyond the quota of the caller.
        let _ = self.host.poll(&mut self.cx);
    }

    /// Returns the frames sent since the last call, and the total numbers of refused superframes
    /// and of GSO segments.
    fn outcome(&self) -> [u64; 3] {
        let count = |name| self.host.counters().get(name).expect("the counter exists");
        [self.sent().0.len() as u64, count("DeviceTxRefused"), count("GsoSegments")]
    }
}

#[test]
fn a_superframe_refused_for_its_size_is_sent_in_segments() {
    let segments = SEGMENTS as u64;
    for qdisc in ["noqueue", "pfifo_fast", "fq", "fq_codel"] {
        let mut bench = Bench::refusing(false, qdisc);
        let generation = bench.host.route_generation();
        bench.xmit_superframe(SEGMENTS);
        assert_eq!(bench.outcome(), [segments, 1, segments], "{qdisc}");
        // One new route generation makes senders read the new limit.
        assert_eq!(bench.host.tx(DEVICE).superframe_max(), GSO_BYTES_MAX);
        assert_eq!(bench.host.route_generation(), generation + 1);
        // A superframe above the new limit is segmented at once, without an attempt to pass it to
        // the device.
        bench.xmit_superframe(SEGMENTS);
        assert_eq!(bench.outcome(), [segments, 1, 2 * segments], "{qdisc}");
        assert_eq!(bench.host.route_generation(), generation + 1);
        // A superframe below the new limit of 64 KB is sent unchanged.
        bench.xmit_superframe(65);
        assert_eq!(bench.outcome(), [1, 1, 2 * segments], "{qdisc}");
        assert_eq!(bench.dropped(DropReason::NoMemory), 0);
        bench.finish();
    }
}

/// The byte limit counts the segments of a refused superframe.
#[test]
fn the_byte_limit_counts_the_segments_of_a_refused_superframe() {
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
fn a_superframe_without_room_in_the_device_waits() {
    let mut bench = Bench::refusing(false, "noqueue");
    bench.device.held().room = 0;
    bench.xmit_superframe(65);
    assert_eq!(bench.outcome(), [0, 0, 0]);
    bench.room(1);
    bench.cx.now += RETRY;
    let _ = bench.host.poll(&mut bench.cx);
    assert_eq!(bench.outcome(), [1, 0, 0]);
    assert_eq!(bench.host.tx(DEVICE).superframe_max(), BIG_TCP_BYTES_MAX);
    bench.finish();
}

#[test]
fn a_device_brought_up_again_gets_large_superframes_again() {
    let mut bench = Bench::refusing(false, "noqueue");
    bench.xmit_superframe(SEGMENTS);
    assert_eq!(bench.outcome()[1], 1);
    bench.device.held().refuses_above = None;
    for up in [false, true] {
        bench.host.set_device_up(&mut bench.cx, DEVICE, up).expect("the device exists");
    }
    assert_eq!(bench.host.tx(DEVICE).superframe_max(), BIG_TCP_BYTES_MAX);
    bench.xmit_superframe(SEGMENTS);
    assert_eq!(bench.outcome()[..2], [1, 1]);
    bench.finish();
}
