//! The control of the model: the same programs on two real CPUs.
//!
//! Above: `quietline lab calibrate`. Below: `execute`, [`calibrate`](super::calibrate).
//!
//! [`check`] runs each program on each CPU alone and on both together, in turn, and compares the
//! time of a round with the model's. Alone, the two differ by the costs of the loop that executes
//! the program, so that the model first gets the computing time that makes it agree alone. What
//! remains is the model's statement about two CPUs.
//!
//! A run counts only if both threads had their CPUs for all of it (`Run::is_undisturbed`). A
//! program is measured until enough runs count and their median is known well, and is invalid if
//! that takes too many.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    calibrate::Calibration,
    costs::Costs,
    machine::Machine,
    path::Path,
    program::{Layout, Program, Step},
};
use execute::{Run, Spin, execute};

mod execute;

/// Largest relative error of a prediction that passes.
pub const TOLERANCE: f64 = 0.15;

/// Runs that count, of each program, alone and together; the median is the result.
const RUNS_MIN: usize = 15;
/// Runs after which a program is given up.
const RUNS_MAX: usize = 90;
/// Largest relative uncertainty of a median.
const UNCERTAINTY_MAX: f64 = 0.03;

/// Runs of one kind that count.
#[derive(Clone, Debug, Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn add(&mut self, run: Run) {
        if run.is_undisturbed {
            self.0.push(run.round_ns);
            self.0.sort_by(f64::total_cmp);
        }
    }

    /// The value below which `part` quarters of the runs are; NaN without runs.
    fn quartile(&self, part: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(part * last / 4).copied().unwrap_or(f64::NAN)
    }

    fn median(&self) -> f64 {
        self.quartile(2)
    }

    /// Half of the 95 % interval of the median, relative to it: 1.57 times the range between the
    /// quartiles, divided by the root of the number of runs (McGill, Tukey and Larsen, 1978).
    #[expect(clippy::cast_precision_loss, reason = "at most 90 runs")]
    fn uncertainty(&self) -> f64 {
        let range = self.quartile(3) - self.quartile(1);
        1.57 * range / (self.0.len() as f64).sqrt() / self.median()
    }

    fn is_enough(&self) -> bool {
        self.0.len() >= RUNS_MIN && self.uncertainty() <= UNCERTAINTY_MAX
    }
}

/// A program on two CPUs, as predicted and as measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Name of the program.
    pub program: String,
    /// Time of a round on the slower CPU while the other one is idle.
    pub alone_ns: f64,
    /// Time of a round on the slower of two CPUs: the median of the runs that count.
    pub measured_ns: f64,
    /// Quarter of these runs that are below.
    pub low_ns: f64,
    /// Quarter of these runs that are above.
    pub high_ns: f64,
    /// The time by the model.
    pub predicted_ns: f64,
    /// Runs that count.
    pub runs: usize,
    /// Runs that do not, because another program had a CPU for a part of them.
    pub disturbed: usize,
    /// Whether enough runs count and their medians are known well.
    pub is_valid: bool,
}

impl Prediction {
    /// Relative error of the prediction.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted_ns / self.measured_ns - 1.0
    }

    /// Whether the measurement is valid and the error within [`TOLERANCE`].
    #[must_use]
    pub fn is_within_tolerance(&self) -> bool {
        self.is_valid && self.error().abs() <= TOLERANCE
    }
}

/// Two programs on two CPUs.
struct Case {
    name: String,
    layout: Layout,
    programs: Vec<Program>,
}

/// Runs all programs of the control. `each` is the time of one run.
#[must_use]
pub fn check(calibration: &Calibration, each: Duration) -> Vec<Prediction> {
    let costs = calibration.costs();
    let spin = Spin::measure();
    let instruction_ns = calibration.instruction_ns.unwrap_or(INSTRUCTION_NS);
    let paths = Path::all().iter().map(|path| {
        let (layout, programs) = path.programs(1, instruction_ns);
        Case { name: format!("path of {}", path.name), layout, programs }
    });
    let cases = synthetic().into_iter().chain(paths);
    cases.map(|case| predict(&case, &costs, spin, each)).collect()
}

fn predict(case: &Case, costs: &Costs, spin: Spin, each: Duration) -> Prediction {
    let Case { name, layout, programs } = case;
    let mut alone = [Samples::default(), Samples::default()];
    let mut together = Samples::default();
    let mut turns = 0;
    let is_enough = |alone: &[Samples; 2], together: &Samples| {
        together.is_enough() && alone.iter().all(Samples::is_enough)
    };
    while turns < RUNS_MAX && !is_enough(&alone, &together) {
        for (cpu, samples) in alone.iter_mut().enumerate() {
            samples.add(execute(layout, &[(cpu, &programs[cpu])], spin, each));
        }
        let both: Vec<_> = programs.iter().enumerate().collect();
        together.add(execute(layout, &both, spin, each));
        turns += 1;
    }
    let alone_ns = [alone[0].median(), alone[1].median()];
    let fitted: Vec<_> = programs
        .iter()
        .zip(alone_ns)
        .map(|(program, ns)| fitted(layout, program, costs, ns))
        .collect();
    Prediction {
        program: name.clone(),
        alone_ns: alone_ns[0].max(alone_ns[1]),
        measured_ns: together.median(),
        low_ns: together.quartile(1),
        high_ns: together.quartile(3),
        predicted_ns: model_ns(layout, &fitted, costs),
        runs: together.0.len(),
        disturbed: turns - together.0.len(),
        is_valid: is_enough(&alone, &together),
    }
}

/// A program with the computing time with which the model agrees with a CPU alone.
fn fitted(layout: &Layout, program: &Program, costs: &Costs, alone_ns: f64) -> Program {
    let computing: f64 = program.steps().iter().map(think_ns).sum();
    let accesses = model_ns(layout, std::slice::from_ref(program), costs) - computing;
    let factor = (alone_ns - accesses) / computing;
    if factor.is_finite() && factor > 0.0 { program.scaled(factor) } else { program.clone() }
}

const fn think_ns(step: &Step) -> f64 {
    match step {
        Step::Think(ns) => *ns,
        _ => 0.0,
    }
}

/// Time of an instruction where it was not measured: about three instructions per nanosecond.
pub const INSTRUCTION_NS: f64 = 0.33;

/// Programs of a few accesses, whose costs a transfer dominates.
fn synthetic() -> Vec<Case> {
    let mut all = Vec::new();
    for think in [100.0, 400.0] {
        let mut layout = Layout::new();
        let count = layout.line("count");
        let program = Program::new().think(think).rmw(count).think(think).rmw(count);
        all.push(Case { name: format!("count, {think} ns"), layout, programs: vec![program; 2] });
        for is_packed in [true, false] {
            let mut layout = Layout::new();
            let count = layout.line("count");
            let fields = if is_packed { count } else { layout.line("fields") };
            let program = Program::new().think(think).rmw(count).think(think / 4.0).read(fields);
            let program = program.think(think / 4.0).read(fields).think(think / 2.0).rmw(count);
            let name = if is_packed { "packed" } else { "apart" };
            all.push(Case {
                name: format!("{name}, {think} ns"),
                layout,
                programs: vec![program; 2],
            });
        }
        // The writer's computing time with stores of its own, which wait behind the shared one,
        // and without.
        for own_ns in [f64::INFINITY, 2.0] {
            let mut layout = Layout::new();
            let word = layout.line("word");
            let writer = Program::new().think(think).write(word).own_stores(own_ns);
            let reader = Program::new().think(think).read(word);
            let kind = if own_ns.is_finite() { ", own stores" } else { "" };
            all.push(Case {
                name: format!("writer and reader, {think} ns{kind}"),
                layout,
                programs: vec![writer, reader],
            });
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// No time is compared: the machine that runs the tests is busy.
    #[test]
    fn every_program_of_the_control_runs() {
        for Case { name, layout, programs } in synthetic() {
            let both: Vec<_> = programs.iter().enumerate().collect();
            let run = execute(&layout, &both, Spin { ns: 1.0 }, Duration::from_millis(1));
            assert!(run.round_ns > 0.0, "{name}");
            assert!(model_ns(&layout, &programs, &Costs::PUBLISHED) > 0.0, "{name}");
        }
    }

    #[test]
    fn a_fitted_program_takes_as_long_alone_as_was_measured() {
        for Case { name, layout, programs } in synthetic() {
            let fitted = fitted(&layout, &programs[0], &Costs::PUBLISHED, 1234.0);
            let ns = model_ns(&layout, &[fitted], &Costs::PUBLISHED);
            assert!((ns / 1234.0 - 1.0).abs() < 0.01, "{name}: {ns}");
        }
    }

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        values.iter().for_each(|&round_ns| samples.add(Run { round_ns, is_undisturbed: true }));
        samples
    }

    #[test]
    fn a_median_counts_when_enough_runs_agree() {
        assert!(!samples(&[100.0; RUNS_MIN - 1]).is_enough());
        assert!(samples(&[100.0; RUNS_MIN]).is_enough());
        let mut apart = vec![100.0; RUNS_MIN];
        apart.extend([200.0; RUNS_MIN]);
        assert!(!samples(&apart).is_enough());
        let mut own = samples(&[100.0; RUNS_MIN - 1]);
        own.add(Run { round_ns: 100.0, is_undisturbed: false });
        assert!(!own.is_enough(), "a disturbed run counts");
    }

    #[test]
    fn an_error_beyond_the_tolerance_is_seen() {
        let prediction = |predicted_ns| Prediction {
            program: String::new(),
            alone_ns: 50.0,
            measured_ns: 100.0,
            low_ns: 99.0,
            high_ns: 101.0,
            predicted_ns,
            runs: RUNS_MIN,
            disturbed: 0,
            is_valid: true,
        };
        assert!(prediction(114.0).is_within_tolerance());
        assert!(!prediction(116.0).is_within_tolerance());
        assert!(!prediction(84.0).is_within_tolerance());
        assert!(!Prediction { is_valid: false, ..prediction(100.0) }.is_within_tolerance());
    }
}
