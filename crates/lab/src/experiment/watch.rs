//! Other work of the machine: CPU time of other programs, and time that the hypervisor took.
//!
//! Linux: the first line of /proc/stat, in ticks of 10 ms. Differences over one condition, which
//! takes a second or more, are precise enough; those over a single run are not.

use std::{fs, time::Instant};

use rustix::time::{ClockId, clock_gettime};

/// Ticks of /proc/stat in a second: `sysconf(_SC_CLK_TCK)`, which Linux fixes at 100 for programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// Cumulative times, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Time of the clock on the wall, times the number of CPUs.
    pub capacity_s: f64,
    /// CPU time of this process.
    pub own_s: f64,
    /// CPU time of the whole machine that was not idle, without `steal_s`.
    pub busy_s: f64,
    /// Time in which the hypervisor ran something else.
    pub steal_s: f64,
}

impl Load {
    /// Returns the times after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            capacity_s: self.capacity_s - earlier.capacity_s,
            own_s: self.own_s - earlier.own_s,
            busy_s: self.busy_s - earlier.busy_s,
            steal_s: self.steal_s - earlier.steal_s,
        }
    }

    /// Part of the machine's CPU time that other programs used.
    #[must_use]
    pub fn foreign(&self) -> f64 {
        self.part(self.busy_s - self.own_s)
    }

    /// Part of the machine's CPU time that the hypervisor took.
    #[must_use]
    pub fn steal(&self) -> f64 {
        self.part(self.steal_s)
    }

    fn part(&self, seconds: f64) -> f64 {
        if self.capacity_s > 0.0 { (seconds / self.capacity_s).max(0.0) } else { 0.0 }
    }
}

/// Reads the cumulative times.
pub trait Watch {
    /// The times since some moment.
    fn read(&mut self) -> Load;
}

/// The times of this machine.
#[derive(Debug)]
pub struct MachineWatch {
    start: Instant,
}

impl MachineWatch {
    /// Starts at zero.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for MachineWatch {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch for MachineWatch {
    fn read(&mut self) -> Load {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(clippy::cast_precision_loss, reason = "seconds of one process")]
        let own_s = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
        let (cpus, busy_s, steal_s) = times(&stat);
        Load { capacity_s: self.start.elapsed().as_secs_f64() * cpus, own_s, busy_s, steal_s }
    }
}

/// CPUs, busy seconds and stolen seconds of /proc/stat; guest time is part of user time there.
fn times(stat: &str) -> (f64, f64, f64) {
    let cpus = stat.lines().filter(|line| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    #[expect(clippy::cast_precision_loss, reason = "a few thousand CPUs at most")]
    let cpus = cpus.count().max(1) as f64;
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let seconds = |index: usize| ticks.get(index).copied().unwrap_or(0.0) / TICKS_PER_SECOND;
    // user nice system idle iowait irq softirq steal
    let busy = [0, 1, 2, 5, 6].into_iter().map(seconds).sum();
    (cpus, busy, seconds(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_first_line() {
        let stat = "cpu  100 20 30 400 50 6 7 80 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n";
        let (cpus, busy, steal) = times(stat);
        assert_eq!((cpus, steal), (2.0, 0.8));
        assert!((busy - 1.63).abs() < 1e-9, "{busy}");
        assert_eq!(times(""), (1.0, 0.0, 0.0));
    }

    #[test]
    fn foreign_time_is_what_this_process_did_not_use() {
        let before = Load { capacity_s: 1.0, own_s: 0.5, busy_s: 10.0, steal_s: 1.0 };
        let after = Load { capacity_s: 5.0, own_s: 2.5, busy_s: 13.0, steal_s: 1.4 };
        let load = after.since(&before);
        assert!((load.foreign() - 0.25).abs() < 1e-12);
        assert!((load.steal() - 0.1).abs() < 1e-12);
        assert_eq!(Load::default().steal(), 0.0);
    }

    #[test]
    fn this_machine_s_times_grow() {
        let mut watch = MachineWatch::new();
        let before = watch.read();
        let mut sum = 0_u64;
        for number in 0..3_000_000_u64 {
            sum = sum.wrapping_add(std::hint::black_box(number));
        }
        std::hint::black_box(sum);
        let load = watch.read().since(&before);
        assert!(load.own_s > 0.0 && load.capacity_s > 0.0, "{load:?}");
    }
}
