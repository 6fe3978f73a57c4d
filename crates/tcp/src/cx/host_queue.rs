//! Packets of a connection below TCP, and the setting that limits them.
//!
//! Above: `stack::socket` counts packets in qdiscs and devices, and passes the number with every
//! call. Linux: `sk_wmem_alloc`, tcp_small_queue_check.
//!
//! Not here: the limit in bytes, and the handling of a connection that has reached it
//! (`segment::small_queue`).

/// The packets of a connection below TCP, as counted by the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQueue {
    /// Truesize of the connection's packets with payload in queues and devices, those on `cx.out`
    /// included.
    pub bytes: u32,
    /// Whether the layers below report completions, which resume a throttled connection. Without
    /// them a connection must not be throttled.
    pub completes: bool,
    /// Whether a queue below holds packets until their departure times (Linux: `SK_PACING_FQ`).
    pub paces: bool,
    /// Whether no layer below keeps packets: a packet that is handed down has left the host before
    /// this connection needs it again.
    pub direct: bool,
}

impl HostQueue {
    /// No packets, and no knowledge of the layers below.
    pub const NONE: Self = Self { bytes: 0, completes: false, paces: false, direct: false };
}

/// How the limit of TCP Small Queues is computed (`net.quietline.tsq_limit`). Each value follows a
/// version of Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TsqLimit {
    /// No limit.
    Off,
    /// Linux 3.6: `tcp_limit_output_bytes`, which is reached when the queued bytes equal it. A
    /// superframe (a packet of several segments) is at most half of the limit.
    Static131072Ge,
    /// Linux 3.13: the larger of `tcp_limit_output_bytes` and the bytes of a millisecond at the
    /// pacing rate.
    DynMax,
    /// Linux 4.4: the bytes of a millisecond at the pacing rate, but at least two packets, at most
    /// `tcp_limit_output_bytes`. Includes the exception of Linux 4.11: a connection with nothing in
    /// flight may send.
    DynMin2,
    /// Linux 5.0: as [`DynMin2`](Self::DynMin2), but paced connections have no upper bound.
    PacedExempt,
    /// Linux 6.19: as [`DynMin2`](Self::DynMin2), with the exception also for a connection that has
    /// one packet in flight.
    #[default]
    V619,
}

impl TsqLimit {
    /// Every value, oldest Linux version first.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::Static131072Ge,
        Self::DynMax,
        Self::DynMin2,
        Self::PacedExempt,
        Self::V619,
    ];

    /// Name of the value in the setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Static131072Ge => "static131072_ge",
            Self::DynMax => "dyn_max",
            Self::DynMin2 => "dyn_min2",
            Self::PacedExempt => "paced_exempt",
            Self::V619 => "v619",
        }
    }

    /// Returns the `tcp_limit_output_bytes` of the Linux versions that computed the limit this way.
    #[must_use]
    pub const fn default_limit_bytes(self) -> u32 {
        match self {
            Self::Static131072Ge | Self::DynMax => 131_072,
            Self::DynMin2 => 262_144,
            Self::PacedExempt => 1_048_576,
            Self::Off | Self::V619 => 4_194_304,
        }
    }
}
