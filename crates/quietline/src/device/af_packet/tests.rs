//! Two devices on the two ends of a veth pair, each test in a network namespace of its own that dies with its thread.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant as Clock};

use pkt::{Batch, Gso, GsoKind, Packet, PacketList, RxChecksum, TxChecksum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::Memory;
use stack::counters::Counter;
use stack::cx::Cx;
use stack::device::{Completed, Device, QueueId};

use super::testing::make_pair;
use super::*;
use crate::device::namespace::{in_namespace, run};

const PATIENCE: Duration = Duration::from_secs(10);
const HEADER_LEN: usize = 14;

/// One end of the pair.
struct End {
    device: Arc<AfPacket>,
    cx: Cx,
}

impl End {
    fn new(memory: &Memory, config: &AfPacketConfig) -> Self {
        let device = AfPacket::open(config).expect("a device");
        Self { device, cx: Cx::new(memory, 1).with_clock(crate::clock::now) }
    }

    /// A frame of an experimental type (RFC 5342), so that the kernel leaves it alone.
    fn frame(&mut self, number: usize, len: usize) -> Packet {
        let mut bytes = vec![0xff; 12];
        bytes.extend([0x88, 0xb5]);
        bytes.extend(number.to_be_bytes());
        bytes.resize(len.max(bytes.len()), u8::try_from(number % 256).expect("a byte"));
        self.packet(&bytes)
    }

    fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.cx.pool.alloc().expect("memory");
        assert_eq!(packet.append(&mut self.cx.pool, bytes), bytes.len());
        packet
    }

    fn transmit(&mut self, list: &mut PacketList) {
        self.cx.now = crate::clock::now();
        self.device.transmit(QueueId(0), &mut self.cx, list);
    }

    fn complete(&mut self) -> Completed {
        self.cx.now = crate::clock::now();
        let completed = self.device.complete(QueueId(0), &mut self.cx);
        let deadline = self.device.next_deadline(QueueId(0));
        assert_ne!(deadline, Some(pkt::Instant::ZERO), "what was given up is told");
        completed
    }

    /// Waits until the descriptor of `queue` is readable. False when it is not for `time`.
    fn wait(&self, queue: u16, time: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.device.poll_fd(queue), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: i64::try_from(time.as_secs()).expect("short"),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let readable = poll(&mut fds, Some(&timeout)).expect("poll") > 0;
        self.device.acknowledge(queue);
        readable
    }

    /// What has arrived on `queue`.
    fn received(&mut self, queue: u16) -> Vec<Packet> {
        let mut batch = Batch::new();
        let mut packets = Vec::new();
        loop {
            let taken = self.device.receive(QueueId(queue), &mut self.cx, 64, &mut batch);
            packets.extend(batch.drain());
            if taken < 64 {
                return packets;
            }
        }
    }

    /// Receives `count` packets on queue 0.
    fn receive(&mut self, count: usize) -> Vec<Packet> {
        let deadline = Clock::now() + PATIENCE;
        let mut packets = self.received(0);
        while packets.len() < count {
            assert!(Clock::now() < deadline, "{} of {count} have arrived", packets.len());
            self.wait(0, Duration::from_millis(50));
            packets.extend(self.received(0));
        }
        assert_eq!(packets.len(), count);
        packets
    }

    /// Waits until `packets` have completed, by the descriptor alone.
    fn completed(&mut self, packets: usize) -> Completed {
        let deadline = Clock::now() + PATIENCE;
        let mut all = Completed::NONE;
        while all.packets < packets {
            assert!(Clock::now() < deadline, "{} of {packets} have completed", all.packets);
            let done = self.complete();
            all.packets += done.packets;
            all.bytes += done.bytes;
            self.wait(0, Duration::from_millis(50));
        }
        assert_eq!(all.packets, packets);
        all
    }
}

fn pair(left: &AfPacketConfig, right: &AfPacketConfig, test: impl FnOnce(&mut End, &mut End)) {
    make_pair();
    let memory = Memory::new(256 << 20);
    test(&mut End::new(&memory, left), &mut End::new(&memory, right));
}

/// The same with somebody else on the right end, to whom the kernel hands each frame last: what the witness has, the right end has
/// had or missed. That a frame has completed says less: it has left, and may be on the way.
fn pair_and_witness(
    left: &AfPacketConfig,
    right: &AfPacketConfig,
    test: impl FnOnce(&mut End, &mut End, &mut Witness),
) {
    make_pair();
    let memory = Memory::new(256 << 20);
    // The kernel hands a frame to whoever came last first.
    let mut witness = Witness(End::new(&memory, &AfPacketConfig::new("right0")));
    test(&mut End::new(&memory, left), &mut End::new(&memory, right), &mut witness);
}

/// See [`pair_and_witness`].
struct Witness(End);

impl Witness {
    /// Waits until so many more frames have been handed out.
    fn has_seen(&mut self, count: usize) {
        let packets = self.0.receive(count);
        free(&mut self.0, packets);
    }
}

/// Frames that the discipline of the left end has let go.
fn dequeued() -> usize {
    let output = Command::new("tc").args(["-s", "qdisc", "show", "dev", "left0"]).output();
    let text = String::from_utf8(output.expect("iproute2 is installed").stdout).expect("words");
    let words: Vec<_> = text.split_whitespace().collect();
    let count = words.windows(2).find_map(|pair| (pair[1] == "pkt").then(|| pair[0].parse()));
    count.expect("a count of packets").expect("a number")
}

fn number_of(packet: &Packet) -> usize {
    let mut number = [0; 8];
    assert_eq!(packet.copy_to(HEADER_LEN, &mut number), 8);
    usize::from_be_bytes(number)
}

fn free(end: &mut End, packets: Vec<Packet>) {
    packets.into_iter().for_each(|packet| end.cx.pool.free(packet));
}

/// Frames of all lengths arrive as they were sent and in order, and each completes.
fn frames_cross(rx_format: RxFormat, tx_format: TxFormat, vnet_hdr: bool, qdisc: KernelQdisc) {
    in_namespace(move || {
        let left = AfPacketConfig { tx_format, vnet_hdr, qdisc, ..AfPacketConfig::new("left0") };
        let right = AfPacketConfig { rx_format, vnet_hdr, ..AfPacketConfig::new("right0") };
        pair(&left, &right, |left, right| {
            let (mut sent, mut bytes, mut completed) = (0, 0, Completed::NONE);
            while sent < 600 {
                let mut list = PacketList::new();
                for number in sent..sent + 60 {
                    let len = 60 + number * 97 % 1440;
                    bytes += len;
                    list.push_back(left.frame(number, len));
                }
                left.transmit(&mut list);
                assert!(list.is_empty(), "there is room for 128");
                let packets = right.receive(60);
                for (number, packet) in (sent..).zip(&packets) {
                    assert_eq!(number_of(packet), number);
                    assert_eq!(packet.len(), 60 + number * 97 % 1440);
                    let tail = packet.to_vec().split_off(HEADER_LEN + 8);
                    assert!(tail.iter().all(|&byte| usize::from(byte) == number % 256));
                }
                free(right, packets);
                sent += 60;
                let done = left.completed(60);
                completed.packets += done.packets;
                completed.bytes += done.bytes;
            }
            assert_eq!(completed, Completed { packets: sent, bytes });
            assert!(left.received(0).is_empty(), "what we send is not received");
        });
    });
}

#[test]
fn frames_cross_place_by_place() {
    frames_cross(RxFormat::Frames, TxFormat::Ring, true, KernelQdisc::Through);
}

#[test]
fn frames_cross_in_blocks() {
    frames_cross(RxFormat::Blocks, TxFormat::Ring, true, KernelQdisc::Through);
}

#[test]
fn frames_cross_by_calls() {
    frames_cross(RxFormat::Calls, TxFormat::Calls, true, KernelQdisc::Through);
}

#[test]
fn frames_cross_without_offload_headers_and_around_the_qdisc() {
    frames_cross(RxFormat::Frames, TxFormat::Ring, false, KernelQdisc::Bypass);
    frames_cross(RxFormat::Blocks, TxFormat::Calls, false, KernelQdisc::Bypass);
    frames_cross(RxFormat::Calls, TxFormat::Ring, false, KernelQdisc::Bypass);
}

/// Both ways out, in turn.
fn each_way_out(test: impl Fn(TxFormat) + Send + Copy + 'static) {
    for tx_format in [TxFormat::Ring, TxFormat::Calls] {
        in_namespace(move || test(tx_format));
    }
}

/// An Ethernet frame around TCP over IPv4 with `payload` bytes and an open checksum.
fn tcp_frame(payload: usize, port: u16) -> Vec<u8> {
    let len = u16::try_from(40 + payload).expect("an IPv4 packet");
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 1, 0x08, 0]);
    bytes.extend([0x45, 0]);
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|at| u8::try_from(at % 251).expect("a byte")));
    bytes
}

/// The way in that goes with a way out.
const fn way_in_beside(tx_format: TxFormat) -> RxFormat {
    match tx_format {
        TxFormat::Ring => RxFormat::Frames,
        TxFormat::Calls => RxFormat::Calls,
    }
}

fn superframe_crosses(rx_format: RxFormat, tx_format: TxFormat) {
    in_namespace(move || {
        let left = AfPacketConfig { tx_format, ..AfPacketConfig::new("left0") };
        let right = AfPacketConfig { rx_format, ..AfPacketConfig::new("right0") };
        pair(&left, &right, |left, right| {
            let largest = usize::try_from(left.device.caps().gso_max_bytes).expect("bytes") - 40;
            for payload in [2_000, 20_000, 64_000, largest] {
                let bytes = tcp_frame(payload, 1000);
                let mut packet = left.packet(&bytes);
                let segs = u16::try_from(payload.div_ceil(1000)).expect("segments");
                let gso =
                    Gso { kind: GsoKind::TcpV4, ecn: true, fixed_id: false, size: 1000, segs };
                packet.meta_mut().gso = gso;
                packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
                left.transmit(&mut PacketList::from_iter([packet]));
                let mut packets = right.receive(1);
                assert_eq!(packets[0].meta().gso, gso);
                let partial = RxChecksum::Partial { start: 20, offset: 16 };
                assert_eq!(packets[0].meta().rx_checksum, partial);
                assert!(packets[0].to_vec() == bytes, "{payload} bytes arrived changed");
                right.cx.pool.free(packets.remove(0));
                assert_eq!(left.completed(1).bytes, bytes.len());
            }
        });
    });
}

#[test]
fn superframes_cross_whole() {
    superframe_crosses(RxFormat::Frames, TxFormat::Ring);
    superframe_crosses(RxFormat::Blocks, TxFormat::Calls);
    superframe_crosses(RxFormat::Calls, TxFormat::Calls);
}

/// What a slow discipline of the kernel's still holds is not completed; what finds no room in the ring stays with the caller.
#[test]
fn completions_are_those_of_the_kernels_queue() {
    each_way_out(|tx_format| {
        let left = AfPacketConfig { tx_ring_frames: 16, tx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("tc qdisc add dev left0 root tbf rate 500kbit burst 2kb limit 1mb");
            let mut list: PacketList = (0..40).map(|number| left.frame(number, 1000)).collect();
            left.transmit(&mut list);
            assert_eq!(list.len(), 24, "16 places");
            let mut done = 0;
            let deadline = Clock::now() + PATIENCE;
            while done < 40 && Clock::now() < deadline {
                done += left.complete().packets;
                let gone = dequeued();
                assert!(done <= gone, "{done} have completed, {gone} have left");
                left.transmit(&mut list);
                left.wait(0, Duration::from_millis(100));
            }
            assert_eq!((done, list.len()), (40, 0));
            let packets = right.receive(40);
            assert!(packets.iter().map(number_of).eq(0..40));
            free(right, packets);
        });
    });
}

/// A discipline without room refuses frames; they wait in the ring until it has some, and none is lost.
#[test]
fn what_the_kernels_queue_refuses_is_offered_again() {
    each_way_out(|tx_format| {
        let left = AfPacketConfig { tx_ring_frames: 64, tx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("tc qdisc add dev left0 root tbf rate 4mbit burst 2kb limit 3000");
            let mut list: PacketList = (0..60).map(|number| left.frame(number, 1000)).collect();
            left.transmit(&mut list);
            assert!(list.is_empty());
            assert!(left.device.next_deadline(QueueId(0)).is_some(), "offered again in a moment");
            left.completed(60);
            assert_eq!(left.device.next_deadline(QueueId(0)), None);
            let packets = right.receive(60);
            assert!(packets.iter().map(number_of).eq(0..60));
            free(right, packets);
        });
    });
}

/// A frame larger than the whole discipline would block the ring for ever.
#[test]
fn what_the_kernels_queue_can_never_hold_is_dropped_and_counted() {
    each_way_out(|tx_format| {
        let left = AfPacketConfig { tx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("tc qdisc add dev left0 root tbf rate 4mbit burst 2kb limit 1200");
            let mut list = PacketList::new();
            for number in 0..6 {
                list.push_back(left.frame(number, if number == 2 { 1400 } else { 1000 }));
            }
            left.transmit(&mut list);
            assert_eq!(left.completed(6).bytes, 6_400, "the dropped one is no longer under way");
            assert_eq!(left.cx.counters().drops.value(pkt::DropReason::QdiscDrop), 1);
            let packets = right.receive(5);
            assert!(packets.iter().map(number_of).eq([0, 1, 3, 4, 5]));
            free(right, packets);
        });
    });
}

#[test]
fn a_full_receive_ring_is_counted() {
    in_namespace(|| {
        let right = AfPacketConfig { rx_ring_bytes: 1 << 20, ..AfPacketConfig::new("right0") };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            // 15 places and nobody who looks.
            let mut list: PacketList = (0..40).map(|number| left.frame(number, 100)).collect();
            left.transmit(&mut list);
            witness.has_seen(40);
            let mut packets = right.received(0);
            let mut list: PacketList = (40..50).map(|number| left.frame(number, 100)).collect();
            left.transmit(&mut list);
            witness.has_seen(10);
            packets.extend(right.received(0));
            let missed = right.cx.counters().stack.value(Counter::DeviceRxMissed);
            assert_eq!(packets.len() as u64 + missed, 50, "{missed} missed");
            assert!(missed >= 25, "{missed} missed");
            free(right, packets);
        });
    });
}

#[test]
fn a_full_receive_buffer_is_counted() {
    in_namespace(|| {
        let right = AfPacketConfig {
            rx_format: RxFormat::Calls,
            rx_ring_bytes: 1 << 20,
            ..AfPacketConfig::new("right0")
        };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            let mut send = |left: &mut End, count: usize| {
                let mut list: PacketList =
                    (0..count).map(|number| left.frame(number, 1400)).collect();
                left.transmit(&mut list);
                left.completed(count);
                witness.has_seen(count);
            };
            // Nobody looks, and the buffer of 2 MB has room for 900 with what they take beside their bytes.
            for _ in 0..20 {
                send(left, 100);
            }
            let mut packets = right.received(0);
            send(left, 10);
            packets.extend(right.received(0));
            let missed = right.cx.counters().stack.value(Counter::DeviceRxMissed);
            assert_eq!(packets.len() as u64 + missed, 2010, "{missed} missed");
            assert!(missed >= 500, "{missed} missed");
            free(right, packets);
        });
    });
}

/// Before the queues share what arrives each of them has it.
#[test]
fn everything_that_waits_is_forgotten() {
    in_namespace(|| {
        let config = AfPacketConfig::new("left0");
        pair(&config, &AfPacketConfig::new("right0"), |left, witness| {
            for vnet_hdr in [true, false] {
                // The kernel hands a frame to whoever came last first: what the witness has is there.
                let rx_format = RxFormat::Calls;
                let config =
                    AfPacketConfig { rx_format, vnet_hdr, ..AfPacketConfig::new("right0") };
                let mut end = End::new(&Memory::new(64 << 20), &config);
                let mut list: PacketList = (0..10).map(|number| left.frame(number, 100)).collect();
                left.transmit(&mut list);
                let packets = witness.receive(10);
                free(witness, packets);
                RxCalls::discard(end.device.queues[0].receiver());
                let packets = end.received(0);
                assert!(packets.is_empty(), "{} are left", packets.len());
                left.completed(10);
            }
        });
    });
}

/// A few small frames late at most, and never before the frame has left.
#[test]
fn completions_by_the_send_buffer_are_not_early() {
    in_namespace(|| {
        let right = AfPacketConfig { rx_format: RxFormat::Calls, ..AfPacketConfig::new("right0") };
        pair(&AfPacketConfig::new("left0"), &right, |left, right| {
            run("tc qdisc add dev left0 root tbf rate 8mbit burst 2kb limit 1mb");
            let mut list: PacketList =
                (0..100).map(|number| left.frame(number, 60 + number * 389 % 1440)).collect();
            left.transmit(&mut list);
            assert!(list.is_empty());
            let (mut done, mut arrived, mut latest) = (0, 0, 0);
            let deadline = Clock::now() + PATIENCE;
            while done < 100 {
                assert!(Clock::now() < deadline, "{done} have completed");
                // What has arrived has left by then, however long this thread is kept from asking what has completed.
                let packets = right.received(0);
                arrived += packets.len();
                free(right, packets);
                done += left.complete().packets;
                latest = latest.max(arrived.saturating_sub(done));
                // What has left may be on the way.
                if done > arrived {
                    let gone = dequeued();
                    assert!(done <= gone, "{done} have completed, {gone} have left");
                }
            }
            assert!(latest < 50, "{latest} completions were late");
        });
    });
}

#[test]
fn flows_are_spread_over_queues_and_stay_there() {
    each_way_out(|tx_format| {
        let right = AfPacketConfig {
            queues: 2,
            rx_format: way_in_beside(tx_format),
            ..AfPacketConfig::new("right0")
        };
        pair_and_witness(&AfPacketConfig::new("left0"), &right, |left, right, witness| {
            let mut queue_of = HashMap::new();
            let mut seen = [0; 2];
            for round in 0..3 {
                let mut list = PacketList::new();
                for port in 1000..1032 {
                    let mut packet = left.packet(&tcp_frame(10, port));
                    packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
                    list.push_back(packet);
                }
                left.transmit(&mut list);
                left.completed(32);
                witness.has_seen(32);
                for queue in 0..2 {
                    let packets = right.received(queue);
                    for packet in &packets {
                        let bytes = packet.to_vec();
                        let port = u16::from_be_bytes([bytes[34], bytes[35]]);
                        assert_eq!(*queue_of.entry(port).or_insert(queue), queue, "port {port}");
                        seen[usize::from(queue)] += 1;
                    }
                    free(right, packets);
                }
                assert_eq!(seen[0] + seen[1], (round + 1) * 32, "each arrives once");
            }
            assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
        });
    });
}

#[test]
fn an_address_of_our_own_makes_the_interface_promiscuous_while_it_lasts() {
    in_namespace(|| {
        let sockets = || {
            let text =
                std::fs::read_to_string("/proc/thread-self/net/packet").expect("packet sockets");
            text.lines().count()
        };
        let before = sockets();
        let mac = Some([2, 0, 0, 0, 0, 9]);
        let left = AfPacketConfig { mac, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            assert_eq!(
                left.device.caps().link,
                LinkType::Ethernet { mac: MacAddr([2, 0, 0, 0, 0, 9]) }
            );
            let frame = right.frame(7, 100);
            right.transmit(&mut PacketList::from_iter([frame]));
            let packets = left.receive(1);
            free(left, packets);
        });
        // A program that another test starts has a copy of every descriptor for a moment.
        let deadline = Clock::now() + PATIENCE;
        while sockets() != before {
            assert!(Clock::now() < deadline, "{} sockets are left", sockets() - before);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn an_interface_that_goes_down_drops_and_comes_back() {
    each_way_out(|tx_format| {
        let rx_format = way_in_beside(tx_format);
        let left = AfPacketConfig { tx_format, rx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("ip link set left0 down");
            let mut list: PacketList = (0..3).map(|number| left.frame(number, 100)).collect();
            left.transmit(&mut list);
            assert!(list.is_empty(), "given up, not kept");
            let dropped = left.cx.counters().drops.value(pkt::DropReason::DeviceDown);
            assert_eq!(dropped, 3);
            let deadline = left.device.next_deadline(QueueId(0));
            assert_eq!(deadline, Some(pkt::Instant::ZERO), "a core that falls asleep sees it");
            let completed = Completed { packets: 3, bytes: 300 };
            assert_eq!(left.complete(), completed, "they are no longer under way");
            assert!(left.received(0).is_empty());
            left.wait(0, Duration::ZERO);
            assert!(!left.wait(0, Duration::from_millis(20)), "nothing to spin on");
            assert!(!left.device.is_gone());
            run("ip link set left0 up");
            let frame = left.frame(4, 100);
            left.transmit(&mut PacketList::from_iter([frame]));
            left.completed(1);
            // The other end finds out a little later that it has a carrier, and drops until then.
            let deadline = Clock::now() + PATIENCE;
            loop {
                assert!(Clock::now() < deadline, "nothing arrives");
                let frame = right.frame(5, 100);
                right.transmit(&mut PacketList::from_iter([frame]));
                left.wait(0, Duration::from_millis(20));
                let packets = left.received(0);
                let arrived = packets.iter().any(|packet| number_of(packet) == 5);
                free(left, packets);
                if arrived {
                    break;
                }
            }
        });
    });
}

#[test]
fn a_deleted_interface_is_found_out_and_goes_silent() {
    each_way_out(|tx_format| {
        let rx_format = way_in_beside(tx_format);
        let left = AfPacketConfig { tx_format, rx_format, ..AfPacketConfig::new("left0") };
        let right = AfPacketConfig { rx_format, ..AfPacketConfig::new("right0") };
        pair(&left, &right, |left, right| {
            run("ip link del left0");
            assert!(right.wait(0, PATIENCE), "the kernel reports an error");
            assert!(right.device.is_gone());
            assert!(right.received(0).is_empty());
            right.wait(0, Duration::ZERO);
            assert!(!right.wait(0, Duration::from_millis(20)), "nothing to spin on");
            let frame = left.frame(1, 100);
            left.transmit(&mut PacketList::from_iter([frame]));
            assert!(left.device.is_gone(), "found out by sending");
            assert!(left.received(0).is_empty());
        });
    });
}

#[test]
fn refusals_say_what_is_wrong() {
    in_namespace(|| {
        let refusal = |config: &AfPacketConfig| {
            let error = AfPacket::open(config).expect_err("refused");
            assert!(!error.to_string().contains('\n'));
            error.to_string()
        };
        let error = refusal(&AfPacketConfig::new("left0"));
        assert!(error.contains("\"left0\"") && error.contains("errno 19"), "{error}");
        run("ip link add left0 type veth peer name right0");
        let error = refusal(&AfPacketConfig::new("left0"));
        assert!(error.contains("ip link set left0 up"), "{error}");
        run("ip link set left0 up");
        let error = refusal(&AfPacketConfig { mtu: Some(9000), ..AfPacketConfig::new("left0") });
        assert!(error.contains("at most the interface's own"), "{error}");
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("becoming nobody");
        let error = refusal(&AfPacketConfig::new("left0"));
        assert!(error.contains("CAP_NET_RAW"), "{error}");
    });
}
