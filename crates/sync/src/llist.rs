//! Intrusive lists: [`Llist`], which many cores may push to at once, and [`Chain`], owned by one
//! thread.
//!
//! Above: packets returning to their home pool (`pkt`), the backlog of [`crate::socket_lock`].
//! Linux: include/linux/llist.h (push one, take all) and the singly linked part of `sk_buff_head`.
//!
//! ```text
//!  Llist::head ─► newest ─► … ─► oldest ─► null         push: one CAS at the head
//!  Chain::head ─► oldest ─► … ─► newest ◄─ Chain::tail  take_all: one swap, then reversed
//! ```
//!
//! Taking all items with one swap frees the push from the ABA problem: no node is ever removed from
//! the middle, and a pusher never reads the node it found at the head.
//!
//! A list owns its items, so an item is in at most one list. The list allocates nothing.
//!
//! Not here: counting and byte limits (`pkt::PacketList`, `socket_lock`).

use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::shim::{AtomicPtr, Ordering, UnsafeCell};

#[cfg(test)]
mod tests;

/// The field that links an item into a list: one pointer, meaningless outside a list.
#[repr(transparent)]
pub struct Link {
    next: UnsafeCell<*mut Self>,
}

// SAFETY: only the list that owns the item accesses `next`, through `into_link`; a shared `&Link`
// gives no access to it.
unsafe impl Send for Link {}
// SAFETY: as above: no method of `Link` reads or writes `next` through a shared reference.
unsafe impl Sync for Link {}

impl Link {
    /// Makes a link that is in no list.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { next: UnsafeCell::new(ptr::null_mut()) }
    }

    /// Makes a link that is in no list. Only inside a loom model.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { next: UnsafeCell::new(ptr::null_mut()) }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// An owning pointer to an object with a [`Link`].
///
/// # Safety
///
/// - `into_link` gives up ownership and returns a pointer to the item's own `Link`. Until
///   `from_link` is called with it, the pointer stays valid, at the same address, and no other code
///   accesses the link.
/// - The returned pointer may be used for all of the item, not only its `Link`, so that `from_link`
///   can rebuild the owner (take it with `&raw mut (*item).link` from the pointer to the whole).
/// - `from_link(p.into_link())` is `p` again.
pub unsafe trait Linked: Sized {
    /// Turns the owner into the address of its link.
    fn into_link(self) -> NonNull<Link>;

    /// Turns the address of a link back into its owner.
    ///
    /// # Safety
    ///
    /// `link` came from `into_link` of this type, and this is the only call for it since then.
    unsafe fn from_link(link: NonNull<Link>) -> Self;
}

/// Lock-free list: any thread pushes, any thread takes all.
pub struct Llist<P: Linked> {
    /// Newest item. Pushers CAS with Release, so that the taker's Acquire swap sees the item. The
    /// CAS is a read-modify-write that continues the release sequence, so the swap also sees all
    /// items below it.
    head: AtomicPtr<Link>,
    owns: PhantomData<P>,
}

// SAFETY: the list passes each item to exactly one thread (by the swap in `take_all`), which `P:
// Send` allows. It never gives out a `&P`, so `P: Sync` is not needed.
unsafe impl<P: Linked + Send> Send for Llist<P> {}
// SAFETY: as above.
unsafe impl<P: Linked + Send> Sync for Llist<P> {}

impl<P: Linked> Llist<P> {
    /// Makes an empty list.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// Makes an empty list. Only inside a loom model.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// Adds one item. Returns true if the list was empty, in which case the pusher must wake the
    /// taker.
    pub fn push(&self, item: P) -> bool {
        let link = item.into_link().as_ptr();
        self.push_range(link, link)
    }

    /// Adds all items of `chain` with one CAS; they keep their order. Returns true if the list was
    /// empty and the chain was not.
    pub fn push_chain(&self, chain: Chain<P>) -> bool {
        let chain = core::mem::ManuallyDrop::new(chain);
        if chain.head.is_null() {
            return false;
        }
        // The list is newest first: the chain's head becomes the bottom of the pushed range.
        let bottom = chain.head;
        // SAFETY: the chain owns its items and is not used again.
        let (top, _) = unsafe { reverse(bottom) };
        self.push_range(top, bottom)
    }

    /// Takes all items, oldest first.
    pub fn take_all(&self) -> Chain<P> {
        let newest = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        if newest.is_null() {
            return Chain::new();
        }
        // SAFETY: the swap made this thread the only owner of all items reachable from `newest`;
        // its Acquire pairs with the pushers' Release, so their links are visible.
        let (head, tail) = unsafe { reverse(newest) };
        Chain { head, tail, owns: PhantomData }
    }

    /// Returns true if the list was empty at the moment of the call.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Pushes the linked items from `top` down to `bottom`, all owned by the caller.
    fn push_range(&self, top: *mut Link, bottom: *mut Link) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller owns `bottom` until the CAS succeeds.
            unsafe { set_next(bottom, head) };
            match self.head.compare_exchange_weak(head, top, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return head.is_null(),
                Err(found) => head = found,
            }
        }
    }
}

impl<P: Linked> Default for Llist<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Linked> Drop for Llist<P> {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

impl<P: Linked> fmt::Debug for Llist<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Llist").field("is_empty", &self.is_empty()).finish()
    }
}

/// Items in FIFO order, owned by one thread. Iterating removes them; dropping the chain drops the
/// rest.
pub struct Chain<P: Linked> {
    /// Oldest item; null when empty.
    head: *mut Link,
    /// Newest item; meaningless when `head` is null. Its `next` is null.
    tail: *mut Link,
    owns: PhantomData<P>,
}

// SAFETY: a chain owns its items and no other thread has a pointer into it.
unsafe impl<P: Linked + Send> Send for Chain<P> {}
// SAFETY: a shared `&Chain` only tells whether it is empty.
unsafe impl<P: Linked + Send> Sync for Chain<P> {}

impl<P: Linked> Chain<P> {
    /// Makes an empty chain.
    pub const fn new() -> Self {
        Self { head: ptr::null_mut(), tail: ptr::null_mut(), owns: PhantomData }
    }

    /// Adds one item at the end.
    pub fn push_back(&mut self, item: P) {
        let link = item.into_link().as_ptr();
        // SAFETY: the item was passed to this function by value.
        unsafe { set_next(link, ptr::null_mut()) };
        self.append_range(link, link);
    }

    /// Adds one item at the front.
    pub fn push_front(&mut self, item: P) {
        let link = item.into_link().as_ptr();
        // SAFETY: the item was passed to this function by value.
        unsafe { set_next(link, self.head) };
        if self.head.is_null() {
            self.tail = link;
        }
        self.head = link;
    }

    /// Removes and returns the oldest item.
    pub fn pop_front(&mut self) -> Option<P> {
        let link = NonNull::new(self.head)?;
        // SAFETY: the chain owns its items.
        self.head = unsafe { next(link.as_ptr()) };
        // SAFETY: every link in the chain came from `into_link`, and this one has just left the
        // chain.
        Some(unsafe { P::from_link(link) })
    }

    /// Moves all items of `other` to the end, in constant time.
    pub fn append(&mut self, other: &mut Self) {
        if !other.head.is_null() {
            self.append_range(other.head, other.tail);
            other.head = ptr::null_mut();
        }
    }

    /// Returns true if the chain has no item.
    pub fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    fn append_range(&mut self, head: *mut Link, tail: *mut Link) {
        if self.head.is_null() {
            self.head = head;
        } else {
            // SAFETY: a non-empty chain's tail is one of its own items.
            unsafe { set_next(self.tail, head) };
        }
        self.tail = tail;
    }
}

impl<P: Linked> Default for Chain<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Linked> Iterator for Chain<P> {
    type Item = P;

    fn next(&mut self) -> Option<P> {
        self.pop_front()
    }
}

impl<P: Linked> Extend<P> for Chain<P> {
    fn extend<I: IntoIterator<Item = P>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push_back(item));
    }
}

impl<P: Linked> FromIterator<P> for Chain<P> {
    fn from_iter<I: IntoIterator<Item = P>>(items: I) -> Self {
        let mut chain = Self::new();
        chain.extend(items);
        chain
    }
}

impl<P: Linked> Drop for Chain<P> {
    fn drop(&mut self) {
        while self.pop_front().is_some() {}
    }
}

impl<P: Linked> fmt::Debug for Chain<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("is_empty", &self.is_empty()).finish()
    }
}

/// # Safety
/// The calling thread owns the item of `link`.
unsafe fn next(link: *mut Link) -> *mut Link {
    // SAFETY: valid by the contract of `Linked`, and exclusively the caller's.
    unsafe { (*link).next.with(|next| *next) }
}

/// # Safety
/// The calling thread owns the item of `link`.
unsafe fn set_next(link: *mut Link, value: *mut Link) {
    // SAFETY: valid by the contract of `Linked`, and exclusively the caller's.
    unsafe { (*link).next.with_mut(|next| *next = value) }
}

/// Reverses the null-terminated list at `first`; returns its new first and last link.
///
/// # Safety
/// The calling thread owns every item reachable from `first`, which is not null.
unsafe fn reverse(first: *mut Link) -> (*mut Link, *mut Link) {
    let (mut reversed, mut rest) = (ptr::null_mut(), first);
    while !rest.is_null() {
        // SAFETY: the caller owns the item.
        let following = unsafe { next(rest) };
        // SAFETY: the caller owns the item.
        unsafe { set_next(rest, reversed) };
        reversed = rest;
        rest = following;
    }
    (reversed, first)
}
