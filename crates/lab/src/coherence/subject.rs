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
    io::{IoSlice, IoSliceMut},
    time::{Duration, Instant as Clock},
};

use quietline::sans_io::{Cx, Errno, Reader, Region};

use crate::experiment::Error;
use world::{MESSAGE, World};

mod world;

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
