//! Receive packet steering (RPS): selects the core that processes a packet.
//!
//! Above: `napi`, which passes every packet that leaves receive offload while steering is on.
//! Below: the backlog of another core (`backlog`), or `link_input` on the polling core. Linux:
//! `get_rps_cpu`, `set_rps_cpu`, `enqueue_to_backlog`, Documentation/networking/scaling.rst.
//!
//! 1. The hash of the packet's flow selects the wanted core. With receive flow steering (RFS) that
//!    is the core where the application reads (`sock_flows`, `rps_flow_cnt`). If RFS knows no core,
//!    the hash selects one from the map of the queue (`rps_cpus`). Without a map, the packet stays
//!    on the polling core.
//! 2. The hash also selects a slot, which stores the current core of its flows. The slot changes to
//!    the wanted core only when all its packets on the current core are processed.
//! 3. The packet goes to the core of the slot.
//!
//! No packet overtakes another of its flow, even if settings change while the host runs. Differs
//! from Linux, where only RFS stores the core of a flow: here every queue with RPS or RFS stores
//! it, so that a changed map or disabled RPS keeps the order, too. Differs from Linux: a packet
//! that stays on the polling core is delivered at once, not through that core's backlog.
//!
//! Only the thread that owns the polling core accesses this state. Disabled steering costs two
//! comparisons per poll.

use std::{boxed::Box, vec::Vec};

use pkt::Packet;

use crate::{
    base::ids::CoreId,
    cx::Cx,
    device::{DeviceQueue, LinkType},
    socket::net::Net,
};

pub(crate) use backlog::{Backlog, BacklogPoll};
pub(crate) use outbox::Outbox;
pub(crate) use softnet::SoftnetCounts;
pub use softnet::SoftnetStat;

pub(crate) mod backlog;
mod dissect;
mod flow_limit;
mod outbox;
mod softnet;

#[cfg(test)]
mod tests;

/// Minimum number of slots; a queue without `rps_flow_cnt` has this number. Flows that share a slot
/// move to another core together. The hash bits that select the slot also select the core in a map,
/// so the flows of one slot mostly want the same core.
const SLOTS_MIN: usize = 256;

/// Current core of the flows in one slot. Linux: `struct rps_dev_flow`.
#[derive(Clone, Copy, Debug)]
struct Slot {
    core: u16,
    /// If `core` is another core: number of packets sent to it, up to and including the slot's last
    /// one. If `core` is the polling core: number of the poll that delivered the slot's last
    /// packet.
    last_qtail: u32,
}

/// Steering state of one device queue.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// Generation of the settings from which `map`, `by_socket` and `slots` were derived.
    generation: u64,
    /// Existing cores of `rps_cpus`, ascending.
    map: Vec<u16>,
    /// True if RFS applies: the queue has a flow table (`rps_flow_cnt`), and the host has a socket
    /// table.
    by_socket: bool,
    /// Slots of the flows; empty while no packet is steered.
    slots: Box<[Slot]>,
    /// Number of the present poll; wraps around.
    poll: u32,
}

impl Steering {
    /// Whether steering is off and has no remaining state.
    #[inline]
    pub(crate) fn is_off(&self, cx: &Cx) -> bool {
        !cx.rps_needed() && self.slots.is_empty()
    }

    /// Begins a poll of the queue `from`. Returns false if all its packets stay on this core.
    #[inline]
    pub(crate) fn begin(&mut self, net: &Net, cx: &Cx, outbox: &Outbox, from: DeviceQueue) -> bool {
        if self.is_off(cx) {
            return false;
        }
        self.prepare(net, cx, outbox, from)
    }

    /// Applies changed settings. The number of slots changes only while no packet is on its way to
    /// another core; until then the old slots preserve the order.
    #[cold]
    #[inline(never)]
    fn apply_settings(&mut self, net: &Net, cx: &Cx, outbox: &Outbox, from: DeviceQueue) {
        let settings = cx.sysctls().devices.of(from.device).rx(from.queue.0);
        let cores = net.core_count();
        self.map.clear();
        self.map.extend((0..cores).filter(|core| settings.rps_cpus & (1 << core) != 0));
        self.by_socket = settings.rps_flow_cnt != 0 && cx.sock_flows().is_some();
        let wanted = match settings.rps_flow_cnt as usize {
            _ if self.map.is_empty() && !self.by_socket => 0,
            count => count.max(SLOTS_MIN),
        };
        if wanted != self.slots.len() {
            if !outbox.is_drained() {
                return;
            }
            let here = Slot { core: outbox.core().0, last_qtail: self.poll.wrapping_sub(1) };
            self.slots = vec![here; wanted].into_boxed_slice();
        }
        self.generation = cx.generation();
    }

    fn prepare(&mut self, net: &Net, cx: &Cx, outbox: &Outbox, from: DeviceQueue) -> bool {
        self.poll = self.poll.wrapping_add(1);
        if self.generation != cx.generation() {
            self.apply_settings(net, cx, outbox, from);
        }
        !self.slots.is_empty()
    }

    /// Returns the packet if it stays on the polling core; otherwise passes it to the core of its
    /// flow. Must be called only if `begin` has returned true for this poll.
    pub(crate) fn keep(
        &mut self,
        net: &Net,
        cx: &mut Cx,
        outbox: &mut Outbox,
        link: LinkType,
        mut packet: Packet,
    ) -> Option<Packet> {
        let Some(hash) = dissect::flow_hash(net, link, &mut packet) else { return Some(packet) };
        let here = outbox.core();
        let wanted = self.wanted(net, cx, hash).unwrap_or(here);
        // The high bits select the slot, as they select the core in the map.
        let index = (u64::from(hash) * self.slots.len() as u64) >> 32;
        let slot = &mut self.slots
            [usize::try_from(index).expect("the index is below the number of slots")];
        let is_drained = |slot: &Slot| match slot.core {
            core if core == here.0 => slot.last_qtail != self.poll,
            core => outbox.has_finished(CoreId(core), slot.last_qtail),
        };
        if slot.core != wanted.0 && is_drained(slot) {
            slot.core = wanted.0;
        }
        if slot.core == here.0 {
            slot.last_qtail = self.poll;
            return Some(packet);
        }
        if let Some(tail) = outbox.put(cx, CoreId(slot.core), hash, packet) {
            slot.last_qtail = tail;
        }
        None
    }

    /// Returns the wanted core of a flow, or `None` if neither the socket table nor the map names
    /// one.
    fn wanted(&self, net: &Net, cx: &Cx, hash: u32) -> Option<CoreId> {
        let by_socket = if self.by_socket { cx.sock_flows() } else { None };
        if let Some(core) = by_socket.and_then(|flows| flows.core_of(hash))
            && core.0 < net.core_count()
        {
            return Some(core);
        }
        // Reciprocal scaling: a map of all cores agrees with `CoreId::of_flow`.
        let index = (u64::from(hash) * self.map.len() as u64) >> 32;
        self.map.get(usize::try_from(index).unwrap_or_default()).copied().map(CoreId)
    }
}
