//! Packets on their way to another core: one list per sender, so that senders share no written line
//! except the wake bits.
//!
//! Above: the softnet backlog (`stack::rps`). Linux: `softnet_data::input_pkt_queue` with
//! `input_queue_head` and `input_queue_tail`, which is one list under one lock.
//!
//! ```text
//!   sender 0 ── push ──► lane 0 ──┐
//!   sender 1 ── push ──► lane 1 ──┼── take_ready, take ──► receiver ── finish ──► done
//!   sender 2 ── push ──► lane 2 ──┘
//! ```
//!
//! A lane is FIFO, and each sender counts the items it has put into its own lane: an item has been
//! processed when the receiver has finished as many. A sender checks this before it lets a flow
//! take another path, so that no packet overtakes an earlier one.
//!
//! An item is first put into its lane, then the lane's bit is set. The sender that sets the first
//! bit wakes the receiver, which takes all bits before it checks the lanes. So no item waits for
//! the next one.
//!
//! Not here: limits, and the means of waking the receiver.

use core::fmt;

use crate::llist::{Chain, Linked, Llist};
use crate::padded::Padded;
use crate::percore::PerCore;
use crate::shim::{AtomicU32, AtomicU64, Ordering};

#[cfg(test)]
mod tests;

/// Maximum number of senders of a receiver: one bit of a word each.
pub const SENDERS_MAX: usize = 64;

/// Items of one sender for the receiver.
struct Lane<P: Linked> {
    /// Items not taken yet. Written by both sides.
    items: Llist<P>,
    /// Items that the receiver has finished; wraps. Written by the receiver with Release after it
    /// processed the item, read by the sender with Acquire: a sender that sees the number also sees
    /// the effects of the items.
    done: Padded<AtomicU32>,
}

/// The lanes of one receiver.
pub struct Lanes<P: Linked> {
    /// Lanes that may hold items, one bit per sender. AcqRel on both sides: the bit comes after the
    /// item, and the check of the lane after the bit.
    ready: Padded<AtomicU64>,
    /// Items pushed and not finished. Relaxed: a limit orders nothing.
    len: Padded<AtomicU32>,
    lanes: PerCore<Lane<P>>,
}

impl<P: Linked> Lanes<P> {
    /// Makes lanes for `senders` senders.
    ///
    /// # Panics
    /// If there are more than [`SENDERS_MAX`].
    pub fn new(senders: usize) -> Self {
        assert!(senders <= SENDERS_MAX, "at most one sender per bit");
        Self {
            ready: Padded::new(AtomicU64::new(0)),
            len: Padded::new(AtomicU32::new(0)),
            lanes: PerCore::new(senders, |_| Lane {
                items: Llist::new(),
                done: Padded::new(AtomicU32::new(0)),
            }),
        }
    }

    /// Returns the number of senders.
    pub fn senders(&self) -> usize {
        self.lanes.len()
    }

    /// Puts `count` items into the lane of `sender`. Returns true if no lane was ready, and the
    /// receiver must be woken.
    ///
    /// # Panics
    /// If there is no such sender.
    #[must_use = "true obliges the caller to wake the receiver"]
    pub fn push(&self, sender: usize, items: Chain<P>, count: u32) -> bool {
        if items.is_empty() {
            return false;
        }
        self.len.fetch_add(count, Ordering::Relaxed);
        self.lanes[sender].items.push_chain(items);
        self.ready.fetch_or(1 << sender, Ordering::AcqRel) == 0
    }

    /// Returns whether [`take_ready`](Self::take_ready) would find a lane.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) != 0
    }

    /// Receiver: takes the set of lanes that may hold items, one bit each.
    pub fn take_ready(&self) -> u64 {
        if !self.is_ready() {
            return 0;
        }
        self.ready.swap(0, Ordering::AcqRel)
    }

    /// Receiver: takes the items in the lane of `sender`, oldest first.
    pub fn take(&self, sender: usize) -> Chain<P> {
        self.lanes[sender].items.take_all()
    }

    /// Receiver: marks `count` more items of `sender` as finished.
    pub fn finish(&self, sender: usize, count: u32) {
        let done = &self.lanes[sender].done;
        done.store(done.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
        self.len.fetch_sub(count, Ordering::Relaxed);
    }

    /// Sender: returns the number of its items that the receiver has finished; wraps.
    pub fn done(&self, sender: usize) -> u32 {
        self.lanes[sender].done.load(Ordering::Acquire)
    }

    /// Returns the number of items pushed by all senders and not finished.
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if all items pushed are finished.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<P: Linked> fmt::Debug for Lanes<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("len", &self.len()).finish_non_exhaustive()
    }
}
