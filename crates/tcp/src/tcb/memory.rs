//! Memory that a connection holds, and its restrictions while memory is scarce.
//!
//! Above: `socket::api` and `input::prune` call these functions before they queue data, and
//! `output` to find out whether a suppressed write is possible again. Below: the memory state of
//! the host (`base::memory`) in [`Cx`]. Linux: sk_stream_moderate_sndbuf, tcp_out_of_memory.
//!
//! Under pressure buffers and windows stop growing, the limit of the announced window falls to four
//! segments, and a connection that holds more than its share is denied more. When memory is
//! exhausted every connection is denied more. In both cases the first few kilobytes of each
//! direction (`tcp_rmem[0]`, `tcp_wmem[0]`), which keep a connection usable, are granted.
//!
//! Not here: packets that are dropped to release memory (`input::prune`), the memory accounting of
//! the host (`stack`), packet memory, which has a hard limit of its own.

use crate::{
    base::memory::{MemoryPressure, MemoryState},
    cx::Cx,
    tcb::Tcb,
};

/// Smallest send buffer to which scarcity reduces a socket (Linux `SOCK_MIN_SNDBUF`).
const SNDBUF_MIN: u32 = 4608;

/// Limit of the announced window under pressure, in full segments. A larger window that was
/// announced before is kept.
pub(crate) const PRESSURE_SEGMENTS: u32 = 4;

impl Tcb {
    /// Returns the memory of the connection's queues, in `truesize` bytes (Linux `sk_wmem_queued`
    /// and `sk_rmem_alloc`). The stack charges it to the host's account after every call.
    #[must_use]
    pub fn memory_bytes(&self) -> u32 {
        self.send_queue.wmem_queued().saturating_add(rmem_alloc(self))
    }
}

impl Tcb {
    /// Returns whether memory is exhausted and the send queue of the connection holds more than a
    /// minimum. An orphan is then aborted (Linux `tcp_out_of_memory`).
    #[must_use]
    pub fn is_out_of_memory(&self, memory: &MemoryState) -> bool {
        memory.pressure == MemoryPressure::Exhausted && self.send_queue.wmem_queued() > SNDBUF_MIN
    }
}

/// Returns whether the send queue is denied more memory. If so, reduces the send buffer to half of
/// the queued memory, so that the socket is writable again after the peer has acknowledged a part.
pub(crate) fn suppresses_send(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
    let queued = tcb.send_queue.wmem_queued();
    if !cx.memory.suppresses(tcb.memory_bytes()) || queued < cx.config.tcp_wmem.min {
        return false;
    }
    tcb.moderate_sndbuf(queued / 2, SNDBUF_MIN);
    true
}

/// Returns whether the receive queues are denied more memory.
pub(crate) fn suppresses_receive(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    cx.memory.suppresses(tcb.memory_bytes()) && rmem_alloc(tcb) >= cx.config.tcp_rmem.min
}

/// Returns the memory of the receive queues.
pub(crate) fn rmem_alloc(tcb: &Tcb) -> u32 {
    let waiting = u32::try_from(tcb.reassembly.truesize()).unwrap_or(u32::MAX);
    tcb.receive_queue.rmem_alloc().saturating_add(waiting)
}
