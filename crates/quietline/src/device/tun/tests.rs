//! Tests with the Linux kernel. Each has its own network namespace, which is deleted with its
//! thread.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

use pkt::{DropReason, Gso, GsoKind, Instant, RxChecksum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::device::{Device, QueueId};

use super::*;
use crate::device::capture::Direction;
use crate::device::namespace::set_ipv6;
use end::{End, HOST, TIMEOUT, US, contents, faults, in_namespace};
use frames::{
    IPPROTO_TCP, IPPROTO_UDP, Segment, TCP_ACK, TCP_PSH, TCP_SYN, checksum_is_good, ethernet, ipv4,
    udp,
};

mod end;
mod follow;
mod frames;
mod from_fds;
mod refused;

/// Sends a datagram in each direction between a kernel socket and the device.
fn udp_both_ways(config: TunConfig) {
    let vnet_hdr = config.vnet_hdr;
    let mut end = End::new(config);
    let socket = UdpSocket::bind((HOST, 45_000)).expect("the kernel's socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    socket.send_to(b"hello from the kernel", (US, 46_000)).expect("sent");

    let (_, packet) = end.expect_ipv4(IPPROTO_UDP);
    let bytes = contents(&packet);
    assert_eq!(&bytes[28..], b"hello from the kernel");
    if vnet_hdr {
        let partial = RxChecksum::Partial { start: 20, offset: 6 };
        assert_eq!(packet.meta().rx_checksum, partial);
    } else {
        assert_eq!(packet.meta().rx_checksum, RxChecksum::None);
        assert!(checksum_is_good(&bytes));
    }
    end.pool.free(packet);

    let datagram = udp((US, 46_000), (HOST, 45_000), b"hello from user space");
    let frame = end.frame(ipv4(US, HOST, IPPROTO_UDP, &datagram));
    end.send(0, &frame, Some(6), Gso::default());
    let mut buffer = [0; 100];
    let (len, from) = socket.recv_from(&mut buffer).expect("the kernel took our datagram");
    assert_eq!(&buffer[..len], b"hello from user space");
    assert_eq!(from, (US, 46_000).into());
    end.finish();
}

#[test]
fn udp_both_ways_over_tap() {
    in_namespace("tap", || udp_both_ways(TunConfig::tap("ql0")));
}

#[test]
fn udp_both_ways_over_tap_without_offloads() {
    in_namespace("tap", || {
        udp_both_ways(TunConfig { vnet_hdr: false, ..TunConfig::tap("ql0") });
    });
}

#[test]
fn udp_both_ways_over_tun() {
    in_namespace("tun", || udp_both_ways(TunConfig::tun("ql0")));
}

#[test]
fn udp_both_ways_over_tun_without_offloads() {
    in_namespace("tun", || {
        udp_both_ways(TunConfig { vnet_hdr: false, ..TunConfig::tun("ql0") });
    });
}

/// Connects to the kernel's TCP, sends it a superframe and receives one.
fn tcp_superframes(config: TunConfig) {
    let mut end = End::new(config);
    let (us, host) = ((US, 46_000), (HOST, 47_000));
    let listener = TcpListener::bind(host).expect("the kernel's listener");
    let segment = |seq, ack, flags, mss, data: &[u8]| {
        let segment = Segment { src: us, dst: host, seq, ack, flags, mss, data };
        ipv4(US, HOST, IPPROTO_TCP, &segment.bytes())
    };

    let frame = end.frame(segment(1000, 0, TCP_SYN, Some(1000), &[]));
    end.send(0, &frame, Some(16), Gso::default());
    let (_, syn_ack) = end.expect_ipv4(IPPROTO_TCP);
    let bytes = contents(&syn_ack);
    end.pool.free(syn_ack);
    let iss = u32::from_be_bytes(bytes[24..28].try_into().expect("sequence number"));
    let next = iss.wrapping_add(1);
    let frame = end.frame(segment(1001, next, TCP_ACK, None, &[]));
    end.send(0, &frame, Some(16), Gso::default());
    let (mut stream, _) = listener.accept().expect("a connection");

    let sent: Vec<u8> = (0..20_000u32).map(|i| i.to_le_bytes()[i as usize % 2]).collect();
    let frame = end.frame(segment(1001, next, TCP_ACK | TCP_PSH, None, &sent));
    let gso = Gso { kind: GsoKind::TcpV4, ecn: false, fixed_id: false, size: 1000, segs: 20 };
    end.send(0, &frame, Some(16), gso);
    let mut received = vec![0; sent.len()];
    stream.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    stream.read_exact(&mut received).expect("the kernel took our superframe");
    assert!(received == sent, "the received superframe differs");

    stream.write_all(&sent).expect("the kernel took the application's data");
    let superframe = loop {
        let (_, packet) = end.expect_ipv4(IPPROTO_TCP);
        if packet.meta().gso.kind != GsoKind::None {
            break packet;
        }
        end.pool.free(packet);
    };
    let gso = superframe.meta().gso;
    let bytes = contents(&superframe);
    let header_len = 20 + usize::from(bytes[32] >> 4) * 4;
    let data = &bytes[header_len..];
    assert_eq!((gso.kind, gso.size, gso.ecn), (GsoKind::TcpV4, 1000, false));
    assert!(gso.segs > 1);
    assert_eq!(usize::from(gso.segs), data.len().div_ceil(1000));
    let partial = RxChecksum::Partial { start: 20, offset: 16 };
    assert_eq!(superframe.meta().rx_checksum, partial);
    let seq = u32::from_be_bytes(bytes[24..28].try_into().expect("sequence number"));
    let at = usize::try_from(seq.wrapping_sub(next)).expect("an offset");
    assert!(data == &sent[at..at + data.len()], "the kernel's superframe differs");
    end.pool.free(superframe);
    end.finish();
}

#[test]
fn tcp_superframes_over_tap() {
    in_namespace("tap", || tcp_superframes(TunConfig::tap("ql0")));
}

#[test]
fn tcp_superframes_over_tun() {
    in_namespace("tun", || tcp_superframes(TunConfig::tun("ql0")));
}

#[test]
fn a_flow_is_delivered_on_the_queue_it_was_sent_on() {
    in_namespace("tap", || {
        let mut end = End::new(TunConfig { queues: 2, ..TunConfig::tap("ql0") });
        let socket = UdpSocket::bind((HOST, 45_000)).expect("the kernel's socket");
        socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
        for (queue, port) in [(0, 46_000), (1, 46_001), (0, 46_002), (1, 46_003)] {
            let datagram = udp((US, port), (HOST, 45_000), b"ping");
            let frame = end.frame(ipv4(US, HOST, IPPROTO_UDP, &datagram));
            end.send(queue, &frame, Some(6), Gso::default());
            let mut buffer = [0; 100];
            let (_, from) = socket.recv_from(&mut buffer).expect("received");
            socket.send_to(b"pong", from).expect("sent");
            let (answered_on, packet) = end.expect_ipv4(IPPROTO_UDP);
            end.pool.free(packet);
            assert_eq!(answered_on, queue, "port {port}");
        }
        end.finish();
    });
}

#[test]
fn the_interface_is_as_configured_and_deleted_with_the_device() {
    in_namespace("tap", || {
        let config = TunConfig {
            mtu: 9000,
            tx_queue_len: Some(2000),
            host_address: Some("10.77.0.1/24".parse().expect("network")),
            host_routes: vec!["192.0.2.0/24".parse().expect("network")],
            ..TunConfig::tap("ql%d")
        };
        let tun = Tun::create(&config).expect("a device");
        assert_eq!(tun.name(), "ql0");
        let link = tun.host_link().expect("a created device").clone();
        assert_eq!((link.mtu, link.tx_queue_len, link.up), (9000, 2000, true));
        assert!(link.mac.is_some());
        let LinkType::Ethernet { mac } = tun.caps.link else { panic!("a tap is Ethernet") };
        assert_ne!(link.mac, Some(mac.0));
        assert_eq!(mac.0[0] & 3, 2, "unicast and locally administered");
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").expect("routes");
        assert!(routes.contains("000200C0"), "{routes}");

        let second = Tun::create(&TunConfig::tap("ql0")).expect_err("the name is taken");
        assert_eq!(second.errno(), libc::EBUSY);
        drop(tun);
        let mut netlink = Netlink::open().expect("netlink");
        let gone = netlink.link("ql0").expect_err("nothing is left behind");
        assert_eq!(gone.errno(), libc::ENODEV);
    });
}

#[test]
fn a_tun_can_be_point_to_point_in_both_families() {
    in_namespace("tun", || {
        set_ipv6(true);
        for (host, peer) in [("10.77.0.1/32", "10.77.0.2"), ("fd77::1/128", "fd77::2")] {
            let config = TunConfig {
                host_address: Some(host.parse().expect("network")),
                host_peer: Some(peer.parse().expect("address")),
                ..TunConfig::tun("ql0")
            };
            let tun = Tun::create(&config).expect("a device");
            assert!(tun.host_link().expect("a created device").mac.is_none());
        }
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").expect("routes");
        assert!(!routes.contains("ql0"), "{routes}");
    });
}

#[test]
fn a_frame_to_an_interface_that_is_down_is_refused() {
    in_namespace("tap", || {
        let config = TunConfig::tap("ql0");
        let (_, queues, _) = open_queues(&config).expect("queues");
        let mut end = End::new(TunConfig::tap("ql1"));
        let mut packet = end.pool.alloc().expect("memory");
        packet.append(&mut end.pool, &ethernet([2; 6], [4; 6], 0x0800));
        packet.append(&mut end.pool, &[0; 46]);
        let refused = end.tun.write_frame(queues[0].as_fd(), &mut packet);
        assert_eq!(refused, Err(DropReason::DeviceDown));
        end.pool.free(packet);
        end.finish();
    });
}

#[test]
fn the_descriptor_of_a_deleted_interface_stays_silent() {
    in_namespace("tap", || {
        let end = End::new(TunConfig::tap("ql0"));
        let mut netlink = Netlink::open().expect("netlink");
        netlink.delete_link(end.tun.host_link().expect("a created device").index).expect("deleted");
        let memory = stack::Memory::new(64 << 20);
        let mut cx = stack::Cx::replay(&memory, 1);
        let mut batch = pkt::Batch::new();
        let ready = |end: &End| {
            let mut fds = [PollFd::from_borrowed_fd(end.tun.poll_fd(0), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).expect("poll")
        };
        assert_eq!(ready(&end), 1, "the kernel reports an error");
        let mut list: pkt::PacketList = cx.pool.alloc_from(&[0; 64]).into_iter().collect();
        end.tun.transmit(QueueId(0), &mut cx, &mut list);
        assert!(list.is_empty());
        assert_eq!(end.tun.receive(QueueId(0), &mut cx, 64, &mut batch), 0);
        assert!(end.tun.is_gone());
        assert_eq!(ready(&end), 0);
        end.finish();
    });
}

#[test]
fn a_burst_is_received_in_batches_through_the_stacks_trait() {
    in_namespace("tap", || {
        let end = End::new(TunConfig::tun("ql0"));
        let socket = UdpSocket::bind((HOST, 45_000)).expect("the kernel's socket");
        for i in 0..100u8 {
            socket.send_to(&[i; 200], (US, 46_000)).expect("sent");
        }
        let memory = stack::Memory::new(64 << 20);
        let mut cx = stack::Cx::replay(&memory, 1);
        let mut seen = Vec::new();
        let mut batch = pkt::Batch::new();
        loop {
            let taken = end.tun.receive(QueueId(0), &mut cx, 64, &mut batch);
            assert!(taken <= 64);
            for packet in batch.drain() {
                let bytes = packet.to_vec();
                // The kernel's own IPv6 packets arrive, too.
                if bytes[0] == 0x45 {
                    seen.push(bytes[28]);
                }
                cx.pool.free(packet);
            }
            if taken < 64 {
                break;
            }
        }
        assert_eq!(seen, (0..100).collect::<Vec<u8>>());
        end.finish();
    });
}

#[test]
fn without_privilege_the_error_names_the_capability() {
    in_namespace("tap", || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("becoming nobody");
        let error = Tun::create(&TunConfig::tap("ql0")).expect_err("no privilege");
        let text = error.to_string();
        assert!(text.contains("CAP_NET_ADMIN"), "{text}");
        assert!(!text.contains('\n'));
    });
}

#[test]
fn tshark_would_find_a_bad_checksum() {
    in_namespace("tap", || {
        let mut end = End::new(TunConfig::tap("ql0"));
        let datagram = udp((US, 46_000), (HOST, 45_000), b"its checksum stays partial");
        let frame = end.frame(ipv4(US, HOST, IPPROTO_UDP, &datagram));
        let packet = end.pool.alloc_from(&frame).expect("memory");
        end.recorder.record(Direction::Outbound, Instant::ZERO, &packet);
        end.pool.free(packet);
        end.capture.finish().expect("a capture");
        if let Some(faults) = faults(end.file.path()) {
            assert_eq!(faults.lines().count(), 1, "{faults}");
        }
    });
}

#[test]
fn big_tcp_needs_a_kernel_that_is_known_to_take_it() {
    assert_eq!(kernel_version("6.18.44-fc"), Some((6, 18)));
    assert_eq!(kernel_version("6.6.0\n"), Some(BIG_TCP_IPV4_SINCE));
    assert_eq!(kernel_version("7.0-rc1"), Some((7, 0)));
    assert_eq!(kernel_version(""), None);
    assert_eq!(kernel_version("six"), None);
    for older in ["5.19.2", "6.3.0", "6.5.13-generic"] {
        assert!(kernel_version(older) < Some(BIG_TCP_IPV4_SINCE), "{older}");
    }
}
