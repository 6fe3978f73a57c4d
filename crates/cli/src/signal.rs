//! Termination signals (Ctrl-C, SIGTERM, SIGHUP) as an event to wait for, so that every command
//! ends by its ordinary path; SIGUSR1 as a request to print statistics.
//!
//! A handler only stores the signal and writes a byte to a socket pair. A second termination signal
//! ends the process at once, in case the ordinary path hangs.

use std::{
    io::{self, ErrorKind, Read as _},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    flag, low_level,
};

use crate::failure::Failure;

/// Reason why a wait ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A termination signal arrived; its number.
    Signal(u8),
    /// [`Waker::wake`] was called.
    Woken,
    /// SIGUSR1 requested statistics.
    Report,
    /// The time limit expired.
    TimedOut,
}

/// Receiving end of the process's signals. One per process.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Number of the last signal, 0 before the first. SeqCst: the handler stores it before it
    /// writes the byte, and a wait loads it after it reads the byte.
    last: Arc<AtomicUsize>,
    /// SIGUSR1 arrived since the last check. SeqCst, as `last`.
    report: Arc<AtomicBool>,
    /// A [`Waker`] was used. SeqCst, as `last`.
    woken: Arc<AtomicBool>,
    reader: UnixStream,
    writer: UnixStream,
}

/// Ends a [`Signals::wait`] from another thread.
#[derive(Debug)]
pub(crate) struct Waker {
    woken: Arc<AtomicBool>,
    writer: UnixStream,
}

impl Signals {
    /// Installs the handlers.
    pub(crate) fn install() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        let last = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for (signal, number) in [(SIGINT, 2_usize), (SIGTERM, 15), (SIGHUP, 1)] {
            // Registration order matters: the first signal only sets the flag, the second finds it
            // set.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(signal, Arc::clone(&last), number)?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        let (report, woken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        flag::register(SIGUSR1, Arc::clone(&report))?;
        low_level::pipe::register(SIGUSR1, writer.try_clone()?)?;
        Ok(Self { last, report, woken, reader, writer })
    }

    /// Returns a handle with which a worker thread ends the wait.
    pub(crate) fn waker(&self) -> io::Result<Waker> {
        Ok(Waker { woken: Arc::clone(&self.woken), writer: self.writer.try_clone()? })
    }

    /// Waits for a termination signal or a wake-up. Calls `report` at every SIGUSR1 and once in
    /// every period.
    pub(crate) fn wait_reporting(
        &self,
        every: Option<Duration>,
        mut report: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Wake, Failure> {
        let mut next = every.map(|period| (Instant::now() + period, period));
        loop {
            let limit = next.map(|(at, _)| at.saturating_duration_since(Instant::now()));
            match self.wait(limit)? {
                Wake::Report => report()?,
                Wake::TimedOut => {
                    report()?;
                    next = next.map(|(at, period)| ((at + period).max(Instant::now()), period));
                }
                wake @ (Wake::Signal(_) | Wake::Woken) => return Ok(wake),
            }
        }
    }

    /// Blocks until a signal, a wake-up or the time limit.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<Wake> {
        let end = limit.map(|limit| Instant::now() + limit);
        loop {
            // SO_RCVTIMEO of zero means no limit.
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            self.reader.set_read_timeout(left.map(|left| left.max(Duration::from_micros(1))))?;
            match (&self.reader).read(&mut [0]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Wake::TimedOut),
                Err(error) => return Err(error),
            }
            // A byte does not say which event it stands for: one check may already have consumed
            // the events of two bytes.
            let number = self.last.load(Ordering::SeqCst);
            if number != 0 {
                return Ok(Wake::Signal(u8::try_from(number).unwrap_or(u8::MAX)));
            }
            if self.woken.load(Ordering::SeqCst) {
                return Ok(Wake::Woken);
            }
            if self.report.swap(false, Ordering::SeqCst) {
                return Ok(Wake::Report);
            }
        }
    }
}

impl Waker {
    /// Ends the wait. Does not block: the socket pair holds far more bytes than there are wakers.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        let _ = io::Write::write(&mut &self.writer, &[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_limit_and_on_a_signal_or_wake_up() {
        let signals = Signals::install().expect("handlers");
        assert_eq!(signals.wait(Some(Duration::from_millis(5))).expect("wait"), Wake::TimedOut);
        low_level::raise(SIGUSR1).expect("a signal");
        assert_eq!(signals.wait(Some(Duration::from_secs(5))).expect("wait"), Wake::Report);
        low_level::raise(SIGUSR1).expect("a signal");
        low_level::raise(SIGUSR1).expect("a signal");
        // Two signals before one check are one report, and their second byte is no wake-up.
        assert_eq!(signals.wait(Some(Duration::from_secs(5))).expect("wait"), Wake::Report);
        assert_eq!(signals.wait(Some(Duration::from_millis(5))).expect("wait"), Wake::TimedOut);
        signals.waker().expect("waker").wake();
        assert_eq!(signals.wait(Some(Duration::from_secs(5))).expect("wait"), Wake::Woken);
    }
}
