//! The first error of a capture file, told when it happens.
//!
//! The writer meets the error; a command or an application wants to say so while the stack still runs, not at its end.
//! Either may come first, so the error is kept until somebody asks for it.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function that is told of the error.
type Notify = Box<dyn FnOnce(&io::Error) + Send>;

#[derive(Default)]
struct State {
    notify: Option<Notify>,
    error: Option<io::Error>,
}

/// Joins the error with the function that wants it.
#[derive(Default)]
pub(super) struct FailureWatch(Mutex<State>);

impl FailureWatch {
    /// Registers the function; calls it at once when there was an error.
    pub(super) fn watch(&self, notify: Notify) {
        let mut state = self.lock();
        state.notify = Some(notify);
        tell(state);
    }

    /// Reports the error of the writer.
    pub(super) fn report(&self, error: &io::Error) {
        let mut state = self.lock();
        state.error = Some(copy_of(error));
        tell(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the function when both are there, without the lock.
fn tell(mut state: MutexGuard<'_, State>) {
    if state.error.is_none() || state.notify.is_none() {
        return;
    }
    let (notify, error) = (state.notify.take(), state.error.take());
    drop(state);
    if let (Some(notify), Some(error)) = (notify, error) {
        notify(&error);
    }
}

/// `io::Error` has no `Clone`; the writer returns its own at the end.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl fmt::Debug for FailureWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailureWatch").field(&self.lock().error).finish()
    }
}
