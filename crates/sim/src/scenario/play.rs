//! Plays one scenario, from event to event, and checks the invariants after each.

use std::{collections::BTreeMap, io::IoSlice, net::SocketAddr, sync::Arc, time::Duration};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    base::counters::{Counter, Snapshot},
    host::config::{DeviceConfig, HostConfig},
    socket::{ConnectOptions, Connection, ListenOptions, Listener, options::SocketSettings},
};
use tcp::{Edges, FourTuple};

use super::{Outcome, STALL, Scenario, Session, Threads, datagrams::Datagrams, recycling};
use crate::{
    World,
    apps::Pattern,
    network::{Capture, Change, Network, PortConfig, Sabotage},
    traffic::{Behavior, End, Ending},
};

/// The port that every host listens on.
const PORT: u16 = 80;

/// Attempts to connect before the run counts as failed.
const ATTEMPTS_MAX: u32 = 10;

/// Time that the peer of an aborted application waits: if the reset is lost, nothing else notifies
/// the peer.
const RESET_WAIT_MAX: Duration = Duration::from_secs(100);

/// Time that a client waits until the server accepts. If every ACK of the handshake is lost, the
/// server drops the request, and a client without data to send is not notified.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(130);

/// Number of events between two runs of the more expensive checks.
const THOROUGH: u64 = 16;

/// Turns of the applications at one instant before time moves on: one application may wait for an
/// action of another.
const TURNS_PER_INSTANT: usize = 4;

/// The state of a connection.
#[derive(Debug)]
struct Link<'a> {
    plan: &'a Session,
    number: u64,
    attempts: u32,
    client: Option<Arc<Connection>>,
    /// Bytes of the client's stream that left with the SYN of this attempt.
    early: u64,
    connecting_since: Instant,
    ends: Option<[End; 2]>,
    /// When one of the applications aborted.
    aborted_at: Option<Instant>,
}

pub(super) struct Play<'a> {
    scenario: &'a Scenario,
    world: World,
    network: Network,
    listeners: Vec<Arc<Listener>>,
    links: Vec<Link<'a>>,
    datagrams: Vec<Datagrams<'a>>,
    /// Sequence numbers of each connection, and the step in which they were read last.
    edges: BTreeMap<(usize, FourTuple), (Edges, u64)>,
    start: Instant,
    /// When all blackouts are over.
    up_at: Instant,
    progress: (u64, Instant),
    /// Number of frames lost by chance, and the time of the last loss.
    lost: (u64, Instant),
    steps: u64,
    /// Number of the scenario's changes that have been made.
    changed: usize,
}

fn world_of(scenario: &Scenario) -> World {
    match scenario.threads {
        Threads::One => World::new(scenario.seed),
        Threads::Ringing | Threads::Apart => World::with_threads(scenario.seed),
    }
}

/// Returns the device configuration of every host.
fn ports_of(scenario: &Scenario) -> PortConfig {
    PortConfig {
        mtu: scenario.mtu,
        offload: scenario.offload,
        completes_after: scenario.completes_after,
        rings: scenario.threads != Threads::Apart,
    }
}

/// Returns the initial socket options of a host.
fn settings_of(scenario: &Scenario, host: usize) -> SocketSettings {
    let settings = SocketSettings::default();
    match scenario.maxseg[host] {
        Some(bytes) => settings.max_segment(bytes),
        None => settings,
    }
}

/// Sets header prediction in a run that is compared with another; both runs make the same call.
fn set_prediction(world: &mut World, host: usize, socket: &Arc<Connection>, behavior: &Behavior) {
    if let Some(on) = behavior.prediction {
        let of = Arc::clone(&world.hosts[host]);
        socket.with_tcb(&of, world.app(host), |tcb, _| tcb.set_header_prediction(on));
    }
}

fn listen_options_of(scenario: &Scenario, host: usize) -> ListenOptions {
    let settings = settings_of(scenario, host)
        .reuse_address(true)
        .fast_open(128)
        // Never reached: this counts every connection, and checks that each is uncounted.
        .max_per_source(u32::MAX);
    ListenOptions { backlog: 128, settings }
}

impl<'a> Play<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        capture: Option<Capture>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mut world = world_of(scenario);
        let start = world.cx.now;
        let network = Network::new(&scenario.paths, ports_of(scenario), scenario.seed, start);
        if let Some(capture) = capture {
            network.capture(capture);
        }
        if let Some(sabotage) = sabotage {
            network.sabotage(sabotage);
        }
        let mut listeners = Vec::new();
        for (index, sysctls) in scenario.hosts.iter().enumerate() {
            let added = world.add_host(HostConfig {
                name: format!("host{index}"),
                devices: vec![DeviceConfig {
                    device: network.port(index),
                    addresses: vec![scenario.version.prefix(index).parse().expect("a prefix")],
                }],
                cores: scenario.cores,
                sysctls: sysctls.clone(),
                ..HostConfig::replay(0)
            });
            added.expect("a valid configuration");
            let local = SocketAddr::new(scenario.version.address(index), PORT);
            let host = Arc::clone(&world.hosts[index]);
            let options = listen_options_of(scenario, index);
            let listener = Listener::listen_with(&host, world.app(index), local, &options);
            listeners.push(listener.expect("a free port"));
        }
        let links = (0..).zip(&scenario.sessions).map(|(number, plan)| Link {
            plan,
            number,
            attempts: 0,
            client: None,
            early: 0,
            connecting_since: start,
            ends: None,
            aborted_at: None,
        });
        let links = links.collect();
        let flows = 0..scenario.datagrams.len();
        let datagrams = flows.map(|flow| Datagrams::new(&mut world, scenario, flow)).collect();
        let dark = scenario.paths.iter().flat_map(|path| &path.changes);
        let dark = dark.filter(|(_, change)| matches!(change, Change::Dark(_)));
        let up_at = start + dark.map(|(at, _)| *at).max().unwrap_or_default();
        let edges = BTreeMap::new();
        let progress = (0, start);
        Self {
            scenario,
            world,
            network,
            listeners,
            links,
            datagrams,
            edges,
            start,
            up_at,
            progress,
            lost: (0, start),
            steps: 0,
            changed: 0,
        }
    }

    /// Plays the scenario. Returns its results and the counters of each host.
    pub(super) fn run(mut self) -> (Outcome, Vec<Snapshot>) {
        loop {
            let change = self.change_settings();
            let mut next = self.settle();
            for _ in 0..TURNS_PER_INSTANT {
                if !self.step_applications() {
                    break;
                }
                next = self.settle();
            }
            if self.is_done() {
                break;
            }
            self.watch();
            let wakes = self.links.iter().filter_map(|link| link.wakes_at(&self.world, self.start));
            let sends = self.datagrams.iter().filter_map(Datagrams::wakes_at);
            let next = wakes.chain(sends).chain(next).chain(change).min();
            let Some(next) = next else { self.stalled("no event is pending") };
            self.world.cx.now = self.world.cx.now.max(next);
        }
        self.end()
    }

    /// Makes the changes that are due. Returns the time of the next one.
    fn change_settings(&mut self) -> Option<Instant> {
        while let Some(change) = self.scenario.changes.get(self.changed) {
            let at = self.start + change.at;
            if at > self.world.cx.now {
                return Some(at);
            }
            let changed = self.world.hosts[change.host].set_sysctl(&change.name, &change.value);
            changed.expect("a setting and a value");
            self.changed += 1;
        }
        None
    }

    fn is_done(&self) -> bool {
        self.links.iter().all(Link::is_done) && self.datagrams.iter().all(Datagrams::is_sent)
    }

    fn step_applications(&mut self) -> bool {
        let mut moved = self.accept();
        let Self { links, datagrams, world, start, scenario, .. } = self;
        for link in links {
            moved |= link.step(world, *start, scenario);
        }
        for flow in datagrams {
            moved |= flow.step(world);
        }
        moved
    }

    /// Assigns each accepted socket to its connection.
    fn accept(&mut self) -> bool {
        let mut moved = false;
        let Self { listeners, links, world, scenario, .. } = self;
        for (index, listener) in listeners.iter().enumerate() {
            while let Ok(socket) = listener.accept() {
                moved = true;
                // A client may use one port for two servers.
                let link = links.iter_mut().find(|link| {
                    let ends = link.client.as_ref().map(|client| (client.local(), client.remote()));
                    link.ends.is_none() && ends == Some((socket.remote(), socket.local()))
                });
                match link {
                    Some(link) => link.begin(world, socket, scenario.seed),
                    // The client has abandoned this attempt.
                    None => {
                        let host = Arc::clone(&world.hosts[index]);
                        socket.abort(&host, world.app(index));
                    }
                }
            }
        }
        moved
    }

    /// Runs the hosts until they have no work, and checks the invariants.
    fn settle(&mut self) -> Option<Instant> {
        let next = self.world.settle();
        self.steps += 1;
        self.look();
        next
    }

    /// Checks the invariants, after every event.
    fn look(&mut self) {
        self.network.check();
        let Self { world, edges, network, datagrams, steps, .. } = self;
        let thorough = *steps % THOROUGH == 0;
        for (index, host) in world.hosts.clone().iter().enumerate() {
            let of_datagrams: u64 = datagrams.iter().map(|flow| flow.charged(world, index)).sum();
            let mut audit = host.check(&mut world.cx, |tuple, now| {
                // A connection that did not exist in the previous step is a new one, even with the
                // same ISS: a segment that was in flight when the server aborted carries its SYN
                // cookie again.
                let before = edges.insert((index, *tuple), (now, *steps));
                if let Some((before, step)) = before
                    && before.iss == now.iss
                    && step + 1 == *steps
                {
                    now.check_after(&before);
                }
            });
            audit.wmem_alloc += of_datagrams;
            let below = network.charged(index);
            if audit.is_complete && audit.wmem_alloc != below {
                // The rest is queued in front of the device. `tx_queue_stats` makes the queues
                // follow their settings, and one whose discipline changes drops its packets, so the
                // account is read again after that.
                let queues = host.tx_queue_stats(&mut world.cx);
                let waiting: u64 = queues.iter().map(|row| row.stats.qlen).sum();
                let before = core::mem::replace(&mut audit, host.check(&mut world.cx, |_, _| ()));
                audit.wmem_alloc +=
                    datagrams.iter().map(|flow| flow.charged(world, index)).sum::<u64>();
                let below = network.charged(index);
                // Dropped packets have completed: a socket that they had throttled is in the TSQ
                // list of its core, charged as one byte.
                let dropped = audit.wmem_alloc < before.wmem_alloc;
                let listed = if dropped { audit.connections as u64 } else { 0 };
                let rest = audit.wmem_alloc.checked_sub(below);
                assert!(
                    rest.is_some_and(|rest| rest <= listed || waiting > 0),
                    "{before:?}, {audit:?}, {below} in the device"
                );
            }
            if thorough {
                recycling::check_caches(host, &audit);
            }
        }
        if thorough {
            recycling::check_deferred(world);
        }
    }

    /// Detects a stall: data flows while the network passes any frame. A connection whose timer has
    /// backed off to two minutes sends three segments in [`STALL`], and among thousands of
    /// connections one loses all three by chance. Frames lost by chance extend the limit, up to a
    /// bound.
    fn watch(&mut self) {
        let now = self.world.cx.now;
        let moved = self.links.iter().map(Link::progress).sum();
        if moved != self.progress.0 {
            self.progress = (moved, now);
        }
        let lost = self.network.lost_by_chance();
        if lost != self.lost.0 {
            self.lost = (lost, now);
        }
        let begin = self.scenario.sessions.iter().map(|session| session.at).max();
        let since = self.progress.1.max(self.up_at).max(self.start + begin.unwrap_or_default());
        let excused = since.max(self.lost.1.min(since + 3 * STALL));
        if now.saturating_duration_since(excused) > STALL {
            self.stalled("no progress");
        }
    }

    fn stalled(&self, what: &str) -> ! {
        let waiting = self.links.iter().filter(|link| !link.is_done());
        let waiting: Vec<_> = waiting.map(Link::summary).collect();
        panic!("{what} at {:?}: {}", self.world.elapsed(), waiting.join("; "));
    }

    /// Checks that every stream is complete, and that nothing is left.
    fn end(mut self) -> (Outcome, Vec<Snapshot>) {
        let mut counted = Vec::new();
        let took = self.world.elapsed();
        let mut outcome = Outcome { took, steps: self.steps, ..Outcome::default() };
        for link in &self.links {
            outcome.bytes += link.progress();
            if link.may_break() {
                outcome.aborted += 1;
            } else {
                link.ends.iter().flatten().for_each(End::check_complete);
            }
        }
        self.links.clear();
        let hosts = self.world.hosts.clone();
        let listeners = core::mem::take(&mut self.listeners);
        for (index, listener) in listeners.iter().enumerate() {
            listener.close(&hosts[index], self.world.app(index));
        }
        self.world.pass(Duration::from_secs(1200));
        self.look();
        let Self { datagrams, world, .. } = &mut self;
        for flow in datagrams {
            flow.step(world);
            outcome.datagrams_received += flow.arrivals();
            flow.close(world);
        }
        outcome.datagrams_sent =
            self.scenario.datagrams.iter().map(|flow| u64::from(flow.count)).sum();
        self.datagrams.clear();
        assert_eq!(self.network.check(), 0, "frames still on their way");
        for (index, host) in hosts.iter().enumerate() {
            assert_eq!(host.established_len(), 0, "{} still has sockets", host.name());
            assert_eq!(listeners[index].sources(), 0, "{} still counts a source", host.name());
            let counters = host.counters();
            assert_eq!(counters.tcp(tcp::Counter::TcpCurrEstab), 0, "TcpCurrEstab is not zero");
            let received = counters.stack(Counter::SoftnetProcessed);
            assert_eq!(received, self.network.delivered(index), "frames received");
            crate::hostile::counter_sums::check_layers(&counters);
            let context = self.scenario.hosts[index].rx_context as usize;
            outcome.prequeued[context] += counters.tcp(tcp::Counter::TcpExtTCPPrequeued);
            outcome.backlogged += counters.stack(Counter::SocketBacklogQueued);
            recycling::add_caches(&mut outcome.caches, &counters);
            assert_eq!(host.tcp_memory_pages(), 0, "pages are still charged");
            assert_eq!(host.udp_memory_pages(), 0, "pages are still charged to datagrams");
            assert_eq!(self.network.charged(index), 0, "the device holds something");
            counted.push(counters);
        }
        outcome.frames = self.network.counts();
        drop((hosts, listeners));
        assert_eq!(self.world.packets_alive(), 0, "packets leaked");
        outcome.pool = recycling::check_end(&self.world);
        (outcome, counted)
    }
}

impl Link<'_> {
    fn step(&mut self, world: &mut World, start: Instant, scenario: &Scenario) -> bool {
        if self.is_done() || world.cx.now < start + self.plan.at {
            return false;
        }
        if self.ends.is_some() {
            return self.exchange(world);
        }
        match self.client.take() {
            Some(client)
                if client.readiness().intersects(Readiness::ERROR | Readiness::HUP)
                    || world.cx.now - self.connecting_since >= CONNECT_TIMEOUT =>
            {
                let host = Arc::clone(&world.hosts[self.plan.client]);
                client.close(&host, world.app(self.plan.client));
                true
            }
            Some(client) => {
                self.client = Some(client);
                false
            }
            None => {
                self.attempts += 1;
                self.connecting_since = world.cx.now;
                assert!(
                    self.attempts <= ATTEMPTS_MAX,
                    "no connection: {:?}, seed {}",
                    self.plan,
                    scenario.seed
                );
                self.connect(world, scenario);
                true
            }
        }
    }

    fn connect(&mut self, world: &mut World, scenario: &Scenario) {
        let Session { client, server, early, up, .. } = self.plan;
        let host = Arc::clone(&world.hosts[*client]);
        let remote = SocketAddr::new(scenario.version.address(*server), PORT);
        // A connection whose application writes nothing would never send its deferred SYN.
        let fast_open = *early && up.length > 0;
        let settings = settings_of(scenario, *client).fast_open_connect(fast_open);
        let options = ConnectOptions { local: None, settings };
        let socket = Connection::connect_with(&host, world.app(*client), remote, &options);
        let socket = socket.expect("a route and a port");
        self.early = 0;
        if fast_open {
            // A SYN that has a cookie waits for this write. A SYN that requests a cookie has
            // already left, and the write would block.
            let (there, _) = self.patterns(scenario.seed);
            let bytes: Vec<u8> =
                (0..up.length.min(u64::from(up.write_max))).map(|at| there.byte(at)).collect();
            match socket.send(&host, world.app(*client), &[IoSlice::new(&bytes)]) {
                Ok(taken) => self.early = taken as u64,
                Err(Errno::EAGAIN) => {}
                Err(error) => panic!("the first write: {error}"),
            }
        }
        set_prediction(world, *client, &socket, up);
        self.client = Some(socket);
    }

    /// Returns the streams of the client and of the server.
    fn patterns(&self, seed: u64) -> (Pattern, Pattern) {
        let number = seed.wrapping_mul(1_000_003).wrapping_add(self.number);
        (Pattern(number), Pattern(!number))
    }

    /// Starts the applications: both sockets exist.
    fn begin(&mut self, world: &mut World, server: Arc<Connection>, seed: u64) {
        let Some(client) = self.client.clone() else { return };
        let Session { up, down, .. } = self.plan;
        set_prediction(world, self.plan.server, &server, down);
        let number = seed.wrapping_mul(1_000_003).wrapping_add(self.number);
        let (there, back) = self.patterns(seed);
        let early = self.early;
        self.ends = Some([
            End::with_sent(
                early,
                (self.plan.client, client),
                up.clone(),
                there,
                (back, down.length),
                number.wrapping_add(1 << 40),
            ),
            End::new(
                (self.plan.server, server),
                down.clone(),
                back,
                (there, up.length),
                number.wrapping_add(1 << 41),
            ),
        ]);
    }

    fn exchange(&mut self, world: &mut World) -> bool {
        let Some(ends) = &mut self.ends else { return false };
        let mut moved = false;
        for end in ends.iter_mut() {
            moved |= end.step(world);
        }
        if ends.iter().any(End::has_aborted) {
            let since = *self.aborted_at.get_or_insert(world.cx.now);
            if world.cx.now - since >= RESET_WAIT_MAX {
                ends.iter_mut().for_each(|end| end.close(world));
                moved = true;
            }
        }
        moved
    }

    fn is_done(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.iter().all(End::is_done))
    }

    /// Whether one of the applications plans to abort: the other then receives only a prefix of the
    /// stream.
    fn may_break(&self) -> bool {
        let abrupt = |ending| matches!(ending, Ending::Abort(_));
        abrupt(self.plan.up.ending) || abrupt(self.plan.down.ending)
    }

    /// Describes the state of the connection for a message.
    fn summary(&self) -> String {
        let Self { number, attempts, client, ends, .. } = self;
        let local = client.as_ref().map(|client| client.local());
        let ends: Vec<_> = ends.iter().flatten().map(End::summary).collect();
        format!("connection {number} of {local:?}, attempt {attempts}: {ends:?}")
    }

    fn progress(&self) -> u64 {
        let moved: u64 = self.ends.iter().flatten().map(End::moved).sum();
        moved + u64::from(self.attempts)
    }

    fn wakes_at(&self, world: &World, start: Instant) -> Option<Instant> {
        let now = world.cx.now;
        if self.is_done() {
            return None;
        }
        let begin = Some(start + self.plan.at).filter(|at| *at > now);
        let reset_wait = self.aborted_at.map(|at| at + RESET_WAIT_MAX).filter(|at| *at > now);
        let timeout = self.connecting_since + CONNECT_TIMEOUT;
        let timeout = Some(timeout).filter(|at| self.ends.is_none() && *at > now);
        let ends = self.ends.iter().flatten().filter_map(|end| end.wakes_at(now));
        ends.chain(begin).chain(reset_wait).chain(timeout).min()
    }
}
