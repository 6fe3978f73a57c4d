//! The machine: CPUs that repeat their programs over one directory, in the order of time.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
};

use fastrand::Rng;
use serde::Serialize;

use super::{
    directory::{Access, CPUS_MAX, Line, LineId},
    program::{Layout, Program, Step},
};

/// Stores that a CPU's store buffer holds. The next one waits for the first of them.
const STORES_MAX: usize = 56;

/// Costs of an access, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// Access to a copy that the CPU has. Typical: 1 to 5.
    pub local_ns: f64,
    /// Transfer of an unmodified line. Typical: 40 to 60 within a socket.
    pub clean_ns: f64,
    /// Invalidation of other copies by a CPU that has a copy. Typical: 40 to 60 within a socket.
    pub upgrade_ns: f64,
    /// Transfer of a line that another CPU has modified. Typical: 60 to 100 within a socket.
    pub dirty_ns: f64,
    /// A locked instruction on a line that the CPU owns. Typical: 4 to 8.
    pub rmw_ns: f64,
    /// Repetitions of a failed compare-and-swap per other CPU that has one under way on the line.
    /// The number of attempts of N CPUs so grows with N².
    pub retries_per_cpu: f64,
    /// Factor of a transfer between sockets. Typical: 2.
    pub socket_factor: f64,
    /// CPUs of a socket; CPU numbers fill one socket after the other.
    pub cpus_per_socket: u8,
}

impl Costs {
    /// Costs from published figures: the packet rate of 6 million with two counts per packet on one
    /// line gives 83 ns for the transfer of a modified line and its locked instruction; eight
    /// repetitions of a compare-and-swap with 112 CPUs give `retries_per_cpu`. The others are
    /// typical. See docs/model.md.
    pub const PUBLISHED: Self = Self {
        local_ns: 1.0,
        clean_ns: 50.0,
        upgrade_ns: 50.0,
        dirty_ns: 77.0,
        rmw_ns: 6.0,
        retries_per_cpu: 0.08,
        socket_factor: 1.0,
        cpus_per_socket: 128,
    };

    /// The same machine with `cpus` in each socket, and a factor of 2 between sockets.
    #[must_use]
    pub const fn sockets_of(self, cpus: u8) -> Self {
        Self { socket_factor: 2.0, cpus_per_socket: cpus, ..self }
    }

    /// The CPUs of the socket of `cpu`.
    pub(super) const fn socket_mask(&self, cpu: u8) -> u128 {
        let first = (cpu / self.cpus_per_socket) as u32 * self.cpus_per_socket as u32;
        let all = match self.cpus_per_socket {
            count @ 0..128 => (1 << count) - 1,
            _ => u128::MAX,
        };
        all << first
    }
}

/// Work and waiting time of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTotals {
    /// Repetitions of its program.
    pub rounds: u64,
    /// Time in which it waited for lines, in nanoseconds.
    pub stalled_ns: f64,
    /// Time in which it waited for packets, in nanoseconds.
    pub idle_ns: f64,
    /// Compare-and-swaps that failed.
    pub retries: u64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Totals {
    /// Length of the run in nanoseconds of the model's time.
    pub elapsed_ns: f64,
    /// By CPU.
    pub cpus: Vec<CpuTotals>,
    /// Transfers, by line number.
    transfers: Vec<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
impl Totals {
    /// Repetitions of all programs per second.
    #[must_use]
    pub fn rounds_per_second(&self) -> f64 {
        self.rounds_per_second_of(0..self.cpus.len())
    }

    /// Repetitions per second of the programs of some CPUs.
    #[must_use]
    pub fn rounds_per_second_of(&self, cpus: impl IntoIterator<Item = usize>) -> f64 {
        let rounds: u64 = cpus.into_iter().map(|cpu| self.cpus[cpu].rounds).sum();
        rounds as f64 * 1e9 / self.elapsed_ns
    }

    /// Fraction of its time that a CPU waited for lines.
    #[must_use]
    pub fn stalled(&self, cpu: usize) -> f64 {
        // A wait that began before the end of the run may end after it.
        (self.cpus[cpu].stalled_ns / self.elapsed_ns).min(1.0)
    }

    /// Mean fraction of the time in which CPUs did not wait for packets: their load, in which the
    /// wait for lines is part of the work.
    #[must_use]
    pub fn load(&self) -> f64 {
        let idle: f64 = self.cpus.iter().map(|cpu| cpu.idle_ns).sum();
        1.0 - idle / self.elapsed_ns / self.cpus.len() as f64
    }

    /// Failed compare-and-swaps per repetition.
    #[must_use]
    pub fn retries(&self) -> f64 {
        let sum = |of: fn(&CpuTotals) -> u64| self.cpus.iter().map(of).sum::<u64>() as f64;
        sum(|cpu| cpu.retries) / sum(|cpu| cpu.rounds).max(1.0)
    }

    /// Transfers of a line.
    #[must_use]
    pub fn transfers(&self, line: LineId) -> u64 {
        self.transfers[line.index()]
    }
}

/// A machine whose CPUs have their programs.
#[derive(Clone, Debug)]
pub struct Machine {
    costs: Costs,
    programs: Vec<Program>,
    lines: usize,
    jitter: f64,
}

/// State of one CPU in a run.
#[derive(Default)]
struct Cpu {
    place: usize,
    /// Ends of the stores that its store buffer holds, in order.
    stores: VecDeque<f64>,
    /// Version of the line that its compare-and-swap expects.
    expected: Option<u64>,
    /// Time of the next packet.
    arrival: f64,
    totals: CpuTotals,
}

/// Lines of a run.
struct Lines<'m> {
    costs: &'m Costs,
    lines: Vec<Line>,
    transfers: Vec<u64>,
    rng: Rng,
}

impl Machine {
    /// A machine with one CPU for each program, at most 128.
    ///
    /// # Panics
    ///
    /// With more than 128 programs, none, or one that takes no time: a program without a step.
    #[must_use]
    pub fn new(costs: Costs, layout: &Layout, programs: Vec<Program>) -> Self {
        assert!((1..=CPUS_MAX).contains(&programs.len()), "{} programs, 1 to 128", programs.len());
        assert!(programs.iter().all(|program| !program.steps().is_empty()), "an empty program");
        Self { costs, programs, lines: layout.len(), jitter: 0.1 }
    }

    /// Relative spread of computing times, uniform around the mean; 0.1 by default. Without any,
    /// CPUs with equal programs fall into a rhythm that no real machine has.
    #[must_use]
    pub const fn jitter(mut self, relative: f64) -> Self {
        self.jitter = relative;
        self
    }

    /// Runs for a time. CPUs begin at different places of their computing time, drawn from the
    /// seed.
    #[must_use]
    pub fn run(&self, elapsed_ns: f64, seed: u64) -> Totals {
        let mut lines = Lines {
            costs: &self.costs,
            lines: vec![Line::default(); self.lines],
            transfers: vec![0; self.lines],
            rng: Rng::with_seed(seed),
        };
        let mut cpus: Vec<_> = self.programs.iter().map(|_| Cpu::default()).collect();
        let mut queue: BinaryHeap<Turn> =
            (0..cpus.len()).map(|cpu| Turn { at: 100.0 * lines.rng.f64(), cpu }).collect();
        while let Some(Turn { at, cpu: number }) = queue.pop() {
            if at >= elapsed_ns {
                continue;
            }
            let (cpu, steps) = (&mut cpus[number], self.programs[number].steps());
            let step = steps[cpu.place];
            #[expect(clippy::cast_possible_truncation, reason = "below 128")]
            let next = lines.step(cpu, number as u8, step, at, self.jitter);
            if cpu.expected.is_none() {
                cpu.place += 1;
            }
            if cpu.place == steps.len() {
                cpu.place = 0;
                cpu.totals.rounds += 1;
            }
            queue.push(Turn { at: next, cpu: number });
        }
        let cpus = cpus.into_iter().map(|cpu| cpu.totals).collect();
        Totals { elapsed_ns, cpus, transfers: lines.transfers }
    }
}

impl Lines<'_> {
    /// Does a step of a CPU, or one attempt of a compare-and-swap, and returns its end.
    fn step(&mut self, cpu: &mut Cpu, number: u8, step: Step, at: f64, jitter: f64) -> f64 {
        match step {
            Step::Think(ns) => at + ns * (1.0 + jitter * (2.0 * self.rng.f64() - 1.0)),
            Step::Arrival(period) => {
                // Packets come at random times around their mean, and wait for a CPU that is late.
                cpu.arrival += period * 2.0 * self.rng.f64();
                cpu.totals.idle_ns += (cpu.arrival - at).max(0.0);
                at.max(cpu.arrival)
            }
            Step::Line(line, Access::Write) => self.store(cpu, number, line, at),
            Step::Line(line, access) => self.load(cpu, number, line, access, at),
            Step::CompareAndSwap(line) => self.compare_and_swap(cpu, number, line, at),
            Step::Critical(line, ns) => {
                self.load(cpu, number, line, Access::Rmw, at);
                let end = self.lines[line.index()].hold(ns);
                cpu.totals.stalled_ns += ns;
                end
            }
        }
    }

    fn access(&mut self, number: u8, line: LineId, access: Access, at: f64) -> f64 {
        let done = self.lines[line.index()].access(number, access, at, self.costs);
        self.transfers[line.index()] += u64::from(done.missed);
        if access != Access::Read {
            self.lines[line.index()].version += 1;
        }
        done.at
    }

    /// A read or an atomic operation: the CPU waits for it. An atomic operation first waits for all
    /// stores of its CPU.
    fn load(&mut self, cpu: &mut Cpu, number: u8, line: LineId, access: Access, at: f64) -> f64 {
        let drained = cpu.stores.back().copied().filter(|_| access == Access::Rmw);
        let end = self.access(number, line, access, at.max(drained.unwrap_or(0.0)));
        cpu.totals.stalled_ns += end - at;
        end
    }

    /// A store: the CPU continues, and the store buffer does the stores in order.
    fn store(&mut self, cpu: &mut Cpu, number: u8, line: LineId, at: f64) -> f64 {
        while cpu.stores.front().is_some_and(|&end| end <= at) {
            cpu.stores.pop_front();
        }
        let mut now = at;
        if cpu.stores.len() == STORES_MAX {
            now = cpu.stores.pop_front().unwrap_or(at);
        }
        let begin = now.max(cpu.stores.back().copied().unwrap_or(0.0));
        let end = self.access(number, line, Access::Write, begin);
        cpu.stores.push_back(end);
        cpu.totals.stalled_ns += now - at;
        now + self.costs.local_ns
    }

    fn compare_and_swap(&mut self, cpu: &mut Cpu, number: u8, line: LineId, at: f64) -> f64 {
        let version = |lines: &Self| lines.lines[line.index()].version;
        let Some(expected) = cpu.expected else {
            let end = self.load(cpu, number, line, Access::Read, at);
            cpu.expected = Some(version(self));
            self.lines[line.index()].attempts += 1;
            return end;
        };
        let present = version(self);
        let mut end = self.load(cpu, number, line, Access::Rmw, at);
        if present != expected {
            cpu.totals.retries += 1;
            // A CPU that repeats at once finds the line still in its cache, unless another CPU has
            // asked for it: the more of them try, the more probable that is.
            let others = f64::from(self.lines[line.index()].attempts - 1);
            if self.rng.f64() >= 1.0 / (1.0 + self.costs.retries_per_cpu * others) {
                // The failed attempt has read the value, and changed nothing.
                self.lines[line.index()].version = present;
                cpu.expected = Some(present);
                return end;
            }
            end = self.load(cpu, number, line, Access::Rmw, end);
        }
        cpu.expected = None;
        self.lines[line.index()].attempts -= 1;
        end
    }
}

/// The next step of a CPU. The earliest turn is the greatest; the lower CPU number comes first at
/// the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    at: f64,
    cpu: usize,
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.cpu.cmp(&self.cpu))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests;
