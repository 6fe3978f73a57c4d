//! The memory of an entry: a block in one of three layouts, and the positions of its parts.
//!
//! A block is accessed through the pointer to its header alone, so that a reference is one word and
//! independent of the layout; the header stores the positions of the other parts.
//!
//! Not here: access to a block, and the time at which it is freed (`counted`).

use core::any::TypeId;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::{self, NonNull};

use super::Parts;
use crate::epoch::Domain;
use crate::padded::Padded;
use crate::refcount::{Counting, RefCount, Shards};
use crate::shim;

/// Positions of the parts of an entry: see [`counted`](super).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Layout {
    /// The count shares its lines with data that is read for every packet: Linux up to 6.3.
    Packed,
    /// The count has its lines for itself.
    Padded,
    /// The count shares its lines with data that is rarely read: Linux since 6.4.
    #[default]
    Filled,
}

/// Initial parts of an entry.
#[derive(Debug)]
pub struct Entry<P: Parts> {
    /// Part that is read for every packet.
    pub head: P::Head,
    /// The other part that is read for every packet.
    pub tail: P::Tail,
    /// Part that is rarely read.
    pub cold: P::Cold,
    /// Part that readers write.
    pub stats: P::Stats,
}

/// First part of every block. Never written once the block is made.
pub(super) struct Header {
    /// Positions of the other parts, in bytes from the header.
    pub(super) count: u16,
    tail: u16,
    cold: u16,
    stats: u16,
    pub(super) counting: Counting,
    layout: Layout,
    /// Words of a sharded entry that was made with an owner.
    shards: Option<Box<Shards>>,
    /// Functions that depend on the block's type.
    pub(super) kind: &'static Kind,
    /// Epoch domain. Taken out when the block is retired: a domain that holds blocks that hold the
    /// domain would never be dropped.
    pub(super) domain: ManuallyDrop<Domain>,
}

pub(super) struct Kind {
    pub(super) parts: fn() -> TypeId,
    /// Function that retires the block to the domain in its header.
    ///
    /// Safety: the block is of this kind, its last reference is gone, and this is called once.
    pub(super) retire: unsafe fn(NonNull<Header>),
}

#[repr(C, align(128))]
struct Packed<P: Parts> {
    header: Header,
    head: P::Head,
    hot: Padded<Beside<P::Tail>>,
    cold: P::Cold,
    stats: Padded<P::Stats>,
}

#[repr(C, align(128))]
struct PaddedApart<P: Parts> {
    header: Header,
    head: P::Head,
    count: Padded<RefCount>,
    tail: Padded<P::Tail>,
    cold: P::Cold,
    stats: Padded<P::Stats>,
}

#[repr(C, align(128))]
struct Filled<P: Parts> {
    header: Header,
    head: P::Head,
    hot: Padded<Beside<P::Cold>>,
    tail: Padded<P::Tail>,
    stats: Padded<P::Stats>,
}

/// The count and the part that shares its lines.
#[repr(C)]
struct Beside<T> {
    count: RefCount,
    other: T,
}

/// Offsets of the parts in a block, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Part that is read for every packet.
    pub head: usize,
    /// The reference count.
    pub count: usize,
    /// The other part that is read for every packet.
    pub tail: usize,
    /// Part that is rarely read.
    pub cold: usize,
    /// Part that readers write.
    pub stats: usize,
    /// Size of the whole block.
    pub size: usize,
}

impl Offsets {
    /// Returns the positions of the parts of an entry of `P` in `layout`.
    #[must_use]
    pub const fn of<P: Parts>(layout: Layout) -> Self {
        match layout {
            Layout::Packed => Self {
                head: offset_of!(Packed<P>, head),
                count: offset_of!(Packed<P>, hot),
                tail: offset_of!(Packed<P>, hot) + offset_of!(Beside<P::Tail>, other),
                cold: offset_of!(Packed<P>, cold),
                stats: offset_of!(Packed<P>, stats),
                size: size_of::<Packed<P>>(),
            },
            Layout::Padded => Self {
                head: offset_of!(PaddedApart<P>, head),
                count: offset_of!(PaddedApart<P>, count),
                tail: offset_of!(PaddedApart<P>, tail),
                cold: offset_of!(PaddedApart<P>, cold),
                stats: offset_of!(PaddedApart<P>, stats),
                size: size_of::<PaddedApart<P>>(),
            },
            Layout::Filled => Self {
                head: offset_of!(Filled<P>, head),
                count: offset_of!(Filled<P>, hot),
                tail: offset_of!(Filled<P>, tail),
                cold: offset_of!(Filled<P>, hot) + offset_of!(Beside<P::Cold>, other),
                stats: offset_of!(Filled<P>, stats),
                size: size_of::<Filled<P>>(),
            },
        }
    }

    /// Returns whether `bytes` bytes at `offset` lie outside of the count's 128 bytes.
    #[must_use]
    pub const fn is_apart(&self, offset: usize, bytes: usize) -> bool {
        offset + bytes <= self.count || offset >= self.count + 128
    }
}

/// The block of a layout.
trait Block<P: Parts>: Sized + Send + 'static {
    const LAYOUT: Layout;
    const KIND: Kind = Kind { parts: TypeId::of::<P>, retire: retire::<P, Self> };

    fn build(header: Header, count: RefCount, entry: Entry<P>) -> Self;
}

impl<P: Parts> Block<P> for Packed<P> {
    const LAYOUT: Layout = Layout::Packed;

    fn build(header: Header, count: RefCount, entry: Entry<P>) -> Self {
        let Entry { head, tail, cold, stats } = entry;
        let hot = Padded::new(Beside { count, other: tail });
        Self { header, head, hot, cold, stats: Padded::new(stats) }
    }
}

impl<P: Parts> Block<P> for PaddedApart<P> {
    const LAYOUT: Layout = Layout::Padded;

    fn build(header: Header, count: RefCount, entry: Entry<P>) -> Self {
        let Entry { head, tail, cold, stats } = entry;
        let (count, tail) = (Padded::new(count), Padded::new(tail));
        Self { header, head, count, tail, cold, stats: Padded::new(stats) }
    }
}

impl<P: Parts> Block<P> for Filled<P> {
    const LAYOUT: Layout = Layout::Filled;

    fn build(header: Header, count: RefCount, entry: Entry<P>) -> Self {
        let Entry { head, tail, cold, stats } = entry;
        let hot = Padded::new(Beside { count, other: cold });
        Self { header, head, hot, tail: Padded::new(tail), stats: Padded::new(stats) }
    }
}

/// Makes an entry with one reference, and returns the start of its block. With `owned`, that
/// reference is an owner's.
pub(super) fn make<P: Parts>(
    domain: &Domain,
    layout: Layout,
    counting: Counting,
    owned: bool,
    entry: Entry<P>,
) -> NonNull<Header> {
    let shards = (owned && counting == Counting::Sharded).then(|| Box::new(Shards::new()));
    match layout {
        Layout::Packed => leak::<P, Packed<P>>(domain, counting, shards, entry),
        Layout::Padded => leak::<P, PaddedApart<P>>(domain, counting, shards, entry),
        Layout::Filled => leak::<P, Filled<P>>(domain, counting, shards, entry),
    }
}

fn leak<P: Parts, B: Block<P>>(
    domain: &Domain,
    counting: Counting,
    shards: Option<Box<Shards>>,
    entry: Entry<P>,
) -> NonNull<Header> {
    let count = match shards {
        Some(_) => RefCount::new_spread(),
        None => RefCount::new(counting),
    };
    let offsets = const { Offsets::of::<P>(B::LAYOUT) };
    let short = |offset: usize| u16::try_from(offset).expect("entries of some hundred bytes");
    let header = Header {
        count: short(offsets.count),
        tail: short(offsets.tail),
        cold: short(offsets.cold),
        stats: short(offsets.stats),
        counting,
        layout: B::LAYOUT,
        shards,
        kind: const { &B::KIND },
        domain: ManuallyDrop::new(domain.clone()),
    };
    let block = B::build(header, count, entry);
    NonNull::from(Box::leak(Box::new(block))).cast()
}

/// # Safety
/// `header` begins a leaked box of a `B` whose last reference is gone; this is called once.
unsafe fn retire<P: Parts, B: Block<P>>(header: NonNull<Header>) {
    // SAFETY: the block is alive until it is retired below. Its domain is moved out once, here:
    // only holders of references access it, and none is left.
    let domain =
        ManuallyDrop::into_inner(unsafe { ptr::read(&raw const (*header.as_ptr()).domain) });
    // SAFETY: a leaked box by the caller's promise. No thread can reach it anew: its count is dead,
    // and the slot that published it was cleared before the reference was put.
    unsafe { domain.retire_raw(header.cast::<B>()) };
}

/// An entry that is alive as long as `'a`.
pub(super) struct View<'a, P> {
    pub(super) header: NonNull<Header>,
    pub(super) alive: PhantomData<&'a Header>,
    pub(super) parts: PhantomData<fn() -> P>,
}

impl<P> Clone for View<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for View<'_, P> {}

impl<'a, P: Parts> View<'a, P> {
    #[inline]
    pub(super) fn header(self) -> &'a Header {
        // SAFETY: the block is alive as long as `'a`, and its header is never written.
        unsafe { self.header.as_ref() }
    }

    /// # Safety
    /// At `offset` of the block is a `T`.
    #[inline]
    unsafe fn part<T>(self, offset: u16) -> &'a T {
        // SAFETY: in bounds of the block, by the caller's promise. The pointer covers the whole
        // block, which is alive as long as `'a`; parts are never borrowed mutably.
        unsafe { self.header.byte_add(usize::from(offset)).cast().as_ref() }
    }

    #[inline]
    pub(super) fn head(self) -> &'a P::Head {
        const { assert!(offset_of!(Packed<P>, head) == offset_of!(Filled<P>, head)) };
        const { assert!(offset_of!(PaddedApart<P>, head) == offset_of!(Filled<P>, head)) };
        // SAFETY: the head has the same position in all layouts.
        let head = unsafe { self.header.byte_add(offset_of!(Filled<P>, head)) };
        // SAFETY: a `P::Head` of the block, as above.
        unsafe { head.cast().as_ref() }
    }

    #[inline]
    pub(super) fn tail(self) -> &'a P::Tail {
        // SAFETY: the header stores the position of the tail.
        unsafe { self.part(self.header().tail) }
    }

    pub(super) fn cold(self) -> &'a P::Cold {
        // SAFETY: the header stores the position of the cold part.
        unsafe { self.part(self.header().cold) }
    }

    #[inline]
    pub(super) fn stats(self) -> &'a P::Stats {
        // SAFETY: the header stores the position of the stats.
        unsafe { self.part(self.header().stats) }
    }

    pub(super) fn layout(self) -> Layout {
        self.header().layout
    }

    pub(super) fn refs(self) -> u32 {
        let header = self.header();
        match &header.shards {
            Some(shards) => self.count().refs_spread(shards.sum()),
            None => self.count().refs(header.counting),
        }
    }

    /// Counts all references in the central word from now on. The owner calls it once.
    pub(super) fn close_shards(self) {
        if let Some(shards) = &self.header().shards {
            self.count().gather(shards.close());
        }
    }

    #[inline]
    pub(super) fn count(self) -> &'a RefCount {
        // SAFETY: the header stores the position of the count.
        unsafe { self.part(self.header().count) }
    }

    #[inline]
    pub(super) fn try_get(self) -> bool {
        match self.header().counting {
            Counting::Sharded if self.header().count_get() => true,
            counting => self.count().try_get(counting),
        }
    }
}

impl Header {
    /// Takes a reference in the word of this thread; false if it must be taken centrally.
    #[inline(never)]
    fn count_get(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| shards.get(shim::thread_slot()))
    }

    /// Puts a reference in the word of this thread; false if it must be put centrally.
    #[inline(never)]
    pub(super) fn count_put(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| shards.put(shim::thread_slot()))
    }
}
