//! Packets made from packets: clones, ranges, splits, copies.
//!
//! Above: TCP sends clones and ranges of queued packets; packet taps and retransmission copy.
//! Linux: `skb_clone`, `skb_split`, `skb_copy`, `skb_fclone_busy`.
//!
//! Two packets only ever share frags: one atomic increment each, none if the cloning core is
//! carving the page. Linear bytes are copied; they are few.
//!
//! Not here: the count of the fclone pair (pair.rs).

use crate::packet::{FRAGS_MAX, Kind, NoPool, Packet, in_head};
use crate::page::Slice;
use crate::pool::{Pool, Recycle};

impl Packet {
    /// Clones the packet: the same bytes, metadata and headroom in a head of its own, without an
    /// owner. If this packet came from [`Pool::alloc_fclone`] and has no live companion, the clone
    /// becomes its companion. `None` at the domain's limit.
    #[inline]
    pub fn clone_in(&self, pool: &mut Pool) -> Option<Self> {
        let mut clone = self.clone_apart(pool)?;
        self.adopt_companion(&mut clone);
        Some(clone)
    }

    /// As [`clone_in`](Self::clone_in), but the clone never becomes a companion, so that freeing it
    /// writes no shared count. For a clone that is gone before [`clone_busy`](Self::clone_busy) is
    /// called.
    pub fn clone_apart(&self, pool: &mut Pool) -> Option<Self> {
        let body = self.body();
        let mut clone = pool.alloc_at(body.data, Kind::Alone)?;
        clone.put(usize::from(body.linear_len))?.copy_from_slice(self.linear());
        let target = clone.body_mut();
        target.meta = body.meta;
        target.truesize = body.truesize;
        for frag in body.frags() {
            target.push_frag(pool.share(frag));
        }
        clone.copy_pieces(self);
        if self.frag_count() > 0 {
            clone.body().shared.set(true);
            body.shared.set(true);
        }
        Some(clone)
    }

    /// Makes a packet of `len` bytes from `offset` on, with default metadata and full headroom,
    /// that shares the frags. `None` at the domain's limit or if the range exceeds the packet.
    pub fn clone_range(&self, pool: &mut Pool, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len() {
            return None;
        }
        let linear = self.linear();
        let start = offset.min(linear.len());
        let end = (offset + len).min(linear.len());
        let mut clone = pool.alloc_from(&linear[start..end])?;
        let mut skip = offset - start;
        let mut left = len - (end - start);
        for frag in self.body().frags() {
            if left == 0 {
                break;
            }
            if skip >= frag.len() {
                skip -= frag.len();
                continue;
            }
            if clone.frag_count() == FRAGS_MAX {
                // The linear bytes took a frag of their own in front of a full set of frags.
                pool.free(clone);
                return None;
            }
            let mut slice = pool.share(frag);
            if skip > 0 {
                slice.advance(core::mem::take(&mut skip));
            }
            slice.truncate(slice.len().min(left));
            left -= slice.len();
            clone.charge_frag(slice);
            clone.body().shared.set(true);
            self.body().shared.set(true);
        }
        Some(clone)
    }

    /// Appends `len` bytes of `slice` from `skip` on without copying them. Returns false, and does
    /// nothing, if the packet has all its frags.
    pub(crate) fn append_share(&mut self, slice: &Slice, skip: usize, len: usize) -> bool {
        let mut part = slice.share();
        if skip > 0 {
            part.advance(skip);
        }
        part.truncate(len);
        let body = self.body_mut();
        match body.join_frag(part) {
            Ok(len) => body.truesize += len,
            Err(part) => {
                NoPool.put_slice(part);
                return false;
            }
        }
        body.shared.set(true);
        true
    }

    /// Returns whether some of the payload lies in lent pages.
    pub(crate) fn holds_lent(&self) -> bool {
        self.body().frags().iter().any(Slice::is_lent)
    }

    /// Splits the packet: the bytes from `at` on move into a new packet with the same metadata and
    /// full headroom, and the charge for their pages moves with them. The owner stays with this
    /// packet, and its charge is unchanged. `None`, and no change, at the domain's limit or if `at`
    /// lies behind the end.
    pub fn split_off(&mut self, pool: &mut Pool, at: usize) -> Option<Self> {
        self.len().checked_sub(at)?;
        let linear = self.linear();
        let linear_kept = linear.len().min(at);
        let mut tail = pool.alloc_from(&linear[linear_kept..])?;
        let mut kept = at - linear_kept;
        let mut whole = 0;
        for frag in self.body().frags() {
            if frag.len() > kept {
                break;
            }
            kept -= frag.len();
            whole += 1;
        }
        if tail.frag_count() + self.frag_count() - whole > FRAGS_MAX {
            pool.free(tail);
            return None;
        }
        let target = tail.body_mut();
        target.meta = *self.meta();
        target.shared.set(self.body().shared.get());
        let before = self.body().frag_bytes;
        let (pieces, kept_bytes) = (self.pieces(), at - linear_kept);
        if kept > 0 {
            // One frag is cut: both packets hold its page.
            let mut rest = pool.share(&self.body().frags()[whole]);
            rest.advance(kept);
            tail.charge_frag(rest);
            self.body_mut().cut_frag(whole, |frag| frag.truncate(kept));
            whole += 1;
        }
        let body = self.body_mut();
        body.linear_len = in_head(linear_kept);
        body.take_frags(whole, |slice| tail.charge_frag(slice));
        body.truesize -= before - body.frag_bytes;
        tail.take_pieces_behind(self, pieces, kept_bytes);
        self.keep_pieces_before(pieces, kept_bytes);
        Some(tail)
    }

    /// Copies the packet: the same bytes and metadata, no shared memory. `None` at the domain's
    /// limit.
    pub fn deep_copy(&self, pool: &mut Pool) -> Option<Self> {
        let body = self.body();
        let mut copy = pool.alloc_at(body.data, Kind::Alone)?;
        copy.put(usize::from(body.linear_len))?.copy_from_slice(self.linear());
        copy.body_mut().meta = body.meta;
        for frag in body.frags() {
            if copy.append_to_pages(pool, frag.bytes(), |to, from| to.copy_from_slice(from))
                < frag.len()
            {
                pool.free(copy);
                return None;
            }
        }
        Some(copy)
    }

    /// Returns true if other packets may hold the same payload pages. May stay true after they are
    /// freed.
    #[must_use]
    pub fn is_cloned(&self) -> bool {
        self.body().shared.get()
    }

    /// Returns true while the last tracked clone of a packet from [`Pool::alloc_fclone`] is queued
    /// below or being sent: alive, and not [orphaned](Self::orphan). Linux: `skb_fclone_busy`.
    #[must_use]
    pub fn clone_busy(&self) -> bool {
        self.has_companion()
    }
}
