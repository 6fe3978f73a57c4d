//! From `--link tap:ql0 --address ...` to a host with sockets.
//!
//! Checks here need two options together or knowledge of IP addressing; single values were checked by `args`.

use std::{io, net::IpAddr, path::Path, str::FromStr, sync::Arc};

use anyhow::Context as _;
use ipnet::IpNet;
use quietline::{
    ConfigError, Snapshot, SoftnetStat, Stack, TxQueueStats,
    device::{
        AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, Capture, CaptureConfig, SetupError, Tun,
        TunConfig,
    },
};

use crate::{
    args::{LinkArgs, ObserveArgs},
    failure::Failure,
    output,
};

/// Longest interface name Linux takes: IFNAMSIZ without its terminating zero.
const NAME_BYTES_MAX: usize = 15;

/// `--link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkSpec {
    /// An Ethernet link to the kernel.
    Tap(String),
    /// An IP link to the kernel.
    Tun(String),
    /// An interface of the machine's, by packet sockets.
    AfPacket(AfPacketConfig),
    /// An interface of the machine's, whose queues are taken from the kernel.
    AfXdp(AfXdpConfig),
    /// No link: the machine's own sockets, to compare with.
    Kernel,
}

/// `--sysctl`: a name and its value. The stack knows which names exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// The Linux name.
    pub(crate) name: String,
    /// The value as written.
    pub(crate) value: String,
}

/// A link that can be opened: `LinkArgs` whose options fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkConfig {
    /// Its device.
    pub(crate) device: LinkDevice,
    /// Our address.
    pub(crate) address: IpNet,
}

/// The device of a link, with what belongs to it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkDevice {
    /// Made for the run: a tap or a tun.
    Tun(TunConfig),
    /// An interface that exists.
    AfPacket(AfPacketConfig),
    /// Queues of one.
    AfXdp(AfXdpConfig),
}

/// MTU of a link made for the run, where nothing else is asked for.
const MTU_DEFAULT: u32 = 1500;

/// A stack on its link, and what records it.
#[derive(Debug)]
pub(crate) struct OpenLink {
    /// The stack.
    pub(crate) stack: Stack,
    /// Our address.
    pub(crate) address: IpAddr,
    capture: Option<Recording>,
}

/// What a stack has counted.
#[derive(Debug)]
pub(crate) struct Books {
    /// By Linux's names, over all cores.
    counters: Snapshot,
    /// A line for each core.
    softnet: Vec<SoftnetStat>,
    /// A row for each transmit queue.
    tx_queues: Vec<TxQueueStats>,
}

impl Books {
    /// As text: the counters as nstat prints them, then /proc/net/softnet_stat, then what tc -s qdisc shows.
    pub(crate) fn text(&self) -> String {
        let lines: String = self.softnet.iter().map(|line| format!("{line}\n")).collect();
        let queues: String = self.tx_queues.iter().map(|row| format!("{row}\n")).collect();
        let counters = output::counter_lines(self.counters.iter());
        format!("{counters}\nsoftnet_stat\n{lines}\n{queues}")
    }

    /// Adds them to a JSON object.
    pub(crate) fn add_to(&self, summary: &mut serde_json::Value) {
        summary["counters"] = output::counter_object(self.counters.iter());
        summary["softnet_stat"] = self.softnet.iter().map(softnet_object).collect();
        summary["qdisc"] = self.tx_queues.iter().map(queue_object).collect();
    }
}

fn softnet_object(stat: &SoftnetStat) -> serde_json::Value {
    serde_json::json!({
        "core": stat.core,
        "processed": stat.processed,
        "dropped": stat.dropped,
        "time_squeeze": stat.time_squeeze,
        "received_rps": stat.received_rps,
        "flow_limit": stat.flow_limit,
        "input_qlen": stat.input_qlen,
        "process_qlen": stat.process_qlen,
    })
}

fn queue_object(row: &TxQueueStats) -> serde_json::Value {
    serde_json::json!({
        "dev": row.device,
        "queue": row.queue.0,
        "kind": row.qdisc.to_string(),
        "bytes": row.stats.bytes,
        "packets": row.stats.packets,
        "drops": row.stats.drops,
        "overlimits": row.stats.overlimits,
        "requeues": row.requeues,
        "ecn_mark": row.stats.ecn_marks,
        "backlog": row.stats.backlog_bytes,
        "qlen": row.stats.qlen,
        "bql_limit": row.bql_limit,
        "bql_inflight": row.bql_inflight,
    })
}

/// A capture and the name of its file.
#[derive(Debug)]
pub(crate) struct Recording {
    capture: Arc<Capture>,
    file: String,
}

impl LinkArgs {
    /// Checks the options against each other. `None` for the kernel's own sockets.
    pub(crate) fn check(&self, observe: &ObserveArgs) -> Result<Option<LinkConfig>, Failure> {
        let device = match &self.link {
            LinkSpec::Kernel => return self.check_kernel(observe).map(|()| None),
            LinkSpec::Tap(name) => self.made_for_the_run(TunConfig::tap(name)),
            LinkSpec::Tun(name) => self.made_for_the_run(TunConfig::tun(name)),
            LinkSpec::AfPacket(base) => {
                self.check_existing("af_packet")?;
                LinkDevice::AfPacket(AfPacketConfig {
                    queues: self.queues.unwrap_or(self.cores),
                    vnet_hdr: !self.no_vnet_hdr,
                    mtu: self.mtu,
                    ..base.clone()
                })
            }
            LinkSpec::AfXdp(base) => {
                self.check_existing("af_xdp")?;
                if self.no_vnet_hdr {
                    let reason = "--no-vnet-hdr has no use with --link af_xdp";
                    return Err(Failure::Usage(reason.to_owned()));
                }
                LinkDevice::AfXdp(AfXdpConfig {
                    queues: self.queues.or(base.queues),
                    mtu: self.mtu,
                    ..base.clone()
                })
            }
        };
        let Some(address) = self.address else {
            return Err(Failure::Usage("a link other than kernel needs --address A/N".to_owned()));
        };
        check_host_address("--address", address)?;
        if let Some(peer) = self.peer {
            check_host_address("--peer", peer)?;
            check_same_family("--peer", peer.addr(), address)?;
            if peer.addr() == address.addr() {
                return Err(Failure::option("--peer", peer, "it is our own address"));
            }
        }
        if let Some(gateway) = self.gateway {
            check_same_family("--gateway", gateway, address)?;
            if gateway == address.addr() {
                return Err(Failure::option("--gateway", gateway, "it is our own address"));
            }
            if !address.contains(&gateway) {
                let reason = format!("it is not on the link {}", address.trunc());
                return Err(Failure::option("--gateway", gateway, reason));
            }
        }
        Ok(Some(LinkConfig { device, address }))
    }

    /// Creates the link and starts the stack on it.
    pub(crate) fn open(
        &self,
        config: &LinkConfig,
        observe: &ObserveArgs,
    ) -> Result<OpenLink, Failure> {
        let capture =
            observe.pcap.as_deref().map(|path| Recording::start(path, &CaptureConfig::default()));
        let capture = capture.transpose()?;
        let mut builder = match &config.device {
            LinkDevice::Tun(tun) => {
                let device = Tun::create(tun).map_err(refused_device)?;
                Stack::builder().name(&tun.name).device(device)
            }
            LinkDevice::AfPacket(packet) => {
                let device = AfPacket::open(packet).map_err(refused_device)?;
                Stack::builder().name(&packet.interface).device(device)
            }
            LinkDevice::AfXdp(xdp) => {
                let device = AfXdp::open(xdp).map_err(refused_device)?;
                output::remark(&format!("quietline: {}", device.describe()));
                Stack::builder().name(&xdp.interface).device(device)
            }
        }
        .address(config.address)
        .cores(self.cores);
        if let Some(gateway) = self.gateway {
            builder = builder.gateway(gateway);
        }
        if let Some(qdisc) = self.qdisc {
            builder = builder.qdisc(qdisc);
        }
        for Sysctl { name, value } in &self.sysctl {
            builder = builder.sysctl(name, value);
        }
        if let Some(recording) = &capture {
            builder = builder.capture(recording.handle());
        }
        let stack = builder.build().map_err(refused)?;
        Ok(OpenLink { stack, address: config.address.addr(), capture })
    }

    fn made_for_the_run(&self, base: TunConfig) -> LinkDevice {
        LinkDevice::Tun(TunConfig {
            queues: self.queues.unwrap_or(self.cores),
            vnet_hdr: !self.no_vnet_hdr,
            mtu: self.mtu.unwrap_or(MTU_DEFAULT),
            host_address: self.peer,
            ..base
        })
    }

    /// An interface that exists has its addresses already, and its other end is not ours to configure.
    fn check_existing(&self, kind: &str) -> Result<(), Failure> {
        match self.peer {
            Some(_) => Err(Failure::Usage(format!("--peer has no use with --link {kind}"))),
            None => Ok(()),
        }
    }

    /// `--link kernel` has nothing to configure, and an option that would do nothing is a mistake.
    fn check_kernel(&self, observe: &ObserveArgs) -> Result<(), Failure> {
        let useless = [
            (self.address.is_some(), "--address"),
            (self.peer.is_some(), "--peer"),
            (self.gateway.is_some(), "--gateway"),
            (self.queues.is_some(), "--queues"),
            (self.no_vnet_hdr, "--no-vnet-hdr"),
            (self.qdisc.is_some(), "--qdisc"),
            (!self.sysctl.is_empty(), "--sysctl"),
            (observe.pcap.is_some(), "--pcap"),
            (observe.stats, "--stats"),
        ];
        match useless.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => {
                Err(Failure::Usage(format!("{option} has no use with --link kernel")))
            }
            None => Ok(()),
        }
    }
}

impl OpenLink {
    /// Ends the stack and the capture. Returns what was counted until then.
    pub(crate) fn close(self) -> Result<Books, Failure> {
        let books = Books {
            counters: self.stack.counters(),
            softnet: self.stack.softnet_stat(),
            tx_queues: self.stack.tx_queue_stats(),
        };
        self.stack.shutdown();
        if let Some(recording) = self.capture {
            recording.finish()?;
        }
        Ok(books)
    }
}

impl Recording {
    /// Starts to write a file.
    pub(crate) fn start(path: &Path, config: &CaptureConfig) -> Result<Self, Failure> {
        let capture = Capture::create(path, config).map_err(anyhow::Error::new)?;
        Ok(Self { capture, file: path.display().to_string() })
    }

    /// The capture, for a stack's builder.
    pub(crate) fn handle(&self) -> Arc<Capture> {
        Arc::clone(&self.capture)
    }

    /// Completes the file and says what is in it.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let report =
            self.capture.finish().with_context(|| format!("cannot write {}", self.file))?;
        output::remark(&format!(
            "quietline: {} packets in {}, {} left out",
            report.written, self.file, report.lost
        ));
        Ok(())
    }
}

/// What a device says about its configuration is about the command line.
fn refused_device(error: SetupError) -> Failure {
    match error {
        SetupError::Field { .. } => Failure::Usage(error.to_string()),
        SetupError::System { .. } => Failure::Run(error.into()),
    }
}

fn check_same_family(option: &str, other: IpAddr, address: IpNet) -> Result<(), Failure> {
    if other.is_ipv4() == address.addr().is_ipv4() {
        return Ok(());
    }
    Err(Failure::option(option, other, format!("not of the same family as --address {address}")))
}

/// What the stack says about a configuration is about the command line.
fn refused(error: io::Error) -> Failure {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<ConfigError>()) {
        Some(error) if error.field == "sysctl" => {
            Failure::Usage(format!("invalid value for '--sysctl': {}", error.allowed))
        }
        Some(error) => Failure::Usage(error.to_string()),
        None => Failure::Run(anyhow::Error::new(error).context("cannot start the stack")),
    }
}

/// Refuses addresses no interface can have.
fn check_host_address(option: &str, network: IpNet) -> Result<(), Failure> {
    let address = network.addr();
    // RFC 3021: a /31 has no network and no broadcast address; a /32 is a host route.
    let has_broadcast = address.is_ipv4() && network.prefix_len() < 31;
    let reason = if address.is_ipv6() {
        "only IPv4 is supported"
    } else if address.is_unspecified() {
        "the unspecified address belongs to no host"
    } else if address.is_multicast() {
        "a multicast address belongs to no host"
    } else if address.is_loopback() {
        "loopback addresses stay inside a host"
    } else if address == IpAddr::from([255, 255, 255, 255])
        || (has_broadcast && address == network.broadcast())
    {
        "it is a broadcast address"
    } else if has_broadcast && address == network.network() {
        "it is the network's address, not a host's"
    } else {
        return Ok(());
    };
    Err(Failure::option(option, network, reason))
}

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "kernel" {
            return Ok(Self::Kernel);
        }
        match text.split_once(':') {
            Some(("tap", name)) => check_name(name).map(Self::Tap),
            Some(("tun", name)) => check_name(name).map(Self::Tun),
            Some(("af_packet", text)) => {
                text.parse().map(Self::AfPacket).map_err(|error: SetupError| error.to_string())
            }
            Some(("af_xdp", text)) => {
                text.parse().map(Self::AfXdp).map_err(|error: SetupError| error.to_string())
            }
            _ => {
                let kinds =
                    "tap:NAME, tun:NAME, af_packet:IF[,OPTION...], af_xdp:IF[,OPTION...] or kernel";
                Err(format!("expected {kinds}"))
            }
        }
    }
}

impl FromStr for Sysctl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("expected NAME=VALUE, such as net.ipv4.tcp_timestamps=0".to_owned()),
        }
    }
}

/// The names Linux accepts, without the ones that mean something else to it: `%` asks the kernel to number
/// the interface.
fn check_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("an interface name has 1 to {NAME_BYTES_MAX} bytes"));
    }
    if name == "."
        || name == ".."
        || !name.bytes().all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b))
    {
        return Err("an interface name has no spaces and none of / : %".to_owned());
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(link: &str, address: &str) -> LinkArgs {
        LinkArgs {
            link: link.parse().expect("link"),
            address: Some(address.parse().expect("address")),
            peer: None,
            gateway: None,
            cores: 1,
            queues: None,
            mtu: None,
            no_vnet_hdr: false,
            qdisc: None,
            sysctl: Vec::new(),
        }
    }

    const QUIET: ObserveArgs = ObserveArgs { pcap: None, stats: false, json: false };

    fn refused(args: &LinkArgs) -> bool {
        matches!(args.check(&QUIET), Err(Failure::Usage(_)))
    }

    #[test]
    fn specs_parse() {
        assert_eq!("tap:ql0".parse(), Ok(LinkSpec::Tap("ql0".to_owned())));
        assert_eq!("tun:a-b_c.1".parse(), Ok(LinkSpec::Tun("a-b_c.1".to_owned())));
        assert_eq!("kernel".parse(), Ok(LinkSpec::Kernel));
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
    fn host_addresses_only() {
        assert!(args("tap:q", "10.0.0.2/24").check(&QUIET).is_ok());
        assert!(args("tap:q", "10.0.0.0/31").check(&QUIET).is_ok());
        assert!(args("tap:q", "10.0.0.9/32").check(&QUIET).is_ok());
        for address in [
            "fd00::2/64",
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
    fn peer_and_gateway_belong_to_the_link() {
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
    fn an_interface_that_exists_keeps_its_mtu_and_has_no_peer_of_ours() {
        let mut link = args("af_packet:eth0,rx=v3", "10.0.0.2/24");
        let device = |link: &LinkArgs| match link.check(&QUIET) {
            Ok(Some(LinkConfig { device: LinkDevice::AfPacket(config), .. })) => Some(config),
            _ => None,
        };
        let config = device(&link).expect("good");
        assert_eq!((config.interface.as_str(), config.mtu, config.queues), ("eth0", None, 1));
        link.cores = 2;
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
    fn af_xdp_takes_all_queues_unless_told_otherwise() {
        let mut link = args("af_xdp:eth0,mode=generic,ring=256", "10.0.0.2/24");
        let device = |link: &LinkArgs| match link.check(&QUIET) {
            Ok(Some(LinkConfig { device: LinkDevice::AfXdp(config), .. })) => Some(config),
            _ => None,
        };
        let config = device(&link).expect("good");
        assert_eq!((config.interface.as_str(), config.mtu, config.queues), ("eth0", None, None));
        assert_eq!(config.ring, 256);
        link.cores = 2;
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
    fn kernel_takes_no_link_options() {
        assert!(refused(&args("kernel", "10.0.0.2/24")));
        let mut link = args("kernel", "10.0.0.2/24");
        link.address = None;
        assert!(matches!(link.check(&QUIET), Ok(None)));
        let counting = ObserveArgs { stats: true, ..QUIET };
        assert!(matches!(link.check(&counting), Err(Failure::Usage(_))));
        link.link = LinkSpec::Tap("q".to_owned());
        assert!(refused(&link));
    }
}
