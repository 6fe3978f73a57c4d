//! Requests of intercepted connections as the application sees them: it answers, refuses, or waits
//! for the third segment.
//!
//! Above: `interceptor`, which makes them; crate `quietline`. Below: `listener::request`, which has
//! the steps of the handshake for both kinds of requests, and `tcp::Request`.
//!
//! A request is **pending** until exactly one thread sets its `done`: the thread that processes the
//! third segment, a reset or the expiry, or the application that refuses it. Afterwards the
//! **outcome** is the connection, or the error with which the request has ended.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use pkt::{DropReason, Instant};
use sync::{EventCount, Watchers};
use tcp::{Readiness, Request, SegmentHeader};

use super::interceptor::Interceptor;
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{CoreId, DeviceIndex},
        timer::TimerHandle,
    },
    cx::Cx,
    socket::{
        Connection, RequestSocket,
        connection::{SocketRef, readiness::notify_watchers},
        core_sockets::TimerEntry,
        demux::FlowName,
        listener::{request::Owner, source_limit::SourcePermit},
        net::Net,
    },
};

/// Value of `timer` without an entry in the timer wheel.
const NOT_ARMED: u64 = u64::MAX;

/// Part of a request that exists only for the application of an intercepted connection.
#[derive(Debug)]
pub(in crate::socket) struct Held {
    pub(in crate::socket) interceptor: Arc<Interceptor>,
    /// Entry in the timer wheel, encoded by `TimerHandle::to_bits`; [`NOT_ARMED`] for none. It is
    /// removed when the request ends, because it keeps the memory of the request. SeqCst, like
    /// `done` of the request: either the thread that arms sees that the request has ended, or the
    /// thread that ends it sees the entry.
    timer: AtomicU64,
    outcome: Mutex<Outcome>,
    waiters: EventCount,
    watchers: Watchers,
}

/// Result of a request.
#[derive(Debug)]
enum Outcome {
    Pending,
    /// The handshake is complete.
    Open(SocketRef),
    /// The request has ended without a connection.
    Failed(Errno),
    /// The application has taken the connection, or wants none.
    Taken,
}

impl Held {
    fn new(interceptor: &Arc<Interceptor>) -> Self {
        Self {
            interceptor: Arc::clone(interceptor),
            timer: AtomicU64::new(NOT_ARMED),
            outcome: Mutex::new(Outcome::Pending),
            waiters: EventCount::new(),
            watchers: Watchers::new(),
        }
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms the timer in place of the previous one.
    fn arm(&self, net: &Net, core: CoreId, deadline: Instant, entry: TimerEntry) {
        let handle = net.core_sockets(core).arm(deadline, entry);
        disarm(net, self.timer.swap(handle.to_bits(), Ordering::SeqCst));
    }

    fn disarm(&self, net: &Net) {
        disarm(net, self.timer.swap(NOT_ARMED, Ordering::SeqCst));
    }

    /// Softirq: passes on the connection of the request. `Err` returns it if the application wants
    /// none.
    fn complete(&self, cx: &Cx, socket: SocketRef) -> Result<(), SocketRef> {
        {
            let mut outcome = self.outcome();
            if !matches!(*outcome, Outcome::Pending) {
                return Err(socket);
            }
            *outcome = Outcome::Open(socket);
        }
        if self.waiters.notify_all() {
            cx.count(Counter::SocketWakes, 1);
        }
        notify_watchers(&self.watchers, cx, Readiness::READ | Readiness::WRITE);
        Ok(())
    }

    /// Records that the request has ended without a connection.
    fn fail(&self, errno: Errno) {
        {
            let mut outcome = self.outcome();
            if !matches!(*outcome, Outcome::Pending) {
                return;
            }
            *outcome = Outcome::Failed(errno);
        }
        self.waiters.notify_all();
        let ended = Readiness::READ | Readiness::WRITE | Readiness::HUP | Readiness::ERROR;
        self.watchers.notify(ended.bits());
    }
}

fn disarm(net: &Net, bits: u64) {
    if bits != NOT_ARMED {
        let handle = TimerHandle::from_bits(bits);
        net.core_sockets(handle.core).disarm(handle);
    }
}

/// Steps that `listener::request` calls for an intercepted connection.
impl RequestSocket {
    /// Softirq: adds a held request to the table, and arms its expiry.
    pub(super) fn hold(
        net: &Net,
        interceptor: &Arc<Interceptor>,
        name: &FlowName,
        request: Request,
        permit: Option<Box<SourcePermit>>,
        limit: usize,
    ) -> Result<Arc<Self>, DropReason> {
        let deadline = request.deadline();
        let held = Box::new(Held::new(interceptor));
        let socket = Self::new(Owner::Flow(held), name, request, permit);
        socket.register(net, limit)?;
        socket.arm_held(net, deadline);
        Ok(socket)
    }

    /// Arms the timer of an intercepted connection, unless the request has ended.
    pub(in crate::socket) fn arm_held(&self, net: &Net, deadline: Instant) {
        let Some(held) = self.held() else { return };
        held.arm(net, self.name().core, deadline, TimerEntry::Request(self.weak()));
        if self.is_done() {
            held.disarm(net);
        }
    }

    /// Notes that the timer has fired.
    pub(in crate::socket) fn on_held_timer(&self) {
        if let Some(held) = self.held() {
            held.timer.store(NOT_ARMED, Ordering::SeqCst);
        }
    }

    /// Softirq: passes the connection on to the application, or ends it if the application wants
    /// none.
    pub(in crate::socket) fn complete_held(&self, net: &Net, cx: &mut Cx, socket: SocketRef) {
        let Some(held) = self.held() else { return };
        held.disarm(net);
        if let Err(socket) = held.complete(cx, socket) {
            socket.abort(net, cx);
            socket.close(net, cx);
        }
    }

    /// Records the end of the request.
    pub(in crate::socket) fn fail_held(&self, net: &Net, errno: Errno) {
        if let Some(held) = self.held() {
            held.disarm(net);
            held.fail(errno);
        }
    }
}

/// Calls of the application.
impl RequestSocket {
    /// Returns the address and port of the client.
    #[must_use]
    pub const fn source(&self) -> SocketAddr {
        self.name().tuple.remote
    }

    /// Returns the address and port that the client connects to.
    #[must_use]
    pub const fn destination(&self) -> SocketAddr {
        self.name().tuple.local
    }

    /// Returns the device that has brought the SYN of an intercepted connection.
    #[must_use]
    pub const fn via(&self) -> Option<DeviceIndex> {
        self.name().via
    }

    /// Returns the core that processes the segments of the client.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.name().core
    }

    /// Sends the SYN-ACK, if it was not sent yet.
    ///
    /// # Errors
    /// `ENOBUFS` without memory; the error with which the request has ended: `ECONNRESET` by a
    /// reset, `ETIMEDOUT` without a further SYN of the client, `ECONNABORTED` by an ICMP error or
    /// the end of the host or device.
    pub fn answer(&self, net: &Net, cx: &mut Cx) -> Result<(), Errno> {
        if self.is_cancelled() {
            return Err(self.error());
        }
        let entered = cx.enter(net);
        let answered = {
            let mut request = self.request();
            match request.is_held() && !self.is_done() {
                true => request.answer(&mut cx.tcp()).map(|()| Some(request.deadline())),
                false => Ok(None),
            }
        };
        if let Ok(Some(deadline)) = answered {
            self.arm_held(net, deadline);
            net.reply(cx, self.name());
            cx.do_softirq();
        }
        cx.leave(entered);
        answered.map(drop).map_err(|_| Errno::ENOBUFS)
    }

    /// Takes the connection, once its handshake is complete.
    ///
    /// # Errors
    /// `EAGAIN` before; as [`answer`](Self::answer) after the request has ended.
    pub fn take(&self) -> Result<Arc<Connection>, Errno> {
        let Some(held) = self.held() else { return Err(Errno::EINVAL) };
        let mut outcome = held.outcome();
        match *outcome {
            Outcome::Pending => Err(Errno::EAGAIN),
            Outcome::Failed(errno) => Err(errno),
            Outcome::Open(_) | Outcome::Taken => {
                match core::mem::replace(&mut *outcome, Outcome::Taken) {
                    Outcome::Open(socket) => Ok(socket),
                    _ => Err(Errno::EINVAL),
                }
            }
        }
    }

    /// Refuses the connection with a reset, or resets the connection if it is open already. Does
    /// nothing if it has ended or was taken.
    pub fn refuse(&self, net: &Net, cx: &mut Cx) {
        let entered = cx.enter(net);
        match self.dismiss(net) {
            Dismissed::Pending => {
                self.request().refuse(&mut cx.tcp());
                cx.count(Counter::FlowRefused, 1);
                net.reply(cx, self.name());
            }
            Dismissed::Open(socket) => {
                socket.abort(net, cx);
                socket.close(net, cx);
            }
            Dismissed::Over => {}
        }
        cx.do_softirq();
        cx.leave(entered);
    }

    /// Ends the request for the application, without an answer to the client.
    fn dismiss(&self, net: &Net) -> Dismissed {
        let ends = self.end(net, Errno::ECONNABORTED);
        let Some(held) = self.held() else { return Dismissed::Over };
        match core::mem::replace(&mut *held.outcome(), Outcome::Taken) {
            _ if ends => Dismissed::Pending,
            Outcome::Open(socket) => Dismissed::Open(socket),
            _ => Dismissed::Over,
        }
    }

    /// Ends a request whose SYN is not answered yet, without an answer to the client. Returns the
    /// header of the SYN, for an ICMP error that quotes it; `None` if the request has ended or was
    /// answered.
    pub(crate) fn dismiss_unanswered(&self, net: &Net) -> Option<SegmentHeader> {
        let syn = {
            let request = self.request();
            request.is_held().then(|| request.syn())?
        };
        matches!(self.dismiss(net), Dismissed::Pending).then_some(syn)
    }

    /// Sends a reset to the client of a request that
    /// [`dismiss_unanswered`](Self::dismiss_unanswered) has ended.
    pub(crate) fn reset_dismissed(&self, net: &Net, cx: &mut Cx) {
        self.request().refuse(&mut cx.tcp());
        net.reply(cx, self.name());
    }

    /// Returns whether the request has ended without a connection.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.held().is_some_and(|held| matches!(*held.outcome(), Outcome::Failed(_)))
    }

    /// Returns the error with which the request has ended.
    fn error(&self) -> Errno {
        match self.held().map(|held| held.outcome()).as_deref() {
            Some(Outcome::Failed(errno)) => *errno,
            _ => Errno::EINVAL,
        }
    }

    /// Returns READ and WRITE once [`take`](Self::take) returns a connection; also HUP and ERROR if
    /// the request has ended without one.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match self.held().map(|held| held.outcome()).as_deref() {
            Some(Outcome::Pending) => Readiness::empty(),
            Some(Outcome::Open(_)) => Readiness::READ | Readiness::WRITE,
            _ => Readiness::READ | Readiness::WRITE | Readiness::HUP | Readiness::ERROR,
        }
    }

    /// Returns the event count of threads that wait for the outcome.
    ///
    /// # Panics
    /// For the request of a listener, which no application sees.
    #[must_use]
    pub fn waiters(&self) -> &EventCount {
        &self.held().expect("an intercepted request").waiters
    }

    /// Returns the tasks and event loops that the request notifies of its outcome.
    ///
    /// # Panics
    /// As [`waiters`](Self::waiters).
    #[must_use]
    pub fn watchers(&self) -> &Watchers {
        &self.held().expect("an intercepted request").watchers
    }

    /// Synchronizes a task with the contexts that end the request, as
    /// [`Connection::sync_with_owner`].
    pub fn sync_with_owner(&self) {
        if let Some(held) = self.held() {
            drop(held.outcome());
        }
    }
}

/// State in which the application has left a request.
enum Dismissed {
    /// The client waits for an answer.
    Pending,
    /// The connection was open already.
    Open(SocketRef),
    /// The request had ended, or its connection was taken.
    Over,
}
