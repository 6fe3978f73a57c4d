//! Segmentation of a superframe into packets of one size that share its payload.
//!
//! Above: software GSO. Linux: `skb_segment`.
//!
//! The references that the pieces take on the pages are taken in one step for each page slice. The
//! sums computed while the payload was copied (sums.rs) are passed on with the pieces.
//!
//! Not here: the contents of the headers (crate `stack`, gso.rs).

use crate::checksum::Sum;
use crate::packet::{FRAGS_MAX, HEADROOM, Kind, Packet, in_head};
use crate::pool::Pool;

/// Headers in front of the payload of every piece, at the end of the array; the caller chooses how
/// many bytes are used.
pub type HeadTemplate = [u8; HEADROOM as usize];

/// Cuts the payload of a packet into pieces, front to back. Payload that is not cut stays in the
/// packet.
#[derive(Debug)]
pub struct Cutter<'a> {
    packet: &'a mut Packet,
    /// Bytes of a piece; the last one may be shorter.
    size: usize,
    /// Position in `linear()` of the next linear byte to cut.
    linear: usize,
    /// Index of the slice that contains the next byte, and the number of its bytes already cut.
    frag: usize,
    skip: usize,
    /// Bytes left to cut.
    left: usize,
    /// Index of the next piece.
    index: usize,
    /// Whether the packet has a sum for each of these pieces.
    sums: bool,
}

impl Packet {
    /// Starts to cut the bytes behind the first `headers` bytes, which are linear, into pieces of
    /// `size` bytes.
    ///
    /// # Panics
    ///
    /// If `size` is zero, or the headers are not linear.
    pub fn cut<'a>(&'a mut self, pool: &mut Pool, headers: usize, size: usize) -> Cutter<'a> {
        assert!(size > 0 && headers <= self.linear().len());
        let payload = self.len() - headers;
        // Position of the slice in the payload.
        let mut start = self.linear().len() - headers;
        let sums = start == 0 && self.sums_pieces_of(size);
        for frag in self.body_mut().frags_mut() {
            let end = start + frag.len();
            let pieces = (end - 1) / size - start / size + 1;
            pool.hold(frag, u32::try_from(pieces).unwrap_or(u32::MAX));
            start = end;
        }
        self.body().shared.set(true);
        Cutter {
            packet: self,
            size,
            linear: headers,
            frag: 0,
            skip: 0,
            left: payload,
            index: 0,
            sums,
        }
    }
}

impl Cutter<'_> {
    /// Returns the number of bytes left to cut.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Returns the next piece, with full headroom and the metadata of the packet, and the sum of
    /// its bytes if it is known. `None` at the domain's limit, if nothing is left, and if a piece
    /// would have too many slices.
    #[inline]
    pub fn next_piece(&mut self, pool: &mut Pool) -> Option<(Packet, Option<Sum>)> {
        let mut want = self.size.min(self.left);
        if want == 0 {
            return None;
        }
        let mut piece = pool.alloc_with(HEADROOM, Kind::Alone, self.packet.meta())?;
        pool.fetch_next();
        let linear = self.packet.linear();
        if self.linear < linear.len() {
            let part = &linear[self.linear..linear.len().min(self.linear + want)];
            // Linear bytes fit into a head without its headroom, unless `require_linear` moved more
            // of them there.
            if piece.append(pool, part) < part.len() {
                pool.free(piece);
                return None;
            }
            self.linear += part.len();
            self.left -= part.len();
            want -= part.len();
        }
        while want > 0 {
            if piece.frag_count() == FRAGS_MAX {
                pool.free(piece);
                return None;
            }
            let frag = &mut self.packet.body_mut().frags_mut()[self.frag];
            let len = want.min(frag.len() - self.skip);
            let part = frag.part(self.skip, len);
            self.skip += len;
            if self.skip == frag.len() {
                (self.frag, self.skip) = (self.frag + 1, 0);
            }
            piece.charge_frag(part);
            piece.body().shared.set(true);
            self.left -= len;
            want -= len;
        }
        let sum = self.sums.then(|| self.packet.piece_sum(self.index));
        self.index += 1;
        Some((piece, sum))
    }
}

impl Packet {
    /// Copies the last `count` bytes of `template` in front of the payload of a piece without
    /// headers, and returns them for amendment.
    ///
    /// # Panics
    ///
    /// If the packet does not have its full headroom, or `count` exceeds it.
    #[inline]
    pub fn push_template(&mut self, template: &HeadTemplate, count: usize) -> &mut [u8] {
        let body = self.body_mut();
        assert!(body.data == HEADROOM && count <= template.len());
        // The whole template is copied: a copy of constant length needs no call.
        body.head[..template.len()].copy_from_slice(template);
        body.data -= in_head(count);
        body.linear_len += in_head(count);
        &mut body.head[template.len() - count..template.len()]
    }
}
