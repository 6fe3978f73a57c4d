//! Memory pressure, which the stack passes to the engine with every call.
//!
//! Above: `stack` accounts for the memory of the host (`net.ipv4.tcp_mem`) and puts the result into
//! `Cx`. Linux: __sk_mem_raise_allocated, tcp_under_memory_pressure.
//!
//! The degree of pressure depends on the pages of all connections and on the previous degree
//! (table). The stack applies the same rule to the use of packet memory and passes the worse
//! degree.
//!
//! | pages | after `None` | after `Pressure` or `Exhausted` |
//! |---|---|---|
//! | below `tcp_mem[0]` | `None` | `None` |
//! | `tcp_mem[0]` to `tcp_mem[1]` | `None` | `Pressure` |
//! | `tcp_mem[1]` to `tcp_mem[2]` | `Pressure` | `Pressure` |
//! | above `tcp_mem[2]` | `Exhausted` | `Exhausted` |
//!
//! Not here: the reaction of a connection to pressure (`tcb::memory`).

/// Degree of memory scarcity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Memory is sufficient for all connections.
    #[default]
    None,
    /// `tcp_mem[1]` was exceeded and usage is not yet below `tcp_mem[0]`: no buffer grows.
    Pressure,
    /// `tcp_mem[2]` is exceeded: no connection is granted more than a few kilobytes.
    Exhausted,
}

/// State of the host's TCP memory, as the stack has computed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryState {
    /// Degree of scarcity.
    pub pressure: MemoryPressure,
    /// Number of bytes up to which a connection is granted more memory under pressure: `tcp_mem[2]`
    /// divided by the number of connections.
    pub share_bytes: u32,
}

impl MemoryState {
    /// Unlimited memory.
    pub const PLENTY: Self = Self { pressure: MemoryPressure::None, share_bytes: u32::MAX };

    /// Whether buffers and windows may grow.
    pub(crate) fn is_plenty(&self) -> bool {
        self.pressure == MemoryPressure::None
    }

    /// Whether a connection that holds `bytes` is denied more memory.
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
