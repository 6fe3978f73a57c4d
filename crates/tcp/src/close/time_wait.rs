//! TIME-WAIT as a small object, which replaces the control block while old duplicates may arrive.
//!
//! Above: the stack's demux keeps the object in place of the connection for 60 s.
//! RFC 9293 §3.6.1 and §3.10.7.4, RFC 1337, RFC 6191; Linux: inet_timewait_sock,
//! tcp_timewait_state_process.
//!
//! The object acknowledges segments that the peer retransmits, ends with a valid RST (unless
//! `tcp_rfc1337`), and is replaced by a connection whose SYN cannot be an old duplicate.
//!
//! Not here: FIN-WAIT-2, which keeps its control block.

use core::time::Duration;

use pkt::Instant;

use crate::{
    base::counters::Counter,
    cx::Cx,
    segment,
    tcb::{Tcb, TcbFlags},
    wire::{
        four_tuple::FourTuple,
        header::{Flags, SegmentHeader},
        option::{self, Options, is_older},
        pseudo,
        seq::SeqNum,
    },
};

/// 2 MSL as Linux defines it (`TCP_TIMEWAIT_LEN`).
pub const TIME_WAIT_LEN: Duration = Duration::from_secs(60);

/// Distance of a reopened connection's ISS from the old SND.NXT: beyond any unscaled window, as in
/// Linux.
const REOPEN_DISTANCE: u32 = 65_535 + 2;

/// A connection in TIME-WAIT, reduced to the values that an answer to an old segment needs.
#[derive(Clone, Debug)]
pub struct TimeWait {
    tuple: FourTuple,
    deadline: Instant,
    ack_sent_at: Option<Instant>,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    ts_recent: u32,
    ts_offset: u32,
    flow_hash: u32,
    /// Time at which `ts_recent` was received.
    ts_recent_at: Instant,
    window: u16,
    timestamps: bool,
}

/// Values that an active open takes over from a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Smallest ISS that cannot be confused with old segments.
    pub iss: SeqNum,
    /// TS.Recent of the old connection.
    pub ts_recent: u32,
}

/// Effect of a segment on a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitVerdict {
    /// TIME-WAIT continues; its deadline may have moved.
    Keep,
    /// A new connection may replace this one (RFC 6191). If a listener accepts the SYN, TIME-WAIT
    /// ends. Without a listener TIME-WAIT continues, and [`TimeWait::acknowledge`] answers the SYN.
    Reopen {
        /// Smallest ISS that cannot be confused with old segments.
        iss: SeqNum,
    },
    /// A reset ended TIME-WAIT.
    Closed,
}

impl TimeWait {
    /// Copies the state that a connection in TIME-WAIT needs. The caller then ends the control
    /// block with [`Tcb::release_time_wait`] and keeps this object in its place.
    #[must_use]
    pub fn from_tcb(tcb: &Tcb, now: Instant) -> Self {
        let window = (tcb.rcv_wnd >> tcb.rcv_wscale).min(u32::from(u16::MAX));
        Self {
            tuple: tcb.tuple,
            deadline: now + TIME_WAIT_LEN,
            ack_sent_at: None,
            snd_nxt: tcb.snd_nxt,
            rcv_nxt: tcb.rcv_nxt,
            ts_recent: tcb.ts_recent,
            ts_offset: tcb.ts_offset,
            ts_recent_at: tcb.ts_recent_at,
            flow_hash: tcb.flow_hash,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            timestamps: tcb.flags.contains(TcbFlags::TIMESTAMPS),
        }
    }

    /// Processes a segment with `payload_len` bytes of data. The caller frees the packet; its data
    /// is ignored.
    pub fn on_segment(
        &mut self,
        cx: &mut Cx<'_>,
        header: &SegmentHeader,
        payload_len: u32,
    ) -> TimeWaitVerdict {
        let timestamp = header.options.timestamps.filter(|_| self.timestamps);
        let paws_reject = timestamp.is_some_and(|(value, _)| is_older(value, self.ts_recent));
        let rst = header.has(Flags::RST);
        let empty = header.segment_len(payload_len) == 0;
        if !paws_reject && header.seq == self.rcv_nxt && (empty || rst) {
            if rst && !cx.config.tcp_rfc1337 {
                cx.count(Counter::TcpExtTWKilled);
                return TimeWaitVerdict::Closed;
            }
            if let Some((value, _)) = timestamp {
                self.ts_recent = value;
                self.ts_recent_at = cx.now;
            }
            return TimeWaitVerdict::Keep;
        }
        let syn =
            header.flags.contains(Flags::SYN) && !header.flags.intersects(Flags::ACK | Flags::RST);
        let newer = header.seq.gt(self.rcv_nxt)
            || timestamp.is_some_and(|(value, _)| is_older(self.ts_recent, value));
        if syn && !paws_reject && newer {
            return TimeWaitVerdict::Reopen { iss: self.snd_nxt + REOPEN_DISTANCE };
        }
        if paws_reject {
            cx.count(Counter::TcpExtPAWSTimewait);
        }
        if !rst {
            if paws_reject || header.has(Flags::ACK) {
                // The peer may have retransmitted its FIN. Then its wait for our ACK starts again,
                // and so does TIME-WAIT.
                self.deadline = cx.now + TIME_WAIT_LEN;
            }
            self.acknowledge(cx);
        }
        TimeWaitVerdict::Keep
    }

    /// Sends `<SEQ=SND.NXT><ACK=RCV.NXT>`, at most once per `tcp_invalid_ratelimit`.
    ///
    /// The caller calls this function if no listener accepts the SYN of a
    /// [`TimeWaitVerdict::Reopen`].
    pub fn acknowledge(&mut self, cx: &mut Cx<'_>) {
        let limit = cx.config.tcp_invalid_ratelimit;
        if self.ack_sent_at.is_some_and(|at| cx.now - at < limit) {
            cx.count(Counter::TcpExtTCPACKSkippedTimeWait);
            return;
        }
        let Some(mut packet) = cx.pool.alloc() else { return };
        self.ack_sent_at = Some(cx.now);
        let mut options = Options::new();
        if self.timestamps {
            options.timestamps = Some((option::ts_clock(cx.now, self.ts_offset), self.ts_recent));
        }
        let header = SegmentHeader {
            src_port: self.tuple.local.port(),
            dst_port: self.tuple.remote.port(),
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: self.window,
            options,
            ..SegmentHeader::default()
        };
        packet.meta_mut().flow_hash = self.flow_hash;
        segment::push_header(&mut packet, &header, pseudo::pseudo_sum(&self.tuple));
        cx.count(Counter::TcpOutSegs);
        cx.out.push_back(packet);
    }

    /// Returns the values for an active open that reuses the four-tuple, if that is safe
    /// (RFC 6191 §2; Linux: tcp_twsk_unique). Reuse is safe only with timestamps, which distinguish
    /// old segments from new ones, and only if the peer's timestamp clock has advanced, which is
    /// assumed `delay` (`tcp_tw_reuse_delay`) after the peer's last timestamp. The caller then ends
    /// TIME-WAIT and counts `TcpExtTWRecycled`.
    #[must_use]
    pub fn reuse(&self, now: Instant, delay: Duration) -> Option<Reuse> {
        let ticked = now.checked_duration_since(self.ts_recent_at).is_some_and(|age| age >= delay);
        (self.timestamps && ticked)
            .then(|| Reuse { iss: self.snd_nxt + REOPEN_DISTANCE, ts_recent: self.ts_recent })
    }

    /// Returns the end of TIME-WAIT. The end may be postponed, so the caller checks it again before
    /// it frees the object and counts `TcpExtTW`.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the connection's four-tuple.
    #[must_use]
    pub fn tuple(&self) -> &FourTuple {
        &self.tuple
    }
}

/// Upper bound of the object's size: a busy server holds tens of thousands of these objects.
const TIME_WAIT_BYTES_MAX: usize = 128;
const _: () = assert!(size_of::<TimeWait>() <= TIME_WAIT_BYTES_MAX);
