//! Sizes shared by several modules: frames per poll, bytes of a superframe (a packet of several
//! segments, GRO or GSO), bytes in a device queue.
//!
//! Above: the settings, whose defaults and bounds these are, and the data path.

/// Maximum frames per poll of a queue, unless `net.core.dev_weight` is smaller: NAPI's weight, and
/// the capacity of a [`Batch`](pkt::Batch).
pub const WEIGHT: usize = 64;

/// Default of `gro_max_size`, in bytes: a received superframe must stay below this size, which is
/// one more than the maximum of an IPv4 length field.
pub const GRO_BYTES_MAX: u32 = 65_536;

/// Default size of the largest transmitted superframe, in bytes: the maximum of an IPv4 length
/// field.
pub const GSO_BYTES_MAX: u32 = 65_535;

/// Largest possible superframe (BIG TCP), in bytes: eight times [`GSO_BYTES_MAX`], as in Linux
/// (`GSO_MAX_SIZE`). A packet's 17 fragments of 32 KiB hold it.
pub const BIG_TCP_BYTES_MAX: u32 = 8 * GSO_BYTES_MAX;

/// Largest byte queue limit: two counters must never be so far apart that their difference wraps
/// (`DQL_MAX_LIMIT`).
pub const BQL_LIMIT_MAX: u32 = u32::MAX / 2 - u32::MAX / 16;
