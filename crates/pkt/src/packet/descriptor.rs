//! The memory behind a `Packet`: its layout by cache line, initialization and freeing.
//!
//! Above: packet.rs. Below: pool.rs. Linux: `struct sk_buff`.
//!
//! A descriptor always has an owner: a `FreeDescriptor` (in a pool or being returned to its home),
//! a `Packet`, or, after its own packet was freed, the companion that was cloned from it.
//!
//! Not here: the meaning of the bytes (packet.rs, payload.rs), the lifetimes within a pair
//! (pair.rs).

use core::cell::Cell;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use sync::{AnyRef, Link, Linked, fetch_for_writing};

use crate::meta::PacketMeta;
use crate::packet::pair::{Kind, release_pair};
use crate::packet::{Packet, PacketOwner};
use crate::page::Slice;
use crate::pool::{HomeRef, Recycle};
use crate::shim::{AtomicU32, Track};

/// Bytes of a descriptor's own buffer, for headers and small payloads.
pub const HEAD_BYTES: usize = 256;
/// Page slices one packet can hold. 17 as Linux's `MAX_SKB_FRAGS`: a 64 KiB superframe in 4 KiB
/// pieces that does not start at a page boundary.
pub const FRAGS_MAX: usize = 17;
/// Bytes of a descriptor, which is the charge of a packet without page slices.
pub const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();

/// Memory of one packet, as drawn in the head of the crate.
#[repr(C, align(64))]
pub(crate) struct Descriptor {
    /// Link for lists; the first field, so that its address is the descriptor's.
    link: Link,
    /// Pool that the descriptor is returned to. Changes only while the descriptor is free, by its
    /// owner.
    pub(super) home: HomeRef,
    /// Live halves of the fclone pair, for `Kind::Original` only. Lowered with AcqRel: the
    /// remaining half sees all writes of the other.
    pub(super) pair: AtomicU32,
    /// Fields that only the owner accesses. They form a struct of their own, because the companion
    /// accesses `pair` of a descriptor whose body another thread holds by `&mut`.
    pub(crate) body: Body,
    pub(super) track: Track,
}

/// Fields that the holder of the packet reads and writes.
#[repr(C)]
pub(crate) struct Body {
    // First cache line, together with `link`, `home` and `pair`: all memory that alloc and free of
    // a small packet touch.
    /// Descriptor of the original of this companion. Only read for `Kind::Companion`.
    pub(super) origin: Option<NonNull<Descriptor>>,
    /// Position of the first linear byte in `head`.
    pub(crate) data: u16,
    /// Number of linear bytes. `data + linear_len <= HEAD_BYTES`.
    pub(crate) linear_len: u16,
    /// Number of `frags` in use, from the first on.
    pub(crate) frag_count: u8,
    /// Role in an fclone pair.
    pub(crate) kind: Kind,
    /// Whether another packet was made to share this one's slices.
    pub(crate) shared: Cell<bool>,
    /// Sum of the lengths of the frags in use.
    pub(crate) frag_bytes: u32,
    /// Bytes of memory charged for this packet.
    pub(crate) truesize: u32,
    /// `truesize` when the owner was set: the amount the owner gets back, independent of later
    /// changes.
    pub(crate) charged: u32,
    /// Size of the pieces whose sums lie in the head; zero if there are none (sums.rs).
    pub(crate) piece: u16,
    room: u16,
    /// Path (dst entry) the packet arrived by, referenced beyond the read section that found it.
    /// `None` whenever the descriptor is free.
    pub(crate) dst: Option<AnyRef>,

    // Second cache line: fields that the layers above read.
    /// Owner to notify when the packet is freed. `None` whenever the descriptor is free.
    pub(crate) owner: Option<Arc<dyn PacketOwner>>,
    pub(crate) meta: PacketMeta,
    meta_room: [u8; crate::meta::META_BYTES_MAX - size_of::<PacketMeta>()],

    // Third to sixth cache line.
    /// Buffer, initialized when the slab was made, so that it can always be lent as `&mut [u8]`.
    pub(crate) head: [u8; HEAD_BYTES],

    // Seventh cache line and later: only touched by packets with payload in pages.
    /// Page slices, of which the first `frag_count` are initialized.
    pub(crate) frags: [MaybeUninit<Slice>; FRAGS_MAX],
}

#[cfg(all(target_pointer_width = "64", not(loom)))]
mod layout {
    use super::{Body, Descriptor, offset_of};

    const fn line(offset: usize) -> usize {
        offset / 64
    }

    const _: () = assert!(offset_of!(Descriptor, link) == 0);
    const _: () = assert!(line(offset_of!(Descriptor, pair)) == 0);
    const _: () = assert!(line(offset_of!(Descriptor, body.truesize)) == 0);
    const _: () = assert!(line(offset_of!(Descriptor, body.charged)) == 0);
    const _: () = assert!(offset_of!(Descriptor, body.dst) == 56);
    const _: () = assert!(offset_of!(Descriptor, body.owner) == 64);
    const _: () = assert!(line(offset_of!(Descriptor, body.meta)) == 1);
    const _: () = assert!(offset_of!(Descriptor, body.head) == 128);
    const _: () = assert!(offset_of!(Descriptor, body.frags) == 384);
    const _: () = assert!(size_of::<super::Slice>() == 16);
    const _: () = assert!(size_of::<Body>() == 632);
    const _: () = assert!(size_of::<Descriptor>() == 704);
}

impl Descriptor {
    /// Returns the address of the descriptor's frags.
    #[inline]
    pub(crate) fn frags_of(descriptor: NonNull<Self>) -> *const u8 {
        descriptor.as_ptr().cast::<u8>().wrapping_add(offset_of!(Self, body.frags))
    }
}

/// A descriptor that holds no packet.
pub(crate) struct FreeDescriptor(pub(super) NonNull<Descriptor>);

// SAFETY: exclusive ownership of a descriptor whose body is unused; any thread may hold it.
unsafe impl Send for FreeDescriptor {}

// SAFETY: a packet is the only owner of its descriptor, which has a fixed address in its slab. The
// pointer covers the whole descriptor, of which `link` is the first field.
unsafe impl Linked for Packet {
    #[inline]
    fn into_link(self) -> NonNull<Link> {
        self.into_raw().cast()
    }

    #[inline]
    unsafe fn from_link(link: NonNull<Link>) -> Self {
        // SAFETY: the caller passes the link that `into_link` returned.
        unsafe { Self::from_raw(link.cast()) }
    }
}

impl FreeDescriptor {
    /// Initializes a descriptor in fresh memory.
    ///
    /// # Safety
    ///
    /// `memory` is valid, zeroed, exclusively the caller's, and stays allocated as "Lifetime" in
    /// pool.rs demands.
    pub(crate) unsafe fn init(memory: NonNull<Descriptor>, home: HomeRef) -> Self {
        let descriptor = memory.as_ptr();
        // SAFETY: in bounds of `memory`, which the caller owns. `head` and `frags` stay as they
        // are: zeroes are initialized bytes, and frags are `MaybeUninit`. Every other field is
        // written here.
        unsafe {
            (&raw mut (*descriptor).link).write(Link::new());
            (&raw mut (*descriptor).home).write(home);
            (&raw mut (*descriptor).pair).write(AtomicU32::new(0));
            (&raw mut (*descriptor).track).write(Track::new());
            (&raw mut (*descriptor).body.origin).write(None);
            (&raw mut (*descriptor).body.kind).write(Kind::Alone);
            (&raw mut (*descriptor).body.shared).write(Cell::new(false));
            (&raw mut (*descriptor).body.dst).write(None);
            (&raw mut (*descriptor).body.owner).write(None);
            (&raw mut (*descriptor).body.meta).write(PacketMeta::default());
        }
        Self(memory)
    }

    /// Takes the descriptor of a packet that holds nothing else: no slice, owner, path or
    /// companion.
    pub(crate) fn of(packet: Packet) -> Self {
        Self(packet.into_raw())
    }

    /// Starts a packet without bytes and with this `meta` whose data will start at `data`. Resets
    /// only the fields that an earlier use may have changed: two cache lines, never the head or the
    /// frags.
    #[inline(always)]
    pub(crate) fn start(self, data: u16, kind: Kind, meta: &PacketMeta) -> Packet {
        debug_assert!(usize::from(data) <= HEAD_BYTES);
        let descriptor = self.0.as_ptr();
        // SAFETY: a free descriptor is initialized and exclusively owned, and so is its body.
        let body = unsafe {
            (*descriptor).track.write();
            if kind == Kind::Original {
                // Relaxed: no other thread knows of the pair yet.
                (*descriptor).pair.store(1, Ordering::Relaxed);
            }
            &mut (*descriptor).body
        };
        debug_assert!(body.owner.is_none() && body.dst.is_none());
        body.data = data;
        body.linear_len = 0;
        body.frag_count = 0;
        body.kind = kind;
        body.shared.set(false);
        body.frag_bytes = 0;
        body.piece = 0;
        body.truesize = DESCRIPTOR_BYTES_U32;
        body.meta = *meta;
        // SAFETY: the body is valid for a packet, and `self` gives up the descriptor.
        unsafe { Packet::from_raw(self.0) }
    }

    /// Prefetches the lines that are written when a packet is built from shared slices: fields,
    /// headroom, first frag.
    #[inline]
    pub(crate) fn fetch(&self) {
        let descriptor = self.0.as_ptr().cast::<u8>();
        for line in 0..4 {
            fetch_for_writing(descriptor.wrapping_add(line * 64));
        }
        fetch_for_writing(Descriptor::frags_of(self.0));
    }

    /// Returns the pool the descriptor belongs to.
    #[inline]
    pub(crate) fn home(&self) -> HomeRef {
        // SAFETY: a free descriptor is initialized and exclusively owned.
        unsafe { (*self.0.as_ptr()).home }
    }

    /// Makes the descriptor belong to `home`.
    #[inline]
    pub(crate) fn set_home(&mut self, home: HomeRef) {
        // SAFETY: a free descriptor is exclusively owned: it holds no packet and no companion is
        // left, so no other thread reads the field.
        unsafe { (*self.0.as_ptr()).home = home };
    }

    /// Returns the descriptor's address.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Gives the descriptor up, and drops the objects of loom models in it.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        // SAFETY: initialized by `init`, exclusively owned by `self`, and never used again.
        unsafe {
            (&raw mut (*self.0.as_ptr()).link).drop_in_place();
            (&raw mut (*self.0.as_ptr()).pair).drop_in_place();
            (&raw mut (*self.0.as_ptr()).track).drop_in_place();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "704, see `layout`")]
const DESCRIPTOR_BYTES_U32: u32 = DESCRIPTOR_BYTES as u32;

/// Frees a packet: notifies its owner, releases its slices and, unless a companion still refers to
/// it, its descriptor.
#[inline(always)]
pub(crate) fn end(packet: Packet, recycle: &mut impl Recycle) {
    let descriptor = packet.into_raw();
    // SAFETY: `into_raw` returned everything the packet owned: body and descriptor.
    let (home, body) = unsafe {
        let pointer = descriptor.as_ptr();
        (*pointer).track.write();
        ((*pointer).home, &mut (*pointer).body)
    };
    recycle.count_packet(home);
    if body.frag_count == 0
        && body.kind == Kind::Alone
        && body.owner.is_none()
        && body.dst.is_none()
    {
        recycle.put_descriptor(FreeDescriptor(descriptor));
    } else {
        end_slow(descriptor, recycle);
    }
}

/// The rest of `end`, for packets with an owner, slices, a path or a pair.
#[inline(never)]
fn end_slow(descriptor: NonNull<Descriptor>, recycle: &mut impl Recycle) {
    // SAFETY: `end` owns the body and passes it on.
    let body = unsafe { &mut (*descriptor.as_ptr()).body };
    for frag in &mut body.frags[..usize::from(body.frag_count)] {
        // SAFETY: the first `frag_count` frags are initialized, and the count is reset after this
        // loop.
        recycle.put_slice(unsafe { frag.assume_init_read() });
    }
    body.frag_count = 0;
    drop(body.dst.take());
    // The owner's code is foreign and runs last, so that a panic in it leaks no more than this
    // descriptor.
    body.complete();
    match body.kind {
        Kind::Alone => recycle.put_descriptor(FreeDescriptor(descriptor)),
        // SAFETY: this is the only place that releases the original's half of the pair.
        Kind::Original => unsafe { release_pair(descriptor, recycle) },
        Kind::Companion => {
            let origin = body.origin.take();
            recycle.put_descriptor(FreeDescriptor(descriptor));
            if let Some(origin) = origin {
                // SAFETY: this is the only place that releases the companion's half; until then the
                // half keeps `origin` allocated.
                unsafe { release_pair(origin, recycle) }
            }
        }
    }
}

impl Body {
    #[inline]
    pub(crate) fn frags(&self) -> &[Slice] {
        let used = &self.frags[..usize::from(self.frag_count)];
        // SAFETY: the first `frag_count` frags are initialized.
        unsafe { used.assume_init_ref() }
    }

    #[inline]
    pub(crate) fn frags_mut(&mut self) -> &mut [Slice] {
        let used = &mut self.frags[..usize::from(self.frag_count)];
        // SAFETY: the first `frag_count` frags are initialized.
        unsafe { used.assume_init_mut() }
    }

    /// Returns the head for writing and the frags for reading.
    #[inline]
    pub(crate) fn head_and_frags(&mut self) -> (&mut [u8; HEAD_BYTES], &[Slice]) {
        let used = &self.frags[..usize::from(self.frag_count)];
        // SAFETY: the first `frag_count` frags are initialized.
        (&mut self.head, unsafe { used.assume_init_ref() })
    }

    /// Adds a slice at the end; the caller has checked that there is room. Returns the slice's
    /// length.
    #[inline]
    pub(crate) fn push_frag(&mut self, slice: Slice) -> u32 {
        let len = slice.len_u32();
        self.frags[usize::from(self.frag_count)].write(slice);
        self.frag_count += 1;
        self.frag_bytes += len;
        self.piece = 0;
        len
    }

    /// Adds `slice` at the end: as part of the last slice if it follows that one, otherwise as a
    /// new frag if there is room. Returns its length, or gives it back.
    #[inline]
    pub(crate) fn join_frag(&mut self, slice: Slice) -> Result<u32, Slice> {
        let joined = match self.frags_mut().last_mut() {
            Some(last) => last.cover(slice),
            None => Err(slice),
        };
        match joined {
            Ok(len) => {
                self.frag_bytes += len;
                self.piece = 0;
                Ok(len)
            }
            Err(slice) if usize::from(self.frag_count) == FRAGS_MAX => Err(slice),
            Err(slice) => Ok(self.push_frag(slice)),
        }
    }

    /// Extends the last slice over the only slice of `other`, if that one follows it. Otherwise
    /// returns false and does nothing.
    #[inline]
    pub(crate) fn cover_only_frag_of(&mut self, other: &mut Self) -> bool {
        let (Some(last), 1) = (self.frags_mut().last_mut(), other.frag_count) else { return false };
        // SAFETY: there is one frag, so the first is initialized. If it is joined, the count
        // becomes zero below and the original is never read again. Otherwise the copy is forgotten,
        // because a slice has no destructor, and the original stays.
        let Ok(len) = last.cover(unsafe { other.frags[0].assume_init_read() }) else {
            return false;
        };
        other.frag_count = 0;
        other.frag_bytes = 0;
        other.piece = 0;
        self.frag_bytes += len;
        self.truesize += len;
        self.piece = 0;
        true
    }

    /// Lets `extend` make the last slice longer, and returns the number of bytes added.
    #[inline]
    pub(crate) fn extend_last_frag(&mut self, extend: impl FnOnce(&mut Slice) -> u32) -> u32 {
        let len = self.frags_mut().last_mut().map_or(0, extend);
        self.frag_bytes += len;
        self.piece = 0;
        len
    }

    /// Lets `cut` shorten slice number `index`; it returns the number of bytes dropped.
    pub(crate) fn cut_frag(&mut self, index: usize, cut: impl FnOnce(&mut Slice) -> u32) {
        self.frag_bytes -= cut(&mut self.frags_mut()[index]);
        self.piece = 0;
    }

    /// Removes the slices from number `first` on and passes them to `take`, in order.
    pub(crate) fn take_frags(&mut self, first: usize, mut take: impl FnMut(Slice)) {
        let taken = first..usize::from(self.frag_count);
        assert!(first <= taken.end);
        // From here on the removed frags do not count as initialized, so a panic in `take` can only
        // leak.
        self.frag_count = frag_count(first);
        self.piece = 0;
        for frag in &mut self.frags[taken] {
            // SAFETY: initialized, and not read again before it is overwritten.
            let slice = unsafe { frag.assume_init_read() };
            self.frag_bytes -= slice.len_u32();
            take(slice);
        }
    }

    /// Removes the first `count` slices and passes them to `take`; the others move up.
    pub(crate) fn remove_frags(&mut self, count: usize, mut take: impl FnMut(Slice)) {
        let used = usize::from(self.frag_count);
        assert!(count <= used);
        // From here on no frag counts as initialized, so a panic in `take` can only leak.
        self.frag_count = 0;
        self.piece = 0;
        for frag in &mut self.frags[..count] {
            // SAFETY: initialized, and not read again before it is overwritten.
            let slice = unsafe { frag.assume_init_read() };
            self.frag_bytes -= slice.len_u32();
            take(slice);
        }
        let frags = self.frags.as_mut_ptr();
        // SAFETY: `count..used` and `0..used - count` lie inside the array. Moving the bytes of
        // `MaybeUninit` moves the slices in them.
        unsafe { core::ptr::copy(frags.add(count), frags, used - count) };
        self.frag_count = frag_count(used - count);
    }

    /// Notifies the owner, if there is one, and returns its charge to it.
    pub(crate) fn complete(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.on_complete(self.charged);
        }
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most FRAGS_MAX")]
fn frag_count(count: usize) -> u8 {
    debug_assert!(count <= FRAGS_MAX);
    count as u8
}
