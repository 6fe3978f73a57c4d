use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pkt::{Batch, Domain, DomainConfig, Gso, GsoKind, PacketList, Pool};
use stack::device::{Capabilities, Device, LinkType, QueueId};
use stack::{Cx, Memory};

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A file in memory that the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn blocks(&self) -> Vec<Block<'static>> {
        let bytes = self.0.lock().expect("no panic").clone();
        let mut reader = PcapNgReader::new(Cursor::new(bytes)).expect("a section header");
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.expect("a well-formed block").into_owned());
        }
        blocks
    }

    fn packets(&self) -> Vec<EnhancedPacketBlock<'static>> {
        self.blocks().into_iter().filter_map(Block::into_enhanced_packet).collect()
    }
}

fn config() -> CaptureConfig {
    CaptureConfig { epoch_offset: Some(Duration::from_secs(1_000_000_000)), ..Default::default() }
}

fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
    let mut packet = pool.alloc().expect("memory");
    assert_eq!(packet.append(pool, bytes), bytes.len());
    packet
}

fn pool() -> Pool {
    Domain::new(DomainConfig::default()).pool()
}

#[test]
fn packets_are_read_back_with_interface_time_and_direction() {
    let file = Shared::default();
    let capture = Capture::to(file.clone(), &config()).expect("a capture");
    let tap = capture.interface("tap0", CaptureLink::Ethernet { mac: MAC });
    let tun = capture.interface("tun0", CaptureLink::Ip);
    let mut pool = pool();
    let (first, second) = (packet(&mut pool, &[1; 60]), packet(&mut pool, &[2; 33]));
    tap.record(Direction::Inbound, Instant::from_nanos(1_234_567_891), &first);
    tun.record(Direction::Outbound, Instant::from_nanos(1_234_567_892), &second);
    let report = capture.finish().expect("written");
    assert_eq!(report, CaptureReport { written: 2, lost: 0, bytes: 93 });

    let interfaces: Vec<_> =
        file.blocks().into_iter().filter_map(Block::into_interface_description).collect();
    assert_eq!(interfaces[0].linktype, DataLink::ETHERNET);
    assert_eq!(interfaces[1].linktype, DataLink::RAW);
    let name = InterfaceDescriptionOption::IfName("tap0".into());
    let mac = InterfaceDescriptionOption::IfMacAddr(MAC.to_vec().into());
    for option in [name, mac, InterfaceDescriptionOption::IfTsResol(9)] {
        assert!(interfaces[0].options.contains(&option), "{option:?}");
    }

    let packets = file.packets();
    assert_eq!(packets.len(), 2);
    assert_eq!((packets[0].interface_id, packets[1].interface_id), (0, 1));
    assert_eq!(packets[0].timestamp, Duration::new(1_000_000_001, 234_567_891));
    assert_eq!(packets[0].data, [1; 60].as_slice());
    assert_eq!(packets[0].options, [EnhancedPacketOption::Flags(1)]);
    assert_eq!(packets[1].data, [2; 33].as_slice());
    assert_eq!(packets[1].options, [EnhancedPacketOption::Flags(2)]);
    pool.free(first);
    pool.free(second);
}

#[test]
fn the_snaplen_cuts_the_copy_and_keeps_the_length() {
    let file = Shared::default();
    let config = CaptureConfig { snaplen: 40, ..config() };
    let capture = Capture::to(file.clone(), &config).expect("a capture");
    let tap = capture.interface("tap0", CaptureLink::Ip);
    let mut pool = pool();
    for len in [39, 40, 41, 5000] {
        let bytes: Vec<u8> = (0..len).map(|i: u32| i.to_le_bytes()[0]).collect();
        let packet = packet(&mut pool, &bytes);
        tap.record(Direction::Inbound, Instant::ZERO, &packet);
        pool.free(packet);
    }
    capture.finish().expect("written");
    let packets = file.packets();
    let lengths: Vec<_> = packets.iter().map(|p| (p.data.len(), p.original_len)).collect();
    assert_eq!(lengths, [(39, 39), (40, 40), (40, 41), (40, 5000)]);
    assert_eq!(packets[3].data, (0..40).collect::<Vec<u8>>());
}

/// A BIG TCP superframe is written unchanged, with total length 0, as tcpdump does; readers then
/// use the frame's length. They refuse frames of more than 262,144 bytes, so longer frames are cut
/// off.
#[test]
fn superframes_beyond_64_kb_are_written_up_to_262144_bytes() {
    let file = Shared::default();
    let capture = Capture::to(file.clone(), &config()).expect("a capture");
    let wire = capture.interface("wire0", CaptureLink::Ip);
    let mut pool = pool();
    for len in [100_000, 524_000] {
        let mut bytes = vec![0; len];
        bytes[0] = 0x45;
        let mut packet = packet(&mut pool, &bytes);
        packet.meta_mut().gso.kind = GsoKind::TcpV4;
        packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
        wire.record(Direction::Outbound, Instant::ZERO, &packet);
        pool.free(packet);
    }
    capture.finish().expect("written");
    let packets = file.packets();
    let lengths: Vec<_> = packets.iter().map(|p| (p.data.len(), p.original_len)).collect();
    assert_eq!(lengths, [(100_000, 100_000), (262_144, 524_000)]);
    assert!(packets.iter().all(|packet| packet.data[..4] == [0x45, 0, 0, 0]));
}

/// Returns the ones-complement sum of all bytes, which is all ones if the checksum in them is
/// correct.
fn sum(bytes: &[u8]) -> u32 {
    let mut total = 0;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

#[test]
fn a_partial_checksum_is_completed_in_the_copy_only() {
    let file = Shared::default();
    let capture = Capture::to(file.clone(), &config()).expect("a capture");
    let tap = capture.interface("tap0", CaptureLink::Ethernet { mac: MAC });
    let mut pool = pool();
    // A superframe of 30,000 bytes whose checksum field, 16 bytes into its transport header, holds
    // the sum of a pseudo header that adds up to 0x1234.
    let mut bytes: Vec<u8> = (0..30_001u32).map(|i| i.to_le_bytes()[0]).collect();
    bytes[34 + 16..34 + 18].copy_from_slice(&0x1234u16.to_be_bytes());
    let rx = RxChecksum::Partial { start: 20, offset: 16 };
    let tx = TxChecksum::Partial { start: 20, offset: 16 };
    for (direction, rx_checksum, tx_checksum) in [
        (Direction::Outbound, RxChecksum::None, tx),
        (Direction::Inbound, rx, TxChecksum::Done),
        // Through an in-memory wire, which guarantees the data and keeps the sender's metadata.
        (Direction::Inbound, RxChecksum::Unnecessary, tx),
    ] {
        let mut packet = packet(&mut pool, &bytes);
        packet.meta_mut().gso =
            Gso { kind: GsoKind::TcpV4, ecn: false, fixed_id: false, size: 1448, segs: 21 };
        packet.meta_mut().rx_checksum = rx_checksum;
        packet.meta_mut().tx_checksum = tx_checksum;
        tap.record(direction, Instant::ZERO, &packet);
        let after: Vec<u8> = packet.slices().flatten().copied().collect();
        assert!(after == bytes, "the packet itself changed");
        pool.free(packet);
    }
    capture.finish().expect("written");
    assert_eq!(file.packets().len(), 3);
    for packet in file.packets() {
        assert_eq!(packet.data.len(), bytes.len());
        assert_eq!(packet.data[..50], bytes[..50]);
        let pseudo_header = [0x12, 0x34];
        assert_eq!(sum(&[&pseudo_header, &packet.data[34..]].concat()), 0xffff);
    }
}

#[test]
fn a_checksum_that_is_cut_off_or_out_of_range_is_not_changed() {
    let file = Shared::default();
    let config = CaptureConfig { snaplen: 51, ..config() };
    let capture = Capture::to(file.clone(), &config).expect("a capture");
    let tap = capture.interface("tap0", CaptureLink::Ethernet { mac: MAC });
    let mut pool = pool();
    for (start, len) in [(20, 100), (90, 100), (u16::MAX, 60)] {
        let mut packet = packet(&mut pool, &vec![7; len]);
        packet.meta_mut().tx_checksum = TxChecksum::Partial { start, offset: 16 };
        tap.record(Direction::Outbound, Instant::ZERO, &packet);
        pool.free(packet);
    }
    capture.finish().expect("written");
    for packet in file.packets() {
        assert_eq!(packet.data, [7; 51].as_slice());
    }
}

#[test]
fn packets_that_the_queue_cannot_hold_are_counted_in_report_and_file() {
    let file = Shared::default();
    let config = CaptureConfig { queue_bytes_max: 3000, ..config() };
    let capture = Capture::to(file.clone(), &config).expect("a capture");
    let tap = capture.interface("tap0", CaptureLink::Ip);
    let mut pool = pool();
    let big = packet(&mut pool, &[9; 4000]);
    let small = packet(&mut pool, &[1; 100]);
    tap.record(Direction::Inbound, Instant::ZERO, &small);
    tap.record(Direction::Inbound, Instant::ZERO, &big);
    tap.record(Direction::Inbound, Instant::ZERO, &big);
    tap.record(Direction::Inbound, Instant::ZERO, &small);
    let report = capture.finish().expect("written");
    assert_eq!(report, CaptureReport { written: 2, lost: 2, bytes: 200 });
    let packets = file.packets();
    assert!(packets[1].options.contains(&EnhancedPacketOption::DropCount(2)));
    assert!(file.blocks().iter().any(|block| matches!(block, Block::InterfaceStatistics(_))));
    // A closed capture ignores further packets.
    tap.record(Direction::Inbound, Instant::ZERO, &small);
    assert_eq!(capture.finish().expect("no error"), CaptureReport::default());
    pool.free(big);
    pool.free(small);
}

#[test]
fn a_failed_file_is_reported_once_and_packets_are_not_delayed() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let capture = Capture::to(Full, &config()).expect("a capture");
    let (reported, reports) = std::sync::mpsc::channel();
    capture.on_failure(move |error| reported.send(error.raw_os_error()).expect("a receiver"));
    let tap = capture.interface("tap0", CaptureLink::Ip);
    let mut pool = pool();
    let packet = packet(&mut pool, &[1; 100]);
    tap.record(Direction::Inbound, Instant::ZERO, &packet);
    pool.free(packet);
    // Reported while the capture runs, and once.
    assert_eq!(reports.recv(), Ok(Some(libc::ENOSPC)));
    assert!(reports.recv().is_err(), "the error is reported twice");
    let error = capture.finish().expect_err("the disk is full");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn an_error_names_the_file_that_cannot_be_created() {
    let path = Path::new("/nonexistent/dir/x.pcapng");
    let error = Capture::create(path, &config()).expect_err("no such directory");
    assert!(error.to_string().starts_with("cannot create capture file \"/nonexistent"), "{error}");
    assert_eq!(error.errno(), libc::ENOENT);
}

/// A device that accepts a given number of packets, and frees them.
#[derive(Debug)]
struct LimitedDevice {
    caps: Capabilities,
    room: AtomicUsize,
}

impl Device for LimitedDevice {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _: QueueId, _: &mut Cx, _: usize, _: &mut Batch) -> usize {
        0
    }

    fn transmit(&self, _: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while self.room.load(Ordering::Relaxed) > 0
            && let Some(packet) = list.pop_front()
        {
            self.room.fetch_sub(1, Ordering::Relaxed);
            cx.pool.free(packet);
        }
    }
}

#[test]
fn packets_that_the_device_refuses_are_recorded_once() {
    let file = Shared::default();
    let capture = Capture::to(file.clone(), &config()).expect("a capture");
    let caps = Capabilities::plain("ql0", 1500, LinkType::Ip);
    let device = Arc::new(LimitedDevice { caps, room: AtomicUsize::new(0) });
    let recorded = CaptureDevice::new(Arc::clone(&device) as _, &capture);
    let memory = Memory::new(1 << 20);
    let mut cx = Cx::replay(&memory, 1);
    let mut transmit = |room, packets: &[(u8, u16)]| {
        device.room.store(room, Ordering::Relaxed);
        let made = packets.iter().map(|&(number, segs)| {
            let mut packet = packet(&mut cx.pool, &[number; 60]);
            packet.meta_mut().gso.segs = segs;
            packet
        });
        let mut list: PacketList = made.collect();
        recorded.transmit(QueueId(0), &mut cx, &mut list);
        let left = list.len();
        list.free_all(&mut cx.pool);
        left
    };
    assert_eq!(transmit(0, &[(1, 3), (2, 0)]), 2);
    // The refused packets come again, the first one unchanged.
    assert_eq!(transmit(0, &[(1, 3), (2, 0), (3, 0)]), 3);
    // The first packet comes segmented, because it was too large.
    assert_eq!(transmit(4, &[(1, 0), (1, 0), (1, 0), (2, 0), (3, 0), (4, 2)]), 2);
    assert_eq!(transmit(9, &[(3, 0), (4, 2), (5, 0)]), 0);
    assert_eq!(transmit(9, &[(6, 0)]), 0);
    capture.finish().expect("written");
    let numbers: Vec<_> = file.packets().iter().map(|packet| packet.data[0]).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
}
