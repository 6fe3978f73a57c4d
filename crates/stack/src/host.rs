//! A host: one instance of the stack with its addresses, routes, neighbours, sockets and cores.
//!
//! Linux: a network namespace (`struct net`). Shared by every thread that uses it; what changes on the data path lives
//! in the cores and sockets, what is here is read-mostly.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    vec::Vec,
};

use ipnet::IpNet;
use pkt::Instant;
use sync::{
    epoch::{Domain, Section},
    rcu_map::Place,
};
use tcp::{
    ChallengeBudget, FastOpen, FourTuple, IsnGenerator, OpenParams, PathParams, PortSelector,
    SocketOptions, SynCookies,
};

use crate::{
    config::{ConfigError, DeviceConfig, HostConfig},
    core::{Core, CoreId, CoreRun, DEVICE_QUEUES_MAX},
    counters::CounterPage,
    cx::{Cx, Memory},
    demux::{Demux, Entry},
    device::{Device, Doorbell, Loopback, QueueId, attached::Attached},
    errno::Errno,
    fast_open::FastOpenMemory,
    ip::IcmpLimiter,
    neighbour_table::NeighborTable,
    route::{
        Dst,
        dst::DstLayout,
        exception::Exceptions,
        fib::{Fib, RouteKind},
        input::InputRoutes,
        output::OutputRoutes,
        table::RouteTable,
    },
    rps::SockFlows,
    socket::SocketRef,
    sysctl::{LiveSysctls, Present, SysctlError, Sysctls},
    tcp_memory::{MemoryLimits, TcpMemory},
    tx_queue::DeviceTx,
};

mod audit;
mod devices;
mod paths;
mod report;
mod routes;

pub use audit::Audit;
pub(crate) use paths::Hop;

/// Hosts of a process are numbered from 1, so that a context can tell whose counters it writes.
static NEXT_HOST_ID: AtomicU64 = AtomicU64::new(1);

/// Cores a host may have.
pub const CORES_MAX: u16 = 64;

/// Connections that a turn looks at when what they keep has to go.
const TRIM_PIECE: usize = 64;

/// Index of the loopback device.
const LOOPBACK: u32 = 0;

/// One instance of the stack.
#[derive(Debug)]
pub struct Host {
    id: u64,
    name: String,
    sysctls: LiveSysctls,
    devices: Vec<Arc<dyn Device>>,
    /// Those behind loopback, as what can be taken down.
    attached: Vec<Arc<Attached>>,
    /// One change of a device at a time.
    device_changes: Mutex<()>,
    /// The transmit queues of each.
    tx: Vec<Arc<DeviceTx>>,
    routes: RouteTable,
    /// `net.quietline.dst_layout`, as it was when the host was built.
    dst_layout: DstLayout,
    /// What ICMP has reported about paths.
    exceptions: Exceptions,
    neighbours: NeighborTable,
    demux: Demux,
    cores: Vec<Arc<Core>>,
    isn: IsnGenerator,
    /// Shared with the contexts that run this host.
    challenges: Arc<ChallengeBudget>,
    syn_cookies: SynCookies,
    fast_open: FastOpenMemory,
    /// Entries of the packets that leave.
    output_routes: OutputRoutes,
    /// Entries of the packets that come.
    input_routes: InputRoutes,
    /// Readers of the tables.
    rcu: Domain,
    ports: PortSelector,
    icmp_limiter: IcmpLimiter,
    /// What all connections hold.
    tcp_memory: Arc<TcpMemory>,
    /// Packet memory, which all hosts of a process share: for its counters.
    packets: pkt::Domain,
    /// Connections in TIME-WAIT, bounded by `tcp_max_tw_buckets`.
    time_waits: AtomicUsize,
    /// Connections that nobody holds, bounded by `tcp_max_orphans`.
    orphans: AtomicUsize,
    down: AtomicBool,
    /// The table of `net.core.rps_sock_flow_entries`, made when a context first wants it.
    sock_flows: Mutex<Option<Arc<SockFlows>>>,
    /// There is such a table, or will be. Relaxed: whoever misses the change polls where it did before.
    rfs_needed: AtomicBool,
    pages: Mutex<Vec<Arc<CounterPage>>>,
}

impl Host {
    /// Builds a host: validates the configuration, attaches devices to cores.
    ///
    /// # Errors
    /// [`ConfigError`] names the field, the value and what would be allowed.
    pub fn new(memory: &Memory, config: HostConfig) -> Result<Arc<Self>, ConfigError> {
        if config.cores == 0 || config.cores > CORES_MAX {
            return Err(ConfigError::new("cores", config.cores, format!("1 to {CORES_MAX}")));
        }
        let mut config = config;
        if config.sysctls.tcp_mem == Sysctls::default().tcp_mem {
            config.sysctls.tcp_mem = MemoryLimits::for_packets(memory.packets.max_bytes());
        }
        let mut rng = tcp::Rng::new(config.seed);
        let loopback: Arc<dyn Device> = Arc::new(Loopback::new(config.cores));
        let mut devices = vec![loopback];
        let (attached, addresses) = attach(&memory.rcu, core::mem::take(&mut config.devices));
        devices.extend(attached.iter().map(|device| Arc::clone(device) as Arc<dyn Device>));
        let fib = routes::builder_of(&addresses, &config.routes)?;
        config.sysctls.devices.bind(devices.iter().map(|device| Present::of(&**device)))?;
        let host = Arc::new_cyclic(|this| Self {
            id: NEXT_HOST_ID.fetch_add(1, Ordering::Relaxed),
            name: config.name,
            routes: RouteTable::new(&memory.rcu, fib),
            dst_layout: config.sysctls.dst_layout,
            exceptions: Exceptions::new(&memory.rcu, (rng.next_u64(), rng.next_u64())),
            neighbours: NeighborTable::new(config.sysctls.neigh.clone()),
            demux: Demux::new(&memory.rcu, (rng.next_u64(), rng.next_u64())),
            cores: (0..config.cores)
                .map(|index| Arc::new(Core::new(CoreId(index), config.cores, this.clone())))
                .collect(),
            challenges: Arc::default(),
            isn: IsnGenerator::new(&secret(&mut rng)),
            ports: PortSelector::new(&secret(&mut rng)),
            syn_cookies: SynCookies::new(&secret(&mut rng)),
            fast_open: FastOpenMemory::new(secret(&mut rng)),
            output_routes: OutputRoutes::new(&memory.rcu, config.cores),
            input_routes: InputRoutes::new(&memory.rcu),
            rcu: memory.rcu.clone(),
            icmp_limiter: IcmpLimiter::new(),
            tcp_memory: tcp_memory_for(&config.sysctls),
            packets: memory.packets.clone(),
            time_waits: AtomicUsize::new(0),
            orphans: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            sock_flows: Mutex::default(),
            rfs_needed: AtomicBool::new(config.sysctls.rps_sock_flow_entries != 0),
            pages: Mutex::default(),
            tx: transmit_sides(&devices, &config.sysctls),
            devices,
            attached,
            device_changes: Mutex::default(),
            sysctls: LiveSysctls::new(config.sysctls),
        });
        host.attach_devices()?;
        Ok(host)
    }

    /// Spreads the queues of every device over the cores.
    fn attach_devices(&self) -> Result<(), ConfigError> {
        for (index, device) in (0u32..).zip(&self.devices) {
            // Whoever polls a queue has the device itself.
            let attached = index.checked_sub(1).and_then(|place| self.attached.get(place as usize));
            let device =
                &attached.and_then(|own| own.device()).unwrap_or_else(|| Arc::clone(device));
            for queue in 0..device.caps().queues {
                let queue = QueueId(queue);
                let core = self.core_of_queue(queue);
                let pair = (Arc::clone(device), Arc::clone(self.tx(index)));
                let napi = core.add_queue(pair, index, queue).ok_or_else(|| {
                    let limit =
                        format!("at most {DEVICE_QUEUES_MAX} for each core, with loopback's");
                    ConfigError::new("queues", device.caps().queues, limit)
                })?;
                device.attach(queue, Doorbell::new(Arc::clone(core), napi));
            }
        }
        Ok(())
    }

    /// Runs every core until none has work, as the caller's thread: the sans-IO mode and the simulator. Returns when
    /// to call again although nothing arrives: at once if work comes in as fast as it is done.
    pub fn poll(&self, cx: &mut Cx) -> Option<Instant> {
        let mut pending = false;
        for core in &self.cores {
            pending |= core.try_run(self, cx) == CoreRun::Pending;
        }
        cx.do_softirq();
        if pending { Some(cx.now) } else { self.next_deadline() }
    }

    /// As [`poll`](Self::poll), one core: for threads that have one each. Who runs all takes from the others what they have just begun,
    /// and their frames into its own caches.
    ///
    /// # Panics
    ///
    /// If the host has no such core.
    pub fn poll_core(&self, cx: &mut Cx, core: CoreId) -> Option<Instant> {
        let core = &self.cores[usize::from(core.0)];
        let run = core.try_run(self, cx);
        cx.do_softirq();
        if run == CoreRun::Pending { Some(cx.now) } else { core.next_deadline() }
    }

    /// When the earliest core has something to do although nothing arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.cores.iter().filter_map(|core| core.next_deadline()).min()
    }

    /// Stops all sockets: listeners are closed, connections aborted. Nothing is opened from here on.
    pub fn shut_down(&self, cx: &mut Cx) {
        if self.down.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut listeners = Vec::new();
        {
            let reader = cx.reader();
            let rcu = reader.pin();
            self.demux.for_each_listener(&rcu, |listener| listeners.push(Arc::clone(listener)));
        }
        let streams = self.streams(cx);
        for listener in listeners {
            listener.close(self, cx);
        }
        for socket in streams {
            socket.abort(self, cx);
        }
        cx.do_softirq();
    }

    /// Looks at what some connections keep for later (`skb_recycle`), as it may have to go; returns where the next begin,
    /// `None` after the last.
    #[cold]
    pub(crate) fn trim_packet_caches(&self, cx: &mut Cx, from: Place) -> Option<Place> {
        let mut streams = Vec::with_capacity(TRIM_PIECE);
        let reader = cx.reader();
        let visit = |entry: &Entry| {
            if let Entry::Stream(socket) = entry {
                streams.push(Arc::clone(socket));
            }
        };
        let rest = self.demux.for_each_established_from(&reader.pin(), from, TRIM_PIECE, visit);
        for socket in streams {
            socket.trim_packet_cache(self, cx);
        }
        rest
    }

    /// Every connection in the tables.
    fn streams(&self, cx: &Cx) -> Vec<SocketRef> {
        let reader = cx.reader();
        let rcu = reader.pin();
        let mut streams = Vec::new();
        self.demux.for_each_established(&rcu, |_, entry| {
            if let Entry::Stream(socket) = entry {
                streams.push(Arc::clone(socket));
            }
        });
        streams
    }

    /// Whether `shut_down` has been called.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// `ENETDOWN` once the host is shut down. Whoever opens something asks after it has registered it: then either
    /// `shut_down` finds it in the tables, or it finds out here.
    pub(crate) fn check_up(&self) -> Result<(), Errno> {
        // The registration before the look at `down`; `shut_down` sets it before it looks at the tables.
        fence(Ordering::SeqCst);
        if self.is_down() { Err(Errno::ENETDOWN) } else { Ok(()) }
    }

    /// Number of this host in the process.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The present settings. Takes a lock: contexts that run the host ask [`Cx::sysctls`].
    #[must_use]
    pub fn sysctls(&self) -> Arc<Sysctls> {
        self.sysctls.present().1
    }

    /// Sets a value by its Linux name while the host runs, as `sysctl -w NAME=VALUE` does. It holds from the next call
    /// or turn of each thread on; what a socket copied when it was made (buffer sizes, keepalive times) it keeps.
    ///
    /// # Errors
    /// [`SysctlError`]; nothing is changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        let (trims, stale) = self.sysctls.set(name, value, |present, next| {
            self.neighbours.configure(next.neigh.clone());
            self.rfs_needed.store(next.rps_sock_flow_entries != 0, Ordering::Relaxed);
            if next.tcp.keeps_packets() {
                self.tcp_memory.note_kept();
            }
            for tx in &self.tx {
                tx.configure(next);
            }
            let stale = present.dst_ref != next.dst_ref
                || present.devices != next.devices
                || present.default_qdisc != next.default_qdisc;
            (present.tcp != next.tcp, stale)
        })?;
        // The set is published by now: whoever is told finds it. Connections may keep packets by the earlier settings that they
        // must not by these.
        if trims && self.tcp_memory.want_trim() {
            self.cores[0].wake_before(Instant::ZERO);
        }
        if stale {
            // Entries are counted as they were made to be, and know what their device may do: let everybody make new ones.
            self.invalidate_routes();
        }
        Ok(())
    }

    /// The settings with their generation, for a context that enters.
    pub(crate) const fn live_sysctls(&self) -> &LiveSysctls {
        &self.sysctls
    }

    /// The table of sockets with `entries` slots, which replaces one of another size; `None` for 0.
    pub(crate) fn sock_flows(&self, entries: u32) -> Option<Arc<SockFlows>> {
        let mut flows = self.sock_flows.lock().unwrap_or_else(PoisonError::into_inner);
        if flows.as_ref().map_or(0, |flows| flows.len()) != entries {
            *flows = (entries != 0).then(|| Arc::new(SockFlows::new(entries)));
        }
        flows.clone()
    }

    /// Whether it matters where applications read their flows.
    pub(crate) fn rfs_needed(&self) -> bool {
        self.rfs_needed.load(Ordering::Relaxed)
    }

    pub(crate) const fn tcp_memory(&self) -> &Arc<TcpMemory> {
        &self.tcp_memory
    }

    /// Cores of this host.
    #[must_use]
    pub fn cores(&self) -> &[Arc<Core>] {
        &self.cores
    }

    /// Connections, half-open requests and TIME-WAIT remnants in the tables.
    #[must_use]
    pub fn established_len(&self) -> usize {
        self.demux.established_len()
    }

    pub(crate) const fn demux(&self) -> &Demux {
        &self.demux
    }

    /// The forwarding table, as long as the section.
    #[inline]
    pub(crate) fn fib<'s>(&'s self, rcu: &'s Section<'_>) -> &'s Fib {
        self.routes.fib(rcu)
    }

    pub(crate) const fn ports(&self) -> &PortSelector {
        &self.ports
    }

    pub(crate) const fn challenges(&self) -> &Arc<ChallengeBudget> {
        &self.challenges
    }

    /// Forgets what connections have taught about their peers: the cookies of Fast Open (`ip tcp_metrics flush all`).
    pub fn flush_tcp_metrics(&self) {
        self.fast_open.forget();
    }

    pub(crate) const fn fast_open(&self) -> &FastOpenMemory {
        &self.fast_open
    }

    pub(crate) const fn syn_cookies(&self) -> &SynCookies {
        &self.syn_cookies
    }

    pub(crate) const fn input_routes(&self) -> &InputRoutes {
        &self.input_routes
    }

    /// Readers of the tables of this host.
    pub(crate) const fn rcu(&self) -> &Domain {
        &self.rcu
    }

    pub(crate) const fn output_routes(&self) -> &OutputRoutes {
        &self.output_routes
    }

    pub(crate) const fn neighbours(&self) -> &NeighborTable {
        &self.neighbours
    }

    pub(crate) const fn icmp_limiter(&self) -> &IcmpLimiter {
        &self.icmp_limiter
    }

    pub(crate) fn device(&self, index: u32) -> &Arc<dyn Device> {
        &self.devices[index as usize]
    }

    /// The transmit queues of a device.
    pub(crate) fn tx(&self, index: u32) -> &Arc<DeviceTx> {
        &self.tx[index as usize]
    }

    /// The core that polls a queue, of whatever device, and looks after what waits to be sent by it.
    pub(crate) fn core_of_queue(&self, queue: QueueId) -> &Arc<Core> {
        &self.cores[usize::from(queue.0) % self.cores.len()]
    }

    pub(crate) const fn is_loopback_device(&self, index: u32) -> bool {
        index == LOOPBACK
    }

    pub(crate) fn core(&self, id: CoreId) -> &Arc<Core> {
        &self.cores[usize::from(id.0)]
    }

    /// The core that a connection of this flow lives on, timers and queue: the one that has received its first packet, or
    /// in process context the one that the flow would be spread to.
    pub(crate) fn core_for(&self, cx: &Cx, hash: u32) -> CoreId {
        cx.running().unwrap_or_else(|| self.core_of_flow(hash))
    }

    /// The core of a flow where nothing else decides.
    pub(crate) fn core_of_flow(&self, hash: u32) -> CoreId {
        // Reciprocal scaling, as RPS does: the high bits choose.
        let index = (u64::from(hash) * self.cores.len() as u64) >> 32;
        CoreId(u16::try_from(index).expect("below the number of cores"))
    }

    /// The earliest moment at which a device queue of `core` has something by itself.
    pub(crate) fn queue_deadline(&self, core: CoreId) -> Option<Instant> {
        let cores = self.cores.len();
        self.devices
            .iter()
            .zip(&self.tx)
            .flat_map(|(device, tx)| {
                (0..device.caps().queues)
                    .filter(move |queue| usize::from(*queue) % cores == usize::from(core.0))
                    .map(QueueId)
                    .flat_map(move |queue| [device.next_deadline(queue), tx.deadline(queue)])
            })
            .flatten()
            .min()
    }

    #[inline]
    pub(crate) fn route_generation(&self) -> u32 {
        self.routes.generation()
    }

    /// An address of this host?
    pub(crate) fn is_local(&self, cx: &Cx, ip: IpAddr) -> bool {
        self.fib(&cx.reader().pin()).is_local(ip)
    }

    /// An address of this host on `device`?
    pub(crate) fn is_local_on(&self, cx: &Cx, device: u32, ip: IpAddr) -> bool {
        self.fib(&cx.reader().pin())
            .lookup(ip)
            .is_some_and(|route| route.kind == RouteKind::Local && route.device == device)
    }

    /// What a connection of `tuple` along `dst` starts with.
    pub(crate) fn open_params(
        &self,
        tuple: FourTuple,
        hash: u32,
        dst: &Dst,
        now: Instant,
    ) -> OpenParams {
        OpenParams {
            tuple,
            iss: self.isn.isn(&tuple, now),
            ts_offset: self.isn.timestamp_offset(&tuple),
            path: PathParams {
                mtu: dst.mtu,
                gso_bytes_max: dst.gso_max_bytes,
                flow_hash: hash,
                sums_payload: dst.sums_payload,
            },
            options: SocketOptions::default(),
            ts_recent: None,
            fast_open: FastOpen::Off,
        }
    }

    /// Room for one more TIME-WAIT remnant within `limit`? Taken if so.
    pub(crate) fn time_wait_admit(&self, limit: u32) -> bool {
        let limit = limit as usize;
        let admitted = self.time_waits.fetch_add(1, Ordering::Relaxed) < limit;
        if !admitted {
            self.time_wait_release();
        }
        admitted
    }

    /// Room for one more connection that nobody holds? Counted if so.
    pub(crate) fn orphan_admit(&self, limit: u32) -> bool {
        let admitted = self.orphans.fetch_add(1, Ordering::Relaxed) < limit as usize;
        if !admitted {
            self.orphan_gone();
        }
        admitted
    }

    pub(crate) fn orphan_gone(&self) {
        self.orphans.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that nobody holds and that are not done.
    #[must_use]
    pub fn orphans(&self) -> usize {
        self.orphans.load(Ordering::Relaxed)
    }

    pub(crate) fn time_wait_release(&self) {
        self.time_waits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Devices hold their doorbells, a doorbell its core, and a core the devices it polls.
        for core in &self.cores {
            core.remove_queues();
        }
    }
}

/// What the configured devices are to the host, which has them alone from here on, and the addresses of each.
fn attach(rcu: &Domain, devices: Vec<DeviceConfig>) -> (Vec<Arc<Attached>>, Vec<Vec<IpNet>>) {
    let attached =
        |entry: DeviceConfig| (Arc::new(Attached::new(rcu, entry.device)), entry.addresses);
    devices.into_iter().map(attached).unzip()
}

/// The account of what connections hold.
fn tcp_memory_for(sysctls: &Sysctls) -> Arc<TcpMemory> {
    let memory = TcpMemory::new();
    if sysctls.tcp.keeps_packets() {
        memory.note_kept();
    }
    Arc::new(memory)
}

/// The transmit queues of every device.
fn transmit_sides(devices: &[Arc<dyn Device>], sysctls: &Sysctls) -> Vec<Arc<DeviceTx>> {
    (0..)
        .zip(devices)
        .map(|(index, device)| Arc::new(DeviceTx::new(Arc::clone(device), index, sysctls)))
        .collect()
}

/// A secret from the seed of the host.
fn secret<const BYTES: usize>(rng: &mut tcp::Rng) -> [u8; BYTES] {
    let mut secret = [0; BYTES];
    rng.fill(&mut secret);
    secret
}
