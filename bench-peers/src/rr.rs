//! A round trip of one byte in memory: its cost if both ends spin, if one thread runs both ends,
//! and if both ends sleep.
//!
//! Every measurement connects a new pair and pins its threads. The arms alternate, and each round
//! reverses their order. `floor` is the cost of a notification between two threads that wait in the
//! same way, without any stack.
//!
//! Not here: the ends themselves (`rr_ends`).

use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::machine::{pin, thread_seconds, two_cpus};
use crate::report::{self, Arm, Workload};
use crate::rr_ends::{self, End, Ends};

/// Arguments of `rr`.
#[derive(Debug, Args)]
pub struct RrArgs {
    /// Measurements of each arm per mode, interleaved.
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeat: usize,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Only check that every workload runs: one short measurement each.
    #[arg(long)]
    smoke: bool,
    /// Round trips of one measurement if no thread sleeps; a quarter of that if threads sleep.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    round_trips: usize,
}

/// Number of threads, their CPUs, and the way they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Two threads that never sleep, on two CPUs.
    Spin,
    /// One thread that runs both ends.
    OneThread,
    /// Two threads on one CPU, which sleep until they have a byte to read.
    BlockOneCpu,
    /// Two threads on two CPUs, which sleep until they have a byte to read.
    BlockTwoCpus,
}

const MODES: [Mode; 4] = [Mode::Spin, Mode::OneThread, Mode::BlockOneCpu, Mode::BlockTwoCpus];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin on 2 CPUs",
            Self::OneThread => "one thread, its CPU time",
            Self::BlockOneCpu => "block on 1 CPU",
            Self::BlockTwoCpus => "block on 2 CPUs",
        }
    }

    /// Whether an end sleeps until it has a byte to read.
    pub fn blocks(self) -> bool {
        matches!(self, Self::BlockOneCpu | Self::BlockTwoCpus)
    }
}

/// The compared stacks. Ratios are relative to the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stack {
    Smoltcp,
    Quietline,
    Kernel,
    Floor,
}

const STACKS: [Stack; 4] = [Stack::Smoltcp, Stack::Quietline, Stack::Kernel, Stack::Floor];

impl Stack {
    fn name(self) -> &'static str {
        match self {
            Self::Smoltcp => "smoltcp",
            Self::Quietline => "quietline",
            Self::Kernel => "kernel loopback",
            Self::Floor => "floor",
        }
    }

    fn ends(self, mode: Mode) -> Result<Ends> {
        match self {
            Self::Smoltcp => rr_ends::smoltcp(mode),
            Self::Quietline => rr_ends::quietline(mode),
            Self::Kernel => rr_ends::kernel(mode),
            Self::Floor => Ok(rr_ends::floor(mode)),
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &RrArgs) -> Result<()> {
    let repeats = if args.smoke { 1 } else { args.repeat.max(1) };
    let round_trips = if args.smoke { 400 } else { args.round_trips.max(4) };
    let cpus = two_cpus()?;
    let arms = || STACKS.iter().map(|stack| Arm::new(stack.name())).collect();
    let mut workloads = MODES.map(|mode| Workload {
        name: mode.name().to_owned(),
        unit: "µs",
        lower_is_better: true,
        arms: arms(),
    });
    for round in 0..repeats {
        for (mode, workload) in MODES.into_iter().zip(&mut workloads) {
            let count = if mode.blocks() { round_trips / 4 } else { round_trips };
            let mut order: Vec<usize> = (0..STACKS.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let stack = STACKS[index];
                // One thread needs no notification, so it has no floor.
                if stack == Stack::Floor && mode == Mode::OneThread {
                    continue;
                }
                let sample = measure(stack, mode, cpus, count)
                    .with_context(|| format!("{}, {}", stack.name(), mode.name()))?;
                workload.arms[index].samples.push(sample);
            }
        }
    }
    for workload in &mut workloads {
        workload.arms.retain(|arm| !arm.samples.is_empty());
    }
    report::print("1-byte round trips in memory", &workloads, args.json);
    Ok(())
}

/// Returns microseconds per round trip of one new pair. The measurement has its own threads, so
/// that the caller's CPU affinity does not change.
fn measure(stack: Stack, mode: Mode, cpus: [usize; 2], count: usize) -> Result<f64> {
    thread::scope(|scope| {
        let measuring = scope.spawn(move || {
            // Pinned before the pair is created, so that threads of the stack inherit the CPU.
            pin(cpus[0])?;
            let Ends { mut client, mut server } = stack.ends(mode)?;
            if mode == Mode::OneThread {
                return one_thread(&mut *client, &mut *server, count);
            }
            let warm_up = count / 10;
            let server_cpu = if mode == Mode::BlockOneCpu { cpus[0] } else { cpus[1] };
            thread::scope(|scope| {
                let serving = scope.spawn(move || -> Result<()> {
                    pin(server_cpu)?;
                    for _ in 0..warm_up + count {
                        server.receive()?;
                        server.send()?;
                    }
                    Ok(())
                });
                let took = two_threads(&mut *client, warm_up, count);
                // If the client failed, the server still waits; dropping the client wakes it.
                drop(client);
                let served =
                    serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let took = took?;
                served?;
                Ok(took)
            })
        });
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn two_threads(client: &mut dyn End, warm_up: usize, count: usize) -> Result<f64> {
    for _ in 0..warm_up {
        client.send()?;
        client.receive()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        client.send()?;
        client.receive()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
}

fn one_thread(client: &mut dyn End, server: &mut dyn End, count: usize) -> Result<f64> {
    let mut round_trips = |count: usize| -> Result<()> {
        for _ in 0..count {
            client.send()?;
            server.receive()?;
            server.send()?;
            client.receive()?;
        }
        Ok(())
    };
    round_trips(count / 10)?;
    let before = thread_seconds();
    round_trips(count)?;
    Ok((thread_seconds() - before) * 1e6 / count as f64)
}
