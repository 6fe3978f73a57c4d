//! Dispatch to the algorithm of a connection: one `match` for each decision.
//!
//! Above: `congestion`, which has the parts that all algorithms share. Linux: struct
//! tcp_congestion_ops.
//!
//! The enum is closed: a new algorithm needs a variant, a file beside `reno.rs`, and an arm in each
//! `match`.

use alloc::boxed::Box;

use super::{
    AckSample, Algorithm, bbr::Bbr, cubic::Cubic, dctcp::Dctcp, reno::Reno, window::Window,
};

/// The algorithm of a connection, with its state.
#[derive(Clone, Debug)]
pub(super) enum Policy {
    Cubic(Cubic),
    Reno(Reno),
    /// Boxed, because it is large and only connections that choose BBR need it.
    Bbr(Box<Bbr>),
    Dctcp(Dctcp),
}

impl Policy {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Cubic => Self::Cubic(Cubic::default()),
            Algorithm::Reno => Self::Reno(Reno::default()),
            Algorithm::Bbr => Self::Bbr(Box::new(Bbr::new())),
            Algorithm::Dctcp => Self::Dctcp(Dctcp::default()),
        }
    }

    pub(super) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Cubic(_) => Algorithm::Cubic,
            Self::Reno(_) => Algorithm::Reno,
            Self::Bbr(_) => Algorithm::Bbr,
            Self::Dctcp(_) => Algorithm::Dctcp,
        }
    }

    /// Whether the algorithm uses acknowledgments only to grow the window: it has no model and
    /// counts no ECN marks.
    pub(super) const fn counts_growth_only(&self) -> bool {
        matches!(self, Self::Cubic(_) | Self::Reno(_))
    }

    /// Returns the model of an algorithm that has one. Such an algorithm sets the window itself,
    /// with every ACK.
    pub(super) fn model(&mut self) -> Option<&mut Bbr> {
        match self {
            Self::Bbr(bbr) => Some(bbr),
            _ => None,
        }
    }

    /// Grows the window in congestion avoidance, after `counted` bytes were acknowledged.
    pub(super) fn avoid(&mut self, window: &mut Window, counted: u32, sample: &AckSample) {
        match self {
            Self::Cubic(cubic) => cubic.avoid(window, counted, sample),
            Self::Reno(reno) => reno.avoid(window, counted),
            Self::Dctcp(dctcp) => dctcp.avoid(window, counted),
            Self::Bbr(_) => {}
        }
    }

    /// Handles a loss and returns the new `ssthresh`.
    pub(super) fn on_loss(&mut self, window: &Window) -> u32 {
        match self {
            Self::Cubic(cubic) => cubic.on_loss(window),
            Self::Reno(reno) => reno.on_loss(window),
            Self::Dctcp(dctcp) => dctcp.on_loss(window),
            Self::Bbr(_) => window.ssthresh,
        }
    }

    /// Handles a congestion mark and returns the new `ssthresh`: the same as for a loss
    /// (RFC 3168 §6.1.2), except in DCTCP.
    pub(super) fn on_mark(&mut self, window: &Window) -> u32 {
        match self {
            Self::Dctcp(dctcp) => dctcp.on_mark(window),
            _ => self.on_loss(window),
        }
    }

    pub(super) fn on_rto(&mut self) {
        match self {
            Self::Cubic(cubic) => cubic.on_rto(),
            Self::Reno(reno) => reno.on_rto(),
            Self::Dctcp(dctcp) => dctcp.on_rto(),
            Self::Bbr(_) => {}
        }
    }

    /// Stops the algorithm's time while the window is not used.
    pub(super) fn pause(&mut self, now: pkt::Instant) {
        if let Self::Cubic(cubic) = self {
            cubic.pause(now);
        }
    }
}
