use core::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pkt::PacketOwner;

use super::{impair::transmission_time, *};
use crate::{
    core::Kick,
    cx::Memory,
    header::{
        ethernet::EthernetHeader,
        ip::{ETHER_TYPE_IPV4, Fragment, IpHeader, parse, protocol},
    },
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
};

const START: Instant = Instant::from_secs(1000);
const QUEUE: QueueId = QueueId(0);

/// Two ends, and one context that runs both hosts.
struct Bench {
    memory: Memory,
    cx: Cx,
    left: Arc<Wire>,
    right: Arc<Wire>,
}

/// Arrival time and number of a frame.
type Arrival = (Duration, u32);

impl Bench {
    fn new(config: &WireConfig) -> Self {
        let memory = Memory::new(16 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = START;
        let (left, right) = Wire::pair(config).unwrap();
        Self { memory, cx, left, right }
    }

    fn forward(forward: Impairment) -> Self {
        Self::new(&WireConfig { forward, ..WireConfig::default() })
    }

    /// Sends `count` frames, numbered from 0, each with an IP packet of 1,000 bytes.
    fn send(&mut self, count: u32) {
        let mut list: PacketList = (0..count).map(|number| frame(&mut self.cx, number)).collect();
        self.left.transmit(QUEUE, &mut self.cx, &mut list);
        assert!(list.is_empty());
    }

    /// Returns all frames that arrive while time advances from one deadline to the next.
    fn arrivals(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        loop {
            let mut batch = Batch::new();
            self.right.receive(QUEUE, &mut self.cx, 64, &mut batch);
            for packet in batch.drain() {
                arrivals.push((self.cx.now - START, number_of(&packet)));
                self.cx.pool.free(packet);
            }
            match self.right.next_deadline(QUEUE) {
                Some(at) => self.cx.now = self.cx.now.max(at),
                None => return arrivals,
            }
        }
    }

    fn numbers(&mut self) -> Vec<u32> {
        self.arrivals().into_iter().map(|(_, number)| number).collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.cx.counters().drops.value(reason)
    }

    fn finish(mut self) {
        self.arrivals();
        assert_eq!(self.memory.packets.balance(), 0);
    }
}

fn frame(cx: &mut Cx, number: u32) -> Packet {
    let mut packet = cx.pool.alloc().unwrap();
    let payload = number.to_be_bytes().repeat(245);
    packet.append(&mut cx.pool, &payload);
    let ip = IpHeader {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        protocol: protocol::UDP,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        id: 0,
        fragment: Fragment::DONT,
        header_len: 0,
        payload_len: 980,
    };
    ip.emit::<true>(packet.push(20));
    let (from, to) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    EthernetHeader::new(to, from, ETHER_TYPE_IPV4).emit(packet.push(14));
    packet
}

fn number_of(packet: &Packet) -> u32 {
    let mut number = [0; 4];
    packet.copy_to(34, &mut number);
    u32::from_be_bytes(number)
}

#[test]
fn a_wire_without_impairments_delivers_at_once_by_pointer() {
    let mut bench = Bench::forward(Impairment::default());
    let mut list = PacketList::new();
    list.push_back(frame(&mut bench.cx, 7));
    let payload = list.pop_front().map(|packet| {
        let at = packet.slices().last().map(<[u8]>::as_ptr);
        list.push_back(packet);
        at
    });
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
    let mut batch = Batch::new();
    assert_eq!(bench.right.receive(QUEUE, &mut bench.cx, 64, &mut batch), 1);
    let packet = batch.drain().next().unwrap();
    assert_eq!(packet.slices().last().map(<[u8]>::as_ptr), payload.unwrap());
    assert_eq!(packet.meta().rx_checksum, RxChecksum::Unnecessary);
    bench.cx.pool.free(packet);
    assert_eq!(bench.right.next_deadline(QUEUE), None);
    bench.finish();
}

#[test]
fn the_two_directions_are_independent() {
    let delay = Impairment { delay: Duration::from_millis(1), ..Impairment::default() };
    let mut bench = Bench::forward(delay);
    bench.send(1);
    core::mem::swap(&mut bench.left, &mut bench.right);
    bench.send(2);
    assert_eq!(bench.arrivals(), [(Duration::ZERO, 0), (Duration::ZERO, 1)]);
    core::mem::swap(&mut bench.left, &mut bench.right);
    assert_eq!(bench.arrivals(), [(Duration::from_millis(1), 0)]);
    bench.finish();
}

#[test]
fn a_rate_spaces_frames_by_their_time_on_the_link() {
    let rate = Impairment { rate_bps: Some(8_000_000), ..Impairment::default() };
    let mut bench = Bench::forward(rate);
    bench.send(3);
    // An IP packet of 1,000 bytes and 38 bytes of framing, at one byte per microsecond.
    let each = Duration::from_micros(1038);
    assert_eq!(bench.arrivals(), [(each, 0), (each * 2, 1), (each * 3, 2)]);
    // After an idle period the link has no backlog.
    bench.cx.now = START + Duration::from_secs(1);
    bench.send(1);
    assert_eq!(bench.arrivals(), [(Duration::from_secs(1) + each, 0)]);
    bench.finish();
}

#[test]
fn a_superframe_takes_as_long_as_its_segments() {
    let memory = Memory::new(4 << 20);
    let mut cx = Cx::replay(&memory, 1);
    let mut packet = frame(&mut cx, 0);
    // Three segments of 320 bytes, with 40 bytes of headers each for the second and the third.
    assert!(packet.require_linear(54));
    packet.linear_mut()[14 + 20 + 12] = 0x50;
    packet.meta_mut().gso =
        pkt::Gso { kind: pkt::GsoKind::TcpV4, ecn: false, fixed_id: false, size: 320, segs: 3 };
    let time = transmission_time(Some(8_000_000), &packet);
    assert_eq!(time, Duration::from_micros(1000 + 2 * 40 + 3 * 38));
    cx.pool.free(packet);
}

/// Returns the ECN fields of all arriving packets.
fn ecn_of_arrivals(bench: &mut Bench) -> Vec<u8> {
    let mut fields = Vec::new();
    loop {
        let mut batch = Batch::new();
        bench.right.receive(QUEUE, &mut bench.cx, 64, &mut batch);
        for packet in batch.drain() {
            let header = parse::<true>(&packet.linear()[14..], packet.len() - 14);
            fields.push(header.expect("the IP header is valid").traffic_class & 3);
            bench.cx.pool.free(packet);
        }
        match bench.right.next_deadline(QUEUE) {
            Some(at) => bench.cx.now = bench.cx.now.max(at),
            None => return fields,
        }
    }
}

/// Sends `count` frames of 1,000 bytes with this ECN field.
fn send_with_ecn(bench: &mut Bench, count: u32, ecn: u8) {
    let mut list = PacketList::new();
    for number in 0..count {
        let mut packet = frame(&mut bench.cx, number);
        let header = IpHeader {
            traffic_class: ecn,
            ..parse::<true>(&packet.linear()[14..], packet.len() - 14).unwrap()
        };
        header.emit::<true>(&mut packet.linear_mut()[14..34]);
        list.push_back(packet);
    }
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
}

#[test]
fn ecn_capable_packets_are_marked_once_the_queue_is_long() {
    let impairment = Impairment {
        rate_bps: Some(8_304_000),
        mark_above: Some(Duration::from_millis(3)),
        ..Impairment::default()
    };
    let mut bench = Bench::forward(impairment);
    // A frame takes a millisecond, so the first four frames wait no longer than the limit of 3 ms.
    send_with_ecn(&mut bench, 6, 2);
    assert_eq!(ecn_of_arrivals(&mut bench), [2, 2, 2, 2, 3, 3]);
    send_with_ecn(&mut bench, 6, 0);
    assert_eq!(ecn_of_arrivals(&mut bench), [0; 6], "packets without ECN are never marked");
    bench.finish();
}

#[test]
fn a_fraction_of_ecn_capable_packets_is_marked() {
    let mut bench = Bench::forward(Impairment { mark: 0.25, ..Impairment::default() });
    send_with_ecn(&mut bench, 1000, 1);
    let fields = ecn_of_arrivals(&mut bench);
    let marked = fields.iter().filter(|&&ecn| ecn == 3).count();
    assert!((200..300).contains(&marked), "{marked} of 1,000 packets are marked");
    assert!(fields.iter().all(|&ecn| ecn == 3 || ecn == 1));
    bench.finish();
}

#[test]
fn a_delay_keeps_the_order_of_frames() {
    let delay = Duration::from_millis(30);
    let mut bench = Bench::forward(Impairment { delay, ..Impairment::default() });
    bench.send(3);
    assert_eq!(bench.right.next_deadline(QUEUE), Some(START + delay));
    assert_eq!(bench.arrivals(), [(delay, 0), (delay, 1), (delay, 2)]);
    bench.finish();
}

#[test]
fn reordered_frames_are_overtaken() {
    let mut bench = Bench::forward(Impairment {
        delay: Duration::from_millis(10),
        rate_bps: Some(80_000_000),
        reorder: 0.1,
        reorder_delay: Duration::from_millis(3),
        ..Impairment::default()
    });
    bench.send(1000);
    let numbers = bench.numbers();
    let late = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!((50..150).contains(&late), "{late} of 1,000 frames are overtaken");
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..1000), "no frame is lost");
    bench.finish();
}

#[test]
fn lost_frames_are_counted() {
    let mut bench = Bench::forward(Impairment { loss: 0.25, ..Impairment::default() });
    bench.send(1000);
    let numbers = bench.numbers();
    assert!(numbers.is_sorted());
    let lost = 1000 - numbers.len() as u64;
    assert!((200..300).contains(&lost), "{lost} of 1,000 frames are lost");
    assert_eq!(bench.drops(DropReason::WireLoss), lost);
    bench.finish();
}

#[test]
fn duplicates_are_equal_copies() {
    let mut bench = Bench::forward(Impairment { duplicate: 0.25, ..Impairment::default() });
    bench.send(1000);
    let numbers = bench.numbers();
    let twice = numbers.len() - 1000;
    assert!((200..300).contains(&twice), "{twice} of 1,000 frames arrive twice");
    let mut distinct = numbers;
    distinct.dedup();
    assert!(distinct.iter().copied().eq(0..1000), "each copy follows its original");
    bench.finish();
}

#[test]
fn corruption_flips_one_bit_of_a_frame() {
    let forward = Impairment { corrupt: 0.25, ..Impairment::default() };
    let mut bench = Bench::new(&WireConfig { checksums: true, forward, ..WireConfig::default() });
    let sent: Vec<_> = (0..200).map(|number| frame(&mut bench.cx, number).to_vec()).collect();
    bench.send(200);
    let mut batch = Batch::new();
    let mut damaged = 0;
    let mut arrived = 0;
    while bench.right.receive(QUEUE, &mut bench.cx, 64, &mut batch) > 0 {
        for packet in batch.drain() {
            let pairs = packet.to_vec().into_iter().zip(&sent[arrived]);
            let flipped: u32 = pairs.map(|(is, was)| (is ^ was).count_ones()).sum();
            assert!(flipped <= 1);
            assert_eq!(
                packet.meta().rx_checksum,
                RxChecksum::None,
                "the receiver must verify the checksum"
            );
            damaged += flipped;
            arrived += 1;
            bench.cx.pool.free(packet);
        }
    }
    assert_eq!(arrived, 200);
    assert!((30..70).contains(&damaged), "{damaged} of 200 frames are corrupted");
    bench.finish();
}

#[test]
fn a_full_queue_drops_packets() {
    for delay in [Duration::ZERO, Duration::from_millis(1)] {
        let full = Impairment { queue_packets: 10, delay, ..Impairment::default() };
        let mut bench = Bench::forward(full);
        bench.send(15);
        assert_eq!(bench.drops(DropReason::WireQueueFull), 5);
        assert_eq!(bench.numbers().len(), 10);
        bench.send(1);
        assert_eq!(bench.numbers(), [0], "the queue has space again");
        bench.finish();
    }
}

#[derive(Debug, Default)]
struct Payer(AtomicU32);

impl PacketOwner for Payer {
    fn on_complete(&self, truesize: u32) {
        self.0.fetch_add(truesize, Ordering::Relaxed);
    }
}

#[test]
fn a_frame_completes_after_its_departure() {
    let mut bench = Bench::forward(Impairment {
        rate_bps: Some(8_000_000),
        completion_delay: Duration::from_millis(5),
        ..Impairment::default()
    });
    assert!(bench.left.caps().async_completion);
    assert!(
        !bench.right.caps().async_completion,
        "the right end sends over a direction without impairments"
    );
    let payer = Arc::new(Payer::default());
    let mut packet = frame(&mut bench.cx, 0);
    let truesize = packet.truesize();
    packet.set_owner(Arc::clone(&payer) as Arc<dyn PacketOwner>);
    let mut list = PacketList::new();
    list.push_back(packet);
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
    // 1,038 microseconds on the link, then the delay.
    let due = START + Duration::from_micros(6038);
    assert_eq!(bench.left.next_deadline(QUEUE), Some(due));
    assert_eq!(bench.numbers(), [0], "the frame arrives before it completes");
    assert_eq!(
        (bench.left.complete(QUEUE, &mut bench.cx).packets, payer.0.load(Ordering::Relaxed)),
        (0, 0)
    );
    bench.cx.now = due;
    assert_eq!(bench.left.complete(QUEUE, &mut bench.cx).packets, 1);
    assert_eq!(payer.0.load(Ordering::Relaxed), truesize);
    assert_eq!(bench.left.next_deadline(QUEUE), None);
    bench.finish();
}

#[test]
fn a_transmit_ring_takes_packets_up_to_its_size_and_leaves_the_others() {
    let mut bench = Bench::forward(Impairment {
        rate_bps: Some(8_000_000),
        ring_packets: Some(2),
        ..Impairment::default()
    });
    assert!(bench.left.caps().async_completion && bench.left.needs_qdisc());
    let mut list: PacketList = (0..5).map(|number| frame(&mut bench.cx, number)).collect();
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
    assert_eq!(list.len(), 3);
    // A frame occupies the link, and a place in the ring, for 1,038 microseconds.
    bench.cx.now += Duration::from_micros(1038);
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
    assert_eq!(list.len(), 3, "only `complete` frees the place of a sent frame");
    let completed = bench.left.complete(QUEUE, &mut bench.cx);
    assert_eq!((completed.packets, completed.bytes), (1, list.bytes() / 3));
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
    assert_eq!(list.len(), 2);
    list.free_all(&mut bench.cx.pool);
    bench.cx.now += Duration::from_secs(1);
    assert_eq!(bench.numbers(), [0, 1, 2]);
    bench.left.complete(QUEUE, &mut bench.cx);
    bench.finish();
}

#[derive(Default)]
struct Kicks(AtomicU32);

impl Kick for Kicks {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An application thread sends and no frame arrives: only the completion deadline wakes the worker.
#[test]
fn a_sleeping_worker_is_woken_for_the_completions_of_its_queue() {
    let mut bench = Bench::forward(Impairment {
        rate_bps: Some(8_000_000),
        ring_packets: Some(2),
        ..Impairment::default()
    });
    let devices = vec![DeviceConfig { device: Arc::clone(&bench.left) as _, addresses: vec![] }];
    let name = "host".to_string();
    let config = HostConfig { name, devices, cores: 1, ..HostConfig::replay(0) };
    let host = Host::new(&bench.memory, config).expect("the configuration is valid");
    let (core, kicks) = (host.core_of_queue(QUEUE), Arc::new(Kicks::default()));
    core.set_kick(Arc::clone(&kicks) as Arc<dyn Kick>);
    assert_eq!(core.prepare_sleep(START, false), None);
    bench.send(2);
    assert_eq!(kicks.0.load(Ordering::Relaxed), 1);
    // A frame occupies the link for 1,038 microseconds.
    let due = |frames| START + Duration::from_micros(1038) * frames;
    assert_eq!(core.prepare_sleep(START, false), Some(due(1)));
    bench.cx.now = due(1);
    assert_eq!(bench.left.complete(QUEUE, &mut bench.cx).packets, 1);
    assert_eq!(core.prepare_sleep(due(1), false), Some(due(2)));
    bench.cx.now = due(2);
    assert_eq!(bench.left.complete(QUEUE, &mut bench.cx).packets, 1);
    drop(host);
    bench.finish();
}

#[test]
fn packets_dropped_after_they_were_taken_are_completed_too() {
    let mut bench = Bench::forward(Impairment {
        rate_bps: Some(8_000_000),
        ring_packets: Some(9),
        queue_packets: 2,
        ..Impairment::default()
    });
    let mut list: PacketList = (0..5).map(|number| frame(&mut bench.cx, number)).collect();
    bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
    assert!(list.is_empty());
    bench.cx.now += Duration::from_secs(1);
    assert_eq!(bench.left.complete(QUEUE, &mut bench.cx).packets, 5);
    assert_eq!(bench.numbers(), [0, 1]);
    bench.finish();
}

#[test]
fn without_a_completion_delay_packets_complete_at_once() {
    for loss in [0.0, 1.0] {
        let mut bench = Bench::forward(Impairment { loss, ..Impairment::default() });
        let payer = Arc::new(Payer::default());
        let mut packet = frame(&mut bench.cx, 0);
        let truesize = packet.truesize();
        packet.set_owner(Arc::clone(&payer) as Arc<dyn PacketOwner>);
        let mut list = PacketList::new();
        list.push_back(packet);
        bench.left.transmit(QUEUE, &mut bench.cx, &mut list);
        assert_eq!(payer.0.load(Ordering::Relaxed), truesize);
        bench.finish();
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let run = |seed| {
        let forward = Impairment {
            rate_bps: Some(100_000_000),
            delay: Duration::from_millis(3),
            loss: 0.1,
            reorder: 0.2,
            reorder_delay: Duration::from_micros(700),
            duplicate: 0.1,
            corrupt: 0.1,
            ..Impairment::default()
        };
        let config = WireConfig { checksums: true, forward, seed, ..WireConfig::default() };
        let mut bench = Bench::new(&config);
        bench.send(500);
        let arrivals = bench.arrivals();
        bench.finish();
        arrivals
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn invalid_configurations_of_a_wire_are_refused() {
    let field = |config: &WireConfig| Wire::pair(config).unwrap_err().field;
    let base = WireConfig::default;
    let bent = |forward| WireConfig { forward, ..base() };
    let plain = Impairment::default;
    assert_eq!(field(&WireConfig { mtu: 67, ..base() }), "mtu");
    assert_eq!(field(&WireConfig { mtu: 65_536, ..base() }), "mtu");
    assert_eq!(field(&WireConfig { gso_max_bytes: 1499, ..base() }), "gso_max_bytes");
    assert_eq!(field(&WireConfig { queues: 0, ..base() }), "queues");
    assert_eq!(field(&bent(Impairment { loss: 1.1, ..plain() })), "loss");
    assert_eq!(field(&bent(Impairment { reorder: -0.1, ..plain() })), "reorder");
    assert_eq!(field(&bent(Impairment { duplicate: f64::NAN, ..plain() })), "duplicate");
    assert_eq!(field(&bent(Impairment { rate_bps: Some(0), ..plain() })), "rate_bps");
    assert_eq!(field(&bent(Impairment { queue_packets: 0, ..plain() })), "queue_packets");
    assert_eq!(field(&bent(Impairment { corrupt: 0.1, ..plain() })), "corrupt");
    let path_mtu = Some(PathMtu { bytes: 67, report: TooBigReport::Mtu });
    assert_eq!(field(&bent(Impairment { path_mtu, ..plain() })), "path_mtu");
    let backward = WireConfig { backward: Impairment { loss: 2.0, ..plain() }, ..base() };
    assert_eq!(field(&backward), "loss");
}

#[test]
fn a_packet_too_big_for_the_path_is_dropped_and_reported_unless_the_router_is_silent() {
    for report in [TooBigReport::Mtu, TooBigReport::NoMtu, TooBigReport::Silent] {
        let path_mtu = Some(PathMtu { bytes: 999, report });
        let delay = Duration::from_millis(2);
        let mut bench = Bench::forward(Impairment { delay, path_mtu, ..Impairment::default() });
        bench.send(1);
        assert_eq!(bench.drops(DropReason::PacketTooBig), 1);
        let reported = bench.left.next_deadline(QUEUE);
        core::mem::swap(&mut bench.left, &mut bench.right);
        let wanted = (report != TooBigReport::Silent).then_some(START + delay);
        assert_eq!(reported, wanted, "the report returns over the wire");
        assert_eq!(bench.arrivals().len(), usize::from(reported.is_some()));
        core::mem::swap(&mut bench.left, &mut bench.right);
        bench.left.set_path_mtu(Some(PathMtu { bytes: 1000, report }));
        bench.send(1);
        assert_eq!(bench.numbers(), [0], "a packet of exactly the path MTU passes");
        bench.finish();
    }
}
