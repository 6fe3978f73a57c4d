//! The world of one run: memory, time, hosts.

use std::{sync::Arc, time::Duration};

use pkt::Instant;
use stack::{
    Cx, Memory, Secrets,
    base::config_error::ConfigError,
    device::{Wire, WireConfig},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
};

use crate::suite::{self, Version};

/// Packet memory of a simulated world: enough for any run, small enough that a leak is noticed.
const MEMORY_BYTES_MAX: usize = 256 << 20;

/// Smallest MTU of IPv6, and the difference between the lengths of the headers.
const MTU_MIN_V6: u32 = 1280;
const HEADER_DIFFERENCE: u32 = 20;

/// Start of virtual time: not zero, so that code which treats zero as "never" fails a test.
const START: Instant = Instant::from_secs(1000);

/// The error of a run that did not reach its goal: no timer is armed, or the time limit has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled {
    /// Virtual time since the start of the world.
    pub after: Duration,
}

/// The threads of one host, each with packet memory of its own.
#[derive(Debug)]
struct Threads {
    /// Thread of the applications.
    app: Cx,
    /// Worker of each core.
    cores: Vec<Cx>,
}

/// Everything that exists in one run.
#[derive(Debug)]
pub struct World {
    memory: Memory,
    /// First thread of the world, and the only one unless the hosts [have their
    /// own](Self::with_threads). Its `now` is virtual time.
    pub cx: Cx,
    /// Hosts in the order they were added.
    pub hosts: Vec<Arc<Host>>,
    /// Threads of each host, in a world that has them.
    threads: Vec<Threads>,
    has_threads: bool,
    seed: u64,
    /// IP version of the hosts that [`join`](Self::join) has added last.
    pub(crate) version: Version,
}

impl World {
    /// Makes an empty world.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_memory(seed, MEMORY_BYTES_MAX)
    }

    /// Makes an empty world with this much packet memory.
    #[must_use]
    pub fn with_memory(seed: u64, bytes_max: usize) -> Self {
        let memory = Memory::new(bytes_max);
        let mut cx = Cx::replay(&memory, seed);
        cx.now = START;
        Self {
            memory,
            cx,
            hosts: Vec::new(),
            threads: Vec::new(),
            has_threads: false,
            seed,
            version: Version::V4,
        }
    }

    /// Makes an empty world in which every host has threads of its own: one for its applications,
    /// and a worker for each core. A packet allocated by one thread is freed by another, as on a
    /// machine with several CPUs.
    #[must_use]
    pub fn with_threads(seed: u64) -> Self {
        Self { has_threads: true, ..Self::new(seed) }
    }

    /// Sets sysctls of a host by their Linux names.
    ///
    /// # Panics
    /// When a setting is refused: a mistake of the test.
    pub fn set(&self, host: usize, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            self.hosts[host].set_sysctl(name, value).expect("a setting");
        }
    }

    /// Adds a host and returns its index.
    ///
    /// # Errors
    /// When the configuration is refused.
    pub fn add_host(&mut self, config: HostConfig) -> Result<usize, ConfigError> {
        let seed = self.seed.wrapping_add(self.hosts.len() as u64 + 1);
        let host =
            Host::new(&self.memory, HostConfig { secrets: Secrets::replay(seed), ..config })?;
        if self.has_threads {
            let thread = |number| Cx::replay(&self.memory, seed.wrapping_add(number << 32));
            let cores = (1..=host.cores().len() as u64).map(thread).collect();
            self.threads.push(Threads { app: thread(0), cores });
        }
        self.hosts.push(host);
        Ok(self.hosts.len() - 1)
    }

    /// Makes a world of two hosts, joined by a wire ([`join`](Self::join)).
    ///
    /// # Errors
    /// When the wire's configuration is refused.
    pub fn pair(seed: u64, wire: &WireConfig) -> Result<Self, ConfigError> {
        let mut world = Self::new(seed);
        world.join(wire)?;
        Ok(world)
    }

    /// Adds two hosts, 10.0.0.1 and 10.0.0.2, joined by a wire. In the suites that run over IPv6
    /// ([`suite::version`]) they are fd00::1 and fd00::2, and a wire that IPv6 can use has an MTU
    /// that is larger by the difference of the headers, so that segments have the same size.
    ///
    /// # Errors
    /// When the wire's configuration is refused.
    pub fn join(&mut self, wire: &WireConfig) -> Result<(), ConfigError> {
        let mut wire = wire.clone();
        let mut version = suite::version();
        // A router that a wire emulates reports its MTU over IPv4 only.
        let has_router = wire.forward.path_mtu.is_some() || wire.backward.path_mtu.is_some();
        if wire.mtu < MTU_MIN_V6 || has_router {
            version = Version::V4;
        }
        if version == Version::V6 {
            wire.mtu += HEADER_DIFFERENCE;
        }
        self.join_with(version, &wire)
    }

    /// Adds two hosts of this IP version, joined by a wire.
    ///
    /// # Errors
    /// When the wire's configuration is refused.
    pub fn join_with(&mut self, version: Version, wire: &WireConfig) -> Result<(), ConfigError> {
        self.version = version;
        let (left, right) = Wire::pair(wire)?;
        for (index, end) in [left, right].into_iter().enumerate() {
            let address = version.prefix(index);
            self.add_host(HostConfig {
                name: format!("host{index}"),
                devices: vec![DeviceConfig {
                    device: end,
                    addresses: vec![address.parse().expect("an address with its prefix")],
                }],
                cores: 1,
                ..HostConfig::replay(0)
            })?;
        }
        Ok(())
    }

    /// Returns the IP version of the hosts that [`join`](Self::join) has added last.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the memory that contexts of other threads must share with this world.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the thread of the applications of host number `host`, at the current time.
    pub fn app(&mut self, host: usize) -> &mut Cx {
        match self.threads.get_mut(host) {
            Some(threads) => {
                threads.app.now = self.cx.now;
                &mut threads.app
            }
            None => &mut self.cx,
        }
    }

    /// Virtual time since the start of the world.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.cx.now - START
    }

    /// Runs every host until none has work at this moment; returns the time of the next work.
    pub fn settle(&mut self) -> Option<Instant> {
        /// Rounds after which a world that still has work counts as a livelock.
        const ROUNDS_MAX: usize = 100_000;
        for _ in 0..ROUNDS_MAX {
            self.run_cores();
            // Deadlines are read after all hosts have run: a frame of one may be due at another
            // that was polled earlier.
            let next = self.hosts.iter().filter_map(|host| host.next_deadline()).min();
            match next {
                Some(at) if at <= self.cx.now => {}
                next => return next,
            }
        }
        panic!("seed {}: work does not end at {:?}", self.seed, self.elapsed());
    }

    /// Runs every core of every host until it has no work.
    fn run_cores(&mut self) {
        if !self.has_threads {
            for host in &self.hosts {
                let _ = host.poll(&mut self.cx);
            }
        }
        for (host, threads) in self.hosts.iter().zip(&mut self.threads) {
            for (core, cx) in host.cores().iter().zip(&mut threads.cores) {
                cx.now = self.cx.now;
                let _ = core.try_run(host, cx);
                cx.do_softirq();
            }
        }
    }

    /// Calls `apps` at every event until it returns true.
    ///
    /// # Errors
    /// [`Stalled`] when no timer is armed or `limit` of virtual time has passed.
    pub fn run(
        &mut self,
        limit: Duration,
        mut apps: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), Stalled> {
        /// Turns of the applications before time moves on: one application may wait for an action
        /// of another.
        const TURNS_PER_INSTANT: usize = 4;
        let end = self.cx.now + limit;
        loop {
            let mut next = None;
            for _ in 0..TURNS_PER_INSTANT {
                if apps(self) {
                    return Ok(());
                }
                next = self.settle();
            }
            match next {
                Some(next) if next <= end => self.cx.now = self.cx.now.max(next),
                // The last turn may have delivered the awaited data.
                _ if apps(self) => return Ok(()),
                _ => return Err(Stalled { after: self.elapsed() }),
            }
        }
    }

    /// Lets virtual time pass and runs the work that becomes due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.cx.now + time;
        while let Some(next) = self.settle() {
            if next > end {
                break;
            }
            self.cx.now = self.cx.now.max(next);
        }
        self.cx.now = end;
        self.settle();
    }

    /// Returns the number of live packets, after all grace periods have ended and every packet has
    /// returned to its pool. Zero when no socket and no device holds one.
    pub fn packets_alive(&mut self) -> i64 {
        for _ in 0..4 {
            self.memory.rcu.reclaim();
        }
        self.cx.pool.drain_returns();
        for Threads { app, cores } in &mut self.threads {
            for cx in cores.iter_mut().chain([app]) {
                cx.pool.drain_returns();
            }
        }
        self.memory.packets.balance()
    }
}
