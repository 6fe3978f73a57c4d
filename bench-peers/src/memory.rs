//! Two hosts of one stack in memory: what a packet costs, and whether idle sockets change it.
//!
//! Not here: the hosts (`smoltcp_memory`).

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::RunArgs;
use crate::report::{self, Arm, Workload};
use crate::smoltcp_memory::{Pair, Setup};

/// Idle sockets per host.
const IDLE: [usize; 5] = [0, 10, 100, 1_000, 10_000];

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Seconds of one measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
}

/// Runs the bench.
pub fn run(args: &MemoryArgs) -> Result<()> {
    let seconds = if args.run.smoke { 0.1 } else { args.seconds };
    let mut workloads = Vec::new();
    for idle_sockets in IDLE {
        workloads.push(one(args, Duration::from_secs_f64(seconds), idle_sockets)?);
    }
    report::print("two hosts in memory, MTU 1500, one stream", &workloads, args.run.json);
    Ok(())
}

/// One workload: every arm in turn, as often as asked.
fn one(args: &MemoryArgs, time: Duration, idle_sockets: usize) -> Result<Workload> {
    let mut arms = [Arm::new("smoltcp, checksums"), Arm::new("smoltcp, no checksums")];
    let setup = |checksums| Setup { mtu: 1500, checksums, idle_sockets };
    let mut with = Pair::connect(setup(true))?;
    let mut without = Pair::connect(setup(false))?;
    for _ in 0..args.run.repeats() {
        for (arm, pair) in arms.iter_mut().zip([&mut with, &mut without]) {
            let stream = pair.stream(time);
            arm.samples.push(gigabits(stream.bytes, stream.took));
        }
    }
    Ok(Workload {
        name: format!("{idle_sockets} idle sockets"),
        unit: "Gbit/s",
        lower_is_better: false,
        arms: arms.to_vec(),
    })
}

/// Throughput in Gbit/s.
pub fn gigabits(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8.0 / took.as_secs_f64() / 1e9
}
