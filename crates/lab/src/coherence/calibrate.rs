//! Measures the model's costs on two CPUs of this machine.
//!
//! Above: `quietline lab calibrate`, and every run of an experiment, whose JSON has the result.
//! Below: atomics on lines of their own, two pinned threads.
//!
//! Two threads prepare the state of many lines in turn, and one of them then accesses each line
//! once, in an order that no prefetcher predicts. So each access is of a known kind, and the clock
//! is read once for all of them. Reads form a chain: the value of a line is the index of the next
//! one, so that they do not overlap. The result of each cost is the median of many repetitions,
//! and says how far they differ. Time that the hypervisor took from the machine is reported beside
//! it.

use std::thread;

use serde::{Deserialize, Serialize};

use super::{
    costs::Costs,
    path::Path,
    subject::{Subject, Watch},
};
use crate::{
    experiment::{Error, MachineWatch, Watch as _},
    experiments::threads::Pinned,
};
use pair::{Order, Pair};

mod pair;

pub(super) use pair::Word;

/// A cost as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Median of the repetitions, in nanoseconds.
    pub median_ns: f64,
    /// Quarter of the repetitions that are below.
    pub low_ns: f64,
    /// Quarter of the repetitions that are above.
    pub high_ns: f64,
}

impl Measured {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |part: usize| samples[part * (samples.len() - 1) / 4];
        Self { median_ns: at(2), low_ns: at(1), high_ns: at(3) }
    }

    /// Half of the range between the quartiles, relative to the median.
    #[must_use]
    pub fn spread(&self) -> f64 {
        (self.high_ns - self.low_ns) / 2.0 / self.median_ns
    }
}

/// The costs of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Read of a line in the CPU's first cache.
    pub local: Measured,
    /// Locked addition to a line that the CPU owns.
    pub rmw: Measured,
    /// Read of a line that no CPU has modified and that this CPU's caches have lost.
    pub clean: Measured,
    /// Locked addition to a line of which both CPUs have a copy.
    pub upgrade: Measured,
    /// Read of a line that the other CPU has modified.
    pub dirty_read: Measured,
    /// Locked addition to a line that the other CPU has modified.
    pub dirty_rmw: Measured,
    /// A line that two CPUs increment in turn: time from one to the other.
    pub ping_pong: Measured,
    /// An instruction of this stack's data path without transfers, if its binary was optimized.
    pub instruction_ns: Option<f64>,
    /// Repetitions of each cost.
    pub repetitions: usize,
    /// Whether two CPUs were available. With one, all costs of transfers are those of one CPU.
    pub has_two_cpus: bool,
    /// Part of the machine's CPU time that other programs used meanwhile.
    pub foreign: f64,
    /// Part of the machine's CPU time that the hypervisor took meanwhile.
    pub steal: f64,
}

impl Calibration {
    /// The model's costs.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let without = |with: &Measured, less: f64| (with.median_ns - less).max(0.0);
        let local_ns = self.local.median_ns;
        let rmw_ns = without(&self.rmw, local_ns);
        Costs {
            local_ns,
            rmw_ns,
            clean_ns: self.clean.median_ns,
            upgrade_ns: without(&self.upgrade, rmw_ns),
            dirty_ns: without(&self.dirty_rmw, rmw_ns),
            dirty_read_ns: self.dirty_read.median_ns,
            ..Costs::PUBLISHED
        }
    }

    /// Measures with `repetitions` of each cost. 200 take about a second.
    pub fn measure(repetitions: usize) -> Result<Self, Error> {
        let mut watch = MachineWatch::new();
        let before = watch.read();
        let has_two_cpus = thread::available_parallelism().is_ok_and(|count| count.get() >= 2);
        let pair = Pair::new(!has_two_cpus);
        let costs = thread::scope(|scope| {
            scope.spawn(|| {
                let _pinned = Pinned::to(1);
                pair.serve();
            });
            let _pinned = Pinned::to(0);
            let costs = pair.costs(repetitions);
            pair.order(Order::End);
            costs
        });
        let [local, rmw, clean, upgrade, dirty_read, dirty_rmw, ping_pong] = costs;
        let instruction_ns = instruction_ns()?;
        let load = watch.read().since(&before);
        Ok(Self {
            local,
            rmw,
            clean,
            upgrade,
            dirty_read,
            dirty_rmw,
            ping_pong,
            instruction_ns,
            repetitions,
            has_two_cpus,
            foreign: load.foreign(),
            steal: load.steal(),
        })
    }
}

/// Time of an instruction of the data path: the request and response of subject `contexts`, both
/// CPUs on one, against the instructions of its trace. `None` in a binary without optimization,
/// which has other instructions than the trace.
fn instruction_ns() -> Result<Option<f64>, Error> {
    struct Nothing;
    impl Watch for Nothing {
        fn regions(&self, _: &[quietline::sans_io::Region]) {}
        fn part(&self, _: Option<u8>) {}
    }
    if cfg!(debug_assertions) {
        return Ok(None);
    }
    let (Some(subject), Some(path)) = (Subject::find("contexts"), Path::find("contexts")) else {
        return Ok(None);
    };
    let _pinned = Pinned::to(0);
    let mut times = Vec::new();
    for _ in 0..9 {
        times.push(subject.run(500, &Nothing)?.as_secs_f64() * 1e9);
    }
    let instructions = path.instructions(0) + path.instructions(1);
    Ok(Some(Measured::of(times).median_ns / f64::from(instructions)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No cost is compared with another one: the machine that runs the tests is busy.
    #[test]
    fn every_cost_is_measured() {
        let calibration = Calibration::measure(4).expect("a calibration");
        let Calibration { local, rmw, clean, upgrade, dirty_read, dirty_rmw, ping_pong, .. } =
            calibration;
        for cost in [local, rmw, clean, upgrade, dirty_read, dirty_rmw, ping_pong] {
            assert!(cost.median_ns > 0.0, "{calibration:?}");
            assert!(cost.low_ns <= cost.median_ns && cost.median_ns <= cost.high_ns);
        }
        assert_eq!(calibration.instruction_ns.is_none(), cfg!(debug_assertions));
    }
}
