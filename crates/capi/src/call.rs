//! Calls that block: a call of crate `posix` is stepped, and its thread sleeps until the socket has
//! news.
//!
//! A thread registers an observer ([`Watched`]) before the step that decides whether it sleeps.
//! News after that registration ends the sleep. A stack without workers is run by the threads that
//! wait.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use posix::{Answer, Step, Watched};
use ql::{
    Stack,
    sans_io::{Cx, Host},
};
use stack::Errno;
use sync::{Item, Listing, ReadyList, WatchKey};

/// Interval between two polls of a stack without workers whose thread waits.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// A thread that waits for news of sockets.
#[derive(Debug)]
pub(crate) struct Waiter {
    list: Arc<ReadyList<()>>,
    item: Arc<Item<()>>,
    key: WatchKey,
}

impl Waiter {
    pub(crate) fn new() -> Self {
        let list = Arc::new(ReadyList::new());
        // All conditions: the step finds out whether it was the awaited one.
        let item = Item::new(&list, u8::MAX, ());
        Self { list, item, key: WatchKey::new() }
    }

    /// Observes a socket. Returns false if the waiter observes it already.
    pub(crate) fn watch(&self, socket: &dyn Watched) -> bool {
        socket.watch(self.key, Arc::new(Forward(Arc::clone(&self.item))))
    }

    pub(crate) fn unwatch(&self, socket: &dyn Watched) {
        socket.unwatch(self.key);
    }

    /// Sleeps until there is news, at most until `deadline`.
    pub(crate) fn sleep<'a>(
        &self,
        stacks: impl Iterator<Item = &'a Stack>,
        deadline: Option<Instant>,
    ) {
        sleep_on(&self.list, stacks, deadline);
        while self.list.pop().is_some() {}
    }
}

/// The observer of a waiter. A socket that was closed must wake the thread, too, so its end does
/// not remove the item.
#[derive(Debug)]
struct Forward(Arc<Item<()>>);

impl sync::Watch for Forward {
    fn on_ready(&self, bits: u8) {
        sync::Watch::on_ready(&Listing(Arc::clone(&self.0)), bits);
    }
}

/// Sleeps until `list` has an item, at most until `deadline`. Runs those of `stacks` that have no
/// workers; may return early then.
pub(crate) fn sleep_on<'a, T>(
    list: &ReadyList<T>,
    stacks: impl Iterator<Item = &'a Stack>,
    deadline: Option<Instant>,
) {
    let mut left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    for stack in stacks.filter(|stack| stack.is_manual()) {
        let next = stack.poll().unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        left = Some(left.map_or(next, |left| left.min(next)));
    }
    if left != Some(Duration::ZERO) {
        let _ = list.wait(left);
    }
}

/// Steps a call on `socket` until it returns, for at most `limit`. `None` when the time is over.
pub(crate) fn block<R>(
    stack: &Stack,
    socket: &dyn Watched,
    limit: impl FnOnce() -> Option<Duration>,
    mut step: impl FnMut(&Arc<Host>, &mut Cx) -> Answer<R>,
) -> Result<Option<R>, Errno> {
    if let Step::Ready(value) = stack.with_host(&mut step)? {
        return Ok(Some(value));
    }
    // A time that the clock cannot represent is no limit.
    let deadline = limit().and_then(|limit| Instant::now().checked_add(limit));
    let waiter = Waiter::new();
    waiter.watch(socket);
    let result = loop {
        match stack.with_host(&mut step) {
            Ok(Step::Ready(value)) => break Ok(Some(value)),
            Ok(Step::Blocks) => {}
            Err(errno) => break Err(errno),
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            break Ok(None);
        }
        waiter.sleep(std::iter::once(stack), deadline);
    };
    waiter.unwatch(socket);
    result
}
