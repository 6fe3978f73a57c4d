//! A running stack: the host, its workers, and the handle applications hold.

use std::{
    borrow::Cow,
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use pkt::{DomainStats as MemoryStats, Instant};
use stack::{
    config::{ConfigError, HostConfig},
    core::CoreId,
    counters::Snapshot,
    host::Host,
    route::fib::RouteSpec,
    rps::SoftnetStat,
    tx_queue::TxQueueStats,
};

use crate::{
    builder::{Attachment, StackBuilder},
    clock,
    route::Route,
    worker::{self, Stop},
};

/// Who runs the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// One worker thread per core, and application threads while they are in a call.
    Workers,
    /// Application threads in a call, and the caller of [`Stack::poll`].
    Manual,
}

/// A handle to a running stack; clones share it. When the last handle, stream and listener are gone, its connections
/// are aborted and its workers end.
#[derive(Clone, Debug)]
pub struct Stack {
    running: Arc<Running>,
}

#[derive(Debug)]
pub(crate) struct Running {
    host: Arc<Host>,
    mode: RunMode,
    stop: Arc<Stop>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Keeps the descriptors that the workers sleep on open; `None` for a device that is gone.
    attachments: Mutex<Vec<Option<Attachment>>>,
    /// Last, when the host is gone.
    _grace: GracePeriod,
}

/// What the host had in tables is dropped before the stack is: whoever has dropped it may open the same device again.
#[derive(Debug)]
struct GracePeriod;

impl Drop for GracePeriod {
    fn drop(&mut self) {
        /// Looks at the readers, a moment apart: a thread that stays in a call of another stack for longer than all of
        /// them delays the end of this one's device, and nothing else.
        const LOOKS_MAX: u32 = 1000;
        let mut looks = 0;
        let mut wait = || {
            looks += 1;
            std::thread::sleep(Duration::from_micros(10));
            looks < LOOKS_MAX
        };
        // Once for the tables, and once for the route entries that they held.
        for _ in 0..2 {
            clock::memory().rcu.synchronize(&mut wait);
        }
    }
}

impl Stack {
    /// Starts to build a stack.
    pub fn builder() -> StackBuilder {
        StackBuilder::new()
    }

    pub(crate) fn start(
        config: HostConfig,
        attachments: Vec<Attachment>,
        mode: RunMode,
    ) -> io::Result<Self> {
        let host = Host::new(clock::memory(), config)?;
        let stop = Arc::new(Stop::default());
        let workers = match mode {
            RunMode::Workers => {
                worker::start(&host, &attachments, &stop).inspect_err(|_| stop.stop())?
            }
            RunMode::Manual => Vec::new(),
        };
        Ok(Self {
            running: Arc::new(Running {
                host,
                mode,
                stop,
                workers: Mutex::new(workers),
                attachments: Mutex::new(attachments.into_iter().map(Some).collect()),
                _grace: GracePeriod,
            }),
        })
    }

    /// Runs everything that has work, on the calling thread, and returns how long it may be left alone unless a frame
    /// arrives; `None` for ever. For stacks built with [`StackBuilder::manual`], harmless for others.
    #[must_use = "the stack wants to be polled again after this time"]
    pub fn poll(&self) -> Option<Duration> {
        clock::with_cx(|cx| {
            let deadline = self.host().poll(cx)?;
            Some(deadline.checked_duration_since(cx.now).unwrap_or_default())
        })
    }

    /// As [`poll`](Self::poll), for core number `core` only: where an application has a thread for each, which uses that core's
    /// sockets ([`incoming_core`](crate::ListenOptions::incoming_core)), none should run another's.
    ///
    /// # Panics
    ///
    /// If the stack has no such core.
    #[must_use = "the core wants to be polled again after this time"]
    pub fn poll_core(&self, core: u16) -> Option<Duration> {
        clock::with_cx(|cx| {
            let deadline = self.host().poll_core(cx, CoreId(core))?;
            Some(deadline.checked_duration_since(cx.now).unwrap_or_default())
        })
    }

    /// Counters by their Linux names, summed over all threads.
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.host().counters()
    }

    /// What each core counts of its receive work, as /proc/net/softnet_stat: a line for each, and `to_string` prints it.
    #[must_use]
    pub fn softnet_stat(&self) -> Vec<SoftnetStat> {
        self.host().softnet_stat()
    }

    /// What each transmit queue of each device holds and has counted, as `tc -s qdisc`: `to_string` prints a row so.
    #[must_use]
    pub fn tx_queue_stats(&self) -> Vec<TxQueueStats> {
        clock::with_cx(|cx| self.host().tx_queue_stats(cx))
    }

    /// The present value of a setting by its Linux name, as `sysctl -n NAME` prints it.
    ///
    /// # Errors
    /// `InvalidInput` for a name that does not exist.
    pub fn sysctl(&self, name: &str) -> io::Result<String> {
        self.host().sysctls().get(name).map_err(invalid_input)
    }

    /// Changes a setting while the stack runs, as `sysctl -w NAME=VALUE` does. Sockets keep what they copied when they
    /// were made (buffer sizes, keepalive times); everything else holds from the next call of each thread on.
    ///
    /// # Errors
    /// `InvalidInput` with one line that says what is allowed; nothing is changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        self.host().set_sysctl(name, value).map_err(invalid_input)
    }

    /// Every setting with its present value.
    #[must_use]
    pub fn sysctls(&self) -> Vec<(Cow<'static, str>, String)> {
        self.host().sysctls().iter().collect()
    }

    /// Adds a route while the stack runs, as `ip route add` does. Connections that it leads elsewhere move with their next
    /// segment.
    ///
    /// # Errors
    /// `InvalidInput` with one line that says what is allowed; nothing is changed then.
    pub fn add_route(&self, route: &Route) -> io::Result<()> {
        self.with_spec(route, Host::add_route)
    }

    /// Adds a route in place of the one with the same prefix and metric, if there is one: `ip route replace`.
    ///
    /// # Errors
    /// As [`add_route`](Self::add_route).
    pub fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.with_spec(route, Host::replace_route)
    }

    /// Takes the best route away that has the prefix of `route` and whatever else it names: `ip route del`.
    ///
    /// # Errors
    /// `InvalidInput` when there is none.
    pub fn delete_route(&self, route: &Route) -> io::Result<()> {
        self.with_spec(route, Host::delete_route)
    }

    /// Every route: the local table first, as `ip route show table all`.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let host = self.host();
        let listed = |entry| Route::listed(entry, |index| host.device_name(index).to_owned());
        host.routes().into_iter().map(listed).collect()
    }

    /// Takes a device down, or up again, as `ip link set NAME down` does. Down it carries nothing: its networks and the routes
    /// through it are gone, and what waits for it is dropped; connections go on by other routes. Up again its networks are back, but
    /// not the routes that were added.
    ///
    /// # Errors
    /// `InvalidInput` for a name that no device has, or for loopback.
    pub fn set_device_up(&self, name: &str, up: bool) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().set_device_up(cx, index, up))?)
    }

    /// Takes a device away for good, as `ip link del NAME` does: down, and with it its addresses. Returns when the stack has let
    /// it go, unless another thread has been in a call for long: then it does so when that returns.
    ///
    /// # Errors
    /// As [`set_device_up`](Self::set_device_up).
    pub fn remove_device(&self, name: &str) -> io::Result<()> {
        let index = self.device(name)?;
        clock::with_cx(|cx| self.host().remove_device(cx, index))?;
        // The host's device 0 is loopback.
        let place = index as usize - 1;
        let mut attachments =
            self.running.attachments.lock().unwrap_or_else(PoisonError::into_inner);
        attachments[place] = None;
        drop(attachments);
        self.running.stop.kick();
        drop(GracePeriod);
        Ok(())
    }

    fn device(&self, name: &str) -> io::Result<u32> {
        let found = self.host().device_index(name);
        let error = || ConfigError::new("device", name, "the name of a device of this stack");
        Ok(found.ok_or_else(error)?)
    }

    fn with_spec(
        &self,
        route: &Route,
        change: impl FnOnce(&Host, &RouteSpec) -> Result<(), ConfigError>,
    ) -> io::Result<()> {
        let spec = route.spec(|name| self.host().device_index(name))?;
        Ok(change(self.host(), &spec)?)
    }

    /// Name given to the builder.
    #[must_use]
    pub fn name(&self) -> &str {
        self.host().name()
    }

    /// Connections in the tables, half-open ones and TIME-WAIT included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.host().established_len()
    }

    /// Packet memory in use. All stacks of a process share it: the numbers are the same for each of them.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        clock::memory().packets.stats()
    }

    /// Aborts every connection and ends the workers. Sockets that still exist fail from here on.
    pub fn shutdown(&self) {
        self.running.shut_down();
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.running.host
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.running.mode == RunMode::Manual
    }
}

fn invalid_input(error: stack::sysctl::SysctlError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

impl Running {
    fn shut_down(&self) {
        clock::with_cx(|cx| self.host.shut_down(cx));
        self.stop.stop();
        let workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A worker that panicked has said so on standard error already.
            let _ = worker.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// How long from `now` until `deadline`; zero when it has passed.
pub(crate) fn until(now: Instant, deadline: Instant) -> Duration {
    deadline.checked_duration_since(now).unwrap_or_default()
}
