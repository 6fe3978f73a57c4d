//! Events of a stack, kept for the application.
//!
//! Below: `stack::cx::event::Event`, which any thread of the stack may report. Above:
//! [`Stack::events`](crate::Stack::events).

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
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
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the iterators, because the stack was shut down.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
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
        drop(log);
        self.changed.notify_all();
    }
}

/// The events of a stack, oldest first. A stack keeps the last 64 events.
///
/// As an iterator it waits for the next event, and ends when the stack has been shut down. It does
/// not keep the stack running.
#[derive(Clone, Debug)]
pub struct Events {
    log: Arc<EventLog>,
    /// Number of the next event.
    next: u64,
}

impl Events {
    pub(crate) const fn new(log: Arc<EventLog>) -> Self {
        Self { log, next: 0 }
    }

    /// Returns the next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        let log = Arc::clone(&self.log);
        let log = log.lock();
        self.take(&log)
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
}
