//! Schedule of the slices: which ones run, in which order and for how long.
//!
//! A round runs every workload on both sides in the order quietline, kernel, kernel, quietline; the
//! next round reverses the order, so that a drift of the machine affects both sides equally. Rounds
//! repeat until the time is used up: a faster machine gets more repetitions, not a longer run.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use quietline::Snapshot;

use super::{
    meter::Slice,
    pair,
    slice::{self, Pair, Sample},
    workload::{WireKind, Workload},
};
use crate::{
    args::DemoArgs,
    endpoint::{KernelHost, StackHost},
    link::{Recording, Sysctl},
    stats::{Ratio, SplitMix64, Summary},
};

/// Target number of rounds: with two slices per side and round they make sixteen repetitions.
const ROUNDS_AIM: f64 = 8.0;
/// Maximum number of rounds. More repetitions would only cost time.
const ROUNDS_MAX: usize = 40;
/// Bounds of a slice's length. Shorter slices measure the scheduler, longer ones leave too few
/// repetitions.
const SLICE_SECONDS_MIN: f64 = 0.005;
const SLICE_SECONDS_MAX: f64 = 0.25;
/// Fraction of a slice that is not measured.
pub(super) const WARMUP_SHARE: f64 = 0.2;

/// Parameters of a measurement.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Duration of the whole measurement.
    pub(super) seconds: f64,
    /// Seed of wires and content.
    pub(super) seed: u64,
    /// Workloads in table order.
    pub(super) workloads: Vec<Workload>,
    /// Length of a slice with its warm-up.
    pub(super) slice_seconds: f64,
    /// Settings of both quietline hosts.
    pub(super) sysctl: Vec<Sysctl>,
}

/// Results of a demo.
#[derive(Debug)]
pub(super) struct DemoResult {
    /// Plan of the measurement.
    pub(super) plan: Plan,
    /// One entry per workload.
    pub(super) outcomes: Vec<Outcome>,
    /// Number of complete rounds.
    pub(super) rounds: usize,
    /// Wall time of the whole measurement.
    pub(super) elapsed: Duration,
    /// Counters of the quietline hosts for each workload, in the order of the workloads.
    pub(super) counters: Vec<HostCounters>,
}

/// Counters of one host during one workload: the sum of all slices, including the warm-up round.
#[derive(Debug)]
pub(super) struct HostCounters {
    /// The workload.
    pub(super) workload: Workload,
    /// `client` or `server`.
    pub(super) host: &'static str,
    /// Counters by their Linux names. A connection that a slice leaves in TIME-WAIT is counted in
    /// the next slice.
    pub(super) counters: Vec<(&'static str, u64)>,
}

impl HostCounters {
    /// Adds the counter changes of a slice.
    fn add(&mut self, change: &Snapshot) {
        if self.counters.is_empty() {
            self.counters = change.iter().collect();
            return;
        }
        for ((_, sum), (_, value)) in self.counters.iter_mut().zip(change.iter()) {
            // The change of a gauge may be negative; like the snapshot, the sum is modulo 2^64.
            *sum = sum.wrapping_add(value);
        }
    }
}

/// The measurements of one workload.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The workload.
    pub(super) workload: Workload,
    /// Measurements of quietline.
    pub(super) quietline: Series,
    /// Measurements of the kernel, if the workload has a kernel side.
    pub(super) kernel: Option<Series>,
    /// Result of the content check, if content is checked.
    pub(super) content: Option<ContentCheck>,
    /// Error that ended the workload early.
    pub(super) error: Option<String>,
}

/// The slices of one side of one workload.
#[derive(Debug, Default)]
pub(super) struct Series {
    /// Work per second, in the order of measurement.
    pub(super) rates: Vec<f64>,
    /// CPU seconds per second, in the order of measurement.
    pub(super) cores: Vec<f64>,
    /// Latencies of all transactions of all slices.
    pub(super) latency: Option<Histogram<u64>>,
}

/// Result of the content check.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContentCheck {
    /// Bytes sent in all slices.
    pub(super) bytes: u64,
    /// Number of compared transfers.
    pub(super) transfers: usize,
    /// Number of transfers with different checksums.
    pub(super) differing: usize,
    /// Checksum of the last transfer as sent.
    pub(super) sent: u64,
    /// Checksum of the last transfer as received.
    pub(super) received: u64,
}

/// Side of the comparison that runs a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Quietline,
    Kernel,
}

impl Plan {
    /// Chooses the slice length that fits the requested time.
    pub(super) fn new(args: &DemoArgs) -> Self {
        let workloads = chosen(args);
        let slices = workloads.iter().map(|workload| {
            #[expect(clippy::cast_precision_loss, reason = "two or four")]
            let slices = order(*workload, 0).len() as f64;
            slices * share(*workload)
        });
        let slice_seconds = args.seconds / (slices.sum::<f64>() * ROUNDS_AIM);
        let slice_seconds = slice_seconds.clamp(SLICE_SECONDS_MIN, SLICE_SECONDS_MAX);
        let sysctl = args.sysctl.clone();
        Self { seconds: args.seconds, seed: args.seed, workloads, slice_seconds, sysctl }
    }

    /// The settings of the quietline hosts as one phrase; `None` if all are defaults.
    pub(super) fn settings(&self) -> Option<String> {
        let all: Vec<_> = self.sysctl.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| format!("quietline has {}", all.join(", ")))
    }

    /// Returns a slice with a fraction of the full length.
    fn slice(&self, share: f64, seed: u64) -> Slice {
        let length = Duration::from_secs_f64(self.slice_seconds * share);
        let warmup = length.mul_f64(WARMUP_SHARE);
        Slice { warmup, measure: length - warmup, seed }
    }
}

impl Outcome {
    fn new(workload: Workload) -> Self {
        let kernel = workload.without_kernel().is_none().then(Series::default);
        Self { workload, quietline: Series::default(), kernel, content: None, error: None }
    }

    /// Returns the ratio of the medians, quietline divided by kernel.
    pub(super) fn ratio(&self, seed: u64) -> Option<Ratio> {
        Ratio::of(&self.quietline.rates, &self.kernel.as_ref()?.rates, seed)
    }

    /// Whether a side has no measurement.
    pub(super) fn is_empty(&self) -> bool {
        self.quietline.rates.is_empty()
            || self.kernel.as_ref().is_some_and(|series| series.rates.is_empty())
    }

    fn add(&mut self, side: Side, sample: Sample) {
        if let Some((sent, received)) = &sample.content {
            let check = self.content.get_or_insert_default();
            check.bytes += sent.length();
            check.transfers += 1;
            check.differing += usize::from(sent.value() != received.value());
            (check.sent, check.received) = (sent.value(), received.value());
        }
        match side {
            Side::Quietline => self.quietline.add(sample),
            Side::Kernel => self.kernel.get_or_insert_default().add(sample),
        }
    }
}

impl Series {
    fn add(&mut self, sample: Sample) {
        self.rates.push(sample.rate);
        self.cores.push(sample.cores);
        match (&mut self.latency, sample.latency) {
            // Both histograms have the same precision and resize automatically, so adding cannot
            // fail.
            (Some(sum), Some(new)) => drop(sum.add(new)),
            (sum @ None, new) => *sum = new,
            (Some(_), None) => {}
        }
    }

    /// Returns the summary of the rates.
    pub(super) fn summary(&self) -> Option<Summary> {
        Summary::of(&self.rates)
    }

    /// Returns the median number of cores in use.
    pub(super) fn cores(&self) -> Option<f64> {
        Summary::of(&self.cores).map(|summary| summary.median)
    }

    /// Returns a percentile of the latency in microseconds.
    pub(super) fn latency_us(&self, percentile: f64) -> Option<f64> {
        let latency = self.latency.as_ref().filter(|latency| !latency.is_empty())?;
        #[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 ns")]
        let nanoseconds = latency.value_at_percentile(percentile) as f64;
        Some(nanoseconds / 1e3)
    }
}

impl ContentCheck {
    /// Whether every transfer arrived unchanged.
    pub(super) fn ok(&self) -> bool {
        self.transfers > 0 && self.differing == 0
    }
}

/// Runs the plan. A workload that fails is not repeated; the others continue.
pub(super) fn measure(
    plan: &Plan,
    recording: Option<&Recording>,
    progress: &Progress,
) -> Result<DemoResult> {
    let start = Instant::now();
    let (kernel, quietline) = (pair::kernel(), BTreeMap::new());
    let mut bench = Bench { plan, recording, progress, kernel, quietline, counters: Vec::new() };
    let mut outcomes: Vec<_> = plan.workloads.iter().copied().map(Outcome::new).collect();
    // The first round has short slices without measurement: it fills packet pools, and detects
    // broken workloads early.
    bench.round(&mut outcomes, None);
    let budget = Duration::from_secs_f64(plan.seconds);
    let mut rounds = 0;
    let mut round_longest = Duration::ZERO;
    while rounds == 0 || (rounds < ROUNDS_MAX && start.elapsed() + round_longest <= budget) {
        let round_start = Instant::now();
        bench.round(&mut outcomes, Some(rounds));
        round_longest = round_longest.max(round_start.elapsed());
        rounds += 1;
    }
    let counters = bench.counters;
    Ok(DemoResult { plan: plan.clone(), outcomes, rounds, elapsed: start.elapsed(), counters })
}

/// The hosts, which are kept over all rounds.
struct Bench<'p> {
    plan: &'p Plan,
    recording: Option<&'p Recording>,
    progress: &'p Progress,
    kernel: Pair<KernelHost>,
    quietline: BTreeMap<WireKind, Pair<StackHost>>,
    counters: Vec<HostCounters>,
}

impl Bench<'_> {
    /// Runs one round over all workloads; `None` is the unmeasured one.
    fn round(&mut self, outcomes: &mut [Outcome], round: Option<usize>) {
        for outcome in outcomes {
            let share = share(outcome.workload) * if round.is_some() { 1.0 } else { 0.25 };
            for (index, side) in order(outcome.workload, round.unwrap_or(0)).iter().enumerate() {
                if outcome.error.is_some() || (round.is_none() && index > 1) {
                    break;
                }
                self.progress.enter(outcome.workload, *side);
                // Both sides use the same seed, every slice another one.
                let number = (round.unwrap_or(0) * 4 + index) as u64;
                let seed = SplitMix64(self.plan.seed ^ number.rotate_left(32)).next();
                match self.slice(outcome.workload, *side, self.plan.slice(share, seed)) {
                    Ok(sample) if round.is_some() => outcome.add(*side, sample),
                    Ok(_) => {}
                    Err(error) => outcome.error = Some(format!("{}: {error:#}", side.name())),
                }
            }
        }
    }

    fn slice(&mut self, workload: Workload, side: Side, slice: Slice) -> Result<Sample> {
        match side {
            Side::Kernel => slice::run(&self.kernel, workload, slice),
            Side::Quietline => {
                let wire = workload.wire();
                let pair = match self.quietline.entry(wire) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => {
                        let pair = pair::quietline(
                            wire,
                            self.plan.seed,
                            &self.plan.sysctl,
                            self.recording,
                        );
                        entry.insert(pair.context("cannot build two hosts")?)
                    }
                };
                let hosts = [("client", pair.client.0.clone()), ("server", pair.server.0.clone())];
                let before = [hosts[0].1.counters(), hosts[1].1.counters()];
                let sample = slice::run(pair, workload, slice);
                for (&(name, ref stack), before) in hosts.iter().zip(&before) {
                    self.count(workload, name, &stack.counters().since(before));
                }
                sample
            }
        }
    }

    fn count(&mut self, workload: Workload, host: &'static str, change: &Snapshot) {
        let is_same = |own: &&mut HostCounters| own.workload == workload && own.host == host;
        match self.counters.iter_mut().find(is_same) {
            Some(own) => own.add(change),
            None => {
                let mut own = HostCounters { workload, host, counters: Vec::new() };
                own.add(change);
                self.counters.push(own);
            }
        }
    }
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Quietline => "quietline",
            Self::Kernel => "kernel",
        }
    }
}

/// Returns the workloads of a command line, in the order of the table.
pub(super) fn chosen(args: &DemoArgs) -> Vec<Workload> {
    let chosen =
        |workload: &Workload| args.workloads.is_empty() || args.workloads.contains(workload);
    Workload::all().filter(chosen).collect()
}

/// Returns the slices of one workload in one round.
fn order(workload: Workload, round: usize) -> &'static [Side] {
    use Side::{Kernel, Quietline};
    match (workload.without_kernel(), round % 2) {
        (Some(_), _) => &[Quietline],
        (None, 0) => &[Quietline, Kernel, Kernel, Quietline],
        (None, _) => &[Kernel, Quietline, Quietline, Kernel],
    }
}

/// Returns the relative length of a workload's slices. A lossy wire causes retransmission timeouts
/// of 200 ms, and a slice must be longer than one of them. The lossy workload has a quarter of the
/// slices, so it takes no more time.
pub(super) fn share(workload: Workload) -> f64 {
    if workload.without_kernel().is_some() { 4.0 } else { 1.0 }
}

/// Progress display. Only on a terminal: indicatif draws nothing elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    start: Instant,
    current: Mutex<&'static str>,
}

impl Progress {
    /// Creates a progress bar over the plan's duration.
    pub(super) fn new(plan: &Plan) -> Self {
        let bar = ProgressBar::new(nonnegative_millis(plan.seconds));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {elapsed:>4} {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, start: Instant::now(), current: Mutex::new("the start") }
    }

    fn enter(&self, workload: Workload, side: Side) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = workload.name();
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.bar.set_position(elapsed.min(self.bar.length().unwrap_or(elapsed)));
        self.bar.set_message(format!("{}: {}", workload.title(), side.name()));
    }

    /// Returns the running workload.
    pub(super) fn current(&self) -> &'static str {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn nonnegative_millis(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_millis()).unwrap_or(u64::MAX)
}
