//! Reports the first error of a capture file when it happens.
//!
//! The writer finds the error; an application needs to know while the stack still runs, not at its
//! end. Either the error or the call of `watch` may come first, so the error is kept until then.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Function called with the error.
type Notify = Box<dyn FnOnce(&io::Error) + Send>;

#[derive(Default)]
struct State {
    notify: Option<Notify>,
    error: Option<io::Error>,
}

/// Connects the error with the function to be called.
#[derive(Default)]
pub(super) struct FailureWatch(Mutex<State>);

impl FailureWatch {
    /// Registers the function; calls it at once if there was an error.
    pub(super) fn watch(&self, notify: Notify) {
        let mut state = self.lock();
        state.notify = Some(notify);
        notify_if_failed(state);
    }

    /// Reports the error of the writer.
    pub(super) fn report(&self, error: &io::Error) {
        let mut state = self.lock();
        state.error = Some(copy_of(error));
        notify_if_failed(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the function if it and an error exist, without holding the lock.
fn notify_if_failed(mut state: MutexGuard<'_, State>) {
    if state.error.is_none() || state.notify.is_none() {
        return;
    }
    let (notify, error) = (state.notify.take(), state.error.take());
    drop(state);
    if let (Some(notify), Some(error)) = (notify, error) {
        notify(&error);
    }
}

/// Copies an error: `io::Error` has no `Clone`, and the writer returns the original at the end.
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
