//! Construction of a host from its configuration.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, AtomicUsize},
    },
    vec::Vec,
};

use ipnet::IpNet;
use sync::{Attendance, Shutdown, epoch::Domain};
use tcp::{IsnGenerator, PortSelector, SynCookies};

use super::{
    Host,
    config::{DeviceConfig, HostConfig},
};
use crate::{
    base::{
        config_error::ConfigError,
        ids::{CORES_MAX, CoreId, DeviceIndex},
        limits::GRO_BYTES_MAX,
        tcp_memory::MemoryLimits,
    },
    core::{Core, DEVICE_QUEUES_MAX},
    cx::{Memory, share::HostShare},
    device::{Device, Doorbell, Loopback, QueueId, attached::Attached},
    receive::rps::backlog::Backlog,
    route::{
        change, exception::Exceptions, input::InputRoutes, output::OutputRoutes, router::Router,
        table::RouteTable,
    },
    socket::{
        core_sockets::CoreSockets,
        demux::Demux,
        fast_open::FastOpenMemory,
        net::{IcmpLimiter, Net, claims::Claims},
    },
    sysctl::{Present, Sysctls},
    transmit::{
        dst::RouteGeneration, ident::IpIds, neighbor::table::NeighborTable, tx_queue::DeviceTx,
    },
};

/// Name of the device that every host has.
const LOOPBACK_NAME: &str = "lo";

impl Host {
    /// Builds a host: validates the configuration, attaches devices to cores.
    ///
    /// # Errors
    /// [`ConfigError`] names the field, the refused value and the allowed values.
    pub fn new(memory: &Memory, config: HostConfig) -> Result<Arc<Self>, ConfigError> {
        if config.cores == 0 || config.cores > CORES_MAX {
            return Err(ConfigError::new("cores", config.cores, format!("1 to {CORES_MAX}")));
        }
        check_devices(&config)?;
        let mut config = config;
        if config.sysctls.tcp_mem == Sysctls::default().tcp_mem {
            config.sysctls.tcp_mem = MemoryLimits::for_packets(memory.packets.max_bytes());
        }
        let secrets = config.secrets;
        let loopback: Arc<dyn Device> = Arc::new(Loopback::new(config.cores));
        let mut devices = vec![loopback];
        let (attached, addresses) = attach(&memory.rcu, core::mem::take(&mut config.devices));
        devices.extend(attached.iter().map(|device| Arc::clone(device) as Arc<dyn Device>));
        let fib = change::builder_of(&addresses, &config.routes)?;
        config.sysctls.devices.bind(devices.iter().map(|device| present(&**device)))?;
        let attendances: Vec<Arc<Attendance>> = (0..config.cores).map(|_| Arc::default()).collect();
        let core_sockets = core_sockets_of(&attendances);
        let generation = Arc::default();
        let tx = transmit_sides(&devices, &config.sysctls, &attendances, &generation);
        let mut cores: Vec<Arc<Core>> = Vec::new();
        let net = Arc::new_cyclic(|this: &Weak<Net>| {
            cores = cores_of(this, &attendances, &core_sockets);
            let router = Router {
                routes: RouteTable::new(&memory.rcu, fib, generation),
                dst_layout: config.sysctls.dst_layout,
                exceptions: Exceptions::new(&memory.rcu, secrets.exceptions),
                neighbors: NeighborTable::new(
                    config.sysctls.neigh.clone(),
                    Weak::<Net>::clone(this),
                    tx.clone(),
                    config.cores,
                ),
                output_routes: OutputRoutes::new(&memory.rcu, config.cores),
                input_routes: InputRoutes::new(&memory.rcu),
                rcu: memory.rcu.clone(),
                tx,
                devices,
                attached,
                share: HostShare::new(config.name, config.cores, config.sysctls),
            };
            Net {
                router,
                demux: Demux::new(&memory.rcu, secrets.demux),
                runners: cores.iter().map(|core| Arc::clone(core) as _).collect(),
                core_sockets,
                isn: IsnGenerator::new(&secrets.isn),
                ports: PortSelector::new(&secrets.ports),
                syn_cookies: SynCookies::new(&secrets.syn_cookies),
                fast_open: FastOpenMemory::new(secrets.fast_open),
                icmp_limiter: IcmpLimiter::new(),
                ip_ids: IpIds::new(&secrets.ip_ids),
                packets: memory.packets.clone(),
                time_waits: AtomicUsize::new(0),
                orphans: AtomicUsize::new(0),
                down: Shutdown::default(),
                claims: Claims::default(),
                fragments: Mutex::default(),
                unfinished_checksums: AtomicU64::new(0),
            }
        });
        let host = Arc::new(Self { net, cores, device_changes: Mutex::default() });
        host.attach_devices()?;
        Ok(host)
    }

    /// Distributes the queues of every device over the cores.
    fn attach_devices(&self) -> Result<(), ConfigError> {
        for (position, device) in self.devices.iter().enumerate() {
            // The core that polls a queue holds the device itself.
            let attached = position.checked_sub(1).and_then(|place| self.attached.get(place));
            let index = DeviceIndex::at(position);
            let device =
                &attached.and_then(|own| own.device()).unwrap_or_else(|| Arc::clone(device));
            for queue in 0..device.caps().queues {
                let queue = QueueId(queue);
                let core = self.core_of_queue(queue);
                let (polled, tx) = (Arc::clone(device), Arc::clone(self.tx(index)));
                let napi = core.add_queue(polled, tx, index, queue).ok_or_else(|| {
                    let limit =
                        format!("at most {DEVICE_QUEUES_MAX} for each core, with loopback's");
                    ConfigError::new("queues", device.caps().queues, limit)
                })?;
                let attendance = Arc::clone(core.attendance());
                device.attach(queue, Doorbell::new(Arc::clone(core) as _, attendance, napi));
            }
        }
        Ok(())
    }
}

/// Creates the state that the sockets of each core share.
fn core_sockets_of(attendances: &[Arc<Attendance>]) -> Box<[Arc<CoreSockets>]> {
    (0..)
        .map(CoreId)
        .zip(attendances)
        .map(|(id, attendance)| Arc::new(CoreSockets::new(id, Arc::clone(attendance))))
        .collect()
}

/// Creates the cores of `net`.
fn cores_of(
    net: &Weak<Net>,
    attendances: &[Arc<Attendance>],
    core_sockets: &[Arc<CoreSockets>],
) -> Vec<Arc<Core>> {
    let count = u16::try_from(attendances.len()).expect("at most 64 cores");
    let backlogs: Arc<[_]> = attendances.iter().map(|_| Arc::new(Backlog::new(count))).collect();
    (0..)
        .map(CoreId)
        .zip(attendances.iter().zip(core_sockets))
        .map(|(id, (attendance, sockets))| {
            let (net, backlogs) = (Weak::clone(net), Arc::clone(&backlogs));
            Core::new(id, net, backlogs, Arc::clone(attendance), Arc::clone(sockets))
        })
        .collect()
}

/// Bytes of an IPv4 and a TCP header without options.
const HEADERS: u32 = 40;

/// Refuses unusable devices: a device that a host already has, two devices of one name, an MTU that
/// holds no segment.
fn check_devices(config: &HostConfig) -> Result<(), ConfigError> {
    let mtu_min = HEADERS + u32::from(config.sysctls.tcp.tcp_min_snd_mss);
    for (place, entry) in config.devices.iter().enumerate() {
        let caps = entry.device.caps();
        let earlier = &config.devices[..place];
        let is_same = |other: &DeviceConfig| {
            core::ptr::addr_eq(Arc::as_ptr(&other.device), Arc::as_ptr(&entry.device))
        };
        if earlier.iter().any(is_same) {
            return Err(ConfigError::refused(
                "device",
                &caps.name,
                "given twice: a stack takes each device once",
            ));
        }
        if entry.device.is_attached() {
            let allowed = "a device that belongs to no other stack";
            return Err(ConfigError::new("device", &caps.name, allowed));
        }
        let has_name = |other: &DeviceConfig| other.device.caps().name == caps.name;
        if caps.name == LOOPBACK_NAME || earlier.iter().any(has_name) {
            let allowed = "a name that no other device of the stack has";
            return Err(ConfigError::new("device name", &caps.name, allowed));
        }
        if caps.mtu < mtu_min {
            let allowed = format!("at least {mtu_min}: 40 bytes of headers and tcp_min_snd_mss");
            return Err(ConfigError::new("mtu", caps.mtu, allowed));
        }
    }
    Ok(())
}

/// Attaches the configured devices to the host, which uses them exclusively from here on. Returns
/// them with the addresses of each.
fn attach(rcu: &Domain, devices: Vec<DeviceConfig>) -> (Vec<Arc<Attached>>, Vec<Vec<IpNet>>) {
    let attached =
        |entry: DeviceConfig| (Arc::new(Attached::new(rcu, entry.device)), entry.addresses);
    devices.into_iter().map(attached).unzip()
}

/// Creates the transmit queues of every device.
fn transmit_sides(
    devices: &[Arc<dyn Device>],
    sysctls: &Sysctls,
    attendances: &[Arc<Attendance>],
    routes: &Arc<RouteGeneration>,
) -> Vec<Arc<DeviceTx>> {
    devices
        .iter()
        .enumerate()
        .map(|(position, device)| {
            let (device, routes) = (Arc::clone(device), Arc::clone(routes));
            let index = DeviceIndex::at(position);
            Arc::new(DeviceTx::new(device, index, sysctls, attendances, routes))
        })
        .collect()
}

/// Returns the properties of a device that bound its settings.
fn present(device: &dyn Device) -> Present<'_> {
    let caps = device.caps();
    // For a device without segmentation offload, software segments superframes of any length that
    // an IPv4 header can express.
    let superframe_end = (caps.gso_max_bytes + 1).max(GRO_BYTES_MAX);
    Present::new(&caps.name, caps.queues, superframe_end, device.gso_ipv4_size())
}
