//! Devices that go down and away while connections use them: `Host::set_device_up`, `remove_device`.

use std::{io::IoSlice, net::SocketAddr, sync::Arc, time::Duration};

use pkt::DropReason;
use stack::{Errno, device::WireConfig, route::fib::RouteSpec, socket::TcpSocket};

use super::net::{Net, via};

/// The client has a route by device 1 and a worse one by device 2.
fn net(wire: &WireConfig, settings: &[(&str, &str)]) -> Net {
    let prefsrc = Some("10.1.0.1".parse().expect("an address"));
    let by = |next_hop, metric| RouteSpec { metric, prefsrc, ..via(next_hop) };
    Net::new(wire, settings, vec![by("10.0.0.2", 1), by("10.1.0.2", 2)])
}

#[test]
fn a_connection_moves_to_the_other_device_when_its_own_goes_down() {
    let mut net = net(&WireConfig::default(), &[]);
    let (client, server) = net.connect("192.0.2.9:80");
    net.send(&client, b"one");
    assert_eq!(net.client.set_device_up(&mut net.cx, 1, false), Ok(()));
    assert!(!net.client.is_device_up(1) && net.client.is_device_up(2));
    net.send(&client, b"two");
    assert_eq!(net.received(&server), Ok(6));
    let left: Vec<_> = net.client.dst_entries();
    assert!(left.iter().all(|entry| entry.device != 1 && entry.is_current), "{left:?}");
    assert!(!net.client.routes().iter().any(|route| route.device == 1 && route.via.is_some()));
}

#[test]
fn a_device_that_is_down_carries_nothing_and_goes_on_when_it_is_up() {
    let mut net = net(&WireConfig::default(), &[]);
    let (client, server) = net.connect("10.0.0.2:80");
    assert_eq!(net.client.set_device_up(&mut net.cx, 1, false), Ok(()));
    net.send(&client, b"into the dark");
    assert_eq!(net.received(&server), Err(Errno::EAGAIN));
    let refused = TcpSocket::connect(&net.client, &mut net.cx, None, server.local());
    assert_eq!(refused.err(), Some(Errno::ENETUNREACH));
    let spec = RouteSpec::on_link("172.16.0.0/16".parse().expect("a prefix"), 1);
    assert!(net.client.add_route(&spec).is_err(), "no route through it");
    assert_eq!(net.client.set_device_up(&mut net.cx, 1, true), Ok(()));
    net.pass(Duration::from_secs(3));
    assert_eq!(net.received(&server), Ok(13), "{:?}", net.client.counters());
}

#[test]
fn what_comes_while_a_device_is_down_does_not_come_out_when_it_is_up() {
    let mut net = net(&WireConfig::default(), &[]);
    let (client, server) = net.connect("10.0.0.2:80");
    assert_eq!(net.server.set_device_up(&mut net.cx, 1, false), Ok(()));
    let before = [&net.client, &net.server].map(|host| host.counters());
    net.send(&client, b"late");
    // Nothing waits in a wire whose other end is down: who sends counts it.
    let change = net.client.counters().since(&before[0]);
    assert_eq!(change.drops(DropReason::DeviceDown), 1);
    assert_eq!(net.server.set_device_up(&mut net.cx, 1, true), Ok(()));
    let change = net.server.counters().since(&before[1]);
    assert_eq!((change.drops(DropReason::DeviceDown), change.get("TcpInSegs")), (0, Some(0)));
    assert_eq!(net.received(&server), Err(Errno::EAGAIN));
    net.pass(Duration::from_secs(3));
    assert_eq!(net.received(&server), Ok(4), "sent again");
}

/// A device is taken away while a socket holds an entry of it. The entry leads nowhere, the device is freed, and the
/// socket goes on by another route.
#[test]
fn a_device_is_freed_although_sockets_hold_entries_of_it() {
    for layout in ["packed", "padded", "filled"] {
        let settings = [("net.quietline.dst_layout", layout)];
        let mut net = net(&WireConfig::default(), &settings);
        let (client, server) = net.connect("192.0.2.9:80");
        let (stuck, _other) = net.connect("10.0.0.2:81");
        net.send(&client, b"one");
        assert_eq!(net.client.remove_device(&mut net.cx, 1), Ok(()));
        net.reclaim();
        assert!(net.devices[0].upgrade().is_none(), "{layout}: nothing holds the device");
        assert!(net.devices[1].upgrade().is_some());
        net.send(&client, b"two");
        assert_eq!(net.received(&server), Ok(6));
        // Its address went with the device, so the connection has ended.
        let sent = stuck.send(&net.client, &mut net.cx, &[IoSlice::new(b"nowhere")]);
        assert_eq!(sent, Err(Errno::ENETDOWN));
        assert_eq!(net.client.counters().get("IpOutNoRoutes"), Some(0));
        for socket in [&client, &stuck] {
            socket.check(&net.client, &mut net.cx);
            socket.abort(&net.client, &mut net.cx);
        }
        net.reclaim();
        assert!(net.client.dst_entries().iter().all(|entry| entry.refs == 1), "{layout}");
    }
}

#[test]
fn what_a_wire_brings_and_has_not_sent_dies_with_its_device() {
    let mut slow = WireConfig::default();
    slow.backward.delay = Duration::from_millis(5);
    slow.forward.rate_bps = Some(1_000_000);
    slow.forward.completion_delay = Duration::from_millis(50);
    let mut net = net(&slow, &[]);
    let (client, server) = net.connect("10.0.0.2:80");
    let back = server.send(&net.server, &mut net.cx, &[IoSlice::new(b"on its way")]);
    assert_eq!(back, Ok(10));
    net.send(&client, &[7; 4000]);
    assert!(client.wmem_alloc() > 0, "the device completes later");
    assert_eq!(net.client.set_device_up(&mut net.cx, 1, false), Ok(()));
    assert!(net.drops() > 0, "what had arrived, or waited");
    assert_eq!(client.wmem_alloc(), 0, "and nobody waits for what was sent");
    client.abort(&net.client, &mut net.cx);
    server.abort(&net.server, &mut net.cx);
    drop((client, server));
    net.pass(Duration::from_secs(1));
    net.reclaim();
    assert!(net.client.established_len() == 0);
}

#[test]
fn what_waits_in_a_discipline_dies_with_its_device() {
    for qdisc in ["pfifo_fast", "fq", "fq_codel"] {
        let mut slow = WireConfig::default();
        slow.forward.rate_bps = Some(1_000_000);
        slow.forward.completion_delay = Duration::from_millis(50);
        let mut net = net(&slow, &[("net.core.default_qdisc", qdisc)]);
        let (client, _server) = net.connect("10.0.0.2:80");
        for _ in 0..5 {
            net.send(&client, &[7; 2000]);
        }
        let (before, sent) = (net.drops(), net.client.counters().get("DeviceTxPackets"));
        assert_eq!(net.client.set_device_up(&mut net.cx, 1, false), Ok(()));
        assert_eq!(client.wmem_alloc(), 0, "{qdisc}: {} dropped", net.drops() - before);
        assert!(net.drops() > before, "{qdisc}: with a reason");
        assert_eq!(net.client.counters().get("DeviceTxPackets"), sent, "{qdisc}: none sent");
    }
}

#[test]
fn packets_that_wait_for_a_neighbor_die_with_its_device() {
    let mut net = net(&WireConfig::default(), &[]);
    let nobody: SocketAddr = "10.0.0.77:80".parse().expect("an address");
    let socket = TcpSocket::connect(&net.client, &mut net.cx, None, nobody).expect("a route");
    let before = net.drops();
    assert_eq!(net.client.set_device_up(&mut net.cx, 1, false), Ok(()));
    assert_eq!(net.drops() - before, 1, "the SYN, with a reason");
    socket.abort(&net.client, &mut net.cx);
}

/// What receive offload holds when the device goes down is freed, and does not come out when it is up again.
#[test]
fn what_receive_offload_holds_dies_with_its_device() {
    let mut frames = WireConfig { tso: false, ..WireConfig::default() };
    // A full segment a millisecond.
    frames.forward.rate_bps = Some(12_304_000);
    let linger = [("net.quietline.dev.default.gro_flush_timeout", "100000000")];
    let mut net = net(&frames, &linger);
    let (client, server) = net.connect("10.0.0.2:80");
    let before = net.server.counters();
    net.send(&client, &[7; 2 * 1448]);
    net.pass(Duration::from_micros(1500));
    let change = net.server.counters().since(&before);
    assert_eq!((change.get("GroHeld"), change.get("TcpInSegs")), (Some(1), Some(0)));
    assert_eq!(net.server.set_device_up(&mut net.cx, 1, false), Ok(()));
    let dropped = net.server.counters().since(&before).drops(DropReason::DeviceDown);
    assert_eq!(dropped, 2, "the segment that was held, and the one on its way");
    assert_eq!(net.server.set_device_up(&mut net.cx, 1, true), Ok(()));
    net.pass(Duration::from_secs(5));
    assert_eq!(net.received(&server), Ok(2 * 1448), "sent again");
}

/// `gro_flush_timeout`: what is held waits that long for more, and then goes up although nothing comes.
#[test]
fn what_receive_offload_holds_goes_up_when_its_time_is_over() {
    let mut frames = WireConfig { tso: false, ..WireConfig::default() };
    // A full segment a millisecond.
    frames.forward.rate_bps = Some(12_304_000);
    let linger = [("net.quietline.dev.default.gro_flush_timeout", "300000")];
    let mut net = net(&frames, &linger);
    let (client, server) = net.connect("10.0.0.2:80");
    let before = net.server.counters();
    net.send(&client, &[7; 2 * 1448]);
    for (micros, segments) in [(1200, 0), (200, 1), (700, 2)] {
        net.pass(Duration::from_micros(micros));
        let change = net.server.counters().since(&before);
        assert_eq!(change.get("TcpInSegs"), Some(segments), "{micros} us later");
    }
    assert_eq!(net.received(&server), Ok(2 * 1448));
}

#[test]
fn only_what_is_there_can_be_taken_down() {
    let mut net = net(&WireConfig::default(), &[]);
    let (host, cx) = (Arc::clone(&net.client), &mut net.cx);
    assert_eq!(host.set_device_up(cx, 0, false), Err(Errno::EINVAL), "loopback stays");
    assert_eq!(host.remove_device(cx, 3), Err(Errno::ENODEV));
    assert_eq!(host.set_device_up(cx, 1, true), Ok(()), "it is");
    assert_eq!(host.remove_device(cx, 1), Ok(()));
    assert_eq!(host.remove_device(cx, 1), Err(Errno::ENODEV));
    assert_eq!(host.set_device_up(cx, 1, true), Err(Errno::ENODEV));
    assert_eq!((host.device_index("red0"), host.is_device_up(1)), (None, false));
    assert_eq!((host.device_index("blue0"), host.is_device_up(2)), (Some(2), true));
    assert!(!host.routes().iter().any(|route| route.device == 1));
}
