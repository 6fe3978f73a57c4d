//! Threads of a workload: pinned to a CPU, with the CPU time that they used.

use std::{sync::OnceLock, time::Duration};

use quietline::{Snapshot, sans_io::Instant};
use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, Timespec, clock_gettime},
};

/// Time after which a workload without progress has failed.
pub(super) const STALL_MAX: Duration = Duration::from_secs(10);

/// The CPUs that a thread may use, restored when this is dropped.
#[derive(Debug)]
pub(crate) struct Pinned(Option<CpuSet>);

/// The CPUs that the process may use: those of the first thread that asks, which is not pinned yet.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let cpus = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).collect()
    })
}

impl Pinned {
    /// Pins the calling thread, and the threads that it starts until they pin themselves, to the
    /// CPU at `place` among those that the process may use. With one CPU all threads share it, and
    /// where the kernel refuses, nothing is pinned; both show in the results as contention.
    pub(crate) fn to(place: usize) -> Self {
        let cpus = allowed();
        let Ok(before) = sched_getaffinity(None) else { return Self(None) };
        let Some(&cpu) = cpus.get(place % cpus.len().max(1)) else { return Self(None) };
        let mut only = CpuSet::new();
        only.set(cpu);
        let pinned = sched_setaffinity(None, &only).is_ok();
        Self(pinned.then_some(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// CPU time of the calling thread, in seconds.
pub(crate) fn thread_cpu_s() -> f64 {
    seconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of the process, in seconds.
pub(super) fn process_cpu_s() -> f64 {
    seconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// The time, for contexts of the stack that a workload owns.
pub(super) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Instant::from_nanos(part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec))
}

fn seconds(time: Timespec) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "CPU seconds of a thread")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Counters of `names` as numbers per operation.
pub(super) fn per_operation(
    change: &Snapshot,
    names: &[&'static str],
    operations: f64,
) -> Vec<(&'static str, f64)> {
    let of = |&name: &&'static str| (name, count(change, name) / operations.max(1.0));
    names.iter().map(of).collect()
}

/// One counter; 0 if there is none of this name, which a test of the declarations excludes.
#[expect(clippy::cast_precision_loss, reason = "a few million")]
pub(super) fn count(change: &Snapshot, name: &str) -> f64 {
    change.get(name).unwrap_or(0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_gets_its_cpus_back() {
        let before = sched_getaffinity(None).expect("an affinity");
        {
            let _pinned = Pinned::to(1);
            assert_eq!(sched_getaffinity(None).expect("an affinity").count(), 1);
        }
        assert_eq!(sched_getaffinity(None).expect("an affinity").count(), before.count());
    }

    #[test]
    fn a_thread_that_a_pinned_thread_starts_gets_the_cpu_that_it_asks_for() {
        let cpus = allowed();
        let _pinned = Pinned::to(0);
        let is_set = |place: usize| {
            let _pinned = Pinned::to(place);
            sched_getaffinity(None).expect("an affinity").is_set(cpus[place % cpus.len()])
        };
        let other = std::thread::scope(|scope| scope.spawn(|| is_set(1)).join());
        assert!(other.expect("no panic") && is_set(0));
    }
}
