//! The limit of the send buffer, and the condition for a socket to be writable.
//!
//! Above: `socket::api`, `input::ack`, `tcb::memory`. Linux: tcp_sndbuf_expand,
//! sk_stream_write_space, sk_stream_moderate_sndbuf.
//!
//! Not here: the queue itself (`send_queue`).

use crate::{
    cx::Cx,
    tcb::{Tcb, TcbFlags},
};

/// Overhead of a segment in the send buffer: headers and descriptor (Linux `tcp_sndbuf_expand`).
const SEGMENT_OVERHEAD_BYTES: u32 = 1024;

impl Tcb {
    /// Whether the socket is writable: a third of the buffer is free (Linux
    /// `sk_stream_min_wspace`), fewer bytes are unsent than half of `TCP_NOTSENT_LOWAT` (Linux
    /// `__tcp_stream_memory_free` with `wake`), and after a write that failed for lack of memory,
    /// memory is available again. The thresholds keep a writer from being woken for every segment.
    ///
    /// `SO_SNDLOWAT` is always 1 and cannot be set, as in Linux.
    pub(crate) fn has_write_space(&self) -> bool {
        let queued = self.send_queue.wmem_queued();
        let free = self.sndbuf.saturating_sub(queued);
        let drained = || u64::from(self.not_sent()) * 2 < u64::from(self.not_sent_lowat);
        let suppressed = self.flags.contains(TcbFlags::WRITE_SUPPRESSED);
        free >= queued / 2
            && free > 0
            && !suppressed
            && (self.not_sent_lowat == u32::MAX || drained())
    }

    /// Returns the number of bytes that are queued and were never sent.
    pub(crate) fn not_sent(&self) -> u32 {
        self.send_queue.write_seq().since(self.snd_nxt)
    }

    /// Grows the send buffer to twice the congestion window and its overhead, so that the
    /// application fills one half while the other is in flight (Linux `tcp_sndbuf_expand`).
    #[inline]
    pub(crate) fn grow_sndbuf(&mut self, cx: &Cx<'_>) {
        if self.flags.contains(TcbFlags::SNDBUF_LOCKED) || !cx.memory.is_plenty() {
            return;
        }
        let (cwnd, mss) = (self.congestion.cwnd(), self.mss.effective());
        if self.sndbuf_follows == (cwnd, mss) {
            // The limit was already raised for these values.
            return;
        }
        let window = cwnd.max(self.congestion.initial_window());
        let overhead = (window / mss).saturating_mul(SEGMENT_OVERHEAD_BYTES);
        let wanted = window.saturating_add(overhead).saturating_mul(2);
        let max = cx.config.tcp_wmem.max;
        self.sndbuf = self.sndbuf.max(wanted.min(max));
        // At its upper bound the buffer may be too small to fill the congestion window, which then
        // stops changing. The bound is a setting that may be raised, so the next call computes the
        // size again.
        self.sndbuf_follows = if wanted > max { (0, 0) } else { (cwnd, mss) };
    }

    /// Reduces the send buffer to `bytes`, but not below `min`, because memory is scarce. A size
    /// that the application has set is kept.
    pub(crate) fn moderate_sndbuf(&mut self, bytes: u32, min: u32) {
        if !self.flags.contains(TcbFlags::SNDBUF_LOCKED) {
            self.sndbuf = self.sndbuf.min(bytes.max(min));
            self.sndbuf_follows = (0, 0);
        }
    }
}
