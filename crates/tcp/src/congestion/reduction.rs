//! Reductions of the window after a loss, an ECN mark or a timeout, and their undo.
//!
//! Above: `loss::recovery`. RFC 5681 §3.1–3.2, RFC 6582 §3.2, RFC 3168 §6.1.2, RFC 6937bis. The
//! algorithm (`policy`) decides the size of a reduction.
//!
//! An algorithm with a model (BBR) is only notified of these events and bounds the window itself,
//! except that a timeout lowers the window to one segment until its recovery ends.

use alloc::boxed::Box;

use super::{Congestion, policy::Policy, prr::Prr, window::Window};

/// Segments that left the network before fast retransmit: one for each of the three duplicate
/// acknowledgments.
const DUP_ACK_SEGMENTS: u32 = 3;

/// State that an undo restores.
#[derive(Clone, Debug)]
pub(super) struct Prior {
    cwnd: u32,
    ssthresh: u32,
    /// `None` for a model, which restores its own state.
    policy: Option<Policy>,
}

impl Prior {
    pub(super) fn rescale(&mut self, rescale: impl Fn(u32) -> u32) {
        (self.cwnd, self.ssthresh) = (rescale(self.cwnd), rescale(self.ssthresh));
    }
}

impl Congestion {
    /// Begins fast retransmit: RFC 6582 §3.2, step 2. `in_flight` is FlightSize before the
    /// retransmission, without segments sent by limited transmit. Does not reduce `ssthresh` again
    /// when a mark has already reduced it in this window.
    pub fn on_enter_recovery(&mut self, in_flight: u32) {
        if self.notify_model_of_recovery() {
            return;
        }
        if self.prr.take().is_none() {
            self.reduce_ssthresh();
        }
        let Window { ssthresh, mss, .. } = self.window;
        self.window.set_cwnd(ssthresh.saturating_add(DUP_ACK_SEGMENTS * mss));
        self.inflation_left = in_flight.saturating_sub(DUP_ACK_SEGMENTS * mss);
    }

    /// Inflates the window for a further duplicate acknowledgment in recovery, because a segment
    /// has left the network (RFC 5681 §3.2, step 4).
    pub fn on_dup_ack(&mut self) {
        let inflation = self.window.mss.min(self.inflation_left);
        self.inflation_left -= inflation;
        self.window.set_cwnd(self.window.cwnd + inflation);
    }

    /// Deflates the window for a partial acknowledgment, which does not cover all data that was in
    /// flight when recovery began: RFC 6582 §3.2, step 3. `in_flight` is FlightSize after the ACK.
    pub fn on_partial_ack(&mut self, acked_bytes: u32, in_flight: u32) {
        if self.policy.model().is_some() {
            return;
        }
        let mss = self.window.mss;
        // Deflate by the acknowledged bytes, and allow one new segment if at least one arrived.
        let add_back = if acked_bytes >= mss { mss } else { 0 };
        self.window.set_cwnd(self.window.cwnd.saturating_sub(acked_bytes).saturating_add(add_back));
        self.inflation_left = in_flight;
    }

    /// Ends recovery when all data that was in flight at its start is acknowledged: RFC 6582 §3.2,
    /// step 3, in the variant that avoids a burst. `in_flight` is FlightSize after the ACK.
    pub fn on_exit_recovery(&mut self, in_flight: u32) {
        self.inflation_left = 0;
        if let Some(bbr) = self.policy.model() {
            return bbr.on_recovered(&mut self.window);
        }
        let Window { ssthresh, mss, .. } = self.window;
        self.window.set_cwnd(ssthresh.min(in_flight.max(mss).saturating_add(mss)));
    }

    /// Begins SACK recovery, in which [`Congestion::on_recovery_ack`] sets the window. If a mark
    /// has already begun a reduction in the same window, that reduction continues.
    pub fn on_enter_sack_recovery(&mut self) {
        if self.notify_model_of_recovery() || self.prr.is_some() {
            return;
        }
        let before = self.window.cwnd;
        self.reduce_ssthresh();
        self.prr = Some(Prr::new(before));
    }

    /// Handles an echoed congestion mark, once per window, like a loss (RFC 3168 §6.1.2). The
    /// reduction cannot be undone, because the mark is a signal of the router and not an inference.
    pub fn on_mark(&mut self) {
        if self.policy.model().is_some() {
            return;
        }
        self.hystart = None;
        let ssthresh = self.policy.on_mark(&self.window);
        self.window.set_ssthresh(ssthresh);
        self.prior = None;
        self.prr = Some(Prr::new(self.window.cwnd));
    }

    /// Sets the window on an ACK in SACK recovery or after a mark: `delivered` bytes arrived,
    /// `pipe` bytes are in flight. `safe` when SND.UNA advanced and no further loss was detected.
    pub fn on_recovery_ack(&mut self, delivered: u32, pipe: u32, safe: bool) {
        let Window { ssthresh, mss, .. } = self.window;
        if let Some(prr) = &mut self.prr {
            let cwnd = prr.on_ack(delivered, pipe, ssthresh, mss, safe);
            self.window.set_cwnd(cwnd);
        }
    }

    /// Counts bytes that were sent, first transmissions and retransmissions.
    pub fn on_transmitted(&mut self, bytes: u32) {
        if let Some(prr) = &mut self.prr {
            prr.on_transmitted(bytes);
        }
    }

    /// Ends SACK recovery, recovery after a timeout or the reduction after a mark, when all data
    /// that was in flight at its start is acknowledged.
    pub fn on_recovery_complete(&mut self) {
        if let Some(bbr) = self.policy.model() {
            bbr.on_recovered(&mut self.window);
        }
        if self.prr.take().is_some() {
            self.window.set_cwnd(self.window.ssthresh);
        }
    }

    /// Reduces the window at once for a loss that is detected after its repair (RFC 8985 §7.4.2).
    pub fn on_repaired_loss(&mut self) {
        if self.policy.model().is_some() {
            return;
        }
        self.reduce_ssthresh();
        self.window.set_cwnd(self.window.ssthresh.min(self.window.cwnd));
    }

    /// Handles an expired retransmission timer: RFC 5681 §3.1, equation 4, and the loss window.
    /// `repeated` when the same data timed out before or recovery was in progress, so that
    /// `ssthresh` is already reduced.
    pub fn on_rto(&mut self, repeated: bool) {
        if !repeated {
            self.reduce_ssthresh();
        }
        self.inflation_left = 0;
        self.prr = None;
        self.policy.on_rto();
        if let Some(bbr) = self.policy.model() {
            bbr.on_rto(&self.window);
        }
        self.window.set_cwnd(self.window.mss);
    }

    /// Undoes the last reduction, which was spurious (Eifel, F-RTO, D-SACK): `cwnd` and `ssthresh`
    /// return at least to their previous values.
    pub fn undo(&mut self) {
        if let Some(bbr) = self.policy.model() {
            bbr.on_undo();
        }
        if let Some(prior) = self.prior.take() {
            let Prior { cwnd, ssthresh, policy } = *prior;
            if let Some(policy) = policy {
                self.policy = policy;
            }
            self.window.set_cwnd(self.window.cwnd.max(cwnd));
            self.window.ssthresh = self.window.ssthresh.max(ssthresh);
            self.inflation_left = 0;
            self.prr = None;
        } else if self.prr.take().is_some() {
            // A mark in the same window caused this reduction, so `ssthresh` stays reduced.
            self.window.set_cwnd(self.window.cwnd.max(self.window.ssthresh));
        }
    }

    /// Notifies the model that recovery begins, and saves window and threshold for an undo. Returns
    /// false, and does nothing, if the algorithm has no model.
    fn notify_model_of_recovery(&mut self) -> bool {
        let Some(bbr) = self.policy.model() else { return false };
        bbr.on_enter_recovery(&self.window);
        let Window { cwnd, ssthresh, .. } = self.window;
        self.prior = Some(Box::new(Prior { cwnd, ssthresh, policy: None }));
        true
    }

    fn reduce_ssthresh(&mut self) {
        let Window { cwnd, ssthresh, .. } = self.window;
        let policy = self.policy.model().is_none().then(|| self.policy.clone());
        self.prior = Some(Box::new(Prior { cwnd, ssthresh, policy }));
        // RFC 9406 §4.2: HyStart++ is for the first slow start only.
        self.hystart = None;
        let ssthresh = self.policy.on_loss(&self.window);
        self.window.set_ssthresh(ssthresh);
    }
}
