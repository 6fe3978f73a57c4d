//! Transmit queues of a device: packets pass from the link layer to the device, and wait here while
//! the device has no room or a queueing discipline holds them.
//!
//! Above: `link_output`, for every sender. Below: a discipline ([`qdisc`](crate::transmit::qdisc))
//! or none, then the device. Linux: `__dev_queue_xmit`, `__qdisc_run`, `sch_direct_xmit`,
//! `dev_requeue_skb`, `net_tx_action`.
//!
//! The way of a packet:
//!
//! 1. `xmit` takes it from the sender, and the discipline enqueues it.
//! 2. The owner of the queue dequeues as many bytes as the byte queue limit allows.
//! 3. Software performs the segmentation and checksums that the device lacks, and the packet enters
//!    the list `ready`.
//! 4. The device takes packets from `ready`; those for which it has no room stay there.
//! 5. The completion of the packet makes room in the byte queue limit, and steps 2 to 4 run again.
//!
//! Without a discipline, and until the device is full for the first time, sending threads pass
//! packets directly to the device, concurrently. Otherwise one thread at a time runs a queue: the
//! owner of the queue (`sync::CoreLock`, in Linux the bits `__QDISC_STATE_RUNNING` and `MISSED`). A
//! thread that finds the queue owned by another adds its packets to `incoming` and continues. The
//! owner takes these packets before it releases the queue. No other lock is held while the device
//! is called.
//!
//! A queue with packets waits for completions of its device, or for a time (`wake_ns`): the exact
//! time that its discipline has returned, or that of a retry. The core that the queue belongs to
//! handles both in its turns (`core::turn`: one pass of its softirq work).

use std::{
    boxed::Box,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pkt::{Instant, Packet, PacketList};
use sync::{Attendance, CoreGuard, CoreLock, Llist};

use super::{dst::RouteGeneration, qdisc::NetXmit};
use crate::{
    base::{
        counters::Counter,
        ids::{CoreId, DeviceIndex},
    },
    cx::Cx,
    device::{Completed, Device, LinkType, QueueId},
    sysctl::{Sysctls, modes::DevOrphan, qdisc::QdiscConfig},
};

use offload::Offload;
use state::{Next, TxState};
pub use stats::TxQueueStats;

mod delay;
pub(super) mod offload;
mod state;
mod stats;

/// Maximum number of packets that one caller passes to a device before it leaves the rest to the
/// queue's core, because the caller has other work. Linux: `dev_tx_weight`.
const QUOTA: usize = 64;

/// Delay before a retry if the device had no room and does not report completions.
const RETRY: Duration = Duration::from_millis(1);

/// Delay before a retry if the device had no room and reports completions, but has reported none
/// meanwhile: the device has failed or has lost a completion. Linux: `watchdog_timeo`.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Transmit side of one device.
#[derive(Debug)]
pub(crate) struct DeviceTx {
    device: Arc<dyn Device>,
    index: DeviceIndex,
    queues: Box<[TxQueue]>,
    offload: Offload,
    /// True if the device keeps packets after `transmit` returns.
    async_completion: bool,
    /// True if packets may wait in a discipline. Relaxed: a route entry that is created during a
    /// change may see the previous value.
    has_qdisc: AtomicBool,
    /// True if the discipline releases packets at their departure times.
    paces: AtomicBool,
    /// Generation of the host's route entries (dst), which contain the length of the largest
    /// superframe (packet of several segments) that the device accepts.
    routes: Arc<RouteGeneration>,
    /// True if a queue restricts the cores that use it (Linux: `xps_needed`).
    mapped: AtomicBool,
}

/// Transmit queue. Linux: `struct netdev_queue`.
#[derive(Debug)]
struct TxQueue {
    id: QueueId,
    /// Attendance of the core that runs the queue at its deadline: wakes the core's worker.
    attendance: Arc<Attendance>,
    /// True if packets must pass through the owner of the queue, in the order of arrival, because
    /// there is a discipline or the device once had no room. Relaxed: the socket lock orders
    /// consecutive packets of a flow.
    queued: AtomicBool,
    state: CoreLock<TxState>,
    /// Packets of threads that found the queue owned.
    incoming: Llist<Packet>,
    /// Bytes that the device has completed and the owner has not processed yet. The core adds to
    /// them, the owner takes them; acquiring and releasing `state` orders the accesses.
    completed: AtomicUsize,
    /// Time, in nanoseconds, at which the queue's core runs the queue even without a completion;
    /// `u64::MAX` for none.
    wake_ns: AtomicU64,
}

impl DeviceTx {
    /// Creates the queues of `device` with the settings `sysctls`. `attendances` are those of all
    /// cores, by core number.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        index: DeviceIndex,
        sysctls: &Sysctls,
        attendances: &[Arc<Attendance>],
        routes: Arc<RouteGeneration>,
    ) -> Self {
        let caps = device.caps();
        let this = Self {
            offload: Offload::new(caps),
            async_completion: caps.async_completion,
            queues: (0..caps.queues)
                .zip(attendances.iter().cycle())
                .map(|(queue, attendance)| TxQueue::new(QueueId(queue), Arc::clone(attendance)))
                .collect(),
            index,
            routes,
            has_qdisc: AtomicBool::new(false),
            paces: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            device,
        };
        this.configure(sysctls);
        this
    }

    /// Applies changed settings. The next owner of each queue creates the new discipline and drops
    /// the packets of the previous one (`TxState::apply_settings`).
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

    /// Returns the configured discipline of every queue.
    fn qdisc_config(&self, sysctls: &Sysctls) -> QdiscConfig {
        match sysctls.devices.of(self.index).qdisc {
            Some(config) => config,
            None if self.device.needs_qdisc() => sysctls.default_qdisc.into(),
            None => QdiscConfig::NoQueue,
        }
    }

    /// Whether packets complete some time after they were sent, because they wait in a discipline
    /// or in the device.
    pub(crate) fn completes(&self) -> bool {
        self.async_completion || self.has_qdisc.load(Ordering::Relaxed)
    }

    /// Whether packets never wait: there is no discipline, and the device accepts and completes all
    /// packets at once.
    pub(crate) fn takes_at_once(&self) -> bool {
        !self.completes() && !self.device.needs_qdisc()
    }

    /// Whether the device reports completions.
    pub(crate) const fn completes_later(&self) -> bool {
        self.async_completion
    }

    /// Whether the discipline holds packets until their departure times, so that senders need not
    /// do so.
    pub(crate) fn paces(&self) -> bool {
        self.paces.load(Ordering::Relaxed)
    }

    /// Returns the queue for a flow of `hash` whose connection belongs to `core`. Linux:
    /// `netdev_pick_tx`.
    #[inline]
    pub(crate) fn pick_queue(&self, cx: &Cx, core: CoreId, hash: u32) -> QueueId {
        // Nearly all devices have one queue. For them, this saves the division below.
        if self.queues.len() == 1 {
            return QueueId(0);
        }
        if self.mapped.load(Ordering::Relaxed)
            && let Some(queue) = self.mapped_queue(cx, cx.current_core().unwrap_or(core), hash)
        {
            return queue;
        }
        QueueId(core.0 % self.queue_count())
    }

    /// Returns the queue that `core` may use (`xps_cpus`). The hash of the flow selects among
    /// several such queues. Returns `None` if no mask contains the core. Linux: `get_xps_queue`.
    #[cold]
    fn mapped_queue(&self, cx: &Cx, core: CoreId, hash: u32) -> Option<QueueId> {
        let settings = cx.sysctls().devices.of(self.index);
        let bit = 1u64.checked_shl(u32::from(core.0)).unwrap_or(0);
        let mut mine =
            (0..self.queue_count()).filter(|queue| settings.tx(*queue).xps_cpus & bit != 0);
        let count = mine.clone().count() as u64;
        // The high bits of the hash have selected the core and are similar in all its flows. The
        // rotation makes other bits select the queue.
        let chosen = usize::try_from((u64::from(hash.rotate_left(16)) * count) >> 32).ok()?;
        mine.nth(chosen).map(QueueId)
    }

    /// Returns the link layer of the device.
    pub(crate) fn link(&self) -> LinkType {
        self.device.caps().link
    }

    /// Returns the index of the device.
    pub(crate) const fn device_index(&self) -> DeviceIndex {
        self.index
    }

    fn queue_count(&self) -> u16 {
        u16::try_from(self.queues.len()).unwrap_or(u16::MAX)
    }

    /// Sends complete frames. Superframes and partial checksums are processed here if the device
    /// does not support them. If another thread owns the queue, leaves the frames to it and returns
    /// `Success`. Linux: `dev_queue_xmit`.
    pub(crate) fn xmit(&self, cx: &mut Cx, queue: QueueId, list: &mut PacketList) -> NetXmit {
        let queue = &self.queues[usize::from(queue.0)];
        if !queue.queued.load(Ordering::Relaxed) {
            self.offload.fit_list(cx, list);
            self.hand_over(queue, cx, list);
            if list.is_empty() {
                return NetXmit::Success;
            }
            queue.queued.store(true, Ordering::Relaxed);
        }
        if let Some(mut guard) = queue.state.own_if_idle() {
            guard.apply_settings(self, cx);
            guard.take_incoming(self, queue, cx);
            let sent = guard.send(self, cx, list);
            self.run(cx, queue, guard);
            return sent;
        }
        while let Some(packet) = list.pop_front() {
            queue.incoming.push(packet);
        }
        if queue.state.schedule(0)
            && let Some(guard) = queue.state.claim()
        {
            self.run(cx, queue, guard);
        }
        NetXmit::Success
    }

    /// Processes completions of the device and sends waiting packets. Called in a turn of the
    /// queue's core. Linux: `net_tx_action`.
    pub(crate) fn complete(&self, cx: &mut Cx, queue: QueueId) {
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
            self.run_if_idle(cx, queue);
        }
    }

    /// Runs the queue if its time (`wake_ns`) has come. Called in a turn of the queue's core.
    /// Linux: `qdisc_watchdog`.
    pub(crate) fn run_due(&self, cx: &mut Cx, queue: QueueId) {
        let queue = &self.queues[usize::from(queue.0)];
        if queue.wake_ns.load(Ordering::Relaxed) <= cx.now.as_nanos() {
            self.run_if_idle(cx, queue);
        }
    }

    /// Returns the time at which `queue` must run, if any.
    pub(crate) fn deadline(&self, queue: QueueId) -> Option<Instant> {
        match self.queues[usize::from(queue.0)].wake_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// Drops all waiting packets, because the device is down. Waits for concurrent owners of the
    /// queues. Linux: `dev_deactivate`.
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

    /// Runs the queue. If another thread owns it, makes that owner run it once more.
    fn run_if_idle(&self, cx: &mut Cx, queue: &TxQueue) {
        if let Some(guard) = queue.state.try_own() {
            self.run(cx, queue, guard);
        }
    }

    /// Sends packets until no packet may leave and no thread has requested another run meanwhile,
    /// or until the quota is used up; then the core sends the rest. Linux: `qdisc_run`.
    fn run(&self, cx: &mut Cx, queue: &TxQueue, mut guard: CoreGuard<'_, TxState>) {
        let mut quota = QUOTA;
        loop {
            // From here on the owner handles the queue, so the queue's core need not wake for it.
            queue.wake_ns.store(u64::MAX, Ordering::Relaxed);
            let next = self.run_pass(cx, queue, &mut guard, &mut quota);
            if next == Next::More {
                drop(guard);
                // The wake comes after the release, so that the woken core finds the queue without
                // an owner. The core's run also serves requests made since the last pass.
                return queue.wake_at(Instant::ZERO);
            }
            if let Next::At(at) = next {
                queue.wake_ns.store(at.as_nanos(), Ordering::Relaxed);
            }
            match guard.release() {
                Ok(()) => {
                    if let Next::At(at) = next {
                        queue.wake_at(at);
                    }
                    return;
                }
                Err(still_owned) => guard = still_owned,
            }
        }
    }

    /// Performs one pass of the owner and returns the event to wait for. Linux: `__qdisc_run`.
    fn run_pass(
        &self,
        cx: &mut Cx,
        queue: &TxQueue,
        state: &mut TxState,
        quota: &mut usize,
    ) -> Next {
        state.apply_settings(self, cx);
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
            let handed = self.hand_over(queue, cx, &mut list);
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

    /// Passes packets to the device as long as it has room. Returns the number of packets and
    /// bytes. Linux: `dev_hard_start_xmit`.
    fn hand_over(&self, queue: &TxQueue, cx: &mut Cx, list: &mut PacketList) -> Completed {
        if self.completes() && cx.sysctls().dev_orphan == DevOrphan::Xmit {
            orphan(list);
        }
        let mut handed = Completed::NONE;
        loop {
            let (packets, bytes) = (list.len(), list.bytes());
            self.device.transmit(queue.id, cx, list);
            // The subtractions saturate, because a device of the application could return more
            // packets than it was given.
            handed.packets += packets.saturating_sub(list.len());
            handed.bytes += bytes.saturating_sub(list.bytes());
            if list.is_empty() || !self.cut_refused(cx, list) {
                return handed;
            }
        }
    }

    /// Handles packets that the device has not accepted. If the first one is a superframe that is
    /// too large for the device, segments all such packets in the list and returns true. Otherwise
    /// the device has no room, and the result is false. Linux: `gso_features_check`.
    #[cold]
    fn cut_refused(&self, cx: &mut Cx, list: &mut PacketList) -> bool {
        let Some(first) = list.pop_front() else { return false };
        if first.meta().gso.segs > 1 {
            self.follow_superframe_max();
        }
        let refused = !self.offload.takes(&first);
        list.push_front(first);
        if refused {
            cx.count(Counter::DeviceTxRefused, 1);
            self.offload.fit_list(cx, list);
        }
        refused
    }

    /// Returns the length of the largest superframe that the device currently accepts.
    pub(crate) fn superframe_max(&self) -> u32 {
        self.offload.superframe_max()
    }

    /// Applies a changed superframe limit of the device. Route entries (dst) become invalid, so
    /// that senders read the new limit.
    pub(crate) fn follow_superframe_max(&self) {
        let max = self.device.superframe_max();
        if self.offload.set_superframe_max(self.device.caps(), max) {
            self.routes.begin();
        }
    }
}

impl TxQueue {
    fn new(id: QueueId, attendance: Arc<Attendance>) -> Self {
        Self {
            id,
            attendance,
            queued: AtomicBool::new(false),
            state: CoreLock::default(),
            incoming: Llist::new(),
            completed: AtomicUsize::new(0),
            wake_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Schedules a run of the queue by its core at `at`.
    fn wake_at(&self, at: Instant) {
        let at_ns = at.as_nanos();
        self.wake_ns.fetch_min(at_ns, Ordering::Relaxed);
        self.attendance.note_transmit_deadline(at_ns);
        self.attendance.wake_before(at_ns);
    }
}

/// Uncharges the packets from the sockets that sent them. Linux: `skb_orphan` in a driver's
/// `ndo_start_xmit`.
fn orphan(list: &mut PacketList) {
    let mut packets = core::mem::take(list);
    while let Some(mut packet) = packets.pop_front() {
        packet.orphan();
        list.push_back(packet);
    }
}

#[cfg(test)]
mod tests;
