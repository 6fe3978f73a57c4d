//! TCP Small Queues (Linux 3.6): the bytes of a bulk sender that wait below TCP, and the latency of
//! other flows behind them.
//!
//! **Claim.** With a limit of 128 KB per socket on what is queued below TCP, the queue of a bulk
//! sender shrinks from 50 ms to less than 1 ms at 1 Gbit/s (with TSO), and from 132 ms to less than
//! 8 ms at 100 Mbit/s, without loss of throughput (tg3 and ixgbe, pfifo_fast, netperf).
//!
//! **Model check.** A frame of 1,448 bytes of payload occupies 1,538 bytes of a link, and its
//! packet has 2,152 bytes of memory here (2,304 in Linux): 61 packets reach a limit of 131,072
//! bytes (57 in Linux), which is 0.75 ms at 1 Gbit/s and 7.5 ms at 100 Mbit/s. Two superframes of
//! 64 KB are 1.09 ms and 10.9 ms: the published figure for 100 Mbit/s describes single segments, or
//! a mean.
//!
//! **Method.** Virtual time: two sans-IO hosts, a link of one rate behind a queue of 1,000 packets,
//! which is `pfifo_fast`. Completion when the last bit has left. One to four bulk senders write as
//! much as their sockets take; a further connection sends 64 bytes and gets 64 back, again and
//! again, and its round-trip time is the latency that other flows see. Nothing is measured before
//! the link has carried a third of the transfer (slow start).

use std::time::Duration;

use crate::experiment::{Arm, Better, Clock, Comparison, Condition, Control, Experiment, Metric};

pub mod real;
mod summary;
mod workload;

const CLAIM: &str = "Bytes below TCP of one bulk sender: less than 1 ms at 1 Gbit/s (50 ms before, with TSO), less than 8 ms at 100 Mbit/s (132 ms before), and no loss of throughput.";

const MBIT: u64 = 1_000_000;

/// One kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) rate_bps: u64,
    pub(super) senders: usize,
    /// Whether the device takes superframes; otherwise single segments.
    pub(super) superframes: bool,
}

impl Traffic {
    fn condition(self) -> Condition {
        let rate = match self.rate_bps / MBIT {
            rate if rate >= 1000 => format!("{}G", rate / 1000),
            rate => format!("{rate}M"),
        };
        let (senders, packets) =
            (self.senders, if self.superframes { "superframes" } else { "segments" });
        let plural = if senders == 1 { "" } else { "s" };
        let description = format!(
            "{senders} bulk sender{plural} on a link of {} Mbit/s, which takes {packets}",
            self.rate_bps / MBIT
        );
        let name = format!("{rate}, {senders} sender{plural}, {packets}");
        // The simulation of a packet takes about a microsecond at either host.
        let overhead = Duration::from_millis(60);
        Condition { name, description, ceilings: Vec::new(), overhead }
    }

    /// Virtual time of a run: two seconds of the link, but no more than 12 MB, which is quick to
    /// simulate and 8 windows of slow start at 10 Gbit/s.
    fn time(self) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let of_bytes = 12e6 * 8.0 / self.rate_bps as f64;
        Duration::from_secs_f64(of_bytes.min(2.0))
    }
}

fn traffic(quick: bool) -> Vec<Traffic> {
    let rates: &[u64] = if quick { &[100, 1000] } else { &[10, 100, 1000, 10_000] };
    let kinds: &[(usize, bool)] =
        if quick { &[(1, true)] } else { &[(1, true), (1, false), (2, true), (4, true)] };
    let of = |&rate: &u64| {
        kinds.iter().map(move |&(senders, superframes)| Traffic {
            rate_bps: rate * MBIT,
            senders,
            superframes,
        })
    };
    rates.iter().flat_map(of).collect()
}

/// Every rule of the limit.
const LIMITS: [&str; 6] = ["off", "static131072_ge", "dyn_max", "dyn_min2", "paced_exempt", "v619"];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let traffic = traffic(quick);
    let compared = ["wait_first_bit", "ping_rtt", "utilization"];
    let against_off = |arm| compared.map(|metric| Comparison { baseline: "off", arm, metric });
    Experiment {
        name: "tsq",
        title: "TCP Small Queues (Linux 3.6)",
        claim: CLAIM,
        workload: "Virtual time: bulk senders write without end over a link of one rate, behind a queue of 1,000 packets; a further connection of the same host sends 64 bytes and receives 64, again and again.",
        limits: "The propagation delay is zero, as between neighbors on one switch. The link completes a packet when its last bit has left. A superframe counts with its whole transmission time: the wait to its first bit and the wait to its last bit are two metrics. At 100 Mbit/s two superframes of 64 KB are 10.9 ms, so that the published 8 ms describe single segments or a mean.",
        clock: Clock::Virtual,
        conditions: traffic.iter().map(|traffic| traffic.condition()).collect(),
        arms: arms(),
        metrics: metrics(),
        controls: controls(),
        comparisons: ["static131072_ge", "v619"].into_iter().flat_map(against_off).collect(),
        trial: Box::new(move |setup| workload::run(traffic[setup.condition], setup)),
    }
}

/// Proof that the limit stopped senders, and that no other part of the stack did.
fn controls() -> Vec<Control> {
    vec![Control {
        counter: "TsqThrottled",
        conditions: Vec::new(),
        moves_in: vec!["static131072_ge"],
        at_least: 0.01,
        still_in: vec!["off"],
        at_most: 0.0,
    }]
}

/// An arm for each limit. An ACK train would end slow start at a window that does not fill the
/// queue for seconds, and hide the effect of the limit.
fn arms() -> Vec<Arm> {
    let arm = |&limit: &&'static str| {
        let settings =
            [("net.quietline.tsq_limit", limit), ("net.quietline.hystart_detect", "delay")];
        Arm::new(limit, &settings)
    };
    LIMITS.iter().map(arm).collect()
}

/// Metrics of a run.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric(
            "wait_first_bit",
            "ms",
            "mean wait of a bulk packet until its first bit leaves",
            Better::Lower,
        ),
        metric(
            "wait_last_bit",
            "ms",
            "mean wait of a bulk packet until its last bit has left",
            Better::Lower,
        ),
        metric("wait_p99", "ms", "99th percentile of the wait to the first bit", Better::Lower),
        metric("below", "KB", "largest packet memory of one connection below TCP", Better::Lower),
        metric(
            "ping_rtt",
            "ms",
            "median round trip of the other connection; the time of the run if none was completed",
            Better::Lower,
        ),
        metric("cwnd", "KB", "mean congestion window of a bulk sender", Better::Lower),
        metric(
            "utilization",
            "%",
            "part of the link that arrived as payload, with headers counted as used",
            Better::Higher,
        ),
    ]
}

#[cfg(test)]
mod tests;
