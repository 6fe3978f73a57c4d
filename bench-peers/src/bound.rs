//! The kernel through a tap with vnet_hdr. The other end is quietline, or a program without a stack
//! (`bound_tcp`).
//!
//! *kernel → user*: the kernel writes, `quietline serve discard` reads. *user → kernel*:
//! `quietline serve chargen` writes, the kernel reads. The writer is measured in three ways: with
//! superframes of the default size (BIG TCP), the same without a copy from the application, and
//! with superframes of 64 KB. Every measurement starts a new program on a new tap in one namespace.
//! The programs alternate, and each round reverses their order.
//!
//! Not here: other stacks (`tap`).

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use netns_tests::{Lab, Running, STACK, binary};

use crate::memory::gigabits;
use crate::report::{self, Arm, Workload};
use crate::tap::{
    KERNEL_NET, LIMIT, PORT, SenderArgs, TAP, cpu_seconds, upload, wait_until_listening,
};

/// Arguments of `bound`.
#[derive(Debug, Clone, Args)]
pub struct BoundArgs {
    /// Measurements of each program per direction, interleaved.
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeat: usize,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Only check that every workload runs: one short measurement each.
    #[arg(long)]
    smoke: bool,
    /// Bytes of one transfer.
    #[arg(long, value_name = "N", default_value_t = 1 << 30)]
    bytes: u64,
    /// MTU of the tap.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    #[command(flatten)]
    sender: SenderArgs,
}

/// Direction of the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromKernel,
    ToKernel,
}

const DIRECTIONS: [Direction; 2] = [Direction::FromKernel, Direction::ToKernel];

/// Program at the other end; ratios are to the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Bound,
    Quietline,
    /// quietline without a copy from the application, like the bound.
    QuietlineZeroCopy,
    /// quietline with superframes of at most 64 KB.
    QuietlineWithoutBigTcp,
}

/// Setting that disables BIG TCP.
const SIZE_64_KB: &str = "net.quietline.dev.default.gso_ipv4_max_size=65536";

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Quietline => "quietline",
            Self::QuietlineZeroCopy => "quietline, zero-copy",
            Self::QuietlineWithoutBigTcp => "quietline, 64 KB",
        }
    }

    /// Returns the programs to measure. The kernel's tap sends no superframes above 64 KB.
    fn of(direction: Direction) -> &'static [Self] {
        match direction {
            Direction::FromKernel => &[Self::Bound, Self::Quietline],
            Direction::ToKernel => &[
                Self::Bound,
                Self::Quietline,
                Self::QuietlineZeroCopy,
                Self::QuietlineWithoutBigTcp,
            ],
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &BoundArgs) -> Result<()> {
    let Some(lab) = Lab::open("bench-peers bound", &[])? else { return Ok(()) };
    let repeats = if args.smoke { 1 } else { args.repeat.max(1) };
    let bytes = if args.smoke { args.bytes.min(64 << 20) } else { args.bytes };
    let args = BoundArgs { bytes, ..args.clone() };
    let mut workloads = DIRECTIONS.map(|direction| {
        let name = match direction {
            Direction::FromKernel => "kernel → user",
            Direction::ToKernel => "user → kernel",
        };
        let arms = Program::of(direction).iter().map(|program| Arm::new(program.name())).collect();
        Workload { name: name.to_owned(), unit: "Gbit/s", lower_is_better: false, arms }
    });
    for round in 0..repeats {
        for (direction, workload) in DIRECTIONS.into_iter().zip(&mut workloads) {
            let mut order: Vec<_> = Program::of(direction).iter().copied().enumerate().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for (index, program) in order {
                let (sample, cores) = measure(&lab, program, direction, &args)
                    .with_context(|| format!("{} {direction:?}", program.name()))?;
                workload.arms[index].samples.push(sample);
                workload.arms[index].cores.push(cores);
            }
        }
    }
    let title = format!("the kernel through a tap with vnet_hdr, MTU {}", args.mtu);
    report::print(&title, &workloads, args.json);
    Ok(())
}

/// Measures one transfer: returns Gbit/s, and the program's CPU time per second.
fn measure(
    lab: &Lab,
    program: Program,
    direction: Direction,
    args: &BoundArgs,
) -> Result<(f64, f64)> {
    let mut server = start(lab, program, direction, args.mtu)?;
    let address: SocketAddr = format!("{STACK}:{PORT}").parse()?;
    let before = cpu_seconds(server.id())?;
    let start = Instant::now();
    let sample = lab.namespace.enter(|| match direction {
        Direction::FromKernel => upload(address, args.bytes, &args.sender.congestion),
        Direction::ToKernel => download(address, args.bytes),
    })?;
    let took = start.elapsed().as_secs_f64();
    let cores = (cpu_seconds(server.id())? - before) / took;
    ensure!(!server.has_ended()?, "the server ended: {}", server.stderr_so_far());
    server.kill();
    // The kernel may already have deleted the tap when its process ended.
    let _gone = lab.namespace.ip(&format!("link delete {TAP}"));
    Ok((sample, cores))
}

fn start(lab: &Lab, program: Program, direction: Direction, mtu: u32) -> Result<Running> {
    let to_kernel = direction == Direction::ToKernel;
    let mut command = match program {
        Program::Bound => {
            let mut command = lab.namespace.command(std::env::current_exe()?);
            command.args(["bound-serve", if to_kernel { "write" } else { "read" }]);
            command.args(["--tap", TAP, "--peer", KERNEL_NET, "--address", STACK]);
            command
        }
        Program::Quietline | Program::QuietlineZeroCopy | Program::QuietlineWithoutBigTcp => {
            let mut command = lab.namespace.command(binary()?);
            command.args(["serve", if to_kernel { "chargen" } else { "discard" }]);
            command.arg(format!("--link=tap:{TAP}"));
            command.args([&format!("--address={STACK}/24"), &format!("--peer={KERNEL_NET}")]);
            match program {
                Program::QuietlineZeroCopy => {
                    command.arg("--zerocopy");
                }
                Program::QuietlineWithoutBigTcp => {
                    command.args(["--sysctl", SIZE_64_KB]);
                }
                Program::Bound | Program::Quietline => {}
            }
            command
        }
    };
    command.args(["--port", &PORT.to_string(), "--mtu", &mtu.to_string()]);
    let mut server = Running::start(&mut command)?;
    wait_until_listening(&mut server, program.name())?;
    Ok(server)
}

/// Reads `bytes` bytes of an endless stream, then closes the connection.
fn download(address: SocketAddr, bytes: u64) -> Result<f64> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut block = vec![0; 1 << 20];
    let start = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left)?.min(block.len());
        let taken = stream.read(&mut block[..count])?;
        ensure!(taken > 0, "the stream ended {left} bytes early");
        left -= taken as u64;
    }
    Ok(gigabits(bytes, start.elapsed()))
}
