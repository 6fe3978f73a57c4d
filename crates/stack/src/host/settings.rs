//! Changes of settings while a host runs, and their consequences.

use pkt::Instant;

use super::Host;
use crate::sysctl::SysctlError;

impl Host {
    /// Sets a value by its Linux name while the host runs, as `sysctl -w NAME=VALUE` does. Each
    /// thread uses it from its next call or turn on. Values that a socket copied when it was
    /// created (buffer sizes, keepalive times) do not change.
    ///
    /// # Errors
    ///
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
                || present.dst_check != next.dst_check
                || present.rp_filter != next.rp_filter
                || present.devices != next.devices
                || present.default_qdisc != next.default_qdisc;
            (present.tcp != next.tcp, stale)
        })?;
        // The new settings are published before this request, so the core that takes the request
        // uses them. Connections may hold spare packets that the earlier settings allowed.
        if trims && self.tcp_memory().want_trim() {
            self.cores[0].wake_before(Instant::ZERO);
        }
        if stale {
            // Cached entries depend on the earlier settings: how references are counted, the
            // features of the device, and the reverse-path filter. A new generation makes all users
            // look them up again.
            self.invalidate_routes();
        }
        Ok(())
    }
}
