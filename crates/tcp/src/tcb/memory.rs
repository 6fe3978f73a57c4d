//! Memory that a connection holds, and what it does without while memory is scarce.
//!
//! Above: `socket::api` and `input::prune` ask before they queue. Below: the state of the host
//! (`base::memory`) in [`Cx`]. Linux: sk_stream_moderate_sndbuf, tcp_out_of_memory.
//!
//! Under pressure buffers and windows stop growing, the limit of the announced window falls to four
//! segments, and a connection that holds more than its share gets no more. When memory is exhausted
//! no connection gets any, except for the first few kilobytes of each direction (`tcp_rmem[0]`,
//! `tcp_wmem[0]`) that keep a connection alive.
//!
//! Not here: packets that are dropped to make room (`input::prune`), the account of the host
//! (`stack`), packet memory, whose own limit is a hard one.

use crate::{
    base::memory::{MemoryPressure, MemoryState},
    cx::Cx,
    tcb::Tcb,
};

/// Smallest send buffer that scarcity leaves a socket (Linux `SOCK_MIN_SNDBUF`).
const SNDBUF_MIN: u32 = 4608;

/// Segments that may be announced under pressure beyond what was promised.
pub(crate) const PRESSURE_SEGMENTS: u32 = 4;

impl Tcb {
    /// Memory that the connection's queues hold, in `truesize` bytes (Linux `sk_wmem_queued` and `sk_rmem_alloc`): what the
    /// host's account is charged, after every call.
    #[must_use]
    pub fn memory_bytes(&self) -> u32 {
        self.send_queue.wmem_queued().saturating_add(rmem_alloc(self))
    }
}

impl Tcb {
    /// Memory is exhausted and the connection's unsent data holds more than a minimum: one that nobody waits for is better
    /// ended (Linux `tcp_out_of_memory`).
    #[must_use]
    pub fn is_out_of_memory(&self, memory: &MemoryState) -> bool {
        memory.pressure == MemoryPressure::Exhausted && self.send_queue.wmem_queued() > SNDBUF_MIN
    }
}

/// The send queue gets no more memory. The buffer falls to half of what is queued, so that the socket is writable again
/// once the peer has acknowledged some of it.
pub(crate) fn suppresses_send(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
    let queued = tcb.send_queue.wmem_queued();
    if !cx.memory.suppresses(tcb.memory_bytes()) || queued < cx.config.tcp_wmem.min {
        return false;
    }
    tcb.moderate_sndbuf(queued / 2, SNDBUF_MIN);
    true
}

/// The receive queues get no more memory.
pub(crate) fn suppresses_receive(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    cx.memory.suppresses(tcb.memory_bytes()) && rmem_alloc(tcb) >= cx.config.tcp_rmem.min
}

/// Memory the receive side holds.
pub(crate) fn rmem_alloc(tcb: &Tcb) -> u32 {
    let waiting = u32::try_from(tcb.reassembly.truesize()).unwrap_or(u32::MAX);
    tcb.receive_queue.rmem_alloc().saturating_add(waiting)
}
