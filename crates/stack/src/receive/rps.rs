//! Receive packet steering: which core a packet goes up on.
//!
//! Above: `napi`, which asks for every packet that leaves a device queue. Below: the backlog of another core
//! (`backlog`), or `link_input` on this one. Linux: `get_rps_cpu`, `set_rps_cpu`, `enqueue_to_backlog`,
//! Documentation/networking/scaling.rst.
//!
//! ```text
//!   hash of the flow ─┬─ RFS: where its application reads      (`sock_flows`, if the queue has a table)
//!                     └─ RPS: the map of the queue, scaled     (`rps_cpus`)
//!                             │ the core it is wanted on
//!   slot of the flow ── moves there once everything it has sent elsewhere is through, and not before
//! ```
//!
//! No packet overtakes one of its flow, whatever is set while the host runs. Differs from Linux: there only RFS remembers
//! where a flow was; here every queue that steers does, so that a change of a map, and switching RPS off, moves flows as
//! carefully. And a packet that stays on the core that polled it goes up at once, not by that core's backlog.
//!
//! All of it belongs to the owner of the core. Off, it costs a look at a flag per poll.

use std::{boxed::Box, vec::Vec};

use pkt::Packet;

use crate::{base::ids::CoreId, cx::Cx, device::LinkType, host::Host};

pub(crate) use backlog::{Backlog, BacklogPoll};
pub(crate) use outbox::Outbox;
pub(crate) use softnet::SoftnetCounts;
pub use softnet::SoftnetStat;

mod backlog;
mod dissect;
mod flow_limit;
mod outbox;
mod softnet;

#[cfg(test)]
mod tests;

/// Slots of a queue that has no `rps_flow_cnt`: flows that share one move together, and the slot is chosen by the bits that
/// choose the core in a map, so that neighbors mostly want the same.
const SLOTS_MIN: usize = 256;

/// Where the flows of one slot are. Linux: `struct rps_dev_flow`.
#[derive(Clone, Copy, Debug)]
struct Slot {
    core: u16,
    /// On another core: how many packets this core had sent there with the slot's last one. On our own: the poll that
    /// carried its last one up.
    last_qtail: u32,
}

/// What one device queue keeps to steer its packets.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// Number of the settings that the fields below were made of.
    generation: u64,
    /// Cores of `rps_cpus` that exist, ascending.
    map: Vec<u16>,
    /// RFS: the queue has a table of its own.
    by_socket: bool,
    /// A power of two of them, or none while nothing is steered.
    slots: Box<[Slot]>,
    /// Number of the present poll; wraps.
    poll: u32,
}

impl Steering {
    /// Nothing is steered, nor was until now.
    #[inline]
    pub(crate) fn is_off(&self, cx: &Cx) -> bool {
        !cx.rps_needed() && self.slots.is_empty()
    }

    /// A poll of `queue` of `device` begins. False: all its packets stay, and need not be asked about.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        host: &Host,
        cx: &Cx,
        outbox: &Outbox,
        (device, queue): (u32, u16),
    ) -> bool {
        if self.is_off(cx) {
            return false;
        }
        self.prepare(host, cx, outbox, (device, queue))
    }

    /// Follows the settings. The slots are made anew only while nothing is under way: until then the old ones keep order.
    #[cold]
    #[inline(never)]
    fn follow(&mut self, host: &Host, cx: &Cx, outbox: &Outbox, (device, queue): (u32, u16)) {
        let settings = cx.sysctls().devices.of(device).rx(queue);
        let cores = u16::try_from(host.cores().len()).expect("at most 64 cores");
        self.map.clear();
        self.map.extend((0..cores).filter(|core| settings.rps_cpus & (1 << core) != 0));
        self.by_socket = settings.rps_flow_cnt != 0 && cx.sock_flows().is_some();
        let wanted = match settings.rps_flow_cnt as usize {
            _ if self.map.is_empty() && !self.by_socket => 0,
            count => count.max(SLOTS_MIN),
        };
        if wanted != self.slots.len() {
            if !outbox.is_through(host) {
                return;
            }
            let here = Slot { core: outbox.core().0, last_qtail: self.poll.wrapping_sub(1) };
            self.slots = vec![here; wanted].into_boxed_slice();
        }
        self.generation = cx.generation();
    }

    fn prepare(&mut self, host: &Host, cx: &Cx, outbox: &Outbox, queue: (u32, u16)) -> bool {
        self.poll = self.poll.wrapping_add(1);
        if self.generation != cx.generation() {
            self.follow(host, cx, outbox, queue);
        }
        !self.slots.is_empty()
    }

    /// Keeps a packet of this poll for the present core, or hands it to the one it belongs to. Only after `begin` has said
    /// true.
    pub(crate) fn keep(
        &mut self,
        host: &Host,
        cx: &mut Cx,
        outbox: &mut Outbox,
        link: LinkType,
        mut packet: Packet,
    ) -> Option<Packet> {
        let Some(hash) = dissect::flow_hash(host, link, &mut packet) else { return Some(packet) };
        let here = outbox.core();
        let wanted = self.wanted(host, cx, hash).unwrap_or(here);
        // The high bits, as in the map.
        let index = (u64::from(hash) * self.slots.len() as u64) >> 32;
        let slot = &mut self.slots[usize::try_from(index).expect("below the number of slots")];
        let is_through = |slot: &Slot| match slot.core {
            core if core == here.0 => slot.last_qtail != self.poll,
            core => outbox.has_finished(host, CoreId(core), slot.last_qtail),
        };
        if slot.core != wanted.0 && is_through(slot) {
            slot.core = wanted.0;
        }
        if slot.core == here.0 {
            slot.last_qtail = self.poll;
            return Some(packet);
        }
        if let Some(tail) = outbox.put(host, cx, CoreId(slot.core), hash, packet) {
            slot.last_qtail = tail;
        }
        None
    }

    /// The core that a flow should be on; `None` where nobody says so.
    fn wanted(&self, host: &Host, cx: &Cx, hash: u32) -> Option<CoreId> {
        let by_socket = if self.by_socket { cx.sock_flows() } else { None };
        if let Some(core) = by_socket.and_then(|flows| flows.core_of(hash))
            && usize::from(core.0) < host.cores().len()
        {
            return Some(core);
        }
        // Reciprocal scaling: the map of all cores agrees with `Host::core_of_flow`.
        let index = (u64::from(hash) * self.map.len() as u64) >> 32;
        self.map.get(usize::try_from(index).unwrap_or_default()).copied().map(CoreId)
    }
}
