//! Statistics of transmit queues: the counters of `tc -s qdisc`, and the byte queue limits of
//! sysfs.
//!
//! A thread that reads the statistics owns the queue for a short time, as a sender does, and runs
//! the queue before the release.

use std::{fmt, string::String, vec::Vec};

use super::DeviceTx;
use crate::{cx::Cx, device::QueueId, sysctl::qdisc::QdiscConfig, transmit::qdisc::QdiscStats};

/// Statistics of one transmit queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxQueueStats {
    /// Name of the device.
    pub device: String,
    /// Number of the queue.
    pub queue: QueueId,
    /// Discipline with its parameters, as `tc` writes it.
    pub qdisc: QdiscConfig,
    /// Counters of the discipline. As in Linux, the backlog includes packets that have left the
    /// discipline and wait for room in the device.
    pub stats: QdiscStats,
    /// Number of packets that the device has returned for lack of room. A packet counts each time
    /// that it is returned.
    pub requeues: u64,
    /// Maximum number of bytes that the device may hold (`byte_queue_limits/limit`). `None` without
    /// a discipline, or if the device does not report completions.
    pub bql_limit: Option<u32>,
    /// Number of bytes that the device holds (`byte_queue_limits/inflight`); `None` like
    /// `bql_limit`.
    pub bql_inflight: Option<u32>,
}

/// Writes the output of `tc -s qdisc`, with the byte queue limit that sysfs shows.
impl fmt::Display for TxQueueStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, queue, qdisc, stats, requeues, .. } = self;
        writeln!(f, "qdisc {qdisc} dev {device} queue {}", queue.0)?;
        let QdiscStats { bytes, packets, drops, overlimits, ecn_marks, backlog_bytes, qlen } =
            stats;
        writeln!(
            f,
            " Sent {bytes} bytes {packets} pkt (dropped {drops}, overlimits {overlimits} requeues {requeues})"
        )?;
        write!(f, " backlog {backlog_bytes}b {qlen}p requeues {requeues} ecn_mark {ecn_marks}")?;
        match (self.bql_limit, self.bql_inflight) {
            (Some(limit), Some(inflight)) => write!(f, "\n bql limit {limit} inflight {inflight}"),
            _ => Ok(()),
        }
    }
}

impl DeviceTx {
    /// Returns the statistics of this device's queues.
    pub(crate) fn stats(&self, cx: &mut Cx) -> Vec<TxQueueStats> {
        let mut rows = Vec::with_capacity(self.queues.len());
        for queue in &self.queues {
            let mut guard = loop {
                // This loop must not use `try_own`, which requests another run from the owner:
                // repeated requests would keep the owner running forever.
                match queue.state.own_if_idle() {
                    Some(guard) => break guard,
                    None => sync::yield_now(),
                }
            };
            guard.apply_settings(self, cx);
            let mut stats = guard.qdisc.as_ref().map_or_else(QdiscStats::default, |it| *it.stats());
            stats.backlog_bytes += guard.ready.bytes() as u64;
            stats.qlen += guard.ready.len() as u64;
            rows.push(TxQueueStats {
                device: self.device.caps().name.clone(),
                queue: queue.id,
                qdisc: self.qdisc_config(cx.sysctls()),
                stats,
                requeues: guard.requeues,
                bql_limit: guard.dql.as_ref().map(crate::transmit::bql::Dql::limit),
                bql_inflight: guard.dql.as_ref().map(crate::transmit::bql::Dql::in_flight),
            });
            self.run(cx, queue, guard);
        }
        rows
    }
}
