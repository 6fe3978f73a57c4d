//! Packets made from packets: clones, ranges, splits, copies.
//!
//! Above: TCP sends clones and ranges of queued packets; taps and retransmission copy. Linux: `skb_clone`,
//! `skb_split`, `skb_copy`, `skb_fclone_busy`.
//!
//! What two packets share is only ever a frag: one atomic increment each, none when the page is being carved
//! by the cloning core. Linear bytes are copied; they are few.
//!
//! Not here: how the fclone pair is counted (descriptor.rs).

use crate::packet::{Elsewhere, FRAGS_MAX, Kind, Packet, in_head};
use crate::page::Slice;
use crate::pool::{Pool, Recycle};

impl Packet {
    /// A packet with the same bytes and metadata, headroom included, and its own head. It has no owner. When
    /// this packet came from [`Pool::alloc_fclone`] and has no living companion, the clone becomes it.
    /// `None` at the domain's limit.
    #[inline]
    pub fn clone_in(&self, pool: &mut Pool) -> Option<Self> {
        let mut clone = self.clone_apart(pool)?;
        self.adopt_companion(&mut clone);
        Some(clone)
    }

    /// As [`clone_in`](Self::clone_in), but never a companion, so that its end is written nowhere: for a clone that will have left
    /// before anybody asks.
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

    /// A packet with `len` bytes from `offset` on, default metadata and full headroom, sharing the frags.
    /// `None` at the domain's limit or when the range leaves the packet.
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
                // The linear bytes took a frag of their own in front of a full set.
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

    /// Appends `len` bytes of `slice` from `skip` on without copying them. False, and nothing done, when the packet has all
    /// its frags.
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
                Elsewhere.put_slice(part);
                return false;
            }
        }
        body.shared.set(true);
        true
    }

    /// Some of its payload lies in lent pages.
    pub(crate) fn holds_lent(&self) -> bool {
        self.body().frags().iter().any(Slice::is_lent)
    }

    /// Cuts the packet: the bytes from `at` on move into a new packet with the same metadata and full
    /// headroom, and the charge for their pages with them. The owner stays here, and is charged as before.
    /// `None`, and nothing done, at the domain's limit or when `at` lies behind the end.
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
            // One frag is cut: both parts hold its page.
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

    /// A packet with the same bytes and metadata that shares nothing. `None` at the domain's limit.
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

    /// True when other packets may hold the same payload pages. May stay true after they are gone.
    #[must_use]
    pub fn is_cloned(&self) -> bool {
        self.body().shared.get()
    }

    /// True while the last tracked clone of a packet from [`Pool::alloc_fclone`] is queued below or being sent: alive, and
    /// not [orphaned](Self::orphan). Linux: `skb_fclone_busy`.
    #[must_use]
    pub fn clone_busy(&self) -> bool {
        self.has_companion()
    }
}
