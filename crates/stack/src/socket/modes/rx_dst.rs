//! The input route that a connection remembers, for early demux to put on its next packets.
//!
//! Linux: `sk_rx_dst`, `sk_rx_dst_ifindex`, `sk_rx_dst_cookie`, `inet_sk_rx_dst_set`. Written by the holder of the socket, read
//! in a read section by whoever receives.
//!
//! Published with a reference of its own, by a conditional get, and **cleared before that reference is put**: a reader that
//! still finds it finds memory that its read section keeps. In the other order it would find a dead entry.
//!
//! Differs from Linux: device and cookie are the entry's own, because each input route is of one device here. A reader never
//! pairs one entry with the device of another.
//!
//! Not here: where the route comes from (`receive::ip_input`), where a packet's reference ends (`transmit::packet_dst`).

use std::sync::atomic::{AtomicU32, Ordering};

use sync::{
    Slot,
    epoch::{Domain, Section},
};

use crate::{
    base::counters::Counter,
    cx::Cx,
    host::{CHECK_ENTRY, Host, cached_generation},
    sysctl::modes::RxDstMode,
    transmit::{
        dst::{DstHandle, DstParts, DstRef},
        packet_dst::PacketDst,
    },
};

/// What readers see.
#[derive(Debug)]
pub(crate) struct RxDst {
    slot: Slot<DstParts>,
    /// Generation of what is published, for the holder of the socket: spares it the look at the entry. Written under the
    /// socket lock and read under it. Relaxed: the lock orders.
    generation: AtomicU32,
    /// Device of what is published; as `generation`.
    device: AtomicU32,
}

impl RxDst {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self { slot: Slot::new(rcu), generation: AtomicU32::new(0), device: AtomicU32::new(0) }
    }

    /// The route for a packet that came by `device`, if the socket has a valid one.
    #[inline]
    pub(crate) fn check<'s>(
        &'s self,
        host: &Host,
        device: u32,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        let dst = self.slot.load(rcu)?;
        host.is_valid_input(dst.tail(), device).then_some(dst)
    }

    /// Whether a packet that came by `device` may be queued without its dst, because this serves instead: what
    /// [`leave_rcu`](crate::transmit::packet_dst::leave_rcu) is told.
    #[inline]
    pub(crate) fn serves(
        &self,
        host: &Host,
        mode: RxDstMode,
        device: u32,
        rcu: &Section<'_>,
    ) -> bool {
        mode.drops(!self.slot.is_empty(), || self.check(host, device, rcu).is_some())
    }

    /// The holder of the socket processes a packet of an established connection, which came by `device`: what is remembered
    /// is forgotten if it is stale or of another device, and if nothing is remembered the packet's is.
    #[inline]
    pub(crate) fn on_packet(&self, host: &Host, cx: &Cx, device: u32, dst: PacketDst<'_>) {
        if !self.slot.is_empty() {
            if self.generation.load(Ordering::Relaxed) == host.route_generation()
                && self.device.load(Ordering::Relaxed) == device
            {
                return dst.release_outside(cx);
            }
            if self.is_entry_valid(host, cx, device) {
                return dst.release_outside(cx);
            }
            self.clear(cx);
        }
        self.set(cx, dst);
    }

    /// Whether the generation is [`CHECK_ENTRY`] and the entry is valid for a packet that came by `device`: reads the entry.
    /// Linux: the check of `tcp_rcv_established`.
    #[cold]
    fn is_entry_valid(&self, host: &Host, cx: &Cx, device: u32) -> bool {
        if self.generation.load(Ordering::Relaxed) != CHECK_ENTRY {
            return false;
        }
        cx.count(Counter::DstCheckEntry, 1);
        let reader = cx.reader();
        self.check(host, device, &reader.pin()).is_some()
    }

    /// Takes the packet's dst over. A packet without one, because it was dropped when the packet was queued, changes nothing
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
                self.device.store(tail.device, Ordering::Relaxed);
                cx.count(Counter::RxDstSet, 1);
            }
            Err(dst) => PacketDst::Held(dst).release_outside(cx),
        }
    }

    /// Forgets the route: clears first, then releases.
    #[cold]
    pub(super) fn clear(&self, cx: &Cx) {
        if let Some(dst) = self.slot.take() {
            cx.count(Counter::RxDstInvalidated, 1);
            cx.count(Counter::DstPut, 1);
            drop(dst);
        }
    }

    /// The connection has left the tables.
    pub(crate) fn end(&self) {
        drop(self.slot.take());
    }
}
