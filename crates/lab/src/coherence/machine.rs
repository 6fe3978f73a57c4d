//! The machine: CPUs that repeat their programs over one directory, in the order of time.

use std::{cmp::Ordering, collections::BinaryHeap};

use fastrand::Rng;

use super::{
    directory::{CPUS_MAX, Line, LineId},
    program::{Layout, Program, Step},
};

/// Costs of an access, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Access to a copy that the CPU has. Typical: 1 to 5.
    pub local_ns: f64,
    /// Transfer of an unmodified line, or invalidation of other copies. Typical: 40 to 60 within a socket.
    pub clean_ns: f64,
    /// Transfer of a line that another CPU has modified. Typical: 60 to 100 within a socket.
    pub dirty_ns: f64,
    /// A locked instruction on a line that the CPU owns. Typical: 4 to 8.
    pub rmw_ns: f64,
    /// Factor of a transfer between sockets. Typical: 2.
    pub socket_factor: f64,
    /// CPUs of a socket; CPU numbers fill one socket after the other.
    pub cpus_per_socket: u8,
}

impl Costs {
    pub(super) const fn socket_of(&self, cpu: u8) -> u8 {
        cpu / self.cpus_per_socket
    }
}

/// What one CPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTotals {
    /// Repetitions of its program.
    pub rounds: u64,
    /// Time in which it waited for lines, in nanoseconds.
    pub stalled_ns: f64,
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
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let rounds = rounds as f64;
        rounds * 1e9 / self.elapsed_ns
    }

    /// Fraction of its time that a CPU waited for lines.
    #[must_use]
    pub fn stalled(&self, cpu: usize) -> f64 {
        self.cpus[cpu].stalled_ns / self.elapsed_ns
    }

    /// Transfers of a line.
    #[must_use]
    pub fn transfers(&self, line: LineId) -> u64 {
        self.transfers[line.0 as usize]
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

    /// Relative spread of computing times, uniform around the mean; 0.1 by default. Without any, CPUs with equal programs
    /// fall into a rhythm that no real machine has.
    #[must_use]
    pub const fn jitter(mut self, relative: f64) -> Self {
        self.jitter = relative;
        self
    }

    /// Runs for a time. CPUs begin at different places of their computing time, drawn from the seed.
    #[must_use]
    pub fn run(&self, elapsed_ns: f64, seed: u64) -> Totals {
        let mut rng = Rng::with_seed(seed);
        let mut lines = vec![Line::default(); self.lines];
        let mut transfers = vec![0; self.lines];
        let mut cpus = vec![CpuTotals::default(); self.programs.len()];
        let mut places = vec![0; self.programs.len()];
        let mut queue: BinaryHeap<Turn> =
            (0..self.programs.len()).map(|cpu| Turn { at: 100.0 * rng.f64(), cpu }).collect();
        while let Some(Turn { at, cpu }) = queue.pop() {
            if at >= elapsed_ns {
                continue;
            }
            let steps = self.programs[cpu].steps();
            let next = match steps[places[cpu]] {
                Step::Think(ns) => at + ns * (1.0 + self.jitter * (2.0 * rng.f64() - 1.0)),
                Step::Line(line, access) => {
                    let index = line.0 as usize;
                    #[expect(clippy::cast_possible_truncation, reason = "below 128")]
                    let done = lines[index].access(cpu as u8, access, at, &self.costs);
                    transfers[index] += u64::from(done.missed);
                    cpus[cpu].stalled_ns += done.at - at;
                    done.at
                }
            };
            places[cpu] += 1;
            if places[cpu] == steps.len() {
                places[cpu] = 0;
                cpus[cpu].rounds += 1;
            }
            queue.push(Turn { at: next, cpu });
        }
        Totals { elapsed_ns, cpus, transfers }
    }
}

/// The next step of a CPU. The earliest turn is the greatest; the lower CPU number comes first at the same time.
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
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        local_ns: 1.0,
        clean_ns: 50.0,
        dirty_ns: 83.0,
        rmw_ns: 0.0,
        socket_factor: 1.0,
        cpus_per_socket: 128,
    };
    const SECOND: f64 = 1e7;

    /// Relative distance of a figure from the wanted one.
    fn error(found: f64, wanted: f64) -> f64 {
        (found / wanted - 1.0).abs()
    }

    #[test]
    fn cpus_without_a_shared_line_scale_with_their_number() {
        let mut layout = Layout::new();
        let rate = |cpus: usize, layout: &mut Layout| {
            let programs = (0..cpus).map(|_| Program::new().think(99.0).rmw(layout.line("own")));
            let programs = programs.collect();
            Machine::new(COSTS, layout, programs).run(SECOND, 1).rounds_per_second()
        };
        let one = rate(1, &mut layout);
        assert!(error(one, 1e7) < 0.01, "{one}");
        assert!(error(rate(64, &mut layout), 64.0 * one) < 0.01);
    }

    /// Two atomic operations per packet on one line: 1 / (2 × 83 ns) = 6 million packets per second, however many CPUs.
    #[test]
    fn a_line_that_every_cpu_writes_twice_per_packet_bounds_the_packet_rate() {
        let mut layout = Layout::new();
        let count = layout.line("refcount");
        let program = Program::new().think(300.0).rmw(count).think(300.0).rmw(count);
        for cpus in [16, 48, 112] {
            let machine = Machine::new(COSTS, &layout, vec![program.clone(); cpus]);
            let totals = machine.run(SECOND, 1);
            assert!(error(totals.rounds_per_second(), 1e9 / 166.0) < 0.02, "{cpus}: {totals:?}");
            assert!(totals.stalled(0) > 0.3, "{cpus}");
        }
    }

    #[test]
    fn readers_of_a_line_that_nobody_writes_do_not_wait_for_each_other() {
        let mut layout = Layout::new();
        let fields = layout.line("fields");
        let program = Program::new().think(99.0).read(fields);
        let totals = Machine::new(COSTS, &layout, vec![program; 100]).run(SECOND, 1);
        assert!(error(totals.rounds_per_second(), 100.0 * 1e7) < 0.01, "{totals:?}");
        assert_eq!(totals.transfers(fields), 100);
    }

    #[test]
    fn a_seed_repeats_its_run() {
        let mut layout = Layout::new();
        let line = layout.line("line");
        let machine = Machine::new(COSTS, &layout, vec![Program::new().think(50.0).rmw(line); 8]);
        assert_eq!(machine.run(1e5, 4), machine.run(1e5, 4));
        assert_ne!(machine.run(1e5, 4), machine.run(1e5, 5));
        assert_eq!(layout.name(line), "line");
    }
}
