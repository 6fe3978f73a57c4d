//! A running stack: the host, its workers, and the handle that applications hold.

use std::{
    borrow::Cow,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use pkt::{DomainStats as MemoryStats, Instant};
use stack::{
    Cx,
    base::{
        config_error::ConfigError,
        counters::Snapshot,
        ids::{CoreId, DeviceIndex},
    },
    cx::event::EventSink,
    header::ethernet::MacAddr,
    host::{Host, config::HostConfig},
    receive::rps::SoftnetStat,
    route::fib::RouteSpec,
    socket::net::{AnnouncedDns, ClaimState},
    sysctl::SysctlError,
    transmit::tx_queue::TxQueueStats,
};

use crate::{
    attachments::{Attachment, Attachments},
    builder::{StackBuilder, StaticNeighbor},
    clock,
    events::{EventLog, Events},
    neighbor::Neighbor,
    route::Route,
    worker::{self, Stop},
};

/// Threads that run the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// One worker thread per core, and application threads while they are in a call.
    Workers,
    /// Application threads in a call, and the caller of [`Stack::poll`].
    Manual,
}

/// A handle to a running stack; clones share it. When the last handle, stream and listener are
/// dropped, the stack aborts its connections and ends its workers.
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
    attachments: Arc<Attachments>,
    events: Arc<EventLog>,
    /// Last field, so that it is dropped after the host.
    _grace: GracePeriod,
}

/// Waits in its `drop` until all threads have left the host's RCU tables, so that the devices in
/// them are freed: the application may then open the same device again.
#[derive(Debug)]
struct GracePeriod;

impl Drop for GracePeriod {
    fn drop(&mut self) {
        /// Maximum number of checks for a grace period. A thread that stays longer than that in a
        /// call of another stack only delays the release of this stack's devices.
        const CHECKS_MAX: u32 = 1000;
        let mut checks = 0;
        let mut wait = || {
            checks += 1;
            std::thread::sleep(Duration::from_micros(10));
            checks < CHECKS_MAX
        };
        // The first grace period frees the tables, the second the route entries that they held.
        for _ in 0..2 {
            clock::memory().rcu.synchronize(&mut wait);
        }
    }
}

impl Stack {
    /// Returns a builder of a stack.
    pub fn builder() -> StackBuilder {
        StackBuilder::new()
    }

    pub(crate) fn start(
        config: HostConfig,
        attachments: Vec<Attachment>,
        neighbors: &[StaticNeighbor],
        mode: RunMode,
    ) -> io::Result<Self> {
        let host = Host::new(clock::memory(), config)?;
        // Set neighbors before the first frame is received, so that no ARP packet sets them first.
        for StaticNeighbor { device, address, mac } in neighbors {
            clock::with_cx(|cx| host.set_neighbor(cx, *device, *address, *mac))?;
        }
        let events = Arc::new(EventLog::default());
        host.set_event_sink(Arc::clone(&events) as Arc<dyn EventSink>);
        let stop = Arc::new(Stop::default());
        let shared = Arc::new(Attachments::new(attachments.clone()));
        let workers = match mode {
            RunMode::Workers => {
                worker::start(&host, &attachments, &shared, &stop).inspect_err(|_| stop.stop())?
            }
            RunMode::Manual => Vec::new(),
        };
        let stack = Self {
            running: Arc::new(Running {
                host,
                mode,
                stop,
                workers: Mutex::new(workers),
                attachments: shared,
                events,
                _grace: GracePeriod,
            }),
        };
        stack.claim_addresses()?;
        Ok(stack)
    }

    /// Proves that no other station uses an address of the stack (RFC 5227), if the settings ask
    /// for it.
    fn claim_addresses(&self) -> io::Result<()> {
        let events = self.events();
        clock::with_cx(|cx| self.host().claim_addresses(cx));
        self.wait_for_claim(events, || self.host().claim_state())
    }

    /// Waits until `state` is not [`ClaimState::Probing`]. `events` began before the claim.
    pub(crate) fn wait_for_claim(
        &self,
        mut events: Events,
        state: impl Fn() -> ClaimState,
    ) -> io::Result<()> {
        /// Time between two polls of a stack without workers.
        const PAUSE: Duration = Duration::from_millis(1);
        loop {
            match state() {
                ClaimState::Ready => return Ok(()),
                ClaimState::Refused { address, mac } => {
                    let text = format!("address {address} is in use by another station, {mac}");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
                ClaimState::Probing if self.is_manual() => {
                    let _ = self.poll();
                    std::thread::sleep(PAUSE);
                }
                // A conflict or success is an event. The limit is needed for a device that was
                // removed meanwhile.
                ClaimState::Probing => drop(events.next_timeout(Duration::from_millis(100))),
            }
        }
    }

    /// Runs all pending work on the calling thread. Returns the time after which the stack must be
    /// polled again, even if no frame arrives; `None` if no timer is armed. Needed for stacks built
    /// with [`StackBuilder::manual`], harmless for others.
    #[must_use = "the stack must be polled again after this time"]
    pub fn poll(&self) -> Option<Duration> {
        self.poll_and_settle(|host, cx| host.poll(cx))
    }

    /// As [`poll`](Self::poll), for core number `core` only. For applications with one thread per
    /// core, each of which uses only the sockets of its core
    /// ([`incoming_core`](crate::ListenOptions::incoming_core)).
    ///
    /// # Panics
    ///
    /// If the stack has no such core.
    #[must_use = "the core must be polled again after this time"]
    pub fn poll_core(&self, core: u16) -> Option<Duration> {
        self.poll_and_settle(|host, cx| host.poll_core(cx, CoreId(core)))
    }

    /// Returns all counters by their Linux names, summed over all threads.
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.host().counters()
    }

    /// Returns the receive counters of each core, one line per core as in /proc/net/softnet_stat;
    /// `to_string` prints the line.
    #[must_use]
    pub fn softnet_stat(&self) -> Vec<SoftnetStat> {
        self.host().softnet_stat()
    }

    /// Returns the backlog and the counters of each transmit queue of each device, as
    /// `tc -s qdisc`; `to_string` prints one row.
    #[must_use]
    pub fn tx_queue_stats(&self) -> Vec<TxQueueStats> {
        clock::with_cx(|cx| self.host().tx_queue_stats(cx))
    }

    /// Returns the present value of a setting by its Linux name, as `sysctl -n NAME` prints it.
    ///
    /// # Errors
    /// `NotFound` for a name that does not exist.
    pub fn sysctl(&self, name: &str) -> io::Result<String> {
        self.host().sysctls().get(name).map_err(refused)
    }

    /// Changes a setting while the stack runs, as `sysctl -w NAME=VALUE` does. Sockets keep the
    /// values that they copied when they were created (buffer sizes, keepalive times). All other
    /// settings apply from the next call of each thread on.
    ///
    /// # Errors
    /// `NotFound` for a name that does not exist, `InvalidInput` for a value that is not allowed,
    /// with one line that describes the allowed values. Nothing is changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        self.host().set_sysctl(name, value).map_err(refused)
    }

    /// Returns every setting with its present value.
    #[must_use]
    pub fn sysctls(&self) -> Vec<(Cow<'static, str>, String)> {
        self.host().sysctls().iter().collect()
    }

    /// Adds a route while the stack runs, as `ip route add` does. Connections for which it is the
    /// better route use it from their next segment on.
    ///
    /// # Errors
    /// `AlreadyExists` if a route has the same prefix and metric, `NotFound` for a device or source
    /// address that the stack does not have, `InvalidInput` for any other error. Nothing is changed
    /// then.
    pub fn add_route(&self, route: &Route) -> io::Result<()> {
        self.with_spec(route, |host, spec| host.add_route(spec))
    }

    /// Adds a route and removes the one with the same prefix and metric, if there is one:
    /// `ip route replace`. If several devices have such a route, that of the same device is
    /// replaced, or else the first.
    ///
    /// # Errors
    /// As [`add_route`](Self::add_route).
    pub fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.with_spec(route, |host, spec| host.replace_route(spec))
    }

    /// Deletes the best route with the prefix of `route` and all other fields that `route` sets:
    /// `ip route del`.
    ///
    /// # Errors
    /// `NotFound` if there is no such route.
    pub fn delete_route(&self, route: &Route) -> io::Result<()> {
        self.with_spec(route, |host, spec| host.delete_route(spec))
    }

    /// Returns all routes, the local table first, as `ip route show table all`.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let host = self.host();
        let listed = |entry| Route::listed(entry, |index| host.device_name(index).to_owned());
        host.routes().into_iter().map(listed).collect()
    }

    /// Sets a permanent link address of a neighbor, as
    /// `ip neigh replace ADDRESS lladdr MAC nud permanent dev NAME` does: the stack never sends a
    /// request for it, and no ARP packet changes it. Packets that waited for the address are sent.
    /// The entry stays until [`delete_neighbor`](Self::delete_neighbor), or until the device goes
    /// down.
    ///
    /// # Errors
    /// `NotFound` if no device has this name; `InvalidInput` if the device's frames carry no link
    /// addresses, or if `address` or `mac` does not belong to a single other station. Nothing is
    /// changed then.
    pub fn set_neighbor(&self, name: &str, address: IpAddr, mac: MacAddr) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().set_neighbor(cx, index, address, mac))?)
    }

    /// Deletes the entry of a neighbor, whether it was set or learned by ARP:
    /// `ip neigh del ADDRESS dev NAME`. The next packet to the address causes a request; packets
    /// that wait for the address are dropped.
    ///
    /// # Errors
    /// `NotFound` if no device has this name or the address has no entry, `InvalidInput` if the
    /// device's frames carry no link addresses.
    pub fn delete_neighbor(&self, name: &str, address: IpAddr) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().delete_neighbor(cx, index, address))?)
    }

    /// Returns the DNS servers and search domains that routers announce (RFC 8106), if
    /// `net.ipv6.conf.all.accept_ra` is on. The stack itself looks no name up.
    #[must_use]
    pub fn announced_dns(&self) -> AnnouncedDns {
        self.host().announced_dns(clock::with_cx(|cx| cx.now))
    }

    /// Returns all neighbors, by device and address, as `ip neigh show`.
    #[must_use]
    pub fn neighbors(&self) -> Vec<Neighbor> {
        let host = self.host();
        let listed = |info| Neighbor::listed(info, |index| host.device_name(index).to_owned());
        host.neighbors().into_iter().map(listed).collect()
    }

    /// Takes a device down, or up again, as `ip link set NAME down` does. While it is down, its
    /// networks and the routes through it are removed, and packets that wait for it are dropped;
    /// connections continue by other routes. When it is up again its networks are restored, but not
    /// the routes that were added.
    ///
    /// # Errors
    /// `NotFound` if no device has this name, `InvalidInput` for loopback.
    pub fn set_device_up(&self, name: &str, up: bool) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().set_device_up(cx, index, up))?)
    }

    /// Removes a device and its addresses, as `ip link del NAME` does. Returns when the stack has
    /// released the device. If another thread stays in a call for long, the device is released when
    /// that call returns.
    ///
    /// Sockets whose address no other device has cannot work any more: calls on their streams and
    /// listeners fail with `ENETDOWN` (`ErrorKind::NetworkDown`); streams first return the data
    /// that they have received. The same happens when the interface of a device is deleted
    /// (`ip link del`) or moved to another network namespace. [`Stack::events`] reports both. A
    /// stack of [`StackBuilder::manual`] detects the deletion when it is polled.
    ///
    /// # Errors
    /// As [`set_device_up`](Self::set_device_up).
    pub fn remove_device(&self, name: &str) -> io::Result<()> {
        let index = self.device(name)?;
        clock::with_cx(|cx| self.host().remove_device(cx, index))?;
        self.running.attachments.forget(index);
        self.running.stop.kick();
        drop(GracePeriod);
        Ok(())
    }

    /// Returns the events of the stack's devices and addresses: a deleted interface, an address
    /// that another station uses, checksums that the link does not complete.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(Arc::clone(&self.running.events))
    }

    /// Removes devices whose interface is gone, if the stack has no workers to do it.
    fn remove_gone(&self, cx: &mut Cx) {
        if self.is_manual() {
            let _ = self.running.attachments.remove_gone(self.host(), cx);
        }
    }

    /// Polls, and returns the time after which `poll` must be called again. A poll that received no
    /// frames also frees retired objects of closed connections: without workers no other thread
    /// does.
    fn poll_and_settle(
        &self,
        poll: impl FnOnce(&Host, &mut Cx) -> Option<Instant>,
    ) -> Option<Duration> {
        let (wait, is_idle) = clock::with_cx(|cx| {
            let before = cx.received();
            let deadline = poll(self.host(), cx);
            self.remove_gone(cx);
            let wait = deadline.map(|at| at.checked_duration_since(cx.now).unwrap_or_default());
            (wait, cx.received() == before)
        });
        let rcu = &clock::memory().rcu;
        if is_idle && rcu.is_waiting() {
            let _ = rcu.settle();
        }
        wait
    }

    pub(crate) fn device(&self, name: &str) -> io::Result<DeviceIndex> {
        let found = self.host().device_index(name);
        let error = || ConfigError::missing("device", name, "no such device");
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

    /// Returns the name given to the builder.
    #[must_use]
    pub fn name(&self) -> &str {
        self.host().name()
    }

    /// Returns the number of connections, half-open ones and TIME-WAIT included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.host().established_len()
    }

    /// Returns the use of packet memory. All stacks of a process share it, so the numbers are the
    /// same for each of them.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        clock::memory().packets.stats()
    }

    /// Aborts every connection and ends the workers. Calls on remaining sockets fail afterwards.
    pub fn shutdown(&self) {
        self.running.shut_down();
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.running.host
    }

    /// Returns whether the stack has no workers ([`StackBuilder::manual`]).
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.running.mode == RunMode::Manual
    }

    /// Calls `work` with the host, and with the context of this thread at the present time: for
    /// layers that make the socket calls of [`sans_io`](crate::sans_io) themselves, beside the
    /// workers. `work` must not wait.
    pub fn with_host<R>(&self, work: impl FnOnce(&Arc<Host>, &mut Cx) -> R) -> R {
        clock::with_cx(|cx| work(self.host(), cx))
    }
}

fn refused(error: SysctlError) -> io::Error {
    let kind = match error {
        SysctlError::Unknown { .. } => io::ErrorKind::NotFound,
        SysctlError::Invalid { .. } => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, error)
}

impl Running {
    fn shut_down(&self) {
        clock::with_cx(|cx| self.host.shut_down(cx));
        self.stop.stop();
        let workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A worker that drops the last handle, as by a waker, cannot wait for itself.
            if worker.thread().id() != std::thread::current().id() {
                // The panic message of a worker is on standard error already.
                let _ = worker.join();
            }
        }
        self.events.end();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Returns the time from `now` until `deadline`; zero if it has passed.
pub(crate) fn until(now: Instant, deadline: Instant) -> Duration {
    deadline.checked_duration_since(now).unwrap_or_default()
}
