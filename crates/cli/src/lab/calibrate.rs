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
const EACH: Duration = Duration::from_millis(20);

/// Everything that the command measures and models.
#[derive(Serialize)]
struct Record {
    command: &'static str,
    version: &'static str,
    machine: Machine,
    calibration: Calibration,
    control: Vec<Prediction>,
    /// Whether other programs or the hypervisor used so much of the machine during the control that
    /// its measurements say nothing.
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
    let record = Record {
        command: "lab calibrate",
        version: env!("CARGO_PKG_VERSION"),
        control,
        control_is_invalid: load.foreign() > foreign_max || load.steal() > steal_max,
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
    let Record { calibration, control, published, .. } = record;
    let mut text = format!("{}\n\n", table::machine(&record.machine, record.version));
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
    let _ = writeln!(
        text,
        "CPU time of other programs {:.1} %, taken by the hypervisor {:.1} %.",
        calibration.foreign * 100.0,
        calibration.steal * 100.0
    );
    if !calibration.has_two_cpus {
        text.push_str("Only one CPU is available: no line was transferred.\n");
    }
    let _ = writeln!(
        text,
        "\n{:<37} {:>8} {:>8} {:>8} {:>8}",
        "two CPUs, ns per round", "alone", "measured", "model", "error"
    );
    for own in control {
        let _ = writeln!(
            text,
            "{:<37} {:>8.0} {:>8.0} {:>8.0} {:>+7.1} %",
            own.program,
            own.alone_ns,
            own.measured_ns,
            own.predicted_ns,
            own.error() * 100.0
        );
    }
    let within = control.iter().filter(|own| own.is_within_tolerance()).count();
    let _ = writeln!(
        text,
        "{within} of {} predictions are within {:.0} %.",
        control.len(),
        control::TOLERANCE * 100.0
    );
    if record.control_is_invalid {
        text.push_str(
            "The machine was busy meanwhile: the measurements are invalid. Run this again.\n",
        );
    }
    text.push_str("\nPublished figures and the model:\n");
    for figure in published {
        let _ = writeln!(text, "{}", figure.sentence());
    }
    text
}
