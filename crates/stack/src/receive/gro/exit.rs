//! How packets leave receive offload: one by one, or in lists.
//!
//! Below: `link_input::input_list`. Linux: `gro_normal_one`, `gro_normal_list`.
//!
//! Order of delivery must be order of arrival within a flow. A packet that was passed on as it came and one that was held
//! may be of the same flow, so both must leave by the same door: that is what the unified modes are. The mode of Linux 5.4
//! has two doors, and lets a packet that was completed overtake one that waits in the list.

use pkt::{Instant, Packet, PacketList};

use super::table::Completed;
use crate::{
    base::counters::Counter,
    cx::Cx,
    sysctl::{Sysctls, modes::GroExit},
};

/// How receive offload works for one device in one poll, from the settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroMode {
    /// `net.quietline.gro_exit`.
    pub(crate) exit: GroExit,
    /// `net.core.gro_normal_batch`, at least 1.
    pub(crate) batch: u32,
    /// Segments are merged at all.
    pub(crate) merges: bool,
    /// A superframe over IPv6 has fewer bytes of IP packet than this (`gro_max_size`).
    pub(crate) max_bytes: u32,
    /// One over IPv4 (`gro_ipv4_max_size`).
    pub(crate) ipv4_max_bytes: u32,
}

impl GroMode {
    /// What is set for device `index`. `may_merge` is false for devices whose packets came from this host.
    #[inline]
    pub(crate) fn of(sysctls: &Sysctls, index: u32, may_merge: bool) -> Self {
        let device = sysctls.devices.of(index);
        Self {
            exit: sysctls.gro_exit,
            batch: sysctls.gro_normal_batch,
            merges: may_merge && device.gro,
            max_bytes: device.gro_max_size,
            ipv4_max_bytes: device.gro_ipv4_bytes(),
        }
    }

    /// What a superframe of this family stays below.
    #[inline]
    pub(crate) const fn bytes_max(&self, v4: bool) -> u32 {
        if v4 { self.ipv4_max_bytes } else { self.max_bytes }
    }
}

/// See the module head.
#[derive(Debug, Default)]
pub(crate) struct Exit {
    /// Waits for more (Linux: `rx_list`).
    list: PacketList,
    /// Packets or segments in the list (`rx_count`).
    count: u32,
    /// When the first of the list came.
    since: Instant,
    /// Has left, and is the caller's to take up now.
    ready: PacketList,
}

impl Exit {
    /// A packet that was held leaves.
    pub(super) fn completed(&mut self, cx: &Cx, mode: &GroMode, completed: Completed) {
        let packet = completed.into_packet(cx);
        let segments = u32::from(packet.meta().gso.segs.max(1));
        match mode.exit {
            GroExit::Immediate | GroExit::NormalOnlyList => self.pass(cx, packet),
            GroExit::UnifiedListPackets => self.wait(cx, mode, packet, 1),
            GroExit::UnifiedListSegments => self.wait(cx, mode, packet, segments),
        }
    }

    /// A packet leaves as it came.
    pub(super) fn normal(&mut self, cx: &Cx, mode: &GroMode, packet: Packet) {
        cx.count(Counter::GroNormal, 1);
        match mode.exit {
            GroExit::Immediate => {
                // What has waited since another mode was set.
                self.flush(cx);
                self.pass(cx, packet);
            }
            // One each, a superframe that the device has made included, as in Linux.
            _ => self.wait(cx, mode, packet, 1),
        }
    }

    /// Up by itself.
    fn pass(&mut self, cx: &Cx, packet: Packet) {
        count_list(cx, 1);
        self.ready.push_back(packet);
    }

    fn wait(&mut self, cx: &Cx, mode: &GroMode, packet: Packet, weight: u32) {
        if self.list.is_empty() {
            self.since = cx.now;
        }
        self.list.push_back(packet);
        self.count += weight;
        if self.count >= mode.batch {
            self.flush(cx);
        }
    }

    /// The list goes up.
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

    /// True when nothing waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What is to go up now, oldest first.
    pub(super) const fn ready(&mut self) -> &mut PacketList {
        &mut self.ready
    }
}

/// The histogram of list lengths, in powers of two.
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
