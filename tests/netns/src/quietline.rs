//! The `quietline` command on its end of a link.
//!
//! Not here: the kernel's end. quietline itself sets the tap's address on the kernel side
//! (`--peer`) and brings it up.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use crate::lab::{KERNEL, STACK};
use crate::namespace::Namespace;
use crate::process::{Finished, Running};

/// Time limit for a server to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for the clean-up after a signal.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Configuration of the link between kernel and stack.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// `tap` or `tun`.
    pub kind: &'static str,
    /// MTU of both ends.
    pub mtu: u32,
    /// Checksum and segmentation offload across the link.
    pub vnet_hdr: bool,
    /// Cores of the stack, and queues of the link.
    pub cores: u16,
}

impl Default for Link {
    fn default() -> Self {
        Self { kind: "tap", mtu: 1500, vnet_hdr: true, cores: 1 }
    }
}

/// Links that every bulk transfer is tested on.
pub const LINKS: [Link; 4] = [
    Link { kind: "tap", mtu: 1500, vnet_hdr: true, cores: 1 },
    Link { kind: "tap", mtu: 1500, vnet_hdr: false, cores: 1 },
    Link { kind: "tap", mtu: 9000, vnet_hdr: true, cores: 1 },
    Link { kind: "tap", mtu: 9000, vnet_hdr: false, cores: 1 },
];

impl Link {
    /// Name of the link in the namespace.
    pub const NAME: &str = "ql0";

    /// Returns the number of cores. Modes that steer packets between cores need two.
    pub(crate) fn cores(&self) -> u16 {
        self.cores.max(cores_of_modes())
    }

    fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            format!("--link={}:{}", self.kind, Self::NAME),
            format!("--address={STACK}/24"),
            format!("--peer={KERNEL}/24"),
            format!("--mtu={}", self.mtu),
            format!("--cores={}", self.cores()),
        ];
        if !self.vnet_hdr {
            words.push("--no-vnet-hdr".to_owned());
        }
        words
    }
}

/// A running `quietline serve`.
#[derive(Debug)]
pub struct Quietline {
    running: Running,
}

impl Quietline {
    /// Starts `quietline serve` with these arguments on a link in the namespace, and waits until it
    /// listens.
    pub fn serve(namespace: &Namespace, link: &Link, words: &[&str]) -> Result<Self> {
        let link = link.arguments();
        let link = link.iter().map(String::as_str);
        Self::serve_with(namespace, &words.iter().copied().chain(link).collect::<Vec<_>>())
    }

    /// Starts `quietline serve` with these arguments, which name the link, and waits until it
    /// listens.
    pub fn serve_with(namespace: &Namespace, words: &[&str]) -> Result<Self> {
        let mut command = namespace.command(binary()?);
        command.arg("serve").args(modes()).args(words);
        if !words.iter().any(|word| word.starts_with("--cores")) {
            command.arg(format!("--cores={}", cores_of_modes()));
        }
        let mut running = Running::start(&mut command)?;
        let deadline = Instant::now() + START_LIMIT;
        while !running.stderr_so_far().contains("listening") {
            let ended = running.has_ended()?;
            if ended || Instant::now() >= deadline {
                let why = if ended { "ended" } else { "never listened" };
                bail!("quietline serve {why}: {}", running.stderr_so_far());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { running })
    }

    /// Starts `quietline connect` to a port of the kernel, with `input` as its standard input.
    pub fn connect(namespace: &Namespace, link: &Link, port: u16, input: Stdio) -> Result<Running> {
        let mut command = namespace.command(binary()?);
        command.args(["connect", KERNEL, &port.to_string()]).args(modes());
        command.args(link.arguments());
        Running::start_with_input(command.stdin(input))
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Returns the CPU time of all its threads so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().context("three numbers")?;
            nanos += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.running.signal(signal)
    }

    /// Returns the standard error output so far.
    #[must_use]
    pub fn stderr_so_far(&self) -> String {
        self.running.stderr_so_far()
    }

    /// Waits until the standard error output contains `text`.
    pub fn wait_for_stderr(&mut self, text: &str, limit: Duration) -> Result<()> {
        self.running.wait_for_stderr(text, limit)
    }

    /// Fails if the server has ended by itself.
    pub fn assert_alive(&mut self) -> Result<()> {
        let ended = self.running.has_ended()?;
        ensure!(!ended, "quietline ended by itself: {}", self.running.stderr_so_far());
        Ok(())
    }

    /// Waits until the server ends by itself.
    pub fn wait(self, limit: Duration) -> Result<Finished> {
        self.running.wait(limit)
    }

    /// Sends SIGINT, waits for the end and returns the output.
    pub fn interrupt(self) -> Result<Finished> {
        self.running.signal(Signal::INT)?;
        self.running.wait(STOP_LIMIT)
    }

    /// Sends SIGKILL: no clean-up runs.
    pub fn kill(mut self) {
        self.running.kill();
    }
}

/// Returns the mode of the suite as arguments, from `QUIETLINE_SYSCTL=NAME=VALUE,...`. Later
/// settings of a test take precedence.
#[must_use]
pub fn modes() -> Vec<String> {
    let settings = std::env::var("QUIETLINE_SYSCTL").unwrap_or_default();
    let settings = settings.split(',').filter(|setting| !setting.is_empty());
    settings.map(|setting| format!("--sysctl={setting}")).collect()
}

/// Settings of tests about superframes, which override the mode.
pub const SUPERFRAMES: [&str; 3] = [
    "--sysctl=net.quietline.dev.default.gso=1",
    "--sysctl=net.quietline.dev.default.gro=1",
    "--sysctl=net.quietline.dev.default.gro_max_size=65536",
];

/// Returns the number of cores that the mode needs: two if it steers packets between cores.
fn cores_of_modes() -> u16 {
    1 + u16::from(modes().iter().any(|mode| mode.contains(".rps_")))
}

/// Returns the `quietline` to test: `QUIETLINE_BIN`, or a release build made here.
pub fn binary() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = BINARY.get_or_init(|| locate().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn locate() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("QUIETLINE_BIN") {
        return PathBuf::from(path).canonicalize().context("QUIETLINE_BIN");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--release", "-p", "quietline-cli", "--bin", "quietline"]);
    let status = command.current_dir(&root).status().context("starting cargo")?;
    ensure!(status.success(), "building quietline: {status}");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root.join(target)
        .join("release/quietline")
        .canonicalize()
        .context("finding the built quietline")
}
