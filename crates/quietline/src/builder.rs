//! Building a stack: devices, addresses, routes, cores, settings.

use std::{io, net::IpAddr, os::fd::BorrowedFd, sync::Arc};

use ipnet::IpNet;
use stack::{
    config::{ConfigError, DeviceConfig, HostConfig},
    device::{Device, Wire},
    qdisc::QdiscConfig,
    route::fib::RouteSpec,
};

use crate::{
    clock,
    device::{AfPacket, AfXdp, Capture, CaptureDevice, Tun},
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

    /// Whether the interface is gone for good, so that its descriptors are no longer worth watching.
    fn is_gone(&self) -> bool {
        false
    }
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

/// Collects what a stack is made of. Every method takes and returns the builder; errors wait for
/// [`build`](Self::build).
#[derive(Debug)]
#[must_use = "a builder does nothing until build()"]
pub struct StackBuilder {
    config: HostConfig,
    attachments: Vec<Attachment>,
    addresses: Vec<Vec<IpNet>>,
    routes: Vec<Route>,
    capture: Option<Arc<Capture>>,
    manual: bool,
    error: Option<ConfigError>,
}

impl StackBuilder {
    pub(crate) fn new() -> Self {
        Self {
            config: HostConfig { cores: 1, seed: clock::seed(), ..HostConfig::default() },
            attachments: Vec::new(),
            addresses: Vec::new(),
            routes: Vec::new(),
            capture: None,
            manual: false,
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
            self.error.get_or_insert_with(|| ConfigError::new("sysctl", name, error));
        }
        self
    }

    /// Seeds sequence numbers, ports and hash keys. Only for runs that must repeat: whoever knows the seed can guess
    /// all of them. Default: from the kernel's random generator.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Records every frame of every device.
    pub fn capture(mut self, capture: Arc<Capture>) -> Self {
        self.capture = Some(capture);
        self
    }

    /// No worker threads: the stack runs only inside [`Stack::poll`] and inside socket calls.
    ///
    /// A call that has begun to run the stack, or a poll, returns when nothing is left: Linux ends its softirqs after ten rounds or
    /// 2 ms and leaves the rest to ksoftirqd, but here nobody would come for it. While another thread, or a stack polled by one, sends
    /// to this one without a pause, such a call lasts. With workers it ends after ten turns, and a worker goes on.
    pub const fn manual(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Builds the stack and starts its workers.
    ///
    /// # Errors
    /// `InvalidInput` with one line that names the field, the value and what is allowed; or the error of a system call
    /// that starts a worker.
    pub fn build(mut self) -> io::Result<Stack> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        let index = |name: &str| {
            let names = self.attachments.iter().map(|attachment| &attachment.device.caps().name);
            // The host's device 0 is loopback.
            (1..).zip(names).find(|(_, own)| *own == name).map(|(index, _)| index)
        };
        for route in &self.routes {
            self.config.routes.push(route.spec(index)?);
        }
        self.config.devices = self
            .attachments
            .iter()
            .zip(self.addresses)
            .map(|(attachment, addresses)| DeviceConfig {
                device: match &self.capture {
                    Some(capture) => {
                        Arc::new(CaptureDevice::new(Arc::clone(&attachment.device), capture))
                    }
                    None => Arc::clone(&attachment.device),
                },
                addresses,
            })
            .collect();
        let mode = if self.manual { RunMode::Manual } else { RunMode::Workers };
        Stack::start(self.config, self.attachments, mode)
    }
}
