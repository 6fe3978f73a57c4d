//! Announced routes and addresses over changes of the device, and temporary addresses.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use pkt::EtherType;
use sim::{
    Rig, RigConfig,
    frame::{self, Seen},
    rig::PEER_MAC,
};
use stack::{
    header::ndp::{self, NdpMessage},
    socket::Connection,
    sysctl::Sysctls,
};

use super::ipv6::{give_to, rig, router_advertisement};

/// Returns the routes that advertisements have caused.
fn announced_routes(rig: &Rig) -> Vec<String> {
    let routes = rig.host().routes();
    let announced = routes.iter().filter(|route| matches!(route.metric, 256 | 1024));
    announced.map(|route| route.prefix.to_string()).collect()
}

/// A device that is down takes no route. The announced routes are written again when it comes up,
/// although no advertisement has changed.
#[test]
fn announced_routes_return_when_their_device_comes_up_again() {
    let router: Ipv6Addr = "fe80::ff".parse().unwrap();
    let to_all = ndp::multicast_mac(ndp::ALL_NODES);
    let mut rig = rig(&[("net.ipv6.conf.all.accept_ra", "1")]);
    let host = rig.host();
    host.claim_addresses(&mut rig.world.cx);
    rig.pass(Duration::from_secs(20));
    give_to(&mut rig, to_all, &router_advertisement(router, 1800, Some("2001:db8:1::")));
    rig.pass(Duration::from_secs(5));
    rig.take();
    let expected = ["::/0", "2001:db8:1::/64"];
    assert_eq!(announced_routes(&rig), expected);
    let device = host.device_index("bytes").expect("the device");
    host.set_device_up(&mut rig.world.cx, device, false).expect("a device");
    assert_eq!(announced_routes(&rig), [""; 0]);
    rig.pass(Duration::from_secs(5));
    host.set_device_up(&mut rig.world.cx, device, true).expect("a device");
    rig.pass(Duration::from_secs(2));
    assert_eq!(announced_routes(&rig), expected);
    // RFC 4861 §6.3.7: the routers are asked again.
    let asked = rig.take().into_iter().any(|seen| {
        matches!(seen, Seen::Ndp(ip, NdpMessage::RouterSolicitation { .. })
            if ip.dst == IpAddr::V6(ndp::ALL_ROUTERS))
    });
    assert!(asked, "no solicitation");
    // The routes end with the lifetime of the prefix and the router.
    rig.pass(Duration::from_secs(3600));
    assert_eq!(announced_routes(&rig), [""; 0]);
    drop(host);
    rig.finish();
}

/// As in Linux, where routes with one prefix and metric may lead through different devices.
#[test]
fn the_routes_of_two_links_with_routers_coexist() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv6.conf.all.accept_ra", "1").expect("a setting");
    let config = RigConfig { ipv6: true, second_link: true, sysctls, ..RigConfig::default() };
    let mut rig = Rig::new(config);
    let host = rig.host();
    host.claim_addresses(&mut rig.world.cx);
    rig.pass(Duration::from_secs(20));
    let to_all = ndp::multicast_mac(ndp::ALL_NODES);
    let [first, second] = ["fe80::a", "fe80::b"].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
    // Both routers announce one prefix, as on two links of one site, and the second one its own.
    let told = router_advertisement(first, 1800, Some("2001:db8:1::"));
    give_to(&mut rig, to_all, &told);
    let other = rig.other.clone().expect("two devices");
    for prefix in ["2001:db8:1::", "2001:db8:2::"] {
        let told = router_advertisement(second, 1800, Some(prefix));
        let bytes = frame::ethernet(to_all, PEER_MAC, EtherType::IPV6, &told);
        assert!(other.deliver(&mut rig.world.cx, &bytes));
        rig.settle();
    }
    rig.pass(Duration::from_secs(5));
    let routes = |rig: &Rig| -> Vec<String> {
        let routes = rig.host().routes();
        let announced = routes.iter().filter(|route| matches!(route.metric, 256 | 1024));
        announced.map(ToString::to_string).collect()
    };
    let all = [
        "default via fe80::a dev 1 metric 1024",
        "default via fe80::b dev 2 metric 1024",
        "2001:db8:1::/64 dev 1 metric 256",
        "2001:db8:1::/64 dev 2 metric 256",
        "2001:db8:2::/64 dev 2 metric 256",
    ];
    assert_eq!(routes(&rig), all);
    // Without the first device, packets leave through the second one, and the other way round.
    let outside: SocketAddr = "[2001:db8:ffff::9]:80".parse().unwrap();
    let source = |rig: &mut Rig| {
        let socket = Connection::connect(&host, &mut rig.world.cx, None, outside);
        let socket = socket.expect("a default route");
        let local = socket.local().ip();
        socket.abort(&host, &mut rig.world.cx);
        local
    };
    let by_first = source(&mut rig);
    for (name, left) in
        [("bytes", [all[1], all[3], all[4]].as_slice()), ("other", &[all[0], all[2]])]
    {
        let device = host.device_index(name).expect("the device");
        host.set_device_up(&mut rig.world.cx, device, false).expect("a device");
        assert_eq!(routes(&rig), left, "without {name}");
        assert_eq!(source(&mut rig) == by_first, name == "other", "without {name}");
        host.set_device_up(&mut rig.world.cx, device, true).expect("a device");
        rig.pass(Duration::from_secs(1));
        let mut returned = routes(&rig);
        returned.sort_by_key(|route| all.iter().position(|known| known == route));
        assert_eq!(returned, all, "after {name} came up");
    }
    while other.take().is_some() {}
    rig.take();
    drop(host);
    rig.finish();
}

/// RFC 8981.
#[test]
fn a_connection_uses_a_temporary_address_if_they_are_preferred() {
    let router: Ipv6Addr = "fe80::ff".parse().unwrap();
    let outside: SocketAddr = "[2001:db8:ffff::9]:80".parse().unwrap();
    let to_all = ndp::multicast_mac(ndp::ALL_NODES);
    for (mode, is_temporary) in [("0", false), ("1", false), ("2", true)] {
        let settings =
            [("net.ipv6.conf.all.accept_ra", "1"), ("net.ipv6.conf.all.use_tempaddr", mode)];
        let mut rig = rig(&settings);
        let host = rig.host();
        host.claim_addresses(&mut rig.world.cx);
        give_to(&mut rig, to_all, &router_advertisement(router, 1800, Some("2001:db8:1::")));
        rig.pass(Duration::from_secs(5));
        let formed: Vec<_> = host
            .routes()
            .iter()
            .filter(|route| route.prefix.prefix_len() == 128)
            .filter_map(|route| match route.prefix.addr() {
                IpAddr::V6(ip) if ip.segments()[..3] == [0x2001, 0xdb8, 1] => Some(ip),
                _ => None,
            })
            .collect();
        assert_eq!(formed.len(), if mode == "0" { 1 } else { 2 }, "use_tempaddr {mode}");
        let connect = |rig: &mut Rig| {
            let socket = Connection::connect(&host, &mut rig.world.cx, None, outside);
            let socket = socket.expect("a default route");
            let local = socket.local().ip();
            socket.abort(&host, &mut rig.world.cx);
            local
        };
        let chosen = connect(&mut rig);
        // Without a preference the stable address is selected.
        host.set_sysctl("net.ipv6.conf.all.use_tempaddr", "0").expect("a setting");
        assert_eq!(connect(&mut rig) != chosen, is_temporary, "use_tempaddr {mode}");
        drop(host);
        rig.finish();
    }
}
