//! Comparison of quietline with smoltcp 0.14, on one machine, in one run, interleaved.
//!
//! `memory` connects two hosts of one stack by an in-memory link and measures the cost of a packet
//! with a growing number of idle sockets. `rr` measures the cost of a round trip of one byte,
//! `bulk` compares a stream with the cost of its copies alone, and `counts` counts the instructions
//! of these workloads. `tap` runs each stack on a tap in a network namespace and transfers bytes to
//! and from the kernel; `bound` does the same and compares with a program that has no stack. `udp`
//! counts datagrams in memory and over a tap.
//!
//! No crate depends on this one.
//!
//! Not here: tuning of smoltcp beyond the suggestions of its documentation (1 MiB buffers, no
//! delayed ACK, release build).
#![forbid(unsafe_code)]

mod bound;
mod bound_tcp;
mod bulk;
mod counts;
mod machine;
mod memory;
mod quietline_memory;
mod report;
mod rr;
mod rr_ends;
mod smoltcp_host;
mod smoltcp_memory;
mod smoltcp_tap;
mod tap;
mod udp;
mod udp_ends;
mod udp_kernel;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Compare quietline with smoltcp 0.14.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Two hosts of one stack, connected in memory: one stream, 0 to 10,000 idle sockets.
    Memory(memory::MemoryArgs),
    /// The kernel through a tap: download, upload and one-byte round trips. Needs root.
    Tap(tap::TapArgs),
    /// 1-byte round trips in memory, compared with smoltcp and the kernel's loopback: spinning, on
    /// one thread, blocking.
    Rr(rr::RrArgs),
    /// One stream in memory, compared with its copies and checksums alone; two flows on two cores.
    Bulk(bulk::BulkArgs),
    /// The kernel through a tap with vnet_hdr, compared with a program that has no stack. Needs
    /// root.
    Bound(bound::BoundArgs),
    /// 64-byte datagrams: in memory compared with smoltcp, and as root over a tap compared with the
    /// kernel's sockets.
    Udp(udp::UdpArgs),
    /// Instructions per packet and per round trip, counted with valgrind.
    Counts(counts::CountsArgs),
    /// A fixed amount of work on one thread, run by `counts`.
    #[command(hide = true)]
    Steady(counts::SteadyArgs),
    /// The program without a stack, started by `bound`.
    #[command(hide = true)]
    BoundServe(bound_tcp::ServeArgs),
    /// An echo server for datagrams, started by `udp`.
    #[command(hide = true)]
    UdpServe(udp::ServeArgs),
    /// One smoltcp server on an existing tap, started by `tap`.
    #[command(hide = true)]
    SmoltcpServe(smoltcp_tap::ServeArgs),
}

/// Number of measurements and output format.
#[derive(Debug, Clone, Args)]
struct RunArgs {
    /// Measurements of each stack per workload, interleaved.
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Only check that every workload runs: one short measurement each.
    #[arg(long)]
    smoke: bool,
}

impl RunArgs {
    /// Returns the number of measurements per stack and workload.
    fn repeats(&self) -> usize {
        if self.smoke { 1 } else { self.repeat.max(1) }
    }
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Memory(args) => memory::run(&args),
        Command::Tap(args) => tap::run(&args),
        Command::Rr(args) => rr::run(&args),
        Command::Bulk(args) => bulk::run(&args),
        Command::Bound(args) => bound::run(&args),
        Command::Udp(args) => udp::run(&args),
        Command::UdpServe(args) => udp::serve(&args),
        Command::Counts(args) => counts::run(&args),
        Command::Steady(args) => counts::steady(&args),
        Command::BoundServe(args) => bound_tcp::serve(&args),
        Command::SmoltcpServe(args) => smoltcp_tap::serve(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}
