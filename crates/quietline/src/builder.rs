//! Builder of a stack: devices, addresses, routes, cores, settings.
//!
//! Above: applications. Below: `Stack::start`, which creates the host and starts the workers.
//!
//! Not here: how devices are attached (`attachments`), settings of sockets (`options`).

use std::{io, net::IpAddr, ptr, sync::Arc};

use ipnet::IpNet;
use stack::{
    Secrets,
    base::{config_error::ConfigError, ids::DeviceIndex},
    device::{QueueId, RxSignal},
    header::ethernet::MacAddr,
    host::config::{DeviceConfig, HostConfig},
    route::fib::RouteSpec,
    socket::flows::Intercept,
    sysctl::qdisc::QdiscConfig,
};

#[cfg(feature = "capture")]
use crate::device::{Capture, CaptureDevice, Device};
use crate::{
    attachments::Attachment,
    entropy,
    handle::{RunMode, Stack},
    memory,
    route::Route,
};

mod budget;
mod settings;

pub use budget::Budget;
pub use settings::{EcnMode, MtuProbing};

/// A permanent neighbor entry that the stack starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaticNeighbor {
    /// Index of the device in its host: loopback is 0.
    pub(crate) device: DeviceIndex,
    pub(crate) address: IpAddr,
    pub(crate) mac: MacAddr,
}

/// The parts and settings of a stack that is not built yet.
///
/// Every method takes and returns the builder. None fails: the first error is kept, and
/// [`build`](Self::build) returns it.
///
/// Methods that are about a device, [`address`](Self::address) for example, are about the one that
/// was added last.
///
/// ```
/// use std::time::Duration;
/// use quietline::{Stack, Wire, WireConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (device, _other_end) = Wire::pair(&WireConfig::default())?;
/// let stack = Stack::builder()
///     .name("front")
///     .device(device)
///     .address("10.0.0.2/24".parse()?)
///     .gateway("10.0.0.1".parse()?)
///     .cores(2)
///     .idle_timeout(Some(Duration::from_secs(600)))
///     .sysctl("net.core.somaxconn", "8192")
///     .build()?;
/// # let _ = stack;
/// # Ok(())
/// # }
/// ```
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

    /// Name of the stack in messages, thread names and captures. Default: empty.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Adds a device: a [`Wire`](crate::Wire), a device of module [`device`](crate::device), or an
    /// application's own device as an [`Attachment`]. The stack uses it exclusively from
    /// [`build`](Self::build) on.
    pub fn device(mut self, device: impl Into<Attachment>) -> Self {
        self.attachments.push(device.into());
        self.addresses.push(Vec::new());
        self
    }

    /// Adds an address to the last device. Its network becomes directly reachable through the
    /// device.
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

    /// Adds a permanent neighbor to the last device: its link address is known, and no ARP packet
    /// changes it. [`Stack::set_neighbor`](crate::Stack::set_neighbor) adds one while the stack
    /// runs.
    pub fn neighbor(mut self, address: IpAddr, mac: MacAddr) -> Self {
        match u32::try_from(self.attachments.len()) {
            Ok(device) if device > 0 => {
                let device = DeviceIndex(device);
                self.neighbors.push(StaticNeighbor { device, address, mac });
            }
            _ => {
                let error = ConfigError::new("neighbor", address, "a neighbor after its device");
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Intercepts the flows that the last device brings for addresses which the stack does not
    /// have: [`Stack::flows`](crate::Stack::flows) hands them to the application. Listeners of the
    /// stack's own addresses come first. Answers leave by the device, so a route to the clients is
    /// not needed.
    ///
    /// Several devices may intercept if their clients have different addresses. For clients with
    /// the same addresses, such as virtual machines, each device needs a stack of its own.
    pub fn intercept(mut self, intercept: Intercept) -> Self {
        match u32::try_from(self.attachments.len()) {
            Ok(device) if device > 0 => {
                self.config.intercepts.push((DeviceIndex(device), intercept));
            }
            _ => {
                let error = ConfigError::new("intercept", "", "an interception after its device");
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Sets the queueing discipline of the last device, as `tc qdisc replace dev DEVICE root` does.
    ///
    /// Default: `net.core.default_qdisc` for a device that needs a queue
    /// ([`Device::needs_qdisc`](crate::Device::needs_qdisc)), and none for any other. The setting
    /// `net.quietline.dev.DEVICE.qdisc` has the same effect, also while the stack runs.
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

    /// Adds a route with any of the attributes of `ip route add`.
    pub fn add_route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Adds the default route of the gateway's address family.
    pub fn gateway(self, via: IpAddr) -> Self {
        let any = match via {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        };
        self.route(any, via)
    }

    /// Number of cores, 1 to 64: each has a worker thread. The queues of the devices are spread
    /// over them.
    ///
    /// Default: 1. Set it to the number of queues of the busiest device, and at most to the number
    /// of CPUs; a device with one queue needs RPS (`net.quietline.dev.DEVICE.rps_cpus`) to use more
    /// than one core.
    pub const fn cores(mut self, cores: u16) -> Self {
        self.config.cores = cores;
        self
    }

    /// Sets any setting of docs/sysctl.md by its name, as `sysctl -w NAME=VALUE` does.
    /// [`Stack::set_sysctl`](crate::Stack::set_sysctl) changes it while the stack runs.
    pub fn sysctl(mut self, name: &str, value: &str) -> Self {
        if let Err(error) = self.config.sysctls.set(name, value) {
            self.error.get_or_insert_with(|| error.into());
        }
        self
    }

    /// Derives sequence numbers, ports, cookies and hash keys from `seed`, for runs that must
    /// repeat.
    ///
    /// Default: each key is 16 or 32 bytes of getrandom(2).
    ///
    /// Warning: an attacker with the seed, or one that tries all seeds, can guess all of these.
    pub fn replay(mut self, seed: u64) -> Self {
        self.config.secrets = Secrets::replay(seed);
        self
    }

    /// Upper bound of the packet memory of this process, in bytes: 16 MiB or more. Nothing is
    /// reserved. At the bound, packets to be sent are dropped and counted as `NoMemory`, and
    /// devices stop receiving until memory is free again.
    ///
    /// Default: a quarter of the machine's memory, or half of the limit of the process's cgroup if
    /// that is less. A connection in use takes up to [`send_buffer_max`](Self::send_buffer_max) and
    /// [`receive_buffer_max`](Self::receive_buffer_max).
    ///
    /// All stacks of a process share their packet memory. The first stack decides, and
    /// [`build`](Self::build) refuses another value after it with `InvalidInput`.
    pub const fn packet_memory(mut self, bytes: usize) -> Self {
        self.packet_memory = Some(bytes);
        self
    }

    /// Bounds the memory of this stack: packets, buffers and connections together. Several stacks
    /// of a process have a budget each, within the packet memory that they share.
    ///
    /// Before a connection is refused, all connections shrink: under pressure
    /// (`TCPMemoryPressures`) they announce smaller windows and take less from their applications.
    /// Beyond the number of connections that the budget has room for, a SYN is dropped and
    /// `connect` fails with `ENOBUFS` (`SocketConnectionLimit`). See [`Budget`] for the settings
    /// that this call sets; a later call of [`sysctl`](Self::sysctl) changes one of them.
    ///
    /// Default: no budget; `net.ipv4.tcp_mem` and `net.ipv4.udp_mem` are parts of the packet memory
    /// of the process.
    pub fn memory(mut self, budget: Budget) -> Self {
        match budget.settings() {
            Ok(settings) => {
                settings.into_iter().fold(self, |own, (name, value)| own.sysctl(name, &value))
            }
            Err(error) => {
                self.error.get_or_insert(error);
                self
            }
        }
    }

    /// Records every frame of every device in a pcapng file.
    #[cfg(feature = "capture")]
    pub fn capture(mut self, capture: Arc<Capture>) -> Self {
        self.capture = Some(capture);
        self
    }

    /// Starts no worker threads: the stack runs only inside [`Stack::poll`] and inside socket
    /// calls.
    ///
    /// A poll, or a socket call that runs the stack, returns when no work is left, and after ten
    /// turns in any case, as Linux ends its softirqs after ten rounds or 2 ms and leaves the rest
    /// to ksoftirqd. Here the rest is left to the next call that runs the core (`CoreLeft`), and
    /// `Stack::poll` returns a zero time meanwhile.
    pub const fn manual(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Refuses a device that is given twice, and one whose arrivals would wake no worker. The host
    /// cannot detect the first, because a capture wraps each device.
    fn check_attachments(&self) -> Result<(), ConfigError> {
        for (place, Attachment { device, fds, .. }) in self.attachments.iter().enumerate() {
            let sleeps = |queue| device.rx_signal(QueueId(queue)) == RxSignal::Descriptor;
            if !self.manual && fds.is_none() && (0..device.caps().queues).any(sleeps) {
                return Err(ConfigError::refused(
                    "device",
                    &device.caps().name,
                    "its arrivals are signaled by descriptors, and its attachment has none (Attachment::poll_fds)",
                ));
            }
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

    /// Builds the stack and starts its workers. With `net.quietline.acd_probes` it returns after
    /// the addresses were probed.
    ///
    /// # Errors
    ///
    /// The first error of any method, as one line that names the field, the value and the reason:
    /// `NotFound` for a device or setting that does not exist, `AlreadyExists` for an address or
    /// route given twice, `AddrInUse` if another station has an address, `InvalidInput` for any
    /// other value; or the error of a system call that starts a worker.
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
            let indices = (1..).map(DeviceIndex);
            indices.zip(names).find(|(_, own)| *own == name).map(|(index, _)| index)
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
