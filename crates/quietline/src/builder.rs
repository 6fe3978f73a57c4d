//! Building a stack: devices, addresses, routes, cores, settings.

use std::{io, net::IpAddr, os::fd::BorrowedFd, ptr, sync::Arc};

use ipnet::IpNet;
use stack::{
    Secrets,
    base::config_error::ConfigError,
    device::{Device, Wire},
    header::ethernet::MacAddr,
    host::config::{DeviceConfig, HostConfig},
    route::fib::RouteSpec,
    sysctl::qdisc::QdiscConfig,
};

#[cfg(feature = "capture")]
use crate::device::{Capture, CaptureDevice};
use crate::{
    device::{AfPacket, AfXdp, Tun},
    entropy, memory,
    route::Route,
    running::{RunMode, Stack},
};

/// A device whose frames announce themselves on a file descriptor: what a worker sleeps on.
pub trait PollFd: Send + Sync {
    /// The descriptor that becomes readable when `queue` has a frame.
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_>;

    /// The descriptor of `queue` has become readable, and the queue will be polled. A device whose descriptor tells more than
    /// frames takes note here.
    fn acknowledge(&self, _queue: u16) {}

    /// Whether the interface is gone for good. The stack then takes the device away, as
    /// [`Stack::remove_device`](crate::Stack::remove_device) does.
    fn is_gone(&self) -> bool {
        false
    }

    /// A descriptor that becomes readable when the interface may be gone, for a device whose other descriptors do not.
    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// [`link_fd`](Self::link_fd) has become readable: the device finds out whether its interface is gone, and the descriptor is
    /// readable no more.
    fn check_link(&self) {}
}

impl PollFd for Tun {
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        Self::poll_fd(self, queue)
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

impl PollFd for AfPacket {
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        Self::poll_fd(self, queue)
    }

    fn acknowledge(&self, queue: u16) {
        Self::acknowledge(self, queue);
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

impl PollFd for AfXdp {
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        Self::poll_fd(self, queue)
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(Self::link_fd(self))
    }

    fn check_link(&self) {
        Self::check_link(self);
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

/// A device as the builder takes it.
#[derive(Clone)]
pub struct Attachment {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) fds: Option<Arc<dyn PollFd>>,
}

impl Attachment {
    /// Whether the interface of the device is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.fds.as_ref().is_some_and(|fds| fds.is_gone())
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment").field("device", &self.device).finish_non_exhaustive()
    }
}

impl From<Arc<Wire>> for Attachment {
    fn from(wire: Arc<Wire>) -> Self {
        Self { device: wire, fds: None }
    }
}

impl From<Arc<Tun>> for Attachment {
    fn from(tun: Arc<Tun>) -> Self {
        Self { device: Arc::clone(&tun) as Arc<dyn Device>, fds: Some(tun) }
    }
}

impl From<Arc<AfPacket>> for Attachment {
    fn from(device: Arc<AfPacket>) -> Self {
        Self { device: Arc::clone(&device) as Arc<dyn Device>, fds: Some(device) }
    }
}

impl From<Arc<AfXdp>> for Attachment {
    fn from(device: Arc<AfXdp>) -> Self {
        Self { device: Arc::clone(&device) as Arc<dyn Device>, fds: Some(device) }
    }
}

/// A neighbor that the stack begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaticNeighbor {
    /// Index of the device, as the host counts: loopback is 0.
    pub(crate) device: u32,
    pub(crate) address: IpAddr,
    pub(crate) mac: MacAddr,
}

/// Collects what a stack is made of. Every method takes and returns the builder; errors wait for
/// [`build`](Self::build).
#[derive(Debug)]
#[must_use = "a builder does nothing until build()"]
pub struct StackBuilder {
    config: HostConfig,
    attachments: Vec<Attachment>,
    addresses: Vec<Vec<IpNet>>,
    routes: Vec<Route>,
    neighbors: Vec<StaticNeighbor>,
    #[cfg(feature = "capture")]
    capture: Option<Arc<Capture>>,
    manual: bool,
    packet_memory: Option<usize>,
    error: Option<ConfigError>,
}

impl StackBuilder {
    pub(crate) fn new() -> Self {
        Self {
            config: HostConfig::new(entropy::secrets()),
            attachments: Vec::new(),
            addresses: Vec::new(),
            routes: Vec::new(),
            neighbors: Vec::new(),
            #[cfg(feature = "capture")]
            capture: None,
            manual: false,
            packet_memory: None,
            error: None,
        }
    }

    /// A name for messages, threads and captures.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Adds a device. The addresses that follow belong to it.
    pub fn device(mut self, device: impl Into<Attachment>) -> Self {
        self.attachments.push(device.into());
        self.addresses.push(Vec::new());
        self
    }

    /// Gives the device added last an address; its prefix becomes directly reachable.
    pub fn address(mut self, address: IpNet) -> Self {
        match self.addresses.last_mut() {
            Some(addresses) => addresses.push(address),
            None => {
                let error = ConfigError::new("address", address, "an address after its device");
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Gives the device added last a neighbor whose link address no ARP packet changes, as
    /// [`Stack::set_neighbor`](crate::Stack::set_neighbor) does while the stack runs.
    pub fn neighbor(mut self, address: IpAddr, mac: MacAddr) -> Self {
        match u32::try_from(self.attachments.len()) {
            Ok(device) if device > 0 => {
                self.neighbors.push(StaticNeighbor { device, address, mac });
            }
            _ => {
                let error = ConfigError::new("neighbor", address, "a neighbor after its device");
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Puts a queueing discipline in front of the device added last, as `tc qdisc replace dev DEVICE root` does. Default:
    /// `net.core.default_qdisc` for devices of the operating system, none for a wire. The sysctl
    /// `net.quietline.dev.DEVICE.qdisc` is the same, and changes it while the stack runs.
    pub fn qdisc(mut self, qdisc: QdiscConfig) -> Self {
        let Some(attachment) = self.attachments.last() else {
            let error = ConfigError::new("qdisc", qdisc, "a discipline after its device");
            self.error.get_or_insert(error);
            return self;
        };
        let name = format!("net.quietline.dev.{}.qdisc", attachment.device.caps().name);
        self.sysctl(&name, &qdisc.to_string())
    }

    /// Adds a route to `prefix` through the next hop `via`.
    pub fn route(mut self, prefix: IpNet, via: IpAddr) -> Self {
        self.config.routes.push(RouteSpec::via(prefix, via));
        self
    }

    /// Adds a route, with whatever else `ip route add` knows of it.
    pub fn add_route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// The default route of the gateway's address family.
    pub fn gateway(self, via: IpAddr) -> Self {
        let any = match via {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        };
        self.route(any, via)
    }

    /// Number of cores, 1 to 64. Default 1. Device queues are spread over them.
    pub const fn cores(mut self, cores: u16) -> Self {
        self.config.cores = cores;
        self
    }

    /// Sets a sysctl by its Linux name, as in `sysctl -w`.
    pub fn sysctl(mut self, name: &str, value: &str) -> Self {
        if let Err(error) = self.config.sysctls.set(name, value) {
            self.error.get_or_insert_with(|| error.into());
        }
        self
    }

    /// Derives sequence numbers, ports, cookies and hash keys from `seed`. Only for runs that must repeat: whoever knows the
    /// seed, or tries all of them, can guess every one of these. Without this call each key is 16 or 32 bytes from the
    /// kernel's random generator, which getrandom(2) gives.
    pub fn replay(mut self, seed: u64) -> Self {
        self.config.secrets = Secrets::replay(seed);
        self
    }

    /// Bounds the packet memory of this process, in bytes: 16 MiB or more. Default: the least of a quarter of the machine's
    /// memory and half of what the cgroup of the process allows. It is an upper bound and not a reservation; at the bound
    /// packets to be sent are dropped and counted as `NoMemory`, and devices stop reading until memory is free again.
    ///
    /// All stacks of a process share their packet memory: the first one decides, and [`build`](Self::build) refuses another
    /// value after it with `InvalidInput`.
    pub const fn packet_memory(mut self, bytes: usize) -> Self {
        self.packet_memory = Some(bytes);
        self
    }

    /// Records every frame of every device.
    #[cfg(feature = "capture")]
    pub fn capture(mut self, capture: Arc<Capture>) -> Self {
        self.capture = Some(capture);
        self
    }

    /// No worker threads: the stack runs only inside [`Stack::poll`] and inside socket calls.
    ///
    /// A call that has begun to run the stack, or a poll, returns when nothing is left, and after ten turns in any case, as Linux ends
    /// its softirqs after ten rounds or 2 ms and leaves the rest to ksoftirqd. Here the rest waits for the next call that runs the
    /// core (`CoreLeft`), and the time until the next poll is 0 meanwhile.
    pub const fn manual(mut self) -> Self {
        self.manual = true;
        self
    }

    /// A capture wraps each device, so that the host cannot see that two are the same.
    fn check_attachments(&self) -> Result<(), ConfigError> {
        for (place, Attachment { device, .. }) in self.attachments.iter().enumerate() {
            let is_same =
                |other: &Attachment| ptr::addr_eq(Arc::as_ptr(&other.device), Arc::as_ptr(device));
            if self.attachments[..place].iter().any(is_same) {
                return Err(ConfigError::refused(
                    "device",
                    &device.caps().name,
                    "given twice: a stack takes each device once",
                ));
            }
        }
        Ok(())
    }

    /// Builds the stack and starts its workers. With `net.quietline.acd_probes` it returns when the addresses have been probed.
    ///
    /// # Errors
    /// One line that names the field, the value and the reason: `NotFound` for a device or setting that does not exist,
    /// `AlreadyExists` for an address or route given twice, `AddrInUse` when another station has an address, `InvalidInput` for
    /// anything else; or the error of a system call that starts a worker.
    pub fn build(mut self) -> io::Result<Stack> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        if let Some(bytes) = self.packet_memory {
            memory::set_limit(bytes)?;
        }
        self.check_attachments()?;
        let index = |name: &str| {
            let names = self.attachments.iter().map(|attachment| &attachment.device.caps().name);
            // The host's device 0 is loopback.
            (1..).zip(names).find(|(_, own)| *own == name).map(|(index, _)| index)
        };
        for route in &self.routes {
            self.config.routes.push(route.spec(index)?);
        }
        #[cfg(feature = "capture")]
        let captured = |device| match &self.capture {
            Some(capture) => Arc::new(CaptureDevice::new(device, capture)) as Arc<dyn Device>,
            None => device,
        };
        #[cfg(not(feature = "capture"))]
        let captured = core::convert::identity;
        self.config.devices = self
            .attachments
            .iter()
            .zip(self.addresses)
            .map(|(attachment, addresses)| DeviceConfig {
                device: captured(Arc::clone(&attachment.device)),
                addresses,
            })
            .collect();
        let mode = if self.manual { RunMode::Manual } else { RunMode::Workers };
        Stack::start(self.config, self.attachments, &self.neighbors, mode)
    }
}
