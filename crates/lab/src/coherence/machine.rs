//! The machine: CPUs that repeat their programs over one directory, in the order of time.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
};

use fastrand::Rng;

use super::{
    costs::Costs,
    directory::{Access, CPUS_MAX, Line, LineId},
    program::{Layout, Program, Step},
};

/// Stores that a CPU's store buffer holds: 56 to 112 in present processors. The next one waits for
/// the first of them.
const STORES_MAX: f64 = 56.0;

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
    /// Ends of the stores to lines of the layout that its store buffer holds, in order.
    stores: VecDeque<f64>,
    /// Stores of its computing time that wait behind them.
    own_stores: f64,
    /// Version of the line that its compare-and-swap expects.
    expected: Option<u64>,
    /// Time of the next packet.
    arrival: f64,
    totals: CpuTotals,
}

impl Cpu {
    /// Removes the stores that have ended.
    fn end_stores(&mut self, now: f64) {
        while self.stores.front().is_some_and(|&end| end <= now) {
            self.stores.pop_front();
        }
        if self.stores.is_empty() {
            self.own_stores = 0.0;
        }
    }

    /// Places of its store buffer that are in use.
    fn used(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 56")]
        let stores = self.stores.len() as f64;
        stores + self.own_stores
    }

    /// Computes for a time, with a store to a line of its own each `own_ns`; returns the end. These
    /// stores cost nothing unless one to a line of the layout is under way: the buffer keeps the
    /// order of stores, so that they wait behind it until no place is left.
    fn compute(&mut self, ns: f64, at: f64, own_ns: f64) -> f64 {
        self.end_stores(at);
        let Some(&drained) = self.stores.back().filter(|_| own_ns.is_finite()) else {
            return at + ns;
        };
        let full_at = at + (STORES_MAX - self.used()).max(0.0) * own_ns;
        if full_at >= at + ns || full_at >= drained {
            self.own_stores += ns / own_ns;
            return at + ns;
        }
        let stalled = drained - full_at;
        self.totals.stalled_ns += stalled;
        at + ns + stalled
    }
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
            let (cpu, program) = (&mut cpus[number], &self.programs[number]);
            let (steps, own) = (program.steps(), program.own_store_ns());
            let step = match steps[cpu.place] {
                Step::Think(ns) => {
                    let relative = 1.0 + self.jitter * (2.0 * lines.rng.f64() - 1.0);
                    Step::Think(ns * relative)
                }
                step => step,
            };
            #[expect(clippy::cast_possible_truncation, reason = "below 128")]
            let next = lines.step(cpu, number as u8, step, at, own);
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
    fn step(&mut self, cpu: &mut Cpu, number: u8, step: Step, at: f64, own: f64) -> f64 {
        match step {
            Step::Think(ns) => cpu.compute(ns, at, own),
            Step::Arrival(period) => {
                // Packets come at random times around their mean, and wait for a CPU that is late.
                cpu.arrival += period * 2.0 * self.rng.f64();
                cpu.totals.idle_ns += (cpu.arrival - at).max(0.0);
                at.max(cpu.arrival)
            }
            Step::Line(line, Access::Write) => self.store(cpu, number, line, at),
            Step::Line(line, access) => self.load(cpu, number, line, access, at),
            Step::Fence => {
                let end = at.max(cpu.stores.back().copied().unwrap_or(at));
                cpu.totals.stalled_ns += end - at;
                end
            }
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
        cpu.end_stores(at);
        let mut now = at;
        if cpu.used() >= STORES_MAX {
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
