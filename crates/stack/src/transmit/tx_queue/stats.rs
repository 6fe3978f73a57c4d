//! What can be read of transmit queues: a row of `tc -s qdisc`, and what sysfs says of byte queue limits.
//!
//! Whoever reads takes the queue's ownership for a moment, as a sender would, and runs it before it lets go.

use std::{fmt, string::String, vec::Vec};

use super::DeviceTx;
use crate::{
    cx::Cx, device::QueueId, host::Host, sysctl::qdisc::QdiscConfig, transmit::qdisc::QdiscStats,
};

/// One transmit queue of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxQueueStats {
    /// The device's name.
    pub device: String,
    /// Which of its queues.
    pub queue: QueueId,
    /// The discipline with its parameters, as `tc` writes it.
    pub qdisc: QdiscConfig,
    /// What it counts. The backlog includes packets that have left the discipline and wait for room in the device, as Linux's
    /// does.
    pub stats: QdiscStats,
    /// Packets that the device had no room for, each time it had none.
    pub requeues: u64,
    /// Bytes that the device may hold (`byte_queue_limits/limit`); `None` without completions.
    pub bql_limit: Option<u32>,
    /// Bytes that it holds (`byte_queue_limits/inflight`).
    pub bql_inflight: Option<u32>,
}

/// As `tc -s qdisc` prints it, with the byte queue limit that sysfs shows.
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
    /// The rows of this device.
    pub(crate) fn stats(&self, host: &Host, cx: &mut Cx) -> Vec<TxQueueStats> {
        let mut rows = Vec::with_capacity(self.queues.len());
        for queue in &self.queues {
            let mut guard = loop {
                // Without a trace: an owner who is made to run once more each time would never let go.
                match queue.state.own_if_idle() {
                    Some(guard) => break guard,
                    None => sync::yield_now(),
                }
            };
            guard.follow(self, cx);
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
            self.run(host, cx, queue, guard);
        }
        rows
    }
}
