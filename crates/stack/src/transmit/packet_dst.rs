//! Dst of a received packet, and the single function through which it leaves the read section.
//!
//! Above: `receive::ip_input`, which finds it, and sockets, which cache one for later packets
//! (`socket::modes::rx_dst`). Linux: `skb_dst`, `skb_dst_set_noref`, `skb_dst_force`,
//! `skb_dst_drop`.
//!
//! Most packets have a dst without a reference, valid only within the read section; the type
//! enforces this. A packet that is queued for another thread passes [`leave_rcu`], which either
//! drops the dst or takes a reference.
//!
//! Not here: finding the entry, and its use by the socket.

use std::cell::Cell;

use pkt::Packet;
use sync::epoch::Section;

use super::dst::{DstHandle, DstRef};
use crate::{base::counters::Counter, cx::Cx, sysctl::modes::RxDstMode};

/// Dst of one received packet.
#[derive(Debug, Default)]
pub(crate) enum PacketDst<'s> {
    /// No dst: it was not looked up, or was dropped. Every consumer handles this case.
    #[default]
    None,
    /// Dst without a reference.
    Noref(DstHandle<'s>),
    /// Dst with a reference.
    Held(DstRef),
}

impl PacketDst<'_> {
    /// Takes the reference that the packet carries: from a queue outside of a read section, or from
    /// the sender over loopback.
    #[inline]
    pub(crate) fn taken_from(packet: &mut Packet) -> Self {
        match packet.take_dst().map(sync::AnyRef::downcast) {
            None => Self::None,
            Some(Ok(dst)) => Self::Held(dst),
            Some(Err(_)) => unreachable!("a packet carries no reference but to a dst entry"),
        }
    }

    /// Releases the dst after its last use by the packet.
    #[inline]
    pub(crate) fn release(self, cx: &Cx, rcu: &Section<'_>) {
        if let Self::Held(dst) = self {
            cx.count(Counter::DstPut, 1);
            dst.release(rcu);
        }
    }

    /// Does the same as [`release`](Self::release) for a caller that has no read section at hand.
    #[inline]
    pub(crate) fn release_outside(self, cx: &Cx) {
        if let Self::Held(dst) = self {
            release_in_section(cx, dst);
        }
    }
}

/// Enters a read section and puts the reference in it: one subtraction, whereas a put without a
/// section is a loop of compare-and-swap. In softirq, and in a call that has had a section, the
/// section costs an increment.
#[inline(never)]
fn release_in_section(cx: &Cx, dst: DstRef) {
    cx.count(Counter::DstPut, 1);
    let reader = cx.reader();
    dst.release(&reader.pin());
}

/// Result of [`leave_rcu`] for a packet's dst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Left {
    /// The packet had no dst.
    #[default]
    Nothing,
    /// The packet had a dst without a reference, which was dropped.
    DroppedNoref,
    /// The packet had a reference, which was released.
    Released,
    /// A reference was taken and stays with the packet.
    Forced,
    /// The packet keeps the reference that it already had.
    Kept,
    /// The entry's count had already reached zero, so no reference can be taken; the packet has no
    /// dst.
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

/// Removes `packet` from the read section, before it is queued. **All queued packets pass here.**
/// Drops the dst if `socket_holds_dst`, otherwise takes a reference that stays with the packet
/// until [`PacketDst::taken_from`].
///
/// `socket_holds_dst` is the result of `RxDst::serves`, which also considers `rx_dst_mode`.
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

/// Dst of a packet that passes the receive steps, taken exactly once: by the step that delivers the
/// packet to a connection, or by the IP layer, which releases it, if no step has taken it.
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
    /// Whether a packet may drop its dst when it is queued. `any`: the socket caches a dst.
    /// `valid`: that dst is valid for the packet.
    #[inline]
    pub(crate) fn drops(self, any: bool, valid: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Force => false,
            Self::OptimisticDrop => any,
            Self::RcuClearThenRelease => any && valid(),
        }
    }
}
