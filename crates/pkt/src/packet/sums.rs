//! Sums computed by the copy into a packet: one sum for each piece that the packet will be cut
//! into.
//!
//! Above: TCP on a path whose device does not complete checksums, software GSO. Linux had one such
//! sum per skb (`skb->csum`, `csum_and_copy_from_user`) until it removed checksumming from the send
//! path; here one packet holds many segments.
//!
//! ```text
//!   head   │ headroom 128 │ sum 0 │ sum 1 │ … up to 64, two bytes each │
//!   frags  │ piece 0      │ piece 1      │ …                  │ piece n │ (shorter, may grow)
//! ```
//!
//! The sums lie in the part of the head that holds the payload of a packet without slices. They are
//! valid as long as `Body::piece` is not zero: every change of the slices other than by functions
//! of this module sets it to zero.
//!
//! A receiver never uses these sums: they describe the data that was sent, not the data that
//! arrived.

use crate::checksum::{Sum, copy_and_sum, copy_and_sum_pieces};
use crate::packet::{COPYBREAK, HEADROOM, Packet};
use crate::pool::Pool;

/// Number of sums that fit: 93 KB in pieces of 1,460 bytes.
pub const SUMS_MAX: usize = COPYBREAK / 2;

impl Packet {
    /// As [`Packet::append`], and sums the copied bytes in pieces of `piece` bytes, counted from
    /// the packet's first payload byte. Headers must not have been pushed yet. The bytes are
    /// appended but the sums discarded if `piece` is zero or differs from the earlier calls, or if
    /// there are more pieces than [`SUMS_MAX`].
    pub fn append_in_pieces(&mut self, pool: &mut Pool, bytes: &[u8], piece: u16) -> usize {
        let fits_head = self.frag_count() == 0 && bytes.len() <= self.tailroom();
        if piece == 0 || fits_head || !self.begin_pieces(pool, piece) {
            return self.append(pool, bytes);
        }
        let size = usize::from(piece);
        let at = self.body().frag_bytes as usize;
        let (first, within) = (at / size, at % size);
        let now = bytes.len().min(SUMS_MAX * size - at);
        let begun = if within == 0 { Sum::ZERO } else { self.piece_sum(first) };
        let mut filling = Filling { size, index: first, offset: within, sum: begun };
        let mut sums = [0; SUMS_MAX];
        let mut taken = self.append_to_pages(pool, &bytes[..now], |to, from| {
            // The rest of the piece in progress, then whole pieces, then the start of another
            // piece.
            let lacking =
                if filling.offset == 0 { 0 } else { from.len().min(size - filling.offset) };
            let (to_begun, to) = to.split_at_mut(lacking);
            let (from_begun, from) = from.split_at(lacking);
            filling.copy(to_begun, from_begun, &mut sums);
            let whole = from.len() / size;
            let (to_whole, to) = to.split_at_mut(whole * size);
            let (from_whole, from) = from.split_at(whole * size);
            copy_and_sum_pieces(to_whole, from_whole, size, &mut sums[filling.index..][..whole]);
            filling.index += whole;
            filling.copy(to, from, &mut sums);
        });
        let body = self.body_mut();
        // A call that found no room must not rewrite the sum of the piece that an earlier call
        // began.
        let used = if taken == 0 { first } else { filling.index + usize::from(filling.offset > 0) };
        let (places, _) = body.head[slot(first)..].as_chunks_mut();
        for (place, sum) in places.iter_mut().zip(&sums[first..used]) {
            *place = sum.to_ne_bytes();
        }
        body.piece = piece;
        if taken == now && now < bytes.len() {
            // There is no room for the sums of the remaining bytes.
            taken += self.append(pool, &bytes[now..]);
        }
        taken
    }

    /// Returns whether the next appended bytes can be summed in pieces of `piece` bytes. Payload in
    /// the head is moved to pages to make room for the sums.
    fn begin_pieces(&mut self, pool: &mut Pool, piece: u16) -> bool {
        let body = self.body();
        if body.frag_count > 0 {
            return body.piece == piece;
        }
        if body.data != HEADROOM {
            return false;
        }
        let mut moved = [0; COPYBREAK];
        let linear = usize::from(body.linear_len);
        if linear == 0 {
            return true;
        }
        let moved = &mut moved[..linear];
        moved.copy_from_slice(self.linear());
        self.body_mut().linear_len = 0;
        let taken = self.append_to_pages(pool, moved, |to, from| to.copy_from_slice(from));
        if taken < moved.len() {
            // There is no memory: the payload stays in the head, where its bytes are still intact.
            self.drop_payload(|slice| pool.put_slice(slice));
            let body = self.body_mut();
            body.truesize -= u32::try_from(taken).unwrap_or(0);
            body.linear_len = crate::packet::in_head(moved.len());
            return false;
        }
        self.set_pieces(moved, piece);
        self.body().piece == piece
    }

    /// Computes the sums of `bytes`, which are the contents of the slices.
    fn set_pieces(&mut self, bytes: &[u8], piece: u16) {
        let pieces = bytes.chunks(usize::from(piece));
        if pieces.len() > SUMS_MAX {
            return;
        }
        let body = self.body_mut();
        for (index, bytes) in pieces.enumerate() {
            body.head[slot(index)..][..2].copy_from_slice(&Sum::of(bytes).fold().to_ne_bytes());
        }
        body.piece = piece;
    }

    /// Returns the sum of all bytes in the slices, as if the first byte lay at an even position, if
    /// it is known.
    #[must_use]
    pub fn sum_of_pieces(&self) -> Option<Sum> {
        let size = usize::from(self.body().piece);
        if size == 0 || self.frag_count() == 0 {
            return None;
        }
        let mut sum = Sum::ZERO;
        for index in 0..(self.body().frag_bytes as usize).div_ceil(size) {
            sum.combine(self.piece_sum(index), index * size);
        }
        Some(sum)
    }

    /// Returns whether there is a sum for every piece of `size` bytes.
    #[inline]
    pub(super) fn sums_pieces_of(&self, size: usize) -> bool {
        self.frag_count() > 0 && usize::from(self.body().piece) == size
    }

    /// Returns the sum of piece `index`, which must exist.
    #[inline]
    pub(super) fn piece_sum(&self, index: usize) -> Sum {
        let head = &self.body().head;
        Sum::from_folded(u16::from_ne_bytes([head[slot(index)], head[slot(index) + 1]]))
    }

    /// Copies the sums of `from`, all of whose slices this packet shares. Does nothing if the head
    /// has no room.
    pub(super) fn copy_pieces(&mut self, from: &Self) {
        let (body, from) = (self.body_mut(), from.body());
        if from.piece == 0 || body.data + body.linear_len > HEADROOM {
            return;
        }
        body.head[slot(0)..].copy_from_slice(&from.head[slot(0)..]);
        body.piece = from.piece;
    }

    /// Restores the sums in the state `before` an operation that dropped `bytes` at the front of
    /// the slices.
    pub(super) fn keep_pieces_behind(&mut self, before: Pieces, bytes: usize) {
        let size = usize::from(before.0);
        if size == 0 || !bytes.is_multiple_of(size) || self.frag_count() == 0 {
            return;
        }
        let body = self.body_mut();
        body.head.copy_within(slot(bytes / size).., slot(0));
        body.piece = before.0;
    }

    /// Restores the sums in the state `before` an operation that kept the first `bytes` of the
    /// slices.
    pub(super) fn keep_pieces_before(&mut self, before: Pieces, bytes: usize) {
        if before.0 != 0 && bytes.is_multiple_of(usize::from(before.0)) && self.frag_count() > 0 {
            self.body_mut().piece = before.0;
        }
    }

    /// Takes over the sums for the slices behind the first `bytes` that `from` had in the state
    /// `before`. Does nothing if the head has no room.
    pub(super) fn take_pieces_behind(&mut self, from: &Self, before: Pieces, bytes: usize) {
        let (body, from) = (self.body_mut(), from.body());
        if before.0 != 0 && body.data + body.linear_len <= HEADROOM {
            body.head[slot(0)..].copy_from_slice(&from.head[slot(0)..]);
            self.keep_pieces_behind(before, bytes);
        }
    }

    /// Returns the state that the functions above need from before an operation.
    pub(super) fn pieces(&self) -> Pieces {
        Pieces(self.body().piece)
    }
}

/// The piece that is being filled.
struct Filling {
    /// Size of a piece, in bytes.
    size: usize,
    /// Index of the piece in the packet.
    index: usize,
    /// Bytes in the piece so far, fewer than a whole piece.
    offset: usize,
    /// Sum of these bytes.
    sum: Sum,
}

impl Filling {
    /// Adds bytes to the piece, at most as many as it lacks.
    fn copy(&mut self, to: &mut [u8], from: &[u8], sums: &mut [u16; SUMS_MAX]) {
        if from.is_empty() {
            return;
        }
        self.sum.combine(copy_and_sum(to, from), self.offset);
        self.offset += from.len();
        sums[self.index] = self.sum.fold();
        if self.offset == self.size {
            *self = Self { size: self.size, index: self.index + 1, offset: 0, sum: Sum::ZERO };
        }
    }
}

/// Piece size that a packet was summed with, saved while its slices change.
#[derive(Clone, Copy)]
pub(super) struct Pieces(u16);

/// Returns the position of a sum in the head.
#[inline]
const fn slot(index: usize) -> usize {
    HEADROOM as usize + 2 * index
}
