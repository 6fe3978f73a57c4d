//! Log lines on stderr: refused and failed connections, and with `-v` every connection.
//!
//! A peer can cause any number of failures, so without `-v` the lines are limited as
//! printk_ratelimit limits the kernel's: suppressed lines are counted, and their number is printed.

use std::{
    fmt::Display,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::output;

/// Lines in one interval: the burst of printk_ratelimit.
const LINES_MAX: u32 = 10;

/// Interval of printk_ratelimit.
const INTERVAL: Duration = Duration::from_secs(5);

/// The log of a server.
#[derive(Debug)]
pub(super) struct Log {
    verbose: bool,
    /// The server is ending, which breaks its connections. Relaxed: one line more or less at that
    /// moment is harmless.
    ending: AtomicBool,
    limit: Mutex<Limit>,
}

/// Lines of the current interval.
#[derive(Debug, Default)]
struct Limit {
    begin: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Log {
    /// Creates a log. A verbose log has a line for every connection that opens or ends.
    pub(super) fn new(verbose: bool) -> Self {
        Self { verbose, ending: AtomicBool::new(false), limit: Mutex::default() }
    }

    /// Logs a connection that starts to be served.
    pub(super) fn opened(&self, peer: SocketAddr) {
        if self.verbose {
            output::complain(&format!("{peer}: connection opened"));
        }
    }

    /// Logs the end of a connection. `moved`: bytes received and sent.
    pub(super) fn closed(
        &self,
        peer: SocketAddr,
        outcome: &io::Result<()>,
        open: Duration,
        moved: (u64, u64),
    ) {
        let (received, sent) = moved;
        let seconds = open.as_secs_f64();
        let about = format!("after {seconds:.3} s, {received} bytes received, {sent} sent");
        match outcome {
            Ok(()) if self.verbose => {
                output::complain(&format!("{peer}: connection closed {about}"));
            }
            Ok(()) => {}
            Err(error) => {
                let reason = reason(error);
                self.limited(&format!("{peer}: connection failed {about}: {reason}"));
            }
        }
    }

    /// Logs a connection that was closed before it was served.
    pub(super) fn refused(&self, peer: SocketAddr, reason: impl Display) {
        self.limited(&format!("{peer}: connection refused: {reason}"));
    }

    /// Logs a connection that could not be accepted.
    pub(super) fn not_accepted(&self, error: &io::Error) {
        self.limited(&format!("cannot accept a connection: {error}"));
    }

    /// Marks the server as ending: later failures of connections are its consequence, and are not
    /// logged.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let suppressed = std::mem::take(&mut self.lock().suppressed);
        count_suppressed(suppressed);
    }

    /// Whether the server is ending.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn limited(&self, text: &str) {
        if self.is_ending() {
            return;
        }
        if !self.verbose {
            let Some(suppressed) = self.lock().admit(Instant::now()) else { return };
            count_suppressed(suppressed);
        }
        output::complain(text);
    }

    fn lock(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Limit {
    /// Whether a line may be printed now: `None`, or the number of lines suppressed since the last
    /// printed one.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let begin = *self.begin.get_or_insert(now);
        if now.saturating_duration_since(begin) >= INTERVAL {
            (self.begin, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

fn count_suppressed(count: u64) {
    if count > 0 {
        output::complain(&format!(
            "{count} more connections failed or were refused; -v shows each"
        ));
    }
}

/// A read or write timeout has the error number of a call that would block.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut if error.get_ref().is_none() => {
            "timed out".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_limited_and_suppressed_ones_are_counted() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let admitted = (0..100).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!((admitted, limit.suppressed), (10, 90));
        assert_eq!(limit.admit(start + INTERVAL), Some(90));
        assert_eq!(limit.admit(start + INTERVAL), Some(0));
    }
}
