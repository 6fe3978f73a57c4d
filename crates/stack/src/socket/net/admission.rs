//! Bounds on what outlives its application: connections in TIME-WAIT (`tcp_max_tw_buckets`) and orphans (`tcp_max_orphans`).

use std::sync::atomic::Ordering;

use super::Net;

impl Net {
    /// Room for one more TIME-WAIT remnant within `limit`? Taken if so.
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

    /// Room for one more connection that nobody holds? Counted if so.
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

    /// Connections that nobody holds and that are not done.
    #[must_use]
    pub fn orphans(&self) -> usize {
        self.orphans.load(Ordering::Relaxed)
    }
}
