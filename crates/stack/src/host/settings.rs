//! The settings of a host while it runs, and what follows from a change.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use pkt::Instant;

use super::Host;
use crate::{
    cx::sock_flows::SockFlows,
    sysctl::{LiveSysctls, SysctlError, Sysctls},
};

impl Host {
    /// The present settings. Takes a lock: contexts that run the host ask [`Cx::sysctls`](crate::cx::Cx::sysctls).
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
            self.neighbors.configure(next.neigh.clone());
            self.rfs_needed.store(next.rps_sock_flow_entries != 0, Ordering::Relaxed);
            if next.tcp.keeps_packets() {
                self.tcp_memory.note_kept();
            }
            for tx in &self.tx {
                tx.configure(next);
            }
            let stale = present.dst_ref != next.dst_ref
                || present.dst_check != next.dst_check
                || present.rp_filter != next.rp_filter
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
            // Entries are counted as they were made to be, know what their device may do, and passed the earlier reverse-path
            // filter: let everybody make new ones.
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
}
