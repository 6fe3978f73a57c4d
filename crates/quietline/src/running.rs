//! A running stack: the host, its workers, and the handle applications hold.

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
    base::{config_error::ConfigError, counters::Snapshot, ids::CoreId},
    header::ethernet::MacAddr,
    host::{ClaimState, EventSink, Host, config::HostConfig},
    receive::rps::SoftnetStat,
    route::fib::RouteSpec,
    sysctl::SysctlError,
    transmit::tx_queue::TxQueueStats,
};

use crate::{
    attachments::Attachments,
    builder::{Attachment, StackBuilder, StaticNeighbor},
    clock,
    events::{EventLog, Events},
    neighbor::Neighbor,
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
    attachments: Arc<Attachments>,
    events: Arc<EventLog>,
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
        neighbors: &[StaticNeighbor],
        mode: RunMode,
    ) -> io::Result<Self> {
        let host = Host::new(clock::memory(), config)?;
        // Before the first frame is received, so that no ARP packet comes first.
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

    /// Proves that no other station has an address of the stack, where the settings ask for it (RFC 5227).
    fn claim_addresses(&self) -> io::Result<()> {
        /// How long a stack without workers is left alone between two polls.
        const PAUSE: Duration = Duration::from_millis(1);
        let mut events = self.events();
        clock::with_cx(|cx| self.host().claim_addresses(cx));
        loop {
            match self.host().claim_state() {
                ClaimState::Ready => return Ok(()),
                ClaimState::Refused { address, mac } => {
                    let text = format!("address {address} is in use by another station, {mac}");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
                ClaimState::Probing if self.is_manual() => {
                    let _ = self.poll();
                    std::thread::sleep(PAUSE);
                }
                // A conflict or success is an event; the limit is for a device that has gone meanwhile.
                ClaimState::Probing => drop(events.next_timeout(Duration::from_millis(100))),
            }
        }
    }

    /// Runs everything that has work, on the calling thread, and returns how long it may be left alone unless a frame
    /// arrives; `None` for ever. For stacks built with [`StackBuilder::manual`], harmless for others.
    #[must_use = "the stack wants to be polled again after this time"]
    pub fn poll(&self) -> Option<Duration> {
        self.poll_and_settle(|host, cx| host.poll(cx))
    }

    /// As [`poll`](Self::poll), for core number `core` only: where an application has a thread for each, which uses that core's
    /// sockets ([`incoming_core`](crate::ListenOptions::incoming_core)), none should run another's.
    ///
    /// # Panics
    ///
    /// If the stack has no such core.
    #[must_use = "the core wants to be polled again after this time"]
    pub fn poll_core(&self, core: u16) -> Option<Duration> {
        self.poll_and_settle(|host, cx| host.poll_core(cx, CoreId(core)))
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
    /// `NotFound` for a name that does not exist.
    pub fn sysctl(&self, name: &str) -> io::Result<String> {
        self.host().sysctls().get(name).map_err(refused)
    }

    /// Changes a setting while the stack runs, as `sysctl -w NAME=VALUE` does. Sockets keep what they copied when they
    /// were made (buffer sizes, keepalive times); everything else holds from the next call of each thread on.
    ///
    /// # Errors
    /// `NotFound` for a name that does not exist, `InvalidInput` for a value that is not allowed, with one line that says
    /// what is; nothing is changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        self.host().set_sysctl(name, value).map_err(refused)
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
    /// `AlreadyExists` for a prefix and metric that have a route, `NotFound` for a device or source that the stack does not
    /// have, `InvalidInput` for anything else; nothing is changed then.
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
    /// `NotFound` when there is none.
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

    /// Sets the link address of a neighbor for good, as `ip neigh replace ADDRESS lladdr MAC nud permanent dev NAME` does: the stack
    /// never asks for it, and no ARP packet changes it. Packets that waited for the address are sent. The neighbor stays until
    /// [`delete_neighbor`](Self::delete_neighbor), or until the device goes down.
    ///
    /// # Errors
    /// `NotFound` for a name that no device has; `InvalidInput` for a device whose frames carry no link addresses, and for an
    /// address or link address that is not of a single other station; nothing is changed then.
    pub fn set_neighbor(&self, name: &str, address: IpAddr, mac: MacAddr) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().set_neighbor(cx, index, address, mac))?)
    }

    /// Forgets the link address of a neighbor, whether it was set or learned by ARP: `ip neigh del ADDRESS dev NAME`. The next packet
    /// to the address causes a request; packets that wait for it are dropped.
    ///
    /// # Errors
    /// `NotFound` for a name that no device has and when nothing is known of the address, `InvalidInput` for a device whose frames
    /// carry no link addresses.
    pub fn delete_neighbor(&self, name: &str, address: IpAddr) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().delete_neighbor(cx, index, address))?)
    }

    /// Every neighbor, by device and address, as `ip neigh show`.
    #[must_use]
    pub fn neighbors(&self) -> Vec<Neighbor> {
        let host = self.host();
        let listed = |info| Neighbor::listed(info, |index| host.device_name(index).to_owned());
        host.neighbors().into_iter().map(listed).collect()
    }

    /// Takes a device down, or up again, as `ip link set NAME down` does. Down it carries nothing: its networks and the routes
    /// through it are gone, and what waits for it is dropped; connections go on by other routes. Up again its networks are back, but
    /// not the routes that were added.
    ///
    /// # Errors
    /// `NotFound` for a name that no device has, `InvalidInput` for loopback.
    pub fn set_device_up(&self, name: &str, up: bool) -> io::Result<()> {
        let index = self.device(name)?;
        Ok(clock::with_cx(|cx| self.host().set_device_up(cx, index, up))?)
    }

    /// Takes a device away for good, as `ip link del NAME` does: down, and with it its addresses. Returns when the stack has let
    /// it go, unless another thread has been in a call for long: then it does so when that returns.
    ///
    /// Sockets with an address that no other device has can never work again: calls on their streams and listeners fail with
    /// `ENETDOWN` (`ErrorKind::NetworkDown`), streams after what they have received was read. The same happens by itself when
    /// somebody deletes the interface of a device (`ip link del`), or moves it to another network namespace; [`Stack::events`]
    /// tells of both. A stack of [`StackBuilder::manual`] finds it out when it is polled.
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

    /// What happens to the devices and addresses of the stack: an interface that was deleted, an address that another station
    /// uses, checksums that the link does not complete.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(Arc::clone(&self.running.events))
    }

    /// Takes devices away whose interface is gone, as a stack without workers has to do itself.
    fn remove_gone(&self, cx: &mut Cx) {
        if self.is_manual() {
            let _ = self.running.attachments.remove_gone(self.host(), cx);
        }
    }

    /// The time after which `poll` wants to be called again, from now on. A poll that brings no frames releases what closed
    /// connections have left: without workers nobody else does.
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

    fn device(&self, name: &str) -> io::Result<u32> {
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
            // A worker that panicked has said so on standard error already.
            let _ = worker.join();
        }
        self.events.end();
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
