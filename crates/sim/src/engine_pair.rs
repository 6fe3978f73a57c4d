//! Two engines and an adversary: a string of bytes decides what happens to one connection and its
//! segments.
//!
//! Below: the fuzz target `engine`, and the tests that replay its corpus. No stack, no IP: segments
//! are values that the adversary drops, reorders, repeats, edits and forges, while it calls the
//! applications' functions, changes options and lets time pass. Any string is a valid input.
//!
//! Requirements: no panic; after every step the invariants of both control blocks hold and their
//! sequence numbers only grow (`Tcb::check_after_output`); memory stays below the limits of the
//! buffers; the engines do not exchange segments endlessly at one instant. As long as no segment
//! was edited or forged, the data read equals the data written, and all of it arrives once the
//! network delivers. At the end no packet is left.
//!
//! Not here: whole hosts against one peer (`hostile`), many connections (`scenario`).

mod adversary;
mod engine;

use std::{cell::RefCell, collections::VecDeque, time::Duration};

use pkt::{Domain, DomainConfig, Instant};
use stack::sysctl::Sysctls;
use tcp::{Edges, State, TcpConfig};

use self::engine::{Engine, Segment};
use crate::{
    apps::Pattern,
    hostile::input::Input,
    modes::{self, Settings},
};

/// Steps of one run.
const STEPS_MAX: usize = 600;

/// Segments that may be in flight in one direction; beyond that the oldest is dropped.
const IN_FLIGHT_MAX: usize = 512;

/// Memory of both engines: one generous size, and one small enough that allocation failures occur.
const MEMORY_BYTES: [usize; 2] = [8 << 20, 512 << 10];

/// Memory that a thread keeps for its next brief run.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Propagation delay while the network delivers everything.
const DELAY: Duration = Duration::from_millis(5);

/// Events of an epilogue: enough for every byte that a run can have written, with back-off.
const EPILOGUE_EVENTS_MAX: usize = 100_000;

/// The same after forged segments, where delivery is not required: an end without a reader may
/// answer window probes without end.
const EPILOGUE_EVENTS_FORGED_MAX: usize = 3000;

/// Events at one instant above which the two engines count as exchanging segments endlessly.
const EVENTS_AT_ONCE_MAX: usize = 5000;

/// Segments delivered and timers run in a brief run, of which a fuzzer makes some thousand per
/// second. Longer runs are mostly bulk transfer: the corpus is also played without this bound
/// (`tests/engine_pair.rs`).
const BRIEF_EVENTS_MAX: usize = 150;

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether both ends have reached ESTABLISHED.
    pub established: bool,
    /// Bytes that both applications have read.
    pub received: u64,
    /// Segments that both engines have sent.
    pub sent: u64,
    /// Segments that were edited or forged.
    pub forged: u64,
    /// Whether all written bytes were read and both streams ended.
    pub complete: bool,
}

/// The state of one run.
struct EnginePair<'a> {
    input: Input<'a>,
    now: Instant,
    engines: [Engine; 2],
    /// Segments in flight to engine 0 and to engine 1, in the order they were sent.
    wires: [VecDeque<Segment>; 2],
    edges: [Option<Edges>; 2],
    domain: Domain,
    /// Bytes of memory that the domain had allocated before this run.
    bytes_before: usize,
    little_memory: bool,
    /// An ICMP error ended or shrank something, or an application closed early.
    broken: bool,
    /// Remaining segment deliveries and timer runs.
    events_left: usize,
    outcome: Outcome,
}

/// Plays `input` in the modes that the environment selects.
///
/// # Panics
/// When an engine violates a requirement of the module head.
pub fn run(input: &[u8]) -> Outcome {
    run_in(input, &modes::from_environment())
}

/// Plays the beginning of `input` in bounded time: for fuzzers.
///
/// # Panics
/// When an engine violates a requirement of the module head.
pub fn run_brief(input: &[u8]) -> Outcome {
    thread_local! {
        static CONFIG: TcpConfig = config(&modes::from_environment());
    }
    let domain = kept(input);
    CONFIG.with(|config| play(input, config, domain, BRIEF_EVENTS_MAX))
}

/// Returns the packet memory that the thread keeps from one brief run to the next, as long as it is
/// small: allocating it from the system takes longer than many runs. A run with small memory gets
/// its own, so that its allocations fail at the same points in every replay.
fn kept(input: &[u8]) -> Domain {
    thread_local! {
        static KEPT: RefCell<Domain> = RefCell::new(memory(false));
    }
    if has_little_memory(input.first().copied().unwrap_or(0)) {
        return memory(true);
    }
    KEPT.with_borrow_mut(|domain| {
        if domain.live_bytes() > KEPT_BYTES_MAX {
            *domain = memory(false);
        }
        domain.clone()
    })
}

const fn has_little_memory(mode: u8) -> bool {
    mode & 1 != 0
}

fn memory(little: bool) -> Domain {
    Domain::new(DomainConfig { max_bytes: MEMORY_BYTES[usize::from(little)] })
}

/// Plays `input` to engines with the TCP part of `settings`.
///
/// # Panics
/// When an engine violates a requirement of the module head.
pub fn run_in(input: &[u8], settings: &Settings) -> Outcome {
    let domain = memory(has_little_memory(input.first().copied().unwrap_or(0)));
    play(input, &config(settings), domain, usize::MAX)
}

/// Returns the TCP part of `settings`.
fn config(settings: &Settings) -> TcpConfig {
    let mut sysctls = Sysctls::default();
    settings.apply(&mut sysctls);
    sysctls.tcp
}

/// Plays `input` for at most `events_max` events.
fn play(input: &[u8], config: &TcpConfig, domain: Domain, events_max: usize) -> Outcome {
    let mut pair = EnginePair::new(Input::new(input), config, domain, events_max);
    for _ in 0..STEPS_MAX {
        if pair.is_over() {
            break;
        }
        let Some(step) = pair.input.byte() else { break };
        pair.step(step);
        pair.look();
    }
    pair.epilogue();
    pair.end()
}

impl<'a> EnginePair<'a> {
    fn new(mut input: Input<'a>, config: &TcpConfig, domain: Domain, events_max: usize) -> Self {
        let mode = input.next();
        let bytes_before = domain.live_bytes();
        let engines =
            [0, 1].map(|index| Engine::new(index, &domain, config, (input.next(), input.next())));
        let mut pair = Self {
            input,
            now: Instant::from_secs(1000),
            engines,
            wires: [VecDeque::new(), VecDeque::new()],
            edges: [None; 2],
            domain,
            bytes_before,
            little_memory: has_little_memory(mode),
            broken: false,
            events_left: events_max,
            outcome: Outcome::default(),
        };
        pair.engines[1].listening = true;
        pair.connect(0);
        if mode & 2 != 0 {
            // Simultaneous open (RFC 9293 §3.5, figure 7).
            pair.connect(1);
        }
        if mode & 4 != 0 {
            // Start in ESTABLISHED, where most of the code is.
            pair.behave(16);
        }
        pair.look();
        pair
    }

    fn connect(&mut self, index: usize) {
        self.engines[index].connect(self.now);
        self.collect(index);
    }

    /// Puts the segments that engine `index` has sent on the wire to the other engine.
    fn collect(&mut self, index: usize) {
        let wire = &mut self.wires[1 - index];
        for segment in self.engines[index].sent.drain(..) {
            self.outcome.sent += 1;
            if wire.len() == IN_FLIGHT_MAX {
                wire.pop_front();
            }
            wire.push_back(segment);
        }
    }

    /// Delivers `segment` to engine `index`.
    fn deliver(&mut self, index: usize, segment: &Segment) {
        self.events_left = self.events_left.saturating_sub(1);
        self.engines[index].receive(self.now, segment);
        self.collect(index);
    }

    /// Lets `time` pass. Timers run at their deadlines. Less time passes if more timers are due
    /// than one call may run.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..EVENTS_AT_ONCE_MAX.min(self.events_left) {
            let due = self.engines.iter().filter_map(Engine::deadline).min();
            match due.filter(|due| *due <= end) {
                Some(due) => self.run_timers(due),
                None => {
                    self.now = self.now.max(end);
                    break;
                }
            }
        }
    }

    fn run_timers(&mut self, at: Instant) {
        self.events_left = self.events_left.saturating_sub(1);
        self.now = self.now.max(at);
        for index in 0..2 {
            if self.engines[index].deadline().is_some_and(|due| due <= self.now) {
                self.engines[index].run_timers(self.now);
                self.collect(index);
            }
        }
    }

    /// Lets the network deliver everything in order, for so many rounds.
    fn behave(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let counts = [self.wires[0].len(), self.wires[1].len()];
            if counts == [0, 0] || self.is_over() {
                break;
            }
            self.pass(DELAY);
            for (index, count) in counts.into_iter().enumerate() {
                for _ in 0..count {
                    let Some(segment) = self.wires[index].pop_front() else { break };
                    self.deliver(index, &segment);
                }
            }
        }
    }

    /// Checks the invariants that must hold after every step.
    fn look(&mut self) {
        for (engine, before) in self.engines.iter().zip(&mut self.edges) {
            let edges = engine.check(self.now);
            if let (Some(before), Some(edges)) = (*before, edges)
                && before.iss == edges.iss
            {
                edges.check_after(&before);
            }
            *before = edges.or(*before);
        }
        let established = |engine: &Engine| engine.state() == Some(State::Established);
        self.outcome.established |= self.engines.iter().all(established);
        let live = self.domain.live_bytes();
        let of_engines: usize = self.engines.iter().map(Engine::memory_allowed).sum();
        let allowed = self.bytes_before + of_engines;
        assert!(live <= allowed, "{live} bytes are held, {allowed} allowed");
    }

    /// Whether a brief run has used up its events.
    const fn is_over(&self) -> bool {
        self.events_left == 0
    }

    fn is_honest(&self) -> bool {
        self.outcome.forged == 0 && !self.broken
    }

    /// Lets the network deliver everything and the applications finish their streams.
    fn epilogue(&mut self) {
        let (mut at_once, mut instant) = (0, self.now);
        for engine in &mut self.engines {
            engine.stop_holding();
        }
        let honest = self.is_honest();
        let most = if honest { EPILOGUE_EVENTS_MAX } else { EPILOGUE_EVENTS_FORGED_MAX };
        for _ in 0..most {
            if self.is_over() {
                return;
            }
            let mut moved = false;
            for index in 0..2 {
                moved |= self.engines[index].finish_streams(self.now);
                self.collect(index);
            }
            let waiting = self.wires.iter().any(|wire| !wire.is_empty());
            let due = self.engines.iter().filter_map(Engine::deadline).min();
            if waiting {
                self.behave(1);
            } else if let Some(due) = due {
                // An idle connection has nothing left to do.
                if !moved && self.engines.iter().all(Engine::is_idle) {
                    break;
                }
                self.run_timers(due);
            } else if !moved {
                break;
            }
            self.look();
            at_once = if self.now == instant { at_once + 1 } else { 0 };
            instant = self.now;
            assert!(
                at_once < EVENTS_AT_ONCE_MAX,
                "the engines exchange segments endlessly at {instant:?}"
            );
        }
        self.outcome.complete = self.engines.iter().all(Engine::is_complete);
        if honest && self.outcome.established && !self.little_memory {
            let [a, b] = &self.engines;
            assert!(self.outcome.complete, "streams are incomplete: {a:?}, {b:?}");
            let written = |from: &Engine, to: &Engine| assert_eq!(from.written, to.read);
            written(a, b);
            written(b, a);
        }
    }

    fn end(mut self) -> Outcome {
        self.outcome.received = self.engines.iter().map(|engine| engine.read).sum();
        for engine in &mut self.engines {
            engine.abort(self.now);
        }
        drop(self.engines);
        assert_eq!(self.domain.balance(), 0, "packets leaked");
        self.outcome
    }
}

/// Returns the stream that the application of engine `index` writes.
const fn pattern(index: usize) -> Pattern {
    Pattern(if index == 0 { 0x0a0b } else { 0x0c0d })
}
