//! Datagrams of 64 bytes per second: in memory beside smoltcp, and over a tap beside the kernel's
//! sockets over a veth pair.
//!
//! Every end has the same program in three modes: a call for each datagram, a call for a batch, and
//! one buffer that is cut into datagrams (`UDP_SEGMENT`) and received joined (`UDP_GRO`). In memory
//! one thread runs both ends and counts received datagrams. Over a link, a client of the kernel's
//! sockets sends a window of datagrams to an echo server and receives the echoes; the server is
//! quietline or the same program on the kernel's sockets in a second namespace. A stack without a
//! call for batches or segments uses the nearest one that it has.
//!
//! The arms alternate, and each round reverses their order.
//!
//! Not here: the ends (`udp_ends`, `udp_kernel`), instructions (`counts`).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use netns_tests::{Lab, Namespace, Running, STACK};

use crate::RunArgs;
use crate::report::{self, Arm, Workload};
use crate::tap::{KERNEL_NET, PORT, TAP, cpu_seconds, wait_until_listening};
use crate::udp_ends::{self, End, Ends};
use crate::udp_kernel::KernelEnd;

/// Payload of a datagram.
pub const DATAGRAM_BYTES: usize = 64;

/// Datagrams of one batch, and of one window of the echo client.
pub const BATCH: usize = 32;

/// Datagrams between two reads of the clock.
const CHUNK: usize = 32 * BATCH;

/// Arguments of `udp`.
#[derive(Debug, Args)]
pub struct UdpArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Seconds of one measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
}

/// Arguments of the hidden command `udp-serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[arg(value_enum)]
    server: Server,
    #[arg(value_enum)]
    mode: Mode,
}

/// Calls that an end uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// One call for each datagram.
    One,
    /// One call for a batch.
    Batch,
    /// One call for a buffer of several datagrams: `UDP_SEGMENT`, `UDP_GRO`.
    Segments,
}

const MODES: [Mode; 3] = [Mode::One, Mode::Batch, Mode::Segments];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::One => "one by one",
            Self::Batch => "batches of 32",
            Self::Segments => "UDP_SEGMENT of 32",
        }
    }
}

/// Server of the echo service over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Server {
    /// Sockets of the kernel, over a veth pair.
    Kernel,
    /// quietline over a tap.
    Quietline,
}

/// The servers in the order of the report; ratios are to the first.
const SERVERS: [Server; 2] = [Server::Kernel, Server::Quietline];

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel, veth",
            Self::Quietline => "quietline, tap",
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &UdpArgs) -> Result<()> {
    let time = Duration::from_secs_f64(if args.run.smoke { 0.05 } else { args.seconds });
    let mut workloads = in_memory(args, time)?;
    if let Some(lab) = Lab::open("bench-peers udp over a link", &[])? {
        workloads.extend(over_link(args, &lab, time)?);
    }
    report::print("64-byte datagrams", &workloads, args.run.json);
    Ok(())
}

fn workload(place: &str, mode: Mode, arms: &[&str]) -> Workload {
    let name = format!("{place}, {}", mode.name());
    let arms = arms.iter().map(|name| Arm::new(name)).collect();
    Workload { name, unit: "Mpps", lower_is_better: false, arms }
}

/// Returns the indices of `count` arms, in reverse order in every second round.
fn order(round: usize, count: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..count).collect() } else { (0..count).rev().collect() }
}

fn in_memory(args: &UdpArgs, time: Duration) -> Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for mode in MODES {
        let mut arms = [
            ("smoltcp, checksums", udp_ends::smoltcp(mode, true)?),
            ("quietline, checksums", udp_ends::quietline(mode, true)?),
            ("smoltcp", udp_ends::smoltcp(mode, false)?),
            ("quietline", udp_ends::quietline(mode, false)?),
        ];
        let names: Vec<&str> = arms.iter().map(|(name, _)| *name).collect();
        let mut workload = workload("memory", mode, &names);
        for round in 0..args.run.repeats() {
            for index in order(round, arms.len()) {
                let (name, ends) = &mut arms[index];
                let rate = pass_for(ends, mode, time).with_context(|| name.to_owned())?;
                workload.arms[index].samples.push(rate);
            }
        }
        workloads.push(workload);
    }
    Ok(workloads)
}

/// Sends from one end to the other for the given time. Returns millions of received datagrams per
/// second.
fn pass_for(ends: &mut Ends, mode: Mode, time: Duration) -> Result<f64> {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        pass(ends, mode, CHUNK)?;
        count += CHUNK;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// Sends `count` datagrams, a multiple of [`BATCH`], from one end to the other: each is received
/// before the next one is sent, or each batch before the next one.
pub fn pass(ends: &mut Ends, mode: Mode, count: usize) -> Result<()> {
    let window = if mode == Mode::One { 1 } else { BATCH };
    for _ in 0..count / window {
        ends.client.send(window)?;
        let mut received = 0;
        while received < window {
            received += ends.server.receive()?;
        }
    }
    Ok(())
}

fn over_link(args: &UdpArgs, lab: &Lab, time: Duration) -> Result<Vec<Workload>> {
    let names = SERVERS.map(Server::name);
    let mut workloads = Vec::new();
    for mode in MODES {
        let mut workload = workload("echo", mode, &names);
        for round in 0..args.run.repeats() {
            for index in order(round, SERVERS.len()) {
                let (rate, cores) = echo(lab, SERVERS[index], mode, time)
                    .with_context(|| format!("{}, {}", SERVERS[index].name(), mode.name()))?;
                workload.arms[index].samples.push(rate);
                workload.arms[index].cores.push(cores);
            }
        }
        workloads.push(workload);
    }
    Ok(workloads)
}

/// Makes one measurement over a new link. Returns millions of echoes per second, and the CPU time
/// of the server's process per second.
fn echo(lab: &Lab, server: Server, mode: Mode, time: Duration) -> Result<(f64, f64)> {
    let far = match server {
        Server::Kernel => Some(veth(lab)?),
        Server::Quietline => None,
    };
    let mut command = far.as_ref().unwrap_or(&lab.namespace).command(std::env::current_exe()?);
    command.arg("udp-serve");
    for word in [server.to_possible_value(), mode.to_possible_value()] {
        command.arg(word.context("a hidden value")?.get_name());
    }
    let mut running = Running::start(&mut command)?;
    wait_until_listening(&mut running, server.name())?;
    let before = cpu_seconds(running.id())?;
    let start = Instant::now();
    let rate = lab.namespace.enter(|| echoes_for(mode, time))?;
    let cores = (cpu_seconds(running.id())? - before) / start.elapsed().as_secs_f64();
    ensure!(!running.has_ended()?, "the server ended: {}", running.stderr_so_far());
    running.kill();
    // The tap of quietline is deleted when its process ends.
    let _gone = lab.namespace.ip(&format!("link delete {TAP}"));
    Ok((rate, cores))
}

/// Joins a new namespace with the server's address to the lab's.
fn veth(lab: &Lab) -> Result<Namespace> {
    let far = Namespace::create()?;
    lab.namespace.ip(&format!("link add {TAP} type veth peer name far0"))?;
    lab.namespace.ip(&format!("link set far0 netns {}", far.name()))?;
    lab.namespace.ip(&format!("address add {KERNEL_NET} dev {TAP}"))?;
    lab.namespace.ip(&format!("link set {TAP} up"))?;
    far.ip(&format!("address add {STACK}/24 dev far0"))?;
    far.ip("link set far0 up")?;
    Ok(far)
}

/// Sends windows to the server and receives their echoes, for the given time. Returns millions of
/// echoes per second.
fn echoes_for(mode: Mode, time: Duration) -> Result<f64> {
    let server: SocketAddr = format!("{STACK}:{PORT}").parse()?;
    let mut client = KernelEnd::connect(server, mode)?;
    // The first datagram may wait for the neighbor.
    client.send(1)?;
    client.receive()?;
    let (mut start, mut count) = (Instant::now(), 0_usize);
    let warm_up = time / 10;
    let mut is_warm = false;
    while !is_warm || start.elapsed() < time {
        client.send(BATCH)?;
        let mut received = 0;
        while received < BATCH {
            received += client.receive()?;
        }
        count += BATCH;
        if !is_warm && start.elapsed() >= warm_up {
            (is_warm, start, count) = (true, Instant::now(), 0);
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// Echoes datagrams until killed.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let address: SocketAddr = format!("{STACK}:{PORT}").parse()?;
    let mut end: Box<dyn End> = match args.server {
        Server::Kernel => Box::new(KernelEnd::bind(address, args.mode)?),
        Server::Quietline => Box::new(udp_ends::over_tap(address, args.mode)?),
    };
    eprintln!("listening on {address}");
    loop {
        let received = end.receive()?;
        end.send(received)?;
    }
}
