//! Two hosts of one stack in memory: the cost of a packet, and how idle sockets affect it.
//!
//! quietline's wire passes partial checksums, like veth. Both stacks are measured with and without
//! checksums.
//!
//! Not here: the hosts (`quietline_memory`, `smoltcp_memory`).

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::report::{self, Arm, Workload};
use crate::smoltcp_memory::Stream;
use crate::{RunArgs, quietline_memory, smoltcp_memory};

/// Numbers of idle sockets per host.
const IDLE: [usize; 6] = [0, 1, 10, 100, 1_000, 10_000];

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Seconds of one measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
}

/// A connected pair of hosts of one stack, which streams for the given time.
type Streamer = Box<dyn FnMut(Duration) -> Result<Stream>>;

/// Runs the benchmark.
pub fn run(args: &MemoryArgs) -> Result<()> {
    let seconds = if args.run.smoke { 0.1 } else { args.seconds };
    let mut workloads = Vec::new();
    for idle_sockets in IDLE {
        workloads.push(one(args, Duration::from_secs_f64(seconds), idle_sockets)?);
    }
    report::print("two hosts in memory, MTU 1500, one stream", &workloads, args.run.json);
    Ok(())
}

/// Measures one workload: runs every arm in turn, as often as requested.
fn one(args: &MemoryArgs, time: Duration, idle_sockets: usize) -> Result<Workload> {
    let mut arms = [
        ("smoltcp, checksums", smoltcp(true, idle_sockets)?),
        ("quietline, checksums", quietline(true, false, idle_sockets)?),
        ("smoltcp", smoltcp(false, idle_sockets)?),
        ("quietline", quietline(false, false, idle_sockets)?),
        ("quietline, superframes", quietline(false, true, idle_sockets)?),
    ];
    let mut results: Vec<Arm> = arms.iter().map(|(name, _)| Arm::new(name)).collect();
    for round in 0..args.run.repeats() {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (name, stream) = &mut arms[index];
            let stream = stream(time).with_context(|| format!("{name}, {idle_sockets} idle"))?;
            results[index].samples.push(gigabits(stream.bytes, stream.took));
        }
    }
    Ok(Workload {
        name: format!("{idle_sockets} idle sockets"),
        unit: "Gbit/s",
        lower_is_better: false,
        arms: results,
    })
}

fn smoltcp(checksums: bool, idle_sockets: usize) -> Result<Streamer> {
    let setup = smoltcp_memory::Setup { mtu: 1500, checksums, idle_sockets };
    let mut pair = smoltcp_memory::Pair::connect(setup)?;
    Ok(Box::new(move |time| Ok(pair.stream(time))))
}

fn quietline(checksums: bool, superframes: bool, idle_sockets: usize) -> Result<Streamer> {
    let setup = quietline_memory::Setup { checksums, superframes, idle_sockets };
    let mut pair = quietline_memory::Pair::connect(setup)?;
    Ok(Box::new(move |time| pair.stream(time)))
}

/// Returns the throughput in Gbit/s.
pub fn gigabits(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8.0 / took.as_secs_f64() / 1e9
}
