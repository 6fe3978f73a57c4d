//! The path of a connection to its peer: a dst entry, and the conditions under which it is valid.
//!
//! Above: connections.

use std::ops::Deref;

use pkt::Instant;

use crate::transmit::dst::{Dst, DstRef};

use super::exception::Stamp;

/// A socket's cached path to one destination: a dst entry, and the properties of this destination
/// alone. Linux: `sk_dst_cache` with the `fnhe` of its route.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) dst: DstRef,
    /// Generation of the routes that selected the entry. The entry itself may be of another
    /// generation: its next hop is the same, but the choice may have changed.
    pub(crate) generation: u32,
    /// Stamp of the path MTU exceptions when this path was resolved.
    pub(crate) exception: Stamp,
    /// Expiry of the exception (RFC 1191 §6.3); in the far future without one.
    pub(crate) expires: Instant,
}

impl Deref for Path {
    type Target = Dst;

    fn deref(&self) -> &Dst {
        &self.dst
    }
}
