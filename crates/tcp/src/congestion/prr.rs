//! Proportional rate reduction: in recovery, the bytes sent are proportional to the bytes
//! delivered.
//!
//! Above: `congestion`, during SACK recovery and after an ECN mark. RFC 6937bis
//! (draft-ietf-tcpm-prr-rfc6937bis); Linux: tcp_cwnd_reduction.
//!
//! With every ACK the window is set to the bytes in flight plus the bytes that may be sent. The
//! flight is then near `ssthresh` at the end of recovery, and sending neither pauses for half a
//! round trip nor bursts afterwards.

/// State of one reduction. Names as in the draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    /// Bytes delivered since recovery began.
    delivered: u64,
    /// Bytes sent since recovery began.
    out: u64,
    /// Window at the start of recovery, which replaces the draft's RecoverFS: the reduction is a
    /// fraction of it (Linux: prior_cwnd).
    before: u64,
}

impl Prr {
    pub(super) fn new(before: u32) -> Self {
        Self { delivered: 0, out: 0, before: u64::from(before.max(1)) }
    }

    pub(super) fn on_transmitted(&mut self, bytes: u32) {
        self.out += u64::from(bytes);
    }

    /// Returns the new window after `delivered` bytes arrived and `pipe` bytes remain in flight.
    /// `safe` when SND.UNA advanced and no further loss was detected: the path can then take one
    /// segment more than it delivers.
    pub(super) fn on_ack(
        &mut self,
        delivered: u32,
        pipe: u32,
        ssthresh: u32,
        mss: u32,
        safe: bool,
    ) -> u32 {
        self.delivered += u64::from(delivered);
        let (pipe, ssthresh, mss) = (u64::from(pipe), u64::from(ssthresh), u64::from(mss));
        let mut room = if pipe > ssthresh {
            (self.delivered * ssthresh).div_ceil(self.before).saturating_sub(self.out)
        } else {
            let arrived = self.delivered.saturating_sub(self.out).max(u64::from(delivered));
            (arrived + if safe { mss } else { 0 }).min(ssthresh - pipe)
        };
        if self.out == 0 {
            // The first retransmission of recovery.
            room = room.max(mss);
        }
        u32::try_from(pipe + room).unwrap_or(u32::MAX)
    }
}
