//! Sequences of packets: an unbounded queue and a bounded burst.
//!
//! Above: every queue between layers. Linux: `sk_buff_head`, the bulk array of NAPI.
//!
//! Not here: the lock-free list between cores (`sync::Llist`).

use core::fmt;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use sync::Chain;

use crate::packet::Packet;
use crate::pool::Pool;

/// FIFO queue of packets, linked through the packets themselves: it never allocates.
#[derive(Default)]
pub struct PacketList {
    chain: Chain<Packet>,
    len: usize,
    bytes: usize,
}

impl PacketList {
    /// Makes an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { chain: Chain::new(), len: 0, bytes: 0 }
    }

    /// Adds a packet at the end.
    #[inline]
    pub fn push_back(&mut self, packet: Packet) {
        self.len += 1;
        self.bytes += packet.len();
        self.chain.push_back(packet);
    }

    /// Adds a packet at the front: for a packet that was popped and could not be used.
    #[inline]
    pub fn push_front(&mut self, packet: Packet) {
        self.len += 1;
        self.bytes += packet.len();
        self.chain.push_front(packet);
    }

    /// Removes and returns the oldest packet.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Packet> {
        let packet = self.chain.pop_front()?;
        self.len -= 1;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// Passes every packet to `change`, oldest first, and returns the list of the changed packets.
    #[inline]
    #[must_use]
    pub fn changed(self, mut change: impl FnMut(&mut Packet)) -> Self {
        let Self { mut chain, len, .. } = self;
        let mut changed = Self { len, ..Self::new() };
        while let Some(mut packet) = chain.pop_front() {
            change(&mut packet);
            changed.bytes += packet.len();
            changed.chain.push_back(packet);
        }
        changed
    }

    /// Moves all packets of `other` to the end, in constant time.
    pub fn append(&mut self, other: &mut Self) {
        self.chain.append(&mut other.chain);
        self.len += core::mem::take(&mut other.len);
        self.bytes += core::mem::take(&mut other.bytes);
    }

    /// Frees all packets through `pool`, which is cheaper than dropping the list. Returns their
    /// number.
    pub fn free_all(&mut self, pool: &mut Pool) -> usize {
        let count = self.len;
        while let Some(packet) = self.pop_front() {
            pool.free(packet);
        }
        count
    }

    /// Returns the number of packets.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the list has no packet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the sum of the lengths of the packets.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Pops packets until the list is empty; packets not consumed stay in the list.
impl Iterator for PacketList {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        self.pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl Extend<Packet> for PacketList {
    fn extend<I: IntoIterator<Item = Packet>>(&mut self, packets: I) {
        packets.into_iter().for_each(|packet| self.push_back(packet));
    }
}

impl FromIterator<Packet> for PacketList {
    fn from_iter<I: IntoIterator<Item = Packet>>(packets: I) -> Self {
        let mut list = Self::new();
        list.extend(packets);
        list
    }
}

impl fmt::Debug for PacketList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketList({} packets, {} bytes)", self.len, self.bytes)
    }
}

/// Packets in a [`Batch`]. 64 as Linux's NAPI weight: it amortizes a step over many packets while
/// the first cache lines of their descriptors stay in the first-level cache.
pub const BATCH_MAX: usize = 64;

/// A bounded burst of packets that one step hands to the next.
#[derive(Debug, Default)]
pub struct Batch(ArrayVec<Packet, BATCH_MAX>);

impl Batch {
    /// Makes an empty batch.
    #[must_use]
    pub const fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// Adds a packet.
    ///
    /// # Errors
    ///
    /// Gives the packet back when the batch is full.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        self.0.try_push(packet).map_err(arrayvec::CapacityError::element)
    }

    /// Moves packets from the front of `queue` to this batch, at most `most` and as many as fit.
    /// Returns their number.
    pub fn take_from(&mut self, queue: &mut VecDeque<Packet>, most: usize) -> usize {
        let count = queue.len().min(most).min(self.0.remaining_capacity());
        self.0.extend(queue.drain(..count));
        count
    }

    /// Adds the packets that `next` returns until it returns `None`, at most `most` and as many as
    /// fit. Returns their number.
    #[inline]
    pub fn take_while_room(
        &mut self,
        most: usize,
        mut next: impl FnMut() -> Option<Packet>,
    ) -> usize {
        let before = self.len();
        let end = before + most.min(self.room());
        while self.len() < end {
            match next() {
                Some(packet) => self.0.push(packet),
                None => break,
            }
        }
        self.len() - before
    }

    /// Removes and returns all packets, oldest first.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Packet> + '_ {
        self.0.drain(..)
    }

    /// Returns the number of packets.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the batch has no packet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if no further packet fits.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.0.len() == BATCH_MAX
    }

    /// Returns the number of packets that still fit.
    #[must_use]
    pub const fn room(&self) -> usize {
        BATCH_MAX - self.0.len()
    }

    /// Returns the packets, oldest first.
    #[must_use]
    pub fn packets(&self) -> &[Packet] {
        &self.0
    }

    /// Returns the packets for writing, oldest first.
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        &mut self.0
    }
}

impl IntoIterator for Batch {
    type Item = Packet;
    type IntoIter = arrayvec::IntoIter<Packet, BATCH_MAX>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::pool::{Domain, DomainConfig};

    fn list_of(pool: &mut Pool, lens: &[usize]) -> PacketList {
        let packet = |&len: &usize| {
            let mut packet = pool.alloc().expect("memory");
            packet.append(pool, &vec![1; len]);
            packet
        };
        lens.iter().map(packet).collect()
    }

    #[test]
    fn changed_packets_keep_their_order_and_are_counted_with_their_new_lengths() {
        let mut pool = Domain::new(DomainConfig::default()).pool();
        let mut list = list_of(&mut pool, &[10, 20, 30]);
        list = list.changed(|packet| packet.push(4).fill(2));
        assert_eq!((list.len(), list.bytes()), (3, 72));
        let lens: Vec<_> = list.by_ref().map(|packet| packet.len()).collect();
        assert_eq!(lens, [14, 24, 34]);
        assert_eq!((list.len(), list.bytes()), (0, 0));
    }
}
