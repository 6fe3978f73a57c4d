//! Software fallback for offloads: superframes (packets of several segments) are segmented, and
//! checksums completed, for a device that does not support these offloads.
//!
//! Above: `tx_queue`. Linux: `validate_xmit_skb`, `skb_checksum_help`, `tbf_segment`.
//!
//! The fallback runs after the queueing discipline, so that a superframe waits in the discipline as
//! one packet. Only a superframe that is too large for the discipline (`Qdisc::packet_bytes_max`)
//! is segmented before.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use pkt::{GsoKind, Packet, PacketList, TxChecksum};

use crate::{
    base::{counters::Counter, limits::BIG_TCP_BYTES_MAX},
    cx::Cx,
    device::Capabilities,
    header::{ip::ETHER_TYPE_IPV4, udp},
    transmit::{
        dst::Dst,
        gso::{self, Checksums},
    },
};

/// Offloads that a device supports. The accesses of the limits are Relaxed: if a packet passes an
/// outdated limit, the device refuses it.
#[derive(Debug)]
pub(super) struct Offload {
    /// Length of the link header.
    pub(super) link_header: usize,
    tx_checksum: bool,
    /// Whether the device accepts superframes of datagrams.
    uso: bool,
    /// Length of the largest superframe that the device currently accepts
    /// ([`Device::superframe_max`](crate::device::Device::superframe_max)).
    superframe_max: AtomicU32,
    /// Length of the largest IPv4 superframe, in bytes of its IP packet; 0 if the device accepts
    /// none.
    tso_v4: AtomicUsize,
    /// Length of the largest IPv6 superframe, in bytes of its IP packet; 0 if the device accepts
    /// none.
    tso_v6: AtomicUsize,
    /// True if the device supports all offloads, so that no packet needs a check.
    all: AtomicBool,
}

impl Offload {
    pub(super) fn new(caps: &Capabilities) -> Self {
        let this = Self {
            link_header: caps.link.header_bytes(),
            tx_checksum: caps.tx_checksum,
            uso: caps.uso,
            superframe_max: AtomicU32::new(caps.gso_max_bytes),
            tso_v4: AtomicUsize::new(0),
            tso_v6: AtomicUsize::new(0),
            all: AtomicBool::new(false),
        };
        this.set_superframe_max(caps, caps.gso_max_bytes);
        this
    }

    /// Returns the length of the largest superframe that the device currently accepts.
    pub(super) fn superframe_max(&self) -> u32 {
        self.superframe_max.load(Ordering::Relaxed)
    }

    /// Sets the length of the largest superframe of the device to `max` bytes. Returns true if the
    /// length has changed.
    pub(super) fn set_superframe_max(&self, caps: &Capabilities, max: u32) -> bool {
        let [v4, v6] = [true, false].map(|v4| Dst::tso_limit(caps, max, v4) as usize);
        self.tso_v4.store(v4, Ordering::Relaxed);
        self.tso_v6.store(v6, Ordering::Relaxed);
        let all = caps.tx_checksum && caps.uso && v4.min(v6) >= BIG_TCP_BYTES_MAX as usize;
        self.all.store(all, Ordering::Relaxed);
        self.superframe_max.swap(max, Ordering::Relaxed) != max
    }

    /// Replaces packets of `list` that the device does not accept: segments superframes and
    /// completes checksums.
    #[inline]
    pub(super) fn fit_list(&self, cx: &mut Cx, list: &mut PacketList) {
        if self.all.load(Ordering::Relaxed) {
            return;
        }
        let mut packets = core::mem::take(list);
        while let Some(packet) = packets.pop_front() {
            self.fit(cx, packet, list);
        }
    }

    /// Appends `packet` to `list` in a form that the device accepts.
    pub(super) fn fit(&self, cx: &mut Cx, packet: Packet, list: &mut PacketList) {
        if self.takes(&packet) {
            return self.push(cx, packet, list);
        }
        gso::segment(cx, packet, self.link_header, self.checksums(), list);
    }

    /// Returns the layer that completes the checksums of segments.
    pub(super) const fn checksums(&self) -> Checksums {
        if self.tx_checksum { Checksums::Owed } else { Checksums::Completed }
    }

    /// Whether the device accepts a packet unchanged: a single segment, or a superframe that it
    /// segments itself.
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        if packet.meta().gso.segs <= 1 {
            return true;
        }
        if packet.meta().gso.kind == GsoKind::Udp && !self.uso {
            return false;
        }
        let max = match packet.meta().protocol {
            ETHER_TYPE_IPV4 => &self.tso_v4,
            _ => &self.tso_v6,
        };
        packet.len() - self.link_header <= max.load(Ordering::Relaxed)
    }

    fn push(&self, cx: &Cx, mut packet: Packet, list: &mut PacketList) {
        if !self.tx_checksum {
            complete_checksum(cx, &mut packet, self.link_header);
        }
        list.push_back(packet);
    }
}

/// Completes a partial checksum (`skb_checksum_help`).
pub(in crate::transmit) fn complete_checksum(cx: &Cx, packet: &mut Packet, link_header: usize) {
    let TxChecksum::Partial { start, offset } = packet.meta().tx_checksum else { return };
    let start = link_header + usize::from(start);
    let field = start + usize::from(offset);
    let sum = match packet.sum_of_pieces() {
        Some(payload) => {
            cx.count(Counter::TxChecksumCopied, 1);
            let headers = packet.linear().len() - start;
            let mut sum = packet.checksum(start, headers);
            sum.combine(payload, headers);
            sum
        }
        None => packet.checksum(start, packet.len() - start),
    };
    let sum = match sum.finish() {
        // In UDP a field of zero means that there is no checksum (RFC 768).
        0 if offset == udp::CHECKSUM_OFFSET => 0xffff,
        sum => sum,
    };
    packet.linear_mut()[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    packet.meta_mut().tx_checksum = TxChecksum::Done;
    cx.count(Counter::TxChecksumSoftware, 1);
}
