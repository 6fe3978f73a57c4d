//! One stream in memory, compared with the minimal cost of its bytes on one core: a copy with
//! checksum from the application, and one to the application.
//!
//! The bound has no packets and no TCP: it copies application memory to buffers of the size of a
//! packet's payload and back, by the same copy with checksum that the stack uses. A second
//! comparison runs two flows on two cores of the same two hosts, and one of the flows alone.
//!
//! Not here: idle sockets (`memory`).

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use pkt::checksum::copy_and_sum;

use crate::machine::{pin, two_cpus};
use crate::memory::gigabits;
use crate::quietline_memory::{self, Flow};
use crate::report::{self, Arm, Workload};
use crate::smoltcp_memory::{self, COPY_BYTES};

/// Payload of a full segment at MTU 1500 without options, and of the largest superframe.
const SEGMENT_BYTES: usize = 1460;
const SUPERFRAME_BYTES: usize = 44 * SEGMENT_BYTES;

/// Bytes between sender and receiver of the bound: the size of the send buffers of the measured
/// hosts.
const IN_FLIGHT_BYTES: usize = 1 << 20;

/// Arguments of `bulk`.
#[derive(Debug, Args)]
pub struct BulkArgs {
    /// Measurements of each arm per workload, interleaved.
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeat: usize,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Only check that every workload runs: one short measurement each.
    #[arg(long)]
    smoke: bool,
    /// Seconds of one measurement.
    #[arg(long, value_name = "S", default_value_t = 0.2)]
    seconds: f64,
}

/// Measurement of one arm: runs for the given time and returns Gbit/s.
type Measure = Box<dyn FnMut(Duration) -> Result<f64>>;

/// Runs the benchmark.
pub fn run(args: &BulkArgs) -> Result<()> {
    let time = Duration::from_secs_f64(if args.smoke { 0.05 } else { args.seconds });
    let repeats = if args.smoke { 1 } else { args.repeat.max(1) };
    let cpus = two_cpus()?;
    let workloads: Result<Vec<Workload>> = thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            pin(cpus[0])?;
            Ok(vec![
                interleave("superframes", superframes()?, time, repeats)?,
                interleave("MTU 1500, checksums", segments(true)?, time, repeats)?,
                interleave("MTU 1500", segments(false)?, time, repeats)?,
                interleave("superframes, 2 cores", flows(true, cpus)?, time, repeats)?,
                interleave("MTU 1500, checksums, 2 cores", flows(false, cpus)?, time, repeats)?,
            ])
        });
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    report::print("bulk in memory", &workloads?, args.json);
    Ok(())
}

/// Measures every arm in turn, `repeats` times, in alternating order.
fn interleave(
    name: &str,
    mut arms: Vec<(&'static str, Measure)>,
    time: Duration,
    repeats: usize,
) -> Result<Workload> {
    let mut results: Vec<Arm> = arms.iter().map(|(name, _)| Arm::new(name)).collect();
    for round in 0..=repeats {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (arm, measure) = &mut arms[index];
            let sample = measure(time).with_context(|| format!("{name}: {arm}"))?;
            // The first round is a warm-up, in which windows and buffers grow.
            if round > 0 {
                results[index].samples.push(sample);
            }
        }
    }
    let unit = "Gbit/s";
    Ok(Workload { name: name.to_owned(), unit, lower_is_better: false, arms: results })
}

fn superframes() -> Result<Vec<(&'static str, Measure)>> {
    Ok(vec![
        ("bound, copy and checksum", bound(SUPERFRAME_BYTES, true)),
        ("bound, copy", bound(SUPERFRAME_BYTES, false)),
        ("quietline", quietline(false, true)?),
    ])
}

fn segments(checksums: bool) -> Result<Vec<(&'static str, Measure)>> {
    let setup = smoltcp_memory::Setup { mtu: 1500, checksums, idle_sockets: 0 };
    let mut streams: Vec<(&'static str, Measure)> = Vec::new();
    let mut pair = smoltcp_memory::Pair::connect(setup)?;
    streams.push((
        "smoltcp",
        Box::new(move |time| {
            let stream = pair.stream(time);
            Ok(gigabits(stream.bytes, stream.took))
        }),
    ));
    streams.push(("quietline", quietline(checksums, false)?));
    streams.push(("bound", bound(SEGMENT_BYTES, checksums)));
    Ok(streams)
}

fn quietline(checksums: bool, superframes: bool) -> Result<Measure> {
    let setup = quietline_memory::Setup { checksums, superframes, idle_sockets: 0 };
    let mut pair = quietline_memory::Pair::connect(setup)?;
    Ok(Box::new(move |time| {
        let stream = pair.stream(time)?;
        Ok(gigabits(stream.bytes, stream.took))
    }))
}

/// Copies application memory → packets → application memory, one packet of `payload` bytes after
/// the other.
fn bound(payload: usize, checksums: bool) -> Measure {
    let source = vec![0x5a; COPY_BYTES];
    let mut sink = vec![0; COPY_BYTES];
    let mut packets = vec![vec![0; payload]; IN_FLIGHT_BYTES.div_ceil(payload)];
    Box::new(move |time| {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..4 {
                let mut taken = 0;
                for packet in &mut packets {
                    taken = cycle(taken, COPY_BYTES, payload);
                    transfer(packet, &source[taken..][..payload], checksums);
                }
                for packet in &packets {
                    taken = cycle(taken, COPY_BYTES, payload);
                    transfer(&mut sink[taken..][..payload], packet, checksums);
                }
                bytes += (packets.len() * payload) as u64;
            }
        }
        Ok(gigabits(bytes, start.elapsed()))
    })
}

/// Returns the next position of `payload` bytes in memory of `length`, restarting at the beginning
/// after the end.
fn cycle(at: usize, length: usize, payload: usize) -> usize {
    if at + 2 * payload <= length { at + payload } else { 0 }
}

fn transfer(to: &mut [u8], from: &[u8], checksums: bool) {
    if checksums {
        std::hint::black_box(copy_and_sum(to, from));
    } else {
        to.copy_from_slice(from);
        std::hint::black_box(to);
    }
}

/// Measures one flow alone, then two at the same time, each on its own core and CPU.
fn flows(superframes: bool, cpus: [usize; 2]) -> Result<Vec<(&'static str, Measure)>> {
    let setup = quietline_memory::Setup { checksums: !superframes, superframes, idle_sockets: 0 };
    let flows = std::sync::Arc::new(quietline_memory::two_flows(setup)?);
    let alone = std::sync::Arc::clone(&flows);
    Ok(vec![
        ("1 core, 1 flow", Box::new(move |time| one_flow(&alone[0], time)) as Measure),
        ("2 cores, 2 flows", Box::new(move |time| both_flows(&flows, cpus, time))),
    ])
}

fn one_flow(flow: &Flow, time: Duration) -> Result<f64> {
    let stream = flow.stream(time)?;
    Ok(gigabits(stream.bytes, stream.took))
}

/// Returns the summed throughput of two flows that start together.
fn both_flows(flows: &[Flow; 2], cpus: [usize; 2], time: Duration) -> Result<f64> {
    let begin = Barrier::new(2);
    thread::scope(|scope| {
        let running: Vec<_> = flows
            .iter()
            .zip(cpus)
            .map(|(flow, cpu)| {
                let begin = &begin;
                scope.spawn(move || -> Result<f64> {
                    pin(cpu)?;
                    begin.wait();
                    one_flow(flow, time)
                })
            })
            .collect();
        running
            .into_iter()
            .map(|flow| flow.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum()
    })
}
