//! Softnet backlog: packets that other cores steered to this core, and the poll that processes
//! them.
//!
//! Linux: `softnet_data`'s `input_pkt_queue`, `process_queue` and backlog NAPI, `process_backlog`.

use std::sync::atomic::{AtomicU64, Ordering};

use pkt::{Packet, PacketList};
use sync::Lanes;

use super::softnet::{SoftnetCounts, SoftnetStat};
use crate::{
    base::ids::{CoreId, DeviceIndex},
    cx::Cx,
    receive::link_input::{self, FrameSource},
    socket::{
        net::Net,
        rx::{LastFlow, Rx},
    },
};

/// Shared part of a core's backlog, accessed by all cores.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Packets, in one lane for each sending core.
    lanes: Lanes<Packet>,
    counts: SoftnetCounts,
}

impl Backlog {
    /// Creates the backlog for a host of `cores` cores, each of which may send.
    pub(crate) fn new(cores: u16) -> Self {
        Self { lanes: Lanes::new(usize::from(cores)), counts: SoftnetCounts::default() }
    }

    pub(crate) const fn counts(&self) -> &SoftnetCounts {
        &self.counts
    }

    pub(super) const fn lanes(&self) -> &Lanes<Packet> {
        &self.lanes
    }

    /// Returns this core's record of softnet_stat.
    pub(crate) fn stat(&self, core: CoreId) -> SoftnetStat {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let process_qlen = read(&self.counts.process_qlen);
        SoftnetStat {
            processed: read(&self.counts.processed),
            dropped: read(&self.counts.dropped),
            time_squeeze: read(&self.counts.time_squeeze),
            received_rps: read(&self.counts.received_rps),
            flow_limit: read(&self.counts.flow_limit),
            input_qlen: u64::from(self.lanes.len()).saturating_sub(process_qlen),
            process_qlen,
            core: core.0,
        }
    }
}

/// Part of the backlog that only the owner of the core accesses: packets taken from the lanes but
/// not yet processed.
#[derive(Debug, Default)]
pub(crate) struct BacklogPoll {
    /// Bit set of ready lanes that are taken after the lane of `sender`.
    ready: u64,
    /// Lane that `rest` was taken from: the number of the sending core.
    sender: usize,
    rest: PacketList,
}

impl BacklogPoll {
    /// Whether a poll would find a packet.
    #[inline]
    pub(crate) fn is_pending(&self, backlog: &Backlog) -> bool {
        !self.rest.is_empty() || self.ready != 0 || backlog.lanes.is_ready()
    }

    /// Processes at most `weight` packets and returns their number. A result below `weight` means
    /// that the backlog is empty. Linux: `process_backlog`.
    pub(crate) fn poll(
        &mut self,
        net: &Net,
        cx: &mut Cx,
        backlog: &Backlog,
        last_flow: &mut LastFlow,
        weight: usize,
    ) -> usize {
        let reader = cx.reader();
        let mut taken = 0;
        while taken < weight {
            let packets = self.take(backlog, weight - taken);
            let count = packets.len();
            if count == 0 {
                break;
            }
            let rcu = reader.pin();
            let rx = &mut Rx::new(net, cx, &rcu, last_flow);
            deliver(rx, packets);
            rx.flush();
            // The packets are processed, so the sending core may now move their flows to another
            // core.
            backlog.lanes.finish(
                self.sender,
                u32::try_from(count).expect("a poll takes at most `weight` packets"),
            );
            taken += count;
        }
        backlog.counts.process_qlen.store(self.rest.len() as u64, Ordering::Relaxed);
        taken
    }

    /// Frees all waiting packets. Called when this core will not poll again.
    pub(crate) fn clear(&mut self, backlog: &Backlog) {
        for sender in 0..backlog.lanes.senders() {
            drop(backlog.lanes.take(sender));
        }
        *self = Self::default();
    }

    /// Takes at most `max` packets of one sender, oldest first.
    pub(super) fn take(&mut self, backlog: &Backlog, max: usize) -> PacketList {
        if self.rest.is_empty() {
            self.next_lane(backlog);
        }
        self.rest.by_ref().take(max).collect()
    }

    fn next_lane(&mut self, backlog: &Backlog) {
        // A lane whose ready bit is set may be empty, because its packets were taken together with
        // earlier ones.
        while self.rest.is_empty() {
            if self.ready == 0 {
                self.ready = backlog.lanes.take_ready();
            }
            if self.ready == 0 {
                return;
            }
            self.sender = self.ready.trailing_zeros() as usize;
            self.ready &= self.ready - 1;
            self.rest = backlog.lanes.take(self.sender).collect();
        }
    }
}

/// Delivers packets. Consecutive packets of one device form a list, so that they share IP lookups.
/// Differs from Linux, whose backlog delivers one packet at a time.
fn deliver(rx: &mut Rx<'_, '_>, mut packets: PacketList) {
    let mut list = PacketList::new();
    let mut from: Option<FrameSource> = None;
    while let Some(packet) = packets.pop_front() {
        rx.cx.advance_clock_to(packet.meta().timestamp);
        let device = DeviceIndex(packet.meta().rx_device);
        match from {
            Some(before) if before.device == device => {}
            before => {
                if let Some(before) = before {
                    link_input::input_list(rx, before, &mut list, false);
                }
                from = Some(FrameSource { device, link: rx.net.device(device).caps().link });
            }
        }
        list.push_back(packet);
    }
    if let Some(from) = from {
        link_input::input_list(rx, from, &mut list, true);
    }
}

#[cfg(test)]
mod tests {
    use sync::Chain;

    use super::*;
    use crate::cx::Memory;

    /// Regression: a lane whose ready bit was set, although its packets had already been taken,
    /// kept the poll from the lanes after it.
    #[test]
    fn the_poll_continues_after_an_empty_lane_with_a_ready_bit() {
        let memory = Memory::new(1 << 20);
        let mut cx = Cx::replay(&memory, 1);
        let backlog = Backlog::new(4);
        let mut push = |sender| {
            let mut chain = Chain::new();
            chain.push_back(cx.pool.alloc().unwrap());
            let _ = backlog.lanes.push(sender, chain, 1);
        };
        let mut poll = BacklogPoll::default();
        push(0);
        push(1);
        assert_eq!(poll.take(&backlog, 64).len(), 1);
        push(1);
        assert_eq!(
            poll.take(&backlog, 64).len(),
            2,
            "the poll did not take both packets of sender 1"
        );
        push(2);
        assert_eq!(
            poll.take(&backlog, 64).len(),
            1,
            "the poll did not take the packet of sender 2"
        );
        assert!(!poll.is_pending(&backlog));
    }
}
