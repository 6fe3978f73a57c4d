//! `sk_wmem_alloc`: memory of a socket's packets that were passed to IP and have not completed, and
//! resumption of the sender when they complete.
//!
//! Above: `settle` (which sends the output of a connection) and `datagram::send`; both charge the
//! packets that they pass on. Below: devices and qdiscs, which complete packets on any core. A
//! completion accesses only atomics, the list of the socket's core and the wakeup of its worker,
//! because its caller may hold any lock. Linux: `sock_wfree`, `tcp_wfree`, `tcp_tasklet_func`.
//!
//! Differs from Linux: the list belongs to the socket's core, not to the completing core, so that
//! the core that completes packets does not send for all sockets. A datagram socket also resumes
//! through this list; Linux wakes its writers in the completion itself.
//!
//! Lifetime: packets refer to this object and not to the socket, which may be freed before its last
//! packet completes. This object is freed with the socket or with its last packet, whichever is
//! later. Linux keeps the whole `struct sock` until `sk_wmem_alloc` is released.
//!
//! Not here: the protocol between the sender and completions (`sync::small_queue`), the limit
//! (`tcp::TsqLimit`).

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use pkt::{Instant, PacketList, PacketOwner};
use sync::{Attendance, Hook, Listed, Llist, SmallQueue, TsqProtocol};

use crate::{
    base::counters::Counter,
    cx::Cx,
    socket::{Connection, datagram::DatagramSocket, net::Net},
};

/// Socket that sends packets.
#[derive(Clone, Debug)]
pub(super) enum SendingSocket {
    /// A connection.
    Stream(Weak<Connection>),
    /// A datagram socket.
    Datagram(Weak<DatagramSocket>),
}

/// [`SendingSocket`] with a strong reference.
enum Upgraded {
    Stream(Arc<Connection>),
    Datagram(Arc<DatagramSocket>),
}

impl SendingSocket {
    fn upgrade(&self) -> Option<Upgraded> {
        match self {
            Self::Stream(socket) => socket.upgrade().map(Upgraded::Stream),
            Self::Datagram(socket) => socket.upgrade().map(Upgraded::Datagram),
        }
    }
}

/// Uncompleted packet memory of one socket.
#[derive(Debug)]
pub(super) struct Wmem {
    queue: SmallQueue,
    /// True if `net.quietline.tsq_protocol` was `seed` when the socket was last throttled. Relaxed:
    /// completions of either protocol work for either kind of sender.
    seed: AtomicBool,
    socket: SendingSocket,
    /// Tasklet of the socket's core. It is freed with the host.
    tasklet: Weak<Tasklet>,
    /// Entry for the core's list. Allocated when the socket is first throttled, because a
    /// completion must not allocate.
    entry: OnceLock<Arc<Listed<SendingSocket>>>,
}

impl Wmem {
    pub(super) fn new(socket: SendingSocket, tasklet: &Arc<Tasklet>) -> Arc<Self> {
        Arc::new(Self {
            queue: SmallQueue::new(),
            seed: AtomicBool::new(false),
            socket,
            tasklet: Arc::downgrade(tasklet),
            entry: OnceLock::new(),
        })
    }

    /// Returns the uncompleted bytes.
    pub(super) fn bytes(&self) -> u32 {
        self.queue.bytes()
    }

    /// Charges the data packets in `list` to the socket until their device completes them. Segments
    /// without data are not charged, so ACKs neither hold data back nor cause wakeups.
    ///
    /// A packet's charge never changes: the destructor subtracts exactly the bytes added here.
    pub(super) fn charge(this: &Arc<Self>, list: PacketList) -> PacketList {
        let mut bytes = 0;
        let list = list.changed(|packet| {
            let header = packet.linear().get(12).map_or(0, |offset| usize::from(offset >> 4) * 4);
            if packet.len() > header {
                bytes += packet.truesize();
                packet.set_owner(Arc::clone(this) as Arc<dyn PacketOwner>);
            }
        });
        // The bytes of all packets are charged at once, before the caller passes the first one on.
        // No packet can therefore complete before it is charged.
        if bytes > 0 {
            this.queue.charge(bytes);
        }
        list
    }

    /// Charges every packet of `list` to the socket until their device completes them.
    pub(super) fn charge_all(this: &Arc<Self>, list: PacketList) -> PacketList {
        let mut bytes = 0;
        let list = list.changed(|packet| {
            bytes += packet.truesize();
            packet.set_owner(Arc::clone(this) as Arc<dyn PacketOwner>);
        });
        // As in `charge`, before the caller passes the first packet on.
        if bytes > 0 {
            this.queue.charge(bytes);
        }
        list
    }

    /// Records that the sender stops because more than `limit` bytes are uncompleted. Returns false
    /// if enough has completed meanwhile; the sender then continues.
    pub(super) fn throttle(&self, protocol: TsqProtocol, limit: u32) -> bool {
        // Completions on other cores read this cache line, so it is written only if the value
        // changes.
        if self.protocol() != protocol {
            self.seed.store(protocol == TsqProtocol::Seed, Ordering::Relaxed);
        }
        self.entry.get_or_init(|| Listed::new(self.socket.clone()));
        self.queue.throttle(protocol, |bytes| bytes > limit)
    }

    /// Calls `run`, which resumes a sender that was on the tasklet's list, between `begin` and
    /// `end` of the protocol.
    pub(super) fn handle(&self, run: impl FnOnce()) {
        let protocol = self.protocol();
        self.queue.begin(protocol);
        run();
        self.queue.end(protocol);
    }

    fn protocol(&self) -> TsqProtocol {
        if self.seed.load(Ordering::Relaxed) { TsqProtocol::Seed } else { TsqProtocol::Robust }
    }
}

/// Timer of a socket. An entry that was not canceled stays in the timer wheel until it fires. Until
/// then it keeps only this small object allocated, not the socket.
#[derive(Debug)]
pub(crate) struct StreamTimer(Weak<Wmem>);

impl StreamTimer {
    pub(super) fn of(wmem: &Arc<Wmem>) -> Self {
        Self(Arc::downgrade(wmem))
    }

    /// Returns the socket, if it still exists.
    pub(crate) fn upgrade(&self) -> Option<Arc<Connection>> {
        match &self.0.upgrade()?.socket {
            SendingSocket::Stream(socket) => socket.upgrade(),
            SendingSocket::Datagram(_) => None,
        }
    }
}

impl PacketOwner for Wmem {
    fn on_complete(&self, truesize: u32) {
        let protocol = self.protocol();
        if !self.queue.complete(protocol, truesize) {
            return;
        }
        let hook = self.entry.get().and_then(Listed::hook);
        match (self.tasklet.upgrade(), hook) {
            (Some(tasklet), Some(hook)) => tasklet.schedule(hook),
            // The host is gone, so no core can resume the sender.
            _ => self.queue.end(protocol),
        }
    }
}

/// Counts the uncompleted bytes of a socket in a histogram whose bounds grow by a factor of four.
pub(super) fn count_bytes(cx: &Cx, bytes: u32) {
    let bucket = match bytes >> 10 {
        // While the socket is on the tasklet's list, one byte stays charged.
        0 if bytes <= 1 => Counter::HostQueueBytes0,
        0..4 => Counter::HostQueueBytesTo4K,
        4..16 => Counter::HostQueueBytesTo16K,
        16..64 => Counter::HostQueueBytesTo64K,
        64..256 => Counter::HostQueueBytesTo256K,
        256..1024 => Counter::HostQueueBytesTo1M,
        1024.. => Counter::HostQueueBytesOver1M,
    };
    cx.count(bucket, 1);
}

/// Counts the time from `since`, when the sender was throttled, until now, when it resumes or
/// checks whether it may.
pub(super) fn count_throttled(cx: &Cx, since: Instant) {
    let micros = u64::try_from((cx.now - since).as_micros()).unwrap_or(u64::MAX);
    cx.count(Counter::TsqThrottledMicros, micros);
}

/// List of the sockets of one core that may send again. Completions on any core add sockets,
/// without a lock. Linux: `struct tsq_tasklet`.
#[derive(Debug)]
pub(crate) struct Tasklet {
    sockets: Llist<Hook<SendingSocket>>,
    /// Attendance of the core that runs the tasklet: wakes the core's worker.
    attendance: Arc<Attendance>,
}

impl Tasklet {
    /// Creates the tasklet of a core.
    pub(crate) const fn new(attendance: Arc<Attendance>) -> Self {
        Self { sockets: Llist::new(), attendance }
    }

    /// Schedules the socket of `hook` for the core's next turn (one pass of its softirq work). The
    /// first entry wakes the core's worker.
    fn schedule(&self, hook: Hook<SendingSocket>) {
        if self.sockets.push(hook) {
            self.attendance.wake_before(Instant::ZERO.as_nanos());
        }
    }

    /// Returns whether a socket is on the list. A worker checks this after it has announced that it
    /// will sleep (`Attendance::prepare_sleep`).
    pub(crate) fn is_pending(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Resumes every socket that is on the list at the call. Sockets scheduled meanwhile wait for
    /// the next turn.
    pub(crate) fn run(&self, net: &Net, cx: &mut Cx) {
        if !self.is_pending() {
            return;
        }
        for hook in self.sockets.take_all() {
            let socket = hook.upgrade();
            // The hook is dropped before the handler runs, so that a completion during the handler
            // can add the socket again.
            drop(hook);
            match socket {
                Some(Upgraded::Stream(socket)) => socket.on_tasklet(net, cx),
                Some(Upgraded::Datagram(socket)) => socket.on_tasklet(cx),
                None => {}
            }
        }
    }
}
