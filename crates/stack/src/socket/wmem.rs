//! `sk_wmem_alloc`: packet memory of a socket that has been passed below TCP and has not completed,
//! and resumption of the sender on completion.
//!
//! Above: `settle` and `datagram::send`, which charge transmitted packets. Below: devices and
//! qdiscs, which complete packets on any core. A completion accesses only atomics and the list of
//! the socket's core, because its caller may hold any lock. Linux: `sock_wfree`, `tcp_wfree`,
//! `tcp_tasklet_func`.
//!
//! Differs from Linux: the list belongs to the socket's core, not to the completing core, so that
//! no single core becomes the sender for all. A datagram socket is on the same list; Linux wakes
//! its writers in the completion itself.
//!
//! Lifetime: packets refer to this object and not to the socket, which may be freed before its last
//! packet completes. This object is freed with the later of the two, as `struct sock` is with the
//! last of `sk_wmem_alloc`.
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

/// The same, kept alive.
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
    /// `net.quietline.tsq_protocol` when the socket was last throttled. Relaxed: completions of
    /// either protocol work for either kind of sender.
    seed: AtomicBool,
    socket: SendingSocket,
    /// Tasklet of the socket's core; gone once the host is gone.
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

    /// Charges the data packets in `list` to the socket until their device completes them. Bare
    /// ACKs are not charged, so they neither hold data back nor cause wakeups.
    ///
    /// A packet's charge never changes: the destructor subtracts exactly the bytes added here.
    pub(super) fn charge(this: &Arc<Self>, list: &mut PacketList) {
        let mut packets = core::mem::take(list);
        let mut bytes = 0;
        while let Some(mut packet) = packets.pop_front() {
            let header = packet.linear().get(12).map_or(0, |offset| usize::from(offset >> 4) * 4);
            if packet.len() > header {
                bytes += packet.truesize();
                packet.set_owner(Arc::clone(this) as Arc<dyn PacketOwner>);
            }
            list.push_back(packet);
        }
        // Once for all packets, and before the first is passed on: no packet completes before it is
        // charged.
        if bytes > 0 {
            this.queue.charge(bytes);
        }
    }

    /// Charges every packet of `list` to the socket until their device completes them.
    pub(super) fn charge_all(this: &Arc<Self>, list: &mut PacketList) {
        let mut packets = core::mem::take(list);
        let mut bytes = 0;
        while let Some(mut packet) = packets.pop_front() {
            bytes += packet.truesize();
            packet.set_owner(Arc::clone(this) as Arc<dyn PacketOwner>);
            list.push_back(packet);
        }
        // As in `charge`: no packet completes before it is charged.
        if bytes > 0 {
            this.queue.charge(bytes);
        }
    }

    /// Records that the sender stops because more than `limit` bytes are uncompleted. Returns false
    /// if enough has completed meanwhile; the sender then continues.
    pub(super) fn throttle(&self, protocol: TsqProtocol, limit: u32) -> bool {
        // Completions on other cores read the line, so it is written only for a change.
        if self.protocol() != protocol {
            self.seed.store(protocol == TsqProtocol::Seed, Ordering::Relaxed);
        }
        self.entry.get_or_init(|| Listed::new(self.socket.clone()));
        self.queue.throttle(protocol, |bytes| bytes > limit)
    }

    /// Runs the work of a list entry.
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

/// A timer of a socket. A forgotten entry stays in the wheel until it fires, and keeps only this
/// small object allocated, not the socket.
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

/// Counts the uncompleted bytes of a socket in a histogram with steps of four.
pub(super) fn count_bytes(cx: &Cx, bytes: u32) {
    let bucket = match bytes >> 10 {
        // An entry of the tasklet's list counts as one byte.
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

/// Counts the time since which the sender was throttled, when it resumes or checks whether it may.
pub(super) fn count_throttled(cx: &Cx, since: Instant) {
    let micros = u64::try_from((cx.now - since).as_micros()).unwrap_or(u64::MAX);
    cx.count(Counter::TsqThrottledMicros, micros);
}

/// Sockets of one core that may send again. Any core adds sockets without a lock. Linux: `struct
/// tsq_tasklet`.
#[derive(Debug)]
pub(crate) struct Tasklet {
    sockets: Llist<Hook<SendingSocket>>,
    /// Attendance of the core whose turns run the tasklet.
    attendance: Arc<Attendance>,
}

impl Tasklet {
    /// Creates the tasklet of a core.
    pub(crate) const fn new(attendance: Arc<Attendance>) -> Self {
        Self { sockets: Llist::new(), attendance }
    }

    /// Schedules the owner of `hook` for the next turn of the core; the first entry wakes the
    /// core's worker.
    fn schedule(&self, hook: Hook<SendingSocket>) {
        if self.sockets.push(hook) {
            self.attendance.wake_before(Instant::ZERO.as_nanos());
        }
    }

    /// Returns whether a socket waits. A worker checks this after it has announced its sleep
    /// (`Attendance::prepare_sleep`).
    pub(crate) fn is_pending(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Lets every socket send that was scheduled before. Sockets scheduled meanwhile wait for the
    /// next turn.
    pub(crate) fn run(&self, net: &Net, cx: &mut Cx) {
        if !self.is_pending() {
            return;
        }
        for hook in self.sockets.take_all() {
            let socket = hook.upgrade();
            // Dropped before the handler runs: from then on a completion adds the socket again.
            drop(hook);
            match socket {
                Some(Upgraded::Stream(socket)) => socket.on_tasklet(net, cx),
                Some(Upgraded::Datagram(socket)) => socket.on_tasklet(cx),
                None => {}
            }
        }
    }
}
