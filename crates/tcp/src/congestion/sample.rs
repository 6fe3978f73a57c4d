//! Arguments that the rest of the engine passes to congestion control.

use core::time::Duration;

use pkt::Instant;

use super::Algorithm;
use crate::wire::seq::SeqNum;

/// Initial parameters of a connection's congestion control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionConfig {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Initial window in segments. 10: RFC 6928, Linux TCP_INIT_CWND.
    ///
    /// Differs from RFC 6928: no cap of 14,600 bytes. Linux has none, and a path with a large MTU
    /// can take ten large segments as well as others take ten small ones.
    pub initial_window_segments: u32,
    /// Upper bound of the bytes that slow start counts for one acknowledgment, in segments.
    /// `u32::MAX`: no limit.
    ///
    /// Differs from RFC 3465 (L = 2) as Linux does: receivers that merge segments acknowledge
    /// dozens at once. A limit of two would slow down slow start most for the most efficient
    /// receivers.
    pub slow_start_limit_segments: u32,
    /// Upper bound of the window, in bytes (Linux: snd_cwnd_clamp).
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
    /// Time of arrival.
    pub now: Instant,
    /// Newly delivered bytes, by which the window may grow.
    pub acked_bytes: u32,
    /// Measured round-trip time, if the acknowledgment allows a measurement.
    pub rtt: Option<Duration>,
    /// SND.UNA after the acknowledgment.
    pub snd_una: SeqNum,
    /// Minimum round-trip time of the connection; `Some` only while TCP Small Queues limit the
    /// flight.
    pub held_min_rtt: Option<Duration>,
    /// Length of an acknowledgment train that ends slow start; `None` if trains are not a signal.
    pub train_max: Option<Duration>,
    /// Whether a growing round-trip time may end slow start.
    pub watches_delay: bool,
    /// SND.NXT. A round of growth ends when `snd_una` passes the value recorded at its start.
    pub snd_nxt: SeqNum,
}

/// BBR.LossThresh (draft-ietf-ccwg-bbr): fraction of the data in flight, in thousandths, that may
/// be lost before the path counts as full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossThresh(pub u16);

impl LossThresh {
    /// Whether `lost` of `in_flight` bytes exceed the fraction.
    #[must_use]
    pub fn is_exceeded(self, lost: u32, in_flight: u32) -> bool {
        u64::from(lost) * 1000 > u64::from(in_flight) * u64::from(self.0)
    }
}

/// One estimate of the delivery rate (the draft's `RS`), made for every ACK that arrives while data
/// is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateSample {
    /// RS.delivered: bytes that arrived in `interval`.
    pub delivered: u32,
    /// RS.interval; `None` when this ACK gives no estimate: it delivered nothing new, or the
    /// interval is below the minimum round-trip time. The latter happens after a peer has discarded
    /// data that it had reported by SACK.
    pub interval: Option<Duration>,
    /// RS.prior_delivered: bytes that had been delivered when the transmission on which this
    /// estimate is based was sent.
    pub prior_delivered: u64,
    /// RS.newly_acked: bytes this ACK delivered.
    pub newly_acked: u32,
    /// RS.newly_lost: bytes detected as lost since the previous ACK.
    pub newly_lost: u32,
    /// RS.lost: bytes detected as lost since that transmission was sent.
    pub lost: u32,
    /// RS.tx_in_flight: bytes in flight after that transmission was sent.
    pub tx_in_flight: u32,
    /// RS.is_app_limited.
    pub is_app_limited: bool,
    /// Whether the transmission was a retransmission.
    pub is_retransmission: bool,
}

impl RateSample {
    /// Returns RS.delivery_rate in bytes per second.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        self.interval.map(|interval| bytes_per_second(self.delivered, interval))
    }
}

/// Returns a rate in bytes per second; an empty interval counts as one nanosecond.
pub(crate) fn bytes_per_second(delivered: u32, interval: Duration) -> u64 {
    let ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
    u64::from(delivered) * 1_000_000_000 / ns
}

/// Sample of every acknowledgment that arrives while data is in flight, in any state of recovery,
/// for algorithms that use more than losses.
#[derive(Clone, Copy, Debug)]
pub struct ModelSample<'a> {
    /// Time of arrival.
    pub now: Instant,
    /// Delivered and lost bytes, and the delivery rate.
    pub rate: &'a RateSample,
    /// C.delivered: bytes delivered since the connection began, this acknowledgment included.
    pub delivered: u64,
    /// Measured round-trip time, if the acknowledgment allows a measurement.
    pub rtt: Option<Duration>,
    /// Smoothed round-trip time; `None` before the first measurement.
    pub srtt: Option<Duration>,
    /// Bytes in flight after the acknowledgment.
    pub in_flight: u32,
    /// Whether the acknowledgment echoes a congestion mark.
    pub marked: bool,
    /// Whether fast recovery or recovery from a timeout is in progress.
    pub in_recovery: bool,
    /// Whether the window limited the connection in this round.
    pub is_cwnd_limited: bool,
    /// First loss that exceeded `loss_thresh` since the previous acknowledgment.
    pub excessive_loss: Option<LossSample>,
    /// Fraction of the flight that may be lost.
    pub loss_thresh: LossThresh,
    /// Initial window in bytes.
    pub initial_window: u32,
    /// SND.UNA after the acknowledgment.
    pub snd_una: SeqNum,
    /// SND.NXT.
    pub snd_nxt: SeqNum,
}

/// A transmission that was detected as lost.
#[derive(Clone, Copy, Debug)]
pub struct LossSample {
    /// Bytes in flight after the transmission was sent.
    pub tx_in_flight: u32,
    /// Bytes detected as lost since the transmission, its own included.
    pub lost: u32,
    /// Bytes of the transmission.
    pub len: u32,
}

/// Result of one call of [`output`](crate::output()).
#[derive(Clone, Copy, Debug)]
pub struct SendSample {
    /// Time of the call.
    pub now: Instant,
    /// Bytes in flight after the call.
    pub in_flight: u32,
    /// Whether the congestion window alone prevented more data from being sent.
    pub cwnd_limited: bool,
    /// SND.UNA.
    pub snd_una: SeqNum,
    /// SND.NXT after the call.
    pub snd_nxt: SeqNum,
    /// Retransmission timeout in microseconds, the time for which an unused window stays valid.
    /// `u64::MAX` keeps the window for ever, for `net.ipv4.tcp_slow_start_after_idle` = 0.
    pub rto_us: u64,
}
