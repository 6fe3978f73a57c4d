//! Events of a stack, kept for the application.
//!
//! Below: `stack::cx::event::Event`, which any thread of the stack may report. Above:
//! [`Stack::events`](crate::Stack::events).

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use stack::cx::event::{Event, EventSink};

/// Number of events that a stack keeps. Events are rare, so a slow reader misses none.
const EVENTS_KEPT: usize = 64;

/// The latest events of a stack, and the threads that wait for the next one.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    log: Mutex<Log>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Event>,
    /// Number of the oldest kept event, counted from the start of the stack.
    first: u64,
    /// Set after the last event.
    ended: bool,
    /// Wakers to call at the next event, each with the number of its reader.
    wakers: Vec<(u64, Waker)>,
    /// Number of the next reader that registers a waker.
    next_reader: u64,
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the iterators, because the stack was shut down.
    pub(crate) fn end(&self) {
        let mut log = self.lock();
        log.ended = true;
        self.notify(log);
    }

    /// Wakes all readers, without the lock.
    fn notify(&self, mut log: MutexGuard<'_, Log>) {
        let wakers = std::mem::take(&mut log.wakers);
        drop(log);
        self.changed.notify_all();
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl EventSink for EventLog {
    fn on_event(&self, event: Event) {
        let mut log = self.lock();
        if log.events.len() == EVENTS_KEPT {
            log.events.pop_front();
            log.first += 1;
        }
        log.events.push_back(event);
        self.notify(log);
    }
}

/// The events of a stack, oldest first. A stack keeps the last 64 events.
///
/// As an iterator it waits for the next event, and ends when the stack has been shut down. It does
/// not keep the stack running.
#[derive(Debug)]
pub struct Events {
    log: Arc<EventLog>,
    /// Number of the next event.
    next: u64,
    /// Number of this reader, once it has registered a waker.
    reader: Option<u64>,
}

impl Clone for Events {
    fn clone(&self) -> Self {
        Self { log: Arc::clone(&self.log), next: self.next, reader: None }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(reader) = self.reader {
            self.log.lock().wakers.retain(|(of, _)| *of != reader);
        }
    }
}

impl Events {
    pub(crate) const fn new(log: Arc<EventLog>) -> Self {
        Self { log, next: 0, reader: None }
    }

    /// Returns the next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        let log = Arc::clone(&self.log);
        let log = log.lock();
        self.take(&log)
    }

    /// Returns the next event if there is one already, or `None` after the last one. Otherwise the
    /// task is woken at the next event. Its waker is called from within the stack, so it must not
    /// call the stack itself.
    pub fn poll_next(&mut self, task: &mut Context<'_>) -> Poll<Option<Event>> {
        let shared = Arc::clone(&self.log);
        let mut log = shared.lock();
        if let Some(event) = self.take(&log) {
            return Poll::Ready(Some(event));
        }
        if log.ended {
            return Poll::Ready(None);
        }
        let reader = *self.reader.get_or_insert_with(|| {
            log.next_reader += 1;
            log.next_reader
        });
        log.wakers.retain(|(of, _)| *of != reader);
        log.wakers.push((reader, task.waker().clone()));
        Poll::Pending
    }

    /// Waits for the next event, at most `limit`. Returns `None` after that time, or when the stack
    /// has been shut down.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<Event> {
        let end = Instant::now().checked_add(limit);
        let shared = Arc::clone(&self.log);
        let mut log = shared.lock();
        loop {
            if let Some(event) = self.take(&log) {
                return Some(event);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if log.ended || left == Some(Duration::ZERO) {
                return None;
            }
            log = match left {
                Some(left) => {
                    let waited = shared.changed.wait_timeout(log, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => shared.changed.wait(log).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn take(&mut self, log: &Log) -> Option<Event> {
        // Skips events that are not kept any more.
        self.next = self.next.max(log.first);
        let place = usize::try_from(self.next - log.first).ok()?;
        let event = log.events.get(place)?.clone();
        self.next += 1;
        Some(event)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_timeout(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        task::Wake,
    };

    use super::*;

    fn gone(number: usize) -> Event {
        Event::DeviceGone { device: format!("ql{number}") }
    }

    #[test]
    fn a_late_reader_gets_the_kept_events_and_the_end() {
        let log = Arc::new(EventLog::default());
        (0..EVENTS_KEPT + 3).for_each(|number| log.on_event(gone(number)));
        let mut late = Events::new(Arc::clone(&log));
        assert_eq!(late.try_next(), Some(gone(3)), "the first three events are not kept");
        log.end();
        assert_eq!(late.count(), EVENTS_KEPT - 1);
    }

    #[test]
    fn a_waiting_reader_gets_the_next_event() {
        let log = Arc::new(EventLog::default());
        let mut events = Events::new(Arc::clone(&log));
        assert_eq!(events.try_next(), None);
        assert_eq!(events.next_timeout(Duration::from_millis(1)), None);
        let reader = std::thread::spawn(move || events.next());
        log.on_event(gone(7));
        assert_eq!(reader.join().expect("no panic"), Some(gone(7)));
    }

    #[test]
    fn a_task_is_woken_by_the_next_event_and_by_the_end() {
        /// Waker that counts its calls.
        #[derive(Default)]
        struct Count(AtomicU32);

        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let log = Arc::new(EventLog::default());
        let mut events = Events::new(Arc::clone(&log));
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut task = Context::from_waker(&waker);
        for round in 1..=2 {
            assert_eq!(events.poll_next(&mut task), Poll::Pending);
            assert_eq!(events.poll_next(&mut task), Poll::Pending);
            log.on_event(gone(round));
            assert_eq!(events.poll_next(&mut task), Poll::Ready(Some(gone(round))));
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 2, "a waker is called once for an event");
        // A dropped reader is not woken.
        let mut other = events.clone();
        assert_eq!(other.poll_next(&mut task), Poll::Pending);
        drop(other);
        assert_eq!(events.poll_next(&mut task), Poll::Pending);
        log.end();
        assert_eq!(woken.0.load(Ordering::Relaxed), 3);
        assert_eq!(events.poll_next(&mut task), Poll::Ready(None));
    }
}
