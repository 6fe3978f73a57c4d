//! Lists of packets in the receive path (Linux 5.4): the savings by a list, and the latency of a
//! list of segments that were not merged.
//!
//! **Claim.** Two 10 Gbit/s hosts, six runs of 120 s each. One stream with receive offload off and
//! `busy_read` at 50: 6.488 to 7.351 Gbit/s (+13.3 %). 100 request/response streams of 8,000 bytes
//! with `busy_read` at 50: 3.0 % worse. The published p-values are one-sided; two-sided, the first
//! one is 0.052, and after a correction for the twenty tests only the second one remains.
//!
//! **Method.** The rows of the original table: one and four streams, and 100 request/response
//! streams of 1 and of 8,000 bytes, with receive offload off and on, `busy_read` 0 and 50, and the
//! ten ways out of receive offload: no list, and three kinds of list with a batch of 1, 8 and 64.
//! The receiver is the object of the measurement: its softirq is on the first CPU, its application
//! on the second. The other host is a generator inside the receiver's device; it writes headers
//! only, and its time is stated apart. Rows with a link of 10 Gbit/s cannot exceed 9.415 Gbit/s;
//! their runs that reach it count as censored.

use std::{array, sync::LazyLock, time::Duration};

use super::{
    generator::{Load, PAYLOAD_MAX},
    receiver::{self, Measured},
    threads,
};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Setup,
};

/// Payload of a link of 10 Gbit/s with frames of 1,538 bytes, in Gbit/s.
const LINE_RATE_GBPS: f64 = 10.0 * 1448.0 / 1538.0;
/// Streams of a row of requests.
const REQUEST_STREAMS: u8 = 100;
/// Bytes that a connection may have in flight: below the largest window of a receiver.
const FLIGHT_BYTES: u32 = 1 << 20;

const COUNTERS: [&str; 9] = [
    "RxListFlushes",
    "RxListPackets",
    "RxListSize1",
    "RxListSize8To15",
    "GroHeld",
    "GroSuperframes",
    "GroFlushComplete",
    "TcpExtTCPOFOQueue",
    "TcpExtBusyPollRxPackets",
];

/// One row of the table.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// Streams in one direction, on a link of 10 Gbit/s or without a limit.
    Streams { count: u8, limited: bool },
    /// Requests and responses of so many bytes.
    Requests { bytes: u32 },
}

impl Row {
    fn condition(self) -> Condition {
        let streams = |count: u8| if count == 1 { "1 stream" } else { "4 streams" };
        let (name, description) = match self {
            Self::Streams { count, limited: false } => {
                (streams(count).to_owned(), format!("bulk data on {}", streams(count)))
            }
            Self::Streams { count, limited: true } => (
                format!("10G, {}", streams(count)),
                format!("bulk data on {}, on a link of 10 Gbit/s", streams(count)),
            ),
            Self::Requests { bytes } => (
                format!("requests of {bytes} B"),
                format!("{REQUEST_STREAMS} connections, requests and responses of {bytes} bytes"),
            ),
        };
        let is_limited = matches!(self, Self::Streams { limited: true, .. });
        let ceilings = if is_limited { vec![("throughput", LINE_RATE_GBPS)] } else { Vec::new() };
        Condition {
            name,
            description,
            ceilings,
            overhead: Duration::from_millis(if matches!(self, Self::Requests { .. }) {
                30
            } else {
                10
            }),
        }
    }

    fn load(self) -> Load {
        let load = Load {
            flows: REQUEST_STREAMS,
            separate: false,
            segment: PAYLOAD_MAX,
            pushed: false,
            flight: FLIGHT_BYTES,
            request: 0,
            rate_bps: None,
        };
        match self {
            Self::Streams { count, limited } => {
                Load { flows: count, rate_bps: limited.then_some(10_000_000_000), ..load }
            }
            Self::Requests { bytes } => Load { request: bytes, ..load },
        }
    }
}

fn rows(quick: bool) -> Vec<Row> {
    let streams = |count, limited| Row::Streams { count, limited };
    if quick {
        return vec![streams(1, false), Row::Requests { bytes: 1 }];
    }
    vec![
        streams(1, false),
        streams(4, false),
        streams(1, true),
        streams(4, true),
        Row::Requests { bytes: 1 },
        Row::Requests { bytes: 8000 },
    ]
}

/// Ways out of receive offload: name, `gro_exit`, `gro_normal_batch`.
const EXITS: [(&str, &str, &str); 10] = [
    ("immediate", "immediate", "8"),
    ("normal_only 1", "normal_only_list", "1"),
    ("normal_only 8", "normal_only_list", "8"),
    ("normal_only 64", "normal_only_list", "64"),
    ("packets 1", "unified_list_packets", "1"),
    ("packets 8", "unified_list_packets", "8"),
    ("packets 64", "unified_list_packets", "64"),
    ("segments 1", "unified_list_segments", "1"),
    ("segments 8", "unified_list_segments", "8"),
    ("segments 64", "unified_list_segments", "64"),
];

/// Places in [`EXITS`].
const IMMEDIATE: usize = 0;
const NORMAL_8: usize = 2;
const PACKETS_8: usize = 5;
const SEGMENTS_8: usize = 8;
const SEGMENTS_64: usize = 9;

/// Receive offload and `busy_read`: name, values.
const SIDES: [(&str, &str, &str); 4] = [
    ("gro off, busy 0", "0", "0"),
    ("gro off, busy 50", "0", "50"),
    ("gro on, busy 0", "1", "0"),
    ("gro on, busy 50", "1", "50"),
];

/// Names of all arms, sides by exits.
static NAMES: LazyLock<[[String; EXITS.len()]; SIDES.len()]> = LazyLock::new(|| {
    array::from_fn(|side| array::from_fn(|exit| format!("{}, {}", SIDES[side].0, EXITS[exit].0)))
});

/// The arms of an experiment, by their places.
struct Chosen {
    sides: &'static [usize],
    exits: &'static [usize],
}

impl Chosen {
    /// Names of the arms whose side and exit a function accepts.
    fn names(&self, of: impl Fn(usize, usize) -> bool) -> Vec<&'static str> {
        let all =
            self.sides.iter().flat_map(|side| self.exits.iter().map(move |exit| (side, exit)));
        all.filter(|&(&side, &exit)| of(side, exit))
            .map(|(&side, &exit)| NAMES[side][exit].as_str())
            .collect()
    }

    fn arms(&self) -> Vec<Arm> {
        let of = |(&side, &exit): (&usize, &usize)| {
            let (_, gro, busy_read) = SIDES[side];
            let (_, gro_exit, batch) = EXITS[exit];
            let settings = [
                ("net.quietline.dev.default.gro", gro),
                ("net.core.busy_read", busy_read),
                ("net.quietline.gro_exit", gro_exit),
                ("net.core.gro_normal_batch", batch),
            ];
            Arm::new(NAMES[side][exit].as_str(), &settings)
        };
        let sides = self.sides.iter();
        sides.flat_map(|side| self.exits.iter().map(move |exit| of((side, exit)))).collect()
    }

    /// Comparisons of the original change, of its successor, and of a longer list; of the CPU time
    /// with the default of the present.
    fn comparisons(&self) -> Vec<Comparison> {
        let pairs = [
            (IMMEDIATE, NORMAL_8, "throughput"),
            (IMMEDIATE, SEGMENTS_8, "throughput"),
            (IMMEDIATE, SEGMENTS_8, "host_cpu"),
            (SEGMENTS_8, SEGMENTS_64, "throughput"),
        ];
        let has = |exit| self.exits.contains(&exit);
        let pairs = pairs.into_iter().filter(|&(first, second, _)| has(first) && has(second));
        pairs
            .flat_map(|(first, second, metric)| {
                self.sides.iter().map(move |&side| Comparison {
                    baseline: NAMES[side][first].as_str(),
                    arm: NAMES[side][second].as_str(),
                    metric,
                })
            })
            .collect()
    }
}

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let rows = rows(quick);
    let chosen = if quick {
        Chosen { sides: &[0, 2], exits: &[IMMEDIATE, SEGMENTS_8] }
    } else {
        Chosen { sides: &[0, 1, 2, 3], exits: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] }
    };
    Experiment {
        name: "gro-batch",
        title: "Lists of received packets (Linux 5.4)",
        claim: "One stream, receive offload off, busy_read 50: +13.3 % throughput (two-sided p = 0.052); 100 request/response streams of 8,000 bytes, busy_read 50: 3.0 % worse (p < 0.001).",
        workload: "The rows of the original table: 1 and 4 streams, 100 request/response streams of 1 and of 8,000 bytes. Softirq of the receiver on the first CPU, its application on the second, packets as single segments from a generator that writes headers only.",
        limits: "The generator runs on the CPU that polls the device, as the device's own work would; its time per frame is a metric. The changes of the first two patches of the series concern interrupt moderation of one driver and cannot be shown. Whether a run reaches the link's 9.415 Gbit/s depends on this machine.",
        clock: Clock::Wall,
        conditions: rows.iter().map(|row| row.condition()).collect(),
        arms: chosen.arms(),
        metrics: metrics(),
        controls: controls(&chosen),
        comparisons: chosen.comparisons(),
        trial: Box::new(move |setup| run(rows[setup.condition], setup)),
    }
}

/// Metrics of a run.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric("throughput", "Gbit/s", "payload that the application read", Better::Higher),
        metric(
            "operation_time",
            "ns",
            "time of a received frame (streams) or of a request",
            Better::Lower,
        ),
        metric(
            "host_cpu",
            "ns",
            "CPU time of the receiver per frame, both contexts, without the generator",
            Better::Lower,
        ),
        metric("application_cpu", "ns", "CPU time of the application per frame", Better::Lower),
        metric(
            "generator_cpu",
            "ns",
            "CPU time of the generator per frame, in the receiver's softirq",
            Better::Lower,
        ),
    ]
}

/// Proofs that the mechanisms ran.
fn controls(chosen: &Chosen) -> Vec<Control> {
    let control = |counter, conditions: &[&'static str], moves_in, still_in| Control {
        counter,
        conditions: conditions.to_vec(),
        moves_in,
        at_least: 0.001,
        still_in,
        at_most: 0.0,
    };
    let streams: &[&str] = &["1 stream", "4 streams", "10G"];
    vec![
        control(
            "GroHeld",
            streams,
            chosen.names(|side, _| side >= 2),
            chosen.names(|side, _| side < 2),
        ),
        // Without offload, a poll of an unlimited stream fills lists of eight.
        control(
            "RxListSize8To15",
            &["1 stream", "4 streams"],
            chosen
                .names(|side, exit| side < 2 && [NORMAL_8, PACKETS_8, SEGMENTS_8].contains(&exit)),
            chosen.names(|_, exit| exit == IMMEDIATE),
        ),
        control("TcpExtBusyPollRxPackets", &[], Vec::new(), chosen.names(|side, _| side % 2 == 0)),
    ]
}

/// Makes one run.
fn run(row: Row, setup: &Setup<'_>) -> Result<Observation, Error> {
    let measured = receiver::measure(row.load(), &setup.arm.settings, setup)?;
    let Measured { seconds, frames, bytes, responses, .. } = measured;
    let operations = match row {
        Row::Streams { .. } => frames,
        Row::Requests { .. } => responses,
    };
    if operations < 1.0 {
        return Err("no response arrived".into());
    }
    Ok(Observation {
        metrics: vec![
            bytes * 8.0 / seconds / 1e9,
            seconds * 1e9 / operations,
            measured.host_ns(),
            measured.application_ns,
            measured.generator_ns,
        ],
        counters: threads::per_operation(&measured.change, &COUNTERS, frames),
        series: Vec::new(),
    })
}

#[cfg(test)]
mod tests;
