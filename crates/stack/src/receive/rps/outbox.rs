//! Packets for other cores, gathered during a poll and pushed to the backlogs at its end. At the
//! end of the turn (one pass of a core's softirq work) the receiving cores are kicked: scheduled to
//! run.
//!
//! Linux: `enqueue_to_backlog`, `net_rps_action_and_irq_enable`. A kick corresponds to an IPI and
//! is as expensive.

use std::{boxed::Box, sync::Arc};

use pkt::{DropReason, Packet};
use sync::Chain;

use super::{backlog::Backlog, flow_limit::FlowLimit, softnet::SoftnetCounts};
use crate::{
    base::{counters::Counter, ids::CoreId},
    cx::{Cx, Owed},
    socket::net::Net,
};

/// Packets for one other core.
#[derive(Debug, Default)]
struct Outgoing {
    packets: Chain<Packet>,
    count: u32,
    /// Length of the target's backlog when the first of `packets` was added.
    qlen: u32,
    /// Number of packets for the target so far, including `packets`; wraps around.
    sent: u32,
}

/// Packets that one core has for all others. Only the thread that owns this core accesses the
/// outbox.
#[derive(Debug)]
pub(crate) struct Outbox {
    core: CoreId,
    /// Backlogs of all cores.
    backlogs: Arc<[Arc<Backlog>]>,
    targets: Box<[Outgoing]>,
    /// Bit set of targets with packets.
    filled: u64,
    /// Bit set of targets to be kicked. Linux: `rps_ipi_list`.
    kicks: u64,
    limit: Option<FlowLimit>,
    /// Number of packets added since the last `take_handed_on`.
    handed_on: u64,
}

impl Outbox {
    /// Creates the outbox of `core`, towards the cores of `backlogs`.
    pub(crate) fn new(core: CoreId, backlogs: Arc<[Arc<Backlog>]>) -> Self {
        Self {
            core,
            targets: backlogs.iter().map(|_| Outgoing::default()).collect(),
            backlogs,
            filled: 0,
            kicks: 0,
            limit: None,
            handed_on: 0,
        }
    }

    /// Returns the core that owns the outbox.
    pub(crate) const fn core(&self) -> CoreId {
        self.core
    }

    /// Returns the number of packets that left this core since the last call.
    pub(crate) const fn take_handed_on(&mut self) -> u64 {
        core::mem::replace(&mut self.handed_on, 0)
    }

    /// Whether `target` has processed the first `tail` packets from this core.
    pub(super) fn has_finished(&self, target: CoreId, tail: u32) -> bool {
        let done = self.backlogs[usize::from(target.0)].lanes().done(usize::from(self.core.0));
        done.wrapping_sub(tail).cast_signed() >= 0
    }

    /// Whether every core has processed all packets from this core.
    pub(super) fn is_drained(&self) -> bool {
        (0u16..)
            .zip(&self.targets)
            .all(|(target, outgoing)| self.has_finished(CoreId(target), outgoing.sent))
    }

    /// Adds a packet for `target`. Returns the number of packets for `target` so far, including
    /// this one, or `None` if the packet was dropped.
    pub(super) fn put(
        &mut self,
        cx: &mut Cx,
        target: CoreId,
        hash: u32,
        packet: Packet,
    ) -> Option<u32> {
        let backlog = &self.backlogs[usize::from(target.0)];
        let outgoing = &mut self.targets[usize::from(target.0)];
        if outgoing.count == 0 {
            // The length is read once per poll. Other cores may push concurrently, so each of them
            // may exceed the limit by the packets of one poll.
            outgoing.qlen = backlog.lanes().len();
        }
        let (qlen, max) = (outgoing.qlen + outgoing.count, cx.sysctls().netdev_max_backlog);
        let is_full = qlen >= max;
        let counts = self.backlogs[usize::from(self.core.0)].counts();
        if is_full || exceeds_flow_limit(&mut self.limit, counts, self.core, cx, hash, qlen) {
            SoftnetCounts::add_shared(&backlog.counts().dropped, 1);
            cx.drop_packet(DropReason::CpuBacklog, packet);
            return None;
        }
        outgoing.packets.push_back(packet);
        outgoing.count += 1;
        outgoing.sent = outgoing.sent.wrapping_add(1);
        self.filled |= 1 << target.0;
        self.handed_on += 1;
        Some(outgoing.sent)
    }

    /// Pushes the gathered packets to their cores at the end of a poll.
    #[inline]
    pub(crate) fn push(&mut self, net: &Net, cx: &mut Cx) {
        if self.filled | self.kicks != 0 {
            self.push_filled(net, cx);
        }
    }

    fn push_filled(&mut self, net: &Net, cx: &mut Cx) {
        while self.filled != 0 {
            let target = self.filled.trailing_zeros();
            self.filled &= self.filled - 1;
            let outgoing = &mut self.targets[target as usize];
            let packets = core::mem::take(&mut outgoing.packets);
            let count = core::mem::replace(&mut outgoing.count, 0);
            cx.count(Counter::RpsPackets, u64::from(count));
            let lanes = self.backlogs[target as usize].lanes();
            if lanes.push(usize::from(self.core.0), packets, count) {
                self.kicks |= 1 << target;
            }
        }
        // Outside a turn of a core, no later step kicks the targets.
        if self.kicks != 0 && cx.running().is_none() {
            self.kick(net, cx);
        }
    }

    /// Kicks the cores whose backlogs had no ready lane before this core pushed to them. Called at
    /// the end of the turn.
    #[inline]
    pub(crate) fn kick(&mut self, net: &Net, cx: &mut Cx) {
        if self.kicks != 0 {
            self.kick_targets(net, cx);
        }
    }

    fn kick_targets(&mut self, net: &Net, cx: &mut Cx) {
        while self.kicks != 0 {
            let target = CoreId(
                u16::try_from(self.kicks.trailing_zeros()).expect("a core number is at most 63"),
            );
            self.kicks &= self.kicks - 1;
            let backlog = &self.backlogs[usize::from(target.0)];
            SoftnetCounts::add_shared(&backlog.counts().received_rps, 1);
            let core = net.runner(target);
            if core.schedule_backlog() {
                cx.raise(core, Owed::Run);
            }
        }
    }
}

/// Returns whether the flow limit drops the packet. Only the cores in `flow_limit_cpu_bitmap` have
/// a flow limit.
#[inline]
fn exceeds_flow_limit(
    limit: &mut Option<FlowLimit>,
    counts: &SoftnetCounts,
    core: CoreId,
    cx: &Cx,
    hash: u32,
    qlen: u32,
) -> bool {
    let sysctls = cx.sysctls();
    if sysctls.flow_limit_cpu_bitmap & (1 << core.0) == 0 {
        *limit = None;
        return false;
    }
    let buckets = sysctls.flow_limit_table_len;
    let limit = match limit {
        Some(limit) if limit.buckets() == buckets => limit,
        _ => limit.insert(FlowLimit::new(buckets)),
    };
    let exceeds = limit.exceeds(hash, qlen, sysctls.netdev_max_backlog);
    if exceeds {
        SoftnetCounts::add(&counts.flow_limit, 1);
    }
    exceeds
}
