use super::*;
use crate::dhcp::ClientId;

/// The example of the documentation.
const EXAMPLE: &str = include_str!("../../../host.toml");

/// The page that contains the example and describes every field.
const PAGE: &str = include_str!("../../../../../docs/host-file.md");

fn refusal(text: &str) -> String {
    match Host::parse(text) {
        Err(error) => error.to_string(),
        Ok(host) => panic!("accepted: {host:?}"),
    }
}

fn link(fields: &str) -> String {
    format!("[[link]]\ndevice = \"tap:ql0\"\naddresses = [\"10.0.0.2/24\"]\n{fields}\n")
}

#[test]
fn the_example_of_the_documentation_is_a_host() {
    let host = Host::parse(EXAMPLE).expect("a valid file");
    assert!(PAGE.contains(EXAMPLE.trim()), "docs/host-file.md shows another file");
    assert_eq!((host.name.as_deref(), host.cores, host.links.len()), (Some("front"), 2, 2));
    let [front, back] = &host.links[..] else { panic!("two links") };
    let LinkDevice::Tun(tap) = &front.device else { panic!("a tap") };
    assert_eq!((tap.name.as_str(), tap.mtu, tap.queues), ("ql0", 9000, 2));
    assert_eq!(tap.host_address, Some("10.7.0.1/24".parse().expect("a network")));
    assert_eq!(front.addresses.len(), 2);
    assert_eq!(front.neighbors.len(), 1);
    assert_eq!(front.sysctls, [("rps_cpus".to_owned(), "3".to_owned())]);
    let dhcp = back.dhcp.as_ref().expect("a client");
    assert_eq!(
        (dhcp.hostname.as_deref(), &dhcp.client_id),
        (Some("front"), &ClientId::Duid { iaid: 1, duid: None })
    );
    assert_eq!(host.routes.len(), 2);
    assert_eq!(
        host.dns.servers,
        ["10.7.0.1:53".parse().expect("a server"), "[fd00::53]:5353".parse().expect("a server")]
    );
    assert_eq!(host.dns.hosts["printer"].len(), 2);
    assert_eq!(host.dhcp_clients().len(), 1);
}

#[test]
fn every_field_of_the_file_is_described() {
    let fields = [
        "name",
        "cores",
        "routes",
        "link.device",
        "link.addresses",
        "link.dhcp",
        "link.slaac",
        "link.peer",
        "link.mtu",
        "link.queues",
        "link.vnet-hdr",
        "link.qdisc",
        "link.neighbor",
        "link.sysctl",
        "link.dhcp.hostname",
        "link.dhcp.client-id",
        "link.dhcp.start-delay-ms",
        "sysctl",
        "dns.servers",
        "dns.search",
        "dns.timeout-ms",
        "dns.attempts",
        "hosts",
    ];
    for field in fields {
        assert!(
            PAGE.contains(&format!("| `{field}` |")),
            "{field} has no row in docs/host-file.md"
        );
    }
}

#[test]
fn an_empty_file_is_a_host_with_loopback_alone() {
    assert_eq!(Host::parse(""), Ok(Host::default()));
}

/// Fails unless each text is refused in one line that contains the expected part.
fn ensure_refused<'a>(cases: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let refused = refusal(text);
        if !refused.contains(expected) || refused.contains('\n') {
            wrong.push(format!("{text}\n=> {refused}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn errors_of_a_field_name_its_line() {
    for (fields, expected) in [
        ("mtuu = 5", "4: link.mtuu: unknown field `mtuu`, expected one of"),
        ("mtu = 5", "4: link.mtu: mtu \"5\" is not allowed: 68 to 65521"),
        ("mtu = -1", "4: link.mtu: invalid value: integer `-1`"),
        ("qdisc = \"magic\"", "4: link.qdisc: \"magic\": "),
        ("dhcp = 7", "4: link.dhcp: invalid type: integer `7`, expected true, false or a table"),
        ("dhcp = { host = \"a\" }", "4: link.dhcp: unknown field `host`"),
        ("dhcp = { hostname = \"a b\" }", "4: link.dhcp: expected a host name"),
        ("dhcp = { client-id = \"0\" }", "4: link.dhcp: \"0\": expected link-address"),
        ("[link.sysctl]\nrps_cpu = 3", "5: link.sysctl.rps_cpu: sysctl "),
        ("[[link.neighbor]]\naddress = \"10.0.0.3\"\nmac = \"x\"", "6: link.neighbor.mac: \"x\": "),
        (
            "[sysctl]\n\"net.ipv4.tcp_sack\" = 2",
            "5: sysctl.net.ipv4.tcp_sack: sysctl net.ipv4.tcp_sack: \"2\" is not allowed",
        ),
    ] {
        ensure_refused([(&*link(fields), &*format!("host file:{expected}"))]);
    }
}

#[test]
fn errors_name_the_line_and_the_field() {
    ensure_refused([
        ("cores = 0", "host file:1: cores: expected a number from 1 to 64"),
        ("\ncores = \"x\"", "host file:2: cores: invalid type: string \"x\", expected u16"),
        ("[[link]]\ndevice = \"bridge:x\"", "file:2: link.device: \"bridge:x\": expected tap:NAME"),
        ("[[link]]\naddresses = []", "missing field `device`"),
        ("[[link]]\ndevice = \"tap:a\"", "file:2: link.device: the link has no address"),
        (
            "[[link]]\ndevice = \"tap:a\"\naddresses = [\n\"10.0.0.1/24\",\n\"10.0.0.0/24\"]",
            "file:3: link.addresses: \"10.0.0.0/24\": it is the network's address",
        ),
        (
            "[[link]]\ndevice = \"tun:a\"\ndhcp = true",
            "file:3: link.dhcp: DHCP needs a link with Ethernet frames",
        ),
        (
            "[[link]]\ndevice = \"af_packet:e\"\ndhcp = true\npeer = \"10.0.0.1/24\"",
            "file:4: link.peer: has no use with af_packet",
        ),
        (
            "[[link]]\ndevice = \"af_xdp:e\"\ndhcp = true\nvnet-hdr = true",
            "file:4: link.vnet-hdr: has no use with af_xdp",
        ),
        ("routes = [\"default via\"]", "file:1: routes: \"default via\": route "),
        ("routes = [\"default via 10.0.0.1 dev x\"]", "file:1: routes: no link has the device x"),
        ("[dns]\nservers = [\"a\"]", "file:2: dns.servers: \"a\": expected an IP address"),
        ("[dns]\ntimeout-ms = 0", "file:2: dns.timeout-ms: expected a number from 1 to 60000"),
        ("[dns]\nattempts = 11", "file:2: dns.attempts: expected a number from 1 to 10"),
        ("[hosts]\na = [\"b\"]", "file:2: hosts.a: "),
        ("a = [", "file:1: "),
    ]);
}

#[test]
fn links_that_contradict_each_other_are_refused() {
    let twice = link("") + &link("");
    assert_eq!(refusal(&twice), "host file:6: link.device: another link has this device");
    let mixed = link("slaac = true") + "[[link]]\ndevice = \"tap:b\"\ndhcp = true\n";
    assert!(
        refusal(&mixed).contains(":6: link.device: `slaac` must be true for all links"),
        "{}",
        refusal(&mixed)
    );
    let both = link("slaac = true") + "[[link]]\ndevice = \"tap:b\"\nslaac = true\n";
    assert!(Host::parse(&both).is_ok());
}

#[test]
fn a_missing_file_is_named() {
    let error = Host::read(Path::new("/nowhere/host.toml")).expect_err("no such file");
    assert!(error.to_string().starts_with("/nowhere/host.toml: No such file"), "{error}");
}

proptest::proptest! {
    #[test]
    fn any_text_is_accepted_or_refused_in_one_line(text in "[a-z0-9=\"\\[\\]. \n{},-]{0,200}") {
        if let Err(error) = Host::parse(&text) {
            proptest::prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
