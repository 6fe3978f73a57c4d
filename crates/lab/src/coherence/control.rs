//! The control of the model: the same programs on two real CPUs.
//!
//! Above: `quietline lab calibrate`. Below: [`calibrate`](super::calibrate).
//!
//! [`execute`] does a [`Program`] as it is: an access is an atomic operation on a line, and
//! computing time is a loop of additions whose speed was measured. [`check`] runs each program on
//! both CPUs together and alone, and compares the time of a round with the model's. Alone, the two
//! differ by the costs of the loop itself. The prediction is therefore the time of a round alone,
//! as measured, plus the time that the model adds for two CPUs.

use std::{
    hint::{black_box, spin_loop},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    calibrate::{Calibration, Word},
    directory::Access,
    machine::{Costs, Machine},
    path::Path,
    program::{Layout, Program, Step},
};
use crate::experiments::threads::Pinned;

/// Largest relative error of a prediction that passes.
pub const TOLERANCE: f64 = 0.15;

/// Runs of each program, together and alone; the median counts.
const RUNS: usize = 9;

/// A program on two CPUs, as predicted and as measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Name of the program.
    pub program: String,
    /// Time of a round on one CPU while the other one is idle.
    pub alone_ns: f64,
    /// Time of a round on each of two CPUs.
    pub measured_ns: f64,
    /// The same by the model.
    pub predicted_ns: f64,
}

impl Prediction {
    /// Relative error of the prediction.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted_ns / self.measured_ns - 1.0
    }

    /// Whether the error is within [`TOLERANCE`].
    #[must_use]
    pub fn is_within_tolerance(&self) -> bool {
        self.error().abs() <= TOLERANCE
    }
}

/// Runs all programs of the control. `each` is the time of one run.
#[must_use]
pub fn check(calibration: &Calibration, each: Duration) -> Vec<Prediction> {
    let costs = calibration.costs();
    let spin_ns = spin_ns();
    let instruction_ns = calibration.instruction_ns.unwrap_or(INSTRUCTION_NS);
    let predict = |(name, layout, programs): (String, Layout, Vec<Program>)| {
        let round = |programs: &[Program]| {
            let mut times: Vec<_> =
                (0..RUNS).map(|_| execute(&layout, programs, spin_ns, each)).collect();
            times.sort_by(f64::total_cmp);
            times[RUNS / 2]
        };
        let alone_ns = round(&programs[..1]).max(round(&programs[1..]));
        let measured_ns = round(&programs);
        let added_ns = model_ns(&layout, &programs, &costs)
            - model_ns(&layout, &programs[..1], &costs).max(model_ns(
                &layout,
                &programs[1..],
                &costs,
            ));
        Prediction { program: name, alone_ns, measured_ns, predicted_ns: alone_ns + added_ns }
    };
    let paths = Path::all().iter().map(|path| {
        let (layout, programs) = path.programs(1, instruction_ns);
        (format!("path of {}", path.name), layout, programs)
    });
    synthetic().into_iter().chain(paths).map(predict).collect()
}

/// Time of an instruction where it was not measured: about three instructions per nanosecond.
pub const INSTRUCTION_NS: f64 = 0.33;

/// Programs of a few accesses, whose costs a transfer dominates.
fn synthetic() -> Vec<(String, Layout, Vec<Program>)> {
    let mut all = Vec::new();
    for think in [100.0, 400.0] {
        let mut layout = Layout::new();
        let count = layout.line("count");
        let program = Program::new().think(think).rmw(count).think(think).rmw(count);
        all.push((format!("count, {think} ns"), layout, vec![program; 2]));
        for is_packed in [true, false] {
            let mut layout = Layout::new();
            let count = layout.line("count");
            let fields = if is_packed { count } else { layout.line("fields") };
            let program = Program::new().think(think).rmw(count).think(think / 4.0).read(fields);
            let program = program.think(think / 4.0).read(fields).think(think / 2.0).rmw(count);
            let name = if is_packed { "packed" } else { "apart" };
            all.push((format!("{name}, {think} ns"), layout, vec![program; 2]));
        }
        let mut layout = Layout::new();
        let word = layout.line("word");
        let writer = Program::new().think(think).write(word);
        let reader = Program::new().think(think).read(word);
        all.push((format!("writer and reader, {think} ns"), layout, vec![writer, reader]));
    }
    all
}

/// Time of a round of the slower CPU in the model.
fn model_ns(layout: &Layout, programs: &[Program], costs: &Costs) -> f64 {
    const RUN_NS: f64 = 2e7;
    let totals = Machine::new(*costs, layout, programs.to_vec()).run(RUN_NS, 1);
    let rate = |cpu| totals.rounds_per_second_of([cpu]);
    1e9 / (0..programs.len()).map(rate).fold(f64::INFINITY, f64::min)
}

/// Time of an iteration of [`spin`].
fn spin_ns() -> f64 {
    const COUNT: u64 = 100_000;
    let times = (0..21).map(|_| {
        let begin = Instant::now();
        spin(COUNT);
        begin.elapsed().as_secs_f64() * 1e9 / COUNT as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Computing time that uses no memory.
fn spin(count: u64) {
    for number in 0..count {
        black_box(number);
    }
}

/// Does programs on real CPUs; returns the time of a round of the slower one, in nanoseconds.
#[must_use]
pub fn execute(layout: &Layout, programs: &[Program], spin_ns: f64, each: Duration) -> f64 {
    let lines: Vec<Word> = (0..layout.len()).map(|_| Word::default()).collect();
    let (start, stop) = (Barrier::new(programs.len() + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter()
            .enumerate()
            .map(|(cpu, program)| {
                let (lines, start, stop) = (&lines, &start, &stop);
                scope.spawn(move || {
                    let _pinned = Pinned::to(cpu);
                    let actions: Vec<_> =
                        program.steps().iter().map(|step| Action::of(*step, spin_ns)).collect();
                    start.wait();
                    let (begin, mut rounds) = (Instant::now(), 0_u32);
                    // Relaxed: the loop ends a little later than asked.
                    while !stop.load(Ordering::Relaxed) {
                        actions.iter().for_each(|action| action.run(lines));
                        rounds += 1;
                    }
                    begin.elapsed().as_secs_f64() * 1e9 / f64::from(rounds.max(1))
                })
            })
            .collect();
        start.wait();
        thread::sleep(each);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a round")).fold(0.0, f64::max)
    })
}

/// A step on a real CPU.
enum Action {
    Spin(u64),
    Read(usize),
    Write(usize),
    Rmw(usize),
    CompareAndSwap(usize),
}

impl Action {
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a positive count")]
    fn of(step: Step, spin_ns: f64) -> Self {
        let spin = |ns: f64| Self::Spin((ns / spin_ns) as u64);
        match step {
            Step::Think(ns) => spin(ns),
            Step::Line(line, Access::Read) => Self::Read(line.index()),
            Step::Line(line, Access::Write) => Self::Write(line.index()),
            Step::Line(line, Access::Rmw) => Self::Rmw(line.index()),
            Step::CompareAndSwap(line) => Self::CompareAndSwap(line.index()),
            Step::Critical(..) | Step::Arrival(_) => unreachable!("no path has one"),
        }
    }

    fn run(&self, lines: &[Word]) {
        // Relaxed: the programs exchange no data.
        match *self {
            Self::Spin(count) => spin(count),
            Self::Read(line) => {
                // The next step depends on the value, as in a path that tests it.
                if lines[line].0.load(Ordering::Relaxed) == usize::MAX {
                    spin_loop();
                }
            }
            Self::Write(line) => lines[line].0.store(1, Ordering::Relaxed),
            Self::Rmw(line) => {
                black_box(lines[line].0.fetch_add(1, Ordering::Relaxed));
            }
            Self::CompareAndSwap(line) => {
                let add = |value: usize| Some(value.wrapping_add(1));
                let _ = lines[line].0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No time is compared: the machine that runs the tests is busy.
    #[test]
    fn every_program_of_the_control_runs() {
        for (name, layout, programs) in synthetic() {
            let ns = execute(&layout, &programs, 1.0, Duration::from_millis(1));
            assert!(ns > 0.0, "{name}");
            assert!(model_ns(&layout, &programs, &Costs::PUBLISHED) > 0.0, "{name}");
        }
    }

    #[test]
    fn an_error_beyond_the_tolerance_is_seen() {
        let prediction = |predicted_ns| Prediction {
            program: String::new(),
            alone_ns: 50.0,
            measured_ns: 100.0,
            predicted_ns,
        };
        assert!(prediction(114.0).is_within_tolerance());
        assert!(!prediction(116.0).is_within_tolerance());
        assert!(!prediction(84.0).is_within_tolerance());
    }
}
