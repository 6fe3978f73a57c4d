//! Host: one instance of the stack with its addresses, routes, neighbors, sockets and cores.
//!
//! Linux: a network namespace (`struct net`). All threads share the host. State that the data path
//! writes is in the cores and sockets; the fields of the host are mostly read.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
    vec::Vec,
};

use pkt::Instant;

use crate::{
    base::ids::CoreId,
    core::{Core, CoreNet, CoreRun},
    cx::Cx,
    device::QueueId,
    socket::net::Net,
    sysctl::SysctlError,
};

mod addresses;
mod audit;
mod build;
pub mod config;
mod devices;
mod memory_map;
mod neighbors;
mod report;

pub use audit::Audit;

/// One instance of the stack.
#[derive(Debug)]
pub struct Host {
    net: Arc<Net>,
    cores: Vec<Arc<Core>>,
    /// One reference to `net` for each core, on cache lines of its own. The cores hold only weak
    /// references to these.
    core_nets: Vec<Arc<CoreNet>>,
    /// Lock that serializes changes of devices.
    device_changes: Mutex<()>,
}

impl Host {
    /// Runs, on the calling thread, every core that no other thread owns, each until it has no work
    /// or has reached a limit of turns: for sans-IO use and the simulator. Returns the time at
    /// which the caller must call again even if nothing arrives, which is the present time or
    /// earlier if a core still has work.
    pub fn poll(&self, cx: &mut Cx) -> Option<Instant> {
        let mut pending = false;
        for core in &self.cores {
            pending |= core.try_run(self, cx) == CoreRun::Pending;
        }
        cx.do_softirq();
        if pending { Some(cx.now) } else { self.next_deadline() }
    }

    /// Runs one core as [`poll`](Self::poll) does, for threads that have one core each. A thread
    /// that runs all cores would take over work that the other threads have just begun, and load
    /// their frames into its own caches.
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

    /// Returns the earliest time at which a core must run even if nothing arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.cores.iter().filter_map(|core| core.next_deadline()).min()
    }

    /// Returns the cores of this host.
    #[must_use]
    pub fn cores(&self) -> &[Arc<Core>] {
        &self.cores
    }

    /// Returns the core that polls queue `queue` of every device, and runs the transmit queue of
    /// the same number.
    pub(crate) fn core_of_queue(&self, queue: QueueId) -> &Arc<Core> {
        &self.cores[usize::from(queue.0) % self.cores.len()]
    }

    /// Sets a value by its Linux name while the host runs, as `sysctl -w NAME=VALUE` does. Each
    /// thread uses the new value from its next socket call, or its next turn of a core (one pass of
    /// its softirq work), on. Values that a socket copied when it was created, such as buffer
    /// sizes, do not change.
    ///
    /// # Errors
    ///
    /// [`SysctlError`]; nothing is changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        let (trims, stale) = self.live_sysctls().set(name, value, |present, next| {
            self.neighbors.configure(next);
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
        // Connections may hold spare packets that only the earlier settings allowed, so a core is
        // asked to free them. The request comes after the new settings are published, so the core
        // that takes it uses these.
        if trims && self.tcp_memory().request_trim() {
            self.cores[0].wake_before(Instant::ZERO);
        }
        if stale {
            // Cached route entries (dst) depend on the earlier settings: how references are
            // counted, where the validity is read, the features and the default queueing discipline
            // of the device, and the reverse-path filter. A new route generation makes every user
            // look up its entry again.
            self.invalidate_routes();
        }
        Ok(())
    }

    /// Stops all sockets: listeners are closed, datagram sockets ended, connections aborted. No
    /// socket can be opened from here on.
    pub fn shut_down(&self, cx: &mut Cx) {
        if !self.down.begin() {
            return;
        }
        let mut listeners = Vec::new();
        {
            let reader = cx.reader();
            let rcu = reader.pin();
            self.demux.for_each_listener(&rcu, |listener| listeners.push(Arc::clone(listener)));
        }
        let streams = self.streams(cx);
        let datagrams = self.datagram_sockets(cx);
        for listener in listeners {
            listener.close(self, cx);
        }
        for socket in datagrams {
            socket.end(self, cx);
        }
        self.flows().shut_down(self, cx);
        for socket in streams {
            socket.abort(self, cx);
        }
        cx.do_softirq();
    }

    #[cfg(test)]
    pub(crate) fn core(&self, id: CoreId) -> &Arc<Core> {
        &self.cores[usize::from(id.0)]
    }
}

impl Deref for Host {
    type Target = Net;

    #[inline]
    fn deref(&self) -> &Net {
        &self.net
    }
}
