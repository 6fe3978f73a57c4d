//! Sizes that several modules share: frames of a poll, bytes of a superframe, bytes in a device queue.
//!
//! Above: the settings, which have them as defaults and bounds, and the steps that obey them.

/// Frames one poll of one queue may take, where `net.core.dev_weight` does not say less: NAPI's weight, and what a
/// [`Batch`](pkt::Batch) holds.
pub const WEIGHT: usize = 64;

/// What a superframe stays below where the settings of the device say nothing else (`gro_max_size`): what the length field of
/// an IPv4 header can say, and one more.
pub const GRO_BYTES_MAX: u32 = 65_536;

/// Largest superframe where nothing says otherwise: what the length field of an IPv4 header can say.
pub const GSO_BYTES_MAX: u32 = 65_535;

/// Largest superframe at all (BIG TCP), eight times as much, as in Linux (`GSO_MAX_SIZE`): 17 fragments hold it, 32 KiB each.
pub const BIG_TCP_BYTES_MAX: u32 = 8 * GSO_BYTES_MAX;

/// The largest byte queue limit: no two counts may be so far apart that their difference turns round (`DQL_MAX_LIMIT`).
pub const BQL_LIMIT_MAX: u32 = u32::MAX / 2 - u32::MAX / 16;
