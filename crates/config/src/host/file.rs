//! The TOML file of a host: its tables, and their conversion to a [`Host`].
//!
//! Below: crates `toml` and `serde`, which refuse unknown fields and values of another type. Values
//! with a syntax of their own (addresses, routes, devices) are parsed while the file is read, so
//! that an error has the place of the value. Checks that need two fields come afterwards, with the
//! place of one of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    path::Path,
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;
use quietline::{MacAddr, QdiscConfig, Route, Stack, device::SetupError};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use toml::Spanned;

use super::{Host, Link, LinkDevice, check_host_address, place};
use crate::{
    dhcp::{ClientConfig, ClientId},
    dns,
};

/// Largest hostname of DHCP and largest other identity, in bytes (RFC 2132 §2: one option).
const OPTION_BYTES_MAX: usize = 255;

/// Error of a host file. Its text is one line: the file, the line, the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileError {
    /// Name of the file; empty for a text without a file.
    pub file: String,
    /// Number of the line, counted from 1.
    pub line: Option<usize>,
    /// Name of the field with its table.
    pub field: Option<String>,
    /// Reason.
    pub reason: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.file.is_empty() { "host file" } else { &self.file };
        f.write_str(file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for FileError {}

/// Text of a value, parsed by its `FromStr`.
struct Text<T>(T);

impl<'de, T> Deserialize<'de> for Text<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|reason| de::Error::custom(format!("{text:?}: {reason}")))
    }
}

/// An address with its prefix length that a host can have.
struct HostAddress(IpNet);

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network: IpNet = text.parse().map_err(|_| {
            "expected an address and a prefix length, such as 10.7.0.2/24".to_owned()
        })?;
        check_host_address(network)?;
        Ok(Self(network))
    }
}

/// A name server: an address with or without a port.
struct Server(SocketAddr);

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        dns::parse_server(text).map(Self)
    }
}

/// Value of a setting: a number, a switch or a text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, true, false or a text")]
enum Setting {
    Number(i64),
    Switch(bool),
    Text(String),
}

impl Setting {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Switch(on) => u8::from(*on).to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// Settings with the places of their values.
type Settings = BTreeMap<String, Spanned<Setting>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HostTable {
    name: Option<String>,
    cores: Option<Spanned<u16>>,
    #[serde(default)]
    link: Vec<Spanned<LinkTable>>,
    #[serde(default)]
    routes: Vec<Spanned<Text<Route>>>,
    #[serde(default)]
    sysctl: Settings,
    #[serde(default)]
    dns: DnsTable,
    #[serde(default)]
    hosts: BTreeMap<String, Vec<IpAddr>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LinkTable {
    device: Spanned<Text<LinkDevice>>,
    #[serde(default)]
    addresses: Vec<Text<HostAddress>>,
    dhcp: Option<Spanned<Dhcp>>,
    slaac: Option<Spanned<bool>>,
    peer: Option<Spanned<Text<HostAddress>>>,
    mtu: Option<Spanned<u32>>,
    queues: Option<Spanned<u16>>,
    vnet_hdr: Option<Spanned<bool>>,
    qdisc: Option<Text<QdiscConfig>>,
    #[serde(default)]
    neighbor: Vec<NeighborTable>,
    #[serde(default)]
    sysctl: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeighborTable {
    address: IpAddr,
    mac: Text<MacAddr>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DnsTable {
    #[serde(default)]
    servers: Vec<Text<Server>>,
    #[serde(default)]
    search: Vec<String>,
    timeout_ms: Option<Spanned<u64>>,
    attempts: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DhcpTable {
    hostname: Option<Spanned<String>>,
    client_id: Option<Text<ClientIdText>>,
    start_delay_ms: Option<u64>,
}

/// `true`, `false`, or a table, which means `true`.
enum Dhcp {
    Switch(bool),
    Table(DhcpTable),
}

impl<'de> Deserialize<'de> for Dhcp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SwitchOrTable;

        impl<'de> Visitor<'de> for SwitchOrTable {
            type Value = Dhcp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a table")
            }

            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Dhcp, E> {
                Ok(Dhcp::Switch(on))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Dhcp, A::Error> {
                DhcpTable::deserialize(MapAccessDeserializer::new(map)).map(Dhcp::Table)
            }
        }

        deserializer.deserialize_any(SwitchOrTable)
    }
}

/// `link-address`, `duid`, or bytes such as `01:02:03`.
enum ClientIdText {
    LinkAddress,
    Duid,
    Bytes(Vec<u8>),
}

impl FromStr for ClientIdText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "link-address" => return Ok(Self::LinkAddress),
            "duid" => return Ok(Self::Duid),
            _ => {}
        }
        let byte = |part: &str| {
            let is_hex = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_hex.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.filter(|bytes| (2..=OPTION_BYTES_MAX).contains(&bytes.len()));
        bytes
            .map(Self::Bytes)
            .ok_or("expected link-address, duid or two to 255 bytes such as 01:02:03")
    }
}

/// Text of a file, by which places are found.
struct Source<'a>(&'a str);

impl Source<'_> {
    fn error(&self, at: usize, reason: impl fmt::Display) -> FileError {
        FileError {
            file: String::new(),
            line: Some(place::line(self.0, at)),
            field: place::field(self.0, at),
            reason: one_line(&reason.to_string()),
        }
    }

    fn refuse<T>(&self, spanned: &Spanned<T>, reason: impl fmt::Display) -> FileError {
        self.error(spanned.span().start, reason)
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Host {
    /// Reads a host file.
    ///
    /// # Errors
    /// The first error, with its line and its field; or the reason why the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let file = path.display().to_string();
        let named = |error| FileError { file: file.clone(), ..error };
        let text = std::fs::read_to_string(path).map_err(|error| {
            named(FileError {
                file: String::new(),
                line: None,
                field: None,
                reason: error.to_string(),
            })
        })?;
        Self::parse(&text).map_err(named)
    }

    /// Parses the text of a host file. Checks everything that needs neither devices nor the kernel.
    ///
    /// # Errors
    /// The first error, with its line and its field.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let source = Source(text);
        let table: HostTable = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            source.error(at, error.message())
        })?;
        table.host(&source)
    }
}

impl HostTable {
    fn host(self, source: &Source<'_>) -> Result<Host, FileError> {
        let cores = match &self.cores {
            Some(cores) if !(1..=64).contains(cores.get_ref()) => {
                return Err(source.refuse(cores, "expected a number from 1 to 64"));
            }
            Some(cores) => *cores.get_ref(),
            None => 1,
        };
        check_slaac(&self.link, source)?;
        let mut links = Vec::new();
        let mut names = BTreeSet::new();
        for link in self.link {
            let device =
                source.error(link.get_ref().device.span().start, "another link has this device");
            let link = link.into_inner().link(links.len(), cores, source)?;
            if !names.insert(link.device.name().to_owned()) {
                return Err(device);
            }
            links.push(link);
        }
        for route in &self.routes {
            let dev = route.get_ref().0.dev.as_ref();
            if let Some(dev) = dev.filter(|dev| !names.contains(*dev)) {
                return Err(source.refuse(route, format!("no link has the device {dev}")));
            }
        }
        check_settings(&self.sysctl, "", cores, source)?;
        Ok(Host {
            name: self.name,
            cores,
            links,
            routes: self.routes.into_iter().map(|route| route.into_inner().0).collect(),
            sysctls: texts(&self.sysctl),
            dns: self.dns.config(self.hosts, source)?,
        })
    }
}

impl LinkTable {
    fn link(self, place: usize, cores: u16, source: &Source<'_>) -> Result<Link, FileError> {
        let mut device = self.device.get_ref().0.clone();
        self.complete(&mut device, cores, source)?;
        let at = self.device.span().start;
        device.validate().map_err(|error| {
            let span = match &error {
                SetupError::Field { field: "mtu", .. } => self.mtu.as_ref().map(Spanned::span),
                SetupError::Field { field: "queues", .. } => {
                    self.queues.as_ref().map(Spanned::span)
                }
                _ => None,
            };
            source.error(span.map_or(at, |span| span.start), error)
        })?;
        let dhcp = match self.dhcp.as_ref().map(|dhcp| (dhcp, dhcp.get_ref())) {
            None | Some((_, Dhcp::Switch(false))) => None,
            Some((dhcp, _)) if !device.is_ethernet() => {
                return Err(
                    source.refuse(dhcp, "DHCP needs a link with Ethernet frames, not a tun")
                );
            }
            Some((_, Dhcp::Switch(true))) => Some(ClientConfig::default()),
            Some((_, Dhcp::Table(table))) => Some(table.config(place, source)?),
        };
        let slaac = self.slaac.as_ref().is_some_and(|slaac| *slaac.get_ref());
        if self.addresses.is_empty() && dhcp.is_none() && !slaac {
            let reason = "the link has no address: expected `addresses`, `dhcp` or `slaac`";
            return Err(source.error(at, reason));
        }
        check_settings(&self.sysctl, "net.quietline.dev.default.", cores, source)?;
        Ok(Link {
            device,
            addresses: self.addresses.into_iter().map(|address| address.0.0).collect(),
            dhcp,
            slaac,
            neighbors: self
                .neighbor
                .into_iter()
                .map(|known| (known.address, known.mac.0))
                .collect(),
            qdisc: self.qdisc.map(|qdisc| qdisc.0),
            sysctls: texts(&self.sysctl),
        })
    }

    /// Takes the fields of the table over into the configuration of the device.
    fn complete(
        &self,
        device: &mut LinkDevice,
        cores: u16,
        source: &Source<'_>,
    ) -> Result<(), FileError> {
        let value = |field: &Option<Spanned<u32>>| field.as_ref().map(|field| *field.get_ref());
        let queues = self.queues.as_ref().map(|queues| *queues.get_ref());
        let vnet_hdr = self.vnet_hdr.as_ref().is_none_or(|vnet_hdr| *vnet_hdr.get_ref());
        let kind = device.kind();
        let useless = |field: usize| source.error(field, format!("has no use with {kind}"));
        match device {
            LinkDevice::Tun(config) => {
                config.queues = queues.unwrap_or(cores);
                config.vnet_hdr = vnet_hdr;
                config.mtu = value(&self.mtu).unwrap_or(config.mtu);
                config.host_address = self.peer.as_ref().map(|peer| peer.get_ref().0.0);
                return Ok(());
            }
            LinkDevice::AfPacket(config) => {
                config.queues = queues.unwrap_or(cores);
                config.vnet_hdr = vnet_hdr;
                config.mtu = value(&self.mtu);
            }
            LinkDevice::AfXdp(config) => {
                config.queues = queues.or(config.queues);
                config.mtu = value(&self.mtu);
                if let Some(vnet_hdr) = &self.vnet_hdr {
                    return Err(useless(vnet_hdr.span().start));
                }
            }
        }
        match &self.peer {
            Some(peer) => Err(useless(peer.span().start)),
            None => Ok(()),
        }
    }
}

impl DhcpTable {
    /// `place` is the number of the link, which is the identity association of a DUID.
    fn config(&self, place: usize, source: &Source<'_>) -> Result<ClientConfig, FileError> {
        if let Some(hostname) = &self.hostname {
            let name = hostname.get_ref();
            let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            if name.is_empty() || name.len() > 253 || !name.bytes().all(inside) {
                return Err(source.refuse(hostname, "expected a host name"));
            }
        }
        Ok(ClientConfig {
            client_id: match self.client_id.as_ref().map(|id| &id.0) {
                None | Some(ClientIdText::LinkAddress) => ClientId::LinkAddress,
                Some(ClientIdText::Duid) => {
                    let iaid = u32::try_from(place).unwrap_or(u32::MAX);
                    ClientId::Duid { iaid, duid: None }
                }
                Some(ClientIdText::Bytes(bytes)) => ClientId::Bytes(bytes.clone()),
            },
            hostname: self.hostname.as_ref().map(|hostname| hostname.get_ref().clone()),
            start_delay_max: Duration::from_millis(self.start_delay_ms.unwrap_or(0)),
        })
    }
}

impl DnsTable {
    fn config(
        self,
        hosts: BTreeMap<String, Vec<IpAddr>>,
        source: &Source<'_>,
    ) -> Result<dns::Config, FileError> {
        let mut config = dns::Config {
            servers: self.servers.into_iter().map(|server| server.0.0).collect(),
            search: self.search,
            hosts: hosts.into_iter().map(|(name, ips)| (name.to_lowercase(), ips)).collect(),
            ..dns::Config::default()
        };
        if let Some(timeout) = &self.timeout_ms {
            if !(1..=60_000).contains(timeout.get_ref()) {
                return Err(source.refuse(timeout, "expected a number from 1 to 60000"));
            }
            config.timeout = Duration::from_millis(*timeout.get_ref());
        }
        if let Some(attempts) = &self.attempts {
            if !(1..=10).contains(attempts.get_ref()) {
                return Err(source.refuse(attempts, "expected a number from 1 to 10"));
            }
            config.attempts = *attempts.get_ref();
        }
        Ok(config)
    }
}

/// Refuses links of which some form addresses and some do not: the setting below is one of the
/// host.
fn check_slaac(links: &[Spanned<LinkTable>], source: &Source<'_>) -> Result<(), FileError> {
    let slaac =
        |link: &Spanned<LinkTable>| link.get_ref().slaac.as_ref().map(|slaac| *slaac.get_ref());
    if !links.iter().any(|link| slaac(link) == Some(true)) {
        return Ok(());
    }
    match links.iter().find(|link| slaac(link) != Some(true)) {
        Some(other) => {
            let reason = "`slaac` must be true for all links or for none";
            Err(source.error(other.get_ref().device.span().start, reason))
        }
        None => Ok(()),
    }
}

/// Checks settings by a stack without devices. The name of a device is checked when it exists.
fn check_settings(
    settings: &Settings,
    prefix: &str,
    cores: u16,
    source: &Source<'_>,
) -> Result<(), FileError> {
    const DEVICE: &str = "net.quietline.dev.";
    for (name, value) in settings {
        let name = format!("{prefix}{name}").replace('/', ".");
        if name.starts_with(DEVICE) && !name.starts_with("net.quietline.dev.default.") {
            continue;
        }
        let text = value.get_ref().text();
        let built = Stack::builder().manual().cores(cores).sysctl(&name, &text).build();
        built.map_err(|error| source.refuse(value, error))?;
    }
    Ok(())
}

fn texts(settings: &Settings) -> Vec<(String, String)> {
    settings.iter().map(|(name, value)| (name.clone(), value.get_ref().text())).collect()
}

#[cfg(test)]
mod tests;
