//! The results as one JSON object.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    environment::Environment,
    run::{ContentCheck, DemoResult, Outcome, Series},
};
use crate::stats::Summary;

/// Counters by workload, host (`client`, `server`) and name.
type CountersObject = BTreeMap<&'static str, BTreeMap<&'static str, BTreeMap<&'static str, u64>>>;

/// The whole object.
#[derive(Debug, Serialize)]
pub(super) struct Object<'r> {
    command: &'static str,
    environment: &'r Environment,
    seed: u64,
    seconds: f64,
    elapsed_seconds: f64,
    slice_seconds: f64,
    rounds: usize,
    /// Settings of the quietline hosts, as NAME=VALUE.
    sysctl: Vec<String>,
    workloads: Vec<WorkloadObject<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<CountersObject>,
}

/// One workload. Keys that do not apply are absent, except `kernel` and `ratio`, which are null
/// instead.
#[derive(Debug, Serialize)]
struct WorkloadObject<'r> {
    name: &'static str,
    description: &'static str,
    unit: &'static str,
    quietline: Option<SideObject<'r>>,
    kernel: Option<SideObject<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_note: Option<&'static str>,
    /// Median of quietline divided by the median of the kernel.
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_interval_95: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum_ok: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<ContentObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'r str>,
}

/// One side of a workload.
#[derive(Debug, Serialize)]
struct SideObject<'r> {
    #[serde(flatten)]
    summary: Summary,
    cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<LatencyObject>,
    samples: &'r [f64],
}

#[derive(Debug, Serialize)]
struct LatencyObject {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
}

#[derive(Debug, Serialize)]
struct ContentObject {
    bytes: u64,
    transfers: usize,
    differing: usize,
    /// Checksums of the last transfer, in hexadecimal, because JSON readers lose bits of large
    /// integers.
    last_sum_sent: String,
    last_sum_received: String,
}

/// Builds the object.
pub(super) fn object<'r>(
    result: &'r DemoResult,
    environment: &'r Environment,
    stats: bool,
) -> Object<'r> {
    let mut counters = CountersObject::new();
    for own in &result.counters {
        let hosts = counters.entry(own.workload.name()).or_default();
        hosts.insert(own.host, own.counters.iter().copied().collect());
    }
    Object {
        command: "demo",
        environment,
        seed: result.plan.seed,
        seconds: result.plan.seconds,
        elapsed_seconds: result.elapsed.as_secs_f64(),
        slice_seconds: result.plan.slice_seconds,
        rounds: result.rounds,
        sysctl: result.plan.sysctl.iter().map(ToString::to_string).collect(),
        workloads: result
            .outcomes
            .iter()
            .map(|outcome| workload(outcome, result.plan.seed))
            .collect(),
        counters: stats.then_some(counters),
    }
}

fn workload(outcome: &Outcome, seed: u64) -> WorkloadObject<'_> {
    let ratio = outcome.ratio(seed);
    WorkloadObject {
        name: outcome.workload.name(),
        description: outcome.workload.description(),
        unit: outcome.workload.unit(),
        quietline: side(&outcome.quietline),
        kernel: outcome.kernel.as_ref().and_then(side),
        kernel_note: outcome.workload.without_kernel(),
        ratio: ratio.map(|ratio| ratio.value),
        ratio_interval_95: ratio.map(|ratio| [ratio.low, ratio.high]),
        checksum_ok: outcome.content.as_ref().map(ContentCheck::ok),
        content: outcome.content.as_ref().map(content),
        error: outcome.error.as_deref(),
    }
}

fn side(series: &Series) -> Option<SideObject<'_>> {
    let latency = |percentile| series.latency_us(percentile);
    let latency_us = || {
        Some(LatencyObject {
            p50: latency(50.0)?,
            p90: latency(90.0)?,
            p99: latency(99.0)?,
            p999: latency(99.9)?,
        })
    };
    Some(SideObject {
        summary: series.summary()?,
        cores: series.cores(),
        latency_us: latency_us(),
        samples: &series.rates,
    })
}

fn content(check: &ContentCheck) -> ContentObject {
    ContentObject {
        bytes: check.bytes,
        transfers: check.transfers,
        differing: check.differing,
        last_sum_sent: format!("{:016x}", check.sent),
        last_sum_received: format!("{:016x}", check.received),
    }
}
