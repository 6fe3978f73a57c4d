//! State of RACK: the latest of the transmissions that have arrived, and the reordering on the
//! network path.
//!
//! Above: `loss::rack`. RFC 8985 §5.3; Linux: struct tcp_rack.
//!
//! Not here: the decision which transmissions are lost (`loss::rack`).

use pkt::Instant;

use crate::{
    tcb::acked::{Acked, Transmission},
    wire::seq::SeqNum,
};

/// Number of recoveries after which an enlarged reordering window is reset (RFC 8985 §6.2 step 4:
/// RACK.reo_wnd_persist).
const PERSIST_RECOVERIES: u8 = 16;

/// State of RACK. Names as in RFC 8985 §5.3.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// Latest of the transmissions that have arrived: RACK.xmit_ts and RACK.end_seq.
    pub(crate) newest: Option<Transmission>,
    /// RACK.rtt: round-trip time of that transmission in nanoseconds.
    pub(crate) rtt_ns: u64,
    /// RACK.fack: end of the highest byte that arrived.
    fack: SeqNum,
    /// RACK.dsack_round: SND.NXT when the reordering window was last enlarged, which happens at
    /// most once per round trip.
    duplicate_round: Option<SeqNum>,
    /// RACK.reo_wnd_mult: reordering window in quarters of the minimum round-trip time.
    pub(crate) window_mult: u8,
    /// RACK.reo_wnd_persist: number of recoveries left until the reordering window is reset.
    persist: u8,
    /// RACK.reordering_seen: whether reordering was ever observed.
    pub(crate) reordering_seen: bool,
}

impl Rack {
    pub(crate) fn new(snd_una: SeqNum) -> Self {
        Self {
            newest: None,
            rtt_ns: 0,
            fack: snd_una,
            duplicate_round: None,
            window_mult: 1,
            persist: PERSIST_RECOVERIES,
            reordering_seen: false,
        }
    }

    /// Applies RFC 8985 §6.2 steps 2 and 3. Returns the distance in bytes by which later segments
    /// overtook a delivered one.
    pub(crate) fn on_delivered(
        &mut self,
        acked: &Acked,
        highest: SeqNum,
        now: Instant,
    ) -> Option<u32> {
        if let Some(newest) = acked.newest {
            self.on_newest(newest, now);
        }
        let overtaken = acked.lowest_original.filter(|lowest| lowest.lt(self.fack));
        let distance = overtaken.map(|lowest| self.fack.since(lowest));
        self.reordering_seen |= distance.is_some();
        self.on_highest(highest);
        distance
    }

    /// Records a delivered transmission if it was sent after all other delivered ones.
    #[inline]
    pub(crate) fn on_newest(&mut self, newest: Transmission, now: Instant) {
        if self.newest.is_none_or(|before| newest.is_after(&before)) {
            self.newest = Some(newest);
            self.rtt_ns = now.nanos_since(newest.sent_at);
        }
    }

    /// Records that bytes up to `highest` have arrived.
    #[inline]
    pub(crate) fn on_highest(&mut self, highest: SeqNum) {
        self.fack = self.fack.max(highest);
    }

    /// Returns RACK.fack.
    #[inline]
    pub(crate) fn fack(&self) -> SeqNum {
        self.fack
    }

    /// Enlarges the reordering window after a spurious retransmission was reported (RFC 8985 §6.2
    /// step 4).
    pub(crate) fn on_duplicate(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) {
        if self.duplicate_round.is_some_and(|round| snd_una.lt(round)) {
            return;
        }
        self.duplicate_round = Some(snd_nxt);
        self.window_mult = self.window_mult.saturating_add(1);
        self.persist = PERSIST_RECOVERIES;
    }

    /// Counts a recovery that has ended.
    pub(crate) fn on_recovery_end(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.window_mult = 1;
        }
    }
}
