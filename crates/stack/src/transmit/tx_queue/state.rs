//! State of a transmit queue that its owner changes: the discipline, packets that are ready for the
//! device, and the byte queue limit.
//!
//! Above: `tx_queue`, which decides when a queue runs and which thread owns it. Linux:
//! `dequeue_skb`, `try_bulk_dequeue_skb`, `netdev_tx_sent_queue`.

use std::sync::atomic::Ordering;

use pkt::{DropReason, Instant, Packet, PacketList};

use super::{DeviceTx, TxQueue, WATCHDOG, delay::DelayProbe};
use crate::{
    base::counters::Counter,
    cx::Cx,
    sysctl::qdisc::QdiscConfig,
    transmit::{
        bql::Dql,
        gso,
        qdisc::{Dequeued, NetXmit, Qdisc},
    },
};

/// Event that a queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// No event: more packets can be sent now.
    More,
    /// Completions, or new packets.
    Events,
    /// The given time.
    At(Instant),
}

/// State that only the owner of the queue accesses.
#[derive(Debug, Default)]
pub(super) struct TxState {
    /// Generation of the settings in use.
    generation: u64,
    config: QdiscConfig,
    pub(super) qdisc: Option<Qdisc>,
    /// Packets that are ready for the device. Those for which the device had no room stay in front.
    /// Linux: `gso_skb`, `skb_bad_txq`.
    pub(super) ready: PacketList,
    /// Time of a retry. Set if the device had no room; a completion causes an earlier retry. Linux:
    /// `__QUEUE_STATE_DRV_XOFF`.
    pub(super) stopped_until: Option<Instant>,
    /// Time at which the device's completions count as lost. Set while packets wait because of the
    /// byte limit.
    overdue_at: Option<Instant>,
    /// Event to wait for, set when the discipline has returned no packet, so that it is not called
    /// again in the same pass.
    pub(super) spent: Option<Next>,
    /// Byte queue limit. `None` without a discipline, or if the device does not report completions.
    pub(super) dql: Option<Dql>,
    pub(super) delay: DelayProbe,
    /// Length of the packet that was last added to `ready`.
    last_bytes: u32,
    /// Number of packets that the device has returned for lack of room. A packet counts each time
    /// that it is returned.
    pub(super) requeues: u64,
}

impl TxState {
    /// Applies changed settings. If the caller has older settings than those in use, nothing
    /// changes.
    pub(super) fn apply_settings(&mut self, tx: &DeviceTx, cx: &mut Cx) {
        if cx.generation() <= self.generation {
            return;
        }
        self.generation = cx.generation();
        let (config, settings) = (tx.qdisc_config(cx.sysctls()), cx.sysctls().devices.of(tx.index));
        let (tx_queue_len, limits) =
            (settings.tx_queue_len, (settings.bql_limit_min, settings.bql_limit_max));
        // A byte limit needs a discipline to hold the packets back.
        self.dql = self.dql.take().filter(|_| config != QdiscConfig::NoQueue);
        if tx.async_completion && config != QdiscConfig::NoQueue {
            let dql = self.dql.get_or_insert_with(|| Dql::new(cx.now));
            dql.set_limits(limits.0, limits.1);
        }
        if config == self.config {
            return;
        }
        self.config = config;
        let header = tx.offload.link_header;
        let new = Qdisc::of(&config, tx_queue_len, header, cx.now);
        if let Some(mut old) = core::mem::replace(&mut self.qdisc, new) {
            let mut dropped = PacketList::new();
            old.purge(header, cx.now, &mut dropped);
            drop_all(cx, DropReason::QueuePurge, dropped);
        }
    }

    /// Processes completions, which make room in the device.
    pub(super) fn take_completed(&mut self, queue: &TxQueue, cx: &Cx) {
        let bytes = queue.completed.swap(0, Ordering::Relaxed);
        if bytes == 0 {
            return;
        }
        (self.stopped_until, self.overdue_at) = (None, None);
        self.delay.on_completed(cx, bytes);
        if let Some(dql) = &mut self.dql {
            // The completed bytes may include some that were sent before this limit existed and are
            // not in its count.
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(dql.in_flight());
            dql.on_completed(bytes, cx.now);
        }
    }

    /// Drops all waiting packets and counts the bytes that the device holds as completed, because
    /// it is down and will report no completions.
    pub(super) fn purge(&mut self, tx: &DeviceTx, queue: &TxQueue, cx: &mut Cx) {
        self.apply_settings(tx, cx);
        self.take_incoming(tx, queue, cx);
        let mut waiting = core::mem::take(&mut self.ready);
        if let Some(qdisc) = &mut self.qdisc {
            qdisc.purge(tx.offload.link_header, cx.now, &mut waiting);
        }
        drop_all(cx, DropReason::DeviceDown, waiting);
        if let Some(dql) = &mut self.dql {
            let bytes = dql.in_flight();
            if bytes > 0 {
                dql.on_completed(bytes, cx.now);
            }
        }
        (self.stopped_until, self.overdue_at, self.spent) = (None, None, None);
        self.delay.forget();
    }

    /// Sends the packets that other threads have left in `incoming`. They go before the packets of
    /// the owner.
    pub(super) fn take_incoming(&mut self, tx: &DeviceTx, queue: &TxQueue, cx: &mut Cx) {
        if queue.incoming.is_empty() {
            return;
        }
        let mut list: PacketList = PacketList::new();
        let mut packets = queue.incoming.take_all();
        while let Some(packet) = packets.pop_front() {
            list.push_back(packet);
        }
        // The result is not reported, because the sending threads have returned.
        let _ = self.send(tx, cx, &mut list);
    }

    /// Enqueues packets to the discipline, or bypasses the discipline if it permits that and the
    /// device has room. Without a discipline, adds the packets to `ready`.
    pub(super) fn send(&mut self, tx: &DeviceTx, cx: &mut Cx, list: &mut PacketList) -> NetXmit {
        let header = tx.offload.link_header;
        let may_bypass = self.ready.is_empty() && self.has_room(list.len());
        let Some(qdisc) = &mut self.qdisc else { return self.send_unqueued(tx, cx, list) };
        if may_bypass && qdisc.can_bypass() {
            while let Some(packet) = list.pop_front() {
                qdisc.on_bypass(&packet, header);
                self.last_bytes = length(&packet);
                let departs = packet.meta().timestamp;
                tx.offload.fit(cx, packet, &mut self.ready);
                self.delay.watch(self.ready.bytes(), departs);
            }
            return NetXmit::Success;
        }
        let mut dropped = PacketList::new();
        let mut result = NetXmit::Success;
        let max = qdisc.packet_bytes_max();
        while let Some(packet) = list.pop_front() {
            if packet.len() > max && packet.meta().gso.segs > 1 {
                let mut segments = PacketList::new();
                gso::segment(cx, packet, header, tx.offload.checksums(), &mut segments);
                for segment in segments {
                    result = result.and(qdisc.enqueue(segment, header, cx.now, &mut dropped));
                }
            } else {
                result = result.and(qdisc.enqueue(packet, header, cx.now, &mut dropped));
            }
        }
        drop_all(cx, DropReason::QdiscDrop, dropped);
        result
    }

    /// Adds packets to `ready`, for a queue without a discipline. While packets wait in `ready`, or
    /// the device has no room, `ready` takes at most `tx_queue_len` packets; the others are
    /// dropped.
    fn send_unqueued(&mut self, tx: &DeviceTx, cx: &mut Cx, list: &mut PacketList) -> NetXmit {
        let max = if self.ready.is_empty() && self.has_room(list.len()) {
            usize::MAX
        } else {
            cx.sysctls().devices.of(tx.index).tx_queue_len as usize
        };
        while let Some(packet) = list.pop_front() {
            if self.ready.len() >= max {
                let departs = packet.meta().timestamp;
                list.push_front(packet);
                drop_all(cx, DropReason::QdiscDrop, core::mem::take(list));
                return NetXmit::Drop(departs);
            }
            tx.offload.fit(cx, packet, &mut self.ready);
        }
        NetXmit::Success
    }

    /// Whether a list of `packets` packets may go to the device directly. With a byte limit, only a
    /// single packet may: it may exceed the limit, but the bytes of a longer list must be counted
    /// first.
    fn has_room(&self, packets: usize) -> bool {
        match &self.dql {
            Some(dql) => packets == 1 && dql.has_room(),
            None => self.stopped_until.is_none(),
        }
    }

    /// Returns the event to wait for if the device holds as many bytes as it may, otherwise `None`.
    /// If the device reports no completion for too long, it has failed or has lost one; then the
    /// byte limit is reset. Linux: `dev_watchdog`, `netdev_tx_reset_queue`.
    fn wait_for_completions(&mut self, cx: &Cx) -> Option<Next> {
        let dql = self.dql.as_mut().filter(|dql| !dql.has_room())?;
        if self.ready.is_empty() && self.qdisc.as_ref().is_none_or(|it| it.stats().qlen == 0) {
            return Some(Next::Events);
        }
        let overdue_at = *self.overdue_at.get_or_insert(cx.now + WATCHDOG);
        if overdue_at > cx.now {
            return Some(Next::At(overdue_at));
        }
        self.overdue_at = None;
        dql.reset(cx.now);
        self.delay.forget();
        cx.count(Counter::TxTimeouts, 1);
        None
    }

    /// Moves packets from the discipline to `ready`: at most `quota` packets, and as many bytes as
    /// the device may hold. Returns [`Next::More`] if packets are ready, otherwise the event to
    /// wait for.
    pub(super) fn fill(&mut self, tx: &DeviceTx, cx: &mut Cx, quota: usize) -> Next {
        if let Some(wait) = self.wait_for_completions(cx) {
            return wait;
        }
        let mut room = match &self.dql {
            Some(dql) => i64::from(dql.available()),
            None => i64::MAX,
        };
        if !self.ready.is_empty() {
            return Next::More;
        }
        if let Some(spent) = self.spent {
            return spent;
        }
        let Some(qdisc) = &mut self.qdisc else { return Next::Events };
        let header = tx.offload.link_header;
        let mut dropped = PacketList::new();
        while self.ready.len() < quota {
            match qdisc.dequeue(header, cx.now, &mut dropped) {
                Dequeued::Packet(packet) => {
                    self.last_bytes = length(&packet);
                    room -= i64::from(self.last_bytes);
                    let departs = packet.meta().timestamp;
                    tx.offload.fit(cx, packet, &mut self.ready);
                    self.delay.watch(self.ready.bytes(), departs);
                    if room <= 0 {
                        break;
                    }
                }
                Dequeued::Throttled(at) => {
                    self.spent = Some(Next::At(at));
                    break;
                }
                Dequeued::Empty => {
                    self.spent = Some(Next::Events);
                    break;
                }
            }
        }
        drop_all(cx, DropReason::QdiscDrop, dropped);
        match self.spent {
            Some(spent) if self.ready.is_empty() => spent,
            _ => Next::More,
        }
    }

    /// Takes the packets that can be passed to the device now: as many bytes as the device may
    /// hold, but at least one packet. Some segments of a superframe (a packet of several segments)
    /// may be taken and others left.
    pub(super) fn take_portion(&mut self) -> PacketList {
        let mut room = match &self.dql {
            Some(dql) => i64::from(dql.available()),
            None => i64::MAX,
        };
        if i64::try_from(self.ready.bytes()).is_ok_and(|bytes| bytes <= room) {
            return core::mem::take(&mut self.ready);
        }
        let mut portion = PacketList::new();
        while let Some(packet) = self.ready.pop_front() {
            room -= i64::from(length(&packet));
            portion.push_back(packet);
            if room <= 0 {
                break;
            }
        }
        portion
    }

    /// Puts packets for which the device had no room back to the front of `ready`.
    pub(super) fn put_back(&mut self, mut list: PacketList) {
        list.append(&mut self.ready);
        self.ready = list;
    }

    /// Counts `packets` with a total of `bytes` as accepted by the device.
    pub(super) fn on_handed(&mut self, packets: usize, bytes: usize) {
        let Some(dql) = self.dql.as_mut().filter(|_| packets > 0) else { return };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // The limit needs the length of the last packet. If the device did not accept all packets,
        // this length is unknown, and the mean length is used instead.
        let mean = bytes / u32::try_from(packets).unwrap_or(u32::MAX);
        let last = if self.ready.is_empty() { self.last_bytes.min(bytes) } else { mean };
        if bytes > last {
            dql.on_queued(bytes - last);
        }
        dql.on_queued(last);
    }
}

fn length(packet: &Packet) -> u32 {
    u32::try_from(packet.len()).unwrap_or(u32::MAX)
}

fn drop_all(cx: &mut Cx, reason: DropReason, mut packets: PacketList) {
    while let Some(packet) = packets.pop_front() {
        cx.drop_packet(reason, packet);
    }
}
