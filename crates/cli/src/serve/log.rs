//! Lines on stderr about connections: those that are refused or fail, and with `-v` all of them.
//!
//! A peer decides how many connections fail, so without `-v` the lines are limited as printk_ratelimit limits the kernel's:
//! the rest is counted, and the count has a line.

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

/// Lines in one interval: printk_ratelimit's burst.
const LINES_MAX: u32 = 10;

/// The interval: printk_ratelimit's.
const INTERVAL: Duration = Duration::from_secs(5);

/// The log of a server.
#[derive(Debug)]
pub(super) struct Log {
    verbose: bool,
    /// The server ends, and takes its connections with it. Relaxed: a line more or less around that moment does no harm.
    ending: AtomicBool,
    limit: Mutex<Limit>,
}

/// Lines of the present interval.
#[derive(Debug, Default)]
struct Limit {
    begin: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Log {
    /// A log; a verbose one has a line for every connection that opens or ends.
    pub(super) fn new(verbose: bool) -> Self {
        Self { verbose, ending: AtomicBool::new(false), limit: Mutex::default() }
    }

    /// A connection is served from here on.
    pub(super) fn opened(&self, peer: SocketAddr) {
        if self.verbose {
            output::complain(&format!("{peer}: connection opened"));
        }
    }

    /// A connection has ended. `moved`: bytes received and sent.
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

    /// A connection was closed before it was served.
    pub(super) fn refused(&self, peer: SocketAddr, reason: impl Display) {
        self.limited(&format!("{peer}: connection refused: {reason}"));
    }

    /// A connection could not be accepted.
    pub(super) fn not_accepted(&self, error: &io::Error) {
        self.limited(&format!("cannot accept a connection: {error}"));
    }

    /// The server ends: connections that fail from here on fail because of that.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let suppressed = std::mem::take(&mut self.lock().suppressed);
        count_suppressed(suppressed);
    }

    /// Whether the server ends.
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
    /// Whether a line may be printed now, and how many were suppressed before it.
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

/// A read or write timeout has the errno of a call that would block.
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
    fn lines_are_limited_and_the_rest_is_counted() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let admitted = (0..100).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!((admitted, limit.suppressed), (10, 90));
        assert_eq!(limit.admit(start + INTERVAL), Some(90));
        assert_eq!(limit.admit(start + INTERVAL), Some(0));
    }
}
