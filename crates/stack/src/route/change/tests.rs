//! Tests of route lookups during which the routes or the settings change.

use std::{net::IpAddr, sync::Arc, vec};

use pkt::Instant;
use sync::Counting;

use super::*;
use crate::{
    base::ids::CoreId,
    cx::{Cx, Memory},
    device::{Wire, WireConfig},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
};

const CORE: CoreId = CoreId(0);

/// Returns a host with 10.0.0.1/24 on a wire (the in-process link between two hosts), and routes to
/// 192.0.2.0/24 and 198.51.100.0/24 via 10.0.0.2.
fn bench() -> (Arc<Host>, Cx) {
    let memory = Memory::new(16 << 20);
    let (device, _peer) = Wire::pair(&WireConfig::default()).expect("the default is valid");
    let addresses = vec!["10.0.0.1/24".parse().expect("the text is an address")];
    let routes = vec![via("192.0.2.0/24", "10.0.0.2"), via("198.51.100.0/24", "10.0.0.2")];
    let devices = vec![DeviceConfig { device, addresses }];
    let config = HostConfig { devices, routes, cores: 1, ..HostConfig::replay(0) };
    let host = Host::new(&memory, config).expect("the configuration is valid");
    let mut cx = Cx::replay(&memory, 1);
    cx.now = Instant::from_secs(1000);
    (host, cx)
}

fn via(prefix: &str, next_hop: &str) -> RouteSpec {
    RouteSpec::via(prefix.parse().expect("the text is a prefix"), ip(next_hop))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("the text is an address")
}

/// A route is looked up for a socket. Then the route changes, and another caller creates a route
/// entry from the new routes for the same next hop. The table then has a current entry for this
/// next hop, but the `CachedDst` of the socket is stale.
#[test]
fn an_entry_from_a_lookup_before_a_route_change_is_stale() {
    let (host, mut cx) = bench();
    let entered = cx.enter(&host);
    let hop = host.hop(&cx, ip("192.0.2.9"), None, None).expect("the host has a route");
    host.replace_route(&via("192.0.2.0/24", "10.0.0.3")).expect("the route is valid");
    let other =
        host.route(&cx, ip("198.51.100.9"), None, None, CORE).expect("the host has a route");
    let dst = host.dst_of_hop(&cx, &hop, CORE).expect("the route has an entry");
    assert!(!host.is_current(&cx, &dst), "{dst:?}");
    assert!(host.is_current(&cx, &other));
    let again = host.route(&cx, ip("192.0.2.9"), None, None, CORE).expect("the host has a route");
    assert!(host.is_current(&cx, &again));
    assert_eq!(again.neighbor.as_ref().map(|neighbor| neighbor.ip()), Some(ip("10.0.0.3")));
    cx.leave(entered);
}

/// A thread that entered the host before the setting changed creates a route entry afterwards.
#[test]
fn a_route_entry_uses_the_current_kind_of_reference_counting() {
    let (host, mut cx) = bench();
    let entered = cx.enter(&host);
    host.set_sysctl("net.quietline.dst_ref", "cas_inc_not_zero")
        .expect("the setting has this value");
    let dst = host.route(&cx, ip("192.0.2.9"), None, None, CORE).expect("the host has a route");
    assert!(host.is_current(&cx, &dst));
    assert_eq!(dst.dst.counting(), Counting::CasIncNotZero);
    cx.leave(entered);
}
