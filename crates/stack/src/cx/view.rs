//! What a context keeps of each host it has entered, so that running it again looks nothing up.

use std::sync::Arc;

use pkt::FreeMode;

use super::{share::HostShare, sock_flows::SockFlows};
use crate::{
    base::{counters::CounterPage, ids::CoreId, tcp_memory::TcpMemory},
    sysctl::Sysctls,
};

/// What a context keeps of a host it has entered.
#[derive(Debug)]
pub(super) struct HostView {
    /// The host's number; 0 is none.
    pub(super) host: u64,
    /// What this context counts for it.
    pub(super) page: Arc<CounterPage>,
    /// Number of `sysctls`.
    pub(super) generation: u64,
    pub(super) sysctls: Arc<Sysctls>,
    /// Of `sysctls`: what becomes of packets that are at home in another context.
    pub(super) free_mode: FreeMode,
    /// Of `sysctls`: packets may change core.
    pub(super) rps_needed: bool,
    /// Of `sysctls`: where applications read their flows, if anybody wants to know (Linux: `rfs_needed`).
    pub(super) sock_flows: Option<Arc<SockFlows>>,
    /// The core that this context runs at the moment.
    pub(super) running: Option<CoreId>,
    /// The core that it last ran of its own accord, not because it had rung its doorbell: where its thread is at home.
    pub(super) home: Option<CoreId>,
    pub(super) challenges: Arc<tcp::ChallengeBudget>,
    /// The host's account of TCP memory.
    pub(super) memory: Arc<TcpMemory>,
}

impl HostView {
    /// Before any host is entered.
    pub(super) fn nowhere() -> Self {
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
            ..Self::nowhere()
        };
        view.take_settings(host);
        view
    }

    /// Takes the present settings over if they have changed: one load of a line that nobody writes otherwise.
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
