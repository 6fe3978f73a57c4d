//! Packets on their way to another core: one list per sender, so that senders meet on no line but the one that wakes.
//!
//! Above: the softnet backlog (`stack::rps`). Linux: `softnet_data::input_pkt_queue` with `input_queue_head` and
//! `input_queue_tail`, which is one list under one lock.
//!
//! ```text
//!   sender 0 ── push ──► lane 0 ──┐
//!   sender 1 ── push ──► lane 1 ──┼── take_ready, take ──► receiver ── finish ──► done, read by the sender
//!   sender 2 ── push ──► lane 2 ──┘
//! ```
//!
//! A lane is first in, first out, and each sender counts what it has put into its own: an item is through when the
//! receiver has finished as many. That is what a sender asks before it lets a flow go another way, so that no packet
//! overtakes one before it.
//!
//! An item is first put into its lane, then the lane's bit is set; whoever sets the first bit wakes the receiver, who takes
//! all bits before it looks into lanes. So no item waits for the next one.
//!
//! Not here: limits, and how the receiver is woken.

use core::fmt;

use crate::llist::{Chain, Linked, Llist};
use crate::padded::Padded;
use crate::percore::PerCore;
use crate::shim::{AtomicU32, AtomicU64, Ordering};

#[cfg(test)]
mod tests;

/// Senders a receiver can have: one bit of a word each.
pub const SENDERS_MAX: usize = 64;

/// What one sender has for the receiver.
struct Lane<P: Linked> {
    /// Written by both ends.
    items: Llist<P>,
    /// Items that the receiver is through with; wraps. Written by the receiver with Release after the item was worked
    /// on, read by the sender with Acquire: who sees the number sees what came of the items.
    done: Padded<AtomicU32>,
}

/// The lanes of one receiver.
pub struct Lanes<P: Linked> {
    /// Lanes that may hold something, by the sender's bit. AcqRel on both sides: the bit comes after the item, and the
    /// look into the lane after the bit.
    ready: Padded<AtomicU64>,
    /// Items pushed and not finished. Relaxed: a limit orders nothing.
    len: Padded<AtomicU32>,
    lanes: PerCore<Lane<P>>,
}

impl<P: Linked> Lanes<P> {
    /// Lanes for `senders` senders.
    ///
    /// # Panics
    /// More than [`SENDERS_MAX`].
    pub fn new(senders: usize) -> Self {
        assert!(senders <= SENDERS_MAX, "a bit for each sender");
        Self {
            ready: Padded::new(AtomicU64::new(0)),
            len: Padded::new(AtomicU32::new(0)),
            lanes: PerCore::new(senders, |_| Lane {
                items: Llist::new(),
                done: Padded::new(AtomicU32::new(0)),
            }),
        }
    }

    /// How many senders there can be.
    pub fn senders(&self) -> usize {
        self.lanes.len()
    }

    /// Puts `count` items into the lane of `sender`. True: nothing was ready, and the receiver must be woken.
    ///
    /// # Panics
    /// There is no such sender.
    #[must_use = "true obliges the caller to wake the receiver"]
    pub fn push(&self, sender: usize, items: Chain<P>, count: u32) -> bool {
        if items.is_empty() {
            return false;
        }
        self.len.fetch_add(count, Ordering::Relaxed);
        self.lanes[sender].items.push_chain(items);
        self.ready.fetch_or(1 << sender, Ordering::AcqRel) == 0
    }

    /// Whether [`take_ready`](Self::take_ready) would find anything.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) != 0
    }

    /// Receiver: the lanes that hold something, a bit for each. They count as looked at.
    pub fn take_ready(&self) -> u64 {
        if !self.is_ready() {
            return 0;
        }
        self.ready.swap(0, Ordering::AcqRel)
    }

    /// Receiver: what is in the lane of `sender`, oldest first.
    pub fn take(&self, sender: usize) -> Chain<P> {
        self.lanes[sender].items.take_all()
    }

    /// Receiver: is through with `count` more items of `sender`.
    pub fn finish(&self, sender: usize, count: u32) {
        let done = &self.lanes[sender].done;
        done.store(done.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
        self.len.fetch_sub(count, Ordering::Relaxed);
    }

    /// Sender: how many of its items the receiver is through with; wraps.
    pub fn done(&self, sender: usize) -> u32 {
        self.lanes[sender].done.load(Ordering::Acquire)
    }

    /// Items pushed by anybody and not finished.
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// True when everything pushed is finished.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<P: Linked> fmt::Debug for Lanes<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("len", &self.len()).finish_non_exhaustive()
    }
}
