//! A socket of the stack as tasks and event loops see it.
//!
//! Below: `sync::watchers`. Above: `blocking`, which serves `poll_ready`, `poll`, and module
//! `tokio`.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use stack::{
    Readiness,
    socket::{
        Connection, DatagramSocket, Listener, RequestSocket,
        flows::{FlowQueue, UdpSession},
    },
};
use sync::{Watch, WatchKey, Watchers};

/// A socket that notifies tasks and event loops.
pub(crate) trait Observed: Send + Sync {
    fn readiness(&self) -> Readiness;
    fn watchers(&self) -> &Watchers;
    fn sync_with_owner(&self);
    /// Registers an event loop; returns false if it is registered already.
    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool;

    /// Returns the readiness that ends a wait for `interest`: also an error, or the end of the
    /// socket.
    fn wanted(&self, interest: Readiness) -> Readiness {
        let mut wanted = interest | Readiness::HUP | Readiness::ERROR;
        if interest.contains(Readiness::READ) {
            wanted |= Readiness::RDHUP;
        }
        wanted
    }
}

impl Observed for Connection {
    fn readiness(&self) -> Readiness {
        Self::readiness(self)
    }

    fn watchers(&self) -> &Watchers {
        Self::watchers(self)
    }

    fn sync_with_owner(&self) {
        Self::sync_with_owner(self);
    }

    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        Self::watch(self, key, watch)
    }
}

impl Observed for DatagramSocket {
    fn readiness(&self) -> Readiness {
        Self::readiness(self)
    }

    fn watchers(&self) -> &Watchers {
        Self::watchers(self)
    }

    fn sync_with_owner(&self) {
        Self::sync_with_owner(self);
    }

    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        Self::watch(self, key, watch)
    }

    /// A pending error makes the socket readable. A report in the error queue ends no wait, because
    /// it remains there after the call that a wait precedes (Linux: `__skb_wait_for_more_packets`).
    fn wanted(&self, interest: Readiness) -> Readiness {
        interest | Readiness::HUP
    }
}

/// Implements [`Observed`] for sockets whose watchers need no other preparation.
macro_rules! observed {
    ($($socket:ty),*) => {$(
        impl Observed for $socket {
            fn readiness(&self) -> Readiness {
                Self::readiness(self)
            }

            fn watchers(&self) -> &Watchers {
                Self::watchers(self)
            }

            fn sync_with_owner(&self) {
                Self::sync_with_owner(self);
            }

            fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
                let added = self.watchers().add(key, watch);
                self.sync_with_owner();
                added
            }
        }
    )*};
}

observed!(Listener, FlowQueue, RequestSocket, UdpSession);

/// Returns the readiness of the socket if it includes a part of `interest`, an error or the end.
/// Otherwise registers the waker of `task`, in place of the last one with the same key.
pub(crate) fn poll_ready(
    socket: &(impl Observed + ?Sized),
    key: WatchKey,
    interest: Readiness,
    task: &Context<'_>,
) -> Poll<Readiness> {
    let wanted = socket.wanted(interest);
    let ready = socket.readiness();
    if ready.intersects(wanted) {
        return Poll::Ready(ready);
    }
    socket.watchers().set_task(key, wanted.bits(), task.waker());
    // Check again after the registration: any later change finds the waker.
    socket.sync_with_owner();
    let ready = socket.readiness();
    if ready.intersects(wanted) { Poll::Ready(ready) } else { Poll::Pending }
}
