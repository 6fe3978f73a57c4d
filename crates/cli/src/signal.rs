//! Ctrl-C and SIGTERM as a value to wait for, so that every command ends by its ordinary path.
//!
//! The handler only stores the signal's number and writes a byte to a socket pair. A second signal ends
//! the process at once, in case the ordinary path hangs.

use std::{
    io::{self, ErrorKind, Read as _},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag, low_level,
};

/// The end of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A signal came; its number.
    Signal(u8),
    /// Somebody called [`Waker::wake`].
    Woken,
    /// The time ran out.
    TimedOut,
}

/// The receiving end of the process's termination signals. One per process.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Number of the last signal, 0 before the first. SeqCst: the handler stores it before the byte is
    /// written, and a wait reads it after the byte.
    last: Arc<AtomicUsize>,
    reader: UnixStream,
    writer: UnixStream,
}

/// Ends a [`Signals::wait`] from another thread.
#[derive(Debug)]
pub(crate) struct Waker(UnixStream);

impl Signals {
    /// Installs the handlers.
    pub(crate) fn install() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        let last = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for (signal, number) in [(SIGINT, 2_usize), (SIGTERM, 15), (SIGHUP, 1)] {
            // Registered in this order: the first signal only sets the flag, the second finds it set.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(signal, Arc::clone(&last), number)?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self { last, reader, writer })
    }

    /// A handle that ends the wait, for the thread that does the work.
    pub(crate) fn waker(&self) -> io::Result<Waker> {
        Ok(Waker(self.writer.try_clone()?))
    }

    /// Blocks until a signal, a wake-up, or the time limit.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<Wake> {
        self.reader.set_read_timeout(limit)?;
        loop {
            match (&self.reader).read(&mut [0]) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Wake::TimedOut),
                Err(error) => return Err(error),
            }
        }
        Ok(match self.last.load(Ordering::SeqCst) {
            0 => Wake::Woken,
            number => Wake::Signal(u8::try_from(number).unwrap_or(u8::MAX)),
        })
    }
}

impl Waker {
    /// Ends the wait. Never blocks for long: the pair holds far more bytes than there are wakers.
    pub(crate) fn wake(&self) {
        let _ = io::Write::write(&mut &self.0, &[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_time_and_by_waker() {
        let signals = Signals::install().expect("handlers");
        assert_eq!(signals.wait(Some(Duration::from_millis(5))).expect("wait"), Wake::TimedOut);
        signals.waker().expect("waker").wake();
        assert_eq!(signals.wait(Some(Duration::from_secs(5))).expect("wait"), Wake::Woken);
    }
}
