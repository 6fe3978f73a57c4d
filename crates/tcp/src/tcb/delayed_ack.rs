//! Delayed acknowledgments: when an ACK is owed, and whether it may wait to travel with data.
//!
//! RFC 9293 §3.8.6.3, RFC 5681 §4.2; Linux: inet_connection_sock's icsk_ack, tcp_event_data_recv,
//! __tcp_ack_snd_check, tcp_send_delayed_ack.
//!
//! An ACK of data in order is sent at once after more than one full segment (counted in bytes, so
//! that a superframe, which is a packet of several segments, counts as all of them), and in
//! quick-ACK mode: at the start of a connection the peer's slow start needs every ACK. A connection
//! that answers requests (`pingpong`) lets its replies carry the ACKs instead. `input` records that
//! an ACK is owed; `output` sends one ACK for all segments. When the reader has fallen behind so
//! far that an ACK could not move the right edge of the window, the ACK waits for the reader or the
//! delayed-ACK timer.
//!
//! Not here: the delayed-ACK timer (`timers`), the segment (`output`), answers to out-of-order
//! segments (`segment::ack_compression`).

use core::time::Duration;

use pkt::Instant;

use crate::cx::config::TcpConfig;

/// Maximum number of ACKs sent without delay when a connection starts or resumes: Linux
/// `TCP_MAX_QUICKACKS`, enough for slow start to exceed the initial window.
const QUICK_ACKS_MAX: u8 = 16;

/// Initial estimate of the peer's segment size (Linux `TCP_MSS_DEFAULT`).
const RCV_MSS_INITIAL: u32 = 536;

/// Segment size below which a segment does not change the estimate of the peer's MSS (Linux
/// `TCP_MIN_MSS`).
const RCV_MSS_MIN: u32 = 88;

/// State of the ACK that is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// Owed within the delayed-ACK time, unless a data segment carries it first.
    Delayed,
    /// Owed with the next `output`.
    Now,
}

/// A received segment with data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataSeen {
    pub(crate) now: Instant,
    /// Payload of one segment; for a superframe, the MSS of its segments.
    pub(crate) segment_bytes: u32,
    /// Whether the segment ends a write of the peer: PSH, FIN or URG.
    pub(crate) pushed: bool,
    /// MSS that we announced.
    pub(crate) advmss: u16,
    pub(crate) rcv_wnd: u32,
    pub(crate) rto_us: u32,
}

/// State of delayed acknowledgments.
#[derive(Clone, Debug)]
pub(crate) struct DelayedAck {
    /// Time of the last arrival of data.
    last_data_at: Instant,
    /// ATO: time that an ACK may wait, which follows the gaps between arrivals. 0 until data
    /// arrives or [`enter_quick`](Self::enter_quick) is called.
    ato_us: u32,
    /// Estimate of the peer's segment size: the unit of "every second segment".
    rcv_mss: u32,
    delack_min_us: u32,
    delack_max_us: u32,
    /// Size of the last segment that was smaller than `rcv_mss` but may have been full. If the next
    /// such segment has the same size, `rcv_mss` is set to that size.
    last_small_bytes: u16,
    pending: Pending,
    /// Number of ACKs still to be sent without delay.
    quick: u8,
    /// Number of replies sent within the ATO of a request; from `tcp_pingpong_thresh` on, ACKs
    /// travel with replies.
    pingpong: u8,
    /// Ends of writes since the last ACK, up to two (Linux `ICSK_ACK_PUSHED`, `ICSK_ACK_PUSHED2`).
    /// A segment below `rcv_mss` usually counts as one.
    pushed: u8,
    pingpong_thresh: u8,
    /// `quickack` of the route.
    never_delays: bool,
}

impl DelayedAck {
    pub(crate) fn new(config: &TcpConfig) -> Self {
        Self {
            last_data_at: Instant::ZERO,
            ato_us: 0,
            rcv_mss: RCV_MSS_INITIAL,
            delack_min_us: micros(config.tcp_delack_min),
            delack_max_us: micros(config.tcp_delack_max),
            last_small_bytes: 0,
            pending: Pending::Nothing,
            quick: 0,
            pingpong: 0,
            pushed: 0,
            pingpong_thresh: config.tcp_pingpong_thresh.max(1),
            never_delays: false,
        }
    }

    /// Sets the initial estimate of the peer's segment size after the handshake: at most `mss`,
    /// which both ends can send, and at most half of the window `rcv_wnd`, within
    /// [`RCV_MSS_MIN`] and [`RCV_MSS_INITIAL`] (Linux tcp_initialize_rcv_mss). An estimate that
    /// comes from data is kept.
    pub(crate) fn on_handshake(&mut self, mss: u32, rcv_wnd: u32) {
        if self.rcv_mss == RCV_MSS_INITIAL {
            self.rcv_mss = mss.min(rcv_wnd / 2).clamp(RCV_MSS_MIN, RCV_MSS_INITIAL);
        }
    }

    /// Processes an accepted segment with data: the ATO follows the gaps between arrivals, between
    /// `tcp_delack_min` and the RTO.
    pub(crate) fn on_data(&mut self, seen: &DataSeen) {
        self.measure_rcv_mss(seen);
        let gap_us = micros_since(seen.now, self.last_data_at);
        let min = self.delack_min_us;
        if self.ato_us == 0 {
            self.start_quick(seen.rcv_wnd);
            self.ato_us = min;
        } else if gap_us <= min / 2 {
            self.ato_us = self.ato_us / 2 + min / 2;
        } else if gap_us < self.ato_us {
            self.ato_us = (self.ato_us / 2 + gap_us).min(seen.rto_us);
        } else if gap_us > seen.rto_us {
            // The peer sent nothing for an RTO, so it may have restarted slow start.
            self.start_quick(seen.rcv_wnd);
        }
        self.last_data_at = seen.now;
    }

    /// Estimates the peer's segment size: the largest seen, or the common size of two consecutive
    /// smaller segments that may have been full. Also counts the ends of writes, which
    /// are acknowledged as soon as the application has read them (Linux tcp_measure_rcv_mss).
    fn measure_rcv_mss(&mut self, seen: &DataSeen) {
        let len = seen.segment_bytes;
        if len >= self.rcv_mss {
            self.rcv_mss = len.min(u32::from(seen.advmss));
            if seen.pushed {
                self.pushed = self.pushed.max(1);
            }
            return;
        }
        let full_sized = len >= RCV_MSS_INITIAL || (len >= RCV_MSS_MIN && !seen.pushed);
        let small = u16::try_from(len).unwrap_or(u16::MAX);
        if full_sized && core::mem::replace(&mut self.last_small_bytes, small) == small {
            self.rcv_mss = len;
            return;
        }
        self.pushed = (self.pushed + 1).min(2);
    }

    fn start_quick(&mut self, rcv_wnd: u32) {
        let acks = (rcv_wnd / (2 * self.rcv_mss)).clamp(2, u32::from(QUICK_ACKS_MAX));
        self.quick = self.quick.max(u8::try_from(acks).unwrap_or(QUICK_ACKS_MAX));
    }

    /// Enters quick-ACK mode when the peer needs the next ACKs soon: it retransmits, perhaps
    /// because our ACKs were lost; congestion marks on its data have begun or, with DCTCP, ended;
    /// or a SYN-ACK arrives for which a writer sleeps.
    pub(crate) fn enter_quick(&mut self, rcv_wnd: u32) {
        self.start_quick(rcv_wnd);
        self.pingpong = 0;
        self.ato_us = self.delack_min_us;
    }

    /// Makes the next ACK a quick one, because the window has grown and the peer can use it as soon
    /// as it is announced.
    pub(crate) fn on_window_grown(&mut self) {
        self.quick |= 1;
    }

    /// Leaves quick-ACK mode after the receive buffer overran or while memory is scarce, because
    /// more ACKs would only cause more data to arrive.
    pub(crate) fn stop_quick(&mut self) {
        self.quick = 0;
    }

    /// Processes a SYN-ACK for which a writer sleeps: the writer's data will carry the ACK, as a
    /// reply (Linux: `sk_write_pending`).
    pub(crate) fn on_awaited_syn_ack(&mut self, rcv_wnd: u32, now: Instant) {
        self.enter_quick(rcv_wnd);
        self.last_data_at = now;
        self.pending = Pending::Delayed;
    }

    /// Sets `TCP_QUICKACK`. As in Linux the mode is not permanent: later segments may leave or
    /// enter it.
    pub(crate) fn set_quick(&mut self, on: bool) {
        self.pingpong = if on { 0 } else { self.pingpong_thresh };
        if on && self.pending == Pending::Delayed {
            self.pending = Pending::Now;
        }
    }

    /// Schedules the ACK of received data; `unacked` is `rcv_nxt - rcv_wup`, the bytes since the
    /// last ACK. `useful` says whether an ACK would move the window's right edge, or the
    /// application waits for more data; if neither, the ACK is delayed unless quick-ACK mode is on.
    pub(crate) fn schedule(&mut self, unacked: u32, useful: bool) {
        if (unacked > self.rcv_mss && useful) || self.is_quick() {
            self.schedule_now();
        } else if self.pending == Pending::Nothing {
            self.pending = Pending::Delayed;
        }
    }

    /// Schedules an ACK with the next `output`.
    pub(crate) fn schedule_now(&mut self) {
        self.pending = Pending::Now;
    }

    /// Cancels the owed ACK after a segment with ACK was sent.
    pub(crate) fn on_ack_sent(&mut self) {
        if self.pending != Pending::Nothing && self.quick > 0 {
            self.quick -= 1;
            if self.quick == 0 {
                self.ato_us = self.delack_min_us;
            }
        }
        self.pending = Pending::Nothing;
        self.pushed = 0;
    }

    /// Counts a reply: data that is sent soon after data arrived, as on an interactive connection.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        if self.ato_us != 0 && micros_since(now, self.last_data_at) < self.ato_us {
            self.pingpong = self.pingpong.saturating_add(1);
        }
    }

    /// Processes the expiry of the delayed-ACK timer: no reply was sent in time. If replies were
    /// expected (`pingpong`), they no longer are; otherwise the ATO doubles, up to the RTO.
    pub(crate) fn on_delack_timeout(&mut self, rto: Duration) {
        if self.is_pingpong() {
            self.pingpong = 0;
            self.ato_us = self.delack_min_us;
        } else {
            self.ato_us = self.ato_us.saturating_mul(2).min(micros(rto));
        }
    }

    pub(crate) fn cancel(&mut self) {
        self.pending = Pending::Nothing;
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.pending != Pending::Nothing
    }

    pub(crate) fn is_now(&self) -> bool {
        self.pending == Pending::Now
    }

    /// Returns whether every segment is acknowledged at once.
    pub(crate) fn is_quick(&self) -> bool {
        self.never_delays || (self.quick > 0 && !self.is_pingpong())
    }

    /// Sets whether the route asks for ACKs without delay.
    pub(crate) fn set_never_delays(&mut self, on: bool) {
        self.never_delays = on;
    }

    /// Returns whether an ACK is sent when the application has read all data: after the end of a
    /// write, unless a reply will carry the ACK.
    pub(crate) fn wants_ack_when_drained(&self) -> bool {
        self.pushed > 1 || (self.pushed > 0 && !self.is_pingpong())
    }

    /// Returns the estimate of the peer's segment size.
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss
    }

    /// Returns the time of the last arrival of data, if there was any.
    pub(crate) fn last_data_at(&self) -> Option<Instant> {
        Some(self.last_data_at).filter(|at| *at != Instant::ZERO)
    }

    pub(crate) fn is_pingpong(&self) -> bool {
        self.pingpong >= self.pingpong_thresh
    }

    pub(crate) fn ato(&self) -> Duration {
        Duration::from_micros(u64::from(self.ato_us))
    }

    /// Returns the time in microseconds that the owed ACK may wait from now on.
    pub(crate) fn delay_us(&self, srtt_us: Option<u32>) -> u32 {
        let mut ceiling = self.delack_max_us.saturating_mul(5) / 2;
        if self.is_pingpong() || self.pushed > 0 {
            ceiling = self.delack_max_us;
        }
        // The wait is at most the round-trip time, or `tcp_delack_min` if that is longer, because
        // the peer's RTO has to cover the round trip and the wait.
        if let Some(srtt_us) = srtt_us {
            ceiling = ceiling.min(srtt_us.max(self.delack_min_us));
        }
        let wait = self.ato_us.max(self.delack_min_us).min(ceiling);
        wait.min(self.delack_max_us)
    }
}

fn micros_since(now: Instant, then: Instant) -> u32 {
    u32::try_from(now.micros_since(then)).unwrap_or(u32::MAX)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
