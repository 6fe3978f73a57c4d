//! A superframe comes apart: packets of one size each that share its payload.
//!
//! Above: software GSO. Linux: `skb_segment`.
//!
//! The references that the pieces take on the pages are taken in one step for each page slice, and what was summed while
//! the payload was copied (sums.rs) goes along.
//!
//! Not here: what stands in the headers (crate `stack`, gso.rs).

use crate::checksum::Sum;
use crate::packet::{FRAGS_MAX, HEADROOM, Kind, Packet, in_head};
use crate::pool::Pool;

/// What stands in front of the payload of every piece: as many of the last bytes as were asked for.
pub type HeadTemplate = [u8; HEADROOM as usize];

/// Cuts the payload of a packet into pieces, front to back. What is not taken stays in the packet.
#[derive(Debug)]
pub struct Cutter<'a> {
    packet: &'a mut Packet,
    /// Bytes of a piece; of the last one perhaps fewer.
    size: usize,
    /// Linear bytes that are left: from here to `linear_end` in `linear()`.
    linear: usize,
    /// The slice that the next byte lies in, and how many of its bytes are gone.
    frag: usize,
    skip: usize,
    /// Bytes left.
    left: usize,
    /// Pieces made.
    index: usize,
    /// What was summed is the pieces that are cut.
    sums: bool,
}

impl Packet {
    /// Begins to cut what lies behind the first `headers` bytes, which are linear, into pieces of `size` bytes.
    ///
    /// # Panics
    ///
    /// If `size` is zero, or the headers are not linear.
    pub fn cut<'a>(&'a mut self, pool: &mut Pool, headers: usize, size: usize) -> Cutter<'a> {
        assert!(size > 0 && headers <= self.linear().len());
        let payload = self.len() - headers;
        // Where the slice begins in the payload.
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
    /// Bytes that are left.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// The next piece, with full headroom and the metadata of the packet, and the sum of its bytes if it is known. `None` at the
    /// domain's limit, when nothing is left, and when a piece would have too many slices.
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
            // Linear bytes fill a head less its headroom at most, unless somebody has pulled them there.
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
    /// Puts the last `count` bytes of `template` in front of the payload of a piece that has no headers yet, and returns
    /// them to be amended.
    ///
    /// # Panics
    ///
    /// If the packet has not its full headroom, or `count` exceeds it.
    #[inline]
    pub fn push_template(&mut self, template: &HeadTemplate, count: usize) -> &mut [u8] {
        let body = self.body_mut();
        assert!(body.data == HEADROOM && count <= template.len());
        // The whole of it: a constant number of bytes is copied without a call.
        body.head[..template.len()].copy_from_slice(template);
        body.data -= in_head(count);
        body.linear_len += in_head(count);
        &mut body.head[template.len() - count..template.len()]
    }
}
