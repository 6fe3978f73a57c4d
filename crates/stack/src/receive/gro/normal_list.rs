//! The normal list: gathers the packets that leave receive offload, so that they are delivered in
//! lists.
//!
//! Below: `link_input::input_list`. Linux: `gro_normal_one`, `gro_normal_list`.
//!
//! Within a flow, the order of delivery must be the order of arrival. An unchanged packet and a
//! held packet (a packet that waits for the next segment of its flow) may belong to the same flow,
//! so both must leave through the same list. The unified modes ([`GroExit`]) do this.
//! `GroExit::NormalOnlyList`, the mode of Linux 5.4, delivers completed packets directly, so that
//! they overtake unchanged packets in the list.

use pkt::{Instant, Packet, PacketList};

use super::table::Completed;
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    sysctl::{Sysctls, modes::GroExit},
};

/// Settings of receive offload for one device in one poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroMode {
    /// How packets leave receive offload, `net.quietline.gro_exit`.
    pub(crate) exit: GroExit,
    /// Count of the list that causes a flush, `net.core.gro_normal_batch`; at least 1.
    pub(crate) batch: u32,
    /// True if segments are merged.
    pub(crate) merges: bool,
    /// Exclusive upper bound of the IP packet length of an IPv6 superframe (`gro_max_size`).
    pub(crate) max_bytes: u32,
    /// The same bound for IPv4 (`gro_ipv4_max_size`).
    pub(crate) ipv4_max_bytes: u32,
}

impl GroMode {
    /// Reads the settings of device `index`. `may_merge` is false for devices whose packets
    /// originate on this host.
    #[inline]
    pub(crate) fn of(sysctls: &Sysctls, index: DeviceIndex, may_merge: bool) -> Self {
        let device = sysctls.devices.of(index);
        Self {
            exit: sysctls.gro_exit,
            batch: sysctls.gro_normal_batch,
            merges: may_merge && device.gro,
            max_bytes: device.gro_max_size,
            ipv4_max_bytes: device.gro_ipv4_bytes(),
        }
    }

    /// Returns the exclusive upper bound of the IP packet length of a superframe of this family.
    #[inline]
    pub(crate) const fn bytes_max(&self, v4: bool) -> u32 {
        if v4 { self.ipv4_max_bytes } else { self.max_bytes }
    }
}

/// Packets that wait in the list, and packets that have left receive offload.
#[derive(Debug, Default)]
pub(crate) struct NormalList {
    /// Packets that wait until the list is flushed (Linux: `rx_list`).
    list: PacketList,
    /// Packets or segments in the list, depending on the mode (`rx_count`).
    count: u32,
    /// Arrival time of the list's first packet.
    since: Instant,
    /// Packets that the caller delivers now.
    ready: PacketList,
}

impl NormalList {
    /// Passes a completed packet on, directly or through the list.
    pub(super) fn completed(&mut self, cx: &Cx, mode: &GroMode, completed: Completed) {
        let packet = completed.into_packet(cx);
        let segments = u32::from(packet.meta().gso.segs.max(1));
        match mode.exit {
            GroExit::Immediate => self.pass_at_once(cx, packet),
            // The packet overtakes those in the list, as in Linux 5.4.
            GroExit::NormalOnlyList => self.pass(cx, packet),
            GroExit::UnifiedListPackets => self.wait(cx, mode, packet, 1),
            GroExit::UnifiedListSegments => self.wait(cx, mode, packet, segments),
        }
    }

    /// Passes an unchanged packet on, directly or through the list.
    pub(super) fn normal(&mut self, cx: &Cx, mode: &GroMode, packet: Packet) {
        cx.count(Counter::GroNormal, 1);
        match mode.exit {
            GroExit::Immediate => self.pass_at_once(cx, packet),
            // Each packet counts as 1, even a superframe made by the device, as in Linux.
            _ => self.wait(cx, mode, packet, 1),
        }
    }

    /// Makes a single packet ready, after all packets in the list. The list has packets only if the
    /// mode has just changed, and they may belong to the same flow.
    fn pass_at_once(&mut self, cx: &Cx, packet: Packet) {
        self.flush(cx);
        self.pass(cx, packet);
    }

    /// Makes a single packet ready, before the packets in the list.
    pub(super) fn pass(&mut self, cx: &Cx, packet: Packet) {
        count_list(cx, 1);
        self.ready.push_back(packet);
    }

    /// Adds a packet that counts as `weight` to the list, and flushes the list if it is full.
    pub(super) fn wait(&mut self, cx: &Cx, mode: &GroMode, packet: Packet, weight: u32) {
        if self.list.is_empty() {
            self.since = cx.now;
        }
        self.list.push_back(packet);
        self.count += weight;
        if self.count >= mode.batch {
            self.flush(cx);
        }
    }

    /// Makes the whole list ready.
    pub(super) fn flush(&mut self, cx: &Cx) {
        if self.list.is_empty() {
            return;
        }
        count_list(cx, self.list.len());
        let waited = (cx.now - self.since).as_micros();
        cx.count(Counter::RxListMicros, u64::try_from(waited).unwrap_or(u64::MAX));
        self.count = 0;
        self.ready.append(&mut self.list);
    }

    /// Whether the list is empty.
    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the packets to deliver now, oldest first.
    pub(super) const fn ready(&mut self) -> &mut PacketList {
        &mut self.ready
    }
}

/// Adds a list of `len` packets to the histogram of list lengths, whose classes are powers of two.
#[inline]
pub(super) fn count_list(cx: &Cx, len: usize) {
    cx.count(Counter::RxListFlushes, 1);
    cx.count(Counter::RxListPackets, len as u64);
    let size = match len {
        0 | 1 => Counter::RxListSize1,
        2..=3 => Counter::RxListSize2To3,
        4..=7 => Counter::RxListSize4To7,
        8..=15 => Counter::RxListSize8To15,
        16..=31 => Counter::RxListSize16To31,
        32..=63 => Counter::RxListSize32To63,
        64.. => Counter::RxListSize64,
    };
    cx.count(size, 1);
}
