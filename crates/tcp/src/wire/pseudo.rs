//! The sum over the pseudo-header of a segment.
//!
//! RFC 9293 §3.1. A connection sums its addresses once; each segment adds its length.

use pkt::checksum::{self, Sum};

use crate::wire::four_tuple::FourTuple;

/// Protocol number of TCP in a pseudo-header.
const PROTOCOL_TCP: u8 = 6;

/// What the pseudo-headers of a connection's segments have in common: all but their length, summed and folded.
pub(crate) fn pseudo_sum(tuple: &FourTuple) -> u16 {
    checksum::pseudo_header(tuple.local.ip(), tuple.remote.ip(), PROTOCOL_TCP, 0).fold()
}

/// The sum of a whole pseudo-header, of `pseudo_sum` and a segment of `len` bytes.
#[inline]
pub(crate) fn pseudo_header(pseudo_sum: u16, len: usize) -> u16 {
    let mut sum = Sum::from_folded(pseudo_sum);
    sum.add_u32(u32::try_from(len).unwrap_or(u32::MAX));
    sum.fold()
}
