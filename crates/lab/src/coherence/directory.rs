//! The directory: for every line its valid copies, its modified copy, and until when a transfer occupies it.

use super::machine::Costs;

/// CPUs of a machine. A set of them is one number.
pub(super) const CPUS_MAX: usize = 128;

/// A cache line, by its number in a [`Layout`](super::Layout).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub(super) u32);

/// What a CPU does to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs a valid copy.
    Read,
    /// Needs the only copy.
    Write,
    /// Atomic read-modify-write: needs the only copy, and the locked instruction itself costs [`Costs::rmw_ns`].
    Rmw,
}

/// State of one line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// CPUs with a valid copy.
    sharers: u128,
    /// Whether the only sharer has modified its copy.
    modified: bool,
    /// Last CPU that fetched the line; says which socket it comes from.
    last: u8,
    /// End of the transfer that occupies the line.
    free_at: f64,
}

/// End of an access and whether it needed a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Done {
    pub(super) at: f64,
    pub(super) missed: bool,
}

impl Line {
    /// Performs an access of `cpu` that is requested at `now`, in nanoseconds.
    pub(super) fn access(&mut self, cpu: u8, access: Access, now: f64, costs: &Costs) -> Done {
        let own = 1_u128 << cpu;
        let instruction = if access == Access::Rmw { costs.rmw_ns } else { 0.0 };
        let has_copy = self.sharers & own != 0;
        let is_only = self.sharers == own;
        let hit = has_copy && (access == Access::Read || is_only);
        let start = now.max(if hit { 0.0 } else { self.free_at });
        let transfer = if hit { costs.local_ns } else { self.transfer_ns(cpu, costs) };
        let at = start + transfer + instruction;
        if !hit {
            self.last = cpu;
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

    fn transfer_ns(&self, cpu: u8, costs: &Costs) -> f64 {
        let base = if self.modified { costs.dirty_ns } else { costs.clean_ns };
        let is_remote = self.sharers != 0 && costs.socket_of(self.last) != costs.socket_of(cpu);
        if is_remote { base * costs.socket_factor } else { base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        local_ns: 1.0,
        clean_ns: 50.0,
        dirty_ns: 80.0,
        rmw_ns: 5.0,
        socket_factor: 2.0,
        cpus_per_socket: 2,
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
        assert!(line.access(0, Access::Write, 300.0, &COSTS).missed);
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
    }
}
