//! Packets that a connection has below TCP, and the setting that limits them.
//!
//! Above: `stack::socket` counts packets in qdiscs and devices, and passes the number with every
//! call. Linux: `sk_wmem_alloc`, tcp_small_queue_check.
//!
//! Not here: the limit in bytes, and a connection that has reached it (`segment::small_queue`).

/// What a connection has below TCP, as the stack counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQueue {
    /// Truesize of its packets in queues and devices, those on `cx.out` included.
    pub bytes: u32,
    /// Completions are told, so that who stops is resumed. Without them nothing may stop.
    pub completes: bool,
    /// A queue below holds packets until their departure times (Linux: `SK_PACING_FQ`).
    pub paces: bool,
    /// Nothing below keeps a packet: what is handed down has left the host before this connection asks for it again.
    pub direct: bool,
}

impl HostQueue {
    /// Nothing, and nobody has looked at what is below.
    pub const NONE: Self = Self { bytes: 0, completes: false, paces: false, direct: false };
}

/// How the limit is found (`net.quietline.tsq_limit`): as the versions of Linux did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TsqLimit {
    /// No limit.
    Off,
    /// Linux 3.6: `tcp_limit_output_bytes`, reached when it is met. Superframes are at most half of it.
    Static131072Ge,
    /// Linux 3.16: that, or a millisecond of the pace, whichever is more.
    DynMax,
    /// Linux 4.4: a millisecond of the pace but at least two packets, at most `tcp_limit_output_bytes`. With the exception that
    /// Linux 4.11 added: a connection that has nothing in flight may send.
    DynMin2,
    /// Linux 5.0: as [`DynMin2`](Self::DynMin2), and paced connections know no upper bound.
    PacedExempt,
    /// Linux 6.19: as [`DynMin2`](Self::DynMin2), with an exception also for a connection that has one packet in flight.
    #[default]
    V619,
}

impl TsqLimit {
    /// Every way, in the order of its age.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::Static131072Ge,
        Self::DynMax,
        Self::DynMin2,
        Self::PacedExempt,
        Self::V619,
    ];

    /// Its name.
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

    /// `tcp_limit_output_bytes` of the versions of Linux that had it.
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
