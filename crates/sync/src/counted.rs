//! Counted entries: objects found in a read section without a reference, and held with one beyond it.
//!
//! Below: [`crate::refcount`], [`crate::epoch`]. Above: the dst entries of `stack`. Linux: `struct dst_entry`, `dst_hold_safe`,
//! `dst_release`, `sk_rx_dst`.
//!
//! An entry has parts by who touches them, and its [`Layout`] says which of them may share lines with the count. A block is
//! aligned to 128 bytes and so is every line group below, because prefetchers move lines in pairs.
//!
//! ```text
//!            0                    128·k                              following groups
//!   packed   │ header │ head      │ count │ tail                     │ cold │ stats
//!   padded   │ header │ head      │ count │ nothing                  │ tail │ cold │ stats
//!   filled   │ header │ head      │ count │ cold                     │ tail │ stats
//! ```
//!
//! - **head** and **tail** are read for every packet and never written. Packed is the historic accident: whoever reads
//!   `tail` fetches a line that every get and put of another core has taken away.
//! - **cold** is read when an entry is made, listed or freed. Filled puts it into the gap, so isolation costs no memory.
//! - **stats** are written now and then by readers, hence apart from all.
//!
//! Three handles, by what they may do:
//!
//! | | may leave the read section | costs |
//! |---|---|---|
//! | [`Handle`] | no: it borrows the section | nothing |
//! | [`Ref`] | yes | one get, one put |
//! | [`AnyRef`] | yes: a `Ref` without its type, for packets | the same |
//!
//! An entry dies in two steps: the last put retires it to the epoch domain, and the grace period frees it. So a `Handle` may
//! be of an entry without references; [`Handle::try_get`] finds that out. A [`Slot`] publishes an entry to readers: it is
//! **cleared before its reference is put**, or a reader could find an entry whose grace period is over.
//!
//! Not here: what the parts hold, whether an entry is still valid.

use core::any::TypeId;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, offset_of};
use core::ops::Deref;
use core::ptr::{self, NonNull};

use crate::epoch::{Domain, Section};
use crate::padded::Padded;
use crate::refcount::{Counting, Put, RefCount};
use crate::shim::{AtomicPtr, Ordering};

pub use slot::Slot;

mod slot;
#[cfg(test)]
mod tests;

/// What an entry is made of.
pub trait Parts: 'static + Sized {
    /// Read for every packet.
    type Head: Send + Sync + 'static;
    /// Read for every packet, and in the packed layout beside the count.
    type Tail: Send + Sync + 'static;
    /// Hardly ever read.
    type Cold: Send + Sync + 'static;
    /// Written by readers.
    type Stats: Send + Sync + 'static;
}

/// Where the parts of an entry lie: see the module head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Layout {
    /// The count shares its lines with what is read for every packet: Linux up to 6.3.
    Packed,
    /// The count has its lines for itself.
    Padded,
    /// The count shares its lines with what nobody reads: Linux since 6.4.
    #[default]
    Filled,
}

/// What every block begins with. Never written once the block is made.
struct Header {
    /// Where the other parts are, in bytes from here.
    count: u16,
    tail: u16,
    cold: u16,
    stats: u16,
    counting: Counting,
    layout: Layout,
    /// What of a block depends on its type.
    kind: &'static Kind,
    /// Taken out when the block is retired: a domain that holds blocks that hold the domain would never end.
    domain: ManuallyDrop<Domain>,
}

struct Kind {
    parts: fn() -> TypeId,
    /// Retires the block to the domain in its header.
    ///
    /// Safety: the block is of this kind, its last reference is gone, and this is called once.
    retire: unsafe fn(NonNull<Header>),
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

/// The count and what shares its lines.
#[repr(C)]
struct Beside<T> {
    count: RefCount,
    other: T,
}

/// Offsets of the parts in a block, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// What is read for every packet.
    pub head: usize,
    /// The count of references.
    pub count: usize,
    /// What else is read for every packet.
    pub tail: usize,
    /// What is hardly ever read.
    pub cold: usize,
    /// What readers write.
    pub stats: usize,
    /// The whole block.
    pub size: usize,
}

impl Offsets {
    /// Where the parts of an entry of `P` lie in `layout`.
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

    /// Whether `bytes` bytes at `offset` lie outside of the count's 128 bytes.
    #[must_use]
    pub const fn is_apart(&self, offset: usize, bytes: usize) -> bool {
        offset + bytes <= self.count || offset >= self.count + 128
    }
}

/// A layout's block: the one type parameter.
trait Block<P: Parts>: Sized + Send + 'static {
    const LAYOUT: Layout;
    const KIND: Kind = Kind { parts: TypeId::of::<P>, retire: retire::<P, Self> };

    fn build(header: Header, count: RefCount, entry: Entry<P>) -> Self;
}

/// What an entry is made from.
#[derive(Debug)]
pub struct Entry<P: Parts> {
    /// Read for every packet.
    pub head: P::Head,
    /// Read for every packet.
    pub tail: P::Tail,
    /// Hardly ever read.
    pub cold: P::Cold,
    /// Written by readers.
    pub stats: P::Stats,
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

/// # Safety
/// `header` begins a leaked box of a `B` whose last reference is gone; this is called once.
unsafe fn retire<P: Parts, B: Block<P>>(header: NonNull<Header>) {
    // SAFETY: the block is alive until it is retired below. Its domain is moved out once, here: only holders of references
    // look at it, and there are none any more.
    let domain =
        ManuallyDrop::into_inner(unsafe { ptr::read(&raw const (*header.as_ptr()).domain) });
    // SAFETY: a leaked box by the caller. Nobody can reach it anew: its count is dead, and whoever published it cleared
    // the place before the reference was put.
    unsafe { domain.retire_raw(header.cast::<B>()) };
}

fn leak<P: Parts, B: Block<P>>(
    domain: &Domain,
    counting: Counting,
    entry: Entry<P>,
) -> NonNull<Header> {
    let offsets = const { Offsets::of::<P>(B::LAYOUT) };
    let short = |offset: usize| u16::try_from(offset).expect("entries of some hundred bytes");
    let header = Header {
        count: short(offsets.count),
        tail: short(offsets.tail),
        cold: short(offsets.cold),
        stats: short(offsets.stats),
        counting,
        layout: B::LAYOUT,
        kind: const { &B::KIND },
        domain: ManuallyDrop::new(domain.clone()),
    };
    let block = B::build(header, RefCount::new(counting), entry);
    NonNull::from(Box::leak(Box::new(block))).cast()
}

/// An entry that is alive as long as `'a`.
struct View<'a, P> {
    header: NonNull<Header>,
    alive: PhantomData<&'a Header>,
    parts: PhantomData<fn() -> P>,
}

impl<P> Clone for View<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for View<'_, P> {}

impl<'a, P: Parts> View<'a, P> {
    #[inline]
    fn header(self) -> &'a Header {
        // SAFETY: the block is alive as long as `'a`, and its header is never written.
        unsafe { self.header.as_ref() }
    }

    /// # Safety
    /// At `offset` of the block is a `T`.
    #[inline]
    unsafe fn part<T>(self, offset: u16) -> &'a T {
        // SAFETY: in bounds of the block, by the caller; the pointer is the one to the whole block, which is alive as long
        // as `'a`; parts are never borrowed mutably.
        unsafe { self.header.byte_add(usize::from(offset)).cast().as_ref() }
    }

    #[inline]
    fn head(self) -> &'a P::Head {
        const { assert!(offset_of!(Packed<P>, head) == offset_of!(Filled<P>, head)) };
        const { assert!(offset_of!(PaddedApart<P>, head) == offset_of!(Filled<P>, head)) };
        // SAFETY: the head has one place in all layouts.
        let head = unsafe { self.header.byte_add(offset_of!(Filled<P>, head)) };
        // SAFETY: a `P::Head` of the block, as above.
        unsafe { head.cast().as_ref() }
    }

    #[inline]
    fn tail(self) -> &'a P::Tail {
        // SAFETY: the header says where its block has its tail.
        unsafe { self.part(self.header().tail) }
    }

    fn cold(self) -> &'a P::Cold {
        // SAFETY: the header says where its block has its cold part.
        unsafe { self.part(self.header().cold) }
    }

    #[inline]
    fn stats(self) -> &'a P::Stats {
        // SAFETY: the header says where its block has its stats.
        unsafe { self.part(self.header().stats) }
    }

    fn layout(self) -> Layout {
        self.header().layout
    }

    fn refs(self) -> u32 {
        self.count().refs(self.header().counting)
    }

    #[inline]
    fn count(self) -> &'a RefCount {
        // SAFETY: the header says where its block has its count.
        unsafe { self.part(self.header().count) }
    }

    #[inline]
    fn try_get(self) -> bool {
        self.count().try_get(self.header().counting)
    }
}

/// An entry found in a read section, which it cannot leave. Copied freely: it counts nothing.
pub struct Handle<'s, P: Parts> {
    view: View<'s, P>,
    /// A section belongs to one thread.
    thread: PhantomData<*const ()>,
}

impl<P: Parts> Clone for Handle<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Parts> Copy for Handle<'_, P> {}

impl<'s, P: Parts> Handle<'s, P> {
    /// # Safety
    /// The block is of `P` and alive as long as `'s`.
    #[inline]
    unsafe fn new(header: NonNull<Header>) -> Self {
        Self { view: View { header, alive: PhantomData, parts: PhantomData }, thread: PhantomData }
    }

    /// What is read for every packet.
    #[inline]
    pub fn head(self) -> &'s P::Head {
        self.view.head()
    }

    /// What else is read for every packet.
    #[inline]
    pub fn tail(self) -> &'s P::Tail {
        self.view.tail()
    }

    /// What is hardly ever read.
    pub fn cold(self) -> &'s P::Cold {
        self.view.cold()
    }

    /// What readers write.
    #[inline]
    pub fn stats(self) -> &'s P::Stats {
        self.view.stats()
    }

    /// Takes a reference, unless the last one is gone: the conditional get.
    #[inline]
    #[must_use]
    pub fn try_get(self) -> Option<Ref<P>> {
        // SAFETY: a reference was just taken.
        self.view.try_get().then(|| unsafe { Ref::new_raw(self.view.header) })
    }

    /// Whether both are the same entry.
    #[inline]
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        self.view.header == other.view.header
    }
}

impl<P: Parts> Deref for Handle<'_, P> {
    type Target = P::Head;

    #[inline]
    fn deref(&self) -> &P::Head {
        self.view.head()
    }
}

impl<P: Parts> fmt::Debug for Handle<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("refs", &self.view.refs()).finish_non_exhaustive()
    }
}

/// A counted reference to an entry.
pub struct Ref<P: Parts> {
    header: NonNull<Header>,
    parts: PhantomData<fn() -> P>,
}

// SAFETY: a counted reference to parts that are `Send + Sync`; the count is atomic.
unsafe impl<P: Parts> Send for Ref<P> {}
// SAFETY: as above.
unsafe impl<P: Parts> Sync for Ref<P> {}

impl<P: Parts> Ref<P> {
    /// Makes an entry with one reference, whose memory waits for the sections of `domain` in the end.
    #[must_use]
    pub fn new(domain: &Domain, layout: Layout, counting: Counting, entry: Entry<P>) -> Self {
        let header = match layout {
            Layout::Packed => leak::<P, Packed<P>>(domain, counting, entry),
            Layout::Padded => leak::<P, PaddedApart<P>>(domain, counting, entry),
            Layout::Filled => leak::<P, Filled<P>>(domain, counting, entry),
        };
        // SAFETY: just made, with one reference.
        unsafe { Self::new_raw(header) }
    }

    /// # Safety
    /// The block is of `P`, and the caller has a reference to give.
    #[inline]
    unsafe fn new_raw(header: NonNull<Header>) -> Self {
        Self { header, parts: PhantomData }
    }

    #[inline]
    fn view(&self) -> View<'_, P> {
        View { header: self.header, alive: PhantomData, parts: PhantomData }
    }

    /// The entry without a reference of its own.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> Handle<'_, P> {
        // SAFETY: alive as long as this reference is borrowed.
        unsafe { Handle::new(self.header) }
    }

    /// What is read for every packet.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &P::Head {
        self.view().head()
    }

    /// What else is read for every packet.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> &P::Tail {
        self.view().tail()
    }

    /// What is hardly ever read.
    #[must_use]
    pub fn cold(&self) -> &P::Cold {
        self.view().cold()
    }

    /// What readers write.
    #[inline]
    #[must_use]
    pub fn stats(&self) -> &P::Stats {
        self.view().stats()
    }

    /// References at this moment, this one included.
    #[must_use]
    pub fn refs(&self) -> u32 {
        self.view().refs()
    }

    /// How the entry is counted.
    #[must_use]
    pub fn counting(&self) -> Counting {
        self.view().header().counting
    }

    /// How the entry lies in memory.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.view().layout()
    }

    /// Gives the reference back in a read section: one subtraction. Dropping it elsewhere costs a compare-and-swap.
    #[inline]
    pub fn release(self, section: &Section<'_>) {
        AnyRef::from(self).release(section);
    }

    /// Whether both are references to one entry.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl<P: Parts> Clone for Ref<P> {
    fn clone(&self) -> Self {
        let alive = self.view().try_get();
        debug_assert!(alive, "a reference to a dead entry");
        // SAFETY: the reference that `self` is keeps the count from its end, so the get has succeeded.
        unsafe { Self::new_raw(self.header) }
    }
}

impl<P: Parts> Deref for Ref<P> {
    type Target = P::Head;

    #[inline]
    fn deref(&self) -> &P::Head {
        self.head()
    }
}

impl<P: Parts> Drop for Ref<P> {
    fn drop(&mut self) {
        // SAFETY: the reference is given up here.
        drop(unsafe { AnyRef::new_raw(self.header) });
    }
}

impl<P: Parts> fmt::Debug for Ref<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ref").field("refs", &self.refs()).finish_non_exhaustive()
    }
}

/// A counted reference that has forgotten what its entry is made of: one word, for a packet to carry.
pub struct AnyRef {
    header: NonNull<Header>,
}

// SAFETY: as `Ref`, from which it was made.
unsafe impl Send for AnyRef {}
// SAFETY: as above.
unsafe impl Sync for AnyRef {}

impl AnyRef {
    /// # Safety
    /// The caller has a reference to give.
    #[inline]
    unsafe fn new_raw(header: NonNull<Header>) -> Self {
        Self { header }
    }

    /// Remembers the parts; `Err` when they are others.
    pub fn downcast<P: Parts>(self) -> Result<Ref<P>, Self> {
        // SAFETY: alive as long as this reference.
        let kind = unsafe { self.header.as_ref() }.kind;
        if (kind.parts)() != TypeId::of::<P>() {
            return Err(self);
        }
        let header = ManuallyDrop::new(self).header;
        // SAFETY: the block is of `P`, and the reference passes from `self`.
        Ok(unsafe { Ref::new_raw(header) })
    }

    /// Gives the reference back in a read section.
    #[inline]
    pub fn release(self, section: &Section<'_>) {
        let header = ManuallyDrop::new(self).header;
        // SAFETY: the reference is given up by this put.
        unsafe { put(header, |count, counting| count.put(counting, section)) };
    }
}

impl<P: Parts> From<Ref<P>> for AnyRef {
    #[inline]
    fn from(reference: Ref<P>) -> Self {
        let header = ManuallyDrop::new(reference).header;
        // SAFETY: the reference passes from the typed one.
        unsafe { Self::new_raw(header) }
    }
}

impl Drop for AnyRef {
    fn drop(&mut self) {
        // SAFETY: the reference is given up by this put.
        unsafe { put(self.header, RefCount::put_alone) };
    }
}

impl fmt::Debug for AnyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyRef").finish_non_exhaustive()
    }
}

/// Gives one reference back by `put`, and retires the entry if it was the last.
///
/// # Safety
/// The caller has a reference to give up.
#[inline]
unsafe fn put(header: NonNull<Header>, put: impl FnOnce(&RefCount, Counting) -> Put) {
    let (count, counting, kind) = {
        // SAFETY: alive until the put below has returned: by the reference, and where the put looks again after it gave the
        // reference up, by the section it asks for.
        let header_ref = unsafe { header.as_ref() };
        // SAFETY: the header says where its block has its count.
        let count = unsafe { header.byte_add(usize::from(header_ref.count)).cast().as_ref() };
        (count, header_ref.counting, header_ref.kind)
    };
    let put = put(count, counting);
    debug_assert!(put != Put::Imbalanced, "a put too many");
    if put == Put::Last {
        // SAFETY: of its own kind, and the last put happens once.
        unsafe { (kind.retire)(header) };
    }
}
