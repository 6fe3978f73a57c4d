//! `quietline lab calibrate`: the costs of cache lines between two CPUs of this machine, and the
//! coherence model beside two CPUs that do the same.

use std::{fmt::Write as _, time::Duration};

use anyhow::anyhow;
use quietline_lab::{
    coherence::{
        calibrate::{Calibration, Measured},
        control::{self, Prediction},
        curves::{Curve, curves},
        published::{Figure, figures},
    },
    experiment::{Machine, MachineWatch, Method, Watch as _},
};
use serde::Serialize;

use super::table;
use crate::{args::LabCalibrateArgs, failure::Failure, output};

/// Time of one run of a program of the control.
const EACH: Duration = Duration::from_millis(10);

/// Everything that the command measures and models.
#[derive(Serialize)]
struct Record {
    command: &'static str,
    version: &'static str,
    machine: Machine,
    calibration: Calibration,
    control: Vec<Prediction>,
    /// Part of the CPU time that other programs used during the control.
    foreign: f64,
    /// Part of it that the hypervisor took.
    steal: f64,
    /// Whether the costs are invalid: the machine was too busy.
    costs_are_invalid: bool,
    /// Whether the control is, as a whole. A program of it may be invalid alone.
    control_is_invalid: bool,
    published: Vec<Figure>,
    curves: Vec<Curve>,
}

/// Runs the command.
pub(super) fn run(args: &LabCalibrateArgs) -> Result<(), Failure> {
    let machine = Machine::read();
    let calibration = measure(args.repetitions)?;
    let mut watch = MachineWatch::new();
    let before = watch.read();
    let control = control::check(&calibration, EACH);
    let load = watch.read().since(&before);
    let Method { foreign_max, steal_max, .. } = Method::default();
    let is_busy = |foreign, steal| foreign > foreign_max || steal > steal_max;
    let (foreign, steal) = (load.foreign(), load.steal());
    let costs_are_invalid = is_busy(calibration.foreign, calibration.steal);
    let record = Record {
        command: "lab calibrate",
        version: env!("CARGO_PKG_VERSION"),
        control,
        foreign,
        steal,
        costs_are_invalid,
        // Predictions are made of the costs.
        control_is_invalid: costs_are_invalid || is_busy(foreign, steal),
        published: figures(),
        curves: curves(Some(&calibration)),
        machine,
        calibration,
    };
    if args.json {
        return output::print_json(&record);
    }
    let text = text(&record);
    output::print(&if output::is_plain() { output::in_ascii(&text) } else { text })
}

/// Measures the costs.
pub(super) fn measure(repetitions: u32) -> Result<Calibration, Failure> {
    let measured = Calibration::measure(usize::try_from(repetitions).unwrap_or(usize::MAX));
    Ok(measured.map_err(|error| anyhow!("cannot calibrate: {error}"))?)
}

fn text(record: &Record) -> String {
    let Record { calibration, published, .. } = record;
    let mut text = format!("{}\n\n", table::machine(&record.machine, record.version));
    add_costs(&mut text, record);
    if !calibration.has_two_cpus {
        text.push_str("Only one CPU is available: no line was transferred.\n");
    }
    add_control(&mut text, record);
    text.push_str("\nPublished figures and the model:\n");
    for figure in published {
        let _ = writeln!(text, "{}", figure.sentence());
    }
    text
}

/// The table of costs.
fn add_costs(text: &mut String, record: &Record) {
    let calibration = &record.calibration;
    let costs = [
        ("local read", &calibration.local),
        ("local atomic addition", &calibration.rmw),
        ("read of a clean line", &calibration.clean),
        ("atomic addition, shared line", &calibration.upgrade),
        ("read, modified elsewhere", &calibration.dirty_read),
        ("atomic addition, modified elsewhere", &calibration.dirty_rmw),
        ("one way of a ping-pong", &calibration.ping_pong),
    ];
    let _ = writeln!(text, "{:<37} {:>8} {:>17}", "cost, ns", "median", "quartiles");
    for (name, Measured { median_ns, low_ns, high_ns }) in costs {
        let _ = writeln!(text, "{name:<37} {median_ns:>8.1} {low_ns:>8.1} {high_ns:>8.1}");
    }
    if let Some(ns) = calibration.instruction_ns {
        let _ = writeln!(text, "{:<37} {ns:>8.3}", "instruction of the data path");
    }
    add_load(text, calibration.foreign, calibration.steal, record.costs_are_invalid);
}

/// The table of programs on two CPUs.
fn add_control(text: &mut String, record: &Record) {
    let control = &record.control;
    let _ = writeln!(
        text,
        "\n{:<37} {:>8} {:>9} {:>17} {:>10} {:>9} {:>5}",
        "two CPUs, ns per round", "alone", "measured", "quartiles", "predicted", "error", "runs"
    );
    for own in control {
        let is_invalid = record.control_is_invalid || !own.is_valid;
        let _ = writeln!(
            text,
            "{:<37} {:>8.0} {:>9.0} {:>8.0} {:>8.0} {:>10.0} {:>+7.1} % {:>5}{}",
            own.program,
            own.alone_ns,
            own.measured_ns,
            own.low_ns,
            own.high_ns,
            own.predicted_ns,
            own.error() * 100.0,
            own.runs,
            if is_invalid { "  invalid" } else { "" }
        );
    }
    add_load(text, record.foreign, record.steal, record.control_is_invalid);
    let tolerance = control::TOLERANCE * 100.0;
    let valid = control.iter().filter(|own| own.is_valid).count();
    if record.control_is_invalid {
        text.push_str("Invalid: the machine was busy, so that no error counts. Run this again.\n");
        return;
    }
    let within = control.iter().filter(|own| own.is_within_tolerance()).count();
    let _ = writeln!(text, "{within} of {valid} valid predictions are within {tolerance:.0} %.");
    if valid < control.len() {
        let _ = writeln!(
            text,
            "{} are invalid: another program had a CPU during too many runs, or the median is not stable.",
            control.len() - valid
        );
    }
}

/// The load of the machine meanwhile, and whether it was too high.
fn add_load(text: &mut String, foreign: f64, steal: f64, is_invalid: bool) {
    let _ = writeln!(
        text,
        "CPU time of other programs {:.1} %, taken by the hypervisor {:.1} %{}",
        foreign * 100.0,
        steal * 100.0,
        if is_invalid { ": invalid." } else { "." }
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(is_valid: bool, control_is_invalid: bool) -> Record {
        let cost = Measured { median_ns: 80.0, low_ns: 79.0, high_ns: 81.0 };
        let prediction = Prediction {
            program: "count, 100 ns".to_owned(),
            alone_ns: 210.0,
            measured_ns: 320.0,
            low_ns: 310.0,
            high_ns: 330.0,
            predicted_ns: 336.0,
            runs: 15,
            disturbed: 3,
            is_valid,
        };
        Record {
            command: "lab calibrate",
            version: "1",
            machine: Machine::read(),
            calibration: Calibration {
                local: cost,
                rmw: cost,
                clean: cost,
                upgrade: cost,
                dirty_read: cost,
                dirty_rmw: cost,
                ping_pong: cost,
                instruction_ns: None,
                repetitions: 4,
                has_two_cpus: true,
                foreign: 0.0,
                steal: 0.0,
            },
            control: vec![prediction],
            foreign: 0.3,
            steal: 0.0,
            costs_are_invalid: false,
            control_is_invalid,
            published: Vec::new(),
            curves: Vec::new(),
        }
    }

    #[test]
    fn a_program_shows_what_was_measured_and_predicted_and_the_error() {
        let text = text(&record(true, false));
        let row = text.lines().find(|line| line.starts_with("count, 100 ns")).expect("a row");
        let cells: Vec<_> = row.split_whitespace().skip(3).collect();
        assert_eq!(cells, ["210", "320", "310", "330", "336", "+5.0", "%", "15"]);
        assert!(text.contains("1 of 1 valid predictions"), "{text}");
        assert!(!text.contains("invalid"), "{text}");
    }

    #[test]
    fn a_busy_machine_and_an_unstable_median_are_invalid() {
        let busy = text(&record(true, true));
        assert!(busy.contains("15  invalid") && busy.contains("30.0 %, taken"), "{busy}");
        assert!(busy.contains("Run this again") && !busy.contains("valid predictions"), "{busy}");
        let unstable = text(&record(false, false));
        assert!(
            unstable.contains("15  invalid") && unstable.contains("0 of 0 valid"),
            "{unstable}"
        );
    }
}
