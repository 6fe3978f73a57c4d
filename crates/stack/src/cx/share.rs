//! Data of a host that contexts use: its number, settings, counter pages, the accounts that all its
//! connections share, and the receiver of its events.
//!
//! Above: every part of a host, and contexts, which enter a host by its `HostShare` (`Cx::enter`).
//! Linux: the fields of `struct net` that any layer reads.
//!
//! Not here: devices and routes (`route::router`), sockets (`socket::net`), cores (`host`).

use std::{
    string::String,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    vec::Vec,
};

use tcp::ChallengeBudget;

use super::{
    event::{Event, EventSink},
    sock_flows::SockFlows,
};
use crate::{
    base::{counters::CounterPage, tcp_memory::TcpMemory, udp_memory::UdpMemory},
    sysctl::{LiveSysctls, Sysctls},
};

/// Data of a host that contexts use.
#[derive(Debug)]
pub struct HostShare {
    id: u64,
    name: String,
    /// Number of cores.
    cores: u16,
    sysctls: LiveSysctls,
    /// Budget of challenge ACKs, shared with the contexts that run this host.
    challenges: Arc<ChallengeBudget>,
    /// Account of the memory of all connections.
    tcp_memory: Arc<TcpMemory>,
    /// Account of the memory of all datagram sockets.
    udp_memory: Arc<UdpMemory>,
    /// Table of `net.core.rps_sock_flow_entries`, created when a context first needs it.
    sock_flows: Mutex<Option<Arc<SockFlows>>>,
    /// True if the settings enable RFS, even before the table exists. Relaxed: a thread that misses
    /// the change polls the same core as before.
    rfs_needed: AtomicBool,
    pages: Mutex<Vec<Arc<CounterPage>>>,
    /// Receiver of this host's events.
    event_sink: Mutex<Option<Arc<dyn EventSink>>>,
}

impl HostShare {
    /// Creates the data of a host with the name `name`, `cores` cores and these settings.
    pub(crate) fn new(name: String, cores: u16, sysctls: Sysctls) -> Self {
        /// Number of the next host, from 1 on. A context recognizes a host by its number.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let tcp_memory = TcpMemory::new();
        if sysctls.tcp.keeps_packets() {
            tcp_memory.note_kept();
        }
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            cores,
            challenges: Arc::default(),
            tcp_memory: Arc::new(tcp_memory),
            udp_memory: Arc::default(),
            sock_flows: Mutex::default(),
            rfs_needed: AtomicBool::new(sysctls.rps_sock_flow_entries != 0),
            pages: Mutex::default(),
            event_sink: Mutex::default(),
            sysctls: LiveSysctls::new(sysctls),
        }
    }

    /// Returns the number of this host in the process.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Returns the name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of cores.
    pub(crate) const fn core_count(&self) -> u16 {
        self.cores
    }

    /// Returns the present settings. Takes a lock; contexts that run the host use
    /// [`Cx::sysctls`](super::Cx::sysctls), which takes none.
    #[must_use]
    pub fn sysctls(&self) -> Arc<Sysctls> {
        self.sysctls.present().1
    }

    /// Returns the settings with their generation, for a context that enters.
    pub(crate) const fn live_sysctls(&self) -> &LiveSysctls {
        &self.sysctls
    }

    pub(crate) const fn challenges(&self) -> &Arc<ChallengeBudget> {
        &self.challenges
    }

    pub(crate) const fn tcp_memory(&self) -> &Arc<TcpMemory> {
        &self.tcp_memory
    }

    pub(crate) const fn udp_memory(&self) -> &Arc<UdpMemory> {
        &self.udp_memory
    }

    /// Returns the RFS table with `entries` slots, or `None` if `entries` is 0. A table of another
    /// size is replaced.
    pub(crate) fn sock_flows(&self, entries: u32) -> Option<Arc<SockFlows>> {
        let mut flows = self.sock_flows.lock().unwrap_or_else(PoisonError::into_inner);
        if flows.as_ref().map_or(0, |flows| flows.len()) != entries {
            *flows = (entries != 0).then(|| Arc::new(SockFlows::new(entries)));
        }
        flows.clone()
    }

    /// Returns whether RFS is enabled, so that the reading core of a flow matters.
    pub(crate) fn rfs_needed(&self) -> bool {
        self.rfs_needed.load(Ordering::Relaxed)
    }

    /// Enables or disables RFS.
    pub(crate) fn set_rfs_needed(&self, needed: bool) {
        self.rfs_needed.store(needed, Ordering::Relaxed);
    }

    /// Calls `read` with the counter pages of all contexts that have entered this host.
    pub(crate) fn with_pages<T>(&self, read: impl FnOnce(&[Arc<CounterPage>]) -> T) -> T {
        read(&self.pages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a counter page for a context that enters this host for the first time. A page of a
    /// context that is gone is reused with its counts, so that pages do not accumulate as threads
    /// come and go.
    pub(crate) fn register_page(&self) -> Arc<CounterPage> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(idle) = pages.iter().find(|page| Arc::strong_count(page) == 1) {
            return Arc::clone(idle);
        }
        let page = Arc::new(CounterPage::default());
        pages.push(Arc::clone(&page));
        page
    }

    /// Sets the receiver of this host's events, and replaces an earlier one. Events without a
    /// receiver are discarded.
    pub fn set_event_sink(&self, sink: Arc<dyn EventSink>) {
        *self.event_sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    /// Passes an event to the receiver.
    pub(crate) fn report(&self, event: Event) {
        let sink = self.event_sink.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sink) = sink {
            sink.on_event(event);
        }
    }
}
