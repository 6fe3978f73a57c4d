//! Duplicate ACKs of the hole that is being answered, and segments that wait for a common ACK.
//!
//! Above: `segment::ack_compression`. Linux: `dup_ack_counter` and `compressed_ack` of struct
//! tcp_sock.
//!
//! Not here: which answer leaves at once and which waits (`segment::ack_compression`).

use crate::wire::seq::SeqNum;

/// See the module head.
#[derive(Clone, Debug)]
pub(crate) struct AckCompression {
    /// RCV.NXT of the hole that is being answered.
    pub(crate) rcv_nxt: SeqNum,
    /// Duplicate ACKs sent for it.
    pub(crate) dup_acks: u8,
    /// Segments since then that the next ACK answers together.
    pub(crate) compressed: u8,
}

impl AckCompression {
    pub(crate) const fn new() -> Self {
        Self { rcv_nxt: SeqNum(0), dup_acks: 0, compressed: 0 }
    }

    /// Segments wait for one ACK.
    pub(crate) fn is_waiting(&self) -> bool {
        self.compressed > 0
    }

    /// An ACK left: it answers everything. Answers how many ACKs it saved.
    pub(crate) fn on_ack_sent(&mut self) -> u8 {
        core::mem::take(&mut self.compressed)
    }

    /// The wait is over: the ACK that leaves is none of those saved.
    pub(crate) fn on_timeout(&mut self) {
        self.compressed = self.compressed.saturating_sub(1);
    }
}
