//! How fast the path delivers: one estimate per ACK, of what arrived between two moments in the
//! life of one transmission.
//!
//! Above: `input::ack` takes an estimate with every ACK, for `congestion` (a model of the path) and
//! for `TCP_INFO`. Below: `send_queue` keeps a `Snapshot` with every entry, `acked` picks the
//! newest that arrived. draft-cheng-iccrg-delivery-rate-estimation; Linux: tcp_rate.c.
//!
//! ```text
//!   sending     |<------- send interval ------->|
//!               first_sent_at                   sent_at
//!                    arriving    |<------ ACK interval ------>|
//!                                delivered_at                 now
//! ```
//!
//! The rate is the bytes delivered between the snapshot and now, over the longer of the two
//! intervals: neither a burst of ACKs nor a burst of sending shows more than the path can carry. A
//! sample taken while the application had nothing to send shows the rate of the application, and is
//! marked so.
//!
//! Names as in the draft: `C.delivered` is `DeliveryRate::delivered`, `P.delivered`
//! `Snapshot::delivered`.
//!
//! Not here: the estimate as `congestion` takes it (`congestion::RateSample`), what follows from a
//! rate.

use core::time::Duration;

use pkt::Instant;

use crate::{
    congestion::{RateSample, bytes_per_second},
    tcb::{
        Tcb,
        acked::{Acked, Rated},
        send_queue::entry::Snapshot,
    },
};

/// See the module head.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeliveryRate {
    /// C.delivered: bytes known to have arrived, by acknowledgment or SACK.
    delivered: u64,
    /// Bytes of it whose ACK echoed a mark.
    delivered_ce: u64,
    /// C.delivered_time.
    delivered_at: Instant,
    /// C.first_sent_time.
    first_sent_at: Instant,
    /// C.app_limited: until more than this was delivered, samples show the application's pace; 0 when they do not.
    app_limited: u64,
    /// The best sample that `TCP_INFO` reports: what arrived, in how many nanoseconds, and whether the application limited
    /// it.
    best: (u32, u64, bool),
    /// Losses the last ACK had seen.
    lost_seen: u32,
}

impl DeliveryRate {
    /// A transmission leaves: what its entry remembers. `idle` when nothing was in flight, `in_flight` bytes are with it.
    pub(crate) fn on_transmit(
        &mut self,
        now: Instant,
        idle: bool,
        in_flight: u32,
        lost_total: u32,
    ) -> Snapshot {
        if idle {
            // The flight begins here, and with it both intervals.
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        Snapshot {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            in_flight,
            lost: lost_total,
        }
    }

    /// What leaves now shows the application's pace.
    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// The application is what limits the connection, until everything in flight has arrived.
    pub(crate) fn mark_app_limited(&mut self, in_flight: u32) {
        self.app_limited = (self.delivered + u64::from(in_flight)).max(1);
    }

    /// C.delivered_time: when something of ours last arrived, or left while nothing was in flight.
    pub(crate) fn delivered_at(&self) -> Instant {
        self.delivered_at
    }

    /// C.delivered.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes of it whose ACK echoed a mark.
    pub(crate) fn delivered_ce(&self) -> u64 {
        self.delivered_ce
    }

    /// Takes what an ACK tells and answers the estimate it gives.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        acked: &Acked,
        lost_total: u32,
        min_rtt_us: Option<u32>,
    ) -> RateSample {
        if acked.marked {
            self.delivered_ce += u64::from(acked.delivered);
        }
        self.on_delivered(now, acked.delivered, acked.rated.as_ref(), lost_total, min_rtt_us)
    }

    /// As [`on_ack`](Self::on_ack), of an ACK that echoes no mark and delivered so many bytes.
    #[inline]
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        delivered: u32,
        rated: Option<&Rated>,
        lost_total: u32,
        min_rtt_us: Option<u32>,
    ) -> RateSample {
        self.delivered += u64::from(delivered);
        if delivered > 0 {
            self.delivered_at = now;
        }
        if self.app_limited != 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let newly_lost = lost_total.wrapping_sub(self.lost_seen);
        self.lost_seen = lost_total;
        let mut sample = RateSample { newly_acked: delivered, newly_lost, ..RateSample::default() };
        let Some(rated) = rated else { return sample };
        let snapshot = &rated.snapshot;
        // The next send interval begins with the transmission that is known to have arrived.
        self.first_sent_at = rated.transmission.sent_at;
        let sending_ns = rated.transmission.sent_at.nanos_since(snapshot.first_sent_at);
        let arriving_ns = now.nanos_since(snapshot.delivered_at);
        let interval_ns = sending_ns.max(arriving_ns);
        sample.delivered = u32::try_from(self.delivered - snapshot.delivered).unwrap_or(u32::MAX);
        sample.prior_delivered = snapshot.delivered;
        sample.lost = lost_total.wrapping_sub(snapshot.lost);
        sample.tx_in_flight = snapshot.in_flight;
        sample.is_app_limited = rated.app_limited;
        sample.is_retransmission = rated.retransmission;
        // Less than the smallest round trip cannot have brought an answer.
        let min_ns = min_rtt_us.map_or(0, |us| u64::from(us) * 1_000);
        if interval_ns != 0 && interval_ns >= min_ns {
            sample.interval = Some(Duration::from_nanos(interval_ns));
            self.keep_best(&sample, interval_ns);
        }
        sample
    }

    #[inline]
    fn keep_best(&mut self, sample: &RateSample, interval_ns: u64) {
        let (delivered, took_ns, _) = self.best;
        let higher = || {
            u128::from(sample.delivered) * u128::from(took_ns)
                >= u128::from(delivered) * u128::from(interval_ns)
        };
        if !sample.is_app_limited || higher() {
            self.best = (sample.delivered, interval_ns, sample.is_app_limited);
        }
    }

    /// What `TCP_INFO` reports as tcpi_delivery_rate and tcpi_delivery_rate_app_limited: bytes per second, and whether
    /// the application limited them. `None` before the first sample.
    pub(crate) fn best(&self) -> Option<(u64, bool)> {
        let (delivered, interval_ns, app_limited) = self.best;
        (interval_ns != 0)
            .then(|| (bytes_per_second(delivered, Duration::from_nanos(interval_ns)), app_limited))
    }
}

/// Notes that the application, and not the path, limits the connection, if it does: less than a segment is unsent, the
/// window has room and nothing waits to be sent again (draft-cheng-iccrg-delivery-rate-estimation §4.2).
pub(crate) fn check_app_limited(tcb: &mut Tcb) {
    let unsent = tcb.send_queue.write_seq().since(tcb.snd_nxt);
    let pipe = tcb.pipe();
    if unsent < tcb.mss.effective()
        && pipe < tcb.congestion.cwnd()
        && tcb.send_queue.lost_bytes() <= tcb.send_queue.retrans_bytes()
    {
        tcb.rate.mark_app_limited(pipe);
    }
}

#[cfg(test)]
mod tests;
