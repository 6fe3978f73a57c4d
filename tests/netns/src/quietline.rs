//! The `quietline` command on its end of a link.
//!
//! Not here: the kernel's end. quietline itself gives the tap its kernel-side address (`--peer`) and brings it up.

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

/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long a signalled quietline may take to clean up.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How the link between kernel and stack is made.
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

/// The links every bulk transfer must survive.
pub const LINKS: [Link; 4] = [
    Link { kind: "tap", mtu: 1500, vnet_hdr: true, cores: 1 },
    Link { kind: "tap", mtu: 1500, vnet_hdr: false, cores: 1 },
    Link { kind: "tap", mtu: 9000, vnet_hdr: true, cores: 1 },
    Link { kind: "tap", mtu: 9000, vnet_hdr: false, cores: 1 },
];

impl Link {
    /// Its name in the namespace.
    pub const NAME: &str = "ql0";

    /// Cores of the stack. Modes that take packets from core to core need two.
    fn cores(&self) -> u16 {
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
    /// Starts `quietline serve` with these words on a link in the namespace, and waits until it listens.
    pub fn serve(namespace: &Namespace, link: &Link, words: &[&str]) -> Result<Self> {
        let link = link.arguments();
        let link = link.iter().map(String::as_str);
        Self::serve_with(namespace, &words.iter().copied().chain(link).collect::<Vec<_>>())
    }

    /// Starts `quietline serve` with these words, which name the link, and waits until it listens.
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

    /// Starts `quietline connect` to a port of the kernel, with this for its standard input.
    pub fn connect(namespace: &Namespace, link: &Link, port: u16, input: Stdio) -> Result<Running> {
        let mut command = namespace.command(binary()?);
        command.args(["connect", KERNEL, &port.to_string()]).args(modes());
        command.args(link.arguments());
        Running::start_with_input(command.stdin(input))
    }

    /// The process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// CPU time of all its threads so far.
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

    /// What it has printed to standard error so far.
    #[must_use]
    pub fn stderr_so_far(&self) -> String {
        self.running.stderr_so_far()
    }

    /// Fails when the server has ended by itself.
    pub fn assert_alive(&mut self) -> Result<()> {
        let ended = self.running.has_ended()?;
        ensure!(!ended, "quietline ended by itself: {}", self.running.stderr_so_far());
        Ok(())
    }

    /// Waits until it ends by itself.
    pub fn wait(self, limit: Duration) -> Result<Finished> {
        self.running.wait(limit)
    }

    /// Ctrl-C: waits for its end and returns what it printed.
    pub fn interrupt(self) -> Result<Finished> {
        self.running.signal(Signal::INT)?;
        self.running.wait(STOP_LIMIT)
    }

    /// SIGKILL: nothing of ours runs after it.
    pub fn kill(mut self) {
        self.running.kill();
    }
}

/// The mode in which the suite runs, as arguments: `QUIETLINE_SYSCTL=NAME=VALUE,...`. What a test sets itself comes later, and
/// wins.
#[must_use]
pub fn modes() -> Vec<String> {
    let settings = std::env::var("QUIETLINE_SYSCTL").unwrap_or_default();
    let settings = settings.split(',').filter(|setting| !setting.is_empty());
    settings.map(|setting| format!("--sysctl={setting}")).collect()
}

/// What a test says that is about superframes, whatever the mode says.
pub const SUPERFRAMES: [&str; 3] = [
    "--sysctl=net.quietline.dev.default.gso=1",
    "--sysctl=net.quietline.dev.default.gro=1",
    "--sysctl=net.quietline.dev.default.gro_max_size=65536",
];

/// Cores that the mode needs: two where it takes packets from core to core.
fn cores_of_modes() -> u16 {
    1 + u16::from(modes().iter().any(|mode| mode.contains(".rps_")))
}

/// The `quietline` to test: `QUIETLINE_BIN`, or a release build made here.
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
