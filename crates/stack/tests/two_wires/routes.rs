//! Route changes under live connections: `Host::add_route`, `replace_route`, `delete_route`.

use std::time::Duration;

use stack::{
    Errno,
    base::ids::DeviceIndex,
    device::WireConfig,
    host::Host,
    route::fib::{HopSpec, RouteSpec},
    socket::Connection,
    transmit::dst::RouteKind,
};
use tcp::{Algorithm, PathMetrics};

use super::net::{Net, via};

/// The server's address that the client reaches by the routes of these tests.
const SERVER: &str = "192.0.2.9:80";

/// The client has a route through device 1.
fn net() -> Net {
    Net::new(&WireConfig::default(), &[], vec![via("10.0.0.2")])
}

/// Returns the devices of the current output entries to other hosts, or of the input entries.
fn devices(host: &Host, is_input: bool) -> Vec<u32> {
    let mut devices: Vec<_> = host
        .dst_entries()
        .into_iter()
        .filter(|entry| {
            entry.is_input == is_input && entry.device != DeviceIndex(0) && entry.is_current
        })
        .map(|entry| entry.device.0)
        .collect();
    devices.dedup();
    devices
}

#[test]
fn an_established_connection_moves_to_the_new_route() {
    let mut net = net();
    let (client, server) = net.connect(SERVER);
    net.send(&client, b"first");
    assert_eq!((devices(&net.client, false), devices(&net.server, true)), (vec![1], vec![1]));
    let before = (net.client.counters(), net.server.counters());
    net.client.replace_route(&via("10.1.0.2")).expect("a route");
    for _ in 0..5 {
        net.send(&client, b"data!");
    }
    assert_eq!(net.received(&server), Ok(30));
    assert_eq!(devices(&net.client, false), [2]);
    assert!(devices(&net.server, true).contains(&2));
    let change = net.client.counters().since(&before.0);
    assert_eq!(change.get("DstMiss"), Some(1), "one lookup for the connection");
    let change = net.server.counters().since(&before.1);
    assert_eq!(change.get("RxDstInvalidated"), Some(1), "the packet arrived by another device");
    assert_eq!(change.get("RxDstSet"), Some(1));
    assert!(client.check(&net.client, &mut net.cx).is_some());
}

#[test]
fn a_longer_prefix_takes_precedence_until_it_is_deleted() {
    let mut net = net();
    let (client, server) = net.connect(SERVER);
    let host_route =
        RouteSpec { prefix: "192.0.2.9/32".parse().expect("a prefix"), ..via("10.1.0.2") };
    net.client.add_route(&host_route).expect("a route");
    net.send(&client, b"by the longer prefix");
    assert_eq!(devices(&net.client, false), [2]);
    net.client.delete_route(&host_route).expect("it is there");
    net.send(&client, b", then by the shorter");
    assert_eq!(devices(&net.client, false), [1]);
    assert_eq!(net.received(&server), Ok(41));
}

#[test]
fn the_backup_route_is_used_when_the_best_is_deleted() {
    let mut net = net();
    net.client.add_route(&RouteSpec { metric: 100, ..via("10.1.0.2") }).expect("a backup");
    let (client, server) = net.connect(SERVER);
    net.send(&client, b"best");
    assert_eq!(devices(&net.client, false), [1]);
    net.client.delete_route(&via("10.0.0.2")).expect("it is there");
    net.send(&client, b"next");
    assert_eq!(devices(&net.client, false), [2]);
    assert_eq!(net.received(&server), Ok(8));
}

/// TCP keeps data that has no route and retransmits it when there is one.
#[test]
fn a_connection_without_a_route_waits_for_one() {
    let mut net = net();
    let (client, server) = net.connect(SERVER);
    net.client.delete_route(&via("10.0.0.2")).expect("it is there");
    net.send(&client, b"into the dark");
    assert_eq!(net.client.counters().get("IpOutNoRoutes"), Some(1));
    assert_eq!(net.client.counters().get("IP_OUTNOROUTES"), Some(1), "with a reason");
    assert_eq!(net.received(&server), Err(Errno::EAGAIN));
    let connected = Connection::connect(&net.client, &mut net.cx, None, server.local());
    assert_eq!(connected.err(), Some(Errno::ENETUNREACH));
    net.client.add_route(&via("10.1.0.2")).expect("a route");
    net.pass(Duration::from_secs(3));
    assert_eq!(net.received(&server), Ok(13), "{:?}", net.client.counters());
}

#[test]
fn blackhole_and_unreachable_routes_apply_to_established_connections() {
    for kind in [RouteKind::Blackhole, RouteKind::Unreachable, RouteKind::Prohibit] {
        let mut net = net();
        let (client, server) = net.connect(SERVER);
        let spec = RouteSpec::of("192.0.2.9/32".parse().expect("a prefix"), kind);
        net.client.add_route(&spec).expect("a route");
        net.send(&client, b"lost");
        assert_eq!(net.received(&server), Err(Errno::EAGAIN), "{kind:?}");
        net.client.delete_route(&spec).expect("it is there");
        net.pass(Duration::from_secs(3));
        assert_eq!(net.received(&server), Ok(4), "{kind:?}");
    }
}

#[test]
fn a_connection_to_a_dropping_route_fails_with_the_error_of_its_type() {
    let mut net = net();
    for (kind, error) in [
        (RouteKind::Blackhole, Errno::EINVAL),
        (RouteKind::Unreachable, Errno::EHOSTUNREACH),
        (RouteKind::Prohibit, Errno::EACCES),
    ] {
        let spec = RouteSpec::of("192.0.2.9/32".parse().expect("a prefix"), kind);
        net.client.replace_route(&spec).expect("a route");
        let at = SERVER.parse().expect("an address");
        let refused = Connection::connect(&net.client, &mut net.cx, None, at);
        assert_eq!(refused.err(), Some(error), "{kind:?}");
    }
}

/// Returns a route over both wires.
fn over_both() -> RouteSpec {
    let hop = |via: &str, weight| HopSpec {
        via: Some(via.parse().expect("an address")),
        device: None,
        weight,
    };
    RouteSpec { via: None, hops: vec![hop("10.0.0.2", 1), hop("10.1.0.2", 1)], ..via("10.0.0.2") }
}

/// Settings that make the wires count packets.
const COUNTED: [(&str, &str); 2] = [
    ("net.quietline.dev.red0.qdisc", "pfifo_fast"),
    ("net.quietline.dev.blue0.qdisc", "pfifo_fast"),
];

/// Returns the numbers of packets that the client has sent by each wire.
fn sent(net: &mut Net) -> [u64; 2] {
    let rows = net.client.tx_queue_stats(&mut net.cx);
    ["red", "blue"].map(|wire| {
        let its = rows.iter().filter(|row| row.device.starts_with(wire));
        its.map(|row| row.stats.packets).sum()
    })
}

#[test]
fn connections_of_two_hosts_are_spread_over_the_next_hops_by_their_ports() {
    let policy = ("net.ipv4.fib_multipath_hash_policy", "1");
    let settings = [COUNTED[0], COUNTED[1], policy];
    let mut net = Net::new(&WireConfig::default(), &settings, vec![over_both()]);
    let mut by = [0, 0];
    for _ in 0..32 {
        let before = sent(&mut net);
        let (client, server) = net.connect(SERVER);
        net.send(&client, &[1; 3000]);
        assert_eq!(net.received(&server), Ok(3000));
        let after = sent(&mut net);
        let more = [0, 1].map(|wire| after[wire] - before[wire]);
        // The ARP request of the first connection is a packet, too.
        let few = more.into_iter().min();
        assert!(few <= Some(1), "all packets of a connection leave by one wire: {more:?}");
        by[usize::from(more[0] < more[1])] += 1;
    }
    assert!(by[0] >= 6 && by[1] >= 6, "{by:?}");
}

#[test]
fn connections_of_two_hosts_share_a_next_hop_without_the_setting() {
    let mut net = Net::new(&WireConfig::default(), &COUNTED, vec![over_both()]);
    let _first = net.connect("192.0.2.9:81");
    let used = sent(&mut net).map(|packets| packets > 1);
    for port in 82..98 {
        let _more = net.connect(&format!("192.0.2.9:{port}"));
    }
    assert_eq!(sent(&mut net).map(|packets| packets > 1), used);
}

#[test]
fn a_connection_leaves_a_dead_next_hop_and_loses_nothing() {
    let mut net = Net::new(&WireConfig::default(), &COUNTED, vec![over_both()]);
    let (client, server) = net.connect(SERVER);
    let used = if sent(&mut net)[0] > 1 { 1 } else { 2 };
    net.client.set_device_up(&mut net.cx, DeviceIndex(used), false).expect("a device");
    let before = sent(&mut net);
    net.send(&client, &[3; 5000]);
    net.pass(Duration::from_secs(3));
    assert_eq!(net.received(&server), Ok(5000));
    let other = 2 - used as usize;
    let after = sent(&mut net);
    assert!(after[other] > before[other] + 3, "{before:?} {after:?}");
}

#[test]
fn metrics_of_a_route_apply_to_connections_in_both_roles() {
    let metrics = PathMetrics {
        initcwnd: 4,
        advmss: 900,
        congctl: Some(Algorithm::Reno),
        ..PathMetrics::default()
    };
    let spec = RouteSpec { metrics, ..via("10.0.0.2") };
    let mut net = Net::new(&WireConfig::default(), &[], vec![spec]);
    let (client, server) = net.connect(SERVER);
    let of = |net: &mut Net, socket: &Connection, is_client: bool| {
        let host = if is_client { net.client.clone() } else { net.server.clone() };
        let read = |tcb: &tcp::Tcb| {
            let info = tcb.info();
            (info.cwnd / info.snd_mss, info.snd_mss, tcb.congestion())
        };
        socket.with_tcb(&host, &mut net.cx, |tcb, _| read(tcb))
    };
    let (cwnd, _, algorithm) = of(&mut net, &client, true);
    assert_eq!((cwnd, algorithm), (4, Algorithm::Reno));
    let (cwnd, mss, algorithm) = of(&mut net, &server, false);
    assert_eq!((cwnd, mss, algorithm), (10, 888, Algorithm::Cubic), "the client announced 900");
}

#[test]
fn a_locked_mtu_sends_without_df_and_ignores_reports() {
    let spec = RouteSpec { mtu: Some(800), mtu_locked: true, ..via("10.0.0.2") };
    let mut net = Net::new(&WireConfig::default(), &[], vec![spec]);
    let (client, server) = net.connect(SERVER);
    net.send(&client, &[1; 2000]);
    assert_eq!(net.received(&server), Ok(2000));
    let mss = client.with_tcb(&net.client, &mut net.cx, |tcb, _| tcb.info().snd_mss);
    assert_eq!(mss, 800 - 52);
    assert!(net.client.routes().iter().any(|route| route.to_string().ends_with("mtu lock 800")));
}

#[test]
fn the_mtu_of_a_new_route_limits_the_segments() {
    let mut net = net();
    let (client, server) = net.connect(SERVER);
    let mss =
        |net: &mut Net| client.with_tcb(&net.client, &mut net.cx, |tcb, _| tcb.info().snd_mss);
    let wide = mss(&mut net);
    net.client.replace_route(&RouteSpec { mtu: Some(1000), ..via("10.0.0.2") }).expect("one");
    net.send(&client, &[7; 5000]);
    assert_eq!(wide - mss(&mut net), 500);
    assert_eq!(net.received(&server), Ok(5000));
    net.client.replace_route(&via("10.0.0.2")).expect("a route");
    net.send(&client, b"x");
    assert_eq!(mss(&mut net), wide, "the MSS grows with the route's MTU");
}

#[test]
fn routes_are_listed_as_ip_route_shows_them() {
    let net = net();
    net.client.add_route(&RouteSpec { metric: 7, ..via("10.1.0.2") }).expect("a backup");
    let listed: Vec<_> = net.client.routes().iter().map(ToString::to_string).collect();
    for line in [
        "local 10.0.0.1 dev 1 src 10.0.0.1",
        "10.0.0.0/24 dev 1 src 10.0.0.1",
        "192.0.2.0/24 via 10.0.0.2 dev 1 src 10.0.0.1",
        "192.0.2.0/24 via 10.1.0.2 dev 2 src 10.1.0.1 metric 7",
    ] {
        assert!(listed.iter().any(|entry| entry == line), "{line}: {listed:#?}");
    }
}

#[test]
fn a_refused_route_change_has_no_effect() {
    let mut net = net();
    let (client, _server) = net.connect(SERVER);
    let (before, routes) = (net.client.counters(), net.client.routes());
    let error = net.client.add_route(&via("10.1.0.2")).unwrap_err();
    assert!(error.to_string().contains("there is a route with this prefix and metric"), "{error}");
    let stranger = RouteSpec { metric: 3, ..via("10.7.0.2") };
    assert!(net.client.add_route(&stranger).is_err(), "the next hop is not on any link");
    assert!(net.client.replace_route(&stranger).is_err());
    assert!(net.client.delete_route(&stranger).is_err(), "there is none");
    assert!(net.client.delete_route(&via("10.1.0.2")).is_err(), "another next hop");
    let ipv6 = RouteSpec { prefix: "2001:db8::/32".parse().expect("a prefix"), ..via("10.1.0.2") };
    assert!(net.client.add_route(&ipv6).is_err(), "a next hop of the other family");
    net.send(&client, b"as before");
    assert_eq!(net.client.counters().since(&before).get("DstMiss"), Some(0));
    assert_eq!(net.client.routes(), routes);
}
