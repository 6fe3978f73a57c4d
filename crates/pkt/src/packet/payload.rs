//! Payload: appending bytes to a packet, moving them inside it, and reading them.
//!
//! Above: sockets and TCP. Linux: `skb_copy_to_page`, `__pskb_pull_tail`, `pskb_trim`,
//! `skb_copy_datagram_iter`, `skb_checksum`, `skb_try_coalesce`.
//!
//! The order of bytes is linear, then frags; no function here puts linear bytes behind a frag.
//!
//! Not here: sharing frags between packets (share.rs).

use core::iter::FusedIterator;

use crate::checksum::{Sum, copy, copy_and_sum};
use crate::packet::{FRAGS_MAX, NoPool, Packet, in_head};
use crate::page::{PAGE_BYTES, Slice};
use crate::pool::{Pool, Recycle};

/// Payload size from which a packet keeps the page it was received into: an eighth of the page.
pub const DENSE_BYTES_MAX: usize = PAGE_BYTES / 8;

impl Packet {
    /// Appends a copy of `bytes` and returns the number of bytes appended. That is fewer than all
    /// if the packet has all its frags or the pool is at its limit. Bytes go into the head while
    /// they fit and there are no frags, otherwise into pages, where they extend the last frag if
    /// possible.
    pub fn append(&mut self, pool: &mut Pool, bytes: &[u8]) -> usize {
        self.append_with(pool, bytes, copy)
    }

    /// As [`Packet::append`], and also returns the sum of the bytes appended, as if the first lay
    /// at an even position.
    pub fn append_and_sum(&mut self, pool: &mut Pool, bytes: &[u8]) -> (usize, Sum) {
        let mut sum = Sum::ZERO;
        let mut offset = 0;
        let taken = self.append_with(pool, bytes, |to, from| {
            sum.combine(copy_and_sum(to, from), offset);
            offset += from.len();
        });
        (taken, sum)
    }

    #[inline(always)]
    fn append_with(
        &mut self,
        pool: &mut Pool,
        bytes: &[u8],
        mut copy: impl FnMut(&mut [u8], &[u8]),
    ) -> usize {
        if let Some(linear) = self.put(bytes.len()) {
            copy(linear, bytes);
            return bytes.len();
        }
        self.append_to_pages(pool, bytes, copy)
    }

    /// The part of `append_with` for bytes that do not fit into the head.
    #[inline(always)]
    pub(super) fn append_to_pages(
        &mut self,
        pool: &mut Pool,
        bytes: &[u8],
        mut copy: impl FnMut(&mut [u8], &[u8]),
    ) -> usize {
        let body = self.body_mut();
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(cursor) = pool.cursor() else { break };
            let follows = body.frags().last().is_some_and(|last| cursor.follows(last));
            if !follows && usize::from(body.frag_count) == FRAGS_MAX {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(cursor.room()));
            copy(&mut cursor.unused()[..now.len()], now);
            let len = if follows {
                body.extend_last_frag(|last| cursor.extend(last, now.len()))
            } else {
                body.push_frag(cursor.carve(now.len()))
            };
            body.truesize += len;
            rest = later;
        }
        bytes.len() - rest.len()
    }

    /// Moves all bytes of `other`, which must all be in frags, to the end of this packet without
    /// copying them. For merging (GRO, the out-of-order queue); `other` is freed with its metadata
    /// and owner. A frag that continues the last one in the same page becomes part of it (Linux:
    /// `skb_can_coalesce`), so that pieces cut from one packet take no more frags than that packet
    /// did.
    ///
    /// # Errors
    ///
    /// Gives `other` back if it has linear bytes (pull its headers first) or too many frags.
    #[inline]
    pub fn append_frags_of(&mut self, pool: &mut Pool, other: Self) -> Result<(), Self> {
        if other.body().linear_len > 0 {
            return Err(other);
        }
        match self.extend_by(pool, other) {
            Ok(()) => Ok(()),
            Err(other) => self.append_each_frag_of(pool, other),
        }
    }

    /// The usual case for a segment of a stream: one frag that continues the last one. Gives any
    /// other packet back.
    #[inline]
    fn extend_by(&mut self, pool: &mut Pool, mut other: Self) -> Result<(), Self> {
        let (body, next) = (self.body_mut(), other.body_mut());
        if !body.cover_only_frag_of(next) {
            return Err(other);
        }
        if next.shared.get() {
            body.shared.set(true);
        }
        pool.free(other);
        Ok(())
    }

    /// The general case of `append_frags_of`.
    #[inline(never)]
    fn append_each_frag_of(&mut self, pool: &mut Pool, mut other: Self) -> Result<(), Self> {
        if !self.has_room_for(&other) {
            return Err(other);
        }
        let body = self.body_mut();
        body.truesize += other.body().frag_bytes;
        if other.body().shared.get() {
            body.shared.set(true);
        }
        let mut first = true;
        other.body_mut().take_frags(0, |slice| {
            if core::mem::take(&mut first) {
                let joined = body.join_frag(slice);
                debug_assert!(joined.is_ok(), "the caller checked the room");
            } else {
                body.push_frag(slice);
            }
        });
        pool.free(other);
        Ok(())
    }

    /// Returns whether the frags of `other` can be added at the end.
    #[inline]
    fn has_room_for(&self, other: &Self) -> bool {
        let count = self.frag_count() + other.frag_count();
        if count <= FRAGS_MAX {
            return true;
        }
        let joins = match (self.body().frags().last(), other.body().frags().first()) {
            (Some(last), Some(first)) => last.is_followed_by(first),
            _ => false,
        };
        joins && count - 1 <= FRAGS_MAX
    }

    /// Moves all bytes of `other` to the end of this packet: those in pages as
    /// [`Packet::append_frags_of`], those in its head by copying them.
    ///
    /// # Errors
    ///
    /// Gives `other` back, and changes nothing, if there are too many frags or the pool is at its
    /// limit.
    #[inline(always)]
    pub fn append_packet(&mut self, pool: &mut Pool, other: Self) -> Result<(), Self> {
        if other.body().linear_len == 0 {
            return self.append_frags_of(pool, other);
        }
        self.append_copied(pool, other)
    }

    /// The part of `append_packet` for a packet with bytes in its head.
    #[inline(never)]
    fn append_copied(&mut self, pool: &mut Pool, mut other: Self) -> Result<(), Self> {
        let linear = other.linear().len();
        let (old_len, old_truesize) = (self.len(), self.truesize());
        if self.append(pool, other.linear()) == linear {
            let pulled = other.pull(linear);
            debug_assert!(pulled, "the pulled bytes are linear");
            other = match self.append_frags_of(pool, other) {
                Ok(()) => return Ok(()),
                Err(other) => other,
            };
            other.push(linear);
        }
        self.truncate(old_len);
        self.body_mut().truesize = old_truesize;
        Err(other)
    }

    /// Copies a payload that lies in pages and is shorter than [`DENSE_BYTES_MAX`] to the page that
    /// `pool` currently copies payload into, and releases its slices. For a packet that will be
    /// held for long: a small frame in its receive page prevents the reuse of that whole page.
    /// Returns false, and does nothing, for any other packet and if the pool is at its limit.
    ///
    /// `truesize` stays as it is: the charge was right, only the memory held exceeded it.
    pub fn condense(&mut self, pool: &mut Pool) -> bool {
        let len = self.body().frag_bytes as usize;
        if len == 0 || len >= DENSE_BYTES_MAX {
            return false;
        }
        let Some(cursor) = pool.cursor_for(len) else { return false };
        let mut rest = &mut cursor.unused()[..len];
        for frag in self.body().frags() {
            let (now, later) = rest.split_at_mut(frag.len());
            copy(now, frag.bytes());
            rest = later;
        }
        let dense = cursor.carve(len);
        let body = self.body_mut();
        body.take_frags(0, |slice| pool.put_slice(slice));
        body.push_frag(dense);
        body.shared.set(false);
        true
    }

    /// Drops `count` bytes at the front, across linear bytes and frags.
    ///
    /// # Panics
    ///
    /// If the packet is shorter.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance by {count} in {self:?}");
        let linear = count.min(usize::from(self.body().linear_len));
        let pieces = self.pieces();
        let body = self.body_mut();
        body.data += in_head(linear);
        body.linear_len -= in_head(linear);
        self.drop_frag_bytes(count - linear);
        self.keep_pieces_behind(pieces, count - linear);
    }

    /// Keeps the first `len` bytes. No effect on a packet that is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.cut_off(len);
        }
    }

    #[inline(never)]
    fn cut_off(&mut self, len: usize) {
        let body = self.body_mut();
        let linear = usize::from(body.linear_len).min(len);
        body.linear_len = in_head(linear);
        let mut keep = len - linear;
        let mut whole = 0;
        for frag in body.frags() {
            if frag.len() > keep {
                break;
            }
            keep -= frag.len();
            whole += 1;
        }
        let cut = usize::from(keep > 0 && whole < usize::from(body.frag_count));
        body.take_frags(whole + cut, |slice| NoPool.put_slice(slice));
        if cut > 0 {
            body.cut_frag(whole, |last| last.truncate(keep));
        }
    }

    /// Copies bytes from `offset` on into `to` and returns the number of bytes copied.
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize {
        // Fast case: a packet without frags, so that all requested bytes lie in the head.
        if let Some(part) = self.linear().get(offset..)
            && self.frag_count() == 0
        {
            let len = part.len().min(to.len());
            to[..len].copy_from_slice(&part[..len]);
            return len;
        }
        self.copy_range_to(offset, to)
    }

    fn copy_range_to(&self, offset: usize, to: &mut [u8]) -> usize {
        let mut copied = 0;
        for part in self.range(offset, to.len()) {
            copy(&mut to[copied..copied + part.len()], part);
            copied += part.len();
        }
        copied
    }

    /// As [`Packet::copy_to`], and also returns the sum of the bytes copied, as if the first lay at
    /// an even position.
    pub fn copy_to_and_sum(&self, offset: usize, to: &mut [u8]) -> (usize, Sum) {
        let mut copied = 0;
        let mut sum = Sum::ZERO;
        for part in self.range(offset, to.len()) {
            sum.combine(copy_and_sum(&mut to[copied..copied + part.len()], part), copied);
            copied += part.len();
        }
        (copied, sum)
    }

    /// Returns the sum of up to `len` bytes from `offset` on, as if the first lay at an even
    /// position.
    #[must_use]
    #[inline]
    pub fn checksum(&self, offset: usize, len: usize) -> Sum {
        // Fast case: the payload of a received segment is one frag behind the headers.
        if let [payload] = self.body().frags()
            && offset == usize::from(self.body().linear_len)
            && len >= payload.len()
        {
            return Sum::of(payload.bytes());
        }
        self.checksum_of_parts(offset, len)
    }

    #[inline(never)]
    fn checksum_of_parts(&self, offset: usize, len: usize) -> Sum {
        let mut summed = 0;
        let mut sum = Sum::ZERO;
        for part in self.range(offset, len) {
            sum.combine(Sum::of(part), summed);
            summed += part.len();
        }
        sum
    }

    /// Returns all bytes: the linear ones, then the frags. No part is empty.
    #[inline]
    #[must_use]
    pub fn slices(&self) -> Slices<'_> {
        self.range(0, usize::MAX)
    }

    /// Returns up to `len` bytes from `offset` on, in non-empty parts.
    #[inline]
    #[must_use]
    pub fn range(&self, offset: usize, len: usize) -> Slices<'_> {
        Slices { linear: self.linear(), frags: self.body().frags().iter(), skip: offset, left: len }
    }

    /// Copies all bytes into a vector, for tests and control messages.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.slices().for_each(|slice| bytes.extend_from_slice(slice));
        bytes
    }

    /// The slow path of `require_linear`: copies the missing bytes from the frags.
    #[inline(never)]
    pub(super) fn pull_up(&mut self, count: usize) -> bool {
        if count > self.len() {
            return false;
        }
        let body = self.body_mut();
        let end = usize::from(body.data + body.linear_len);
        let missing = count - usize::from(body.linear_len);
        let (head, frags) = body.head_and_frags();
        let Some(mut room) = head.get_mut(end..end + missing) else { return false };
        for frag in frags {
            let part = frag.bytes();
            let part = &part[..part.len().min(room.len())];
            let (now, later) = room.split_at_mut(part.len());
            now.copy_from_slice(part);
            room = later;
            if room.is_empty() {
                break;
            }
        }
        body.linear_len += in_head(missing);
        self.drop_frag_bytes(missing);
        true
    }

    /// Drops `count` bytes at the front of the frags, which have at least that many.
    fn drop_frag_bytes(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let body = self.body_mut();
        let mut left = count;
        let whole = body.frags().iter().take_while(|frag| {
            let whole = frag.len() <= left;
            if whole {
                left -= frag.len();
            }
            whole
        });
        let whole = whole.count();
        if whole > 0 {
            body.remove_frags(whole, |slice| NoPool.put_slice(slice));
        }
        if left > 0 {
            body.cut_frag(0, |first| first.advance(left));
        }
    }
}

/// Parts of a packet in order, none of them empty. Made by [`Packet::slices`] and
/// [`Packet::range`].
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    linear: &'a [u8],
    frags: core::slice::Iter<'a, Slice>,
    skip: usize,
    left: usize,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut part = core::mem::take(&mut self.linear);
        while self.left > 0 {
            if self.skip < part.len() {
                let part = &part[self.skip..];
                let part = &part[..part.len().min(self.left)];
                self.skip = 0;
                self.left -= part.len();
                return Some(part);
            }
            self.skip -= part.len();
            part = self.frags.next()?.bytes();
        }
        None
    }
}

impl FusedIterator for Slices<'_> {}
