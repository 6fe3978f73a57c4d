//! Proportional rate reduction: during recovery as much leaves as arrives, in proportion to the reduction.
//!
//! Above: `congestion` while recovery with SACK runs. RFC 6937bis (draft-ietf-tcpm-prr-rfc6937bis); Linux:
//! tcp_cwnd_reduction.
//!
//! The window is set to the pipe and what may leave, ACK by ACK: at the end of recovery the flight is near `ssthresh`, and
//! on the way there are neither the silence of half a round trip nor the burst after it.

/// Names as in the draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    /// Bytes delivered since recovery began.
    delivered: u64,
    /// Bytes sent since then.
    out: u64,
    /// The window when it began, where the draft has RecoverFS: the reduction is a share of it (Linux: prior_cwnd).
    before: u64,
}

impl Prr {
    pub(super) fn new(before: u32) -> Self {
        Self { delivered: 0, out: 0, before: u64::from(before.max(1)) }
    }

    pub(super) fn on_transmitted(&mut self, bytes: u32) {
        self.out += u64::from(bytes);
    }

    /// `delivered` bytes arrived and `pipe` are left: answers the new window. `safe` when SND.UNA moved and nothing more
    /// was found lost: the path then takes a segment more than it delivers.
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
            // The retransmission that begins recovery.
            room = room.max(mss);
        }
        u32::try_from(pipe + room).unwrap_or(u32::MAX)
    }
}
