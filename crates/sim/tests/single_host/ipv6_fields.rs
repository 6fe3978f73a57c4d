//! IPv6 header fields that a socket sets: hop limit, traffic class, flow label.

use std::net::SocketAddr;

use sim::frame::Seen;
use stack::socket::{ConnectOptions, Connection, options::SocketOption};

use super::ipv6::rig;

/// Returns traffic class, hop limit and flow label of the segments in `seen`.
fn ip_fields(seen: &[Seen]) -> Vec<(u8, u8, u32)> {
    let fields = seen.iter().filter_map(|seen| match seen {
        Seen::Tcp(ip, ..) => Some((ip.traffic_class, ip.hop_limit, ip.flow_label)),
        _ => None,
    });
    fields.collect()
}

#[test]
fn a_socket_sets_the_fields_of_each_ip_version() {
    let mut rig = rig(&[]);
    let settings = ConnectOptions::default()
        .hop_limit(9)
        .traffic_class(0xb9)
        .auto_flow_label(false)
        .ttl(5)
        .tos(0x10);
    let host = rig.host();
    for (remote, expected) in [
        ("[fd00::2]:80", (0xb8, 9, 0)),
        ("[::ffff:10.0.0.2]:80", (0x10, 5, 0)),
        ("10.0.0.2:80", (0x10, 5, 0)),
    ] {
        let remote: SocketAddr = remote.parse().unwrap();
        let socket = Connection::connect_with(&host, &mut rig.world.cx, remote, &settings);
        let socket = socket.expect("a route");
        assert_eq!(ip_fields(&rig.take_ip()), [expected], "{remote}");
        let set = socket.set_option(&host, &mut rig.world.cx, SocketOption::UnicastHops, &7.into());
        assert_eq!(set.is_ok(), remote.is_ipv6(), "{remote}");
        socket.abort(&host, &mut rig.world.cx);
    }
    drop(host);
    rig.finish();
}

/// The modes of Linux's `auto_flowlabels`.
#[test]
fn flow_labels_follow_the_setting_and_the_socket() {
    for (mode, socket_says, is_labeled) in [
        ("0", Some(true), false),
        ("1", None, true),
        ("1", Some(false), false),
        ("2", None, false),
        ("2", Some(true), true),
        ("3", Some(false), true),
    ] {
        let mut rig = rig(&[("net.ipv6.auto_flowlabels", mode)]);
        let mut settings = ConnectOptions::default();
        if let Some(on) = socket_says {
            settings = settings.auto_flow_label(on);
        }
        let host = rig.host();
        let remote: SocketAddr = "[fd00::2]:80".parse().unwrap();
        let socket = Connection::connect_with(&host, &mut rig.world.cx, remote, &settings);
        let socket = socket.expect("a route");
        let fields = ip_fields(&rig.take_ip());
        let labels: Vec<_> = fields.iter().map(|(.., label)| *label != 0).collect();
        assert_eq!(labels, [is_labeled], "mode {mode}, the socket says {socket_says:?}");
        socket.abort(&host, &mut rig.world.cx);
        drop((socket, host));
        rig.finish();
    }
}
