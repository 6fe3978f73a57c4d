//! A host as data: its links with their addresses, its routes, settings and names.
//!
//! A [`Host`] comes from a TOML file ([`Host::parse`]) or from the options of a command, and
//! [`Host::open`] makes a [`StackBuilder`] of it. docs/host-file.md describes the file.
//!
//! Below: `file`, the form of the file; crate `quietline`, which opens the devices. Above: the
//! `quietline` command.
//!
//! Not here: leases and names of a running stack (`dhcp`, `dns`).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use ipnet::IpNet;
use quietline::{
    MacAddr, QdiscConfig, Route, Stack, StackBuilder,
    device::{AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, SetupError, Tun, TunConfig, TunKind},
};

use crate::{dhcp::ClientConfig, dns};

mod file;
mod place;

pub use file::FileError;

/// Longest interface name in Linux: IFNAMSIZ without its terminating zero.
const NAME_BYTES_MAX: usize = 15;

/// A host: everything that a stack is built from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Host {
    /// Name in messages and captures; `None` is the name of the first link.
    pub name: Option<String>,
    /// Number of cores, 1 to 64.
    pub cores: u16,
    /// Links in the order of their devices.
    pub links: Vec<Link>,
    /// Routes besides those of the networks of the links.
    pub routes: Vec<Route>,
    /// Settings by their Linux names, set in this order.
    pub sysctls: Vec<(String, String)>,
    /// Name servers, search domains and known names.
    pub dns: dns::Config,
}

/// A link with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Device of the link.
    pub device: LinkDevice,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// DHCP client of the link.
    pub dhcp: Option<ClientConfig>,
    /// Whether addresses are formed from router advertisements (RFC 4862).
    pub slaac: bool,
    /// Permanent neighbors.
    pub neighbors: Vec<(IpAddr, MacAddr)>,
    /// Queueing discipline.
    pub qdisc: Option<QdiscConfig>,
    /// Settings of the device, by their names without the prefix `net.quietline.dev.NAME.`.
    pub sysctls: Vec<(String, String)>,
}

/// Configuration of the device of a link. Its text is `tap:NAME`, `tun:NAME`,
/// `af_packet:IF[,OPTION...]` or `af_xdp:IF[,OPTION...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkDevice {
    /// A tap or tun interface, created for the run.
    Tun(TunConfig),
    /// An existing interface, by packet sockets.
    AfPacket(AfPacketConfig),
    /// Queues of an existing interface, by AF_XDP sockets.
    AfXdp(AfXdpConfig),
}

/// Reason why a device could not be opened. `Display` is one line without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct OpenError {
    /// Name of the device.
    pub device: String,
    /// The reason.
    pub error: SetupError,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            name: None,
            cores: 1,
            links: Vec::new(),
            routes: Vec::new(),
            sysctls: Vec::new(),
            dns: dns::Config::default(),
        }
    }
}

impl Host {
    /// Opens the devices, and returns a builder of a stack on them. `note` gets one line about each
    /// device that has something to say, such as its mode.
    ///
    /// # Errors
    /// The device that could not be opened, and the reason.
    pub fn open(&self, mut note: impl FnMut(&str)) -> Result<StackBuilder, OpenError> {
        let mut builder = Stack::builder().cores(self.cores);
        let first = self.links.first().map(|link| link.device.name());
        if let Some(name) = self.name.as_deref().or(first) {
            builder = builder.name(name);
        }
        for link in &self.links {
            builder = link
                .open(builder, &mut note)
                .map_err(|error| OpenError { device: link.device.name().to_owned(), error })?;
        }
        for route in &self.routes {
            builder = builder.add_route(route.clone());
        }
        if self.links.iter().any(|link| link.slaac) {
            builder = builder.sysctl("net.ipv6.conf.all.accept_ra", "1");
        }
        for (name, value) in &self.sysctls {
            builder = builder.sysctl(name, value);
        }
        Ok(builder)
    }

    /// Returns the devices with a DHCP client, for [`Service::start`](crate::dhcp::Service::start).
    #[must_use]
    pub fn dhcp_clients(&self) -> Vec<(String, ClientConfig)> {
        let client = |link: &Link| Some((link.device.name().to_owned(), link.dhcp.clone()?));
        self.links.iter().filter_map(client).collect()
    }

    /// Returns the static addresses with their links.
    pub fn addresses(&self) -> impl Iterator<Item = (&Link, IpNet)> {
        self.links
            .iter()
            .flat_map(|link| link.addresses.iter().map(move |address| (link, *address)))
    }
}

impl Link {
    /// Returns a link without addresses.
    #[must_use]
    pub const fn new(device: LinkDevice) -> Self {
        Self {
            device,
            addresses: Vec::new(),
            dhcp: None,
            slaac: false,
            neighbors: Vec::new(),
            qdisc: None,
            sysctls: Vec::new(),
        }
    }

    /// Opens the device and adds it to the builder.
    fn open(
        &self,
        builder: StackBuilder,
        note: &mut impl FnMut(&str),
    ) -> Result<StackBuilder, SetupError> {
        let mut builder = match &self.device {
            LinkDevice::Tun(config) => builder.device(Tun::create(config)?),
            LinkDevice::AfPacket(config) => builder.device(AfPacket::open(config)?),
            LinkDevice::AfXdp(config) => {
                let device = AfXdp::open(config)?;
                note(&device.describe());
                builder.device(device)
            }
        };
        for address in &self.addresses {
            builder = builder.address(*address);
        }
        for (address, mac) in &self.neighbors {
            builder = builder.neighbor(*address, *mac);
        }
        if let Some(qdisc) = self.qdisc {
            builder = builder.qdisc(qdisc);
        }
        for (name, value) in &self.sysctls {
            let name = format!("net.quietline.dev.{}.{name}", self.device.name());
            builder = builder.sysctl(&name, value);
        }
        Ok(builder)
    }
}

impl LinkDevice {
    /// Returns the name of the device in the stack.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Tun(config) => &config.name,
            Self::AfPacket(config) => &config.interface,
            Self::AfXdp(config) => &config.interface,
        }
    }

    /// Returns the part of the text before the colon.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tun(TunConfig { kind: TunKind::Tap, .. }) => "tap",
            Self::Tun(_) => "tun",
            Self::AfPacket(_) => "af_packet",
            Self::AfXdp(_) => "af_xdp",
        }
    }

    /// Returns whether the frames of the device have link addresses.
    #[must_use]
    pub const fn is_ethernet(&self) -> bool {
        !matches!(self, Self::Tun(TunConfig { kind: TunKind::Tun, .. }))
    }

    /// Checks everything that needs no kernel.
    ///
    /// # Errors
    /// For the first field that is out of range.
    pub fn validate(&self) -> Result<(), SetupError> {
        match self {
            Self::Tun(config) => config.validate(),
            Self::AfPacket(config) => config.validate(),
            Self::AfXdp(config) => config.validate(),
        }
    }
}

impl FromStr for LinkDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |error: SetupError| error.to_string();
        match text.split_once(':') {
            Some(("tap", name)) => check_name(name).map(|()| Self::Tun(TunConfig::tap(name))),
            Some(("tun", name)) => check_name(name).map(|()| Self::Tun(TunConfig::tun(name))),
            Some(("af_packet", text)) => text.parse().map(Self::AfPacket).map_err(refused),
            Some(("af_xdp", text)) => text.parse().map(Self::AfXdp).map_err(refused),
            _ => {
                let kinds = "tap:NAME, tun:NAME, af_packet:IF[,OPTION...] or af_xdp:IF[,OPTION...]";
                Err(format!("expected {kinds}"))
            }
        }
    }
}

impl fmt::Display for LinkDevice {
    /// Prints the kind and the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.name())
    }
}

/// Checks an interface name by the rules of Linux. `%` is refused too, because the kernel would
/// replace it by a number.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("an interface name has 1 to {NAME_BYTES_MAX} bytes"));
    }
    if name == "."
        || name == ".."
        || !name.bytes().all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b))
    {
        return Err("an interface name has no spaces and none of / : %".to_owned());
    }
    Ok(())
}

/// Checks that an interface can have an address.
///
/// # Errors
/// The reason why it cannot.
pub fn check_host_address(network: IpNet) -> Result<(), &'static str> {
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
    } else if address == Ipv4Addr::BROADCAST || (has_broadcast && address == network.broadcast()) {
        "it is a broadcast address"
    } else if has_broadcast && address == network.network() {
        "it is the network's address, not a host's"
    } else {
        return Ok(());
    };
    Err(reason)
}
