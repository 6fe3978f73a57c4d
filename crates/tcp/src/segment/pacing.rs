//! Pacing: the rate at which segments are sent, and the size of one packet at that rate.
//!
//! Above: `output` and `loss::retransmit` ask before they send; `input::ack` sets the rate. Linux:
//! tcp_update_pacing_rate, tcp_update_skb_after_send, tcp_pacing_check, tcp_tso_autosize.
//!
//! Every connection has a rate once its round-trip time is known. A congestion algorithm that
//! models the network path computes its own rate; for the others the rate is twice the window per
//! round trip while the window is below half of the slow start threshold, and 1.2 times the window
//! later. The rate determines the payload of one packet (a millisecond's worth), and `TCP_INFO`
//! reports it. Packets are delayed to the rate only if the algorithm needs that or
//! `SO_MAX_PACING_RATE` requests it. Then each transmission sets the time of the next one, and a
//! timer in the timer wheel of the core fires at that time; connections whose times fall into one
//! tick of the wheel send in one turn (one pass of the core's softirq work). Every packet
//! carries its departure time in its metadata. A queue below TCP that holds packets until their
//! departure (`fq`) replaces the timer, and then every connection is paced (Linux: `SK_PACING_FQ`).
//!
//! Not here: the fields for the rate and the next departure (`tcb::pacing`), the rate of a model
//! (`congestion`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    congestion,
    cx::Cx,
    tcb::{Tcb, pacing::UNLIMITED},
};

/// Segments at the start of a connection that are not paced (Linux: the first ten), to keep short
/// transfers fast.
const UNPACED_SEGMENTS: u64 = 10;

/// Rate below which an algorithm that models the network path sends single segments (Linux
/// `bbr_min_tso_rate`): 1.2 Mbit/s in bytes per second.
const SINGLE_SEGMENT_RATE: u64 = 150_000;

/// Updates the rate after an ACK, which may have changed the round-trip time, the window or the
/// model.
pub(crate) fn update(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.congestion.algorithm().needs_pacing() {
        if let Some(rate) = tcb.congestion.pacing_rate() {
            tcb.pacing.set_rate(rate);
        }
        return;
    }
    let Some(srtt_us) = tcb.rtt.srtt_us() else { return };
    let srtt_us = u64::from(srtt_us.max(1));
    let cwnd = tcb.congestion.cwnd();
    // Below half of the threshold the window doubles with the next round trip; above it the rate
    // must not overshoot.
    let ratio = if cwnd < tcb.congestion.ssthresh() / 2 {
        cx.config.tcp_pacing_ss_ratio
    } else {
        cx.config.tcp_pacing_ca_ratio
    };
    let flight = u64::from(cwnd.max(tcb.snd_nxt.since(tcb.snd_una)));
    tcb.pacing.set_rate(flight * u64::from(ratio) * 10_000 / srtt_us);
}

/// Returns whether packets are delayed to the rate.
pub(crate) fn is_needed(tcb: &Tcb) -> bool {
    tcb.pacing.max_rate != UNLIMITED || tcb.congestion.algorithm().needs_pacing()
}

/// Returns the length of an ACK train that ends slow start ([`congestion::train_max`]); `None`
/// without a minimum round-trip time.
pub(crate) fn train_max(tcb: &Tcb, cx: &Cx<'_>) -> Option<Duration> {
    let paced = cx.host_queue.paces || is_needed(tcb);
    let superframe = tcb.mss.superframe_max();
    let min_rtt = tcb.rtt.min_rtt()?;
    Some(congestion::train_max(min_rtt, tcb.pacing.rate, superframe, paced))
}

/// Returns the departure time of a packet that is sent now, as scheduled by this host. The round
/// trip of the packet starts at that time.
pub(crate) fn departure(tcb: &Tcb, cx: &Cx<'_>) -> Instant {
    if cx.host_queue.paces { tcb.pacing.departure(cx.now) } else { cx.now }
}

/// Returns the time when all sent packets have departed, as scheduled by this host. The ACK of the
/// last packet cannot arrive earlier (Linux: tcp_pacing_delay).
pub(crate) fn all_departed(tcb: &Tcb, cx: &Cx<'_>) -> Instant {
    if cx.host_queue.paces || is_needed(tcb) { tcb.pacing.departure(cx.now) } else { cx.now }
}

/// Returns whether a packet may be sent now. If not, arms the pacing timer. A queue below TCP that
/// holds packets admits them all.
pub(crate) fn admit(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
    if tcb.pacing.next_at <= cx.now || cx.host_queue.paces || !is_needed(tcb) {
        return true;
    }
    tcb.timers.arm_pacing(tcb.pacing.next_at);
    false
}

/// Schedules the next departure after `bytes` of payload were sent.
pub(crate) fn on_transmit(tcb: &mut Tcb, cx: &Cx<'_>, bytes: u32) {
    let paces = cx.host_queue.paces;
    if tcb.pacing.rate == UNLIMITED || bytes == 0 || !(paces || is_needed(tcb)) {
        return;
    }
    let sent = tcb.totals.bytes_sent + tcb.totals.bytes_retrans;
    if sent >= UNPACED_SEGMENTS * u64::from(tcb.mss.effective()) {
        if paces {
            tcb.pacing.advance_departure(cx.now, bytes);
        } else {
            tcb.pacing.advance(cx.now, bytes);
        }
    }
}

/// Returns the payload bytes of one packet, a multiple of the segment size: the bytes of a
/// millisecond at the pacing rate, and more on network paths with a shorter round-trip time, where
/// bursts are harmless (Linux: tcp_tso_autosize).
pub(crate) fn burst_bytes(tcb: &Tcb, cx: &Cx<'_>) -> u32 {
    let (largest, mss) = (tcb.mss.transmit_max(), tcb.mss.effective());
    if largest == mss || tcb.pacing.rate == UNLIMITED {
        return largest;
    }
    let config = cx.config;
    let halvings = tcb.rtt.min_rtt().map(|rtt| rtt.as_micros() >> config.tcp_tso_rtt_log.min(63));
    let pace = tcb.pacing.rate >> config.pacing_shift;
    let slow = tcb.congestion.algorithm().needs_pacing() && tcb.pacing.rate < SINGLE_SEGMENT_RATE;
    let segments_min = if slow { 1 } else { u32::from(config.tcp_min_tso_segs.max(1)) };
    let segments = autosize(pace, halvings, tcb.mss.superframe_max(), mss).max(segments_min);
    segments.saturating_mul(mss).min(largest)
}

/// Returns the number of `mss`-byte segments that fit into `pace` bytes plus the bonus of a short
/// round-trip time. The bonus is a superframe (a packet of several segments) of `largest` bytes,
/// halved `halvings` times.
fn autosize(pace: u64, halvings: Option<u128>, largest: u32, mss: u32) -> u32 {
    let near = halvings.filter(|halvings| *halvings < 32).map_or(0, |halvings| largest >> halvings);
    let bytes = pace.saturating_add(u64::from(near)).min(u64::from(largest));
    u32::try_from(bytes).unwrap_or(largest) / mss
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the segments of 1,448 bytes in one packet, with superframes of 64 KB and the
    /// defaults of `tcp_tso_rtt_log` and `tcp_min_tso_segs`.
    fn segments(rate: u64, rtt_us: Option<u128>, shift: u32) -> u32 {
        autosize(rate >> shift, rtt_us.map(|rtt| rtt >> 9), 65_536, 1448).max(2)
    }

    /// Rates of 1 Gbit/s, 100 and 10 Mbit/s; round-trip times of 50, 512, 1,024 and 5,000 µs, and
    /// an unmeasured one.
    #[test]
    fn packets_are_as_large_as_rate_and_round_trip_time_allow() {
        let rates = [125_000_000, 12_500_000, 1_250_000];
        let rtts = [Some(50), Some(512), Some(1024), Some(5000), None];
        let sizes = rates.map(|rate| rtts.map(|rtt| segments(rate, rtt, 10)));
        assert_eq!(sizes, [[45; 5], [45, 31, 19, 8, 8], [45, 23, 12, 2, 2]]);
        // 8 ms at the pacing rate, for devices that aggregate many packets.
        assert_eq!(rates.map(|rate| segments(rate, None, 7)), [45, 45, 6]);
    }
}
