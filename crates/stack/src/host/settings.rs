//! The settings of a host while it runs, and what follows from a change.

use pkt::Instant;

use super::Host;
use crate::sysctl::SysctlError;

impl Host {
    /// Sets a value by its Linux name while the host runs, as `sysctl -w NAME=VALUE` does. It holds from the next call
    /// or turn of each thread on; what a socket copied when it was made (buffer sizes, keepalive times) it keeps.
    ///
    /// # Errors
    /// [`SysctlError`]; nothing is changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        let (trims, stale) = self.live_sysctls().set(name, value, |present, next| {
            self.neighbors.configure(next.neigh.clone());
            self.set_rfs_needed(next.rps_sock_flow_entries != 0);
            if next.tcp.keeps_packets() {
                self.tcp_memory().note_kept();
            }
            for tx in &self.tx {
                tx.configure(next);
            }
            let stale = present.dst_ref != next.dst_ref
                || present.rp_filter != next.rp_filter
                || present.devices != next.devices
                || present.default_qdisc != next.default_qdisc;
            (present.tcp != next.tcp, stale)
        })?;
        // The set is published by now: whoever is told finds it. Connections may keep packets by the earlier settings that they
        // must not by these.
        if trims && self.tcp_memory().want_trim() {
            self.cores[0].wake_before(Instant::ZERO);
        }
        if stale {
            // Entries are counted as they were made to be, know what their device may do, and passed the earlier reverse-path
            // filter: let everybody make new ones.
            self.invalidate_routes();
        }
        Ok(())
    }
}
