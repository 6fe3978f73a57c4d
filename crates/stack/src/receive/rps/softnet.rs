//! Per-core counters in the format of /proc/net/softnet_stat.
//!
//! Linux: net/core/net-procfs.c, `softnet_seq_show`.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Receive counters of one core. All accesses are relaxed, because the counters order no other
/// data.
#[derive(Debug, Default)]
pub(crate) struct SoftnetCounts {
    /// Packets processed. Only the core's owner writes this counter, `time_squeeze`, `flow_limit`
    /// and `process_qlen`.
    pub(crate) processed: AtomicU64,
    pub(crate) time_squeeze: AtomicU64,
    pub(crate) flow_limit: AtomicU64,
    pub(crate) process_qlen: AtomicU64,
    /// Packets dropped. Written by each core that drops a packet for this core.
    pub(crate) dropped: AtomicU64,
    /// Kicks for the backlog. Written by each core that kicks this core.
    pub(crate) received_rps: AtomicU64,
}

impl SoftnetCounts {
    /// Adds to a counter that only the caller writes.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        if n != 0 {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Adds to a counter with several writers.
    #[inline]
    pub(crate) fn add_shared(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Counters of one core, as in one line of /proc/net/softnet_stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftnetStat {
    /// Packets processed on this core: from its backlog, and from its device queues unless steered
    /// to another core.
    pub processed: u64,
    /// Packets for this core that were dropped because its backlog was full or their flow exceeded
    /// the flow limit.
    pub dropped: u64,
    /// Turns (passes of the softirq work) that used up their budget while work was left.
    pub time_squeeze: u64,
    /// Kicks of this core by other cores for its backlog.
    pub received_rps: u64,
    /// Packets that the flow limit of this core dropped when this core steered them to others.
    pub flow_limit: u64,
    /// Packets in the backlog that this core has not taken yet.
    pub input_qlen: u64,
    /// Packets that this core has taken from the backlog but not processed yet.
    pub process_qlen: u64,
    /// Core number.
    pub core: u16,
}

impl fmt::Display for SoftnetStat {
    /// Writes the fifteen columns of Linux in hexadecimal: the low 32 bits of each number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unused = 0;
        let columns = [
            self.processed,
            self.dropped,
            self.time_squeeze,
            unused,
            unused,
            unused,
            unused,
            unused,
            unused,
            self.received_rps,
            self.flow_limit,
            self.input_qlen + self.process_qlen,
            u64::from(self.core),
            self.input_qlen,
            self.process_qlen,
        ];
        for (index, column) in columns.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{:08x}", column & 0xffff_ffff)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_have_the_format_of_linux() {
        let stat = SoftnetStat {
            processed: 0x1_0000_0012,
            dropped: 1,
            time_squeeze: 2,
            received_rps: 9,
            flow_limit: 10,
            input_qlen: 3,
            process_qlen: 8,
            core: 1,
        };
        assert_eq!(
            stat.to_string(),
            "00000012 00000001 00000002 00000000 00000000 00000000 00000000 00000000 00000000 \
             00000009 0000000a 0000000b 00000001 00000003 00000008"
        );
    }
}
