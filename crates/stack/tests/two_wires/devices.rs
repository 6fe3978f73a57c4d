//! Devices that go down or are removed while connections use them: `Host::set_device_up`,
//! `remove_device`.

use std::{io::IoSlice, net::SocketAddr, sync::Arc, time::Duration};

use pkt::DropReason;
use stack::{
    Errno, base::ids::DeviceIndex, device::WireConfig, route::fib::RouteSpec, socket::Connection,
};

use super::net::{Net, via};

/// The client has a route through device 1 and one with a higher metric through device 2.
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
    assert_eq!(net.client.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
    assert!(!net.client.is_device_up(DeviceIndex(1)) && net.client.is_device_up(DeviceIndex(2)));
    net.send(&client, b"two");
    assert_eq!(net.received(&server), Ok(6));
    let left: Vec<_> = net.client.dst_entries();
    assert!(
        left.iter().all(|entry| entry.device != DeviceIndex(1) && entry.is_current),
        "{left:?}"
    );
    assert!(
        !net.client
            .routes()
            .iter()
            .any(|route| route.device == DeviceIndex(1) && route.via.is_some())
    );
}

#[test]
fn a_device_that_is_down_carries_no_packets_until_it_is_up_again() {
    let mut net = net(&WireConfig::default(), &[]);
    let (client, server) = net.connect("10.0.0.2:80");
    assert_eq!(net.client.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
    net.send(&client, b"into the dark");
    assert_eq!(net.received(&server), Err(Errno::EAGAIN));
    let refused = Connection::connect(&net.client, &mut net.cx, None, server.local());
    assert_eq!(refused.err(), Some(Errno::ENETUNREACH));
    let spec = RouteSpec::on_link("172.16.0.0/16".parse().expect("a prefix"), DeviceIndex(1));
    assert!(net.client.add_route(&spec).is_err(), "no route through a device that is down");
    assert_eq!(net.client.set_device_up(&mut net.cx, DeviceIndex(1), true), Ok(()));
    net.pass(Duration::from_secs(3));
    assert_eq!(net.received(&server), Ok(13), "{:?}", net.client.counters());
}

#[test]
fn packets_sent_to_a_device_that_is_down_are_dropped_at_once() {
    let mut net = net(&WireConfig::default(), &[]);
    let (client, server) = net.connect("10.0.0.2:80");
    assert_eq!(net.server.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
    let before = [&net.client, &net.server].map(|host| host.counters());
    net.send(&client, b"late");
    // A wire does not queue packets for an end that is down; the sender counts the drop.
    let change = net.client.counters().since(&before[0]);
    assert_eq!(change.drops(DropReason::DeviceDown), 1);
    assert_eq!(net.server.set_device_up(&mut net.cx, DeviceIndex(1), true), Ok(()));
    let change = net.server.counters().since(&before[1]);
    assert_eq!((change.drops(DropReason::DeviceDown), change.get("TcpInSegs")), (0, Some(0)));
    assert_eq!(net.received(&server), Err(Errno::EAGAIN));
    net.pass(Duration::from_secs(3));
    assert_eq!(net.received(&server), Ok(4), "retransmitted");
}

/// A device is removed while a socket holds a dst entry of it. The entry becomes unusable, the
/// device is freed, and the socket continues by another route.
#[test]
fn a_device_is_freed_although_sockets_hold_entries_of_it() {
    for layout in ["packed", "padded", "filled"] {
        let settings = [("net.quietline.dst_layout", layout)];
        let mut net = net(&WireConfig::default(), &settings);
        let (client, server) = net.connect("192.0.2.9:80");
        let (stuck, _other) = net.connect("10.0.0.2:81");
        net.send(&client, b"one");
        assert_eq!(net.client.remove_device(&mut net.cx, DeviceIndex(1)), Ok(()));
        net.reclaim();
        assert!(net.devices[0].upgrade().is_none(), "{layout}: nothing holds the device");
        assert!(net.devices[1].upgrade().is_some());
        net.send(&client, b"two");
        assert_eq!(net.received(&server), Ok(6));
        // The local address was removed with the device, so the connection has ended.
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
fn packets_in_a_wire_are_dropped_when_its_device_goes_down() {
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
    assert_eq!(net.client.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
    assert!(net.drops() > 0, "frames that had arrived or waited");
    assert_eq!(client.wmem_alloc(), 0, "and sent packets are completed");
    client.abort(&net.client, &mut net.cx);
    server.abort(&net.server, &mut net.cx);
    drop((client, server));
    net.pass(Duration::from_secs(1));
    net.reclaim();
    assert!(net.client.established_len() == 0);
}

#[test]
fn packets_in_a_qdisc_are_dropped_when_its_device_goes_down() {
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
        assert_eq!(net.client.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
        assert_eq!(client.wmem_alloc(), 0, "{qdisc}: {} dropped", net.drops() - before);
        assert!(net.drops() > before, "{qdisc}: with a reason");
        assert_eq!(net.client.counters().get("DeviceTxPackets"), sent, "{qdisc}: none sent");
    }
}

#[test]
fn packets_that_wait_for_a_neighbor_are_dropped_when_its_device_goes_down() {
    let mut net = net(&WireConfig::default(), &[]);
    let silent: SocketAddr = "10.0.0.77:80".parse().expect("an address");
    let socket = Connection::connect(&net.client, &mut net.cx, None, silent).expect("a route");
    let before = net.drops();
    assert_eq!(net.client.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
    assert_eq!(net.drops() - before, 1, "the SYN, with a reason");
    socket.abort(&net.client, &mut net.cx);
}

/// Packets held by GRO when the device goes down are freed, and are not delivered when it is up
/// again.
#[test]
fn packets_held_by_gro_are_dropped_when_their_device_goes_down() {
    let mut frames = WireConfig { tso: false, ..WireConfig::default() };
    // One full segment per millisecond.
    frames.forward.rate_bps = Some(12_304_000);
    let linger = [("net.quietline.dev.default.gro_flush_timeout", "100000000")];
    let mut net = net(&frames, &linger);
    let (client, server) = net.connect("10.0.0.2:80");
    let before = net.server.counters();
    net.send(&client, &[7; 2 * 1448]);
    net.pass(Duration::from_micros(1500));
    let change = net.server.counters().since(&before);
    assert_eq!((change.get("GroHeld"), change.get("TcpInSegs")), (Some(1), Some(0)));
    assert_eq!(net.server.set_device_up(&mut net.cx, DeviceIndex(1), false), Ok(()));
    let dropped = net.server.counters().since(&before).drops(DropReason::DeviceDown);
    assert_eq!(dropped, 2, "the held segment, and the one in flight");
    assert_eq!(net.server.set_device_up(&mut net.cx, DeviceIndex(1), true), Ok(()));
    net.pass(Duration::from_secs(5));
    assert_eq!(net.received(&server), Ok(2 * 1448), "retransmitted");
}

/// `gro_flush_timeout`: GRO holds a packet for this time and then delivers it even if no further
/// packet arrives.
#[test]
fn packets_held_by_gro_are_delivered_after_the_flush_timeout() {
    let mut frames = WireConfig { tso: false, ..WireConfig::default() };
    // One full segment per millisecond.
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
fn only_an_existing_device_can_be_taken_down() {
    let mut net = net(&WireConfig::default(), &[]);
    let (host, cx) = (Arc::clone(&net.client), &mut net.cx);
    assert_eq!(host.set_device_up(cx, DeviceIndex(0), false), Err(Errno::EINVAL), "loopback stays");
    assert_eq!(host.remove_device(cx, DeviceIndex(3)), Err(Errno::ENODEV));
    assert_eq!(host.set_device_up(cx, DeviceIndex(1), true), Ok(()), "the device is already up");
    assert_eq!(host.remove_device(cx, DeviceIndex(1)), Ok(()));
    assert_eq!(host.remove_device(cx, DeviceIndex(1)), Err(Errno::ENODEV));
    assert_eq!(host.set_device_up(cx, DeviceIndex(1), true), Err(Errno::ENODEV));
    assert_eq!((host.device_index("red0"), host.is_device_up(DeviceIndex(1))), (None, false));
    assert_eq!(
        (host.device_index("blue0"), host.is_device_up(DeviceIndex(2))),
        (Some(DeviceIndex(2)), true)
    );
    assert!(!host.routes().iter().any(|route| route.device == DeviceIndex(1)));
}
