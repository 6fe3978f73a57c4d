//! The machine of a measurement: its CPUs, CPU affinity and CPU time of threads.
//!
//! Not here: protection against noise. Each benchmark interleaves the arms it compares.

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPUs this process may use, in order.
pub fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("cannot get the CPU affinity")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Returns the first two CPUs this process may use.
pub fn two_cpus() -> Result<[usize; 2]> {
    let cpus = cpus()?;
    ensure!(cpus.len() >= 2, "this benchmark needs two CPUs, but may use only {}", cpus.len());
    Ok([cpus[0], cpus[1]])
}

/// Binds the calling thread, and threads that it starts later, to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)
        .with_context(|| format!("cannot set the CPU affinity to CPU {cpu}"))
}

/// Returns the CPU time that the calling thread has used, in seconds.
pub fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
