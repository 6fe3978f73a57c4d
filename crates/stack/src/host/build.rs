//! Construction of a host from its configuration.

use std::{
    net::{IpAddr, Ipv6Addr},
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
        interface_id::stable_address,
        limits::GRO_BYTES_MAX,
        tcp_memory::MemoryLimits,
    },
    core::{Core, CoreNet, DEVICE_QUEUES_MAX},
    cx::{Memory, share::HostShare},
    device::{Device, Doorbell, LinkType, Loopback, QueueId, attached::Attached},
    receive::rps::backlog::Backlog,
    route::{
        change,
        exception::Exceptions,
        fib::{MTU_MIN_V6, is_link_local},
        input::InputRoutes,
        output::OutputRoutes,
        router::Router,
        table::RouteTable,
    },
    socket::{
        core_sockets::CoreSockets,
        datagram::{groups::Groups, table::DatagramTable},
        demux::Demux,
        fast_open::FastOpenMemory,
        flows::Interception,
        net::{IcmpLimiter, Net, autoconf::Autoconf, claims::Claims, group_reports::GroupReports},
    },
    sysctl::{Present, Sysctls},
    transmit::{
        dst::RouteGeneration, ident::IpIds, neighbor::tables::NeighborTables, tx_queue::DeviceTx,
    },
};

/// Network of link-local addresses, fe80::/64.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);

/// Name of the device that every host has.
const LOOPBACK_NAME: &str = "lo";

impl Host {
    /// Builds a host: validates the configuration and attaches the devices to cores.
    ///
    /// # Errors
    /// [`ConfigError`] names the field, the refused value and the allowed values.
    pub fn new(memory: &Memory, mut config: HostConfig) -> Result<Arc<Self>, ConfigError> {
        if config.cores == 0 || config.cores > CORES_MAX {
            return Err(ConfigError::new("cores", config.cores, format!("1 to {CORES_MAX}")));
        }
        check_devices(&config)?;
        add_link_local_addresses(&mut config);
        set_memory_limits(&mut config.sysctls, memory);
        let secrets = config.secrets;
        let mut devices: Vec<Arc<dyn Device>> = vec![Arc::new(Loopback::new(config.cores))];
        let (attached, addresses) = attach(&memory.rcu, core::mem::take(&mut config.devices));
        devices.extend(attached.iter().map(|device| Arc::clone(device) as Arc<dyn Device>));
        let fib = change::builder_of(&addresses, &config.routes)?;
        config.sysctls.devices.bind(devices.iter().map(|device| present(&**device)))?;
        let attendances: Vec<Arc<Attendance>> = (0..config.cores).map(|_| Arc::default()).collect();
        let core_sockets = core_sockets_of(&attendances);
        let generation = Arc::default();
        let tx = transmit_sides(&devices, &config.sysctls, &attendances, &generation);
        let core_nets: Vec<Arc<CoreNet>> = (0..config.cores).map(|_| Arc::default()).collect();
        let cores = cores_of(&core_nets, &attendances, &core_sockets);
        let net = Arc::new_cyclic(|this: &Weak<Net>| {
            let router = Router {
                routes: RouteTable::new(&memory.rcu, fib, generation),
                dst_layout: config.sysctls.dst_layout,
                exceptions: Exceptions::new(&memory.rcu, secrets.exceptions),
                neighbors: NeighborTables::new(
                    &config.sysctls,
                    &(Weak::<Net>::clone(this) as _),
                    &tx,
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
                datagrams: DatagramTable::new(&memory.rcu),
                pings: DatagramTable::new(&memory.rcu),
                groups: Groups::new(&memory.rcu),
                group_reports: GroupReports::default(),
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
                flows: Interception::new(&memory.rcu, config.intercepts),
                claims: Claims::default(),
                fragments_v4: Mutex::default(),
                fragments_v6: Mutex::default(),
                autoconf: Autoconf::new(secrets.interface_ids),
                unfinished_checksums: AtomicU64::new(0),
            }
        });
        core_nets.iter().for_each(|core_net| core_net.set(&net));
        let host = Arc::new(Self { net, cores, core_nets, device_changes: Mutex::default() });
        host.attach_devices()?;
        Ok(host)
    }

    /// Distributes the queues of every device over the cores.
    fn attach_devices(&self) -> Result<(), ConfigError> {
        for (position, device) in self.devices.iter().enumerate() {
            // The core that polls a queue holds the device itself, not its `Attached`. Loopback, at
            // position 0, has no `Attached`.
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
                        format!("at most {DEVICE_QUEUES_MAX} for each core, loopback's included");
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

/// Creates the cores of a host.
fn cores_of(
    core_nets: &[Arc<CoreNet>],
    attendances: &[Arc<Attendance>],
    core_sockets: &[Arc<CoreSockets>],
) -> Vec<Arc<Core>> {
    let count = u16::try_from(attendances.len()).expect("a host has at most 64 cores");
    let backlogs: Arc<[_]> = attendances.iter().map(|_| Arc::new(Backlog::new(count))).collect();
    (0..)
        .map(CoreId)
        .zip(core_nets)
        .zip(attendances.iter().zip(core_sockets))
        .map(|((id, net), (attendance, sockets))| {
            let (net, backlogs) = (Arc::downgrade(net), Arc::clone(&backlogs));
            Core::new(id, net, backlogs, Arc::clone(attendance), Arc::clone(sockets))
        })
        .collect()
}

/// Bytes of an IPv4 header and a TCP header without options.
const HEADERS: u32 = 40;

/// Refuses unusable devices: a device that a host already has or that is given twice, the name of
/// another device, an MTU that holds no segment, or is too small for IPv6 on a device with an IPv6
/// address.
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
        let has_v6 = entry.addresses.iter().any(|address| address.addr().is_ipv6());
        if has_v6 && caps.mtu < MTU_MIN_V6 {
            let allowed = format!("at least {MTU_MIN_V6} for an IPv6 address (RFC 8200 §5)");
            return Err(ConfigError::new("mtu", caps.mtu, allowed));
        }
        if caps.mtu < mtu_min {
            let allowed = format!("at least {mtu_min}: 40 bytes of headers and tcp_min_snd_mss");
            return Err(ConfigError::new("mtu", caps.mtu, allowed));
        }
    }
    check_intercepts(config)
}

/// Refuses an interception by a device that the host does not have, and two by one device.
fn check_intercepts(config: &HostConfig) -> Result<(), ConfigError> {
    for (place, (device, _)) in config.intercepts.iter().enumerate() {
        let is_device = device.position() > 0 && device.position() <= config.devices.len();
        if !is_device {
            return Err(ConfigError::new("intercept", device, "the index of a device"));
        }
        if config.intercepts[..place].iter().any(|(other, _)| other == device) {
            return Err(ConfigError::new("intercept", device, "once for each device"));
        }
    }
    Ok(())
}

/// Computes the memory limits that are still at their default from the maximum of packet memory.
fn set_memory_limits(sysctls: &mut Sysctls, memory: &Memory) {
    let defaults = Sysctls::default();
    if sysctls.tcp_mem == defaults.tcp_mem {
        sysctls.tcp_mem = MemoryLimits::for_packets(memory.packets.max_bytes());
    }
    if sysctls.udp_mem == defaults.udp_mem {
        sysctls.udp_mem = MemoryLimits::for_packets(memory.packets.max_bytes());
    }
}

/// Gives a link-local address (RFC 4291 §2.8) to each Ethernet device that has an IPv6 address or,
/// with an MTU sufficient for IPv6, accepts router advertisements, unless the configuration gives
/// the device one.
fn add_link_local_addresses(config: &mut HostConfig) {
    for entry in &mut config.devices {
        let caps = entry.device.caps();
        let has = |wanted: fn(IpAddr) -> bool| {
            entry.addresses.iter().any(|address| wanted(address.addr()))
        };
        let uses_v6 = config.sysctls.accept_ra || has(|ip| ip.is_ipv6());
        let is_ethernet = matches!(caps.link, LinkType::Ethernet { .. });
        if uses_v6 && is_ethernet && caps.mtu >= MTU_MIN_V6 && !has(is_link_local) {
            let key = &config.secrets.interface_ids;
            let address = stable_address(key, LINK_LOCAL, &caps.name, 0);
            entry.addresses.push(IpNet::new_assert(IpAddr::V6(address), 64));
        }
    }
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
    // For a device without segmentation offload, software segments superframes (packets of several
    // segments) of any length that an IPv4 header can express.
    let superframe_end = (caps.gso_max_bytes + 1).max(GRO_BYTES_MAX);
    Present::new(&caps.name, caps.queues, superframe_end, device.gso_ipv4_size())
}
