//! The memory behind a `Packet`: layout by cache line, birth and death.
//!
//! Above: packet.rs. Below: pool.rs. Linux: `struct sk_buff`.
//!
//! A descriptor is never without an owner: a `FreeDescriptor` (in a pool or on its way home), a `Packet`,
//! or, in limbo, the packet that was cloned from it and has outlived it.
//!
//! Not here: what the bytes mean (packet.rs, payload.rs), who outlives whom (pair.rs).

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

/// Bytes of a descriptor's own buffer: headers and small payloads.
pub const HEAD_BYTES: usize = 256;
/// Most page slices one packet holds. 17 as Linux's `MAX_SKB_FRAGS`: a 64 KiB superframe in 4 KiB pieces
/// that does not start at a page boundary.
pub const FRAGS_MAX: usize = 17;
/// Bytes of a descriptor, which is what a packet without page slices is charged.
pub const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();

/// See the picture in the crate's head.
#[repr(C, align(64))]
pub(crate) struct Descriptor {
    /// Holds the descriptor in lists; first, so that its address is the descriptor's.
    link: Link,
    /// Where the descriptor returns to. Changes only while it is free, by its owner.
    pub(super) home: HomeRef,
    /// Live halves of the fclone pair, for `Kind::Original` only. Lowered with AcqRel: the half that stays
    /// sees all the other did.
    pub(super) pair: AtomicU32,
    /// Everything only the owner touches. A separate place, because the companion reaches `pair` of a
    /// descriptor whose body somebody else holds by `&mut`.
    pub(crate) body: Body,
    pub(super) track: Track,
}

/// What a packet's holder reads and writes.
#[repr(C)]
pub(crate) struct Body {
    // First cache line, with `link`, `home` and `pair`: all that alloc and free of a small packet touch.
    /// The descriptor this packet is the companion of. Only read for `Kind::Companion`.
    pub(super) origin: Option<NonNull<Descriptor>>,
    /// Where the linear bytes start in `head`.
    pub(crate) data: u16,
    /// How many linear bytes there are. `data + linear_len <= HEAD_BYTES`.
    pub(crate) linear_len: u16,
    /// How many of `frags` are in use, from the first.
    pub(crate) frag_count: u8,
    /// Role in an fclone pair.
    pub(crate) kind: Kind,
    /// Another packet was made to share this one's slices.
    pub(crate) shared: Cell<bool>,
    /// Sum of the lengths of the frags in use.
    pub(crate) frag_bytes: u32,
    /// Bytes of memory this packet stands for.
    pub(crate) truesize: u32,
    /// `truesize` when the owner was set: what the owner gets back, whatever happened since.
    pub(crate) charged: u32,
    /// Bytes of the pieces whose sums lie in the head; zero when there are none (sums.rs).
    pub(crate) piece: u16,
    room: u16,
    /// The path the packet came by, held beyond the read section that found it. `None` whenever the descriptor is free.
    pub(crate) dst: Option<AnyRef>,

    // Second cache line: what layers above look at.
    /// Told when the packet dies. `None` whenever the descriptor is free.
    pub(crate) owner: Option<Arc<dyn PacketOwner>>,
    pub(crate) meta: PacketMeta,
    meta_room: [u8; crate::meta::META_BYTES_MAX - size_of::<PacketMeta>()],

    // Third to sixth cache line.
    /// Initialised when the slab was made, so it can always be lent as `&mut [u8]`.
    pub(crate) head: [u8; HEAD_BYTES],

    // Seventh cache line and on: only touched by packets with payload in pages.
    /// The first `frag_count` are initialised.
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
    /// Where its frags lie.
    #[inline]
    pub(crate) fn frags_of(descriptor: NonNull<Self>) -> *const u8 {
        descriptor.as_ptr().cast::<u8>().wrapping_add(offset_of!(Self, body.frags))
    }
}

/// A descriptor without a packet in it.
pub(crate) struct FreeDescriptor(pub(super) NonNull<Descriptor>);

// SAFETY: exclusive ownership of a descriptor whose body is dead; which thread holds it does not matter.
unsafe impl Send for FreeDescriptor {}

// SAFETY: a packet is the only owner of its descriptor, which has a fixed address in its slab; the pointer
// is the one to the whole descriptor, of which `link` is the first field.
unsafe impl Linked for Packet {
    #[inline]
    fn into_link(self) -> NonNull<Link> {
        self.into_raw().cast()
    }

    #[inline]
    unsafe fn from_link(link: NonNull<Link>) -> Self {
        // SAFETY: the caller hands over what `into_link` gave up.
        unsafe { Self::from_raw(link.cast()) }
    }
}

impl FreeDescriptor {
    /// Initialises a descriptor in fresh memory.
    ///
    /// # Safety
    ///
    /// `memory` is valid, zeroed, exclusively the caller's, and stays allocated as "Lifetime" in pool.rs
    /// demands.
    pub(crate) unsafe fn init(memory: NonNull<Descriptor>, home: HomeRef) -> Self {
        let descriptor = memory.as_ptr();
        // SAFETY: in bounds of `memory`, which is ours. `head` and `frags` stay as they are: zeroes are
        // initialised bytes, and frags are `MaybeUninit`. Every other field is written here.
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

    /// The descriptor of a packet that holds nothing else any more: no slice, owner, path or companion.
    pub(crate) fn of(packet: Packet) -> Self {
        Self(packet.into_raw())
    }

    /// A packet without bytes and with this `meta` whose data will start at `data`. Resets what an earlier life may have left
    /// and nothing else: two cache lines, never the head or the frags.
    #[inline(always)]
    pub(crate) fn start(self, data: u16, kind: Kind, meta: &PacketMeta) -> Packet {
        debug_assert!(usize::from(data) <= HEAD_BYTES);
        let descriptor = self.0.as_ptr();
        // SAFETY: a free descriptor is initialised and exclusively ours, and so is its body.
        let body = unsafe {
            (*descriptor).track.write();
            if kind == Kind::Original {
                // Relaxed: nobody else knows of the pair yet.
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
        // SAFETY: the body is valid for a packet, and `self` gave up the descriptor.
        unsafe { Packet::from_raw(self.0) }
    }

    /// Begins to fetch the lines that a packet which is put together by reference writes: fields, headroom, first frag.
    #[inline]
    pub(crate) fn fetch(&self) {
        let descriptor = self.0.as_ptr().cast::<u8>();
        for line in 0..4 {
            fetch_for_writing(descriptor.wrapping_add(line * 64));
        }
        fetch_for_writing(Descriptor::frags_of(self.0));
    }

    /// Where the descriptor belongs.
    #[inline]
    pub(crate) fn home(&self) -> HomeRef {
        // SAFETY: a free descriptor is initialised and exclusively ours.
        unsafe { (*self.0.as_ptr()).home }
    }

    /// From now on it belongs to `home`.
    #[inline]
    pub(crate) fn set_home(&mut self, home: HomeRef) {
        // SAFETY: a free descriptor is exclusively ours: no packet is in it, and no companion is left, so nobody else
        // reads the field.
        unsafe { (*self.0.as_ptr()).home = home };
    }

    /// Where it is.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Gives the descriptor up, with what loom models put into it.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        // SAFETY: initialised by `init`, exclusively ours, and never used again.
        unsafe {
            (&raw mut (*self.0.as_ptr()).link).drop_in_place();
            (&raw mut (*self.0.as_ptr()).pair).drop_in_place();
            (&raw mut (*self.0.as_ptr()).track).drop_in_place();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "704, see `layout`")]
const DESCRIPTOR_BYTES_U32: u32 = DESCRIPTOR_BYTES as u32;

/// Ends a packet: tells its owner, gives its slices back and, unless a companion still needs it, its
/// descriptor.
#[inline(always)]
pub(crate) fn end(packet: Packet, recycle: &mut impl Recycle) {
    let descriptor = packet.into_raw();
    // SAFETY: `into_raw` gave us what the packet owned: body and descriptor.
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
        // SAFETY: the first `frag_count` frags are initialised, and the count is dead after this loop.
        recycle.put_slice(unsafe { frag.assume_init_read() });
    }
    body.frag_count = 0;
    drop(body.dst.take());
    // Foreign code, run last so that a panic in it costs no more than this descriptor.
    body.complete();
    match body.kind {
        Kind::Alone => recycle.put_descriptor(FreeDescriptor(descriptor)),
        // SAFETY: the original's half of the pair is given back exactly here.
        Kind::Original => unsafe { release_pair(descriptor, recycle) },
        Kind::Companion => {
            let origin = body.origin.take();
            recycle.put_descriptor(FreeDescriptor(descriptor));
            if let Some(origin) = origin {
                // SAFETY: the companion's half is given back exactly here; until then `origin` is kept
                // allocated by it.
                unsafe { release_pair(origin, recycle) }
            }
        }
    }
}

impl Body {
    #[inline]
    pub(crate) fn frags(&self) -> &[Slice] {
        let used = &self.frags[..usize::from(self.frag_count)];
        // SAFETY: the first `frag_count` frags are initialised.
        unsafe { used.assume_init_ref() }
    }

    #[inline]
    pub(crate) fn frags_mut(&mut self) -> &mut [Slice] {
        let used = &mut self.frags[..usize::from(self.frag_count)];
        // SAFETY: the first `frag_count` frags are initialised.
        unsafe { used.assume_init_mut() }
    }

    /// The head to be written while the frags are read.
    #[inline]
    pub(crate) fn head_and_frags(&mut self) -> (&mut [u8; HEAD_BYTES], &[Slice]) {
        let used = &self.frags[..usize::from(self.frag_count)];
        // SAFETY: the first `frag_count` frags are initialised.
        (&mut self.head, unsafe { used.assume_init_ref() })
    }

    /// Adds a slice behind the others; the caller has made sure that there is room. Returns its length.
    #[inline]
    pub(crate) fn push_frag(&mut self, slice: Slice) -> u32 {
        let len = slice.len_u32();
        self.frags[usize::from(self.frag_count)].write(slice);
        self.frag_count += 1;
        self.frag_bytes += len;
        self.piece = 0;
        len
    }

    /// Adds `slice` behind the others: as part of the last one where it follows it, else if there is room. Returns its length,
    /// or gives it back.
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

    /// Lets the last slice cover the only one of `other`, if that follows it. False, and nothing done, if not.
    #[inline]
    pub(crate) fn cover_only_frag_of(&mut self, other: &mut Self) -> bool {
        let (Some(last), 1) = (self.frags_mut().last_mut(), other.frag_count) else { return false };
        // SAFETY: there is one frag, hence the first is initialised. Joined, the count goes to zero below and the original is
        // never read again; else what was read is forgotten, for a slice has no destructor, and the original stays.
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

    /// Lets `extend` make the last slice longer and returns by how much.
    #[inline]
    pub(crate) fn extend_last_frag(&mut self, extend: impl FnOnce(&mut Slice) -> u32) -> u32 {
        let len = self.frags_mut().last_mut().map_or(0, extend);
        self.frag_bytes += len;
        self.piece = 0;
        len
    }

    /// Lets `cut` make slice number `index` shorter, by the number of bytes it returns.
    pub(crate) fn cut_frag(&mut self, index: usize, cut: impl FnOnce(&mut Slice) -> u32) {
        self.frag_bytes -= cut(&mut self.frags_mut()[index]);
        self.piece = 0;
    }

    /// Takes the slices from number `first` on away, in order.
    pub(crate) fn take_frags(&mut self, first: usize, mut take: impl FnMut(Slice)) {
        let taken = first..usize::from(self.frag_count);
        assert!(first <= taken.end);
        // From here on the taken frags do not count as initialised, so a panic in `take` leaks at worst.
        self.frag_count = frag_count(first);
        self.piece = 0;
        for frag in &mut self.frags[taken] {
            // SAFETY: initialised, and not read again before it is overwritten.
            let slice = unsafe { frag.assume_init_read() };
            self.frag_bytes -= slice.len_u32();
            take(slice);
        }
    }

    /// Takes the first `count` slices away; the others move up.
    pub(crate) fn remove_frags(&mut self, count: usize, mut take: impl FnMut(Slice)) {
        let used = usize::from(self.frag_count);
        assert!(count <= used);
        // From here on no frag counts as initialised, so a panic in `take` leaks and does no harm.
        self.frag_count = 0;
        self.piece = 0;
        for frag in &mut self.frags[..count] {
            // SAFETY: initialised, and not read again before it is overwritten.
            let slice = unsafe { frag.assume_init_read() };
            self.frag_bytes -= slice.len_u32();
            take(slice);
        }
        let frags = self.frags.as_mut_ptr();
        // SAFETY: `count..used` and `0..used - count` lie inside the array. Moving bytes of `MaybeUninit` is
        // moving the slices in them.
        unsafe { core::ptr::copy(frags.add(count), frags, used - count) };
        self.frag_count = frag_count(used - count);
    }

    /// Tells the owner, if there is one, that it gets back what it was charged.
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
