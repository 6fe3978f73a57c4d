//! New flows that wait for the application, of all intercepting devices of a host.
//!
//! Above: crate `quietline`. Below: requests, which know whether they have ended. The interceptors
//! bound the flows; the queue also holds requests that have ended meanwhile, and removes them when
//! they are half of it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use sync::{EventCount, Watchers};
use tcp::Readiness;

use crate::{
    base::{counters::Counter, errno::Errno},
    cx::Cx,
    socket::{RequestSocket, connection::readiness::notify_watchers, net::Net},
};

/// A flow that the application has not seen yet.
#[derive(Debug)]
pub enum NewFlow {
    /// A TCP connection whose SYN is not answered yet.
    Tcp(Arc<RequestSocket>),
}

impl NewFlow {
    /// Returns whether the flow has ended before the application has taken it.
    fn has_ended(&self) -> bool {
        match self {
            Self::Tcp(request) => request.is_cancelled(),
        }
    }

    fn refuse(self, net: &Net, cx: &mut Cx) {
        match self {
            Self::Tcp(request) => request.refuse(net, cx),
        }
    }
}

/// Whether flows enter the queue: before the first handle is made, and while there is one.
const OPEN: u8 = 0;
/// The last handle was dropped: the devices intercept nothing.
const CLOSED: u8 = 1;
/// The host was shut down.
const DOWN: u8 = 2;

/// Length below which ended flows are not looked for.
const SWEEP_MIN: usize = 64;

/// New flows, oldest first.
#[derive(Debug)]
pub struct FlowQueue {
    state: AtomicU8,
    waiting: Mutex<Waiting>,
    /// Length of the queue, to read without the lock.
    len: AtomicUsize,
    readers: EventCount,
    watchers: Watchers,
}

#[derive(Debug, Default)]
struct Waiting {
    flows: VecDeque<NewFlow>,
    handles: usize,
    /// Length at which ended flows are removed: the double of those that had not ended last time.
    sweep_at: usize,
}

impl FlowQueue {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(OPEN),
            waiting: Mutex::new(Waiting { sweep_at: SWEEP_MIN, ..Waiting::default() }),
            len: AtomicUsize::new(0),
            readers: EventCount::new(),
            watchers: Watchers::new(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    fn is_down(&self) -> bool {
        self.state.load(Ordering::Acquire) == DOWN
    }

    /// Adds a handle of the application. Each call is followed by one of [`close`](Self::close).
    ///
    /// # Errors
    /// `ENETDOWN` after the shutdown of the host.
    pub fn open(&self) -> Result<(), Errno> {
        let mut waiting = self.lock();
        if self.is_down() {
            return Err(Errno::ENETDOWN);
        }
        waiting.handles += 1;
        self.state.store(OPEN, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a handle. When it was the last one, the waiting flows are refused, and the devices
    /// intercept nothing until the next handle.
    pub fn close(&self, net: &Net, cx: &mut Cx) {
        let flows = {
            let mut waiting = self.lock();
            waiting.handles -= 1;
            if waiting.handles > 0 || self.is_down() {
                return;
            }
            self.state.store(CLOSED, Ordering::Relaxed);
            self.take_all(&mut waiting)
        };
        refuse_all(flows, net, cx);
    }

    pub(super) fn shut_down(&self, net: &Net, cx: &mut Cx) {
        let flows = {
            let mut waiting = self.lock();
            self.state.store(DOWN, Ordering::Release);
            self.take_all(&mut waiting)
        };
        refuse_all(flows, net, cx);
        self.readers.notify_all();
        notify_watchers(&self.watchers, cx, Readiness::READ | Readiness::HUP);
    }

    pub(super) fn forget(&self) {
        let mut waiting = self.lock();
        self.state.store(DOWN, Ordering::Release);
        let flows = self.take_all(&mut waiting);
        drop(waiting);
        drop(flows);
    }

    fn take_all(&self, waiting: &mut Waiting) -> VecDeque<NewFlow> {
        self.len.store(0, Ordering::Release);
        core::mem::take(&mut waiting.flows)
    }

    /// Softirq: adds a flow; `Err` returns it once the queue is closed.
    pub(super) fn push(&self, cx: &Cx, flow: NewFlow) -> Result<(), NewFlow> {
        let ended = {
            let mut waiting = self.lock();
            if !self.is_open() {
                return Err(flow);
            }
            waiting.flows.push_back(flow);
            let ended = waiting.sweep();
            self.len.store(waiting.flows.len(), Ordering::Release);
            ended
        };
        // Dropped outside the lock.
        drop(ended);
        if self.readers.notify_one() {
            cx.count(Counter::SocketWakes, 1);
        }
        notify_watchers(&self.watchers, cx, Readiness::READ);
        Ok(())
    }

    /// Takes the oldest flow that has not ended.
    ///
    /// # Errors
    /// `EAGAIN` without a flow, `ENETDOWN` after the shutdown of the host.
    pub fn try_next(&self) -> Result<NewFlow, Errno> {
        loop {
            if self.is_down() {
                return Err(Errno::ENETDOWN);
            }
            let flow = {
                let mut waiting = self.lock();
                let flow = waiting.flows.pop_front().ok_or(Errno::EAGAIN)?;
                self.len.store(waiting.flows.len(), Ordering::Release);
                flow
            };
            if !flow.has_ended() {
                return Ok(flow);
            }
        }
    }

    /// Returns READ if a flow waits, and HUP after the shutdown of the host.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        ready.set(Readiness::READ, self.is_ready());
        ready.set(Readiness::HUP, self.is_down());
        ready
    }

    /// Returns whether [`try_next`](Self::try_next) would return a flow, or fail permanently.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0 || self.is_down()
    }

    /// Returns the event count of threads that wait for a flow.
    #[must_use]
    pub const fn waiters(&self) -> &EventCount {
        &self.readers
    }

    /// Returns the tasks and event loops that the queue notifies of every flow.
    #[must_use]
    pub const fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Synchronizes a task with the contexts that add flows, as
    /// [`Connection::sync_with_owner`](crate::socket::Connection::sync_with_owner).
    pub fn sync_with_owner(&self) {
        drop(self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Removes the flows that have ended, if there may be many.
    fn sweep(&mut self) -> Vec<NewFlow> {
        if self.flows.len() < self.sweep_at {
            return Vec::new();
        }
        let flows = core::mem::take(&mut self.flows);
        let (ended, alive): (Vec<_>, VecDeque<_>) = partition(flows);
        self.sweep_at = (2 * alive.len()).max(SWEEP_MIN);
        self.flows = alive;
        ended
    }
}

fn partition(flows: VecDeque<NewFlow>) -> (Vec<NewFlow>, VecDeque<NewFlow>) {
    let (mut ended, mut alive) = (Vec::new(), VecDeque::new());
    for flow in flows {
        if flow.has_ended() { ended.push(flow) } else { alive.push_back(flow) }
    }
    (ended, alive)
}

fn refuse_all(flows: VecDeque<NewFlow>, net: &Net, cx: &mut Cx) {
    for flow in flows {
        flow.refuse(net, cx);
    }
}
