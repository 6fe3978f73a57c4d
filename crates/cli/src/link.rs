//! From `--link tap:ql0 --address ...` to a host with sockets.
//!
//! Checks here need two options together or knowledge of IP addressing; single values were checked by `args`.

use std::{io, net::IpAddr};

use ipnet::IpNet;
use quietline::{
    ConfigError, Stack,
    device::{
        AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, CaptureConfig, SetupError, Tun, TunConfig,
    },
};

use crate::{
    args::{LinkArgs, ObserveArgs},
    failure::Failure,
    output,
};

mod books;
mod recording;
mod spec;
#[cfg(test)]
mod tests;

pub(crate) use books::Books;
pub(crate) use recording::Recording;
pub(crate) use spec::{LinkSpec, Sysctl};

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
