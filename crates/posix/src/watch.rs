//! Observers of a socket: epoll sets, and threads of a driver that wait.
//!
//! The stack's connections and listeners have observers of their own ([`sync::Watchers`]), but a
//! socket has none of them before `connect` and `listen`, and another one after a failed attempt. A
//! socket therefore keeps its observers, registers them with whatever it has, and notifies them
//! itself when that changes.
//!
//! Linux: the wait queue of a `struct socket`, which exists as long as the socket.

use std::sync::Arc;

use stack::{
    Readiness,
    socket::{Connection, DatagramSocket, Listener},
};
use sync::{Watch, WatchKey};

use crate::{datagram::Datagram, socket::Socket};

/// A socket that observers can watch.
pub trait Watched {
    /// Adds an observer. It is called for every condition that becomes true, and for every change
    /// of the socket's state. Afterwards the caller checks the socket. Returns false, and changes
    /// nothing, if there is an observer with this key.
    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool;

    /// Removes an observer. Returns false if there is none.
    fn unwatch(&self, key: WatchKey) -> bool;
}

/// The observers of one socket.
#[derive(Debug, Default)]
pub(crate) struct Observers(Vec<(WatchKey, Arc<dyn Watch>)>);

/// An observer of an object behind a socket. The end of the object does not end the observation of
/// the socket.
#[derive(Debug)]
struct Forward(Arc<dyn Watch>);

impl Watch for Forward {
    fn on_ready(&self, bits: u8) {
        self.0.on_ready(bits);
    }
}

/// An object of the stack behind a socket.
pub(crate) trait Observable {
    fn add(&self, key: WatchKey, watch: Arc<dyn Watch>);
    fn remove(&self, key: WatchKey);
}

impl Observable for Connection {
    fn add(&self, key: WatchKey, watch: Arc<dyn Watch>) {
        self.watch(key, watch);
    }

    fn remove(&self, key: WatchKey) {
        self.watchers().remove(key);
    }
}

impl Observable for DatagramSocket {
    fn add(&self, key: WatchKey, watch: Arc<dyn Watch>) {
        self.watch(key, watch);
    }

    fn remove(&self, key: WatchKey) {
        self.watchers().remove(key);
    }
}

impl Observable for Listener {
    fn add(&self, key: WatchKey, watch: Arc<dyn Watch>) {
        self.watchers().add(key, watch);
        self.sync_with_owner();
    }

    fn remove(&self, key: WatchKey) {
        self.watchers().remove(key);
    }
}

impl Observers {
    /// Adds an observer, also to the object behind the socket.
    pub(crate) fn add(
        &mut self,
        object: Option<&dyn Observable>,
        key: WatchKey,
        watch: Arc<dyn Watch>,
    ) -> bool {
        if self.0.iter().any(|(known, _)| *known == key) {
            return false;
        }
        if let Some(object) = object {
            object.add(key, Arc::new(Forward(Arc::clone(&watch))));
        }
        self.0.push((key, watch));
        true
    }

    /// Removes an observer, also from the object behind the socket.
    pub(crate) fn remove(&mut self, object: Option<&dyn Observable>, key: WatchKey) -> bool {
        let Some(place) = self.0.iter().position(|(known, _)| *known == key) else { return false };
        if let Some(object) = object {
            object.remove(key);
        }
        let (_, watch) = self.0.swap_remove(place);
        watch.on_removed();
        true
    }

    /// Registers all observers with a new object behind the socket, and notifies them.
    pub(crate) fn follow(&self, object: &dyn Observable) {
        for (key, watch) in &self.0 {
            object.add(*key, Arc::new(Forward(Arc::clone(watch))));
        }
        self.notify();
    }

    /// Notifies all observers of a change that the object behind the socket does not report.
    pub(crate) fn notify(&self) {
        self.0.iter().for_each(|(_, watch)| watch.on_ready(Readiness::all().bits()));
    }

    /// Notifies and removes all observers of a socket that was closed.
    pub(crate) fn end(&mut self) {
        self.notify();
        self.0.drain(..).for_each(|(_, watch)| watch.on_removed());
    }
}

impl Watched for Socket {
    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.observers.add(inner.state.observable(), key, watch)
    }

    fn unwatch(&self, key: WatchKey) -> bool {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.observers.remove(inner.state.observable(), key)
    }
}

impl Watched for Datagram {
    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        self.with_observers(|observers, socket| observers.add(socket, key, watch))
    }

    fn unwatch(&self, key: WatchKey) -> bool {
        self.with_observers(|observers, socket| observers.remove(socket, key))
    }
}
