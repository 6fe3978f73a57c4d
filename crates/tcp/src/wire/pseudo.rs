//! The checksum of a segment's pseudo-header.
//!
//! RFC 9293 §3.1. The sum of the addresses is computed once per connection; the length is added for
//! each segment.

use pkt::checksum::{self, Sum};

use crate::wire::four_tuple::FourTuple;

/// Protocol number of TCP in a pseudo-header.
const PROTOCOL_TCP: u8 = 6;

/// Returns the folded sum of the addresses and the protocol, which all segments of a connection
/// share. The length is not included.
pub(crate) fn pseudo_sum(tuple: &FourTuple) -> u16 {
    checksum::pseudo_header(tuple.local.ip(), tuple.remote.ip(), PROTOCOL_TCP, 0).fold()
}

/// Returns the sum of a whole pseudo-header: `pseudo_sum` plus the length of the segment.
#[inline]
pub(crate) fn pseudo_header(pseudo_sum: u16, len: usize) -> u16 {
    let mut sum = Sum::from_folded(pseudo_sum);
    sum.add_u32(u32::try_from(len).unwrap_or(u32::MAX));
    sum.fold()
}
