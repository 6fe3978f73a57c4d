//! The fclone pair: a queued packet that knows whether the copy it last sent is still alive.
//!
//! Above: share.rs. Below: descriptor.rs. Linux: `SKB_ALLOC_FCLONE`, `skb_fclone_busy`.
//!
//! `pair` counts the original and at most one companion. Only the original's holder raises it (1 → 2, no
//! read-modify-write needed: at 1 nobody else knows of it); both lower it, and whoever comes to zero sends
//! the original's descriptor home. A descriptor whose packet has died before its companion is in limbo: its
//! body is dead, only `pair` is alive.
//!
//! A companion that has left the host may give its half back early ([`Packet::orphan`], [`CloneMark`]) and lives on alone:
//! the original is asked whether its last copy is still on its way out, not whether a peer has read it.
//!
//! Differs from Linux: the companion's memory is not reserved beside the original but comes from the
//! cloning core's own pool, where a recently used descriptor is warm; a queued packet costs one descriptor.
//!
//! Not here: the fate of a packet without a pair (descriptor.rs).

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use crate::packet::Packet;
use crate::packet::descriptor::{Descriptor, FreeDescriptor};
use crate::pool::{Elsewhere, Recycle};
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

    /// Ends the clone's part in its pair without ending the clone: the original is busy until the mark is dropped. For a
    /// device that completes later than it hands the packet on; `None` when there is no original to tell.
    #[must_use = "dropping it says that the packet has left"]
    pub fn take_clone_mark(&mut self) -> Option<CloneMark> {
        let body = self.body_mut();
        if body.kind != Kind::Companion {
            return None;
        }
        // From here on this packet dies alone: `end` gives no half back.
        body.kind = Kind::Alone;
        body.origin.take().map(CloneMark)
    }

    /// True while the companion lives, and has not left.
    pub(super) fn has_companion(&self) -> bool {
        self.body().kind == Kind::Original && self.pair().load(Ordering::Acquire) > 1
    }

    #[inline]
    fn pair(&self) -> &AtomicU32 {
        // SAFETY: the packet keeps its descriptor initialised; `pair` is only accessed atomically.
        unsafe { &(*self.raw().as_ptr()).pair }
    }
}

/// A clone's half of its pair, apart from the clone. Dropping it gives the half back.
#[derive(Debug)]
pub struct CloneMark(NonNull<Descriptor>);

// SAFETY: all that is done with the pointer is to give a half back, which touches `pair` alone, by atomics, and hands a
// free descriptor home as any thread may.
unsafe impl Send for CloneMark {}

// SAFETY: nothing can be done with a shared mark.
unsafe impl Sync for CloneMark {}

impl Drop for CloneMark {
    fn drop(&mut self) {
        // SAFETY: the mark was made of the half that its clone held and has forgotten, and is gone after this.
        unsafe { release_pair(self.0, &mut Elsewhere) }
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
