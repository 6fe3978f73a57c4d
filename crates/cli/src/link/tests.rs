use quietline::device::TunConfig;

use super::*;
use crate::args::Stats;

fn args(link: &str, address: &str) -> LinkArgs {
    LinkArgs {
        link: Some(link.parse().expect("link")),
        address: Some(address.parse().expect("address")),
        peer: None,
        gateway: None,
        cores: None,
        queues: None,
        mtu: None,
        no_vnet_hdr: false,
        qdisc: None,
        no_sandbox: false,
        sysctl: Vec::new(),
        dns: Vec::new(),
        config: None,
    }
}

/// Returns the device of the only link, if the options are accepted.
fn device(args: &LinkArgs) -> Option<LinkDevice> {
    let mut host = args.check(&QUIET).ok()??;
    assert_eq!(host.links.len(), 1);
    Some(host.links.remove(0).device)
}

const QUIET: ObserveArgs = ObserveArgs { pcap: None, stats: None, json: false };

fn refused(args: &LinkArgs) -> bool {
    matches!(args.check(&QUIET), Err(Failure::Usage(_)))
}

#[test]
fn link_specifications_are_parsed() {
    let device = |device| Ok(LinkSpec::Device(LinkDevice::Tun(device)));
    assert_eq!("tap:ql0".parse(), device(TunConfig::tap("ql0")));
    assert_eq!("tun:a-b_c.1".parse(), device(TunConfig::tun("a-b_c.1")));
    assert_eq!("kernel".parse(), Ok(LinkSpec::Kernel));
    let reason = "veth:x".parse::<LinkSpec>().expect_err("no such kind");
    assert!(reason.ends_with("af_xdp:IF[,OPTION...] or kernel"), "{reason}");
    for text in [
        "",
        "tap",
        "tap:",
        "tap:a b",
        "tap:a/b",
        "tap:tap%d",
        "tap:..",
        "veth:x",
        "tap:0123456789abcdef",
    ] {
        assert!(text.parse::<LinkSpec>().is_err(), "{text}");
    }
}

#[test]
fn sysctls_split_at_the_first_equals_sign() {
    let sysctl: Sysctl = "net.ipv4.tcp_rmem = 4096 131072 6291456".parse().expect("sysctl");
    assert_eq!(
        (sysctl.name.as_str(), sysctl.value.as_str()),
        ("net.ipv4.tcp_rmem", "4096 131072 6291456")
    );
    assert!("net.ipv4.tcp_rmem".parse::<Sysctl>().is_err());
    assert!("=1".parse::<Sysctl>().is_err());
}

#[test]
fn only_host_addresses_are_accepted() {
    assert!(args("tap:q", "10.0.0.2/24").check(&QUIET).is_ok());
    assert!(args("tap:q", "10.0.0.0/31").check(&QUIET).is_ok());
    assert!(args("tap:q", "10.0.0.9/32").check(&QUIET).is_ok());
    assert!(args("tap:q", "fd00::2/64").check(&QUIET).is_ok());
    for address in [
        "::ffff:10.0.0.2/120",
        "ff02::1/64",
        "0.0.0.0/0",
        "10.0.0.0/24",
        "10.0.0.255/24",
        "224.0.0.1/4",
        "127.0.0.2/8",
        "255.255.255.255/32",
    ] {
        assert!(refused(&args("tap:q", address)), "{address}");
    }
}

#[test]
fn a_peer_or_gateway_outside_the_link_is_refused() {
    let mut link = args("tap:q", "10.0.0.2/24");
    link.gateway = Some("10.0.1.1".parse().expect("address"));
    assert!(refused(&link));
    link.gateway = Some("10.0.0.2".parse().expect("address"));
    assert!(refused(&link));
    link.gateway = Some("fe80::1".parse().expect("address"));
    assert!(refused(&link));
    link.gateway = Some("10.0.0.1".parse().expect("address"));
    assert!(link.check(&QUIET).is_ok());
    link.peer = Some("10.0.0.2/24".parse().expect("address"));
    assert!(refused(&link));
    link.peer = Some("10.0.0.1/24".parse().expect("address"));
    assert!(link.check(&QUIET).is_ok());
}

#[test]
fn ends_of_a_link_that_cannot_reach_each_other_are_refused() {
    for (address, peer) in [
        ("10.0.0.2/24", "10.0.1.1/24"),
        ("10.0.0.2/24", "10.0.0.1/32"),
        ("10.0.0.2/32", "10.0.0.1/24"),
        ("10.0.0.130/25", "10.0.0.1/24"),
    ] {
        let mut link = args("tap:q", address);
        link.peer = Some(peer.parse().expect("address"));
        assert!(refused(&link), "{address} {peer}");
    }
    let mut link = args("tap:q", "10.0.0.2/24");
    link.peer = Some("10.0.0.1/8".parse().expect("address"));
    assert!(link.check(&QUIET).is_ok());
}

#[test]
fn an_existing_interface_keeps_its_mtu_and_refuses_a_peer() {
    let mut link = args("af_packet:eth0,rx=v3", "10.0.0.2/24");
    let device = |link: &LinkArgs| match device(link) {
        Some(LinkDevice::AfPacket(config)) => Some(config),
        _ => None,
    };
    let config = device(&link).expect("good");
    assert_eq!((config.interface.as_str(), config.mtu, config.queues), ("eth0", None, 1));
    link.cores = Some(2);
    link.mtu = Some(1400);
    link.no_vnet_hdr = true;
    let config = device(&link).expect("good");
    assert_eq!((config.mtu, config.queues, config.vnet_hdr), (Some(1400), 2, false));
    link.peer = Some("10.0.0.1/24".parse().expect("address"));
    assert!(refused(&link));
    for text in ["af_packet", "af_packet:", "af_packet:a b", "af_packet:e,rx=v9"] {
        assert!(text.parse::<LinkSpec>().is_err(), "{text}");
    }
}

#[test]
fn af_xdp_uses_all_queues_by_default() {
    let mut link = args("af_xdp:eth0,mode=generic,ring=256", "10.0.0.2/24");
    let device = |link: &LinkArgs| match device(link) {
        Some(LinkDevice::AfXdp(config)) => Some(config),
        _ => None,
    };
    let config = device(&link).expect("good");
    assert_eq!((config.interface.as_str(), config.mtu, config.queues), ("eth0", None, None));
    assert_eq!(config.ring, 256);
    link.cores = Some(2);
    link.queues = Some(3);
    link.mtu = Some(1400);
    let config = device(&link).expect("good");
    assert_eq!((config.mtu, config.queues), (Some(1400), Some(3)));
    link.no_vnet_hdr = true;
    assert!(refused(&link));
    link.no_vnet_hdr = false;
    link.peer = Some("10.0.0.1/24".parse().expect("address"));
    assert!(refused(&link));
    for text in ["af_xdp", "af_xdp:", "af_xdp:a b", "af_xdp:e,mode=best"] {
        assert!(text.parse::<LinkSpec>().is_err(), "{text}");
    }
}

#[test]
fn link_kernel_refuses_link_options() {
    assert!(refused(&args("kernel", "10.0.0.2/24")));
    let mut link = args("kernel", "10.0.0.2/24");
    link.address = None;
    assert!(matches!(link.check(&QUIET), Ok(None)));
    for (cores, mtu) in [(Some(2), None), (Some(1), None), (None, Some(1500))] {
        assert!(refused(&LinkArgs { cores, mtu, address: None, ..args("kernel", "10.0.0.2/24") }));
    }
    let counting = ObserveArgs { stats: Some(Stats::default()), ..QUIET };
    assert!(matches!(link.check(&counting), Err(Failure::Usage(_))));
    link.link = Some("tap:q".parse().expect("a link"));
    assert!(refused(&link));
}

#[test]
fn a_mistyped_setting_is_answered_with_the_nearest_name() {
    let mut link = args("tap:q", "10.0.0.2/24");
    link.sysctl = vec!["net.ipv4.tcp_timestamp=0".parse().expect("a name and a value")];
    let Err(Failure::Usage(message)) = link.check(&QUIET) else { panic!("accepted") };
    assert!(message.contains("did you mean net.ipv4.tcp_timestamps?"), "{message}");
    link.sysctl = vec!["net.quietline.dev.q.rps_cpus=0".parse().expect("a name and a value")];
    assert!(link.check(&QUIET).is_ok());
}

#[test]
fn an_address_by_dhcp_needs_ethernet_and_no_gateway() {
    let mut link = args("tap:q", "dhcp");
    let host = link.check(&QUIET).expect("accepted").expect("a stack");
    assert_eq!(host.dhcp_clients().len(), 1);
    assert_eq!(listening_address(&host, false), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    link.peer = Some("10.0.0.1/24".parse().expect("address"));
    assert!(link.check(&QUIET).is_ok());
    link.gateway = Some("10.0.0.1".parse().expect("address"));
    assert!(refused(&link));
    assert!(refused(&args("tun:q", "dhcp")));
    assert!(!refused(&args("af_packet:q", "dhcp")) && !refused(&args("af_xdp:q", "dhcp")));
}

#[test]
fn a_host_file_replaces_the_link_options() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let text = "[[link]]\ndevice = \"tap:a\"\naddresses = [\"10.0.0.2/24\", \"fd00::2/64\"]\n";
    io::Write::write_all(&mut file, text.as_bytes()).expect("written");
    let mut link = args("tap:q", "dhcp");
    link.config = Some(file.path().to_owned());
    assert!(refused(&link), "--link and --config");
    (link.link, link.address) = (None, None);
    link.dns = vec!["10.0.0.53:53".parse().expect("a server")];
    link.sysctl = vec!["net.ipv4.tcp_sack=0".parse().expect("a setting")];
    let host = link.check(&QUIET).expect("accepted").expect("a stack");
    assert_eq!((host.links.len(), host.dns.servers.len(), families(&host)), (1, 1, (true, true)));
    assert_eq!(host.sysctls.last(), Some(&("net.ipv4.tcp_sack".to_owned(), "0".to_owned())));
    assert_eq!(listening_address(&host, false), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    assert_eq!(listening_address(&host, true), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    link.config = Some("/nowhere/host.toml".into());
    let Err(Failure::Usage(message)) = link.check(&QUIET) else { panic!("accepted") };
    assert!(message.starts_with("/nowhere/host.toml: "), "{message}");
}
