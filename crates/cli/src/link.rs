//! Opens a link from its options (`--link tap:ql0 --address ...`) and starts a stack on it.
//!
//! Checks here need two options together or knowledge of IP addressing; `args` has checked single
//! values.

use std::{io, net::IpAddr};

use ipnet::IpNet;
use quietline::{
    ConfigError, Stack, StackBuilder,
    device::{
        AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, CaptureConfig, SetupError, Tun, TunConfig,
        netlink::Netlink,
    },
};

use crate::{
    args::{LinkArgs, ObserveArgs},
    failure::Failure,
    output,
    sandbox::{self, Files},
    settings,
};

mod recording;
mod spec;
mod stack_stats;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use recording::{Recording, RecordingFile};
pub(crate) use spec::{LinkSpec, Sysctl};
pub(crate) use stack_stats::StackStats;
pub(crate) use watch::{loss, watch};

/// A link whose options have been checked against each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkConfig {
    /// Device of the link.
    pub(crate) device: LinkDevice,
    /// Address of the stack.
    pub(crate) address: IpNet,
}

/// Configuration of the link's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkDevice {
    /// A tap or tun interface, created for the run.
    Tun(TunConfig),
    /// An existing interface, by packet sockets.
    AfPacket(AfPacketConfig),
    /// Queues of an existing interface, by AF_XDP sockets.
    AfXdp(AfXdpConfig),
}

/// Default MTU of an interface that is created for the run.
const MTU_DEFAULT: u32 = 1500;

/// Unit of the pauses between ARP probes for the stack's address: three probes delay the start by
/// about 110 ms.
const ACD_INTERVAL_MS: &str = "20";

/// A running stack on its link, with its capture.
#[derive(Debug)]
pub(crate) struct OpenLink {
    /// The stack.
    pub(crate) stack: Stack,
    /// Address of the stack.
    pub(crate) address: IpAddr,
    capture: Option<Recording>,
}

impl LinkArgs {
    /// Checks the options against each other. `None` for the kernel's sockets.
    pub(crate) fn check(&self, observe: &ObserveArgs) -> Result<Option<LinkConfig>, Failure> {
        // Checked before anything is opened, so that a mistyped name is reported without root.
        for Sysctl { name, .. } in &self.sysctl {
            settings::check_name(name)
                .map_err(|reason| Failure::option("--sysctl", name, reason))?;
        }
        let device = match &self.link {
            LinkSpec::Kernel => return self.check_kernel(observe).map(|()| None),
            LinkSpec::Tap(name) => self.made_for_the_run(TunConfig::tap(name)),
            LinkSpec::Tun(name) => self.made_for_the_run(TunConfig::tun(name)),
            LinkSpec::AfPacket(base) => {
                self.check_existing("af_packet")?;
                LinkDevice::AfPacket(AfPacketConfig {
                    queues: self.queues.unwrap_or_else(|| self.cores()),
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
            check_reach(address, peer)?;
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

    /// Opens the device, enters the sandbox, which leaves only `files` accessible, and starts the
    /// stack.
    pub(crate) fn open(
        &self,
        config: &LinkConfig,
        observe: &ObserveArgs,
        files: Files<'_>,
    ) -> Result<OpenLink, Failure> {
        check_unused(config)?;
        let file = observe.pcap.as_deref().map(RecordingFile::create).transpose()?;
        let mut builder = self.configure(on_device(&config.device)?.address(config.address));
        if !self.no_sandbox {
            // This decision reads files that the sandbox makes inaccessible.
            quietline::decide_packet_memory();
            sandbox::enter(files)?;
        }
        // The first threads start here: after the sandbox is entered, so that they inherit it.
        let capture = file.map(|file| file.start(&CaptureConfig::default())).transpose()?;
        if let Some(recording) = &capture {
            builder = builder.capture(recording.handle());
        }
        let stack = builder.build().map_err(refused)?;
        Ok(OpenLink { stack, address: config.address.addr(), capture })
    }

    /// Applies the stack options to the builder.
    fn configure(&self, builder: StackBuilder) -> StackBuilder {
        // The pauses can be short: the other end of a link on this machine answers at once, and so
        // do most neighbors on a LAN.
        let mut builder = builder
            .cores(self.cores())
            .sysctl("net.quietline.acd_probes", "3")
            .sysctl("net.quietline.acd_interval_ms", ACD_INTERVAL_MS);
        if let Some(gateway) = self.gateway {
            builder = builder.gateway(gateway);
        }
        if let Some(qdisc) = self.qdisc {
            builder = builder.qdisc(qdisc);
        }
        for Sysctl { name, value } in &self.sysctl {
            builder = builder.sysctl(name, value);
        }
        builder
    }

    /// Number of cores of the stack.
    fn cores(&self) -> u16 {
        self.cores.unwrap_or(1)
    }

    fn made_for_the_run(&self, base: TunConfig) -> LinkDevice {
        LinkDevice::Tun(TunConfig {
            queues: self.queues.unwrap_or_else(|| self.cores()),
            vnet_hdr: !self.no_vnet_hdr,
            mtu: self.mtu.unwrap_or(MTU_DEFAULT),
            host_address: self.peer,
            ..base
        })
    }

    /// Refuses `--peer`: an existing interface already has its addresses, and its other end is not
    /// configured here.
    fn check_existing(&self, kind: &str) -> Result<(), Failure> {
        match self.peer {
            Some(_) => Err(Failure::Usage(format!("--peer has no use with --link {kind}"))),
            None => Ok(()),
        }
    }

    /// Refuses link options with `--link kernel`: an option without effect is a mistake.
    fn check_kernel(&self, observe: &ObserveArgs) -> Result<(), Failure> {
        let useless = [
            (self.address.is_some(), "--address"),
            (self.peer.is_some(), "--peer"),
            (self.gateway.is_some(), "--gateway"),
            (self.cores.is_some(), "--cores"),
            (self.queues.is_some(), "--queues"),
            (self.mtu.is_some(), "--mtu"),
            (self.no_vnet_hdr, "--no-vnet-hdr"),
            (self.qdisc.is_some(), "--qdisc"),
            (!self.sysctl.is_empty(), "--sysctl"),
            (self.no_sandbox, "--no-sandbox"),
            (observe.pcap.is_some(), "--pcap"),
            (observe.stats.is_some(), "--stats"),
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
    /// Returns the current statistics.
    pub(crate) fn stack_stats(&self) -> StackStats {
        StackStats {
            counters: self.stack.counters(),
            softnet: self.stack.softnet_stat(),
            tx_queues: self.stack.tx_queue_stats(),
        }
    }

    /// Stops the stack and the capture. Returns the final statistics, and the capture's result
    /// separately, so that the statistics are printed even if the capture failed.
    pub(crate) fn close(self) -> (StackStats, Result<(), Failure>) {
        let stack_stats = self.stack_stats();
        self.stack.shutdown();
        let captured = self.capture.map_or(Ok(()), |recording| recording.finish());
        (stack_stats, captured)
    }
}

/// Opens the device, and returns a builder of a stack on it.
fn on_device(device: &LinkDevice) -> Result<StackBuilder, Failure> {
    Ok(match device {
        LinkDevice::Tun(tun) => {
            Stack::builder().name(&tun.name).device(Tun::create(tun).map_err(refused_device)?)
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
    })
}

/// Maps an error of a device: an invalid field is an error of the command line.
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

/// Refuses two addresses of a link if one end cannot reach the other.
fn check_reach(address: IpNet, peer: IpNet) -> Result<(), Failure> {
    if !peer.contains(&address.addr()) {
        let reason = format!("--address {} is not in this network", address.addr());
        return Err(Failure::option("--peer", peer, reason));
    }
    if !address.contains(&peer.addr()) {
        let reason = format!("--peer {} is not in this network", peer.addr());
        return Err(Failure::option("--address", address, reason));
    }
    Ok(())
}

/// Refuses an address that the kernel owns: the kernel would consume packets to it, or reset the
/// stack's connections.
fn check_unused(config: &LinkConfig) -> Result<(), Failure> {
    let address = config.address.addr();
    let owner = Netlink::open()
        .and_then(|mut netlink| netlink.owner_of(address))
        .map_err(refused_device)?;
    // af_xdp receives the frames before the kernel does, so the stack may take over an address of
    // that interface.
    let takes_over = |name: &str| match &config.device {
        LinkDevice::AfXdp(xdp) => xdp.interface == name,
        LinkDevice::Tun(_) | LinkDevice::AfPacket(_) => false,
    };
    match owner {
        Some(name) if !takes_over(&name) => {
            let reason = format!("the kernel has this address on \"{name}\"");
            Err(Failure::Run(anyhow::anyhow!("address {address}: {reason}")))
        }
        _ => Ok(()),
    }
}

/// Maps an error of the stack's builder: a refused configuration is an error of the command line.
pub(crate) fn refused(error: io::Error) -> Failure {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<ConfigError>()) {
        Some(error) if error.field == "sysctl" => {
            Failure::option("--sysctl", &error.value, &error.reason)
        }
        Some(error) => Failure::Usage(error.to_string()),
        None => Failure::Run(anyhow::Error::new(error).context("cannot start the stack")),
    }
}

/// Refuses addresses that no interface can have.
fn check_host_address(option: &str, network: IpNet) -> Result<(), Failure> {
    let address = network.addr();
    // RFC 3021: a /31 has no network and no broadcast address; a /32 is a host route.
    let has_broadcast = address.is_ipv4() && network.prefix_len() < 31;
    let is_mapped = matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    let reason = if is_mapped {
        "a v4-mapped address names an IPv4 address of a socket"
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
