//! Access to the private parsers of packet sockets, for the fuzz targets `packet_ring` and
//! `control`.
//!
//! Above: `fuzz/`. The module exists in builds for fuzzing (`cfg(fuzzing)`, which cargo-fuzz sets)
//! and for tests, not in programs that use the crate.
//!
//! Not here: the properties of a parser. The fuzz targets check them.

use pkt::{DropReason, Packet};

use super::receive::Received;
pub use super::receive::fuzzing::{BLOCK_BYTES, BLOCKS, Ring, SLOT_BYTES, SLOTS};
pub use super::recvmsg::fuzzing::{CONTROL_BYTES, Calls};

/// Result of parsing a frame.
#[derive(Debug)]
pub enum Found {
    /// A good frame.
    Good(Packet),
    /// A frame that is dropped.
    Bad(DropReason, Packet),
    /// A frame that exceeds its slot or block.
    Broken,
    /// No frame waits.
    Empty,
    /// No packet memory is left.
    NoMemory,
}

impl From<Received> for Found {
    fn from(received: Received) -> Self {
        match received {
            Received::Good(packet) => Self::Good(packet),
            Received::Bad(reason, packet) => Self::Bad(reason, packet),
            Received::Broken => Self::Broken,
            Received::Empty => Self::Empty,
            Received::NoMemory => Self::NoMemory,
        }
    }
}
