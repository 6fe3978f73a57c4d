//! The fclone pair: a queued packet that knows whether the copy it last sent is still alive.
//!
//! Above: share.rs. Below: descriptor.rs. Linux: `SKB_ALLOC_FCLONE`, `skb_fclone_busy`.
//!
//! `pair` counts the original and at most one companion. Only the original's holder raises it (1 → 2, no
//! read-modify-write needed: at 1 nobody else knows of it); both lower it, and whoever comes to zero sends
//! the original's descriptor home. A descriptor whose packet has died before its companion is in limbo: its
//! body is dead, only `pair` is alive.
//!
//! Differs from Linux: the companion's memory is not reserved beside the original but comes from the
//! cloning core's own pool, where a recently used descriptor is warm; a queued packet costs one descriptor.
//!
//! Not here: the fate of a packet without a pair (descriptor.rs).

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use crate::packet::Packet;
use crate::packet::descriptor::{Descriptor, FreeDescriptor};
use crate::pool::Recycle;
use crate::shim::AtomicU32;

/// Role of a descriptor in an fclone pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// None: dies alone.
    Alone,
    /// Its next clone becomes its companion.
    Original,
    /// Was cloned from `origin`, which it tells when it dies.
    Companion,
}

impl Packet {
    /// Makes `companion`, a fresh clone in a descriptor of its own, the other half of this packet's pair.
    /// False when this packet has no pair or its companion still lives.
    pub(super) fn adopt_companion(&self, companion: &mut Self) -> bool {
        if self.body().kind != Kind::Original || companion.body().kind != Kind::Alone {
            return false;
        }
        let pair = self.pair();
        if pair.load(Ordering::Acquire) != 1 {
            return false;
        }
        // Relaxed: the companion is still ours; whoever hands it to another thread orders this store.
        pair.store(2, Ordering::Relaxed);
        let origin = self.raw();
        let body = companion.body_mut();
        body.kind = Kind::Companion;
        body.origin = Some(origin);
        true
    }

    /// True while the companion lives.
    pub(super) fn has_companion(&self) -> bool {
        self.body().kind == Kind::Original && self.pair().load(Ordering::Acquire) > 1
    }

    #[inline]
    fn pair(&self) -> &AtomicU32 {
        // SAFETY: the packet keeps its descriptor initialised; `pair` is only accessed atomically.
        unsafe { &(*self.raw().as_ptr()).pair }
    }
}

/// Gives one half of a pair back; the last half sends the original's descriptor home.
///
/// # Safety
///
/// The caller holds one half of the pair of `origin` and does not use it afterwards.
pub(super) unsafe fn release_pair(origin: NonNull<Descriptor>, recycle: &mut impl Recycle) {
    // SAFETY: the half keeps the descriptor away from its home, hence initialised; only `pair` is touched.
    let pair = unsafe { &(*origin.as_ptr()).pair };
    // At 1 the other half is gone for good, and Acquire made what it did visible: no need to write.
    if pair.load(Ordering::Acquire) == 1 || pair.fetch_sub(1, Ordering::AcqRel) == 1 {
        recycle.put_descriptor(FreeDescriptor(origin));
    }
}
