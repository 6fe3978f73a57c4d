//! A host: one instance of the stack with its addresses, routes, neighbors, sockets and cores.
//!
//! Linux: a network namespace (`struct net`). Shared by every thread that uses it; what changes on the data path lives
//! in the cores and sockets, what is here is read-mostly.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    },
    vec::Vec,
};

use pkt::Instant;
use sync::{
    Shutdown,
    epoch::{Domain, Section},
    rcu_map::Place,
};
use tcp::{
    ChallengeBudget, FastOpen, FourTuple, IsnGenerator, OpenParams, PathParams, PortSelector,
    SocketOptions, SynCookies,
};

use claims::Claims;

use crate::{
    base::{
        counters::CounterPage,
        ids::{CoreId, LOOPBACK},
        tcp_memory::TcpMemory,
    },
    core::{Core, CoreRun},
    cx::{Cx, sock_flows::SockFlows},
    device::{Device, QueueId, attached::Attached},
    route::{
        exception::Exceptions, fib::Fib, input::InputRoutes, output::OutputRoutes,
        table::RouteTable,
    },
    socket::{
        SocketRef,
        demux::{Demux, Entry},
        fast_open::FastOpenMemory,
        net::IcmpLimiter,
    },
    sysctl::{LiveSysctls, modes::DstLayout},
    transmit::{
        dst::{Dst, RouteKind},
        ident::IpIds,
        neighbor::table::NeighborTable,
        tx_queue::DeviceTx,
    },
};

mod admission;
mod audit;
mod build;
mod claims;
pub mod config;
mod devices;
mod events;
mod neighbors;
mod paths;
mod report;
mod routes;
mod settings;
mod shut_down;

pub use audit::Audit;
pub use claims::ClaimState;
pub use events::{Event, EventSink};
pub(crate) use paths::{CHECK_ENTRY, Hop, cached_generation};

/// Connections that a turn looks at when what they keep has to go.
const TRIM_PIECE: usize = 64;

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
    neighbors: NeighborTable,
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
    ip_ids: IpIds,
    /// What all connections hold.
    tcp_memory: Arc<TcpMemory>,
    /// Packet memory, which all hosts of a process share: for its counters.
    packets: pkt::Domain,
    /// Connections in TIME-WAIT, bounded by `tcp_max_tw_buckets`.
    time_waits: AtomicUsize,
    /// Connections that nobody holds, bounded by `tcp_max_orphans`.
    orphans: AtomicUsize,
    down: Shutdown,
    /// Addresses that are probed, announced and defended.
    claims: Claims,
    /// Receiver of this host's events.
    event_sink: Mutex<Option<Arc<dyn EventSink>>>,
    /// Devices on which segments with unfinished checksums have arrived, one bit for each; each is reported once.
    unfinished_checksums: AtomicU64,
    /// The table of `net.core.rps_sock_flow_entries`, made when a context first wants it.
    sock_flows: Mutex<Option<Arc<SockFlows>>>,
    /// There is such a table, or will be. Relaxed: whoever misses the change polls where it did before.
    rfs_needed: AtomicBool,
    pages: Mutex<Vec<Arc<CounterPage>>>,
}

impl Host {
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

    /// Looks at what some connections keep for later (`skb_recycle`) or hold, as it may have to go; returns where the next begin,
    /// `None` after the last.
    #[cold]
    pub(crate) fn relieve_streams(&self, cx: &mut Cx, from: Place) -> Option<Place> {
        let mut streams = Vec::with_capacity(TRIM_PIECE);
        let reader = cx.reader();
        let visit = |entry: &Entry| {
            if let Entry::Stream(socket) = entry {
                streams.push(Arc::clone(socket));
            }
        };
        let rest = self.demux.for_each_established_from(&reader.pin(), from, TRIM_PIECE, visit);
        for socket in streams {
            socket.relieve(self, cx);
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

    pub(crate) const fn neighbor_table(&self) -> &NeighborTable {
        &self.neighbors
    }

    pub(crate) const fn icmp_limiter(&self) -> &IcmpLimiter {
        &self.icmp_limiter
    }

    pub(crate) const fn ip_ids(&self) -> &IpIds {
        &self.ip_ids
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

    /// Whether `ip` is an address of this host.
    #[must_use]
    pub fn is_local(&self, cx: &Cx, ip: IpAddr) -> bool {
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
                receive_mtu: dst.receive_mtu,
                gso_bytes_max: dst.gso_max_bytes,
                flow_hash: hash,
                sums_payload: dst.sums_payload,
            },
            options: SocketOptions::default(),
            ts_recent: None,
            fast_open: FastOpen::Off,
        }
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
