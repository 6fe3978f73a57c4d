//! State of ACK compression: duplicate ACKs of the current hole, and segments that one ACK will
//! answer.
//!
//! Above: `segment::ack_compression`. Linux: `dup_ack_counter` and `compressed_ack` of struct
//! tcp_sock.
//!
//! Not here: the choice between an ACK now and a compressed one (`segment::ack_compression`).

use crate::wire::seq::SeqNum;

/// State of ACK compression of one connection.
#[derive(Clone, Debug)]
pub(crate) struct AckCompression {
    /// RCV.NXT at the current hole.
    pub(crate) rcv_nxt: SeqNum,
    /// Number of duplicate ACKs counted for this hole, up to three. ACKs in quick-ACK mode or with
    /// a D-SACK are not counted.
    pub(crate) dup_acks: u8,
    /// Number of segments that wait for one compressed ACK.
    pub(crate) compressed: u8,
}

impl AckCompression {
    pub(crate) const fn new() -> Self {
        Self { rcv_nxt: SeqNum(0), dup_acks: 0, compressed: 0 }
    }

    /// Returns whether segments wait for a compressed ACK.
    pub(crate) fn is_waiting(&self) -> bool {
        self.compressed > 0
    }

    /// Resets `compressed` after an ACK, which answers all waiting segments. Returns the number of
    /// ACKs that compression saved.
    pub(crate) fn on_ack_sent(&mut self) -> u8 {
        core::mem::take(&mut self.compressed)
    }

    /// Excludes the compressed ACK, which is about to be sent, from the number of saved ACKs.
    pub(crate) fn on_timeout(&mut self) {
        self.compressed = self.compressed.saturating_sub(1);
    }
}
