//! Instructions per packet and per round trip, counted with valgrind. The load of the machine does
//! not affect these numbers.
//!
//! `steady` does a fixed amount of work on one thread. `counts` runs it under callgrind twice, the
//! second time with twice the work, so that the difference is the cost of the work alone. Valgrind
//! has no AVX-512, so checksums and copies use AVX2.
//!
//! The count of a stream still depends on time, because its timers and the size of its bursts do:
//! compare several runs.
//!
//! Not here: time. An instruction that waits for memory counts like any other.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use crate::report::{self, Arm, Workload};
use crate::rr::Mode;
use crate::rr_ends::{self, Ends};
use crate::smoltcp_memory;
use crate::udp::{self, Mode as Calls};
use crate::udp_ends;
use crate::{quietline_memory, smoltcp_memory::Setup};

/// glibc settings that make it copy with vector instructions at every length, because valgrind
/// counts every byte of `rep movsb` as an instruction.
const COPIES: &str = "glibc.cpu.x86_rep_movsb_threshold=100000000:\
    glibc.cpu.x86_rep_stosb_threshold=100000000:glibc.cpu.x86_non_temporal_threshold=100000000";

/// Arguments of `counts`.
#[derive(Debug, Args)]
pub struct CountsArgs {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Run only this work.
    #[arg(long, value_enum)]
    work: Option<Work>,
}

/// Arguments of the hidden command `steady`.
#[derive(Debug, Args)]
pub struct SteadyArgs {
    #[arg(value_enum)]
    stack: Stack,
    #[arg(value_enum)]
    work: Work,
    /// Number of units of work.
    #[arg(long, value_name = "N")]
    count: u64,
}

/// The measured stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    /// smoltcp, the stack that quietline is compared with.
    Smoltcp,
    /// quietline.
    Quietline,
}

/// Work to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// 1-byte round trips.
    Rr,
    /// Segments with 1448 bytes of payload; counts both ends, including acknowledgments.
    Segments,
    /// Like `segments`, with checksums.
    Checksums,
    /// 64 KB of payload in superframes.
    Superframes,
    /// Datagrams of 64 bytes, each with its own calls.
    Datagrams,
    /// Datagrams of 64 bytes in batches of 32.
    DatagramBatches,
    /// Datagrams of 64 bytes, 32 cut from one buffer.
    DatagramSegments,
}

impl Work {
    /// Returns the name of the work, and its amount in the shorter of the two runs.
    fn describe(self) -> (&'static str, u64) {
        match self {
            Self::Rr => ("1-byte round trip", 2_000),
            Self::Segments => ("1448 bytes, MTU 1500", 10_000),
            Self::Checksums => ("1448 bytes, MTU 1500, checksums", 10_000),
            Self::Superframes => ("64 KB by superframes", 2_000),
            Self::Datagrams => ("64-byte datagram", 3_200),
            Self::DatagramBatches => ("64-byte datagram, batches of 32", 3_200),
            Self::DatagramSegments => ("64-byte datagram, UDP_SEGMENT of 32", 3_200),
        }
    }

    /// Returns the calls of a work of datagrams.
    fn calls(self) -> Option<Calls> {
        match self {
            Self::Datagrams => Some(Calls::One),
            Self::DatagramBatches => Some(Calls::Batch),
            Self::DatagramSegments => Some(Calls::Segments),
            Self::Rr | Self::Segments | Self::Checksums | Self::Superframes => None,
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &CountsArgs) -> Result<()> {
    let mut workloads = Vec::new();
    for work in Work::value_variants()
        .iter()
        .copied()
        .filter(|work| args.work.is_none_or(|only| only == *work))
    {
        let (name, count) = work.describe();
        let mut arms = Vec::new();
        for (stack, arm) in [(Stack::Smoltcp, "smoltcp"), (Stack::Quietline, "quietline")] {
            if (stack, work) == (Stack::Smoltcp, Work::Superframes) {
                // smoltcp's segmentation offload needs a device that segments, and this link does
                // not.
                continue;
            }
            let once = instructions(stack, work, count)?;
            let twice = instructions(stack, work, 2 * count)?;
            let each = twice.saturating_sub(once) as f64 / count as f64;
            arms.push(Arm { samples: vec![each], ..Arm::new(arm) });
        }
        let unit = "instr.";
        workloads.push(Workload { name: name.to_owned(), unit, lower_is_better: true, arms });
    }
    report::print("instructions, both ends", &workloads, args.json);
    Ok(())
}

/// Returns the number of instructions of one run of `steady`.
fn instructions(stack: Stack, work: Work, count: u64) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(std::env::current_exe()?).arg("steady");
    for word in [stack.to_possible_value(), work.to_possible_value()] {
        command.arg(word.context("a hidden value")?.get_name());
    }
    command.arg(format!("--count={count}"));
    let output = command
        .env("GLIBC_TUNABLES", COPIES)
        .output()
        .context("cannot run valgrind, which counts the instructions")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind: {}\n{said}", output.status);
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.with_context(|| format!("valgrind printed no count:\n{said}"))?;
    number.trim().parse().with_context(|| format!("not a count: {number}"))
}

/// Does a fixed amount of work on one thread.
pub fn steady(args: &SteadyArgs) -> Result<()> {
    if let Some(calls) = args.work.calls() {
        let mut ends = match args.stack {
            Stack::Smoltcp => udp_ends::smoltcp(calls, false)?,
            Stack::Quietline => udp_ends::quietline(calls, false)?,
        };
        return udp::pass(&mut ends, calls, usize::try_from(args.count)?);
    }
    let bytes = args.count * if args.work == Work::Superframes { 64 << 10 } else { 1448 };
    let checksums = args.work == Work::Checksums;
    match (args.stack, args.work) {
        (Stack::Smoltcp, Work::Rr) => round_trips(rr_ends::smoltcp(Mode::OneThread)?, args.count),
        (Stack::Quietline, Work::Rr) => {
            round_trips(rr_ends::quietline(Mode::OneThread)?, args.count)
        }
        (Stack::Smoltcp, _) => {
            let setup = Setup { mtu: 1500, checksums, idle_sockets: 0 };
            smoltcp_memory::Pair::connect(setup)?.stream_bytes(bytes);
            Ok(())
        }
        (Stack::Quietline, _) => {
            let superframes = args.work == Work::Superframes;
            let setup = quietline_memory::Setup { checksums, superframes, idle_sockets: 0 };
            quietline_memory::Pair::connect(setup)?.stream_bytes(bytes)
        }
    }
}

fn round_trips(ends: Ends, count: u64) -> Result<()> {
    let Ends { mut client, mut server } = ends;
    for _ in 0..count {
        client.send()?;
        server.receive()?;
        server.send()?;
        client.receive()?;
    }
    Ok(())
}
