//! A network namespace that exists as long as its value.
//!
//! Counterpart: ip-netns(8). Names contain the process id, so that two runs on one machine do not
//! collide.
//!
//! Not here: the programs inside (`process`).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::Finished;

/// Numbers the namespaces of this process. Relaxed: only uniqueness counts.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace, removed on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace with its loopback device up. IPv6 is disabled in its kernel, because the
    /// packets that it sends unasked (neighbor and router solicitations, multicast reports) would
    /// be counted with those of a test.
    pub fn create() -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ql-{}-{number}", std::process::id());
        Finished::of(Command::new("ip").args(["netns", "add", &name]))?.success()?;
        let namespace = Self { name };
        namespace.shell(
            "for conf in all default; do \
               file=/proc/sys/net/ipv6/conf/$conf/disable_ipv6; [ ! -e $file ] || echo 1 >$file; \
             done; ip link set lo up",
        )?;
        Ok(namespace)
    }

    /// Returns the name that ip-netns(8) uses.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes a command that runs inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` with these arguments inside, and returns its output.
    pub fn ip(&self, words: &str) -> Result<String> {
        self.tool("ip", words)
    }

    /// Runs a program with these arguments inside, and returns its output.
    pub fn tool(&self, program: &str, words: &str) -> Result<String> {
        let mut command = self.command(program);
        command.args(words.split_whitespace());
        Finished::of(&mut command)?.success()
    }

    /// Runs a shell command inside, and returns its output.
    pub fn shell(&self, line: &str) -> Result<String> {
        let mut command = self.command("bash");
        command.args(["-euo", "pipefail", "-c", line]);
        Finished::of(&mut command)?.success()
    }

    /// Runs `work` on a thread of its own inside the namespace: its sockets are kernel sockets
    /// there.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = self.open()?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("entering the namespace")?;
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether a link of this name exists inside.
    #[must_use]
    pub fn has_link(&self, link: &str) -> bool {
        self.ip(&format!("link show dev {link}")).is_ok()
    }

    /// Lists the processes that run inside.
    pub fn processes(&self) -> Result<Vec<String>> {
        let mut command = Command::new("ip");
        let listed = Finished::of(command.args(["netns", "pids", &self.name]))?.success()?;
        Ok(listed.split_whitespace().map(str::to_owned).collect())
    }

    fn open(&self) -> Result<File> {
        let path = format!("/run/netns/{}", self.name);
        File::open(&path).with_context(|| format!("opening {path}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A process that a panicking test left running would keep the nameless namespace alive.
        for process in self.processes().unwrap_or_default() {
            let _gone = Finished::of(Command::new("kill").args(["-KILL", &process]));
        }
        // A failed removal leaves a name behind. The test has failed already, or `ip netns` shows
        // the name.
        let outcome = Finished::of(Command::new("ip").args(["netns", "delete", &self.name]));
        if let Err(error) = outcome.and_then(Finished::success) {
            eprintln!("namespace {}: {error:#}", self.name);
        }
    }
}
