//! Tokens, interests and events: the vocabulary of a poller.

use std::ops::{BitOr, BitOrAssign};

use stack::Readiness;

/// Number that the program gives to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub usize);

/// Conditions of a socket that a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(Readiness);

impl Interest {
    /// A read or an accept does not wait: there is data, a connection, or the end of the stream.
    pub const READABLE: Self = Self(Readiness::READ.union(Readiness::RDHUP));
    /// A write does not wait; a connection is established.
    pub const WRITABLE: Self = Self(Readiness::WRITE);
    /// An urgent byte has arrived.
    pub const PRIORITY: Self = Self(Readiness::PRI);

    /// Returns the bits whose news is reported; errors and the end of the connection always are.
    pub(super) fn bits(self) -> u8 {
        (self.0 | Readiness::HUP | Readiness::ERROR).bits()
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Interest {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// When a socket is reported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// By every call while it is ready.
    Level,
    /// After every change that makes it ready or adds to it (`EPOLLET`).
    Edge,
    /// Not again until it is registered anew (`EPOLLONESHOT`).
    OneShot,
}

/// A socket that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    token: Token,
    ready: Readiness,
}

impl Event {
    pub(super) const fn new(token: Token, ready: Readiness) -> Self {
        Self { token, ready }
    }

    /// Returns the token of the socket.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Returns the conditions of the interest that hold, with HUP and ERROR.
    #[must_use]
    pub const fn readiness(&self) -> Readiness {
        self.ready
    }

    /// Returns whether a read or an accept does not wait.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.ready.intersects(Readiness::READ.union(Readiness::PRI))
    }

    /// Returns whether a write does not wait.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.ready.intersects(Readiness::WRITE)
    }

    /// Returns whether the peer has ended its direction, or the connection has ended.
    #[must_use]
    pub const fn is_read_closed(&self) -> bool {
        self.ready.intersects(Readiness::RDHUP.union(Readiness::HUP))
    }

    /// Returns whether both directions have ended, or the connection has failed.
    #[must_use]
    pub const fn is_write_closed(&self) -> bool {
        self.ready.intersects(Readiness::HUP.union(Readiness::ERROR))
    }

    /// Returns whether an error is pending.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        self.ready.intersects(Readiness::ERROR)
    }
}

/// The events of one [`Poller::poll`](super::Poller::poll).
#[derive(Clone, Debug, Default)]
pub struct Events {
    events: Vec<Event>,
    capacity: usize,
}

impl Events {
    /// Returns a list for `capacity` events, at least one. One call of
    /// [`Poller::poll`](super::Poller::poll) returns no more; the next call continues with the
    /// others.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { events: Vec::with_capacity(capacity), capacity }
    }

    /// Returns the events.
    pub fn iter(&self) -> std::slice::Iter<'_, Event> {
        self.events.iter()
    }

    /// Returns whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        self.events.clear();
        self.capacity = self.capacity.max(1);
    }

    pub(super) const fn is_full(&self) -> bool {
        self.events.len() >= self.capacity
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
