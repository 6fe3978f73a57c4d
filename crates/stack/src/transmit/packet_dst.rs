//! The dst of a received packet, and the one place where it leaves the read section.
//!
//! Above: `receive::ip_input`, which finds it, and sockets, which keep one for packets to come (`socket::modes::rx_dst`). Linux: `skb_dst`,
//! `skb_dst_set_noref`, `skb_dst_force`, `skb_dst_drop`.
//!
//! Most packets have theirs without a reference, and have it only as long as the read section: the type sees to that. What is
//! queued for another thread goes through [`leave_rcu`], which decides: drop it, or take a reference along.
//!
//! Not here: which entry it is, what the socket does with it.

use std::cell::Cell;

use pkt::Packet;
use sync::epoch::Section;

use super::dst::{DstHandle, DstRef};
use crate::{base::counters::Counter, cx::Cx, sysctl::modes::RxDstMode};

/// The dst of one received packet.
#[derive(Debug, Default)]
pub(crate) enum PacketDst<'s> {
    /// None: nobody looked it up, or it was dropped. Every consumer copes with that.
    #[default]
    None,
    /// Without a reference.
    Noref(DstHandle<'s>),
    /// With one.
    Held(DstRef),
}

impl PacketDst<'_> {
    /// The reference that the packet brings along from where there was no read section, or from the sender over loopback.
    #[inline]
    pub(crate) fn taken_from(packet: &mut Packet) -> Self {
        match packet.take_dst().map(sync::AnyRef::downcast) {
            None => Self::None,
            Some(Ok(dst)) => Self::Held(dst),
            Some(Err(_)) => unreachable!("packets carry dst entries and nothing else"),
        }
    }

    /// The packet needs it no more.
    #[inline]
    pub(crate) fn release(self, cx: &Cx, rcu: &Section<'_>) {
        if let Self::Held(dst) = self {
            cx.count(Counter::DstPut, 1);
            dst.release(rcu);
        }
    }

    /// As [`release`](Self::release), where there is no read section.
    pub(crate) fn release_outside(self, cx: &Cx) {
        if let Self::Held(dst) = self {
            cx.count(Counter::DstPut, 1);
            drop(dst);
        }
    }
}

/// What [`leave_rcu`] did with a packet's dst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Left {
    /// The packet had none.
    #[default]
    Nothing,
    /// It had one without a reference, which the socket does not need.
    DroppedNoref,
    /// It gave its reference back, which the socket does not need.
    Released,
    /// A reference was taken, and goes with the packet.
    Forced,
    /// The reference that it had goes with the packet.
    Kept,
    /// The entry's count has reached zero meanwhile, so no reference can be taken: the packet goes without.
    Dead,
}

impl Left {
    /// Counts it, once the socket lock's closures have let the context go.
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

/// **The choke point**: `packet` is about to be queued where no read section reaches. Drops its dst if `socket_holds_dst`,
/// else takes a reference and lets it travel in the packet, where [`PacketDst::taken_from`] finds it.
///
/// `socket_holds_dst` is `RxDst::serves`: which also knows `rx_dst_mode`.
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

/// A packet's dst that is taken once: by the holder of the socket if the packet is processed now, by [`leave_rcu`] if it is
/// queued. Which of the two, only the socket lock knows.
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
    /// Whether a packet may leave its dst behind, for a socket that has `any`, or has one that is `valid` for it.
    #[inline]
    pub(crate) fn drops(self, any: bool, valid: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Force => false,
            Self::OptimisticDrop => any,
            Self::RcuClearThenRelease => any && valid(),
        }
    }
}
