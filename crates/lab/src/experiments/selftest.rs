//! A test of the laboratory: an arm that differs in nothing, and one that is 3 % slower.
//!
//! **Method.** A run computes a chain of multiplications, each of which waits for the one before,
//! in equal pieces on one CPU, for as long as the run takes. The arm `same` is the arm `base` under
//! another name; the arm `slower` multiplies 3 % more often for each piece. The interleaving lets
//! other work of the machine meet all arms alike.
//!
//! **Expectation.** `same` is neither better nor worse, and `slower` is worse. Another verdict is a
//! defect of the method or of the machine, and a reason to believe no other experiment there
//! ([`unexpected`]).

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use super::threads::Pinned;
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Error, Experiment, ExperimentRecord, Metric,
    Observation, Setup, Verdict,
};

/// Multiplications of a piece: about a tenth of a millisecond.
const PIECE: u32 = 40_000;
/// Multiplications of a piece of the slower arm.
const SLOWER: u32 = PIECE + PIECE * 3 / 100;

/// The declaration.
#[must_use]
pub fn experiment() -> Experiment {
    let against_base = |arm| Comparison { baseline: "base", arm, metric: "piece_time" };
    Experiment {
        name: "selftest",
        title: "The laboratory itself: no difference, and a planted one of 3 %",
        claim: "An arm of another name is no different; an arm that works 3 % longer is worse.",
        workload: "A chain of multiplications in equal pieces, on the first CPU.",
        limits: "The work needs no memory: it says nothing about the noise that caches and wake-ups bring.",
        clock: Clock::Wall,
        conditions: vec![Condition {
            name: "one CPU".to_owned(),
            description: "one thread on the first CPU".to_owned(),
            ceilings: Vec::new(),
            overhead: Duration::ZERO,
        }],
        arms: ["base", "same", "slower"].map(|name| Arm::new(name, &[])).into(),
        metrics: vec![Metric::new("piece_time", "ns", "time of a piece of work", Better::Lower)],
        controls: Vec::new(),
        comparisons: ["same", "slower"].map(against_base).into(),
        trial: Box::new(run),
    }
}

/// Describes the first comparison of a result whose verdict is not the expected one.
#[must_use]
pub fn unexpected(record: &ExperimentRecord) -> Option<String> {
    let wrong = record.comparisons.iter().find(|own| match own.verdict {
        Verdict::Invalid | Verdict::Better => true,
        Verdict::Worse => own.arm != "slower",
        Verdict::NoDifference | Verdict::NotSignificant | Verdict::Equivalent => {
            own.arm == "slower"
        }
    })?;
    let (arm, words) = (&wrong.arm, wrong.verdict.words());
    let expected = if arm == "slower" { "worse" } else { "neither better nor worse" };
    let reasons = wrong.reasons.join("; ");
    let because = if reasons.is_empty() { reasons } else { format!(" ({reasons})") };
    Some(format!("the arm '{arm}' is {words}{because}, and should be {expected}"))
}

/// Makes one run.
fn run(setup: &Setup<'_>) -> Result<Observation, Error> {
    let _pinned = Pinned::to(0);
    let count = if setup.arm.name == "slower" { SLOWER } else { PIECE };
    pieces(setup.warm_up, count);
    let (pieces, time) = pieces(setup.measure, count);
    let metrics = vec![time.as_secs_f64() * 1e9 / f64::from(pieces)];
    Ok(Observation { metrics, ..Observation::default() })
}

/// Works for a time; returns the pieces, at least one, and the time that they took.
fn pieces(time: Duration, count: u32) -> (u32, Duration) {
    let begin = Instant::now();
    let mut done = 0;
    loop {
        let mut number = black_box(3_u64);
        for _ in 0..count {
            number = black_box(number.wrapping_mul(number | 1));
        }
        black_box(number);
        done += 1;
        if begin.elapsed() >= time {
            return (done, begin.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Load, Method, Watch, estimate, run as run_experiment};

    /// A machine of whose other programs nothing is known.
    struct NoWatch;

    impl Watch for NoWatch {
        fn read(&mut self) -> Load {
            Load::default()
        }
    }

    /// Every verdict of both arms: two combinations are as expected for each.
    #[test]
    fn an_unexpected_verdict_is_described() {
        let experiment = experiment();
        let (warm_up, measure) = (Duration::ZERO, Duration::ZERO);
        let method = Method { runs: 2, warm_up, measure, ..Method::default() };
        let mut record = run_experiment(&experiment, &method, &mut NoWatch, &mut |_| {});
        let harmless = [Verdict::NoDifference, Verdict::NotSignificant, Verdict::Equivalent];
        let wrong = [Verdict::Invalid, Verdict::Better];
        for same in harmless.into_iter().chain(wrong).chain([Verdict::Worse]) {
            for slower in harmless.into_iter().chain(wrong).chain([Verdict::Worse]) {
                record.comparisons[0].verdict = same;
                record.comparisons[1].verdict = slower;
                let described = unexpected(&record);
                let is_expected = harmless.contains(&same) && slower == Verdict::Worse;
                assert_eq!(described.is_none(), is_expected, "{same:?} {slower:?}: {described:?}");
            }
        }
        record.comparisons[0].verdict = Verdict::Invalid;
        record.comparisons[0].reasons = vec!["other programs: 9 %".to_owned()];
        let described = unexpected(&record).expect("an invalid comparison");
        let words = "the arm 'same' is invalid (other programs: 9 %), and should be neither better \
                     nor worse";
        assert_eq!(described, words);
    }

    /// The whole way from a clock to a verdict. On a busy machine a run may take twice its time,
    /// so that only a verdict that is plainly wrong counts: the same work is not better or worse by
    /// more than others, and more work is not better.
    #[test]
    fn the_same_work_is_no_better_and_more_work_is_not_better() {
        let experiment = experiment();
        let (warm_up, measure) = (Duration::from_millis(1), Duration::from_millis(4));
        let method = Method { warm_up, measure, ..Method::default() };
        assert_eq!(estimate(&experiment, &method), Duration::from_micros(303_750));
        let record = run_experiment(&experiment, &method, &mut NoWatch, &mut |_| {});
        assert_ne!(record.comparisons[1].verdict, Verdict::Better, "{:?}", record.comparisons);
        for comparison in &record.comparisons {
            assert_ne!(comparison.verdict, Verdict::Invalid, "{comparison:?}");
        }
    }
}
