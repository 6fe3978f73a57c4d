//! State of a host that sockets use: devices and routes, the table of connections, ports, secrets,
//! limits, and handles to run its cores.
//!
//! Above: the steps of sockets, receive and cores, which get a `Net` as an argument or in `Rx`;
//! `host::Host` owns it. Below: the router. Linux: `struct net`.
//!
//! Not here: the cores themselves (`core`), how a host is built and changed (`host`).

use std::{
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use pkt::{Instant, Packet};
use sync::{Shutdown, epoch::Section, rcu_map::Place};
use tcp::{
    FastOpen, FourTuple, IcmpError, IsnGenerator, OpenParams, PathParams, PortSelector, SeqNum,
    SocketOptions, SynCookies, TcpError,
};

use super::{
    connection::SocketRef,
    core_sockets::{CoreSockets, TimerEntry},
    datagram::{
        DatagramSocket, ErrorOrigin, QueuedError, SocketKind, groups::Groups, report::kind_of,
        table::DatagramTable,
    },
    demux::{Demux, Entry, FlowName},
    fast_open::FastOpenMemory,
    flows::Interception,
    rx::scoped,
};
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{CoreId, DeviceIndex},
    },
    cx::{Cx, event::Event, softirq::RunCore},
    header::{icmp::Quote, ip::ETHER_TYPE_IPV4},
    route::router::Router,
    transmit::{
        dst::Dst,
        ident::IpIds,
        neighbor::table::{NeighborEntry, Upper},
    },
};

pub use autoconf::AnnouncedDns;
use autoconf::Autoconf;
pub use claims::ClaimState;
use claims::Claims;
use fragments::FragmentTable;
use group_reports::GroupReports;
pub(crate) use icmp_limiter::{IcmpLimiter, IcmpLimits};

pub(crate) mod autoconf;
pub(crate) mod claims;
pub mod fragments;
pub(crate) mod group_reports;
mod icmp_limiter;

/// Connections visited in one step of a walk that frees spare memory.
const TRIM_PIECE: usize = 64;

/// State of a host that sockets use.
#[derive(Debug)]
pub struct Net {
    pub(crate) router: Router,
    pub(crate) demux: Demux,
    pub(crate) datagrams: DatagramTable,
    /// Ping sockets, by the identifier of their messages in place of the port.
    pub(crate) pings: DatagramTable,
    /// Multicast groups that datagram sockets have joined.
    pub(crate) groups: Groups,
    /// Reports of these groups to routers.
    pub(crate) group_reports: GroupReports,
    /// Handles to run the cores.
    pub(crate) runners: Box<[Arc<dyn RunCore>]>,
    /// State that the sockets of each core share.
    pub(crate) core_sockets: Box<[Arc<CoreSockets>]>,
    pub(crate) isn: IsnGenerator,
    pub(crate) syn_cookies: SynCookies,
    pub(crate) fast_open: FastOpenMemory,
    pub(crate) ports: PortSelector,
    pub(crate) icmp_limiter: IcmpLimiter,
    pub(crate) ip_ids: IpIds,
    /// Packet memory, which all hosts of a process or simulation share. Used for its counters.
    pub(crate) packets: pkt::Domain,
    /// Connections in TIME-WAIT, bounded by `tcp_max_tw_buckets`.
    pub(crate) time_waits: AtomicUsize,
    /// Connections without an application handle, bounded by `tcp_max_orphans`.
    pub(crate) orphans: AtomicUsize,
    pub(crate) down: Shutdown,
    /// Interception of flows by devices.
    pub(crate) flows: Interception,
    /// Addresses that are probed, announced and defended.
    pub(crate) claims: Claims,
    /// Fragments of incomplete IPv4 and IPv6 datagrams. Locked for one fragment, or for one timer.
    pub(crate) fragments_v4: Mutex<FragmentTable>,
    pub(crate) fragments_v6: Mutex<FragmentTable>,
    /// Routers, prefixes and addresses that the links have announced.
    pub(crate) autoconf: Autoconf,
    /// Devices on which segments with unfinished checksums have arrived, one bit for each; each is
    /// reported once.
    pub(crate) unfinished_checksums: AtomicU64,
}

impl Deref for Net {
    type Target = Router;

    #[inline]
    fn deref(&self) -> &Router {
        &self.router
    }
}

impl Upper for Net {
    fn arm(&self, entry: Weak<NeighborEntry>, at: Instant) {
        // The timer is armed on the first core, because neighbor discovery is not on the data path.
        let _ = self.core_sockets(CoreId(0)).arm(at, TimerEntry::Neighbor(entry));
    }

    /// Reports an unreachable neighbor to the socket whose packet was dropped. Linux:
    /// `arp_error_report`.
    fn unreachable(&self, cx: &mut Cx, device: DeviceIndex, packet: &Packet) {
        let sent = match packet.meta().protocol {
            ETHER_TYPE_IPV4 => Quote::parse::<true>(packet.linear()),
            _ => Quote::parse::<false>(packet.linear()),
        };
        let Ok(sent) = sent else { return };
        let reader = cx.reader();
        let rcu = reader.pin();
        self.exceptions.forget_redirect(sent.dst, cx.now, &rcu);
        let Some((src_port, dst_port)) = sent.socket_ports() else { return };
        let tuple = FourTuple {
            local: scoped(sent.src, src_port, device),
            remote: scoped(sent.dst, dst_port, device),
        };
        let hash = self.demux.hash(&tuple);
        if let Some(kind) = kind_of(sent.protocol) {
            let error = QueuedError {
                errno: Errno::EHOSTUNREACH,
                origin: ErrorOrigin::Local,
                mtu: 0,
                offender: None,
                destination: tuple.remote,
                permanent: false,
            };
            let _ = self.report_datagram(cx, kind, hash, &tuple, error, &rcu);
            return;
        }
        if let Some(Entry::Stream(socket)) = self.demux.established(hash, &tuple, &rcu) {
            let error = IcmpError::PathBroken(TcpError::HostUnreachable);
            socket.icmp_error(self, cx, error, SeqNum(sent.tcp_seq()));
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Breaks reference cycles: devices hold their doorbells (arrival signals of devices in
        // this process), a doorbell its core, and a core the devices it polls.
        for core in &self.runners {
            core.remove_queues();
        }
        self.flows.forget();
    }
}

impl Net {
    /// Passes an error about a datagram to its socket: the connected one, or the unconnected one of
    /// its source port. `None` if there is no such socket.
    pub(crate) fn report_datagram(
        &self,
        cx: &mut Cx,
        kind: SocketKind,
        hash: u32,
        tuple: &FourTuple,
        error: QueuedError,
        rcu: &Section<'_>,
    ) -> Option<()> {
        let core = self.core_for(cx, hash);
        let table = self.table_of(kind);
        let socket = table
            .connected(hash, tuple, rcu)
            .or_else(|| table.open(core, tuple.local, hash, rcu))?;
        socket.report(cx, error);
        Some(())
    }

    /// Returns whether a socket of this host could have sent the datagram of `tuple`: the connected
    /// one, or the unconnected one of its source port.
    pub(crate) fn has_datagram_socket(
        &self,
        cx: &Cx,
        kind: SocketKind,
        hash: u32,
        tuple: &FourTuple,
        rcu: &Section<'_>,
    ) -> bool {
        let core = self.core_for(cx, hash);
        let table = self.table_of(kind);
        let open = || table.open(core, tuple.local, hash, rcu);
        self.is_local(cx, tuple.local.ip())
            && table.connected(hash, tuple, rcu).or_else(open).is_some()
    }

    /// Frees spare memory of up to about [`TRIM_PIECE`] connections (`skb_recycle`), as the
    /// settings and the memory pressure require. Returns the position of the next connections,
    /// `None` after the last.
    #[cold]
    pub(crate) fn reclaim_stream_memory(&self, cx: &mut Cx, from: Place) -> Option<Place> {
        let mut streams = Vec::with_capacity(TRIM_PIECE);
        let reader = cx.reader();
        let visit = |entry: &Entry| {
            if let Entry::Stream(socket) = entry {
                streams.push(Arc::clone(socket));
            }
        };
        let rest = self.demux.for_each_established_from(&reader.pin(), from, TRIM_PIECE, visit);
        for socket in streams {
            socket.reclaim_memory(self, cx);
        }
        rest
    }

    /// Returns all connections in the tables.
    pub(crate) fn streams(&self, cx: &Cx) -> Vec<SocketRef> {
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

    /// Returns all datagram sockets in the tables.
    pub(crate) fn datagram_sockets(&self, cx: &Cx) -> Vec<Arc<DatagramSocket>> {
        let reader = cx.reader();
        let mut sockets = Vec::new();
        for table in [&self.datagrams, &self.pings] {
            table.for_each(&reader.pin(), |bound| sockets.push(Arc::clone(&bound.socket)));
        }
        sockets
    }

    /// Returns the number of connections, half-open requests and TIME-WAIT sockets in the tables.
    #[must_use]
    pub fn established_len(&self) -> usize {
        self.demux.established_len()
    }

    /// Returns whether a further connection would exceed `tcp_max_connections`, and counts the
    /// refusal then. Connections that begin on several cores at the same time may exceed the limit
    /// by as many.
    pub(crate) fn connections_full(&self, cx: &Cx) -> bool {
        let limit = cx.sysctls().tcp_max_connections as usize;
        let full = limit != 0 && self.demux.established_len() >= limit;
        if full {
            cx.count(Counter::SocketConnectionLimit, 1);
        }
        full
    }

    pub(crate) const fn demux(&self) -> &Demux {
        &self.demux
    }

    pub(crate) const fn datagrams(&self) -> &DatagramTable {
        &self.datagrams
    }

    pub(crate) const fn groups(&self) -> &Groups {
        &self.groups
    }

    pub(crate) const fn ports(&self) -> &PortSelector {
        &self.ports
    }

    /// Removes cached metrics of peers: cookies, MSS and lost SYNs of Fast Open (`ip tcp_metrics
    /// flush all`).
    pub fn flush_tcp_metrics(&self) {
        self.fast_open.forget();
    }

    pub(crate) const fn fast_open(&self) -> &FastOpenMemory {
        &self.fast_open
    }

    pub(crate) const fn syn_cookies(&self) -> &SynCookies {
        &self.syn_cookies
    }

    pub(crate) const fn icmp_limiter(&self) -> &IcmpLimiter {
        &self.icmp_limiter
    }

    pub(crate) const fn ip_ids(&self) -> &IpIds {
        &self.ip_ids
    }

    /// Returns the fragments of incomplete datagrams of one IP version, locked.
    pub(crate) fn fragments<const V4: bool>(&self) -> MutexGuard<'_, FragmentTable> {
        let table = if V4 { &self.fragments_v4 } else { &self.fragments_v6 };
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state that the sockets of a core share.
    pub(crate) fn core_sockets(&self, id: CoreId) -> &Arc<CoreSockets> {
        &self.core_sockets[usize::from(id.0)]
    }

    /// Returns the handle to run a core.
    pub(crate) fn runner(&self, id: CoreId) -> &Arc<dyn RunCore> {
        &self.runners[usize::from(id.0)]
    }

    /// Returns the core of a flow that has no connection yet: in softirq context the running core,
    /// which has received the packet, and in process context the core that the flow's hash selects.
    /// This core becomes the home core of a passive connection, and selects among sockets that
    /// share a port (`SO_INCOMING_CPU`).
    pub(crate) fn core_for(&self, cx: &Cx, hash: u32) -> CoreId {
        cx.running().unwrap_or_else(|| self.core_of_flow(hash))
    }

    /// Returns the initial parameters of a connection whose route entry is `dst`.
    pub(crate) fn open_params(&self, name: &FlowName, dst: &Dst, now: Instant) -> OpenParams {
        OpenParams {
            tuple: name.tuple,
            iss: self.isn.isn(&name.tuple, now),
            ts_offset: self.isn.timestamp_offset(&name.tuple),
            path: PathParams {
                mtu: dst.mtu,
                receive_mtu: dst.receive_mtu,
                gso_bytes_max: dst.gso_max_bytes,
                flow_hash: name.hash,
                sums_payload: dst.sums_payload,
                metrics: dst.metrics,
            },
            options: SocketOptions::default(),
            ts_recent: None,
            fast_open: FastOpen::Off,
        }
    }

    /// Reports that a segment with an unfinished checksum has arrived on device `index`, once for
    /// each of the first 64 devices.
    #[cold]
    pub(crate) fn report_unfinished_checksum(&self, index: DeviceIndex) {
        let Some(bit) = 1_u64.checked_shl(index.0) else { return };
        if self.unfinished_checksums.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let device = self.device_name(index).into();
            self.report(Event::UnfinishedChecksums { device });
        }
    }

    /// Counts one more TIME-WAIT socket, unless `limit` is reached. Returns whether it was counted.
    pub(crate) fn time_wait_admit(&self, limit: u32) -> bool {
        let limit = limit as usize;
        let admitted = self.time_waits.fetch_add(1, Ordering::Relaxed) < limit;
        if !admitted {
            self.time_wait_release();
        }
        admitted
    }

    pub(crate) fn time_wait_release(&self) {
        self.time_waits.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one more orphan, unless `limit` is reached. Returns whether it was counted.
    pub(crate) fn orphan_admit(&self, limit: u32) -> bool {
        let admitted = self.orphans.fetch_add(1, Ordering::Relaxed) < limit as usize;
        if !admitted {
            self.orphan_release();
        }
        admitted
    }

    pub(crate) fn orphan_release(&self) {
        self.orphans.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of orphans: connections without an application handle that have not
    /// ended.
    #[must_use]
    pub fn orphans(&self) -> usize {
        self.orphans.load(Ordering::Relaxed)
    }

    /// Updates the state of memory pressure from the amount of packet memory in use.
    #[cold]
    pub(crate) fn check_packet_memory(&self, cx: &Cx) {
        let (used, max) = (self.packets.used_bytes(), self.packets.max_bytes());
        self.tcp_memory().note_packets(used, max, &cx.counters().tcp, cx.now);
    }

    /// Returns whether `shut_down` has been called.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.is_down()
    }

    /// Returns `ENETDOWN` after the shutdown of the host. A thread that opens a socket calls this
    /// after it has registered the socket: either `shut_down` finds the socket in the tables, or
    /// this thread closes it.
    pub(crate) fn check_up(&self) -> Result<(), Errno> {
        if self.down.check_up() { Ok(()) } else { Err(Errno::ENETDOWN) }
    }
}
