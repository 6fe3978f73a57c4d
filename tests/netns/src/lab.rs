//! The environment of one test: a namespace, a directory, and exclusive use of the machine.
//!
//! Not here: topologies of one test. They are built in the test that needs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::namespace::Namespace;
use crate::process::Finished;
use crate::quietline::{Link, Quietline};

/// The kernel's address on the link.
pub const KERNEL: &str = "10.77.0.1";

/// The stack's address on the link.
pub const STACK: &str = "10.77.0.2";

/// The tests of one binary run one after the other, because each needs both cores and measures
/// time-outs.
static MACHINE: Mutex<()> = Mutex::new(());

/// The environment of a test. Dropping it removes all of it.
#[derive(Debug)]
pub struct Lab {
    /// The namespace with the kernel's end of the link.
    pub namespace: Namespace,
    directory: TempDir,
    _machine: MutexGuard<'static, ()>,
}

impl Lab {
    /// Makes the environment for `test`, which needs these programs; returns `None`, with the
    /// reason printed, if it is not available.
    pub fn open(test: &str, programs: &[&str]) -> Result<Option<Self>> {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lack) = lack(programs) {
            anyhow::ensure!(!strict(), "{test}: {lack}, and CI=true");
            println!("skipped: {test}: {lack}");
            return Ok(None);
        }
        Ok(Some(Self { namespace: Namespace::create()?, directory: scratch()?, _machine: machine }))
    }

    /// Returns the scratch directory, in memory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of a file in the scratch directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts `quietline serve` with these arguments on a link.
    pub fn serve(&self, link: &Link, words: &[&str]) -> Result<Quietline> {
        Quietline::serve(&self.namespace, link, words)
    }

    /// Runs `curl` with these arguments in the namespace.
    pub fn curl(&self, words: &[&str]) -> Result<Finished> {
        let mut command = self.namespace.command("curl");
        command.args(["--silent", "--show-error", "--max-time", "50"]).args(words);
        Finished::of(&mut command)
    }

    /// Lets the kernel in the namespace speak IPv6. Returns false if the kernel has none.
    pub fn enable_ipv6(&self) -> Result<bool> {
        if !Path::new("/proc/sys/net/ipv6").exists() {
            return Ok(false);
        }
        let line =
            "for conf in all default; do echo 0 >/proc/sys/net/ipv6/conf/$conf/disable_ipv6; done";
        self.shell(line)?;
        Ok(true)
    }

    /// Returns a counter of the kernel in the namespace, by nstat(8).
    pub fn kernel_counter(&self, name: &str) -> Result<u64> {
        let words = format!("nstat -asz {name} | awk '$1 == \"{name}\" {{ print $2 }}'");
        let line = self.namespace.shell(&words)?;
        line.trim().parse().with_context(|| format!("{name}: {line}"))
    }

    /// Waits until a kernel program listens on the port.
    pub fn wait_for_listener(&self, port: u16) -> Result<()> {
        let line = format!(
            "for i in $(seq 200); do ss -Hltn 'sport = :{port}' | grep -q . && exit 0; sleep 0.02; done; exit 1"
        );
        self.shell(&line).map(drop)
    }

    /// Runs a shell command in the namespace, in the scratch directory.
    pub fn shell(&self, line: &str) -> Result<String> {
        self.namespace.shell(&format!("cd '{}'\n{line}", self.directory().display()))
    }
}

/// Whether a skipped test is a failure.
fn strict() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Returns the reason why tests cannot run on this machine.
fn lack(programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("no /dev/net/tun".to_owned());
    }
    let missing = |program: &&&str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
        !command.status().is_ok_and(|status| status.success())
    };
    let program = ["ip", "sha256sum"].iter().chain(programs).find(missing)?;
    Some(format!("{program} is not installed"))
}

fn scratch() -> Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let builder = tempfile::Builder::new().prefix("quietline-").to_owned();
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }
        .context("making a scratch directory")
}
