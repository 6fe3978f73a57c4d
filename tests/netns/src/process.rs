//! Programs with a time limit, whose output is kept and which end with the test.
//!
//! Counterpart: timeout(1). A program that hangs is killed and its output shown, because a hang is
//! the most likely failure in these tests.
//!
//! Not here: namespaces.

use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Default time limit of a program.
const LIMIT: Duration = Duration::from_secs(60);

/// Time between two checks of a running program.
const LOOK: Duration = Duration::from_millis(5);

/// A program that ended.
#[derive(Debug)]
pub struct Finished {
    /// The command as typed.
    pub shown: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output, as text.
    pub stdout: String,
    /// Standard output, as bytes.
    pub stdout_bytes: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// Run time.
    pub took: Duration,
}

impl Finished {
    /// Runs a command to its end within the default limit.
    pub fn of(command: &mut Command) -> Result<Self> {
        Running::start(command)?.wait(LIMIT)
    }

    /// Returns the output, if the program succeeded.
    pub fn success(self) -> Result<String> {
        if !self.status.success() {
            let Self { shown, status, stdout, stderr, .. } = &self;
            bail!("{shown}: {status}\nstdout: {stdout}\nstderr: {stderr}");
        }
        Ok(self.stdout)
    }

    /// Returns the SHA-256 of the output in hexadecimal, by coreutils.
    pub fn stdout_sha256(&self) -> Result<String> {
        let mut file = tempfile::NamedTempFile::new().context("making a file")?;
        file.write_all(&self.stdout_bytes).context("writing the file")?;
        crate::content::sha256(file.path())
    }
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    shown: String,
    child: Child,
    start: Instant,
    stdout: Collector,
    stderr: Collector,
}

impl Running {
    /// Starts a command, collects its output, and gives it an empty input.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        Self::start_with_input(command)
    }

    /// Starts a command whose standard input was already set.
    pub fn start_with_input(command: &mut Command) -> Result<Self> {
        let shown = shown(command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
        let stdout = Collector::start(child.stdout.take().context("no stdout")?);
        let stderr = Collector::start(child.stderr.take().context("no stderr")?);
        Ok(Self { shown, child, start: Instant::now(), stdout, stderr })
    }

    /// Takes the piped standard input, once.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns the standard error output so far.
    #[must_use]
    pub fn stderr_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Waits until the standard error output contains `text`, and fails at the limit or when the
    /// program ends before.
    pub fn wait_for_stderr(&mut self, text: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            // In this order: what a program has written before its end counts.
            let ended = self.has_ended()?;
            if self.stderr_so_far().contains(text) {
                return Ok(());
            }
            if ended || Instant::now() >= deadline {
                bail!("{}: no \"{text}\" in: {}", self.shown, self.stderr_so_far());
            }
            thread::sleep(LOOK);
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("looking at the child")?.is_some())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.context("no process id")?, signal).context("sending a signal")
    }

    /// Waits for the end; at the limit it kills the program and fails.
    pub fn wait(mut self, limit: Duration) -> Result<Finished> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().context("looking at the child")? {
                break status;
            }
            if Instant::now() >= deadline {
                self.kill();
                let stderr = self.stderr.finish();
                bail!("{}: hung for {limit:?}: {}", self.shown, String::from_utf8_lossy(&stderr));
            }
            thread::sleep(LOOK);
        };
        let took = self.start.elapsed();
        let stdout_bytes = self.stdout.finish();
        let stdout = String::from_utf8_lossy(&stdout_bytes).into_owned();
        let stderr = String::from_utf8_lossy(&self.stderr.finish()).into_owned();
        Ok(Finished { shown: self.shown.clone(), status, stdout, stdout_bytes, stderr, took })
    }

    /// Kills the program at once and reaps it.
    pub fn kill(&mut self) {
        // Both fail only if the program has ended.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads a pipe to its end on a thread, so that the program never blocks on it.
#[derive(Debug)]
struct Collector {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collector {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut text = shared.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend_from_slice(&buffer[..count]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns everything up to the end of the pipe.
    fn finish(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            let _ended = reader.join();
        }
        std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Formats the command as one could type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
