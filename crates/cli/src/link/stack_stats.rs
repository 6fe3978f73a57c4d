//! Statistics of a stack, as text and as JSON.

use quietline::{Snapshot, SoftnetStat, Stack, TxQueueStats};

use crate::output;

/// Counters of a stack, read at one moment.
#[derive(Debug)]
pub(crate) struct StackStats {
    /// Counters by their Linux names, summed over all cores.
    pub(super) counters: Snapshot,
    /// One `softnet_stat` line for each core.
    pub(super) softnet: Vec<SoftnetStat>,
    /// One row for each transmit queue.
    pub(super) tx_queues: Vec<TxQueueStats>,
}

impl StackStats {
    /// Reads the statistics of a stack.
    pub(super) fn of(stack: &Stack) -> Self {
        Self {
            counters: stack.counters(),
            softnet: stack.softnet_stat(),
            tx_queues: stack.tx_queue_stats(),
        }
    }

    /// Returns the text: the counters as nstat prints them, then /proc/net/softnet_stat, then the
    /// rows of tc -s qdisc. With `zeros`, counters that are zero are included.
    pub(crate) fn text(&self, zeros: bool) -> String {
        let lines: String = self.softnet.iter().map(|line| format!("{line}\n")).collect();
        let queues: String = self.tx_queues.iter().map(|row| format!("{row}\n")).collect();
        let counters = output::counter_lines(self.counters.iter(), zeros);
        format!("{counters}\nsoftnet_stat\n{lines}\n{queues}")
    }

    /// Adds the statistics to a JSON object. Counters that are zero are included, so that a program
    /// finds every name.
    pub(crate) fn add_to(&self, summary: &mut serde_json::Value) {
        summary["counters"] = output::counter_object(self.counters.iter());
        summary["softnet_stat"] = self.softnet.iter().map(softnet_object).collect();
        summary["qdisc"] = self.tx_queues.iter().map(queue_object).collect();
    }
}

fn softnet_object(stat: &SoftnetStat) -> serde_json::Value {
    serde_json::json!({
        "core": stat.core,
        "processed": stat.processed,
        "dropped": stat.dropped,
        "time_squeeze": stat.time_squeeze,
        "received_rps": stat.received_rps,
        "flow_limit": stat.flow_limit,
        "input_qlen": stat.input_qlen,
        "process_qlen": stat.process_qlen,
    })
}

fn queue_object(row: &TxQueueStats) -> serde_json::Value {
    serde_json::json!({
        "dev": row.device,
        "queue": row.queue.0,
        "kind": row.qdisc.to_string(),
        "bytes": row.stats.bytes,
        "packets": row.stats.packets,
        "drops": row.stats.drops,
        "overlimits": row.stats.overlimits,
        "requeues": row.requeues,
        "ecn_mark": row.stats.ecn_marks,
        "backlog": row.stats.backlog_bytes,
        "qlen": row.stats.qlen,
        "bql_limit": row.bql_limit,
        "bql_inflight": row.bql_inflight,
    })
}
