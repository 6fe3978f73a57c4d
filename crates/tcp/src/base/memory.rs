//! How scarce memory for TCP is, as the stack tells the engine with every call.
//!
//! Above: `stack` keeps the account of a host (`net.ipv4.tcp_mem`) and puts its verdict into `Cx`.
//! Linux: __sk_mem_raise_allocated, tcp_under_memory_pressure.
//!
//! ```text
//!   pages of all connections    0 ------- low ------- pressure ------- high
//!   verdict                       None     '-- stays -->  Pressure      Exhausted
//! ```
//!
//! Not here: what a connection does without (`tcb::memory`).

/// How scarce memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Enough for everybody.
    #[default]
    None,
    /// `tcp_mem[1]` was exceeded and `tcp_mem[0]` is not yet reached again: nobody grows.
    Pressure,
    /// `tcp_mem[2]` is exceeded: nobody gets any.
    Exhausted,
}

/// What the engine is told of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryState {
    /// How scarce it is.
    pub pressure: MemoryPressure,
    /// Under pressure: bytes of memory that a connection may hold and still get more, `tcp_mem[2]` over the connections.
    pub share_bytes: u32,
}

impl MemoryState {
    /// Memory without end.
    pub const PLENTY: Self = Self { pressure: MemoryPressure::None, share_bytes: u32::MAX };

    /// Buffers and windows may grow.
    pub(crate) fn is_plenty(&self) -> bool {
        self.pressure == MemoryPressure::None
    }

    /// A connection that holds `bytes` gets no more.
    pub(crate) fn suppresses(&self, bytes: u32) -> bool {
        match self.pressure {
            MemoryPressure::None => false,
            MemoryPressure::Pressure => bytes > self.share_bytes,
            MemoryPressure::Exhausted => true,
        }
    }
}

impl Default for MemoryState {
    fn default() -> Self {
        Self::PLENTY
    }
}
