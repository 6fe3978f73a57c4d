//! The fclone pair: a queued packet that can tell whether its last clone is still in transmission.
//!
//! Above: share.rs. Below: descriptor.rs. Linux: `SKB_ALLOC_FCLONE`, `skb_fclone_busy`.
//!
//! `pair` counts the original and at most one companion. Only the holder of the original raises it,
//! from 1 to 2, which needs no read-modify-write: at 1 no other thread refers to it. Both lower it,
//! and the half that reaches zero returns the original's descriptor to its home. If the original is
//! freed before its companion, the body of its descriptor is unused and only `pair` is accessed.
//!
//! A companion that has left the host may release its half early ([`Packet::orphan`],
//! [`CloneMark`]) and continues as a separate packet. The pair answers whether the original's last
//! copy is still to be sent, not whether a peer has read it.
//!
//! Differs from Linux: the companion's memory is not reserved beside the original but comes from
//! the pool of the core that clones, because a recently used descriptor there is in the cache. A
//! queued packet costs one descriptor.
//!
//! Not here: the freeing of a packet without a pair (descriptor.rs).

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use crate::packet::Packet;
use crate::packet::descriptor::{Descriptor, FreeDescriptor};
use crate::pool::{NoPool, Recycle};
use crate::shim::AtomicU32;

/// Role of a descriptor in an fclone pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// No pair.
    Alone,
    /// Its next clone becomes its companion.
    Original,
    /// Clone of `origin`, whose pair it leaves when it is freed.
    Companion,
}

impl Packet {
    /// Makes `companion`, a fresh clone in a descriptor of its own, the other half of this packet's
    /// pair. Returns false if this packet has no pair or its companion is still alive.
    pub(super) fn adopt_companion(&self, companion: &mut Self) -> bool {
        if self.body().kind != Kind::Original || companion.body().kind != Kind::Alone {
            return false;
        }
        let pair = self.pair();
        if pair.load(Ordering::Acquire) != 1 {
            return false;
        }
        // Relaxed: `companion` is still owned here; passing it to another thread orders this store.
        pair.store(2, Ordering::Relaxed);
        let origin = self.raw();
        let body = companion.body_mut();
        body.kind = Kind::Companion;
        body.origin = Some(origin);
        true
    }

    /// Takes the clone's half out of the clone: the original stays busy until the mark is dropped.
    /// For a device that hands the packet on before it completes the transmission. `None` if there
    /// is no original.
    #[must_use = "dropping it marks the packet as sent"]
    pub fn take_clone_mark(&mut self) -> Option<CloneMark> {
        let body = self.body_mut();
        if body.kind != Kind::Companion {
            return None;
        }
        // From here on this packet has no pair: `end` releases no half.
        body.kind = Kind::Alone;
        body.origin.take().map(CloneMark)
    }

    /// Returns true while the companion is alive and has not left.
    pub(super) fn has_companion(&self) -> bool {
        self.body().kind == Kind::Original && self.pair().load(Ordering::Acquire) > 1
    }

    #[inline]
    fn pair(&self) -> &AtomicU32 {
        // SAFETY: the packet keeps its descriptor initialized; `pair` is only accessed atomically.
        unsafe { &(*self.raw().as_ptr()).pair }
    }
}

/// The half of a pair that belonged to a clone, separate from the clone. Dropping it releases the
/// half.
#[derive(Debug)]
pub struct CloneMark(NonNull<Descriptor>);

// SAFETY: the pointer is only used to release a half, which accesses `pair` alone, by atomics, and
// returns a free descriptor to its home, as any thread may.
unsafe impl Send for CloneMark {}

// SAFETY: a shared mark has no operation.
unsafe impl Sync for CloneMark {}

impl Drop for CloneMark {
    fn drop(&mut self) {
        // SAFETY: the mark owns the half that its clone gave up, and is not used after this.
        unsafe { release_pair(self.0, &mut NoPool) }
    }
}

/// Releases one half of a pair; the last half returns the original's descriptor to its home.
///
/// # Safety
///
/// The caller holds one half of the pair of `origin` and does not use it afterwards.
pub(super) unsafe fn release_pair(origin: NonNull<Descriptor>, recycle: &mut impl Recycle) {
    // SAFETY: the half keeps the descriptor from being returned, hence initialized; only `pair` is
    // accessed.
    let pair = unsafe { &(*origin.as_ptr()).pair };
    // At 1 the other half has been released for good, and Acquire makes its writes visible: no
    // write is needed.
    if pair.load(Ordering::Acquire) == 1 || pair.fetch_sub(1, Ordering::AcqRel) == 1 {
        recycle.put_descriptor(FreeDescriptor(origin));
    }
}
