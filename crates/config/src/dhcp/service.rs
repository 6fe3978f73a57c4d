//! The thread that keeps the leases of a stack: one UDP socket on port 68 for all devices.
//!
//! Above: the command, and applications. Below: [`Client`], the sockets of the stack, and
//! `Stack::add_address`, which probes an address before the lease is used (RFC 2131 §4.4.1).
//!
//! A device without an address sends from 0.0.0.0 and receives broadcasts; an answer is passed to
//! the client of the device that received it. The thread sleeps until a datagram arrives, a device
//! comes up or a time of a client has come. A stack of `StackBuilder::manual` must be polled by the
//! application meanwhile.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use ipnet::IpNet;
use quietline::{
    DeviceIndex, Event, Events, Readiness, Received, Route, SendControl, SendMessage, SocketOption,
    SocketSettings, Stack, UdpSocket,
};

use super::{
    Action, CLIENT_PORT, Checked, Client, ClientConfig, Destination, Lease, LeaseRoute, Loss,
    SERVER_PORT,
};

/// Metric of the routes of a lease, without the index of the device: larger than that of a route
/// that an administrator adds. The default of systemd-networkd. The index is added so that the
/// default routes of two links have different metrics, as those of NetworkManager do.
const ROUTE_METRIC: u32 = 1024;

/// Largest message: an Ethernet frame.
const MESSAGE_BYTES_MAX: usize = 1500;

/// Largest number of messages that are processed before the deadlines are looked at.
const MESSAGES_AT_ONCE: usize = 64;

/// Time limit for the server's link address when the thread ends, so that RELEASE is sent before
/// the address is gone.
const RELEASE_WAIT: Duration = Duration::from_millis(100);

/// Change of a lease, for an administrator. Its text is one line without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The device uses the lease.
    Configured {
        /// Name of the device.
        device: String,
        /// The lease.
        lease: Lease,
    },
    /// The device has given the lease up.
    Removed {
        /// Name of the device.
        device: String,
        /// The lease.
        lease: Lease,
        /// Reason.
        loss: Loss,
    },
    /// Another station has the offered address; the server is told, and another address is asked
    /// for.
    Conflict {
        /// Name of the device.
        device: String,
        /// The lease.
        lease: Lease,
    },
    /// A part of a lease cannot be used.
    Problem {
        /// Name of the device.
        device: String,
        /// The part and the reason.
        text: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured { device, lease } => write!(f, "{device}: address {lease}"),
            Self::Removed { device, lease, loss } => {
                let reason = match loss {
                    Loss::Expired => "expired",
                    Loss::Refused => "was refused by its server",
                    Loss::Released => "was released",
                };
                write!(f, "{device}: the lease of {} {reason}", lease.address)
            }
            Self::Conflict { device, lease } => {
                write!(f, "{device}: another station has the offered address {}", lease.address)
            }
            Self::Problem { device, text } => write!(f, "{device}: {text}"),
        }
    }
}

/// The DHCP clients of a stack. Dropping it returns the leases and removes their addresses.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Lease of each device, or `None`.
    leases: Mutex<Vec<(String, Option<Lease>)>>,
    changed: Condvar,
    stop: AtomicBool,
}

impl Shared {
    fn leases(&self) -> MutexGuard<'_, Vec<(String, Option<Lease>)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, device: &str, lease: Option<Lease>) {
        for (name, own) in self.leases().iter_mut() {
            if name == device {
                own.clone_from(&lease);
            }
        }
        self.changed.notify_all();
    }
}

impl Service {
    /// Starts a client for each of `devices`, which are named as in the stack. `on_change` is
    /// called from the thread of the service.
    ///
    /// # Errors
    /// `NotFound` for a device that the stack does not have, `InvalidInput` for one without link
    /// addresses, `AddrInUse` if another socket has port 68, and the error of starting a thread.
    pub fn start(
        stack: &Stack,
        devices: &[(String, ClientConfig)],
        on_change: impl FnMut(&Change) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let present = stack.devices();
        let mut clients = Vec::new();
        for (name, config) in devices {
            let refuse =
                |kind, reason: &str| io::Error::new(kind, format!("device {name}: {reason}"));
            let found = present
                .iter()
                .find(|device| device.name == *name)
                .ok_or_else(|| refuse(io::ErrorKind::NotFound, "no such device"))?;
            let mac = found.mac.ok_or_else(|| {
                refuse(io::ErrorKind::InvalidInput, "DHCP needs a device with link addresses")
            })?;
            let client = Client::new(config, mac.0, Duration::ZERO, crate::unpredictable());
            clients.push(Held { name: name.clone(), index: found.index, client, applied: None });
            shared.leases().push((name.clone(), None));
        }
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CLIENT_PORT));
        let socket = UdpSocket::bind_with(stack, local, &SocketSettings::default())?;
        socket.set_option(SocketOption::Broadcast, true)?;
        socket.set_nonblocking(true)?;
        let mut events = stack.events();
        // Earlier changes of the devices do not concern the clients.
        while events.try_next().is_some() {}
        let runner = Runner {
            stack: stack.clone(),
            socket,
            events,
            shared: Arc::clone(&shared),
            start: Instant::now(),
            on_change: Box::new(on_change),
        };
        let thread =
            thread::Builder::new().name("dhcp".to_owned()).spawn(move || runner.run(clients))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until every device has a lease, at most `limit`. Returns whether every device has one.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let is_missing = |leases: &mut Vec<(String, Option<Lease>)>| {
            leases.iter().any(|(_, lease)| lease.is_none())
        };
        let leases = self.shared.leases();
        let waited = self.shared.changed.wait_timeout_while(leases, limit, is_missing);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Returns the leases in use with the names of their devices.
    #[must_use]
    pub fn leases(&self) -> Vec<(String, Lease)> {
        let leases = self.shared.leases();
        leases.iter().filter_map(|(name, lease)| Some((name.clone(), lease.clone()?))).collect()
    }

    /// Returns the leases, removes their addresses and ends the thread. Call it before the shutdown
    /// of the stack.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The panic message of the thread is on standard error already.
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// Wakes the thread of the service.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The client of one device, and the lease that the stack uses.
struct Held {
    name: String,
    index: DeviceIndex,
    client: Client,
    applied: Option<Lease>,
}

/// The thread of the service.
struct Runner {
    stack: Stack,
    socket: UdpSocket,
    events: Events,
    shared: Arc<Shared>,
    start: Instant,
    on_change: Box<dyn FnMut(&Change) + Send>,
}

impl Runner {
    fn run(mut self, mut clients: Vec<Held>) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        while self.receive(&mut clients) {
            for held in &mut clients {
                held.client.advance(self.start.elapsed());
                self.carry_out(held);
            }
            if self.shared.stop.load(Ordering::Acquire) {
                for held in &mut clients {
                    held.client.release();
                    self.carry_out(held);
                }
                return;
            }
            // The waker is registered before the thread sleeps, so no arrival is missed.
            let mut task = Context::from_waker(&waker);
            while let Poll::Ready(Some(event)) = self.events.poll_next(&mut task) {
                self.on_event(&mut clients, &event);
            }
            if self.socket.poll_ready(Readiness::READ, &mut task).is_pending() {
                let due = clients.iter().filter_map(|held| held.client.deadline()).min();
                match due {
                    Some(due) => thread::park_timeout(due.saturating_sub(self.start.elapsed())),
                    None => thread::park(),
                }
            }
        }
    }

    /// Informs the client of a device that has come up again.
    fn on_event(&mut self, clients: &mut [Held], event: &Event) {
        let Event::DeviceUp { device } = event else { return };
        for held in clients.iter_mut().filter(|held| held.name == *device) {
            held.client.link_up(self.start.elapsed());
            self.carry_out(held);
        }
    }

    /// Passes up to [`MESSAGES_AT_ONCE`] waiting datagrams to their clients. Returns false if the
    /// stack was shut down.
    fn receive(&mut self, clients: &mut [Held]) -> bool {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for _ in 0..MESSAGES_AT_ONCE {
            match self.socket.recv_message(&mut buffer) {
                Ok(Received { len, source, device, .. }) if source.port() == SERVER_PORT => {
                    let found = clients.iter_mut().find(|held| held.index == device);
                    if let Some(held) = found {
                        held.client.receive(self.start.elapsed(), &buffer[..len]);
                        self.carry_out(held);
                    }
                }
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return true,
                    io::ErrorKind::NetworkDown => return false,
                    // An ICMP error for an earlier message: the message is repeated in its time.
                    _ => {}
                },
            }
        }
        true
    }

    fn carry_out(&mut self, held: &mut Held) {
        while let Some(action) = held.client.next_action() {
            match action {
                Action::Send { bytes, to } => self.send(held, &bytes, to),
                Action::Check(lease) => self.check(held, lease),
                Action::Configure(lease) => self.configure(held, lease),
                Action::Renewed(lease) => {
                    self.restore_routes(held, &lease);
                    held.applied = Some(lease.clone());
                    self.shared.set(&held.name, Some(lease));
                }
                Action::Remove(lease, loss) => {
                    if loss == Loss::Released {
                        self.wait_for_neighbor(lease.server);
                    }
                    self.remove(held);
                    self.report(Change::Removed { device: held.name.clone(), lease, loss });
                }
            }
        }
    }

    fn send(&self, held: &Held, bytes: &[u8], to: Destination) {
        let own = held.applied.as_ref().map(|lease| IpAddr::V4(lease.address.addr()));
        let (to, control) = match to {
            Destination::Broadcast => {
                let control = SendControl { device: Some(held.index), ..SendControl::default() };
                (Ipv4Addr::BROADCAST, control)
            }
            Destination::Server(server) => {
                (server, SendControl { source: own, ..SendControl::default() })
            }
        };
        let to = SocketAddr::from((to, SERVER_PORT));
        // A message that cannot be sent is like one that is lost: it is repeated in its time.
        let _ = self.socket.send_message(&SendMessage { control, ..SendMessage::to(bytes, to) });
    }

    /// Adds the address, which the stack probes, and reports the result to the client.
    fn check(&mut self, held: &mut Held, lease: Lease) {
        match self.stack.add_address(&held.name, IpNet::V4(lease.address)) {
            Ok(()) => {
                held.applied = Some(Lease { routes: Vec::new(), mtu: None, ..lease });
                held.client.checked(self.start.elapsed(), Checked::Free);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                self.report(Change::Conflict { device: held.name.clone(), lease });
                held.client.checked(self.start.elapsed(), Checked::InUse);
            }
            Err(error) => {
                self.problem(held, format!("{error}; an address is asked for again later"));
                held.client.checked(self.start.elapsed(), Checked::Failed);
            }
        }
    }

    /// Makes the routes of the device those of `lease`.
    fn configure(&mut self, held: &mut Held, lease: Lease) {
        if held.applied.as_ref().is_some_and(|applied| applied.address != lease.address) {
            self.remove(held);
            if let Err(error) = self.stack.add_address(&held.name, IpNet::V4(lease.address)) {
                self.problem(held, error.to_string());
            }
        }
        let before = held.applied.take();
        let (old_routes, old_mtu) =
            before.map_or((Vec::new(), None), |before| (before.routes, before.mtu));
        let rebuilds = old_mtu != lease.mtu;
        for route in old_routes.iter().filter(|route| rebuilds || !lease.routes.contains(route)) {
            // The route may be gone: an administrator has deleted it, or the device was down.
            let _ = self.stack.delete_route(&of_lease(held, &lease, route));
        }
        if rebuilds {
            let replaced = self.stack.replace_route(&with_mtu(of_network(held, &lease), &lease));
            self.note(held, "the route of the network", replaced);
        }
        for route in lease.routes.iter().filter(|route| rebuilds || !old_routes.contains(route)) {
            let route = of_lease(held, &lease, route);
            let added = self.stack.replace_route(&with_mtu(route.clone(), &lease));
            self.note(held, &format!("route {route}"), added);
        }
        held.applied = Some(lease.clone());
        self.report(Change::Configured { device: held.name.clone(), lease: lease.clone() });
        // After the report, so that it is complete when `wait` returns.
        self.shared.set(&held.name, Some(lease));
    }

    /// Adds the routes of a lease that are gone: an administrator has deleted them, or the device
    /// was down. Other changes of an administrator stay.
    fn restore_routes(&mut self, held: &Held, lease: &Lease) {
        let present = self.stack.routes();
        let has = |wanted: &Route| {
            present.iter().any(|route| {
                (route.prefix, route.metric) == (wanted.prefix, wanted.metric)
                    && route.dev == wanted.dev
                    && (wanted.mtu.is_none() || route.mtu == wanted.mtu)
            })
        };
        // The network comes first, because the gateways are in it.
        let network = (lease.address.prefix_len() < 32).then(|| of_network(held, lease));
        let of_lease = lease.routes.iter().map(|route| of_lease(held, lease, route));
        for route in network.into_iter().chain(of_lease) {
            let route = with_mtu(route, lease);
            if !has(&route) {
                let added = self.stack.replace_route(&route);
                self.note(held, &format!("route {route}"), added);
            }
        }
    }

    /// Removes the address of the device; its routes go with it.
    fn remove(&self, held: &mut Held) {
        if let Some(applied) = held.applied.take() {
            // The address may be gone with its device.
            let _ = self.stack.delete_address(&held.name, applied.address.addr().into());
        }
        self.shared.set(&held.name, None);
    }

    /// Waits until the link address of `server` is known, so that a message to it was sent.
    fn wait_for_neighbor(&self, server: Ipv4Addr) {
        let deadline = Instant::now() + RELEASE_WAIT;
        let is_known = || {
            let neighbors = self.stack.neighbors();
            neighbors.iter().any(|known| known.address == server && known.mac.is_some())
        };
        while !is_known() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn note(&mut self, held: &Held, part: &str, result: io::Result<()>) {
        if let Err(error) = result {
            self.problem(held, format!("{part}: {error}"));
        }
    }

    fn problem(&mut self, held: &Held, text: String) {
        self.report(Change::Problem { device: held.name.clone(), text });
    }

    fn report(&mut self, change: Change) {
        (self.on_change)(&change);
    }
}

/// Returns the route to the network of a lease without its MTU, as it comes with the address.
fn of_network(held: &Held, lease: &Lease) -> Route {
    let own = IpAddr::V4(lease.address.addr());
    Route::to(IpNet::V4(lease.address.trunc())).dev(&held.name).src(own)
}

/// Returns a route of a lease without its MTU.
fn of_lease(held: &Held, lease: &Lease, route: &LeaseRoute) -> Route {
    let own = IpAddr::V4(lease.address.addr());
    let metric = ROUTE_METRIC + held.index.0;
    let added = Route::to(IpNet::V4(route.prefix)).dev(&held.name).src(own).metric(metric);
    match route.via {
        Some(via) => added.via(IpAddr::V4(via)),
        None => added,
    }
}

fn with_mtu(route: Route, lease: &Lease) -> Route {
    match lease.mtu {
        Some(mtu) => route.mtu(mtu.into()),
        None => route,
    }
}
