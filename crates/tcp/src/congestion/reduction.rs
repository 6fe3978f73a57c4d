//! The window after a loss, a mark, a time-out; and back, when the loss was none.
//!
//! Above: `loss::recovery`. RFC 5681 §3.1–3.2, RFC 6582 §3.2, RFC 3168 §6.1.2, RFC 6937bis. How far it falls is the policy's.
//!
//! To a model (BBR) these are only news: its window follows its bounds.

use alloc::boxed::Box;

use super::{Congestion, policy::Policy, prr::Prr, window::Window};

/// Segments that left the network before fast retransmit: the three duplicate acknowledgments.
const DUP_ACK_SEGMENTS: u32 = 3;

/// What a reduction may return to.
#[derive(Clone, Debug)]
pub(super) struct Prior {
    cwnd: u32,
    ssthresh: u32,
    /// `None` for a model, which keeps its own.
    policy: Option<Policy>,
}

impl Prior {
    pub(super) fn rescale(&mut self, rescale: impl Fn(u32) -> u32) {
        (self.cwnd, self.ssthresh) = (rescale(self.cwnd), rescale(self.ssthresh));
    }
}

impl Congestion {
    /// Fast retransmit: RFC 6582 §3.2, step 2. `in_flight` is FlightSize before the retransmission,
    /// without segments sent by limited transmit. After a mark of the same window nothing is reduced again.
    pub fn on_enter_recovery(&mut self, in_flight: u32) {
        if self.tell_model_of_recovery() {
            return;
        }
        if self.prr.take().is_none() {
            self.reduce_ssthresh();
        }
        let Window { ssthresh, mss, .. } = self.window;
        self.window.set_cwnd(ssthresh.saturating_add(DUP_ACK_SEGMENTS * mss));
        self.inflation_left = in_flight.saturating_sub(DUP_ACK_SEGMENTS * mss);
    }

    /// A further duplicate acknowledgment in recovery: a segment left the network (RFC 5681 §3.2,
    /// step 4).
    pub fn on_dup_ack(&mut self) {
        let inflation = self.window.mss.min(self.inflation_left);
        self.inflation_left -= inflation;
        self.window.set_cwnd(self.window.cwnd + inflation);
    }

    /// New data was acknowledged, but not all that recovery began with: RFC 6582 §3.2, step 3.
    /// `in_flight` is FlightSize after it.
    pub fn on_partial_ack(&mut self, acked_bytes: u32, in_flight: u32) {
        if self.policy.model().is_some() {
            return;
        }
        let mss = self.window.mss;
        // Deflate by what left, and let one segment out when at least one arrived.
        let add_back = if acked_bytes >= mss { mss } else { 0 };
        self.window.set_cwnd(self.window.cwnd.saturating_sub(acked_bytes).saturating_add(add_back));
        self.inflation_left = in_flight;
    }

    /// All that recovery began with is acknowledged: RFC 6582 §3.2, step 3, the choice that avoids
    /// a burst. `in_flight` is FlightSize after it.
    pub fn on_exit_recovery(&mut self, in_flight: u32) {
        self.inflation_left = 0;
        if let Some(bbr) = self.policy.model() {
            return bbr.on_recovered(&mut self.window);
        }
        let Window { ssthresh, mss, .. } = self.window;
        self.window.set_cwnd(ssthresh.min(in_flight.max(mss).saturating_add(mss)));
    }

    /// Recovery with SACK begins. The window follows with [`Congestion::on_recovery_ack`]. After a mark of the same window
    /// the reduction that runs goes on.
    pub fn on_enter_sack_recovery(&mut self) {
        if self.tell_model_of_recovery() || self.prr.is_some() {
            return;
        }
        let before = self.window.cwnd;
        self.reduce_ssthresh();
        self.prr = Some(Prr::new(before));
    }

    /// The peer echoes a congestion mark: once per window, as for a loss (RFC 3168 §6.1.2). No later evidence takes it back:
    /// the router meant it.
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

    /// An ACK in recovery with SACK: `delivered` bytes arrived, `pipe` are in flight. `safe` when SND.UNA moved and
    /// nothing more was found lost.
    pub fn on_recovery_ack(&mut self, delivered: u32, pipe: u32, safe: bool) {
        let Window { ssthresh, mss, .. } = self.window;
        if let Some(prr) = &mut self.prr {
            let cwnd = prr.on_ack(delivered, pipe, ssthresh, mss, safe);
            self.window.set_cwnd(cwnd);
        }
    }

    /// Bytes were sent, for the first time or again.
    pub fn on_transmitted(&mut self, bytes: u32) {
        if let Some(prr) = &mut self.prr {
            prr.on_transmitted(bytes);
        }
    }

    /// Everything that recovery with SACK, or after a time-out, began with is acknowledged.
    pub fn on_recovery_complete(&mut self) {
        if let Some(bbr) = self.policy.model() {
            bbr.on_recovered(&mut self.window);
        }
        if self.prr.take().is_some() {
            self.window.set_cwnd(self.window.ssthresh);
        }
    }

    /// A loss is repaired already when it becomes known (RFC 8985 §7.4.2): the reduction at once.
    pub fn on_repaired_loss(&mut self) {
        if self.policy.model().is_some() {
            return;
        }
        self.reduce_ssthresh();
        self.window.set_cwnd(self.window.ssthresh.min(self.window.cwnd));
    }

    /// The retransmission timer expired: RFC 5681 §3.1, equation 4, and the loss window. `repeated`
    /// when the same data timed out before or was being recovered: `ssthresh` is then reduced
    /// already.
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

    /// The last reduction proved needless (Eifel, F-RTO, D-SACK): both variables return to at least
    /// what they were.
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
            // The mark of the same window stands.
            self.window.set_cwnd(self.window.cwnd.max(self.window.ssthresh));
        }
    }

    /// Answers whether there is a model, which then knows.
    fn tell_model_of_recovery(&mut self) -> bool {
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
        // RFC 9406 §4.2: for the first slow start only.
        self.hystart = None;
        let ssthresh = self.policy.on_loss(&self.window);
        self.window.set_ssthresh(ssthresh);
    }
}
