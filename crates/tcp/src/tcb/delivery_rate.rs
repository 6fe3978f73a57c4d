//! The delivery rate of the network path: one estimate per ACK, from the bytes delivered between
//! the sending of one transmission and its ACK.
//!
//! Above: `input::ack` takes an estimate with every ACK while data is in flight, for `congestion`
//! (a model of the network path) and for `TCP_INFO`. Below: `send_queue` keeps a `Snapshot` with
//! every entry, `acked` picks the newest transmission that arrived.
//! draft-cheng-iccrg-delivery-rate-estimation; Linux: tcp_rate.c.
//!
//! ```text
//!   sending     |<------- send interval ------->|
//!               first_sent_at                   sent_at
//!                    arriving    |<------ ACK interval ------>|
//!                                delivered_at                 now
//! ```
//!
//! The rate is the bytes delivered between the snapshot and now, divided by the longer of the two
//! intervals, so that neither a burst of ACKs nor a burst of sending shows more than the network
//! path can carry. A sample taken while the application had nothing to send shows the rate of the
//! application, and is marked as such.
//!
//! Comments use the names of the draft: `C.delivered` is `DeliveryRate::delivered`, `P.delivered`
//! is `Snapshot::delivered`.
//!
//! Not here: the estimate as `congestion` uses it (`congestion::RateSample`), the reaction to a
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

/// Delivery-rate sampler of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeliveryRate {
    /// C.delivered: bytes known to have arrived, by acknowledgment or SACK.
    delivered: u64,
    /// Part of these bytes whose ACK echoed a CE mark.
    delivered_ce: u64,
    /// C.delivered_time: time of the last delivery, or of the transmission that started the flight.
    delivered_at: Instant,
    /// C.first_sent_time: start of the current send interval.
    first_sent_at: Instant,
    /// C.app_limited: samples show the application's rate until more than this number of bytes is
    /// delivered; 0 if the application is not the limit.
    app_limited: u64,
    /// Sample reported by `TCP_INFO`, which is replaced by every sample that the application did
    /// not limit, and by a limited one only if its rate is not lower: delivered bytes, interval in
    /// nanoseconds, and whether the application limited it.
    best: (u32, u64, bool),
    /// Value of `SendQueue::lost_total` at the last ACK.
    lost_seen: u32,
}

impl DeliveryRate {
    /// Returns the snapshot for the entry of a transmission. `idle` says whether nothing was in
    /// flight before; `in_flight` includes the transmission.
    pub(crate) fn on_transmit(
        &mut self,
        now: Instant,
        idle: bool,
        in_flight: u32,
        lost_total: u32,
    ) -> Snapshot {
        if idle {
            // A new flight starts, and with it both intervals.
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

    /// Returns whether transmissions are currently limited by the application.
    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// Marks samples as limited by the application until everything in flight is delivered.
    pub(crate) fn mark_app_limited(&mut self, in_flight: u32) {
        self.app_limited = (self.delivered + u64::from(in_flight)).max(1);
    }

    /// Returns C.delivered_time: the time of the last delivery, or of the last transmission that
    /// started a flight.
    pub(crate) fn delivered_at(&self) -> Instant {
        self.delivered_at
    }

    /// Returns C.delivered.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the delivered bytes whose ACK echoed a mark.
    pub(crate) fn delivered_ce(&self) -> u64 {
        self.delivered_ce
    }

    /// Processes an ACK and returns its estimate.
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

    /// As [`on_ack`](Self::on_ack), for an ACK that echoes no mark and delivered `delivered` bytes.
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
        // The next send interval begins with the newest transmission that has arrived.
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
        // No ACK can answer a transmission within less than the minimum round-trip time, so a
        // shorter interval gives no sample: the ACK answers an earlier transmission of the same
        // data.
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

    /// Returns tcpi_delivery_rate and tcpi_delivery_rate_app_limited of `TCP_INFO`: bytes per
    /// second, and whether the application limited them. `None` before the first sample.
    pub(crate) fn best(&self) -> Option<(u64, bool)> {
        let (delivered, interval_ns, app_limited) = self.best;
        (interval_ns != 0)
            .then(|| (bytes_per_second(delivered, Duration::from_nanos(interval_ns)), app_limited))
    }
}

/// Marks samples as limited by the application if less than a segment is unsent, the window has
/// space and no loss waits for retransmission (draft-cheng-iccrg-delivery-rate-estimation §4.2).
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
