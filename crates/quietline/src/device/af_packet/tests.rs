//! Two devices on the two ends of a veth pair. Each test has its own network namespace, which is
//! deleted with its thread.

use std::time::{Duration, Instant as Clock};

use pkt::{Batch, Packet, PacketList};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::Memory;
use stack::cx::Cx;
use stack::device::{Completed, Device, QueueId};

use super::testing::make_pair;
use super::*;
use crate::device::namespace::{in_namespace, run};

mod arrivals;
mod completions;
mod frames;
mod interface;

const TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_LEN: usize = 14;

/// One end of the pair.
struct End {
    device: Arc<AfPacket>,
    cx: Cx,
}

impl End {
    fn new(memory: &Memory, config: &AfPacketConfig) -> Self {
        let device = AfPacket::open(config).expect("a device");
        Self { device, cx: Cx::replay(memory, 1).with_clock(crate::clock::now) }
    }

    /// Returns a frame of an experimental type (RFC 5342), which the kernel's stack ignores.
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
        assert_ne!(deadline, Some(pkt::Instant::ZERO), "dropped packets are reported as completed");
        completed
    }

    /// Waits until the descriptor of `queue` is readable. Returns false after `time`.
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

    /// Returns the frames that have arrived on `queue`.
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
        let deadline = Clock::now() + TIMEOUT;
        let mut packets = self.received(0);
        while packets.len() < count {
            assert!(Clock::now() < deadline, "{} of {count} have arrived", packets.len());
            self.wait(0, Duration::from_millis(50));
            packets.extend(self.received(0));
        }
        assert_eq!(packets.len(), count);
        packets
    }

    /// Waits until `packets` have completed, woken only by the descriptor.
    fn completed(&mut self, packets: usize) -> Completed {
        let deadline = Clock::now() + TIMEOUT;
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

/// As [`pair`], with a third device on the right end that receives each frame last: when the
/// witness has a frame, the right end has received or missed it. A completion does not show that,
/// because a completed frame may not have arrived yet.
fn pair_and_witness(
    left: &AfPacketConfig,
    right: &AfPacketConfig,
    test: impl FnOnce(&mut End, &mut End, &mut Witness),
) {
    make_pair();
    let memory = Memory::new(256 << 20);
    // The kernel delivers a frame to the newest socket first.
    let mut witness = Witness(End::new(&memory, &AfPacketConfig::new("right0")));
    test(&mut End::new(&memory, left), &mut End::new(&memory, right), &mut witness);
}

/// A device that receives each frame after the tested device; see [`pair_and_witness`].
struct Witness(End);

impl Witness {
    /// Waits until the kernel has delivered `count` more frames.
    fn has_seen(&mut self, count: usize) {
        let packets = self.0.receive(count);
        free(&mut self.0, packets);
    }
}

fn number_of(packet: &Packet) -> usize {
    let mut number = [0; 8];
    assert_eq!(packet.copy_to(HEADER_LEN, &mut number), 8);
    usize::from_be_bytes(number)
}

fn free(end: &mut End, packets: Vec<Packet>) {
    packets.into_iter().for_each(|packet| end.cx.pool.free(packet));
}

/// Runs a test for each transmit format, one after the other.
fn for_each_tx_format(test: impl Fn(TxFormat) + Send + Copy + 'static) {
    for tx_format in [TxFormat::Ring, TxFormat::Calls] {
        in_namespace(move || test(tx_format));
    }
}

/// Returns an Ethernet frame with TCP over IPv4, `payload` bytes and a partial checksum.
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

/// Returns the receive format that is tested together with a transmit format.
const fn rx_format_for(tx_format: TxFormat) -> RxFormat {
    match tx_format {
        TxFormat::Ring => RxFormat::Frames,
        TxFormat::Calls => RxFormat::Calls,
    }
}
