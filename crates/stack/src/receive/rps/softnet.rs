//! One line of /proc/net/softnet_stat for each core.
//!
//! Linux: net/core/net-procfs.c, `softnet_seq_show`.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// What a core counts of its receive work. Relaxed throughout: counters order nothing.
#[derive(Debug, Default)]
pub(crate) struct SoftnetCounts {
    /// Written by the core's owner, as are `time_squeeze`, `flow_limit` and `process_qlen`.
    pub(crate) processed: AtomicU64,
    pub(crate) time_squeeze: AtomicU64,
    pub(crate) flow_limit: AtomicU64,
    pub(crate) process_qlen: AtomicU64,
    /// Added to by whoever finds this core's backlog full.
    pub(crate) dropped: AtomicU64,
    /// Added to by whoever kicks this core for its backlog.
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

    /// Adds to a counter that several write.
    #[inline]
    pub(crate) fn add_shared(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// The columns of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftnetStat {
    /// Packets that went up on this core: from its device queues, unless another core got them, and from its backlog.
    pub processed: u64,
    /// Packets for this core that found its backlog full, or were too many of one flow.
    pub dropped: u64,
    /// Turns that ended with work left because the budget was used up.
    pub time_squeeze: u64,
    /// Times another core kicked this one for its backlog.
    pub received_rps: u64,
    /// Packets that this core dropped by the flow limit when it handed them on.
    pub flow_limit: u64,
    /// Packets in the backlog that this core has not looked at.
    pub input_qlen: u64,
    /// Packets of the backlog that it has taken and not yet carried up.
    pub process_qlen: u64,
    /// Number of the core.
    pub core: u16,
}

impl fmt::Display for SoftnetStat {
    /// The fifteen columns of Linux, hexadecimal, each the low 32 bits.
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
    fn columns_are_linux_s() {
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
