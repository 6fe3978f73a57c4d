//! A network namespace that exists as long as its value.
//!
//! Counterpart: ip-netns(8). Names carry our process id, so that two runs on one machine never meet.
//!
//! Not here: what runs inside (`process`).

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
    /// Makes a namespace with its loopback device up. Its kernel does not speak IPv6, which nobody here asks it to: what it says by
    /// itself (neighbour and router solicitations, multicast reports) would be counted with what a test has sent.
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

    /// Its name, as ip-netns(8) knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` with these words inside, and returns what it printed.
    pub fn ip(&self, words: &str) -> Result<String> {
        self.tool("ip", words)
    }

    /// Runs a program with these words inside, and returns what it printed.
    pub fn tool(&self, program: &str, words: &str) -> Result<String> {
        let mut command = self.command(program);
        command.args(words.split_whitespace());
        Finished::of(&mut command)?.success()
    }

    /// Runs a shell line inside, and returns what it printed.
    pub fn shell(&self, line: &str) -> Result<String> {
        let mut command = self.command("bash");
        command.args(["-euo", "pipefail", "-c", line]);
        Finished::of(&mut command)?.success()
    }

    /// Runs `work` on a thread of its own inside the namespace: its sockets are the kernel's sockets there.
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

    /// The processes that run inside.
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
        // What a panicking test left running would keep the namespace alive without a name.
        for process in self.processes().unwrap_or_default() {
            let _gone = Finished::of(Command::new("kill").args(["-KILL", &process]));
        }
        // A failed removal leaves a name behind; the test that did it has already failed or will be found by the next
        // look at `ip netns`.
        let outcome = Finished::of(Command::new("ip").args(["netns", "delete", &self.name]));
        if let Err(error) = outcome.and_then(Finished::success) {
            eprintln!("namespace {}: {error:#}", self.name);
        }
    }
}
