//! The transmit queues of a device: the way of a packet from the link layer into the device, and where it waits when it may
//! not go yet.
//!
//! Above: `link_output`, whoever it is that sends. Below: a discipline ([`qdisc`](crate::transmit::qdisc)) or none, then the device.
//! Linux: `__dev_queue_xmit`, `__qdisc_run`, `sch_direct_xmit`, `dev_requeue_skb`, `net_tx_action`.
//!
//! ```text
//!   xmit ─► discipline ─► byte queue limit ─► gso, checksum ─► ready ─► device ─► completions ─┐
//!                              ▲                                 ▲ no room: the rest stays        │
//!                              └─────────────────────────────────┴──────────────────────────────┘
//! ```
//!
//! Without a discipline, and while nothing waits, packets go straight to the device, by as many threads as send. Otherwise a
//! queue is run by one thread at a time, its owner (`sync::CoreLock`, the bits `__QDISC_STATE_RUNNING` and `MISSED` in Linux):
//! whoever finds it owned leaves its packets in `incoming` and goes on, and the owner takes them before it lets go. No
//! lock is held while the device is called.
//!
//! A queue waits for its device's completions, or for a moment (`wake_ns`): that of a discipline that keeps time, exactly.
//! Both come with a turn of the core that the queue belongs to.

use std::{
    boxed::Box,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pkt::{Instant, Packet, PacketList};
use sync::{CoreGuard, CoreLock, Llist};

use super::qdisc::NetXmit;
use crate::{
    base::{counters::Counter, ids::CoreId},
    cx::Cx,
    device::{Completed, Device, QueueId},
    host::Host,
    sysctl::{Sysctls, modes::DevOrphan, qdisc::QdiscConfig},
};

use offload::Offload;
use state::{Next, TxState};
pub use stats::TxQueueStats;

mod delay;
mod offload;
mod state;
mod stats;

/// Packets that one caller carries into a device before it leaves the rest to the queue's core: it came for something else.
/// Linux: `dev_tx_weight`.
const QUOTA: usize = 64;

/// When a device that tells no completions is tried again after it had no room.
const RETRY: Duration = Duration::from_millis(1);

/// When one that does is tried again although it has told none: it has failed, or forgotten. Linux: `watchdog_timeo`.
const WATCHDOG: Duration = Duration::from_secs(5);

/// The transmit side of one device.
#[derive(Debug)]
pub(crate) struct DeviceTx {
    device: Arc<dyn Device>,
    index: u32,
    queues: Box<[TxQueue]>,
    offload: Offload,
    /// The device keeps packets after `transmit` returns.
    async_completion: bool,
    /// Packets may wait in a discipline. Relaxed: a path made a moment too early says what was true a moment before.
    has_qdisc: AtomicBool,
    /// It releases packets at their departure times.
    paces: AtomicBool,
    /// Some queue says which cores send by it (Linux: `xps_needed`).
    mapped: AtomicBool,
}

/// One transmit queue. Linux: `struct netdev_queue`.
#[derive(Debug)]
struct TxQueue {
    id: QueueId,
    /// Packets go by the owner, in the order of their coming: there is a discipline, or the device had no room once. Relaxed: a
    /// flow's next packet is sent by who holds its socket, which orders it after the one before.
    queued: AtomicBool,
    state: CoreLock<TxState>,
    /// Packets of those who found it owned.
    incoming: Llist<Packet>,
    /// Bytes that the device has completed and the owner has not seen. Written by the core, taken by the owner; the state orders
    /// it.
    completed: AtomicUsize,
    /// When its core runs it although nothing was completed, in nanoseconds; `u64::MAX` when there is nothing to wait for.
    wake_ns: AtomicU64,
}

impl DeviceTx {
    /// The queues of `device`, as `sysctls` say.
    pub(crate) fn new(device: Arc<dyn Device>, index: u32, sysctls: &Sysctls) -> Self {
        let caps = device.caps();
        let this = Self {
            offload: Offload::new(caps),
            async_completion: caps.async_completion,
            queues: (0..caps.queues).map(|queue| TxQueue::new(QueueId(queue))).collect(),
            index,
            has_qdisc: AtomicBool::new(false),
            paces: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            device,
        };
        this.configure(sysctls);
        this
    }

    /// The settings change: the owners follow when they next run. What waits in the discipline before is dropped then.
    pub(crate) fn configure(&self, sysctls: &Sysctls) {
        let config = self.qdisc_config(sysctls);
        self.has_qdisc.store(config != QdiscConfig::NoQueue, Ordering::Relaxed);
        self.paces.store(matches!(config, QdiscConfig::Fq(_)), Ordering::Relaxed);
        self.mapped.store(sysctls.devices.of(self.index).maps_tx(), Ordering::Relaxed);
        if config != QdiscConfig::NoQueue {
            for queue in &self.queues {
                queue.queued.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The discipline that every queue shall have.
    fn qdisc_config(&self, sysctls: &Sysctls) -> QdiscConfig {
        match sysctls.devices.of(self.index).qdisc {
            Some(config) => config,
            None if self.device.needs_qdisc() => sysctls.default_qdisc.into(),
            None => QdiscConfig::NoQueue,
        }
    }

    /// Packets complete some time after they were sent: in the device, or because they wait for it.
    pub(crate) fn completes(&self) -> bool {
        self.async_completion || self.has_qdisc.load(Ordering::Relaxed)
    }

    /// No packet ever waits: there is no discipline, and the device takes everything at once and is through with it then.
    pub(crate) fn takes_at_once(&self) -> bool {
        !self.completes() && !self.device.needs_qdisc()
    }

    /// The device tells completions.
    pub(crate) const fn completes_later(&self) -> bool {
        self.async_completion
    }

    /// Packets are held until their departure times: whoever stamps them need not hold them.
    pub(crate) fn paces(&self) -> bool {
        self.paces.load(Ordering::Relaxed)
    }

    /// The queue that a flow of `hash` sends by whose connection lives on `core`. Linux: `netdev_pick_tx`.
    #[inline]
    pub(crate) fn pick_queue(&self, cx: &Cx, core: CoreId, hash: u32) -> QueueId {
        // Most have one: not even the division is needed.
        if self.queues.len() == 1 {
            return QueueId(0);
        }
        if self.mapped.load(Ordering::Relaxed)
            && let Some(queue) = self.mapped_queue(cx, cx.place().unwrap_or(core), hash)
        {
            return queue;
        }
        QueueId(core.0 % self.queue_count())
    }

    /// The queue that `core` sends by (`xps_cpus`); of several the flow's. `None` when it is in no mask. Linux: `get_xps_queue`.
    #[cold]
    fn mapped_queue(&self, cx: &Cx, core: CoreId, hash: u32) -> Option<QueueId> {
        let settings = cx.sysctls().devices.of(self.index);
        let bit = 1u64.checked_shl(u32::from(core.0)).unwrap_or(0);
        let mut mine =
            (0..self.queue_count()).filter(|queue| settings.tx(*queue).xps_cpus & bit != 0);
        let count = mine.clone().count() as u64;
        // Not by the bits that have chosen the core: all its flows have them in common.
        let chosen = usize::try_from((u64::from(hash.rotate_left(16)) * count) >> 32).ok()?;
        mine.nth(chosen).map(QueueId)
    }

    /// Index of the device.
    pub(crate) const fn device_index(&self) -> u32 {
        self.index
    }

    fn queue_count(&self) -> u16 {
        u16::try_from(self.queues.len()).unwrap_or(u16::MAX)
    }

    /// Sends finished frames: superframes and partial checksums are seen to here. Linux: `dev_queue_xmit`.
    pub(crate) fn xmit(
        &self,
        host: &Host,
        cx: &mut Cx,
        queue: QueueId,
        list: &mut PacketList,
    ) -> NetXmit {
        let queue = &self.queues[usize::from(queue.0)];
        if !queue.queued.load(Ordering::Relaxed) {
            self.offload.fit_list(cx, list);
            self.hand_over(host, queue, cx, list);
            if list.is_empty() {
                return NetXmit::Success;
            }
            queue.queued.store(true, Ordering::Relaxed);
        }
        if let Some(mut guard) = queue.state.own_if_idle() {
            guard.follow(self, cx);
            guard.take_incoming(self, queue, cx);
            let sent = guard.send(self, cx, list);
            self.run(host, cx, queue, guard);
            return sent;
        }
        while let Some(packet) = list.pop_front() {
            queue.incoming.push(packet);
        }
        if queue.state.schedule(0)
            && let Some(guard) = queue.state.claim()
        {
            self.run(host, cx, queue, guard);
        }
        NetXmit::Success
    }

    /// The turn of the queue's core: what the device has completed, and what waits for that. Linux: `net_tx_action`.
    pub(crate) fn complete(&self, host: &Host, cx: &mut Cx, queue: QueueId) {
        if !self.async_completion {
            return;
        }
        let completed = self.device.complete(queue, cx);
        if completed == Completed::NONE {
            return;
        }
        let queue = &self.queues[usize::from(queue.0)];
        if queue.queued.load(Ordering::Relaxed) {
            queue.completed.fetch_add(completed.bytes, Ordering::Relaxed);
            self.run_if_idle(host, cx, queue);
        }
    }

    /// The turn of the queue's core: runs the queue if its moment has come. Linux: `qdisc_watchdog`.
    pub(crate) fn run_due(&self, host: &Host, cx: &mut Cx, queue: QueueId) {
        let queue = &self.queues[usize::from(queue.0)];
        if queue.wake_ns.load(Ordering::Relaxed) <= cx.now.as_nanos() {
            self.run_if_idle(host, cx, queue);
        }
    }

    /// The earliest moment at which `queue` is to be run.
    pub(crate) fn deadline(&self, queue: QueueId) -> Option<Instant> {
        match self.queues[usize::from(queue.0)].wake_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// The device is down: what waits is dropped. Waits for whoever runs a queue at this moment. Linux: `dev_deactivate`.
    pub(crate) fn purge(&self, cx: &mut Cx) {
        for queue in &self.queues {
            let mut guard = loop {
                match queue.state.own_if_idle() {
                    Some(guard) => break guard,
                    None => sync::yield_now(),
                }
            };
            loop {
                guard.purge(self, queue, cx);
                queue.wake_ns.store(u64::MAX, Ordering::Relaxed);
                match guard.release() {
                    Ok(()) => break,
                    Err(still_owned) => guard = still_owned,
                }
            }
        }
    }

    /// Runs the queue, or makes its owner run it once more.
    fn run_if_idle(&self, host: &Host, cx: &mut Cx, queue: &TxQueue) {
        if let Some(guard) = queue.state.try_own() {
            self.run(host, cx, queue, guard);
        }
    }

    /// Sends what may go, until nothing has been missed. Linux: `qdisc_run`.
    fn run(&self, host: &Host, cx: &mut Cx, queue: &TxQueue, mut guard: CoreGuard<'_, TxState>) {
        let mut quota = QUOTA;
        loop {
            // From here on the owner looks after it: its core need not.
            queue.wake_ns.store(u64::MAX, Ordering::Relaxed);
            let next = self.serve(host, cx, queue, &mut guard, &mut quota);
            if next == Next::More {
                drop(guard);
                // Last: who finds it due finds it idle. What was missed since is seen then, too.
                return queue.wake_at(host, Instant::ZERO);
            }
            if let Next::At(at) = next {
                queue.wake_ns.store(at.as_nanos(), Ordering::Relaxed);
            }
            match guard.release() {
                Ok(()) => {
                    if let Next::At(at) = next {
                        queue.wake_at(host, at);
                    }
                    return;
                }
                Err(still_owned) => guard = still_owned,
            }
        }
    }

    /// One pass of the owner: answers what it waits for. Linux: `__qdisc_run`.
    fn serve(
        &self,
        host: &Host,
        cx: &mut Cx,
        queue: &TxQueue,
        state: &mut TxState,
        quota: &mut usize,
    ) -> Next {
        state.follow(self, cx);
        state.take_completed(queue, cx);
        state.take_incoming(self, queue, cx);
        if let Some(at) = state.stopped_until.filter(|at| *at > cx.now) {
            return Next::At(at);
        }
        state.stopped_until = None;
        state.spent = None;
        loop {
            match state.fill(self, cx, *quota) {
                Next::More => {}
                wait => return wait,
            }
            let mut list = state.take_portion();
            let handed = self.hand_over(host, queue, cx, &mut list);
            let left = list.len() as u64;
            state.put_back(list);
            state.on_handed(handed.packets, handed.bytes);
            state.delay.on_handed(cx, handed.bytes, self.async_completion);
            *quota = quota.saturating_sub(handed.packets);
            if left > 0 {
                state.requeues += left;
                cx.count(Counter::TxRequeues, left);
                let at = cx.now + if self.async_completion { WATCHDOG } else { RETRY };
                state.stopped_until = Some(at);
                return Next::At(at);
            }
            if *quota == 0 {
                return Next::More;
            }
        }
    }

    /// Gives the device what it has room for; answers how much that was. Linux: `dev_hard_start_xmit`.
    fn hand_over(
        &self,
        host: &Host,
        queue: &TxQueue,
        cx: &mut Cx,
        list: &mut PacketList,
    ) -> Completed {
        if self.completes() && cx.sysctls().dev_orphan == DevOrphan::Xmit {
            orphan(list);
        }
        let mut handed = Completed::NONE;
        loop {
            let (packets, bytes) = (list.len(), list.bytes());
            self.device.transmit(queue.id, cx, list);
            // A device of the application could leave more than it was given.
            handed.packets += packets.saturating_sub(list.len());
            handed.bytes += bytes.saturating_sub(list.bytes());
            if list.is_empty() || !self.cut_refused(host, cx, list) {
                return handed;
            }
        }
    }

    /// The device has left packets. If it was for the size of the first, a superframe, all in the list are cut up that are larger than
    /// it takes from here on; false if it has no room. Linux: `gso_features_check`.
    #[cold]
    fn cut_refused(&self, host: &Host, cx: &mut Cx, list: &mut PacketList) -> bool {
        let Some(first) = list.pop_front() else { return false };
        if first.meta().gso.segs > 1 {
            self.follow_superframe_max(host);
        }
        let refused = !self.offload.takes(&first);
        list.push_front(first);
        if refused {
            cx.count(Counter::DeviceTxRefused, 1);
            self.offload.fit_list(cx, list);
        }
        refused
    }

    /// Largest superframe that the device takes at this moment.
    pub(crate) fn superframe_max(&self) -> u32 {
        self.offload.superframe_max()
    }

    /// The device may take smaller superframes than before, or larger ones: those who make them look at their routes again.
    pub(crate) fn follow_superframe_max(&self, host: &Host) {
        let max = self.device.superframe_max();
        if self.offload.set_superframe_max(self.device.caps(), max) {
            host.invalidate_routes();
        }
    }
}

impl TxQueue {
    fn new(id: QueueId) -> Self {
        Self {
            id,
            queued: AtomicBool::new(false),
            state: CoreLock::default(),
            incoming: Llist::new(),
            completed: AtomicUsize::new(0),
            wake_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Has the queue run by its core at `at`.
    fn wake_at(&self, host: &Host, at: Instant) {
        self.wake_ns.fetch_min(at.as_nanos(), Ordering::Relaxed);
        let core = host.core_of_queue(self.id);
        core.note_transmit_deadline(at);
        core.wake_before(at);
    }
}

/// Pays the senders back. Linux: `skb_orphan` in a driver's `ndo_start_xmit`.
fn orphan(list: &mut PacketList) {
    let mut packets = core::mem::take(list);
    while let Some(mut packet) = packets.pop_front() {
        packet.orphan();
        list.push_back(packet);
    }
}

#[cfg(test)]
mod tests;
