//! New flows that wait for the application, of all intercepting devices of a host.
//!
//! Above: crate `quietline`. Below: requests, which know whether they have ended. The interceptors
//! bound the flows; the queue also holds flows that have ended meanwhile, and removes them when
//! they are half of it. Echo requests and packets of other protocols wait in a queue of limited
//! bytes, whose oldest packet is dropped for a new one.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use pkt::DropReason;
use sync::{EventCount, Watchers};
use tcp::Readiness;

use super::{packet::FlowPacket, session::UdpSession};
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
    /// A UDP session, with its first datagram.
    Udp(Arc<UdpSession>),
    /// An echo request.
    Echo(FlowPacket),
    /// A packet of another protocol.
    Other(FlowPacket),
}

impl NewFlow {
    /// Returns whether the flow has ended before the application has taken it.
    fn has_ended(&self) -> bool {
        match self {
            Self::Tcp(request) => request.is_cancelled(),
            Self::Udp(session) => session.has_ended(),
            Self::Echo(_) | Self::Other(_) => false,
        }
    }

    /// Ends the flow, whose application does not take it.
    pub(super) fn refuse(self, net: &Net, cx: &mut Cx) {
        match self {
            Self::Tcp(request) => request.refuse(net, cx),
            Self::Udp(session) => session.close(net, cx),
            Self::Echo(FlowPacket { packet, .. }) | Self::Other(FlowPacket { packet, .. }) => {
                cx.drop_packet(DropReason::FlowIgnored, packet);
            }
        }
    }

    fn truesize(&self) -> u32 {
        match self {
            Self::Tcp(_) | Self::Udp(_) => 0,
            Self::Echo(flow) | Self::Other(flow) => flow.packet.truesize(),
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

/// Largest sum of `truesize` of the waiting packets that belong to no connection and no session:
/// the default of a socket's receive buffer.
const PACKET_BYTES_MAX: u32 = 212_992;

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
    /// Echo requests and packets of other protocols.
    packets: VecDeque<NewFlow>,
    /// Sum of their `truesize`.
    packet_bytes: u32,
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
        self.watchers.clear();
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
        waiting.packet_bytes = 0;
        let mut flows = core::mem::take(&mut waiting.flows);
        flows.append(&mut waiting.packets);
        flows
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
            self.len.store(waiting.len(), Ordering::Release);
            ended
        };
        // Dropped outside the lock.
        drop(ended);
        self.notify(cx);
        Ok(())
    }

    /// Softirq: adds a packet. The oldest ones make room for it.
    pub(super) fn push_packet(&self, cx: &mut Cx, flow: NewFlow) {
        let mut dropped = Vec::new();
        {
            let mut waiting = self.lock();
            if self.is_open() {
                waiting.packet_bytes += flow.truesize();
                waiting.packets.push_back(flow);
                while waiting.packet_bytes > PACKET_BYTES_MAX
                    && let Some(oldest) = waiting.packets.pop_front()
                {
                    waiting.packet_bytes -= oldest.truesize();
                    dropped.push(oldest);
                }
                self.len.store(waiting.len(), Ordering::Release);
            } else {
                dropped.push(flow);
            }
        }
        for flow in dropped {
            if let NewFlow::Echo(FlowPacket { packet, .. })
            | NewFlow::Other(FlowPacket { packet, .. }) = flow
            {
                cx.drop_packet(DropReason::FlowQueueFull, packet);
            }
        }
        self.notify(cx);
    }

    fn notify(&self, cx: &Cx) {
        if self.readers.notify_one() {
            cx.count(Counter::SocketWakes, 1);
        }
        notify_watchers(&self.watchers, cx, Readiness::READ);
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
                let flow = waiting.pop().ok_or(Errno::EAGAIN)?;
                self.len.store(waiting.len(), Ordering::Release);
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
    fn len(&self) -> usize {
        self.flows.len() + self.packets.len()
    }

    fn pop(&mut self) -> Option<NewFlow> {
        if let Some(flow) = self.flows.pop_front() {
            return Some(flow);
        }
        let packet = self.packets.pop_front()?;
        self.packet_bytes -= packet.truesize();
        Some(packet)
    }

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
