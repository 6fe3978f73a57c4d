//! View of a host: data that a `Cx` (the running context of one thread) keeps of each host it has
//! worked for, so that it need not fetch the data again when it returns to the host.

use std::sync::Arc;

use pkt::FreeMode;

use super::{share::HostShare, sock_flows::SockFlows};
use crate::{
    base::{counters::CounterPage, ids::CoreId, tcp_memory::TcpMemory},
    sysctl::Sysctls,
};

/// View of a host that a context has entered.
#[derive(Debug)]
pub(super) struct HostView {
    /// Number of the host; 0 for none.
    pub(super) host: u64,
    /// Counter page that this context writes for the host.
    pub(super) page: Arc<CounterPage>,
    /// Generation of `sysctls`.
    pub(super) generation: u64,
    pub(super) sysctls: Arc<Sysctls>,
    /// How packets of another context's pool are freed. Computed from the settings.
    pub(super) free_mode: FreeMode,
    /// True if packets may be processed on another core (RPS, RFS). Computed from the settings.
    pub(super) rps_needed: bool,
    /// RFS table, if the settings enable it (Linux: `rfs_needed`).
    pub(super) sock_flows: Option<Arc<SockFlows>>,
    /// Core whose turn (one pass of a core's softirq work) this context is running now; `None`
    /// outside a turn.
    pub(super) running: Option<CoreId>,
    /// Home core of the thread: the core that the thread last ran on its own initiative, which is a
    /// worker's own core, or the core that a waiting application thread polled. Running a core
    /// after ringing its doorbell (the arrival signal of a device in this process) does not count.
    pub(super) home: Option<CoreId>,
    pub(super) challenges: Arc<tcp::ChallengeBudget>,
    /// TCP memory account of the host.
    pub(super) memory: Arc<TcpMemory>,
}

impl HostView {
    /// Creates the view of no host, for a context that has not entered a host yet.
    pub(super) fn no_host() -> Self {
        Self {
            host: 0,
            page: Arc::default(),
            generation: 0,
            sysctls: Arc::default(),
            free_mode: FreeMode::default(),
            rps_needed: false,
            sock_flows: None,
            running: None,
            home: None,
            challenges: Arc::default(),
            memory: Arc::new(TcpMemory::new()),
        }
    }

    pub(super) fn new(host: &HostShare) -> Self {
        let mut view = Self {
            host: host.id(),
            page: host.register_page(),
            challenges: Arc::clone(host.challenges()),
            memory: Arc::clone(host.tcp_memory()),
            ..Self::no_host()
        };
        view.take_settings(host);
        view
    }

    /// Takes over changed settings. If nothing changed, this is one load of a cache line that only
    /// a change of settings writes.
    #[inline]
    pub(super) fn refresh(&mut self, host: &HostShare) {
        if self.generation != host.live_sysctls().generation() {
            self.take_settings(host);
        }
    }

    #[cold]
    fn take_settings(&mut self, host: &HostShare) {
        (self.generation, self.sysctls) = host.live_sysctls().present();
        self.sock_flows = host.sock_flows(self.sysctls.rps_sock_flow_entries);
        self.free_mode = self.sysctls.tcp.packet_recycle.free_mode(self.sysctls.packet_defer_max);
        self.rps_needed = self.sysctls.devices.steers(self.sock_flows.is_some());
    }
}
