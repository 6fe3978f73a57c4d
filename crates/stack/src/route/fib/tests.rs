use ipnet::Ipv4Net;
use proptest::prelude::*;

use super::*;
use crate::base::config_error::ConfigError;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Returns the route to `dst` with its prefix.
fn found(fib: &Fib, dst: &str) -> Option<RouteEntry> {
    fib.lookup(ip(dst)).map(|found| found.entry(ip(dst)))
}

/// Returns the builder of a table with loopback as device 0, 10.0.0.1/24 and 2001:db8::1/64 on
/// device 1, and 192.168.1.2/30 on device 2.
fn sample() -> FibBuilder {
    let mut builder = Fib::builder(3);
    builder.loopback(DeviceIndex(0));
    builder.address(DeviceIndex(1), net("10.0.0.1/24")).unwrap();
    builder.address(DeviceIndex(1), net("2001:db8::1/64")).unwrap();
    builder.address(DeviceIndex(2), net("192.168.1.2/30")).unwrap();
    builder
}

fn refused(result: Result<(), ConfigError>) -> (&'static str, String) {
    let error = result.unwrap_err();
    (error.field, error.value)
}

#[test]
fn each_address_creates_its_routes() {
    let fib = sample().build();
    let found = |text: &str| found(&fib, text).map(|entry| entry.to_string());
    assert_eq!(found("10.0.0.1").unwrap(), "local 10.0.0.1 dev 1 src 10.0.0.1");
    assert_eq!(found("10.0.0.9").unwrap(), "10.0.0.0/24 dev 1 src 10.0.0.1");
    assert_eq!(found("10.0.0.255").unwrap(), "broadcast 10.0.0.255 dev 1 src 10.0.0.1");
    assert_eq!(found("10.0.0.0").unwrap(), "10.0.0.0/24 dev 1 src 10.0.0.1");
    assert_eq!(found("127.0.0.1").unwrap(), "local 127.0.0.0/8 dev 0 src 127.0.0.1");
    assert_eq!(found("127.1.2.3").unwrap(), "local 127.0.0.0/8 dev 0 src 127.0.0.1");
    assert_eq!(found("127.255.255.255").unwrap(), "broadcast 127.255.255.255 dev 0");
    assert_eq!(found("255.255.255.255").unwrap(), "broadcast 255.255.255.255");
    assert_eq!(found("224.0.0.251").unwrap(), "multicast 224.0.0.0/4");
    assert_eq!(found("::1").unwrap(), "local ::1 dev 0 src ::1");
    assert_eq!(found("2001:db8::7").unwrap(), "2001:db8::/64 dev 1");
    assert_eq!(found("ff02::1").unwrap(), "multicast ff00::/8");
    assert_eq!(found("8.8.8.8"), None);
}

#[test]
fn the_reverse_path_check_requires_a_unicast_route_through_the_given_device() {
    let mut builder = sample();
    builder.route(&RouteSpec::via(net("10.9.0.0/16"), ip("192.168.1.1"))).unwrap();
    builder.route(&RouteSpec::of(net("10.9.1.0/24"), RouteKind::Blackhole)).unwrap();
    let fib = builder.build();
    let back =
        |text: &str, device: Option<u32>| fib.has_route_back(ip(text), device.map(DeviceIndex));
    assert!(back("10.0.0.9", None) && back("10.0.0.9", Some(1)) && !back("10.0.0.9", Some(2)));
    assert!(back("10.9.0.9", None) && back("10.9.0.9", Some(2)) && !back("10.9.0.9", Some(1)));
    for none in ["10.9.1.9", "10.0.0.1", "10.0.0.255", "127.0.0.1", "224.0.0.1", "8.8.8.8"] {
        assert!(!back(none, None), "{none}");
    }
}

#[test]
fn share_subnet_compares_only_the_addresses_of_the_given_device() {
    let mut builder = sample();
    builder.address(DeviceIndex(2), net("10.0.0.2/30")).unwrap();
    builder.route(&RouteSpec::on_link(net("10.9.0.0/16"), DeviceIndex(1))).unwrap();
    let fib = builder.build();
    let share = |device, local, other| fib.share_subnet(DeviceIndex(device), ip(local), ip(other));
    assert!(share(1, "10.0.0.1", "10.0.0.9"));
    assert!(
        !share(1, "10.0.0.1", "10.9.0.9"),
        "a network with a route but without an address counts as subnet"
    );
    assert!(!share(2, "10.0.0.1", "10.0.0.9"), "an address of device 1 counts as one of device 2");
    assert!(
        !share(2, "10.0.0.2", "10.0.0.9"),
        "an address outside the /30 of device 2 counts as its neighbor"
    );
    assert!(
        !share(1, "10.0.0.9", "10.0.0.8"),
        "an address of another host counts as one of this host"
    );
}

#[test]
fn networks_of_length_31_and_32_have_no_broadcast_address() {
    let mut builder = Fib::builder(1);
    builder.address(DeviceIndex(0), net("10.1.0.0/31")).unwrap();
    builder.address(DeviceIndex(0), net("10.2.0.7/32")).unwrap();
    let fib = builder.build();
    assert_eq!(found(&fib, "10.1.0.1").unwrap().kind, RouteKind::Unicast);
    assert!(fib.is_local(ip("10.2.0.7")));
    assert_eq!(found(&fib, "10.2.0.8"), None);
}

#[test]
fn the_default_route_matches_all_other_destinations() {
    let mut builder = sample();
    builder.route(&RouteSpec::via(net("0.0.0.0/0"), ip("10.0.0.254"))).unwrap();
    builder.route(&RouteSpec::via(net("10.20.0.0/16"), ip("192.168.1.1"))).unwrap();
    let fib = builder.build();
    let default = found(&fib, "8.8.8.8").unwrap();
    assert_eq!(default.to_string(), "default via 10.0.0.254 dev 1 src 10.0.0.1");
    let longer = found(&fib, "10.20.3.4").unwrap();
    assert_eq!(longer.to_string(), "10.20.0.0/16 via 192.168.1.1 dev 2 src 192.168.1.2");
    assert_eq!(found(&fib, "10.0.0.7").unwrap().via, None);
    assert_eq!(
        found(&fib, "2001:db8:1::1"),
        None,
        "an IPv6 route was found, although none matches"
    );
}

#[test]
fn no_route_redirects_an_address_of_this_host() {
    let mut builder = sample();
    let host = RouteSpec::via(net("10.0.0.1/32"), ip("192.168.1.1"));
    builder.route(&host).unwrap();
    builder.route(&RouteSpec::of(net("127.0.0.0/16"), RouteKind::Blackhole)).unwrap();
    let fib = builder.build();
    assert_eq!(found(&fib, "10.0.0.1").unwrap().kind, RouteKind::Local);
    assert_eq!(found(&fib, "127.0.0.1").unwrap().kind, RouteKind::Local);
}

#[test]
fn the_smallest_metric_wins() {
    let mut builder = sample();
    for (metric, next_hop) in [(20, "10.0.0.20"), (5, "10.0.0.5"), (100, "10.0.0.100")] {
        let spec = RouteSpec { metric, ..RouteSpec::via(net("0.0.0.0/0"), ip(next_hop)) };
        builder.route(&spec).unwrap();
    }
    assert_eq!(found(&builder.build(), "1.1.1.1").unwrap().via, Some(ip("10.0.0.5")));
}

#[test]
fn local_kind_identifies_addresses_that_no_remote_host_can_have() {
    let fib = sample().build();
    assert_eq!(fib.local_kind(ip("10.0.0.255")), Some(RouteKind::Broadcast));
    assert_eq!(fib.local_kind(ip("10.0.0.1")), Some(RouteKind::Local));
    assert_eq!(fib.local_kind(ip("224.0.0.1")), Some(RouteKind::Multicast));
    assert_eq!(fib.local_kind(ip("10.0.0.2")), None);
}

#[test]
fn the_first_address_of_a_network_remains_its_source() {
    let mut builder = sample();
    builder.address(DeviceIndex(1), net("10.0.0.2/24")).unwrap();
    let fib = builder.build();
    assert!(fib.is_local(ip("10.0.0.2")));
    assert_eq!(found(&fib, "10.0.0.9").unwrap().prefsrc, Some(ip("10.0.0.1")));
}

/// Every link has the network fe80::/64, so the device of the destination selects the link.
#[test]
fn each_device_has_its_own_link_local_network() {
    let mut builder = sample();
    builder.address(DeviceIndex(1), net("fe80::1/64")).unwrap();
    builder.address(DeviceIndex(2), net("fe80::2/64")).unwrap();
    let on = |builder: &FibBuilder, device, dst: &str| {
        let fib = builder.build();
        let found = fib.lookup_on(DeviceIndex(device), ip(dst));
        found.map(|found| found.entry(ip(dst)).to_string())
    };
    assert_eq!(on(&builder, 1, "fe80::9").unwrap(), "fe80::/64 dev 1");
    assert_eq!(on(&builder, 2, "fe80::9").unwrap(), "fe80::/64 dev 2");
    assert_eq!(on(&builder, 1, "fe80::1").unwrap(), "local fe80::1 dev 1 src fe80::1");
    assert_eq!(
        on(&builder, 1, "fe80::2").unwrap(),
        "fe80::/64 dev 1",
        "fe80::2 counts as local on the link of device 1, where it is another host"
    );
    builder.device_down(DeviceIndex(2));
    assert_eq!(on(&builder, 2, "fe80::9"), None);
    builder.device_up(DeviceIndex(2));
    assert_eq!(on(&builder, 2, "fe80::9").unwrap(), "fe80::/64 dev 2");
}

/// Returns the routes of the main table to a prefix, in the order of their choice.
fn main_routes(builder: &FibBuilder, prefix: &str) -> Vec<String> {
    let listed = builder.entries().into_iter().filter(|entry| entry.prefix == net(prefix));
    listed.filter(|entry| entry.kind != RouteKind::Local).map(|entry| entry.to_string()).collect()
}

/// As Linux, which appends the routes of addresses.
#[test]
fn equal_networks_of_two_devices_have_a_route_each() {
    let mut builder = sample();
    builder.address(DeviceIndex(1), net("10.0.0.3/24")).unwrap();
    builder.address(DeviceIndex(2), net("10.0.0.2/24")).unwrap();
    builder.address(DeviceIndex(2), net("2001:db8::2/64")).unwrap();
    let v4 = ["10.0.0.0/24 dev 1 src 10.0.0.1", "10.0.0.0/24 dev 2 src 10.0.0.2"];
    let v6 = ["2001:db8::/64 dev 1", "2001:db8::/64 dev 2"];
    assert_eq!(main_routes(&builder, "10.0.0.0/24"), v4);
    assert_eq!(main_routes(&builder, "2001:db8::/64"), v6);
    // A gateway of the second device is a neighbor although the first one has the same network.
    let second = RouteSpec {
        device: Some(DeviceIndex(2)),
        ..RouteSpec::via(net("0.0.0.0/0"), ip("10.0.0.254"))
    };
    builder.route(&second).unwrap();
    assert_eq!(found(&builder.build(), "8.8.8.8").unwrap().device, DeviceIndex(2));
    builder.device_down(DeviceIndex(1));
    assert_eq!(main_routes(&builder, "10.0.0.0/24"), v4[1..]);
    assert_eq!(main_routes(&builder, "2001:db8::/64"), v6[1..]);
    builder.device_up(DeviceIndex(1));
    assert_eq!(main_routes(&builder, "10.0.0.0/24"), [v4[1], v4[0]]);
    builder.remove_address(DeviceIndex(2), ip("10.0.0.2"));
    assert_eq!(main_routes(&builder, "10.0.0.0/24"), v4[..1]);
}

#[test]
fn appended_routes_of_two_devices_with_one_metric_coexist() {
    let mut builder = sample();
    let default = |device: u32, mtu: Option<u32>| RouteSpec {
        device: Some(DeviceIndex(device)),
        metric: 1024,
        mtu,
        ..RouteSpec::via(net("::/0"), ip(&format!("fe80::{device}")))
    };
    let listed = |builder: &FibBuilder| main_routes(builder, "::/0");
    builder.append(&default(2, None)).unwrap();
    builder.append(&default(1, None)).unwrap();
    let [one, two] =
        [1, 2].map(|device| format!("default via fe80::{device} dev {device} metric 1024"));
    assert_eq!(listed(&builder), [two.clone(), one.clone()]);
    let error = builder.route(&default(1, None)).unwrap_err();
    assert!(error.to_string().contains("there is a route with this prefix and metric"), "{error}");
    // A change replaces the route of its device only, and does not move it.
    builder.append(&default(2, Some(1400))).unwrap();
    assert_eq!(listed(&builder), [format!("{two} mtu 1400"), one.clone()]);
    builder.replace(&default(1, Some(1300))).unwrap();
    assert_eq!(listed(&builder), [format!("{two} mtu 1400"), format!("{one} mtu 1300")]);
    let better = RouteSpec { metric: 5, ..default(2, None) };
    builder.append(&better).unwrap();
    assert_eq!(listed(&builder)[0], "default via fe80::2 dev 2 metric 5");
    builder.delete(&better).unwrap();
    assert_eq!(found(&builder.build(), "2001:db8:9::1").unwrap().device, DeviceIndex(2));
    builder.delete(&default(2, None)).unwrap();
    assert_eq!(found(&builder.build(), "2001:db8:9::1").unwrap().device, DeviceIndex(1));
    // Without a route of its own device, a route replaces the first one.
    builder.replace(&default(2, None)).unwrap();
    assert_eq!(listed(&builder), [two]);
}

#[test]
fn removing_an_address_removes_its_network_and_the_routes_with_this_source() {
    let mut builder = sample();
    builder.address(DeviceIndex(1), net("10.0.0.2/24")).unwrap();
    builder.address(DeviceIndex(2), net("10.0.0.3/24")).unwrap();
    builder.route(&RouteSpec::via(net("0.0.0.0/0"), ip("10.0.0.254"))).unwrap();
    let shown = |builder: &FibBuilder, dst: &str| {
        found(&builder.build(), dst).map(|entry| entry.to_string())
    };
    assert_eq!(shown(&builder, "8.8.8.8").unwrap(), "default via 10.0.0.254 dev 1 src 10.0.0.1");
    builder.remove_address(DeviceIndex(1), ip("10.0.0.1"));
    // The other address of the device gets a new route, which comes last.
    let left = ["10.0.0.0/24 dev 2 src 10.0.0.3", "10.0.0.0/24 dev 1 src 10.0.0.2"];
    assert_eq!(main_routes(&builder, "10.0.0.0/24"), left);
    let broadcast = shown(&builder, "10.0.0.255").unwrap();
    assert_eq!(broadcast, "broadcast 10.0.0.255 dev 1 src 10.0.0.2");
    assert_eq!(
        shown(&builder, "8.8.8.8"),
        None,
        "a route outlived the address that was its source"
    );
    builder.remove_address(DeviceIndex(1), ip("10.0.0.2"));
    let other = shown(&builder, "10.0.0.9").unwrap();
    assert_eq!(
        other, "10.0.0.0/24 dev 2 src 10.0.0.3",
        "the network is not reachable through the other device"
    );
    builder.remove_address(DeviceIndex(1), ip("2001:db8::1"));
    assert_eq!(shown(&builder, "2001:db8::7"), None);
}

/// A provider assigns a single address (/32), so only an added route makes the gateway an on-link
/// neighbor.
#[test]
fn an_on_link_route_makes_its_destination_a_valid_gateway() {
    let mut builder = Fib::builder(1);
    builder.address(DeviceIndex(0), net("203.0.113.7/32")).unwrap();
    let default = RouteSpec::via(net("0.0.0.0/0"), ip("10.0.0.1"));
    assert_eq!(refused(builder.route(&default)).0, "route via");
    builder.route(&RouteSpec::on_link(net("10.0.0.1/32"), DeviceIndex(0))).unwrap();
    builder.route(&default).unwrap();
    let entry = found(&builder.build(), "8.8.8.8").map(|entry| entry.to_string());
    assert_eq!(entry.unwrap(), "default via 10.0.0.1 dev 0 src 203.0.113.7");
}

#[test]
fn routes_may_be_on_link_unreachable_or_limited_by_an_mtu() {
    let mut builder = sample();
    builder.route(&RouteSpec::on_link(net("172.16.0.9/32"), DeviceIndex(2))).unwrap();
    builder.route(&RouteSpec::of(net("172.16.0.0/12"), RouteKind::Unreachable)).unwrap();
    let mtu = RouteSpec {
        mtu: Some(1400),
        prefsrc: Some(ip("10.0.0.1")),
        ..RouteSpec::via(net("9.0.0.0/8"), ip("192.168.1.1"))
    };
    builder.route(&mtu).unwrap();
    let fib = builder.build();
    assert_eq!(found(&fib, "172.16.0.9").unwrap().to_string(), "172.16.0.9 dev 2 src 192.168.1.2");
    assert_eq!(found(&fib, "172.16.0.8").unwrap().to_string(), "unreachable 172.16.0.0/12");
    let limited = found(&fib, "9.9.9.9").unwrap();
    assert_eq!(limited.to_string(), "9.0.0.0/8 via 192.168.1.1 dev 2 src 10.0.0.1 mtu 1400");
}

#[test]
fn impossible_addresses_are_refused() {
    let bad = [
        "0.0.0.0/8",
        "0.1.2.3/24",
        "127.0.0.2/8",
        "224.0.0.1/24",
        "255.255.255.255/32",
        "10.9.0.0/24",
        "10.9.0.255/24",
        "10.0.0.1/24",
        "10.9.0.1/0",
        "::/64",
        "::1/128",
        "ff02::1/64",
    ];
    for address in bad {
        let (field, value) = refused(sample().address(DeviceIndex(1), net(address)));
        assert_eq!((field, value.as_str()), ("address", net(address).to_string().as_str()));
    }
    assert_eq!(refused(sample().address(DeviceIndex(3), net("10.9.0.1/24"))).0, "device");
}

#[test]
fn impossible_routes_are_refused() {
    let route = |spec: RouteSpec| refused(sample().route(&spec));
    let default = || RouteSpec::via(net("0.0.0.0/0"), ip("10.0.0.254"));
    assert_eq!(route(RouteSpec { via: Some(ip("10.0.1.1")), ..default() }).0, "route via");
    assert_eq!(
        route(RouteSpec { via: Some(ip("10.0.0.1")), ..default() }).0,
        "route via",
        "an address of this host was accepted as next hop"
    );
    assert_eq!(route(RouteSpec { via: Some(ip("10.0.0.255")), ..default() }).0, "route via");
    assert_eq!(route(RouteSpec { via: Some(ip("2001:db8::2")), ..default() }).0, "route via");
    assert_eq!(
        route(RouteSpec { device: Some(DeviceIndex(2)), ..default() }).0,
        "route via",
        "a next hop on another link was accepted"
    );
    assert_eq!(route(RouteSpec { device: Some(DeviceIndex(7)), ..default() }).0, "route dev");
    assert_eq!(route(RouteSpec { via: None, ..default() }).0, "route");
    assert_eq!(route(RouteSpec { kind: RouteKind::Blackhole, ..default() }).0, "route via");
    assert_eq!(route(RouteSpec { kind: RouteKind::Local, ..default() }).0, "route");
    assert_eq!(route(RouteSpec { mtu: Some(67), ..default() }), ("route mtu", "67".to_owned()));
    assert_eq!(route(RouteSpec { prefsrc: Some(ip("10.0.0.2")), ..default() }).0, "route src");
    assert_eq!(route(RouteSpec { prefix: net("10.1.2.3/16"), ..default() }).0, "route");
    assert_eq!(route(RouteSpec { prefix: net("239.0.0.0/8"), ..default() }).0, "route");
    assert_eq!(
        route(RouteSpec::on_link(net("10.0.0.0/24"), DeviceIndex(2))).0,
        "route",
        "a second route with this prefix and metric was accepted"
    );

    let mut builder = sample();
    builder.route(&default()).unwrap();
    let error = builder.route(&default()).unwrap_err();
    assert!(error.to_string().contains("default via 10.0.0.254"), "{error}");
}

fn hop(via: &str, weight: u16) -> HopSpec {
    HopSpec { via: Some(ip(via)), device: None, weight }
}

/// Returns a default route over both devices of [`sample`].
fn two_hops(weights: [u16; 2]) -> RouteSpec {
    let hops = vec![hop("10.0.0.254", weights[0]), hop("192.168.1.1", weights[1])];
    RouteSpec { hops, ..RouteSpec::of(net("0.0.0.0/0"), RouteKind::Unicast) }
}

/// Returns how many of 1,000 evenly spread hashes each device gets.
fn shares(builder: &FibBuilder) -> [usize; 2] {
    let fib = builder.build();
    let route = fib.lookup(ip("8.8.8.8")).unwrap();
    let hashes = (0..1000_u32).map(|index| index * (u32::MAX / 1000));
    let devices: Vec<_> = hashes.map(|hash| route.next_hop(|| hash).device).collect();
    [1, 2].map(|device| devices.iter().filter(|on| **on == DeviceIndex(device)).count())
}

#[test]
fn flows_are_shared_among_next_hops_by_weight() {
    let mut builder = sample();
    builder.route(&two_hops([3, 1])).unwrap();
    let [first, second] = shares(&builder);
    assert!((745..=755).contains(&first) && first + second == 1000, "{first} {second}");
    let listed = found(&builder.build(), "8.8.8.8").unwrap().to_string();
    let both =
        "default nexthop via 10.0.0.254 dev 1 weight 3 nexthop via 192.168.1.1 dev 2 weight 1";
    assert_eq!(listed, both);
    let fib = builder.build();
    let by = |hash| fib.lookup(ip("8.8.8.8")).unwrap().next_hop(|| hash).source;
    assert_eq!([by(0), by(u32::MAX)], [Some(ip("10.0.0.1")), Some(ip("192.168.1.2"))]);
}

#[test]
fn a_next_hop_is_dead_while_its_device_is_down() {
    let mut builder = sample();
    builder.route(&two_hops([1, 1])).unwrap();
    builder.device_down(DeviceIndex(1));
    assert_eq!(shares(&builder), [0, 1000]);
    assert!(found(&builder.build(), "8.8.8.8").unwrap().to_string().contains("weight 1 dead"));
    assert!(!builder.build().has_route_back(ip("8.8.8.8"), Some(DeviceIndex(1))));
    builder.device_up(DeviceIndex(1));
    assert_eq!(shares(&builder).map(|share| share.abs_diff(500) <= 1), [true; 2]);
    builder.device_down(DeviceIndex(2));
    assert_eq!(shares(&builder), [1000, 0]);
    builder.device_down(DeviceIndex(1));
    assert_eq!(found(&builder.build(), "8.8.8.8"), None, "a dead next hop is used");
}

#[test]
fn a_next_hop_gets_another_source_when_its_address_is_removed() {
    let mut builder = sample();
    builder.address(DeviceIndex(1), net("10.0.0.9/24")).unwrap();
    builder.route(&two_hops([1, 1])).unwrap();
    builder.remove_address(DeviceIndex(1), ip("10.0.0.1"));
    let fib = builder.build();
    assert_eq!(fib.lookup(ip("8.8.8.8")).unwrap().next_hop(|| 0).source, Some(ip("10.0.0.9")));
}

#[test]
fn impossible_next_hops_are_refused() {
    let refused = |spec: RouteSpec| refused(sample().route(&spec)).0;
    assert_eq!(refused(two_hops([0, 1])), "route nexthop weight");
    assert_eq!(refused(two_hops([1, 257])), "route nexthop weight");
    let both = RouteSpec { via: Some(ip("10.0.0.254")), ..two_hops([1, 1]) };
    assert_eq!(refused(both), "route nexthop");
    let dropping = RouteSpec { kind: RouteKind::Prohibit, ..two_hops([1, 1]) };
    assert_eq!(refused(dropping), "route nexthop");
    let stranger = RouteSpec { hops: vec![hop("10.9.0.1", 1)], ..two_hops([1, 1]) };
    assert_eq!(refused(stranger), "route via");
}

#[test]
fn a_route_with_several_next_hops_is_deleted_by_naming_them() {
    let mut builder = sample();
    builder.route(&two_hops([1, 1])).unwrap();
    let other = RouteSpec { hops: vec![hop("10.0.0.254", 1)], ..two_hops([1, 1]) };
    assert!(builder.delete(&other).is_err());
    assert!(builder.delete(&RouteSpec::via(net("0.0.0.0/0"), ip("10.0.0.254"))).is_err());
    builder.delete(&two_hops([1, 1])).unwrap();
    assert_eq!(found(&builder.build(), "8.8.8.8"), None);
}

#[test]
fn equal_routes_of_many_prefixes_share_one_allocation() {
    let mut builder = sample();
    for block in 0..=255_u8 {
        let prefix = net(&format!("172.16.{block}.0/24"));
        builder.route(&RouteSpec::via(prefix, ip("10.0.0.254"))).unwrap();
    }
    let fib = builder.build();
    let route = |text: &str| std::ptr::from_ref(fib.lookup(ip(text)).unwrap().route);
    assert_eq!(route("172.16.0.1"), route("172.16.255.1"));
}

proptest! {
    /// The table must return the prefix that a linear scan over all prefixes finds.
    #[test]
    fn lookup_returns_the_longest_matching_prefix(
        prefixes in proptest::collection::vec((any::<u32>(), 0_u8..=32), 0..40),
        near in any::<prop::sample::Index>(), noise in 0_u32..256, random: u32,
    ) {
        let mut builder = Fib::builder(1);
        let mut all = Vec::new();
        for (bits, len) in prefixes {
            let prefix = IpNet::V4(Ipv4Net::new(Ipv4Addr::from_bits(bits), len).unwrap()).trunc();
            let spec = RouteSpec::on_link(prefix, DeviceIndex(0));
            if builder.route(&spec).is_ok() {
                all.push(prefix);
            }
        }
        let fib = builder.build();
        let dst = match all.is_empty() {
            true => Ipv4Addr::from_bits(random),
            false => match all[near.index(all.len())].addr() {
                IpAddr::V4(addr) => Ipv4Addr::from_bits(addr.to_bits() ^ noise),
                IpAddr::V6(_) => unreachable!(),
            },
        };
        let dst = IpAddr::V4(dst);
        let found = fib.lookup(dst).map(|found| found.entry(dst));
        if found.as_ref().is_some_and(|entry| entry.kind != RouteKind::Unicast) {
            return Ok(());
        }
        let expected = all.iter().filter(|prefix| prefix.contains(&dst)).max_by_key(|prefix| prefix.prefix_len());
        prop_assert_eq!(found.as_ref().map(|entry| &entry.prefix), expected);
    }
}
