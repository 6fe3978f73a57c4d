//! Totals over the life of a connection, for `TCP_INFO`: bytes, segments, events, and the time for
//! which each limit determined the sender's rate.
//!
//! Above: `socket::info`. The processing steps increment the totals where the events happen. Linux:
//! the totals of struct tcp_sock, tcp_chrono_start, tcp_update_rto_stats.
//!
//! Not here: counters of the host ([`counters`](crate::base::counters)).

use core::time::Duration;

use pkt::Instant;

use crate::tcb::{Tcb, TcbFlags, send_queue::SendQueue};

/// Totals that `TCP_INFO` reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_retrans: u64,
    pub(crate) segs_out: u32,
    pub(crate) segs_in: u32,
    pub(crate) data_segs_out: u32,
    pub(crate) data_segs_in: u32,
    pub(crate) total_retrans: u32,
    /// Segments reported by duplicate SACKs.
    pub(crate) dsack_dups: u32,
    /// Detected reorderings.
    pub(crate) reord_seen: u32,
    /// Segments that arrived out of order.
    pub(crate) rcv_ooopack: u32,
    /// Retransmission timeouts.
    pub(crate) total_rto: u16,
    /// Number of timeouts that were the first of a series, which lasts until new data is
    /// acknowledged.
    pub(crate) total_rto_recoveries: u16,
    /// Total duration of these series in milliseconds.
    total_rto_ms: u32,
    /// Start of the current series.
    rto_since: Option<Instant>,
    chrono: Chrono,
}

/// Limit that keeps the sender from sending more data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Limit {
    /// Nothing is queued.
    #[default]
    Idle,
    /// None of the other limits: for example the congestion window, Nagle's algorithm, or no unsent
    /// data.
    Busy,
    /// The peer's window.
    ReceiveWindow,
    /// The send buffer: all of its data is in flight.
    SendBuffer,
}

/// Time spent under each limit. One limit applies at a time.
#[derive(Clone, Debug, Default)]
struct Chrono {
    /// Current limit.
    runs: Limit,
    /// Time when the current limit began.
    since: Instant,
    /// Microseconds of [`Limit::Busy`], [`Limit::ReceiveWindow`] and [`Limit::SendBuffer`].
    busy_us: [u64; 3],
}

/// Times for which the sender had data and was limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderTime {
    /// Time in which data was queued or in flight.
    pub busy: Duration,
    /// Part of `busy` in which the peer's window held data back.
    pub rwnd_limited: Duration,
    /// Part of `busy` in which all queued data was in flight and a writer waited for buffer space.
    pub sndbuf_limited: Duration,
}

impl Chrono {
    fn elapsed_us(&self, now: Instant) -> u64 {
        now.micros_since(self.since)
    }

    fn switch(&mut self, runs: Limit, now: Instant) {
        if self.runs == runs {
            return;
        }
        let elapsed = self.elapsed_us(now);
        if let Some(index) = (self.runs as usize).checked_sub(1) {
            self.busy_us[index] += elapsed;
        }
        self.runs = runs;
        self.since = now;
    }

    fn read(&self, now: Instant) -> SenderTime {
        let mut times = self.busy_us;
        if let Some(index) = (self.runs as usize).checked_sub(1) {
            times[index] += self.elapsed_us(now);
        }
        let [busy, rwnd_limited, sndbuf_limited] = times;
        SenderTime {
            busy: Duration::from_micros(busy + rwnd_limited + sndbuf_limited),
            rwnd_limited: Duration::from_micros(rwnd_limited),
            sndbuf_limited: Duration::from_micros(sndbuf_limited),
        }
    }
}

impl Totals {
    /// Counts a retransmission timeout; `first` says whether a series begins with it.
    pub(crate) fn on_timeout(&mut self, first: bool, now: Instant) {
        self.total_rto = self.total_rto.saturating_add(1);
        if first {
            self.total_rto_recoveries = self.total_rto_recoveries.saturating_add(1);
            self.rto_since.get_or_insert(now);
        }
    }

    /// Ends a series of timeouts after the peer acknowledged new data.
    pub(crate) fn on_progress(&mut self, now: Instant) {
        if let Some(since) = self.rto_since.take() {
            self.total_rto_ms = self.total_rto_ms.saturating_add(ms(now - since));
        }
    }

    /// Returns the total duration of all series of timeouts, the current one included.
    pub(crate) fn total_rto_time(&self, now: Instant) -> Duration {
        let open = self.rto_since.map_or(0, |since| ms(now - since));
        Duration::from_millis(u64::from(self.total_rto_ms.saturating_add(open)))
    }

    /// Returns the sender's times until `now`.
    pub(crate) fn sender_time(&self, now: Instant) -> SenderTime {
        self.chrono.read(now)
    }
}

/// Updates the sender's limit after `output`, which has sent all segments that may be sent. Clears
/// `NO_SPACE` if the send buffer has space again.
pub(crate) fn on_output(tcb: &mut Tcb, now: Instant) {
    if tcb.flags.contains(TcbFlags::NO_SPACE) && tcb.has_write_space() {
        tcb.flags -= TcbFlags::NO_SPACE;
    }
    let limit = sender_limit(tcb, &tcb.send_queue);
    tcb.totals.chrono.switch(limit, now);
}

/// Does the same as [`on_output`] for a connection whose queue is empty and on which no writer
/// waits for space.
#[inline]
pub(crate) fn on_idle(tcb: &mut Tcb, now: Instant) {
    tcb.totals.chrono.switch(Limit::Idle, now);
}

fn sender_limit(tcb: &Tcb, queue: &SendQueue) -> Limit {
    if queue.is_empty() {
        return Limit::Idle;
    }
    let Some((_, unsent)) = queue.first_unsent() else {
        // All data is in flight. The buffer is the limit if a writer waits for space (Linux:
        // tcp_cwnd_validate).
        let full = tcb.flags.contains(TcbFlags::NO_SPACE);
        return if full { Limit::SendBuffer } else { Limit::Busy };
    };
    let window_end = tcb.snd_una + tcb.snd_wnd;
    let left = if window_end.gt(unsent.seq) { window_end.since(unsent.seq) } else { 0 };
    let wanted = unsent.len.min(tcb.mss.effective());
    let held = left < wanted && tcb.pipe() + wanted <= tcb.congestion.cwnd();
    if held { Limit::ReceiveWindow } else { Limit::Busy }
}

fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn the_times_of_the_limits_add_up() {
        let mut chrono = Chrono::default();
        chrono.switch(Limit::Busy, at(10));
        chrono.switch(Limit::ReceiveWindow, at(15));
        chrono.switch(Limit::SendBuffer, at(17));
        chrono.switch(Limit::Idle, at(20));
        let time = chrono.read(at(500));
        assert_eq!(time.busy, Duration::from_millis(10));
        assert_eq!(time.rwnd_limited, Duration::from_millis(2));
        assert_eq!(time.sndbuf_limited, Duration::from_millis(3));
        chrono.switch(Limit::Busy, at(500));
        assert_eq!(
            chrono.read(at(501)).busy,
            Duration::from_millis(11),
            "the time of the current limit is missing"
        );
    }

    #[test]
    fn a_series_of_timeouts_lasts_until_data_is_acknowledged() {
        let mut totals = Totals::default();
        totals.on_timeout(true, at(100));
        totals.on_timeout(false, at(300));
        assert_eq!(totals.total_rto_time(at(350)), Duration::from_millis(250));
        totals.on_progress(at(400));
        totals.on_progress(at(900));
        assert_eq!((totals.total_rto, totals.total_rto_recoveries), (2, 1));
        assert_eq!(totals.total_rto_time(at(1000)), Duration::from_millis(300));
    }
}
