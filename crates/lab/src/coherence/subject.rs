//! The programs whose memory accesses are traced: fixed work of this stack, divided into the parts
//! that two CPUs do.
//!
//! Above: the test `accesses`, which runs a subject under valgrind, and the calibration, which runs
//! it natively. Below: `quietline::sans_io`.
//!
//! One thread does the parts of the peer, of CPU 0 and of CPU 1 in turn. The trace of valgrind does
//! not say which thread an access belongs to, so that with several threads their hand-over would
//! lie between the accesses. Each CPU has its own running context. The stack of the one thread and
//! its thread-local memory, which each CPU of a real machine has for itself, are regions with the
//! name [`OWN`], and are not shared lines. The peer is a host of its own, and its accesses are not
//! part of the trace.
//!
//! Time stands still except for one millisecond between two rounds, and random numbers have a
//! seed: a run repeats.

use std::{
    cell::Cell,
    io::{IoSlice, IoSliceMut},
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use quietline::sans_io::{
    Connection, Cx, DeviceConfig, Errno, Host, HostConfig, Instant, Listener, Memory, Reader,
    Region,
};

use crate::experiment::Error;
use device::CopyWire;

mod device;

/// Rounds before the traced ones: pools, tables and congestion windows settle.
const WARM: u32 = 24;

/// Work of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// CPU 0 runs core 0 and the application of a connection of that core; CPU 1 does the same for
    /// core 1.
    Cores,
    /// CPU 0 runs the core, CPU 1 the application of the same connection: a request of 64 bytes and
    /// its response.
    Contexts,
    /// CPU 0 runs the core, CPU 1 is a reader that waits for data in one direction.
    Waiting,
    /// CPU 0 sends a request over loopback, CPU 1 answers it.
    Loopback,
}

/// A traced program, by its name in `paths.txt` and in docs/model.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name.
    pub name: &'static str,
    work: Work,
    settings: &'static [(&'static str, &'static str)],
}

const REF: [(&str, &str); 2] =
    [("net.quietline.rx_context", "prequeue_ref"), ("net.quietline.rx_dst_mode", "force")];
const DROP: [(&str, &str); 2] = [
    ("net.quietline.rx_context", "prequeue_drop"),
    ("net.quietline.rx_dst_mode", "optimistic_drop"),
];

/// The settings of a route entry that packets count references to and check.
macro_rules! counted {
    ($layout:literal, $count:literal) => {
        &[
            ("net.quietline.dst_layout", $layout),
            ("net.quietline.dst_ref", $count),
            ("net.quietline.dst_check", "entry"),
        ]
    };
}

/// Every subject.
pub const SUBJECTS: [Subject; 13] = [
    Subject { name: "cores", work: Work::Cores, settings: &[] },
    Subject { name: "contexts", work: Work::Contexts, settings: &[] },
    Subject { name: "loopback", work: Work::Loopback, settings: &[] },
    Subject { name: "prequeue_ref", work: Work::Waiting, settings: &REF },
    Subject { name: "prequeue_drop", work: Work::Waiting, settings: &DROP },
    Subject { name: "bh", work: Work::Waiting, settings: &[] },
    Subject {
        name: "packed cas",
        work: Work::Loopback,
        settings: counted!("packed", "cas_inc_not_zero"),
    },
    Subject {
        name: "filled cas",
        work: Work::Loopback,
        settings: counted!("filled", "cas_inc_not_zero"),
    },
    Subject { name: "packed rcuref", work: Work::Loopback, settings: counted!("packed", "rcuref") },
    Subject { name: "filled rcuref", work: Work::Loopback, settings: counted!("filled", "rcuref") },
    Subject {
        name: "recycle none",
        work: Work::Contexts,
        settings: &[("net.quietline.skb_recycle", "none")],
    },
    Subject {
        name: "recycle socket_one",
        work: Work::Contexts,
        settings: &[("net.quietline.skb_recycle", "socket_one")],
    },
    Subject {
        name: "recycle per_core_defer",
        work: Work::Contexts,
        settings: &[("net.quietline.skb_recycle", "per_core_defer")],
    },
];

/// Receiver of what a run reports.
pub trait Watch {
    /// The structures of the run, before its first traced round.
    fn regions(&self, regions: &[Region]);
    /// Accesses from here on belong to a CPU; `None`: to no CPU.
    fn part(&self, cpu: Option<u8>);
}

impl Subject {
    /// The subject of a name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        SUBJECTS.into_iter().find(|subject| subject.name == name)
    }

    /// Runs `rounds` rounds after the warm-up; returns the time that both CPUs used for a round.
    pub fn run(&self, rounds: u32, watch: &dyn Watch) -> Result<Duration, Error> {
        let world = World::new(self)?;
        let mut total = Duration::ZERO;
        let mut hands = [0, 1].map(|cpu| Box::new(Hand::new(&world, cpu)));
        let mut peer = Box::new(world.context(7));
        for round in 0..WARM + rounds {
            if round == WARM {
                watch.regions(&world.regions(&mut peer));
            }
            for step in [Step::Request, Step::Response] {
                peer.now = World::time(round);
                world.peer(self.work, step, &mut peer);
                for hand in &mut hands {
                    hand.cx.now = World::time(round);
                    let begin = Clock::now();
                    hand.work(self.work, step, (round >= WARM).then_some(watch));
                    if round >= WARM {
                        total += begin.elapsed();
                    }
                }
            }
        }
        Ok(total / rounds)
    }
}

/// The two steps of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Request,
    Response,
}

/// Name of regions that each CPU has for itself.
pub const OWN: &str = "own";

/// Memory of the calling thread: a part of its stack, and its thread-local memory.
fn own_regions() -> [Region; 2] {
    const STACK_BYTES: usize = 1 << 20;
    const THREAD_BYTES: usize = 16 << 10;
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    let around = |address: usize, bytes: usize| Region {
        name: OWN.to_owned(),
        address: address.saturating_sub(bytes / 2),
        bytes,
    };
    let local = Cell::new(0_u8);
    let stack = std::ptr::from_ref(&local).addr();
    let thread = HERE.with(|here| std::ptr::from_ref(here).addr());
    [around(stack, STACK_BYTES), around(thread, THREAD_BYTES)]
}

/// Two hosts, or one for loopback, and their connections.
struct World {
    memory: Memory,
    /// The host that is traced.
    host: Arc<Host>,
    peer: Arc<Host>,
    /// Ends of each connection: that of the peer (over loopback: of CPU 0), and the traced one.
    ends: Vec<(Arc<Connection>, Arc<Connection>)>,
    /// Whether both ends of a connection are ends of the traced host.
    is_loopback: bool,
    /// The traced host's device.
    wire: Arc<CopyWire>,
}

const START: Instant = Instant::from_secs(1000);
const MESSAGE: [u8; 64] = [7; 64];
/// Connections that are opened until two cores have one.
const CONNECTIONS_MAX: usize = 32;

impl World {
    fn new(subject: &Subject) -> Result<Self, Error> {
        let memory = Memory::new(64 << 20);
        let (left, right) = CopyWire::pair(2);
        let host = |device: Arc<CopyWire>, last: u64, settings: &[(&str, &str)]| {
            let addresses = vec![format!("10.0.0.{last}/24").parse().expect("an address")];
            let devices = vec![DeviceConfig { device, addresses }];
            let mut config = HostConfig { devices, cores: 2, ..HostConfig::replay(last) };
            for (name, value) in settings {
                config.sysctls.set(name, value)?;
            }
            Ok::<_, Error>(Host::new(&memory, config)?)
        };
        let wire = Arc::clone(&right);
        let (peer, host) = (host(left, 1, &[])?, host(right, 2, subject.settings)?);
        let is_loopback = subject.work == Work::Loopback;
        let mut world = Self { memory, host, peer, ends: Vec::new(), is_loopback, wire };
        let mut cx = world.context(9);
        world.open(subject.work, &mut cx)?;
        Ok(world)
    }

    /// Opens connections: one, or one of each core.
    fn open(&mut self, work: Work, cx: &mut Cx) -> Result<(), Error> {
        let local = "10.0.0.2:80".parse().expect("an address");
        let listener = Listener::listen(&self.host, cx, local, 64)?;
        let from = if work == Work::Loopback { &self.host } else { &self.peer };
        let wanted = if work == Work::Cores { 2 } else { 1 };
        for _ in 0..CONNECTIONS_MAX {
            let near = Connection::connect(from, cx, None, local)?;
            let far = loop {
                let next = self.settle(cx);
                match (listener.accept(), next) {
                    (Ok(far), _) => break far,
                    (Err(_), Some(next)) => cx.now = cx.now.max(next),
                    (Err(_), None) => return Err("no connection".into()),
                }
            };
            self.settle(cx);
            near.with_tcb(from, cx, |tcb, _| tcb.set_nodelay(true));
            far.with_tcb(&self.host, cx, |tcb, _| tcb.set_nodelay(true));
            let core = far.incoming_core();
            if usize::from(core.0) == self.ends.len() || work == Work::Loopback {
                self.ends.push((near, far));
            }
            if self.ends.len() == wanted {
                return Ok(());
            }
        }
        Err("no connection of each core".into())
    }

    /// Runs both hosts until neither has work at this moment; returns the time of the next work.
    fn settle(&self, cx: &mut Cx) -> Option<Instant> {
        loop {
            let hosts = [&self.peer, &self.host];
            match hosts.into_iter().filter_map(|host| host.poll(cx)).min() {
                Some(next) if next <= cx.now => {}
                next => return next,
            }
        }
    }

    fn context(&self, seed: u64) -> Cx {
        let mut cx = Cx::replay(&self.memory, seed);
        cx.now = START;
        cx
    }

    /// Time of a round. The handshakes end within the second before the first one.
    fn time(round: u32) -> Instant {
        START + Duration::from_secs(1) + Duration::from_millis(u64::from(round))
    }

    fn regions(&self, cx: &mut Cx) -> Vec<Region> {
        let mut regions = self.host.memory_map();
        regions.extend(own_regions());
        regions.extend(self.wire.memory_map());
        for (near, far) in &self.ends {
            regions.extend(far.memory_map(&self.host, cx));
            if self.is_loopback {
                regions.extend(near.memory_map(&self.host, cx));
            }
        }
        regions
    }

    /// The peer's part of a step: it sends a request, or takes the response.
    fn peer(&self, work: Work, step: Step, cx: &mut Cx) {
        if work == Work::Loopback {
            return;
        }
        for (near, _) in &self.ends {
            if step == Step::Request {
                near.send(&self.peer, cx, &[IoSlice::new(&MESSAGE)]).expect("room");
            }
        }
        let _ = self.peer.poll(cx);
        let mut buffer = [0; MESSAGE.len()];
        for (near, _) in &self.ends {
            match near.recv(&self.peer, cx, &mut buffer, false) {
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(error) => panic!("response: {error}"),
            }
        }
    }
}

/// A traced CPU: its context, and the reader that waits on it.
struct Hand<'w> {
    world: &'w World,
    cpu: u8,
    cx: Cx,
    reader: Reader,
    buffer: [u8; MESSAGE.len()],
}

impl<'w> Hand<'w> {
    fn new(world: &'w World, cpu: u8) -> Self {
        let cx = world.context(u64::from(cpu) + 20);
        let buffer = [0; MESSAGE.len()];
        let mut hand = Self { world, cpu, cx, reader: Reader::new(), buffer };
        // Loopback delivers on the core that the thread has polled last.
        hand.run_core(cpu);
        hand
    }

    /// Does this CPU's part of a step, and marks it if there is a watch.
    fn work(&mut self, work: Work, step: Step, watch: Option<&dyn Watch>) {
        let does = match (step, work, self.cpu) {
            (Step::Request, Work::Cores, 0) => Self::serve_core_0,
            (Step::Request, Work::Cores, _) => Self::serve_core_1,
            (Step::Request, Work::Contexts | Work::Waiting, 0) => Self::run_core_0,
            (Step::Request, Work::Contexts | Work::Loopback, 1) => Self::answer_first,
            (Step::Request, Work::Waiting, _) => Self::read_and_wait,
            (Step::Request, Work::Loopback, _) => Self::ask,
            (Step::Response, Work::Loopback, 0) => Self::take,
            _ => return,
        };
        if let Some(watch) = watch {
            watch.part(Some(self.cpu));
        }
        does(self);
        if let Some(watch) = watch {
            watch.part(None);
        }
    }

    fn serve_core_0(&mut self) {
        self.run_core(0);
        self.answer(0);
    }

    fn serve_core_1(&mut self) {
        self.run_core(1);
        self.answer(1);
    }

    fn run_core_0(&mut self) {
        self.run_core(0);
    }

    fn answer_first(&mut self) {
        self.answer(0);
    }

    fn run_core(&mut self, core: u8) {
        let host = &self.world.host;
        let _ = host.poll_core(&mut self.cx, host.cores()[usize::from(core)].id());
    }

    /// Reads a request and sends the response.
    fn answer(&mut self, connection: usize) {
        let (world, socket) = (self.world, &self.world.ends[connection].1);
        let read = socket.recv(&world.host, &mut self.cx, &mut self.buffer, false);
        assert_eq!(read, Ok(MESSAGE.len()), "a request");
        let sent = socket.send(&world.host, &mut self.cx, &[IoSlice::new(&MESSAGE)]);
        assert_eq!(sent, Ok(MESSAGE.len()), "room");
    }

    /// Reads what has arrived and waits for more, as a thread that is blocked in `recv` does.
    fn read_and_wait(&mut self) {
        let socket = &self.world.ends[0].1;
        loop {
            let mut buffers = [IoSliceMut::new(&mut self.buffer)];
            let (host, cx) = (&self.world.host, &mut self.cx);
            match socket.recv_or_wait(host, cx, &mut self.reader, &mut buffers) {
                Ok(_) => {}
                Err(Errno::EAGAIN) => return,
                Err(error) => panic!("recv: {error}"),
            }
        }
    }

    /// The client over loopback: a request, which this context's softirq delivers.
    fn ask(&mut self) {
        let (host, socket) = (&self.world.host, &self.world.ends[0].0);
        let sent = socket.send(host, &mut self.cx, &[IoSlice::new(&MESSAGE)]);
        assert_eq!(sent, Ok(MESSAGE.len()), "room");
    }

    /// The client over loopback: the response.
    fn take(&mut self) {
        let (host, socket) = (&self.world.host, &self.world.ends[0].0);
        let read = socket.recv(host, &mut self.cx, &mut self.buffer, false);
        assert_eq!(read, Ok(MESSAGE.len()), "a response");
    }
}
