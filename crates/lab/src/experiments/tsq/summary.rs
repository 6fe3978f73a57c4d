//! The result of a run: means, distributions and quantities over time.

use std::time::Duration;

use quietline::sans_io::Instant;

use super::Traffic;
use crate::{
    experiment::{Error, Observation, Series},
    experiments::link_meter::Departure,
};

/// Bytes of a frame with a full segment on the link, and its payload.
const FRAME_BYTES: f64 = 1538.0;
const PAYLOAD_BYTES: f64 = 1448.0;

/// Samples of a quantity over time.
pub(super) const SAMPLES: u32 = 400;

/// Samples between the ends of which a rate is taken.
const SAMPLES_OF_RATE: usize = 10;

/// State of a bulk sender at one moment.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) at_s: f64,
    /// Packet memory below TCP, and congestion window.
    pub(super) below_bytes: f64,
    pub(super) cwnd_bytes: f64,
    /// Payload that has arrived, of all bulk senders.
    pub(super) received_bytes: f64,
}

/// Notes of a run.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) departures: Vec<Departure>,
    pub(super) round_trips: Vec<(f64, f64)>,
    pub(super) below_max: u32,
    /// At equal distances of time, of the first bulk sender.
    pub(super) samples: Vec<Sample>,
    pub(super) next_sample: Option<Instant>,
}

impl Notes {
    /// A quantity of the samples, in thousands.
    fn values(&self, value: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(|own| value(own) / 1e3).collect()
    }
}

pub(super) fn summarize(
    traffic: Traffic,
    notes: &Notes,
    received: u64,
    time: Duration,
) -> Result<Observation, Error> {
    let first: Vec<f64> =
        notes.departures.iter().map(|departure| millis(departure.first_bit)).collect();
    let last: Vec<f64> =
        notes.departures.iter().map(|departure| millis(departure.last_bit)).collect();
    if first.is_empty() {
        return Err("the link carried no bulk segment".into());
    }
    let mut trips: Vec<f64> = notes.round_trips.iter().map(|(_, trip)| *trip).collect();
    if trips.is_empty() {
        // A full queue dropped every attempt of the other connection, whose request takes at least
        // the time of the run.
        trips.push(time.as_secs_f64() * 1e3);
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let (bits, rate) = (received as f64 * 8.0, traffic.rate_bps as f64);
    let utilization = bits / PAYLOAD_BYTES * FRAME_BYTES / time.as_secs_f64() / rate * 100.0;
    Ok(Observation {
        metrics: vec![
            mean(&first),
            mean(&last),
            percentile(&first, 99),
            f64::from(notes.below_max) / 1e3,
            percentile(&trips, 50),
            mean(&notes.values(|sample| sample.cwnd_bytes)),
            utilization,
        ],
        counters: Vec::new(),
        series: series(notes, &first, &last, &trips),
    })
}

/// Quantities over time, and their distributions.
fn series(notes: &Notes, first: &[f64], last: &[f64], trips: &[f64]) -> Vec<Series> {
    let sampled = |value: fn(&Sample) -> f64| {
        notes.samples.iter().map(|own| [own.at_s, value(own) / 1e3]).collect::<Vec<_>>()
    };
    let received: Vec<_> = notes.samples.iter().map(|own| [own.at_s, own.received_bytes]).collect();
    let start = notes.departures[0].at;
    let begin = notes.samples.first().map_or(0.0, |sample| sample.at_s);
    let waits = notes.departures.iter().map(|departure| {
        [begin + (departure.at - start).as_secs_f64(), millis(departure.first_bit)]
    });
    vec![
        over_time("wait to the first bit", "ms", thinned(waits.collect())),
        over_time("memory below TCP", "KB", sampled(|sample| sample.below_bytes)),
        over_time("congestion window", "KB", sampled(|sample| sample.cwnd_bytes)),
        over_time("throughput", "Mbit/s", rates(&received)),
        over_time(
            "round trip of the other connection",
            "ms",
            notes.round_trips.iter().map(|&(at, trip)| [at, trip]).collect(),
        ),
        Series::distribution("memory below TCP", "KB", notes.values(|sample| sample.below_bytes)),
        Series::distribution("wait to the first bit", "ms", first.to_vec()),
        Series::distribution("wait to the last bit", "ms", last.to_vec()),
        Series::distribution("round trip of the other connection", "ms", trips.to_vec()),
    ]
}

/// Mbit/s over time, from seconds and bytes until then. The rate between two neighboring samples
/// would show single superframes.
pub(super) fn rates(samples: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let coarse: Vec<_> = samples.iter().step_by(SAMPLES_OF_RATE).collect();
    let rate = |pair: &[&[f64; 2]]| {
        let (time, bytes) = (pair[1][0] - pair[0][0], pair[1][1] - pair[0][1]);
        (time > 0.0).then(|| [pair[1][0], bytes * 8.0 / time / 1e6])
    };
    coarse.windows(2).filter_map(rate).collect()
}

/// A quantity over time.
pub(super) fn over_time(name: &str, unit: &str, points: Vec<[f64; 2]>) -> Series {
    Series { name: name.to_owned(), x_unit: "s".to_owned(), y_unit: unit.to_owned(), points }
}

/// A percentile of values in any order.
pub(super) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0.0)
}

/// At most [`SAMPLES`] of the points, evenly chosen.
pub(super) fn thinned(points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let step = points.len().div_ceil(SAMPLES as usize).max(1);
    points.into_iter().step_by(step).collect()
}

pub(super) fn mean(values: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let count = values.len().max(1) as f64;
    values.iter().sum::<f64>() / count
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
