//! Many sockets in one thread: a [`Poller`] that reports events with tokens, level- or
//! edge-triggered.
//!
//! The names are those of mio. A socket is registered with a [`Token`]; [`Poller::poll`] waits and
//! returns the tokens of the sockets that are ready. A poller may watch sockets of several stacks.
//! [`Poller::event_fd`] is a descriptor for event loops of other libraries: it is readable while
//! the poller has events. Linux: epoll.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use std::time::Duration;
//!
//! use quietline::{
//!     Stack, UdpSocket,
//!     poll::{Events, Interest, Poller, Token, Trigger},
//! };
//!
//! let stack = Stack::builder().build()?;
//! let server = UdpSocket::bind(&stack, "127.0.0.1:7")?;
//! server.set_nonblocking(true)?;
//! let poller = Poller::new();
//! poller.register(&server, Token(7), Interest::READABLE, Trigger::Edge)?;
//!
//! let client = UdpSocket::bind(&stack, "127.0.0.1:0")?;
//! client.send_to(b"hello", "127.0.0.1:7")?;
//!
//! let mut events = Events::with_capacity(16);
//! poller.poll(&mut events, Some(Duration::from_secs(5)));
//! let event = events.iter().next().expect("the datagram");
//! assert!(event.token() == Token(7) && event.is_readable());
//! # Ok(())
//! # }
//! ```
//!
//! An edge-triggered socket is reported once for each change: also when more data arrives behind
//! data that is already readable, and when there is space again after a write that found none. The
//! program must therefore read or write until it gets `WouldBlock`. A level-triggered socket is
//! reported by every call while it is ready.
//!
//! A stack that is built with [`manual`](crate::StackBuilder::manual) has news only while the
//! program calls [`Stack::poll`](crate::Stack::poll).
//!
//! Not here: busy polling. A thread that waits in [`Poller::poll`] sleeps; the workers run the
//! stack.

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::Wake,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
    io::{read, write},
};
use stack::Readiness;
use sync::{Bell, Item, Listing, ReadyList, WatchKey};

use crate::{clock, handle::until, observed::Observed};
pub use event::{Event, Events, Interest, Token, Trigger};

mod event;
#[cfg(test)]
mod tests;

/// A socket that a [`Poller`] can watch: [`TcpStream`](crate::TcpStream),
/// [`TcpListener`](crate::TcpListener), [`UdpSocket`](crate::UdpSocket), and the intercepted
/// [`Flows`](crate::Flows) with their [`TcpRequest`](crate::TcpRequest) and
/// [`UdpSession`](crate::UdpSession).
pub trait Source: sealed::Sealed {}

mod sealed {
    use std::sync::Arc;

    use crate::observed::Observed;

    /// A socket of the stack.
    #[allow(unnameable_types, reason = "no other crate implements Source")]
    #[allow(missing_debug_implementations, reason = "no other crate can name it")]
    pub struct Socket(pub(super) Arc<dyn Observed>);

    /// Access to the socket of the stack.
    #[allow(unnameable_types, reason = "no other crate implements Source")]
    pub trait Sealed {
        #[doc(hidden)]
        fn observed(&self) -> Socket;
    }
}

macro_rules! sources {
    ($($socket:ty),*) => {$(
        impl Source for $socket {}

        impl sealed::Sealed for $socket {
            fn observed(&self) -> sealed::Socket {
                sealed::Socket(Arc::clone(self.socket()) as Arc<dyn Observed>)
            }
        }
    )*};
}

sources!(
    crate::TcpStream,
    crate::TcpListener,
    crate::UdpSocket,
    crate::Flows,
    crate::TcpRequest,
    crate::UdpSession
);

/// Waits for events of many sockets. Any thread may use it; each event goes to one of the threads
/// that wait.
#[derive(Debug)]
pub struct Poller {
    list: Arc<ReadyList<Entry>>,
    key: WatchKey,
    event_fd: OnceLock<Arc<OwnedFd>>,
    /// Number of entries that were examined and had no event. Relaxed: a counter orders nothing.
    without_event: AtomicUsize,
}

/// Counts of a [`Poller`], for tests and tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollCounts {
    /// Number of times that a waiting thread was woken.
    pub wakes: usize,
    /// Number of sockets that had news and were not ready any more when they were examined.
    pub without_event: usize,
}

/// A registered socket or waker.
struct Entry {
    token: Token,
    trigger: Trigger,
    origin: Origin,
}

/// Origin of events.
enum Origin {
    /// The socket, which the poller does not keep open.
    Socket(Weak<dyn Observed>),
    Waker,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, trigger, .. } = self;
        f.debug_struct("Entry").field("token", token).field("trigger", trigger).finish()
    }
}

impl Poller {
    /// Returns a poller without sockets.
    #[must_use]
    pub fn new() -> Self {
        Self {
            list: Arc::new(ReadyList::new()),
            key: WatchKey::new(),
            event_fd: OnceLock::new(),
            without_event: AtomicUsize::new(0),
        }
    }

    /// Watches a socket for `interest`. Errors and the end of the connection are reported always.
    /// If the socket is ready, the next [`poll`](Self::poll) reports it. A socket is removed when
    /// its last clone is dropped.
    ///
    /// # Errors
    /// `AlreadyExists` if this poller watches the socket already.
    pub fn register(
        &self,
        source: &impl Source,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let sealed::Socket(socket) = source.observed();
        let origin = Origin::Socket(Arc::downgrade(&socket));
        let item = Item::new(&self.list, interest.bits(), Entry { token, trigger, origin });
        if !socket.watch(self.key, Arc::new(Listing(Arc::clone(&item)))) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if socket.readiness().bits() & interest.bits() != 0 {
            self.list.push(&item);
        }
        Ok(())
    }

    /// Changes token, interest and trigger of a socket. A socket that is ready is reported again,
    /// even if it is edge-triggered.
    ///
    /// # Errors
    /// `NotFound` if this poller does not watch the socket.
    pub fn reregister(
        &self,
        source: &impl Source,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        self.deregister(source)?;
        self.register(source, token, interest, trigger)
    }

    /// Ends watching a socket.
    ///
    /// # Errors
    /// `NotFound` if this poller does not watch the socket.
    pub fn deregister(&self, source: &impl Source) -> io::Result<()> {
        let removed = source.observed().0.watchers().remove(self.key);
        if removed { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Replaces `events` by those that have occurred. Waits for the first one, at most `timeout`,
    /// without limit for `None`; `events` is empty after that time.
    pub fn poll(&self, events: &mut Events, timeout: Option<Duration>) {
        events.clear();
        // A deadline that the clock cannot represent is no deadline.
        let deadline = timeout.filter(|limit| *limit < FOREVER).map(|limit| clock::now() + limit);
        loop {
            self.collect(events);
            if !events.is_empty() {
                return;
            }
            let left = deadline.map(|deadline| until(clock::now(), deadline));
            if left == Some(Duration::ZERO) {
                return;
            }
            let _ = self.list.wait(left);
        }
    }

    fn collect(&self, events: &mut Events) {
        // Level-triggered entries return to the end of the list, and are examined once.
        for _ in 0..self.list.len() {
            if events.is_full() {
                break;
            }
            let Some(item) = self.list.pop() else { break };
            match report(&item) {
                Some(event) if item.value.trigger != Trigger::OneShot || item.disarm() => {
                    events.push(event);
                    if item.value.trigger == Trigger::Level {
                        self.list.put_back(&item);
                    }
                }
                _ => {
                    self.without_event.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.list.settle();
    }

    /// Returns a waker that makes [`poll`](Self::poll) return an event with `token`.
    #[must_use]
    pub fn waker(&self, token: Token) -> PollWaker {
        let entry = Entry { token, trigger: Trigger::Edge, origin: Origin::Waker };
        let item = Item::new(&self.list, Interest::READABLE.bits(), entry);
        PollWaker { list: Arc::clone(&self.list), item }
    }

    /// Returns a descriptor (an eventfd) that is readable while the poller has events, for an event
    /// loop that waits for descriptors. The loop only waits for it, and then calls
    /// [`poll`](Self::poll) with a timeout of zero.
    ///
    /// # Errors
    /// Errors of eventfd(2).
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(fd) = self.event_fd.get() {
            return Ok(fd.as_fd());
        }
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // Of two threads that come at the same time, one sets both the bell and the descriptor.
        if self.event_fd.set(Arc::clone(&fd)).is_ok() {
            self.list.set_bell(Box::new(Eventfd(fd)));
        }
        Ok(self.event_fd.get().expect("set above or by another thread").as_fd())
    }

    /// Returns the counts since the poller was made.
    #[must_use]
    pub fn counts(&self) -> PollCounts {
        let without_event = self.without_event.load(Ordering::Relaxed);
        PollCounts { wakes: self.list.wakes(), without_event }
    }
}

/// Time that is no limit: a century.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Returns the event of an item whose socket has had news, if it is still ready.
fn report(item: &Item<Entry>) -> Option<Event> {
    let Entry { token, origin, .. } = &item.value;
    let ready = match origin {
        Origin::Socket(_) if item.is_removed() => return None,
        Origin::Socket(socket) => socket.upgrade()?.readiness(),
        Origin::Waker => Readiness::READ,
    };
    let ready = Readiness::from_bits_truncate(ready.bits() & item.interest());
    (!ready.is_empty()).then(|| Event::new(*token, ready))
}

impl Default for Poller {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.list.close();
    }
}

/// Wakes a [`Poller`] from any thread. It is also a [`std::task::Waker`]:
/// `Waker::from(Arc::new(poller.waker(token)))`.
#[derive(Clone, Debug)]
pub struct PollWaker {
    list: Arc<ReadyList<Entry>>,
    item: Arc<Item<Entry>>,
}

impl PollWaker {
    /// Makes the poller report an event with the token of this waker: one event for any number of
    /// calls before it.
    pub fn wake(&self) {
        self.list.push(&self.item);
    }
}

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake(self);
    }
}

/// The descriptor of a poller.
#[derive(Debug)]
struct Eventfd(Arc<OwnedFd>);

impl Bell for Eventfd {
    fn ring(&self) {
        // The counter is 0 or 1, so the write cannot fail.
        let _ = write(&*self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = read(&*self.0, &mut [0; 8]);
    }
}
