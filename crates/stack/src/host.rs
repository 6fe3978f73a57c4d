//! A host: one instance of the stack with its addresses, routes, neighbors, sockets and cores.
//!
//! Linux: a network namespace (`struct net`). Shared by every thread that uses it; what changes on the data path lives
//! in the cores and sockets, what is here is read-mostly.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
    vec::Vec,
};

use pkt::Instant;

use crate::{
    base::ids::CoreId,
    core::{Core, CoreRun},
    cx::Cx,
    device::QueueId,
    socket::net::Net,
};

mod audit;
mod build;
pub mod config;
mod devices;
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
    /// One change of a device at a time.
    device_changes: Mutex<()>,
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

    /// Cores of this host.
    #[must_use]
    pub fn cores(&self) -> &[Arc<Core>] {
        &self.cores
    }

    /// The core that polls a queue, of whatever device, and looks after what waits to be sent by it.
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
