//! Route changes under live connections: `Host::add_route`, `replace_route`, `delete_route`.

use std::time::Duration;

use stack::{
    Errno, base::ids::DeviceIndex, device::WireConfig, host::Host, route::fib::RouteSpec,
    socket::Connection, transmit::dst::RouteKind,
};

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
    for kind in [RouteKind::Blackhole, RouteKind::Unreachable] {
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
