//! The path of a connection to its peer: an entry, and what makes it old.
//!
//! Above: connections.

use std::ops::Deref;

use pkt::Instant;

use crate::transmit::dst::{Dst, DstRef};

use super::exception::Stamp;

/// The way to one destination, as a socket keeps it: an entry, and what holds for this destination alone. Linux:
/// `sk_dst_cache` with the `fnhe` of its route.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) dst: DstRef,
    /// Number of the routes that say so. The entry may be of another: the next hop is the same, its choice may not be.
    pub(crate) generation: u32,
    /// What was known about the destination when this was resolved.
    pub(crate) exception: Stamp,
    /// When that counts no more (RFC 1191 §6.3); far away without an exception.
    pub(crate) expires: Instant,
}

impl Deref for Path {
    type Target = Dst;

    fn deref(&self) -> &Dst {
        &self.dst
    }
}
