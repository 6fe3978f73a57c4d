//! Opens a link from its options (`--link tap:ql0 --address ...`) and starts a stack on it.
//!
//! Checks here need two options together or knowledge of IP addressing; `args` has checked single
//! values.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::anyhow;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use quietline::{
    ConfigError, Route, Stack,
    device::{CaptureConfig, SetupError, netlink::Netlink},
};
use quietline_config::{
    Host, Link, LinkDevice, OpenError, dhcp,
    dns::{self, Resolver},
    host::check_host_address,
};

use crate::{
    args::{LinkArgs, ObserveArgs},
    failure::Failure,
    output,
    sandbox::{self, Files},
    settings,
    signal::{Signals, Wake},
};

mod recording;
mod spec;
mod stack_stats;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use recording::{Recording, RecordingFile};
pub(crate) use spec::{AddressSpec, LinkSpec, Sysctl};
pub(crate) use stack_stats::StackStats;
pub(crate) use watch::{loss, watch};

/// Default MTU of an interface that is created for the run.
const MTU_DEFAULT: u32 = 1500;

/// Settings of ARP probes for the addresses of the stack. The unit of the pauses can be short: the
/// other end of a link on this machine answers at once, and so do most neighbors on a LAN. Three
/// probes delay the start by about 110 ms.
const PROBES: [(&str, &str); 2] =
    [("net.quietline.acd_probes", "3"), ("net.quietline.acd_interval_ms", "20")];

/// Time limit for the first leases.
const LEASE_WAIT: Duration = Duration::from_secs(30);

/// Time between two checks for a signal while a lease is awaited.
const SIGNAL_CHECK: Duration = Duration::from_millis(20);

/// A running stack on its links, with its capture and its leases.
#[derive(Debug)]
pub(crate) struct OpenLink {
    /// The stack.
    pub(crate) stack: Stack,
    capture: Option<Recording>,
    dhcp: Option<dhcp::Service>,
}

impl LinkArgs {
    /// Whether the command uses the kernel's sockets.
    pub(crate) fn is_kernel(&self) -> bool {
        self.link == Some(LinkSpec::Kernel)
    }

    /// Checks the options against each other, and reads the host file. `None` for the kernel's
    /// sockets.
    pub(crate) fn check(&self, observe: &ObserveArgs) -> Result<Option<Host>, Failure> {
        // Checked before anything is opened, so that a mistyped name is reported without root.
        for Sysctl { name, .. } in &self.sysctl {
            settings::check_name(name)
                .map_err(|reason| Failure::option("--sysctl", name, reason))?;
        }
        let mut host = match (&self.link, &self.config) {
            (_, Some(file)) => {
                refuse_all("--config", &self.link_options())?;
                Host::read(file).map_err(|error| Failure::Usage(error.to_string()))?
            }
            (Some(LinkSpec::Device(device)), None) => self.host(device)?,
            (Some(LinkSpec::Kernel), None) => return self.check_kernel(observe).map(|()| None),
            (None, None) => return Err(Failure::Usage("a link is missing".to_owned())),
        };
        // Earlier settings give way to later ones.
        let own = PROBES.map(|(name, value)| (name.to_owned(), value.to_owned()));
        drop(host.sysctls.splice(0..0, own));
        let given = self.sysctl.iter().map(|Sysctl { name, value }| (name.clone(), value.clone()));
        host.sysctls.extend(given);
        if !self.dns.is_empty() {
            host.dns.servers.clone_from(&self.dns);
        }
        Ok(Some(host))
    }

    /// Returns the host that the link options describe.
    fn host(&self, device: &LinkDevice) -> Result<Host, Failure> {
        let device = self.device(device)?;
        let mut link = Link::new(device);
        match self.address {
            None => {
                let reason = "a link other than kernel needs --address A/N or --address dhcp";
                return Err(Failure::Usage(reason.to_owned()));
            }
            Some(AddressSpec::Static(address)) => {
                self.check_addresses(address)?;
                link.addresses.push(address);
            }
            Some(AddressSpec::Dhcp) => {
                if !link.device.is_ethernet() {
                    let reason = "DHCP needs a link with Ethernet frames, not a tun";
                    return Err(Failure::option("--address", "dhcp", reason));
                }
                if self.gateway.is_some() {
                    let reason = "--gateway has no use with --address dhcp";
                    return Err(Failure::Usage(reason.to_owned()));
                }
                if let Some(peer) = self.peer {
                    check_address("--peer", peer)?;
                }
                link.dhcp = Some(dhcp::ClientConfig::default());
            }
        }
        link.qdisc = self.qdisc;
        let mut host = Host::default();
        host.cores = self.cores();
        host.links.push(link);
        host.routes.extend(self.gateway.map(|gateway| {
            let everywhere = match gateway {
                IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
                IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
            };
            Route::to(everywhere).via(gateway)
        }));
        Ok(host)
    }

    /// Checks the static address and the other ends of the link against each other.
    fn check_addresses(&self, address: IpNet) -> Result<(), Failure> {
        check_address("--address", address)?;
        if let Some(peer) = self.peer {
            check_address("--peer", peer)?;
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
        Ok(())
    }

    /// Returns the device with the options that concern it.
    fn device(&self, base: &LinkDevice) -> Result<LinkDevice, Failure> {
        let queues = self.queues.unwrap_or_else(|| self.cores());
        let mut device = base.clone();
        match &mut device {
            LinkDevice::Tun(config) => {
                config.queues = queues;
                config.vnet_hdr = !self.no_vnet_hdr;
                config.mtu = self.mtu.unwrap_or(MTU_DEFAULT);
                config.host_address = self.peer;
            }
            LinkDevice::AfPacket(config) => {
                self.check_existing("af_packet")?;
                config.queues = queues;
                config.vnet_hdr = !self.no_vnet_hdr;
                config.mtu = self.mtu;
            }
            LinkDevice::AfXdp(config) => {
                self.check_existing("af_xdp")?;
                if self.no_vnet_hdr {
                    let reason = "--no-vnet-hdr has no use with --link af_xdp";
                    return Err(Failure::Usage(reason.to_owned()));
                }
                config.queues = self.queues.or(config.queues);
                config.mtu = self.mtu;
            }
        }
        Ok(device)
    }

    /// Opens the devices, enters the sandbox, which leaves only `files` accessible, and starts the
    /// stack.
    pub(crate) fn open(
        &self,
        host: &Host,
        observe: &ObserveArgs,
        files: Files<'_>,
    ) -> Result<OpenLink, Failure> {
        check_unused(host)?;
        let file = observe.pcap.as_deref().map(RecordingFile::create).transpose()?;
        let note = |text: &str| output::remark(&format!("quietline: {text}"));
        let mut builder =
            host.open(note).map_err(|OpenError { error, .. }| refused_device(error))?;
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
        Ok(OpenLink { stack, capture, dhcp: None })
    }

    /// Number of cores of the stack.
    fn cores(&self) -> u16 {
        self.cores.unwrap_or(1)
    }

    /// Refuses `--peer`: an existing interface already has its addresses, and its other end is not
    /// configured here.
    fn check_existing(&self, kind: &str) -> Result<(), Failure> {
        match self.peer {
            Some(_) => Err(Failure::Usage(format!("--peer has no use with --link {kind}"))),
            None => Ok(()),
        }
    }

    /// Returns the options that describe the link, each with whether it was given.
    fn link_options(&self) -> [(bool, &'static str); 9] {
        [
            (self.link.is_some(), "--link"),
            (self.address.is_some(), "--address"),
            (self.peer.is_some(), "--peer"),
            (self.gateway.is_some(), "--gateway"),
            (self.cores.is_some(), "--cores"),
            (self.queues.is_some(), "--queues"),
            (self.mtu.is_some(), "--mtu"),
            (self.no_vnet_hdr, "--no-vnet-hdr"),
            (self.qdisc.is_some(), "--qdisc"),
        ]
    }

    /// Refuses link options with `--link kernel`: an option without effect is a mistake.
    fn check_kernel(&self, observe: &ObserveArgs) -> Result<(), Failure> {
        let others = [
            (!self.dns.is_empty(), "--dns"),
            (!self.sysctl.is_empty(), "--sysctl"),
            (self.no_sandbox, "--no-sandbox"),
            (observe.pcap.is_some(), "--pcap"),
            (observe.stats.is_some(), "--stats"),
        ];
        refuse_all("--link kernel", &self.link_options()[1..])?;
        refuse_all("--link kernel", &others)
    }
}

/// Refuses options that were given and have no effect.
fn refuse_all(with: &str, options: &[(bool, &str)]) -> Result<(), Failure> {
    match options.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Failure::Usage(format!("{option} has no use with {with}"))),
        None => Ok(()),
    }
}

/// Families of the addresses that a host will have: IPv4 and IPv6.
pub(crate) fn families(host: &Host) -> (bool, bool) {
    let has = |is_v4: bool| host.addresses().any(|(_, address)| address.addr().is_ipv4() == is_v4);
    let is_leased = host.links.iter().any(|link| link.dhcp.is_some());
    let is_formed = host.links.iter().any(|link| link.slaac);
    (has(true) || is_leased, has(false) || is_formed)
}

/// Returns the address that a server of this host listens on: its only address, or the unspecified
/// one. Datagram sockets are IPv4 only.
pub(crate) fn listening_address(host: &Host, is_datagrams: bool) -> IpAddr {
    let mut addresses = host.addresses().map(|(_, address)| address.addr());
    let is_static = host.links.iter().all(|link| link.dhcp.is_none() && !link.slaac);
    match (addresses.next(), addresses.next()) {
        (Some(only), None) if is_static => only,
        _ if families(host).1 && !is_datagrams => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

impl OpenLink {
    /// Starts the DHCP clients of the host, and waits until each has a lease. A signal ends the
    /// wait.
    pub(crate) fn lease(&mut self, host: &Host, signals: &Signals) -> Result<(), Failure> {
        let clients = host.dhcp_clients();
        if clients.is_empty() {
            return Ok(());
        }
        let note = |change: &dhcp::Change| output::remark(&format!("quietline: dhcp: {change}"));
        let service = dhcp::Service::start(&self.stack, &clients, note)?;
        let service = self.dhcp.insert(service);
        let deadline = Instant::now() + LEASE_WAIT;
        while !service.wait(SIGNAL_CHECK) {
            if let Wake::Signal(number) = signals.wait(Some(Duration::ZERO))? {
                return Err(Failure::Signal(number));
            }
            if Instant::now() >= deadline {
                let leased: BTreeSet<_> =
                    service.leases().into_iter().map(|(name, _)| name).collect();
                let missing = clients.iter().map(|(name, _)| name.as_str());
                let missing: Vec<_> = missing.filter(|name| !leased.contains(*name)).collect();
                let (devices, limit) = (missing.join(", "), LEASE_WAIT.as_secs());
                return Err(
                    anyhow!("no DHCP server has given {devices} an address in {limit} s").into()
                );
            }
        }
        Ok(())
    }

    /// Returns a resolver by the name servers and domains of the host and of its leases.
    pub(crate) fn resolver(&self, config: &dns::Config) -> Resolver {
        let mut config = config.clone();
        let leases = self.dhcp.as_ref().map(dhcp::Service::leases).unwrap_or_default();
        let is_configured = !config.servers.is_empty();
        for (_, lease) in leases {
            if !is_configured {
                let servers = lease.dns.iter().map(|ip| SocketAddr::new(*ip, dns::PORT));
                config.servers.extend(servers);
            }
            config.search.extend(lease.search.into_iter().chain(lease.domain));
        }
        Resolver::new(config)
    }

    /// Returns the current statistics.
    pub(crate) fn stack_stats(&self) -> StackStats {
        StackStats::of(&self.stack)
    }

    /// Stops the stack and the capture. Returns the final statistics, and the capture's result
    /// separately, so that the statistics are printed even if the capture failed.
    pub(crate) fn close(self) -> (StackStats, Result<(), Failure>) {
        // Before the statistics, so that they include the release of the leases.
        if let Some(service) = self.dhcp {
            service.stop();
        }
        let stack_stats = StackStats::of(&self.stack);
        self.stack.shutdown();
        let captured = self.capture.map_or(Ok(()), |recording| recording.finish());
        (stack_stats, captured)
    }
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
fn check_unused(host: &Host) -> Result<(), Failure> {
    let mut netlink = Netlink::open().map_err(refused_device)?;
    for (link, address) in host.addresses() {
        let address = address.addr();
        let owner = netlink.owner_of(address).map_err(refused_device)?;
        // af_xdp receives the frames before the kernel does, so the stack may take over an address
        // of that interface.
        let takes_over =
            |name: &str| matches!(&link.device, LinkDevice::AfXdp(xdp) if xdp.interface == name);
        if let Some(name) = owner.filter(|name| !takes_over(name)) {
            let reason = format!("the kernel has this address on \"{name}\"");
            return Err(Failure::Run(anyhow!("address {address}: {reason}")));
        }
    }
    Ok(())
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
fn check_address(option: &str, network: IpNet) -> Result<(), Failure> {
    check_host_address(network).map_err(|reason| Failure::option(option, network, reason))
}
