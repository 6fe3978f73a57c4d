//! Packets that a core hands to others: gathered in a poll, pushed at its end, their receivers kicked at the end of the turn.
//!
//! Linux: `enqueue_to_backlog`, `net_rps_action_and_irq_enable`. A kick is what an IPI is there, and as expensive.

use std::{boxed::Box, sync::Arc};

use pkt::{DropReason, Packet};
use sync::Chain;

use super::{flow_limit::FlowLimit, softnet::SoftnetCounts};
use crate::{
    base::{counters::Counter, ids::CoreId},
    core::Core,
    cx::Cx,
    host::Host,
};

/// Packets for one other core.
#[derive(Debug, Default)]
struct Outgoing {
    packets: Chain<Packet>,
    count: u32,
    /// Length of its backlog when the first of `packets` was put here.
    qlen: u32,
    /// Packets given to that core so far, those of `packets` included; wraps.
    sent: u32,
}

/// What the owner of a core has for the others.
#[derive(Debug)]
pub(crate) struct Outbox {
    core: CoreId,
    targets: Box<[Outgoing]>,
    /// Targets with packets, a bit each.
    filled: u64,
    /// Targets to be kicked, a bit each. Linux: `rps_ipi_list`.
    kicks: u64,
    limit: Option<FlowLimit>,
    /// Packets put for others since it was last asked.
    handed_on: u64,
}

impl Outbox {
    /// Of core `core` of a host of `cores` cores.
    pub(crate) fn new(core: CoreId, cores: u16) -> Self {
        Self {
            core,
            targets: (0..cores).map(|_| Outgoing::default()).collect(),
            filled: 0,
            kicks: 0,
            limit: None,
            handed_on: 0,
        }
    }

    /// Whose it is.
    pub(crate) const fn core(&self) -> CoreId {
        self.core
    }

    /// Packets that left this core since the last call.
    pub(crate) const fn take_handed_on(&mut self) -> u64 {
        core::mem::replace(&mut self.handed_on, 0)
    }

    /// Whether `target` is through with the first `tail` packets that it got from here.
    pub(super) fn has_finished(&self, host: &Host, target: CoreId, tail: u32) -> bool {
        let done = host.core(target).backlog().lanes().done(usize::from(self.core.0));
        done.wrapping_sub(tail).cast_signed() >= 0
    }

    /// Whether every core is through with everything that it got from here.
    pub(super) fn is_through(&self, host: &Host) -> bool {
        (0u16..)
            .zip(&self.targets)
            .all(|(target, outgoing)| self.has_finished(host, CoreId(target), outgoing.sent))
    }

    /// A packet for `target`. How many packets it has got with this one, or `None` when it was dropped.
    pub(super) fn put(
        &mut self,
        host: &Host,
        cx: &mut Cx,
        target: CoreId,
        hash: u32,
        packet: Packet,
    ) -> Option<u32> {
        let backlog = host.core(target).backlog();
        let outgoing = &mut self.targets[usize::from(target.0)];
        if outgoing.count == 0 {
            // Others may push meanwhile: each can exceed the limit by what one poll hands on.
            outgoing.qlen = backlog.lanes().len();
        }
        let (qlen, max) = (outgoing.qlen + outgoing.count, cx.sysctls().netdev_max_backlog);
        let is_full = qlen >= max;
        if is_full || exceeds_its_half(&mut self.limit, host, self.core, cx, (hash, qlen, max)) {
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

    /// The poll is over: what was put goes to its cores.
    #[inline]
    pub(crate) fn push(&mut self, host: &Host, cx: &mut Cx) {
        if self.filled | self.kicks != 0 {
            self.push_filled(host, cx);
        }
    }

    fn push_filled(&mut self, host: &Host, cx: &mut Cx) {
        while self.filled != 0 {
            let target = self.filled.trailing_zeros();
            self.filled &= self.filled - 1;
            let outgoing = &mut self.targets[target as usize];
            let packets = core::mem::take(&mut outgoing.packets);
            let count = core::mem::replace(&mut outgoing.count, 0);
            cx.count(Counter::RpsPackets, u64::from(count));
            let lanes = host.cores()[target as usize].backlog().lanes();
            if lanes.push(usize::from(self.core.0), packets, count) {
                self.kicks |= 1 << target;
            }
        }
        // Outside of a turn nobody would do it later.
        if self.kicks != 0 && cx.running().is_none() {
            self.kick(host, cx);
        }
    }

    /// The turn is over: cores that were given something and had nothing are made to look.
    #[inline]
    pub(crate) fn kick(&mut self, host: &Host, cx: &mut Cx) {
        if self.kicks != 0 {
            self.kick_targets(host, cx);
        }
    }

    fn kick_targets(&mut self, host: &Host, cx: &mut Cx) {
        while self.kicks != 0 {
            let target: &Arc<Core> = &host.cores()[self.kicks.trailing_zeros() as usize];
            self.kicks &= self.kicks - 1;
            SoftnetCounts::add_shared(&target.backlog().counts().received_rps, 1);
            Core::kick_backlog(target, cx);
        }
    }
}

/// The flow limit, on cores that have one.
#[inline]
fn exceeds_its_half(
    limit: &mut Option<FlowLimit>,
    host: &Host,
    core: CoreId,
    cx: &Cx,
    (hash, qlen, max): (u32, u32, u32),
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
    let exceeds = limit.exceeds(hash, qlen, max);
    if exceeds {
        SoftnetCounts::add(&host.core(core).backlog().counts().flow_limit, 1);
    }
    exceeds
}
