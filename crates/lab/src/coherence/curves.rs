//! Scaling curves: what the paths of this stack would do on machines with up to 112 CPUs.
//!
//! Above: the report of `quietline lab`, which plots them, and docs/model.md. Below: [`Path`],
//! [`Machine`].
//!
//! The machine has two sockets of 56 CPUs, and transfers between them cost twice as much. Each pair
//! of CPUs has a connection of its own and repeats the path of its subject; lines of the host are
//! one for all pairs. The costs are those of this machine, if it was calibrated.

use serde::{Deserialize, Serialize};

use super::{
    calibrate::Calibration, control::INSTRUCTION_NS, costs::Costs, machine::Machine, path::Path,
};

/// Numbers of CPUs, the values of every curve's horizontal axis.
pub const CPUS: [u32; 9] = [2, 4, 8, 16, 24, 32, 56, 84, 112];

/// CPUs of a socket of the modeled machine.
pub const SOCKET_CPUS: u8 = 56;

/// Length of a run in the model's time.
const RUN_NS: f64 = 2e5;

/// Experiment of the curve of the default path, which belongs to every one.
pub const DEFAULT_PATH: &str = "all";

/// Experiments that have curves of their own.
pub const EXPERIMENTS: [&str; 3] = ["prequeue", "dst-layout", "skb-cache"];

/// Plots: name of the experiment whose mechanism it shows, title, and the subjects of its curves.
const PLOTS: [(&str, &str, &[&str]); 4] = [
    (DEFAULT_PATH, "The default path, one core for each CPU", &["cores"]),
    (
        "prequeue",
        "Segments for a waiting reader: softirq and reader on two CPUs",
        &["prequeue_ref", "prequeue_drop", "bh"],
    ),
    (
        "dst-layout",
        "Requests over loopback through one route entry",
        &["packed cas", "filled cas", "packed rcuref", "filled rcuref", "loopback"],
    ),
    (
        "skb-cache",
        "Requests: softirq and application on two CPUs",
        &["recycle none", "recycle socket_one", "recycle per_core_defer", "contexts"],
    ),
];

/// One curve of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name of the experiment whose mechanism it shows; `all` for the default path.
    pub experiment: String,
    /// Title of the plot, the same for all its curves.
    pub title: String,
    /// Name of the curve: the subject.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Numbers of CPUs.
    pub cpus: Vec<u32>,
    /// Rounds of all pairs per second, in millions, for each number of CPUs. A round is a packet or
    /// a request with its response.
    pub values: Vec<f64>,
    /// Fraction of the time in which the slower CPU of a pair waits for lines.
    pub stalled: Vec<f64>,
}

/// All curves; without a calibration with published costs.
#[must_use]
pub fn curves(calibration: Option<&Calibration>) -> Vec<Curve> {
    curves_of(calibration, |_| true)
}

/// The curves of some experiments, by their names. [`DEFAULT_PATH`] is one of the names.
#[must_use]
pub fn curves_of(
    calibration: Option<&Calibration>,
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<Curve> {
    let costs = calibration.map_or(Costs::PUBLISHED, Calibration::costs).sockets_of(SOCKET_CPUS);
    let instruction_ns = calibration.and_then(|measured| measured.instruction_ns);
    let instruction_ns = instruction_ns.unwrap_or(INSTRUCTION_NS);
    let of_plot = |&(experiment, title, subjects): &(&str, &str, &[&str])| {
        let curve = |path: &Path| {
            let points: Vec<_> =
                CPUS.iter().map(|&cpus| point(path, cpus, costs, instruction_ns)).collect();
            Curve {
                experiment: experiment.to_owned(),
                title: title.to_owned(),
                name: path.name.clone(),
                unit: "million rounds/s".to_owned(),
                cpus: CPUS.to_vec(),
                values: points.iter().map(|point| point.0).collect(),
                stalled: points.iter().map(|point| point.1).collect(),
            }
        };
        subjects.iter().filter_map(|name| Path::find(name)).map(curve).collect::<Vec<_>>()
    };
    PLOTS.iter().filter(|(experiment, ..)| is_wanted(experiment)).flat_map(of_plot).collect()
}

/// Millions of rounds per second, and the fraction of time that the slower CPUs wait for lines.
fn point(path: &Path, cpus: u32, costs: Costs, instruction_ns: f64) -> (f64, f64) {
    let pairs = cpus as usize / 2;
    let (layout, programs) = path.programs(pairs, instruction_ns);
    let totals = Machine::new(costs, &layout, programs).run(RUN_NS, 1);
    let rate = |cpu| totals.rounds_per_second_of([cpu]);
    // A pair goes as fast as its slower CPU: the other one waits for it.
    let slower = |pair: usize| {
        if rate(2 * pair) <= rate(2 * pair + 1) { 2 * pair } else { 2 * pair + 1 }
    };
    let slower: Vec<_> = (0..pairs).map(slower).collect();
    let sum: f64 = slower.iter().map(|&cpu| rate(cpu)).sum();
    let stalled: f64 = slower.iter().map(|&cpu| totals.stalled(cpu)).sum();
    #[expect(clippy::cast_precision_loss, reason = "at most 56")]
    let stalled = stalled / pairs as f64;
    (sum / 1e6, stalled)
}

/// Times of a round of two subjects on two CPUs, by the model: what an experiment on this machine
/// should find. `None` if there is no such path.
#[must_use]
pub fn predicted_ratio(calibration: &Calibration, first: &str, second: &str) -> Option<f64> {
    let instruction_ns = calibration.instruction_ns.unwrap_or(INSTRUCTION_NS);
    let rate = |name| {
        let costs = Costs { cpus_per_socket: 128, ..calibration.costs() };
        Some(point(Path::find(name)?, 2, costs, instruction_ns).0)
    };
    Some(rate(first)? / rate(second)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(curves: &[Curve], name: &str, cpus: u32) -> f64 {
        let curve = curves.iter().find(|curve| curve.name == name).expect("a curve");
        let place = curve.cpus.iter().position(|&count| count == cpus).expect("a point");
        curve.values[place]
    }

    /// With published costs.
    #[test]
    fn paths_with_counts_saturate_and_the_default_ones_scale() {
        let curves = curves(None);
        let names: Vec<_> = PLOTS.iter().flat_map(|(.., subjects)| *subjects).collect();
        assert_eq!(curves.len(), names.len(), "a subject has no path in paths.txt");
        let scaling = |name| value(&curves, name, 112) / value(&curves, name, 2);
        for name in ["prequeue_drop", "bh"] {
            assert!(scaling(name) > 45.0, "{name}: {}", scaling(name));
        }
        for name in ["packed cas", "filled cas"] {
            assert!(scaling(name) < 40.0, "{name}: {}", scaling(name));
        }
        let gain = value(&curves, "prequeue_drop", 112) / value(&curves, "prequeue_ref", 112);
        assert!(gain > 1.2, "{gain}");
    }
}
