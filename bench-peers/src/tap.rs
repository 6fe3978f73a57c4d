//! The kernel through a tap, with each stack in turn at the other end: download with curl, upload,
//! and one-byte round trips.
//!
//! Every measurement starts a new server on a new tap in one namespace. The stacks alternate, and
//! each round reverses their order, so that a change in the machine's load affects all of them.
//!
//! Not here: correctness. The bytes that these servers send are not verified here, but in
//! `tests/netns`.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use netns_tests::{Finished, Lab, Running, STACK, binary};
use rustix::net::{self, AddressFamily, SocketType, sockopt};

use crate::RunArgs;
use crate::memory::gigabits;
use crate::report::{self, Arm, Workload, median};

/// The kernel's end of the tap.
pub const KERNEL_NET: &str = "10.77.0.1/24";
/// Name of the tap.
pub const TAP: &str = "ql0";
/// Port of every server.
pub const PORT: u16 = 5001;
/// Upper bound of every wait.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Arguments of `tap`.
#[derive(Debug, Args)]
pub struct TapArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Bytes of one transfer.
    #[arg(long, value_name = "N", default_value_t = 1 << 30)]
    bytes: u64,
    /// One-byte round trips of one measurement.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    round_trips: usize,
    /// MTU of the tap.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    #[command(flatten)]
    sender: SenderArgs,
}

/// Options of the kernel's sender.
#[derive(Debug, Clone, Args)]
pub struct SenderArgs {
    /// Congestion control of the kernel's sender. One that paces, such as bbr, sends at its
    /// estimate of the path's rate, independent of the reader.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    pub congestion: String,
}

/// The measured stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stack {
    Quietline,
    QuietlineNoOffload,
    Smoltcp,
}

/// Stacks in the order of the report. Ratios are relative to the first.
const STACKS: [Stack; 3] = [Stack::Smoltcp, Stack::Quietline, Stack::QuietlineNoOffload];

impl Stack {
    fn name(self) -> &'static str {
        match self {
            Self::Quietline => "quietline",
            Self::QuietlineNoOffload => "quietline -no-vnet",
            Self::Smoltcp => "smoltcp",
        }
    }
}

/// The measured work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Download,
    Upload,
    RoundTrips,
}

const TASKS: [Task; 3] = [Task::Download, Task::Upload, Task::RoundTrips];

impl Task {
    fn service(self) -> &'static str {
        match self {
            Self::Download => "http",
            Self::Upload => "discard",
            Self::RoundTrips => "echo",
        }
    }

    fn workload(self) -> Workload {
        let (name, unit, lower_is_better) = match self {
            Self::Download => ("stack → curl", "Gbit/s", false),
            Self::Upload => ("kernel → stack", "Gbit/s", false),
            Self::RoundTrips => ("1-byte round trip p50", "µs", true),
        };
        let arms = STACKS.iter().map(|stack| Arm::new(stack.name())).collect();
        Workload { name: name.to_owned(), unit, lower_is_better, arms }
    }
}

/// Runs the benchmark.
pub fn run(args: &TapArgs) -> Result<()> {
    let Some(lab) = Lab::open("bench-peers tap", &["curl"])? else { return Ok(()) };
    let bench = Bench {
        bytes: if args.run.smoke { args.bytes.min(64 << 20) } else { args.bytes },
        round_trips: if args.run.smoke { args.round_trips.min(500) } else { args.round_trips },
        mtu: args.mtu,
        congestion: args.sender.congestion.clone(),
        lab,
    };
    bench.write_body()?;
    let mut workloads = TASKS.map(Task::workload);
    for round in 0..args.run.repeats() {
        for (task, workload) in TASKS.iter().zip(&mut workloads) {
            let mut order: Vec<usize> = (0..STACKS.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (sample, cores) = bench
                    .measure(STACKS[index], *task)
                    .with_context(|| format!("{} {task:?}", STACKS[index].name()))?;
                workload.arms[index].samples.push(sample);
                workload.arms[index].cores.push(cores);
            }
        }
    }
    let title = format!("the kernel through a tap, MTU {}", args.mtu);
    report::print(&title, &workloads, args.run.json);
    Ok(())
}

/// State shared by all measurements.
struct Bench {
    lab: Lab,
    bytes: u64,
    round_trips: usize,
    mtu: u32,
    congestion: String,
}

impl Bench {
    /// Writes the file that `quietline serve http` sends; smoltcp's server sends the same number of
    /// bytes from memory.
    fn write_body(&self) -> Result<()> {
        let mut file = BufWriter::new(File::create(self.lab.file("bulk"))?);
        let block = vec![0x5a; 1 << 20];
        let mut left = self.bytes;
        while left > 0 {
            let count = usize::try_from(left)?.min(block.len());
            file.write_all(&block[..count])?;
            left -= count as u64;
        }
        file.flush().context("cannot write the body")
    }

    /// Makes one measurement. Returns the sample, and the CPU time of the server's process per
    /// second.
    fn measure(&self, stack: Stack, task: Task) -> Result<(f64, f64)> {
        let mut server = self.start(stack, task)?;
        let address: SocketAddr = format!("{STACK}:{PORT}").parse()?;
        let before = cpu_seconds(server.id())?;
        let start = Instant::now();
        let sample = match task {
            Task::Download => self.download()?,
            Task::Upload => {
                self.lab.namespace.enter(|| upload(address, self.bytes, &self.congestion))?
            }
            Task::RoundTrips => {
                self.lab.namespace.enter(|| round_trips(address, self.round_trips))?
            }
        };
        let took = start.elapsed().as_secs_f64();
        let cores = (cpu_seconds(server.id())? - before) / took;
        ensure!(!server.has_ended()?, "the server ended: {}", server.stderr_so_far());
        server.kill();
        self.remove_tap();
        Ok((sample, cores))
    }

    fn start(&self, stack: Stack, task: Task) -> Result<Running> {
        let namespace = &self.lab.namespace;
        let mut command = match stack {
            Stack::Smoltcp => {
                self.add_tap()?;
                let mut command = namespace.command(std::env::current_exe()?);
                command.args(["smoltcp-serve", task.service(), "--tap", TAP, "--address", STACK]);
                command.args(["--bytes", &self.bytes.to_string()]);
                command
            }
            Stack::Quietline | Stack::QuietlineNoOffload => {
                let mut command = namespace.command(binary()?);
                command.args(["serve", task.service(), &format!("--link=tap:{TAP}")]);
                command.args([&format!("--address={STACK}/24"), &format!("--peer={KERNEL_NET}")]);
                command.arg(format!("--mtu={}", self.mtu));
                if task == Task::Download {
                    command.arg("--dir").arg(self.lab.directory());
                }
                if stack == Stack::QuietlineNoOffload {
                    command.arg("--no-vnet-hdr");
                }
                command
            }
        };
        command.args(["--port", &PORT.to_string()]);
        let mut server = Running::start(&mut command)?;
        wait_until_listening(&mut server, stack.name())?;
        Ok(server)
    }

    /// Adds a tap for a stack that does not create its own.
    fn add_tap(&self) -> Result<()> {
        let namespace = &self.lab.namespace;
        namespace.ip(&format!("tuntap add dev {TAP} mode tap"))?;
        namespace.ip(&format!("link set {TAP} mtu {}", self.mtu))?;
        namespace.ip(&format!("address add {KERNEL_NET} dev {TAP}"))?;
        namespace.ip(&format!("link set {TAP} up"))?;
        Ok(())
    }

    fn remove_tap(&self) {
        // The tap of quietline is deleted when its process ends.
        let _gone = self.lab.namespace.ip(&format!("link delete {TAP}"));
    }

    fn download(&self) -> Result<f64> {
        let url = format!("http://{STACK}:{PORT}/bulk");
        let mut command = self.lab.namespace.command("curl");
        command.args(["-sSf", "-o", "/dev/null", "-w", "%{size_download} %{time_total}", &url]);
        let printed = Running::start(&mut command)?.wait(LIMIT).and_then(Finished::success)?;
        let (size, seconds) = printed.split_once(' ').context("curl printed nothing")?;
        ensure!(size.parse::<u64>()? == self.bytes, "curl received {size} of {} bytes", self.bytes);
        Ok(gigabits(self.bytes, Duration::from_secs_f64(seconds.parse()?)))
    }
}

/// Waits until a server prints that it is listening.
pub fn wait_until_listening(server: &mut Running, name: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !server.stderr_so_far().contains("listening") {
        if server.has_ended()? || Instant::now() > deadline {
            bail!("{name} did not start: {}", server.stderr_so_far());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Connects a kernel socket that uses this congestion control from its first segment on. Replacing
/// a pacing congestion control later would leave pacing enabled.
fn connect(address: SocketAddr, congestion: &str) -> Result<TcpStream> {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_tcp_congestion(&socket, congestion)
        .with_context(|| format!("cannot set the congestion control {congestion}"))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(LIMIT))?;
    net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

/// Sends `bytes` bytes, and waits until the server has read all of them and closed.
pub fn upload(address: SocketAddr, bytes: u64, congestion: &str) -> Result<f64> {
    let mut stream = connect(address, congestion)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let block = vec![0x5a; 1 << 20];
    let start = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left)?.min(block.len());
        stream.write_all(&block[..count])?;
        left -= count as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    Ok(gigabits(bytes, start.elapsed()))
}

/// Returns the median of `count` one-byte round trips in microseconds.
fn round_trips(address: SocketAddr, count: usize) -> Result<f64> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut samples = Vec::with_capacity(count);
    let mut byte = [0];
    for _ in 0..count {
        let start = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut byte)?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&samples))
}

/// Returns the user and system time that a process has used, in seconds.
pub fn cpu_seconds(process: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The command name, in parentheses, may contain spaces; utime and stime are the 12th and 13th
    // fields after it.
    let fields = text.rsplit(')').next().context("an empty stat file")?;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    // The unit is a hundredth of a second (USER_HZ).
    Ok(ticks.iter().sum::<f64>() / 100.0)
}
