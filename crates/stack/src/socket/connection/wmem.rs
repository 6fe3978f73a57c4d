//! `sk_wmem_alloc`: packet memory that a socket has handed down and that has not completed, and the wake-up that comes with
//! its completion.
//!
//! Above: `stream`, which charges what it sends. Below: devices and qdiscs, which complete packets on any core; a completion
//! touches atomics and the list of the socket's core, nothing else, because nobody knows which locks its caller holds.
//! Linux: `sock_wfree`, `tcp_wfree`, `tcp_tasklet_func`.
//!
//! Differs from Linux: the list is that of the core the connection belongs to, not of the one that completes, so that no
//! core becomes the sender for everybody.
//!
//! Lifetime: packets hold this, not the socket, which may be gone before the last of them completes; the memory goes with the
//! later of the two, as `struct sock` does with the last of `sk_wmem_alloc`.
//!
//! Not here: the protocol between the sender and completions (`sync::small_queue`), the limit (`tcp::TsqLimit`).

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use pkt::{Instant, PacketList, PacketOwner};
use sync::{Attendance, Hook, Listed, Llist, SmallQueue, TsqProtocol};

use crate::{base::counters::Counter, cx::Cx, host::Host, socket::TcpSocket};

/// What one socket has below it.
#[derive(Debug)]
pub(super) struct Wmem {
    queue: SmallQueue,
    /// `net.quietline.tsq_protocol` as it was when the socket was last throttled. Relaxed: both kinds of completion do for
    /// either kind of sender.
    seed: AtomicBool,
    socket: Weak<TcpSocket>,
    /// Of the socket's core. Dead once the host is gone.
    tasklet: Weak<Tasklet>,
    /// What hangs in the core's list. Made when the socket is first throttled: a completion allocates nothing.
    entry: OnceLock<Arc<Listed<Weak<TcpSocket>>>>,
}

impl Wmem {
    pub(super) fn new(socket: Weak<TcpSocket>, tasklet: &Arc<Tasklet>) -> Arc<Self> {
        Arc::new(Self {
            queue: SmallQueue::new(),
            seed: AtomicBool::new(false),
            socket,
            tasklet: Arc::downgrade(tasklet),
            entry: OnceLock::new(),
        })
    }

    /// Bytes below the socket.
    pub(super) fn bytes(&self) -> u32 {
        self.queue.bytes()
    }

    /// Makes the socket pay for the data in `list` until its device completes it. Bare ACKs are free, so that they
    /// neither hold data back nor wake anybody.
    ///
    /// What a packet was charged stays with it, whatever becomes of it below (a destructor subtracts exactly what was
    /// added).
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
        // Once for all of them, and before the first is handed down: nothing completes that is not charged.
        if bytes > 0 {
            this.queue.charge(bytes);
        }
    }

    /// The sender stops with more than `limit` bytes below. False when that is no longer so: it goes on.
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

/// A timer of a socket. An entry that its socket has forgotten outlives it until it fires: what it keeps allocated is this small part
/// and not the socket.
#[derive(Debug)]
pub(crate) struct StreamTimer(Weak<Wmem>);

impl StreamTimer {
    pub(super) fn of(wmem: &Arc<Wmem>) -> Self {
        Self(Arc::downgrade(wmem))
    }

    /// The socket, if it still exists.
    pub(crate) fn upgrade(&self) -> Option<Arc<TcpSocket>> {
        self.0.upgrade()?.socket.upgrade()
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
            // The host is gone, and with it who would send.
            _ => self.queue.end(protocol),
        }
    }
}

/// The histogram of what a socket has below it when it looks, in fours.
pub(super) fn count_bytes(cx: &Cx, bytes: u32) {
    let bucket = match bytes >> 10 {
        // An entry of the tasklet's list counts as one.
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

/// A socket goes on that has been stopped `since` then, or looks whether it may.
pub(super) fn count_throttled(cx: &Cx, since: Instant) {
    let micros = u64::try_from((cx.now - since).as_micros()).unwrap_or(u64::MAX);
    cx.count(Counter::TsqThrottledMicros, micros);
}

/// Sockets of one core that may send again: any core lists them, without a lock. Linux: `struct tsq_tasklet`.
#[derive(Debug)]
pub(crate) struct Tasklet {
    sockets: Llist<Hook<Weak<TcpSocket>>>,
    /// Of the core whose turns run it.
    attendance: Arc<Attendance>,
}

impl Tasklet {
    /// The tasklet of a core.
    pub(crate) const fn new(attendance: Arc<Attendance>) -> Self {
        Self { sockets: Llist::new(), attendance }
    }

    /// The socket of `hook` is run in the next turn of the core, whose worker is woken for the first one.
    fn schedule(&self, hook: Hook<Weak<TcpSocket>>) {
        if self.sockets.push(hook) {
            self.attendance.wake_before(Instant::ZERO.as_nanos());
        }
    }

    /// Whether a socket waits. A worker asks after it has announced its sleep (`Attendance::prepare_sleep`).
    pub(crate) fn is_pending(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Lets every socket send that has been scheduled before. What they schedule anew waits for the next turn.
    pub(crate) fn run(&self, host: &Host, cx: &mut Cx) {
        if !self.is_pending() {
            return;
        }
        for hook in self.sockets.take_all() {
            let socket = hook.upgrade();
            // Before the handler: from then on a completion lists it again.
            drop(hook);
            if let Some(socket) = socket {
                socket.on_tasklet(host, cx);
            }
        }
    }
}
