//! Route entry (dst) of a received packet, and [`leave_rcu`], the only function that takes a packet
//! out of the read section in which its entry was found.
//!
//! Above: `receive::ip_input`, which finds the entry, and sockets, which cache an entry for later
//! packets (`socket::modes::rx_dst`). Linux: `skb_dst`, `skb_dst_set_noref`, `skb_dst_force`,
//! `skb_dst_drop`.
//!
//! Most packets have an entry without a reference. Such an entry is valid only within the read
//! section, which the type enforces. A packet that is queued for another thread passes
//! [`leave_rcu`], which either drops the entry or takes a reference.
//!
//! Not here: finding the entry, and its use by the socket.

use std::cell::Cell;

use pkt::Packet;
use sync::epoch::Section;

use super::dst::{DstHandle, DstRef};
use crate::{base::counters::Counter, cx::Cx, sysctl::modes::RxDstMode};

/// Route entry of one received packet.
#[derive(Debug, Default)]
pub(crate) enum PacketDst<'s> {
    /// No entry: none was looked up, or it was dropped. Every consumer handles this case.
    #[default]
    None,
    /// Entry without a reference.
    Noref(DstHandle<'s>),
    /// Entry with a reference.
    Held(DstRef),
}

impl PacketDst<'_> {
    /// Takes the reference that the packet carries, if any. A packet got it when it was queued
    /// outside of a read section, or from its sender over loopback.
    #[inline]
    pub(crate) fn taken_from(packet: &mut Packet) -> Self {
        match packet.take_dst().map(sync::AnyRef::downcast) {
            None => Self::None,
            Some(Ok(dst)) => Self::Held(dst),
            Some(Err(_)) => unreachable!("a packet carries a reference only to a route entry"),
        }
    }

    /// Releases the entry after its last use by the packet.
    #[inline]
    pub(crate) fn release(self, cx: &Cx, rcu: &Section<'_>) {
        if let Self::Held(dst) = self {
            cx.count(Counter::DstPut, 1);
            dst.release(rcu);
        }
    }

    /// Releases the entry like [`release`](Self::release), for a caller without a read section.
    #[inline]
    pub(crate) fn release_outside(self, cx: &Cx) {
        if let Self::Held(dst) = self {
            release_in_section(cx, dst);
        }
    }
}

/// Releases the reference within a read section of its own. The release is then one subtraction;
/// without a section it would be a loop of compare-and-swap. In softirq, and in a call that has
/// entered a section before, entering costs one increment.
#[inline(never)]
fn release_in_section(cx: &Cx, dst: DstRef) {
    cx.count(Counter::DstPut, 1);
    let reader = cx.reader();
    dst.release(&reader.pin());
}

/// Result of [`leave_rcu`] for a packet's route entry (dst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Left {
    /// The packet had no entry.
    #[default]
    Nothing,
    /// The packet had an entry without a reference, which was dropped.
    DroppedNoref,
    /// The packet had a reference, which was released.
    Released,
    /// A reference was taken and stays with the packet.
    Forced,
    /// The packet keeps the reference that it already had.
    Kept,
    /// The entry's count had already reached zero, so no reference could be taken. The packet has
    /// no entry now.
    Dead,
}

impl Left {
    /// Counts the result.
    pub(crate) fn count(self, cx: &Cx) {
        match self {
            Self::Nothing | Self::Kept => {}
            Self::DroppedNoref => cx.count(Counter::DstDropNoref, 1),
            Self::Released => cx.count(Counter::DstPut, 1),
            Self::Forced => {
                cx.count(Counter::DstForce, 1);
                cx.count(Counter::DstGet, 1);
            }
            Self::Dead => cx.count(Counter::DstForceFailed, 1),
        }
    }
}

/// Takes `packet` out of the read section before it is queued. **All queued packets pass this
/// function.** If `socket_holds_dst`, drops the packet's entry. Otherwise takes a reference, which
/// stays with the packet until [`PacketDst::taken_from`].
///
/// `socket_holds_dst` is the result of `RxDst::replaces_packet_dst`, which also considers
/// `rx_dst_mode`.
pub(crate) fn leave_rcu(packet: &mut Packet, dst: PacketDst<'_>, socket_holds_dst: bool) -> Left {
    match dst {
        PacketDst::None => Left::Nothing,
        PacketDst::Noref(_) if socket_holds_dst => Left::DroppedNoref,
        PacketDst::Held(_) if socket_holds_dst => Left::Released,
        PacketDst::Noref(dst) => match dst.try_get() {
            Some(held) => {
                packet.set_dst(held.into());
                Left::Forced
            }
            None => Left::Dead,
        },
        PacketDst::Held(held) => {
            packet.set_dst(held.into());
            Left::Kept
        }
    }
}

/// Route entry of a packet that passes the receive steps. The step that delivers the packet to a
/// connection takes the entry. If no step has taken it, the IP layer takes and releases it.
#[derive(Default)]
pub(crate) struct OnceDst<'s>(Cell<PacketDst<'s>>);

impl<'s> OnceDst<'s> {
    pub(crate) const fn new(dst: PacketDst<'s>) -> Self {
        Self(Cell::new(dst))
    }

    #[inline]
    pub(crate) fn take(&self) -> PacketDst<'s> {
        self.0.take()
    }
}

impl RxDstMode {
    /// Whether a packet may drop its route entry when it is queued. `any`: the socket caches an
    /// entry. `valid`: the cached entry is valid for the packet.
    #[inline]
    pub(crate) fn drops(self, any: bool, valid: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Force => false,
            Self::OptimisticDrop => any,
            Self::RcuClearThenRelease => any && valid(),
        }
    }
}
