//! Congestion control: how many bytes may be in flight.
//!
//! Above: output asks [`Congestion::cwnd`]; input and the retransmission timer tell what happened
//! by `on_*`. RFC 5681, RFC 6582, RFC 6928, RFC 7661; Linux: tcp_cong.c, tcp_cwnd_validate().
//!
//! The window arithmetic that every algorithm shares is here: initial window, NewReno's inflation
//! and deflation in recovery, the collapse on a time-out, validation while the application is the
//! bottleneck, restart after idle, undo. An algorithm decides two things: the growth on an
//! acknowledgment and the new `ssthresh` on a loss. It is a variant of the closed `Policy`;
//! another one (DCTCP) adds a variant, its file beside `congestion/reno.rs` and an arm in
//! each `match`. One that steers by a model of the path (BBR) also reads the times in
//! [`AckSample`].
//!
//! `cwnd` and `ssthresh` are bytes, as in the RFCs; Linux keeps whole segments. What is asked for
//! in segments is multiplied by the current `mss`.
//!
//! The order of calls in one recovery: `on_enter_recovery`, then any of `on_dup_ack` and
//! `on_partial_ack`, then one of `on_exit_recovery` and `on_rto`. [`Congestion::on_ack`] belongs to
//! the open state and to slow start after a time-out, never to recovery.
//!
//! With SACK the window in recovery follows proportional rate reduction (`congestion/prr.rs`): `on_enter_sack_recovery`,
//! then `on_recovery_ack` for each ACK and `on_transmitted` for each segment, then `on_recovery_complete` or `on_rto`.
//!
//! Not here: when a loss is detected and what is sent again, pacing.

mod cubic;
mod hystart;
mod prr;
mod reno;
mod window;

use alloc::boxed::Box;
use core::time::Duration;

use pkt::Instant;

use self::cubic::Cubic;
use self::hystart::{HyStart, Verdict};
use self::prr::Prr;
use self::reno::Reno;
use self::window::{Usage, Window};
use crate::seq::SeqNum;

/// `ssthresh` before any loss: slow start has no end.
pub const SSTHRESH_INFINITE: u32 = u32::MAX;

/// `ssthresh` falls no lower, in segments (RFC 5681 §3.1, equation 4).
const SSTHRESH_SEGMENTS_MIN: u32 = 2;

/// Segments that left the network before fast retransmit: the three duplicate acknowledgments.
const DUP_ACK_SEGMENTS: u32 = 3;

/// An algorithm by name, as `net.ipv4.tcp_congestion_control` and `TCP_CONGESTION` know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// RFC 9438, with the slow start of RFC 9406.
    #[default]
    Cubic,
    /// RFC 5681 growth with RFC 6582 recovery.
    Reno,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 2] = [Self::Cubic, Self::Reno];

    /// Linux's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
        }
    }

    /// The algorithm of a name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// What a connection's window starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionConfig {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// Initial window in segments. 10: RFC 6928, Linux TCP_INIT_CWND.
    ///
    /// Differs from RFC 6928: no cap of 14,600 bytes, because Linux has none and ten large segments
    /// on a path with a large MTU are no more of a burst to it.
    pub initial_window_segments: u32,
    /// Bytes of one acknowledgment that slow start counts, in segments. `u32::MAX`: all.
    ///
    /// Differs from RFC 3465 (L = 2) as Linux does: receivers that merge segments acknowledge
    /// dozens at once, and counting two of them would make slow start slower the better the
    /// receiver is.
    pub slow_start_limit_segments: u32,
    /// The window grows no further, in bytes (Linux: snd_cwnd_clamp).
    pub cwnd_max_bytes: u32,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            initial_window_segments: 10,
            slow_start_limit_segments: u32::MAX,
            // No window announced by a peer can exceed 2^30 (RFC 7323 §2.3).
            cwnd_max_bytes: 1 << 30,
        }
    }
}

/// An acknowledgment of new data.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// When it arrived.
    pub now: Instant,
    /// Bytes it newly acknowledged.
    pub acked_bytes: u32,
    /// Round-trip time it measured, if it did.
    pub rtt: Option<Duration>,
    /// SND.UNA after it.
    pub snd_una: SeqNum,
    /// SND.NXT: a round of growth ends when `snd_una` passes the value noted at its start.
    pub snd_nxt: SeqNum,
}

/// What output did in one run.
#[derive(Clone, Copy, Debug)]
pub struct SendSample {
    /// When.
    pub now: Instant,
    /// Bytes in flight after it.
    pub in_flight: u32,
    /// The congestion window, and nothing else, kept more from being sent.
    pub cwnd_limited: bool,
    /// SND.UNA.
    pub snd_una: SeqNum,
    /// SND.NXT after it.
    pub snd_nxt: SeqNum,
    /// The time-out: how long an unused window stays trusted. `Duration::MAX` trusts it for ever,
    /// as `net.ipv4.tcp_slow_start_after_idle` = 0 asks.
    pub rto: Duration,
}

/// Congestion state of one connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: Window,
    policy: Policy,
    usage: Usage,
    /// What was before the last reduction, for [`Congestion::undo`]. Allocated with the first loss.
    prior: Option<Box<Prior>>,
    /// Bytes by which duplicate acknowledgments may still inflate the window (RFC 5681 §3.2, step
    /// 4): one segment for each that is outstanding, so that a flood of forged ones buys nothing.
    inflation_left: u32,
    /// Watches the first slow start for a growing queue; `None` once it is over, and for Reno.
    hystart: Option<HyStart>,
    /// Recovery with SACK runs.
    prr: Option<Prr>,
    initial_window_segments: u32,
    slow_start_limit_segments: u32,
}

/// What a reduction may return to.
#[derive(Clone, Debug)]
struct Prior {
    cwnd: u32,
    ssthresh: u32,
    policy: Policy,
}

/// The algorithm's own state.
#[derive(Clone, Debug)]
enum Policy {
    Cubic(Cubic),
    Reno(Reno),
}

impl Congestion {
    /// A connection that has sent nothing. `mss` in bytes; 0 counts as 1.
    #[must_use]
    pub fn new(config: &CongestionConfig, mss: u32) -> Self {
        let mss = mss.max(1);
        let cwnd_max = config.cwnd_max_bytes.max(SSTHRESH_SEGMENTS_MIN.saturating_mul(mss));
        let mut window = Window { cwnd: mss, ssthresh: SSTHRESH_INFINITE, mss, cwnd_max };
        window.set_cwnd(config.initial_window_segments.max(1).saturating_mul(mss));
        Self {
            window,
            policy: Policy::new(config.algorithm),
            usage: Usage::default(),
            prior: None,
            inflation_left: 0,
            hystart: hystart_of(config.algorithm),
            prr: None,
            initial_window_segments: config.initial_window_segments.max(1),
            slow_start_limit_segments: config.slow_start_limit_segments.max(1),
        }
    }

    /// Changes the algorithm; the window stays (`TCP_CONGESTION`).
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm() {
            self.policy = Policy::new(algorithm);
            self.hystart =
                hystart_of(algorithm).filter(|_| self.window.ssthresh == SSTHRESH_INFINITE);
        }
    }

    /// The segment size changed: negotiated, or by path MTU discovery. The window keeps its count
    /// of segments, because routers queue packets, not bytes.
    pub fn set_mss(&mut self, mss: u32) {
        let (old, new) = (u64::from(self.window.mss), u64::from(mss.max(1)));
        let rescale = |bytes: u32| u32::try_from(u64::from(bytes) * new / old).unwrap_or(u32::MAX);
        let Window { cwnd, ssthresh, .. } = self.window;
        self.window.mss = mss.max(1);
        self.window.cwnd_max = self.window.cwnd_max.max(SSTHRESH_SEGMENTS_MIN.saturating_mul(mss));
        self.window.set_cwnd(rescale(cwnd));
        if ssthresh != SSTHRESH_INFINITE {
            self.window.set_ssthresh(rescale(ssthresh));
        }
        if let Some(prior) = &mut self.prior {
            (prior.cwnd, prior.ssthresh) = (rescale(prior.cwnd), rescale(prior.ssthresh));
        }
    }

    /// The handshake lost a segment: the first flight is one segment (RFC 5681 §3.1).
    pub fn on_lossy_handshake(&mut self) {
        self.window.set_cwnd(self.window.mss);
    }

    /// New data was acknowledged outside recovery: the window may grow.
    ///
    /// A window the application does not fill says nothing about the path and stays (RFC 7661
    /// §4.3).
    ///
    /// Answers whether a growing round trip ended slow start.
    pub fn on_ack(&mut self, sample: &AckSample) -> bool {
        if !self.is_cwnd_limited() {
            if let Policy::Cubic(cubic) = &mut self.policy {
                cubic.pause(sample.now);
            }
            return false;
        }
        let mut stopped = false;
        let counted = if self.in_slow_start() {
            let divisor = match self.hystart.as_mut().map(|hystart| hystart.on_ack(sample)) {
                Some(Verdict::Stop) => {
                    stopped = true;
                    self.hystart = None;
                    self.window.set_ssthresh(self.window.cwnd);
                    1
                }
                Some(Verdict::Grow(divisor)) => divisor,
                None => 1,
            };
            let limit = self.slow_start_limit_segments.saturating_mul(self.window.mss);
            let counted = sample.acked_bytes.min(limit);
            let used = self.window.slow_start(counted / divisor);
            if self.in_slow_start() { 0 } else { counted.saturating_sub(used * divisor) }
        } else {
            sample.acked_bytes
        };
        if counted != 0 {
            match &mut self.policy {
                Policy::Cubic(cubic) => cubic.avoid(&mut self.window, counted, sample),
                Policy::Reno(reno) => reno.avoid(&mut self.window, counted),
            }
        }
        stopped
    }

    /// Output ran: notes whether the window was the bottleneck. Call it outside recovery, when
    /// something was sent.
    pub fn on_sent(&mut self, sample: &SendSample) {
        self.usage.on_sent(sample);
        if self.is_cwnd_limited() {
            self.usage.used = 0;
            self.usage.full_at = sample.now;
            return;
        }
        self.usage.used = self.usage.used.max(sample.in_flight);
        if sample.now - self.usage.full_at >= sample.rto {
            self.shrink_to_use(sample.now);
        }
    }

    /// A time-out long the window was not filled: half of what is unused goes (RFC 7661's aim,
    /// Linux's way).
    fn shrink_to_use(&mut self, now: Instant) {
        let used = self.usage.used.max(self.initial_window());
        if used < self.window.cwnd {
            self.window.ssthresh = self.remembered_ssthresh();
            self.window.set_cwnd(used + (self.window.cwnd - used) / 2);
        }
        self.usage.used = 0;
        self.usage.full_at = now;
    }

    /// Nothing was sent for `idle`: for each time-out of it the window halves, down to the initial
    /// one (RFC 5681 §4.1 softened as in Linux; `net.ipv4.tcp_slow_start_after_idle`). Call it
    /// before sending again.
    pub fn on_idle(&mut self, idle: Duration, rto: Duration, now: Instant) {
        let floor = self.initial_window().min(self.window.cwnd);
        self.window.ssthresh = self.remembered_ssthresh();
        if let Policy::Cubic(cubic) = &mut self.policy {
            cubic.pause(now);
        }
        let mut cwnd = self.window.cwnd;
        let mut left = idle;
        while cwnd > floor && left > rto {
            cwnd /= 2;
            left -= rto;
            if rto.is_zero() {
                break;
            }
        }
        self.window.set_cwnd(cwnd.max(floor));
        self.usage.used = 0;
        self.usage.full_at = now;
    }

    /// Fast retransmit: RFC 6582 §3.2, step 2. `in_flight` is FlightSize before the retransmission,
    /// without segments sent by limited transmit.
    pub fn on_enter_recovery(&mut self, in_flight: u32) {
        self.reduce_ssthresh(in_flight);
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
        let mss = self.window.mss;
        // Deflate by what left, and let one segment out when at least one arrived.
        let add_back = if acked_bytes >= mss { mss } else { 0 };
        self.window.set_cwnd(self.window.cwnd.saturating_sub(acked_bytes).saturating_add(add_back));
        self.inflation_left = in_flight;
    }

    /// All that recovery began with is acknowledged: RFC 6582 §3.2, step 3, the choice that avoids
    /// a burst. `in_flight` is FlightSize after it.
    pub fn on_exit_recovery(&mut self, in_flight: u32) {
        let Window { ssthresh, mss, .. } = self.window;
        self.window.set_cwnd(ssthresh.min(in_flight.max(mss).saturating_add(mss)));
        self.inflation_left = 0;
    }

    /// Recovery with SACK begins. `in_flight` was in flight and had not arrived before the ACK that shows the loss. The
    /// window follows with [`Congestion::on_recovery_ack`].
    pub fn on_enter_sack_recovery(&mut self, in_flight: u32) {
        self.reduce_ssthresh(in_flight);
        self.prr = Some(Prr::new(in_flight));
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

    /// Everything that recovery with SACK began with is acknowledged.
    pub fn on_recovery_complete(&mut self) {
        if self.prr.take().is_some() {
            self.window.set_cwnd(self.window.ssthresh);
        }
    }

    /// A loss is repaired already when it becomes known (RFC 8985 §7.4.2): the reduction at once.
    pub fn on_repaired_loss(&mut self, in_flight: u32) {
        self.reduce_ssthresh(in_flight);
        self.window.set_cwnd(self.window.ssthresh.min(self.window.cwnd));
    }

    /// The retransmission timer expired: RFC 5681 §3.1, equation 4, and the loss window. `repeated`
    /// when the same data timed out before or was being recovered: `ssthresh` is then reduced
    /// already.
    pub fn on_rto(&mut self, in_flight: u32, repeated: bool) {
        if !repeated {
            self.reduce_ssthresh(in_flight);
        }
        self.inflation_left = 0;
        self.prr = None;
        match &mut self.policy {
            Policy::Cubic(cubic) => cubic.on_rto(),
            Policy::Reno(reno) => reno.on_rto(),
        }
        self.window.set_cwnd(self.window.mss);
    }

    /// The last reduction proved needless (Eifel, F-RTO, D-SACK): both variables return to at least
    /// what they were.
    pub fn undo(&mut self) {
        if let Some(prior) = self.prior.take() {
            let Prior { cwnd, ssthresh, policy } = *prior;
            self.policy = policy;
            self.window.set_cwnd(self.window.cwnd.max(cwnd));
            self.window.ssthresh = self.window.ssthresh.max(ssthresh);
            self.inflation_left = 0;
            self.prr = None;
        }
    }

    fn reduce_ssthresh(&mut self, in_flight: u32) {
        let Window { cwnd, ssthresh, .. } = self.window;
        self.prior = Some(Box::new(Prior { cwnd, ssthresh, policy: self.policy.clone() }));
        // RFC 9406 §4.2: for the first slow start only.
        self.hystart = None;
        let ssthresh = match &mut self.policy {
            Policy::Cubic(cubic) => cubic.on_loss(&self.window, in_flight),
            Policy::Reno(reno) => reno.on_loss(&self.window, in_flight),
        };
        self.window.set_ssthresh(ssthresh);
    }

    /// `cwnd`, bytes.
    #[inline]
    #[must_use]
    pub const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// `cwnd` in whole segments, as `TCP_INFO` reports it.
    #[must_use]
    pub const fn cwnd_segments(&self) -> u32 {
        self.window.cwnd / self.window.mss
    }

    /// `ssthresh`, bytes; [`SSTHRESH_INFINITE`] before the first loss.
    #[must_use]
    pub const fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// The segment size the window is counted in.
    #[must_use]
    pub const fn mss(&self) -> u32 {
        self.window.mss
    }

    /// Bytes that may be sent beside `in_flight`.
    #[inline]
    #[must_use]
    pub const fn available(&self, in_flight: u32) -> u32 {
        self.window.cwnd.saturating_sub(in_flight)
    }

    /// Growth is exponential.
    #[must_use]
    pub const fn in_slow_start(&self) -> bool {
        self.window.cwnd < self.window.ssthresh
    }

    /// The window is what limits the connection, so acknowledgments may raise it. In slow start
    /// half a window in flight is enough, because a full one must be allowed to double.
    #[must_use]
    pub const fn is_cwnd_limited(&self) -> bool {
        self.usage.cwnd_limited
            || (self.in_slow_start() && self.window.cwnd / 2 < self.usage.in_flight_max)
    }

    /// The window of a fresh connection, bytes.
    #[must_use]
    pub const fn initial_window(&self) -> u32 {
        self.initial_window_segments.saturating_mul(self.window.mss)
    }

    /// Which algorithm decides.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.policy {
            Policy::Cubic(_) => Algorithm::Cubic,
            Policy::Reno(_) => Algorithm::Reno,
        }
    }

    /// Three quarters of the window as a floor of `ssthresh`: what to return to after the window is
    /// lowered for reasons other than loss (RFC 7661 §4.4; Linux: tcp_current_ssthresh).
    fn remembered_ssthresh(&self) -> u32 {
        let Window { cwnd, ssthresh, .. } = self.window;
        ssthresh.max(cwnd / 2 + cwnd / 4)
    }

    /// Asserts what always holds.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn check(&self) {
        let Window { cwnd, ssthresh, mss, cwnd_max } = self.window;
        assert!(mss > 0);
        assert!(cwnd >= mss && cwnd <= cwnd_max, "cwnd {cwnd} of {mss}..={cwnd_max}");
        assert!(ssthresh >= SSTHRESH_SEGMENTS_MIN * mss, "ssthresh {ssthresh}, mss {mss}");
    }
}

impl Policy {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Cubic => Self::Cubic(Cubic::default()),
            Algorithm::Reno => Self::Reno(Reno::default()),
        }
    }
}

fn hystart_of(algorithm: Algorithm) -> Option<HyStart> {
    (algorithm == Algorithm::Cubic).then(HyStart::default)
}

#[cfg(test)]
mod tests;
