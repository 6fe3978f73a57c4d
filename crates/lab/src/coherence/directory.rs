//! The directory: for every line its valid copies, its modified copy, and until when a transfer
//! occupies it.

use super::costs::Costs;

/// CPUs of a machine. A set of them is one number.
pub(super) const CPUS_MAX: usize = 128;

/// A cache line, by its number in a [`Layout`](super::Layout).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub(super) u32);

impl LineId {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Kind of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs a valid copy.
    Read,
    /// Needs the only copy. The CPU's store buffer waits for it, not the CPU.
    Write,
    /// Atomic read-modify-write: needs the only copy, and the locked instruction itself costs
    /// [`Costs::rmw_ns`].
    Rmw,
}

/// State of one line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// CPUs with a valid copy.
    sharers: u128,
    /// Whether the only sharer has modified its copy.
    modified: bool,
    /// End of the transfer that occupies the line.
    free_at: f64,
    /// Number of changes of its value: a compare-and-swap fails if there was one since its read.
    pub(super) version: u64,
    /// CPUs that have a compare-and-swap under way.
    pub(super) attempts: u32,
}

/// End of an access and whether it needed a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Done {
    pub(super) at: f64,
    pub(super) missed: bool,
}

impl Line {
    /// Performs an access of `cpu` that is requested at `now`, in nanoseconds. Requests of one line
    /// are made in the order of time, and served in that order.
    pub(super) fn access(&mut self, cpu: u8, access: Access, now: f64, costs: &Costs) -> Done {
        let own = 1_u128 << cpu;
        let instruction = if access == Access::Rmw { costs.rmw_ns } else { 0.0 };
        let has_copy = self.sharers & own != 0;
        let hit = has_copy && (access == Access::Read || self.sharers == own);
        let start = now.max(if hit { 0.0 } else { self.free_at });
        let transfer = if hit { costs.local_ns } else { self.transfer_ns(cpu, access, costs) };
        let at = start + transfer + instruction;
        if !hit {
            self.free_at = at;
        } else if access == Access::Rmw {
            // A locked instruction holds its line until it has completed.
            self.free_at = self.free_at.max(at);
        }
        match access {
            Access::Read if !has_copy => {
                // The owner's modified copy is written back: both copies are clean from here on.
                self.sharers |= own;
                self.modified = false;
            }
            Access::Read => {}
            Access::Write | Access::Rmw => {
                self.sharers = own;
                self.modified = true;
            }
        }
        Done { at, missed: !hit }
    }

    /// Keeps the line for `ns` after its last transfer: a critical section on it.
    pub(super) fn hold(&mut self, ns: f64) -> f64 {
        self.free_at += ns;
        self.free_at
    }

    fn transfer_ns(&self, cpu: u8, access: Access, costs: &Costs) -> f64 {
        let own = 1_u128 << cpu;
        let others = self.sharers & !own;
        let local = costs.socket_mask(cpu);
        // A read is served by the nearest copy. A write waits for the farthest copy to be invalid.
        let is_remote = match access {
            Access::Read => others != 0 && others & local == 0,
            Access::Write | Access::Rmw => others & !local != 0,
        };
        let base = if self.modified && access == Access::Read {
            costs.dirty_read_ns
        } else if self.modified {
            costs.dirty_ns
        } else if self.sharers & own != 0 {
            costs.upgrade_ns
        } else {
            costs.clean_ns
        };
        if is_remote { base * costs.socket_factor } else { base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        local_ns: 1.0,
        clean_ns: 50.0,
        upgrade_ns: 40.0,
        dirty_ns: 80.0,
        dirty_read_ns: 80.0,
        rmw_ns: 5.0,
        socket_factor: 2.0,
        cpus_per_socket: 2,
        ..Costs::PUBLISHED
    };

    #[test]
    fn a_line_that_one_cpu_uses_costs_one_transfer() {
        let mut line = Line::default();
        assert_eq!(line.access(0, Access::Read, 0.0, &COSTS), Done { at: 50.0, missed: true });
        assert_eq!(line.access(0, Access::Write, 100.0, &COSTS), Done { at: 101.0, missed: false });
        assert_eq!(line.access(0, Access::Rmw, 200.0, &COSTS), Done { at: 206.0, missed: false });
    }

    #[test]
    fn readers_share_a_line_and_a_writer_takes_it_from_all() {
        let mut line = Line::default();
        line.access(0, Access::Read, 0.0, &COSTS);
        line.access(1, Access::Read, 100.0, &COSTS);
        assert!(!line.access(0, Access::Read, 200.0, &COSTS).missed);
        // Its own copy is valid: the other one is invalidated, and no data moves.
        assert_eq!(line.access(0, Access::Write, 300.0, &COSTS).at, 340.0);
        // Modified elsewhere: the dirty cost.
        assert_eq!(line.access(1, Access::Read, 400.0, &COSTS).at, 480.0);
        // Written back by the read: clean from here on, and still shared by both.
        assert!(!line.access(0, Access::Read, 500.0, &COSTS).missed);
    }

    #[test]
    fn transfers_of_one_line_follow_each_other() {
        let mut line = Line::default();
        assert_eq!(line.access(0, Access::Rmw, 0.0, &COSTS).at, 55.0);
        assert_eq!(line.access(1, Access::Rmw, 10.0, &COSTS).at, 140.0);
        assert_eq!(line.access(0, Access::Rmw, 60.0, &COSTS).at, 225.0);
    }

    #[test]
    fn a_line_from_another_socket_costs_the_factor() {
        let mut line = Line::default();
        line.access(0, Access::Write, 0.0, &COSTS);
        assert_eq!(line.access(2, Access::Write, 100.0, &COSTS).at, 260.0);
        // A reader of the first socket, then a second one, which reads the nearer copy.
        assert_eq!(line.access(0, Access::Read, 300.0, &COSTS).at, 460.0);
        assert_eq!(line.access(1, Access::Read, 500.0, &COSTS).at, 550.0);
        // CPU 0 has a copy, but one on the other socket must be invalidated.
        assert_eq!(line.access(0, Access::Write, 600.0, &COSTS).at, 680.0);
    }
}
