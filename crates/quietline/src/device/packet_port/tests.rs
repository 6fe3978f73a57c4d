//! Tests: the device keeps its contract, a full port pushes back, drops have a reason, and no
//! segment exceeds the MSS unless superframes were asked for.

use std::{
    io::{self, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use pkt::DropReason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::header::ethernet::MacAddr;

use super::{PacketPort, PortConfig};
use crate::{
    Attachment, Stack, StackBuilder, TcpListener, TcpStream, UdpSocket,
    device::{
        conformance::{self, Pair},
        vnet_hdr::VnetHdr,
    },
};

/// Ports of a pair; `None` for one that was dropped.
type Ports = Arc<Mutex<[Option<PacketPort>; 2]>>;

fn with_ports<R>(ports: &Ports, work: impl FnOnce(&mut [Option<PacketPort>; 2]) -> R) -> R {
    work(&mut ports.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Moves all frames of `from` to `to`, one at a time. Returns whether there was one.
fn forward(from: &PacketPort, to: &PacketPort) -> bool {
    let mut buffer = vec![0; 70_000];
    let moved = from.drain(16, |frame| {
        let len = frame.copy_to(&mut buffer);
        assert_eq!((len, frame.slices().map(<[u8]>::len).sum()), (frame.len(), len));
        match to.inject_superframes(&[(frame.vnet_hdr(), &buffer[..len])]) {
            // The frame stays in the port.
            Ok(0) => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            // The other stack may have ended.
            Ok(_) | Err(_) => Ok(()),
        }
    });
    moved.is_ok_and(|moved| moved > 0)
}

/// Moves all frames both ways. `None` once both devices are gone, whose ports are dropped then.
fn exchange(ports: &Ports) -> Option<bool> {
    with_ports(ports, |ports| {
        let is_open =
            |port: &Option<PacketPort>| port.as_ref().is_some_and(|port| !port.is_closed());
        if !ports.iter().any(is_open) {
            *ports = [None, None];
            return None;
        }
        let [Some(left), Some(right)] = ports else { return Some(false) };
        let (there, back) = (forward(left, right), forward(right, left));
        Some(there || back)
    })
}

fn pair_of(left: (Attachment, PacketPort), right: (Attachment, PacketPort)) -> Pair {
    let ports: Ports = Arc::new(Mutex::new([Some(left.1), Some(right.1)]));
    let (own, pumped, unplugged) = (Arc::clone(&ports), Arc::clone(&ports), ports);
    thread::spawn(move || {
        while let Some(moved) = exchange(&own) {
            if !moved {
                thread::sleep(Duration::from_micros(50));
            }
        }
    });
    Pair::new(left.0, right.0)
        .pump(move || while exchange(&pumped) == Some(true) {})
        .unplug(move || drop(with_ports(&unplugged, |ports| ports[0].take())))
}

#[test]
fn a_port_of_ip_packets_passes() {
    let make = |name: &str| {
        PacketPort::ip(&PortConfig { name: name.to_owned(), ..PortConfig::default() })
            .expect("a port")
    };
    let report = conformance::run(|| pair_of(make("left"), make("right")));
    report.assert_passed();
    assert_eq!(report.passed().count(), 15, "{report}");
}

#[test]
fn an_ethernet_port_with_superframes_passes() {
    let make = |number| {
        let name = format!("port{number}");
        let config = PortConfig { name, superframes: Some(65_535), ..PortConfig::default() };
        PacketPort::ethernet(&config, MacAddr([2, 0, 0, 0, 0, number])).expect("a port")
    };
    let report = conformance::run(|| pair_of(make(1), make(2)));
    report.assert_passed();
    assert_eq!(report.passed().count(), 17, "{report}");
}

fn manual(device: Attachment, address: &str) -> StackBuilder {
    Stack::builder().device(device).address(address.parse().expect("a prefix")).manual()
}

/// Two stacks without workers, the ports of which the test drains itself.
fn stacks(configs: [&PortConfig; 2]) -> ([Stack; 2], [PacketPort; 2]) {
    let mut number = 0;
    let made = configs.map(|config| {
        number += 1;
        let (device, port) = PacketPort::ip(config).expect("a port");
        (manual(device, &format!("10.0.0.{number}/24")).build().expect("a stack"), port)
    });
    let [(left, left_port), (right, right_port)] = made;
    ([left, right], [left_port, right_port])
}

/// Sends 100,000 bytes through the ports, and shows each frame of the sender to `look`.
fn send_bytes(
    stacks: &[Stack; 2],
    ports: &[PacketPort; 2],
    mut look: impl FnMut(usize, Option<u16>),
) {
    const BYTES: usize = 100_000;
    let listener = TcpListener::bind(&stacks[1], "10.0.0.2:80").expect("free");
    listener.set_nonblocking(true).expect("open");
    let to = "10.0.0.2:80".parse().expect("an address");
    let mut out = TcpStream::connect_nonblocking(&stacks[0], to).expect("a route");
    out.set_nonblocking(true).expect("open");
    let (mut sent, mut received, mut into) = (0, 0, None);
    let mut buffer = vec![0; 70_000];
    while received < BYTES {
        let [left, right] = ports;
        let frames = left.drain(usize::MAX, |frame| {
            look(frame.len(), frame.gso_size());
            let len = frame.copy_to(&mut buffer);
            right.inject_superframes(&[(frame.vnet_hdr(), &buffer[..len])])
        });
        frames.expect("room");
        forward(right, left);
        for stack in stacks {
            let _ = stack.poll();
        }
        let bytes = vec![7; BYTES - sent];
        sent += out.write(&bytes).unwrap_or(0);
        if into.is_none() {
            into = listener.accept().ok().map(|(stream, _)| stream);
        }
        if let Some(into) = &mut into {
            into.set_nonblocking(true).expect("open");
            received += into.read(&mut buffer).unwrap_or(0);
        }
    }
}

#[test]
fn no_segment_exceeds_the_mss_of_the_peer_without_superframes() {
    let small = PortConfig { mtu: 600, ..PortConfig::default() };
    let (stacks, ports) = stacks([&PortConfig::default(), &small]);
    let mut largest = 0;
    send_bytes(&stacks, &ports, |len, gso_size| {
        assert_eq!(gso_size, None, "a superframe of {len} bytes");
        largest = largest.max(len);
    });
    assert_eq!(largest, 600);
}

#[test]
fn superframes_have_the_mss_of_the_peer() {
    let small = PortConfig { mtu: 600, superframes: Some(65_535), ..PortConfig::default() };
    let large = PortConfig { superframes: Some(65_535), ..PortConfig::default() };
    let (stacks, ports) = stacks([&large, &small]);
    let mut superframes = 0;
    send_bytes(&stacks, &ports, |len, gso_size| match gso_size {
        Some(size) => {
            assert!(size <= 548 && len > 600, "a superframe of {len} bytes, {size} each");
            superframes += 1;
        }
        None => assert!(len <= 600, "a segment of {len} bytes"),
    });
    assert!(superframes > 0);
}

fn is_readable(port: &PacketPort) -> bool {
    let mut fds = [PollFd::new(port, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("a descriptor") > 0
}

fn count(port: &PacketPort) -> usize {
    port.drain(usize::MAX, |_| Ok::<_, io::Error>(())).expect("no error")
}

#[test]
fn the_descriptor_is_readable_while_frames_wait_and_when_the_stack_has_ended() {
    let (device, port) = PacketPort::ip(&PortConfig::default()).expect("a port");
    let stack = manual(device, "10.0.0.1/24").build().expect("a stack");
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("free");
    let send = || socket.send_to(b"hello", "10.0.0.2:7").expect("a route");
    // The first look is a wake without a frame.
    assert!(is_readable(&port));
    count(&port);
    assert!(!is_readable(&port));
    assert_eq!((send(), send()), (5, 5));
    assert!(is_readable(&port));
    assert_eq!(port.drain(1, |_| Ok::<_, ()>(())), Ok(1));
    assert!(is_readable(&port), "a frame is left");
    assert_eq!(count(&port), 1);
    assert!(!is_readable(&port));
    drop((socket, stack));
    assert!(port.is_closed() && is_readable(&port));
    count(&port);
    assert!(is_readable(&port), "the end is no event that passes");
    let error = port.inject(&[[0; 20]]).expect_err("the stack has ended");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn an_error_leaves_its_frame_and_all_later_ones_in_the_port() {
    let (device, port) = PacketPort::ip(&PortConfig::default()).expect("a port");
    let stack = manual(device, "10.0.0.1/24").build().expect("a stack");
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("free");
    for number in 0..5_u8 {
        socket.send_to(&[number], "10.0.0.2:7").expect("a route");
    }
    let mut seen = Vec::new();
    let mut payload = |frame: super::PortFrame<'_>, stop: usize| {
        let mut bytes = [0; 29];
        frame.copy_to(&mut bytes);
        if seen.len() == stop {
            return Err("enough");
        }
        seen.push(bytes[28]);
        Ok(())
    };
    assert_eq!(port.drain(3, |frame| payload(frame, 2)), Err("enough"));
    assert_eq!(port.drain(9, |frame| payload(frame, 9)), Ok(3));
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn a_panic_of_the_application_loses_no_other_frame() {
    let (device, port) = PacketPort::ip(&PortConfig::default()).expect("a port");
    let stack = manual(device, "10.0.0.1/24").build().expect("a stack");
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("free");
    for _ in 0..5 {
        socket.send_to(b"hello", "10.0.0.2:7").expect("a route");
    }
    let drain = || port.drain(9, |_| -> Result<(), ()> { panic!("a fault of the test") });
    assert!(catch_unwind(AssertUnwindSafe(drain)).is_err());
    assert_eq!(count(&port), 4);
    assert_eq!(port.shared.outgoing.lock().bytes, 0);
}

/// An IPv4 packet with a UDP header for port 7 of 10.0.0.1 and `len` bytes of payload. The UDP
/// checksum is zero: not used.
fn datagram(len: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    bytes[2..4].copy_from_slice(&(28 + len).to_be_bytes());
    let sum = pkt::Sum::of(&bytes).finish();
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0, 9, 0, 7]);
    bytes.extend((8 + len).to_be_bytes());
    bytes.resize(usize::from(28 + len), 0);
    bytes
}

#[test]
fn frames_that_find_no_room_stay_with_the_caller() {
    let config = PortConfig { queue_bytes: 2048, ..PortConfig::default() };
    let (device, port) = PacketPort::ip(&config).expect("a port");
    let (left, right) = PacketPort::ip(&PortConfig::default()).expect("a port");
    drop((left, right));
    // Without a stack, no frame leaves the queue.
    let frames = vec![datagram(100); 10];
    assert_eq!(port.inject(&frames).expect("open"), 4, "each counts 512 bytes");
    assert_eq!(port.inject(&frames[4..]).expect("open"), 0);
    count(&port);
    assert!(is_readable(&port), "the first look");
    count(&port);
    assert!(!is_readable(&port));
    let stack = manual(device, "10.0.0.1/24").build().expect("a stack");
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("free");
    // The queue was filled before the device had a doorbell.
    assert_eq!(port.inject(&frames[4..]).expect("open"), 0);
    assert!(is_readable(&port), "there is room again");
    assert_eq!(port.inject(&frames[4..]).expect("open"), 4);
    assert_eq!(port.inject(&frames[8..]).expect("open"), 2);
    let mut buffer = [0; 200];
    socket.set_nonblocking(true).expect("open");
    let received = (0..).take_while(|_| socket.recv_from(&mut buffer).is_ok()).count();
    assert_eq!(received, 10);
}

#[test]
fn a_stack_keeps_the_frames_that_a_full_port_does_not_take() {
    let config = PortConfig { queue_bytes: 2048, ..PortConfig::default() };
    let (device, port) = PacketPort::ip(&config).expect("a port");
    let stack = manual(device, "10.0.0.1/24").build().expect("a stack");
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("free");
    for _ in 0..10 {
        socket.send_to(b"hello", "10.0.0.2:7").expect("room");
    }
    let waiting = || port.shared.outgoing.lock().list.len();
    assert!((1..=4).contains(&waiting()), "each counts 512 bytes");
    // A drain makes room, and the stack sends again at once.
    assert_eq!(port.drain(3, |_| Ok::<_, ()>(())), Ok(3));
    assert!((1..=4).contains(&waiting()));
    assert_eq!(count(&port), 7);
}

#[test]
fn a_frame_that_cannot_be_received_is_counted_by_its_reason() {
    let config = PortConfig { superframes: Some(65_535), ..PortConfig::default() };
    let (device, port) = PacketPort::ip(&config).expect("a port");
    let stack = manual(device, "10.0.0.1/24").build().expect("a stack");
    let dropped = |reason: DropReason| stack.counters().get(reason.name()).unwrap_or_default();
    assert_eq!(port.inject(&[&[][..], &[0; 1501]]).expect("open"), 2);
    let partial = VnetHdr { flags: 1, csum_start: 1000, csum_offset: 6, ..VnetHdr::default() };
    assert_eq!(port.inject_superframes(&[(partial, datagram(8))]).expect("open"), 1);
    stack.set_device_up("port0", false).expect("the device");
    assert_eq!(port.inject(&[datagram(8)]).expect("open"), 1);
    stack.set_device_up("port0", true).expect("the device");
    port.inject(&[datagram(8)]).expect("open");
    for reason in [
        DropReason::PacketTooShort,
        DropReason::DeviceRxTruncated,
        DropReason::VnetHeader,
        DropReason::DeviceDown,
    ] {
        assert_eq!(dropped(reason), 1, "{}", reason.name());
    }
    let (_device, plain) = PacketPort::ip(&PortConfig::default()).expect("a port");
    assert_eq!(plain.inject_superframes(&[(partial, datagram(8))]).expect("open"), 1);
    assert_eq!(plain.shared.incoming.lock().list.len(), 0, "a port without superframes");
}

#[test]
fn values_out_of_range_are_refused() {
    let refused = |config: PortConfig| {
        let error = PacketPort::ip(&config).expect_err("out of range");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        error.to_string()
    };
    let with = PortConfig::default;
    assert_eq!(refused(PortConfig { mtu: 87, ..with() }), "mtu 87: expected 88 to 65535");
    let small = refused(PortConfig { superframes: Some(1499), ..with() });
    assert_eq!(small, "superframes 1499: expected the MTU to 65535");
    let large = refused(PortConfig { superframes: Some(65_536), ..with() });
    assert_eq!(large, "superframes 65536: expected the MTU to 65535");
}
