//! Limits on connections that outlive their application handle: TIME-WAIT sockets
//! (`tcp_max_tw_buckets`) and orphans (`tcp_max_orphans`).

use std::sync::atomic::Ordering;

use super::Net;

impl Net {
    /// Counts one more TIME-WAIT socket, unless `limit` is reached. Returns whether it was counted.
    pub(crate) fn time_wait_admit(&self, limit: u32) -> bool {
        let limit = limit as usize;
        let admitted = self.time_waits.fetch_add(1, Ordering::Relaxed) < limit;
        if !admitted {
            self.time_wait_release();
        }
        admitted
    }

    pub(crate) fn time_wait_release(&self) {
        self.time_waits.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one more orphan, unless `limit` is reached. Returns whether it was counted.
    pub(crate) fn orphan_admit(&self, limit: u32) -> bool {
        let admitted = self.orphans.fetch_add(1, Ordering::Relaxed) < limit as usize;
        if !admitted {
            self.orphan_gone();
        }
        admitted
    }

    pub(crate) fn orphan_gone(&self) {
        self.orphans.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of orphans: connections without an application handle that have not
    /// ended.
    #[must_use]
    pub fn orphans(&self) -> usize {
        self.orphans.load(Ordering::Relaxed)
    }
}
