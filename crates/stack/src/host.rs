//! Host: one instance of the stack with its addresses, routes, neighbors, sockets and cores.
//!
//! Linux: a network namespace (`struct net`). All threads share it. State that the data path writes
//! is in the cores and sockets; the fields here are read-mostly.

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
};

mod audit;
mod build;
pub mod config;
mod devices;
mod memory_map;
mod neighbors;
mod report;
mod settings;
mod shut_down;

pub use audit::Audit;

/// One instance of the stack.
#[derive(Debug)]
pub struct Host {
    net: Arc<Net>,
    cores: Vec<Arc<Core>>,
    /// References of the cores to `net`.
    core_nets: Vec<Arc<CoreNet>>,
    /// Lock that serializes changes of devices.
    device_changes: Mutex<()>,
}

impl Host {
    /// Runs every core on the calling thread until none has work: for sans-IO use and the
    /// simulator. Returns when to call again even if nothing arrives: at once if work arrives as
    /// fast as it is done.
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

    /// Cores of this host.
    #[must_use]
    pub fn cores(&self) -> &[Arc<Core>] {
        &self.cores
    }

    /// Returns the core that polls queue `queue` of every device, and runs its transmit queue.
    pub(crate) fn core_of_queue(&self, queue: QueueId) -> &Arc<Core> {
        &self.cores[usize::from(queue.0) % self.cores.len()]
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
