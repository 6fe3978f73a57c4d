//! The test's end of a device, and its namespace.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use pkt::{Domain, DomainConfig, Gso, Instant, Packet, Pool, TxChecksum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::device::LinkType;
use tempfile::NamedTempFile;

use super::super::receive::Frame;
use super::super::{Tun, TunConfig, TunKind, ioctl};
use super::frames::{arp_reply, ethernet};
use crate::device::capture::{Capture, CaptureConfig, CaptureInterface, CaptureLink, Direction};
use crate::device::namespace::{self, skip};

pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Time limit for a frame. It only ends a test that has failed already.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `test` in a new network namespace, or prints why it cannot.
pub(super) fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    if Path::new(ioctl::DEVICE_NODE).exists() {
        namespace::in_namespace(test);
    } else {
        skip(&format!("{name}: skipped, it needs {}", ioctl::DEVICE_NODE));
    }
}

/// The test's end of a device, which builds and reads frames without a stack.
pub(super) struct End {
    pub(super) tun: Arc<Tun>,
    pub(super) domain: Domain,
    pub(super) pool: Pool,
    /// Recorder of all packets of this end, for `tshark`.
    pub(super) recorder: CaptureInterface,
    pub(super) capture: Arc<Capture>,
    pub(super) file: NamedTempFile,
}

impl End {
    pub(super) fn new(config: TunConfig) -> Self {
        let host_address = Some("10.77.0.1/24".parse().expect("network"));
        let tun = Tun::create(&TunConfig { host_address, ..config }).expect("a device");
        let domain = Domain::new(DomainConfig::default());
        let pool = domain.pool();
        let file = NamedTempFile::new().expect("a file");
        let capture = Capture::create(file.path(), &CaptureConfig::default()).expect("a capture");
        let link = match tun.caps.link {
            LinkType::Ethernet { mac } => CaptureLink::Ethernet { mac: mac.0 },
            LinkType::Ip => CaptureLink::Ip,
        };
        let recorder = capture.interface(tun.name(), link);
        Self { tun, domain, pool, recorder, capture, file }
    }

    pub(super) fn mac(&self) -> [u8; 6] {
        match self.tun.caps.link {
            LinkType::Ethernet { mac } => mac.0,
            LinkType::Ip => [0; 6],
        }
    }

    /// Returns the frame around an IPv4 packet to the kernel.
    pub(super) fn frame(&self, ip: Vec<u8>) -> Vec<u8> {
        match self.tun.kind {
            TunKind::Tap => {
                let host =
                    self.tun.host_link().and_then(|link| link.mac).expect("a tap has an address");
                [ethernet(host, self.mac(), 0x0800), ip].concat()
            }
            TunKind::Tun => ip,
        }
    }

    /// Sends a frame; `partial` is the offset of the checksum field in the transport header, if the
    /// checksum is partial.
    pub(super) fn send(&mut self, queue: u16, bytes: &[u8], partial: Option<u16>, gso: Gso) {
        let mut packet = self.pool.alloc().expect("memory");
        assert_eq!(packet.append(&mut self.pool, bytes), bytes.len());
        if let Some(offset) = partial {
            packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset };
        }
        packet.meta_mut().gso = gso;
        self.recorder.record(Direction::Outbound, Instant::from_nanos(7), &packet);
        let sent = self.tun.write_frame(self.tun.queue_fd(queue), &mut packet);
        assert_eq!(sent, Ok(()));
        self.pool.free(packet);
    }

    /// Waits for the next IPv4 frame of `protocol`; answers ARP meanwhile and ignores the kernel's
    /// IPv6. Returns the frame with its queue, without its link header.
    pub(super) fn expect_ipv4(&mut self, protocol: u8) -> (u16, Packet) {
        let deadline = Clock::now() + TIMEOUT;
        while Clock::now() < deadline {
            for queue in 0..self.tun.caps.queues {
                let fd = self.tun.queue_fd(queue);
                match self.tun.read_frame(fd, &mut self.pool, Instant::from_nanos(7)) {
                    Frame::Good(packet) => {
                        if let Some(packet) = self.sort(packet, protocol) {
                            return (queue, packet);
                        }
                    }
                    Frame::Bad(reason, packet) => panic!("{reason}: {packet:?}"),
                    Frame::NoMemory | Frame::Gone => panic!("the device has stopped"),
                    Frame::Lost => panic!("the kernel failed to deliver a frame"),
                    Frame::Empty => self.wait(),
                }
            }
        }
        panic!("no IPv4 packet of protocol {protocol} arrived");
    }

    fn sort(&mut self, mut packet: Packet, protocol: u8) -> Option<Packet> {
        assert_eq!(packet.meta().timestamp, Instant::from_nanos(7));
        self.recorder.record(Direction::Inbound, Instant::from_nanos(7), &packet);
        if self.tun.kind == TunKind::Tap {
            let bytes = contents(&packet);
            match u16::from_be_bytes([bytes[12], bytes[13]]) {
                0x0800 => {
                    assert_eq!(bytes[..6], self.mac());
                    packet.advance(14);
                }
                0x0806 => {
                    if bytes[38..42] == US.octets() {
                        let reply = arp_reply(&bytes, self.mac());
                        self.send(0, &reply, None, Gso::default());
                    }
                    self.pool.free(packet);
                    return None;
                }
                _ => {
                    self.pool.free(packet);
                    return None;
                }
            }
        }
        let bytes = contents(&packet);
        if bytes[0] == 0x45 && bytes[9] == protocol {
            return Some(packet);
        }
        self.pool.free(packet);
        None
    }

    fn wait(&self) {
        let mut fds: Vec<_> = (0..self.tun.caps.queues)
            .map(|queue| PollFd::from_borrowed_fd(self.tun.poll_fd(queue), PollFlags::IN))
            .collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        poll(&mut fds, Some(&timeout)).expect("poll");
    }

    /// Ends the test: checks that every packet was returned, and that tshark finds no fault in the
    /// capture.
    pub(super) fn finish(self) {
        drop(self.pool);
        assert_eq!(self.domain.balance(), 0);
        self.capture.finish().expect("a capture");
        assert_eq!(faults(self.file.path()).unwrap_or_default(), "");
    }
}

/// Returns the malformed packets and wrong checksums that tshark finds in a capture; `None` without
/// tshark.
pub(super) fn faults(capture: &Path) -> Option<String> {
    let faults = "_ws.malformed || ip.checksum.status == Bad || tcp.checksum.status == Bad \
                  || udp.checksum.status == Bad || icmpv6.checksum.status == Bad";
    let output = Command::new("tshark")
        .args(["-n", "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"])
        .args(["-o", "udp.check_checksum:TRUE", "-Y", faults, "-r"])
        .arg(capture)
        .output();
    let Ok(output) = output else {
        skip("no tshark: the capture is not verified");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark cannot read the capture: {errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(super) fn contents(packet: &Packet) -> Vec<u8> {
    packet.to_vec()
}
