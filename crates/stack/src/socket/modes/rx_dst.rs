//! The input route entry (dst) that a socket caches. The next packets for which early demux finds
//! the socket use this entry.
//!
//! Linux: `sk_rx_dst`, `sk_rx_dst_ifindex`, `sk_rx_dst_cookie`, `inet_sk_rx_dst_set`. Written by
//! the owner of the socket, read in a read section by the receiving context.
//!
//! The cache holds a reference of its own to the published entry, taken by a conditional get or
//! from a queued packet. The slot is **cleared before that reference is put**: a reader that still
//! finds the entry is protected by its read section. In the other order a reader could find a freed
//! entry.
//!
//! Differs from Linux: readers take device and generation (Linux's cookie) from the entry itself,
//! because each input route entry belongs to one device here. A reader therefore never combines one
//! entry with the device of another.
//!
//! Not here: lookup of the entry (`receive::ip_input`), release of a packet's reference
//! (`transmit::packet_dst`).

use std::sync::atomic::{AtomicU32, Ordering};

use sync::{
    Slot,
    epoch::{Domain, Section},
};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    route::router::{CHECK_ENTRY, cached_generation},
    socket::net::Net,
    sysctl::modes::RxDstMode,
    transmit::{
        dst::{DstHandle, DstParts, DstRef},
        packet_dst::PacketDst,
    },
};

/// Cache for one input route entry.
#[derive(Debug)]
pub(crate) struct RxDst {
    slot: Slot<DstParts>,
    /// Generation of the published entry, so that the owner of the socket need not read the entry.
    /// Written and read under the socket lock. Relaxed: the lock orders it.
    generation: AtomicU32,
    /// Device of the published entry; used like `generation`.
    device: AtomicU32,
}

impl RxDst {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self { slot: Slot::new(rcu), generation: AtomicU32::new(0), device: AtomicU32::new(0) }
    }

    /// Returns the cached entry, if it is valid for a packet that arrived on `device`.
    #[inline]
    pub(crate) fn check<'s>(
        &'s self,
        net: &Net,
        device: DeviceIndex,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        let dst = self.slot.load(rcu)?;
        net.is_valid_input(dst.tail(), device).then_some(dst)
    }

    /// Returns whether a packet that arrived on `device` may be queued without its dst, because the
    /// cached entry replaces it; passed to [`leave_rcu`](crate::transmit::packet_dst::leave_rcu).
    #[inline]
    pub(crate) fn replaces_packet_dst(
        &self,
        net: &Net,
        mode: RxDstMode,
        device: DeviceIndex,
        rcu: &Section<'_>,
    ) -> bool {
        mode.drops(!self.slot.is_empty(), || self.check(net, device, rcu).is_some())
    }

    /// Updates the cache for a packet that arrived on `device`, of an established connection or a
    /// connected datagram socket: drops the cached entry if it is stale or of another device, and
    /// stores the packet's entry if none is cached. Called by the owner of the socket.
    #[inline]
    pub(crate) fn on_packet(&self, net: &Net, cx: &Cx, device: DeviceIndex, dst: PacketDst<'_>) {
        if !self.slot.is_empty() {
            if self.generation.load(Ordering::Relaxed) == net.route_generation()
                && self.device.load(Ordering::Relaxed) == device.0
            {
                return dst.release_outside(cx);
            }
            if self.is_entry_valid(net, cx, device) {
                return dst.release_outside(cx);
            }
            self.clear(cx);
        }
        self.set(cx, dst);
    }

    /// Reads the entry if the generation is [`CHECK_ENTRY`], and returns whether the entry is valid
    /// for a packet received on `device`. Linux: the check in `tcp_v4_do_rcv`.
    #[cold]
    fn is_entry_valid(&self, net: &Net, cx: &Cx, device: DeviceIndex) -> bool {
        if self.generation.load(Ordering::Relaxed) != CHECK_ENTRY {
            return false;
        }
        cx.count(Counter::DstCheckEntry, 1);
        let reader = cx.reader();
        self.check(net, device, &reader.pin()).is_some()
    }

    /// Stores the packet's dst. A packet whose dst was dropped when it was queued changes nothing
    /// (Linux: the NULL test of `inet_sk_rx_dst_set`).
    #[cold]
    fn set(&self, cx: &Cx, dst: PacketDst<'_>) {
        let held = match dst {
            PacketDst::None => return cx.count(Counter::RxDstSetNullSkipped, 1),
            PacketDst::Held(dst) => Some(dst),
            PacketDst::Noref(dst) => dst.try_get().inspect(|_| cx.count(Counter::DstGet, 1)),
        };
        match held {
            None => cx.count(Counter::DstForceFailed, 1),
            Some(dst) if dst.tail().is_input => self.publish(cx, dst),
            Some(dst) => PacketDst::Held(dst).release_outside(cx),
        }
    }

    fn publish(&self, cx: &Cx, dst: DstRef) {
        let tail = *dst.tail();
        match self.slot.publish(dst) {
            Ok(()) => {
                self.generation.store(cached_generation(cx, tail.generation), Ordering::Relaxed);
                self.device.store(tail.device.0, Ordering::Relaxed);
                cx.count(Counter::RxDstSet, 1);
            }
            Err(dst) => PacketDst::Held(dst).release_outside(cx),
        }
    }

    /// Drops the cached entry: clears the slot first, then releases the reference.
    #[cold]
    pub(super) fn clear(&self, cx: &Cx) {
        if let Some(dst) = self.slot.take() {
            cx.count(Counter::RxDstInvalidated, 1);
            cx.count(Counter::DstPut, 1);
            drop(dst);
        }
    }

    /// Drops the cached entry, because the socket leaves the tables or has got another peer.
    pub(crate) fn end(&self) {
        drop(self.slot.take());
    }
}
