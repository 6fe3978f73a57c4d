//! The machine under a measurement: its CPUs, the CPU of a thread, and a thread's CPU time.
//!
//! Not here: noise. Each benchmark interleaves the arms it compares.

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPUs this process may use, in order.
pub fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("asking for the CPUs")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Returns the first two CPUs this process may use.
pub fn two_cpus() -> Result<[usize; 2]> {
    let cpus = cpus()?;
    ensure!(cpus.len() >= 2, "this needs two CPUs, and {} may be used", cpus.len());
    Ok([cpus[0], cpus[1]])
}

/// Binds the calling thread, and the threads it starts from here on, to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).with_context(|| format!("staying on CPU {cpu}"))
}

/// Returns the CPU time of the calling thread so far, in seconds.
pub fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
