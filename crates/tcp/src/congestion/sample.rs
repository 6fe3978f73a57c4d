//! What the rest of the engine tells congestion control.

use core::time::Duration;

use pkt::Instant;

use super::Algorithm;
use crate::wire::seq::SeqNum;

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
    /// The shortest round trip of the connection, while TCP Small Queues limit its flight.
    pub held_min_rtt: Option<Duration>,
    /// How long the acknowledgments of one flight may come close together before slow start ends; `None` while nobody looks.
    pub train_max: Option<Duration>,
    /// A round trip that grows may end slow start.
    pub watches_delay: bool,
    /// SND.NXT: a round of growth ends when `snd_una` passes the value noted at its start.
    pub snd_nxt: SeqNum,
}

/// BBR.LossThresh (draft-ietf-ccwg-bbr): the part of what was in flight, in thousandths, that a path may lose without being
/// taken for full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossThresh(pub u16);

impl LossThresh {
    /// `lost` of `in_flight` bytes are too many.
    #[must_use]
    pub fn is_exceeded(self, lost: u32, in_flight: u32) -> bool {
        u64::from(lost) * 1000 > u64::from(in_flight) * u64::from(self.0)
    }
}

/// One estimate (the draft's `RS`), given for every ACK that delivered or lost something.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateSample {
    /// RS.delivered: bytes that arrived in `interval`.
    pub delivered: u32,
    /// RS.interval; `None` when this ACK gives no estimate: nothing new arrived, or it took less than the smallest round
    /// trip, as after a peer dropped what it had reported.
    pub interval: Option<Duration>,
    /// RS.prior_delivered: what had been delivered when the transmission left that this estimate rests on.
    pub prior_delivered: u64,
    /// RS.newly_acked: bytes this ACK delivered.
    pub newly_acked: u32,
    /// RS.newly_lost: bytes found lost since the ACK before.
    pub newly_lost: u32,
    /// RS.lost: bytes found lost since that transmission left.
    pub lost: u32,
    /// RS.tx_in_flight: bytes in flight when it had left.
    pub tx_in_flight: u32,
    /// RS.is_app_limited.
    pub is_app_limited: bool,
    /// The transmission was a retransmission.
    pub is_retransmission: bool,
}

impl RateSample {
    /// RS.delivery_rate in bytes per second.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        self.interval.map(|interval| bytes_per_second(self.delivered, interval))
    }
}

/// Bytes per second; an interval of less than a nanosecond counts as one.
pub(crate) fn bytes_per_second(delivered: u32, interval: Duration) -> u64 {
    let ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
    u64::from(delivered) * 1_000_000_000 / ns
}

/// What every acknowledgment tells an algorithm that steers by more than losses, whatever recovery is doing.
#[derive(Clone, Copy, Debug)]
pub struct ModelSample<'a> {
    /// When it arrived.
    pub now: Instant,
    /// What was delivered and lost, and how fast.
    pub rate: &'a RateSample,
    /// C.delivered: bytes delivered in the life of the connection, this acknowledgment included.
    pub delivered: u64,
    /// Round-trip time it measured, if it did.
    pub rtt: Option<Duration>,
    /// Smoothed round-trip time, once there is one.
    pub srtt: Option<Duration>,
    /// Bytes in flight after it.
    pub in_flight: u32,
    /// It echoes a congestion mark.
    pub marked: bool,
    /// Fast or timeout recovery runs.
    pub in_recovery: bool,
    /// The window was what limited the connection in this round.
    pub is_cwnd_limited: bool,
    /// The first loss since the acknowledgment before that was one too many.
    pub excessive_loss: Option<LossSample>,
    /// How many are too many.
    pub loss_thresh: LossThresh,
    /// The window of a fresh connection, bytes.
    pub initial_window: u32,
    /// SND.UNA after it.
    pub snd_una: SeqNum,
    /// SND.NXT.
    pub snd_nxt: SeqNum,
}

/// A transmission that was found lost.
#[derive(Clone, Copy, Debug)]
pub struct LossSample {
    /// Bytes in flight when it had left.
    pub tx_in_flight: u32,
    /// Bytes found lost since then, its own included.
    pub lost: u32,
    /// Its own.
    pub len: u32,
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
    /// The time-out in microseconds: how long an unused window stays trusted. `u64::MAX` trusts it for ever, as
    /// `net.ipv4.tcp_slow_start_after_idle` = 0 asks.
    pub rto_us: u64,
}
