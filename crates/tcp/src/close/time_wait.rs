//! TIME-WAIT as a small object: the part of a connection that stays while old duplicates may
//! arrive.
//!
//! Above: the stack's demux keeps it in place of the connection for 60 s. RFC 9293 §3.6.1 and
//! §3.10.7.4, RFC 1337, RFC 6191; Linux: inet_timewait_sock, tcp_timewait_state_process.
//!
//! It answers segments that the peer repeats, ends with a valid RST (unless `tcp_rfc1337`), and is
//! replaced by a connection whose SYN cannot be an old duplicate.
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

/// 2 MSL as Linux counts it (`TCP_TIMEWAIT_LEN`).
pub const TIME_WAIT_LEN: Duration = Duration::from_secs(60);

/// Distance of a reopened connection's ISS from the old SND.NXT: beyond any window without scaling, and 0 avoided.
const REOPEN_DISTANCE: u32 = 65_535 + 2;

/// See the module head.
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
    /// When `ts_recent` was taken.
    ts_recent_at: Instant,
    window: u16,
    timestamps: bool,
}

/// What an active open takes over from the connection that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Smallest ISS that no old segment can be confused with.
    pub iss: SeqNum,
    /// TS.Recent of the old connection.
    pub ts_recent: u32,
}

/// What became of the connection that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitVerdict {
    /// It waits on; its deadline may have moved.
    Keep,
    /// A new connection may begin: the listener takes the SYN, its ISS is at least this (RFC 6191), and the wait ends.
    /// Without a listener the wait goes on, and [`TimeWait::acknowledge`] answers the SYN.
    Reopen {
        /// Smallest ISS that no old segment can be confused with.
        iss: SeqNum,
    },
    /// A reset ended it.
    Closed,
}

impl TimeWait {
    /// What is left of a connection that is in TIME-WAIT. The caller then ends the block with
    /// [`Tcb::release_time_wait`] and puts this in its place.
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

    /// Processes a segment with `payload_len` bytes of data. The caller frees the packet: nothing in it counts.
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
                // The peer repeats its FIN: its wait for our ACK starts over, and so does ours.
                self.deadline = cx.now + TIME_WAIT_LEN;
            }
            self.acknowledge(cx);
        }
        TimeWaitVerdict::Keep
    }

    /// `<SEQ=SND.NXT><ACK=RCV.NXT>`, at most one per `tcp_invalid_ratelimit`.
    ///
    /// The caller asks for it when nobody listens for the SYN of a [`TimeWaitVerdict::Reopen`].
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

    /// May an active open take the four-tuple over (RFC 6191 §2; Linux: tcp_twsk_unique)? Only with timestamps, which tell
    /// the old segments from the new, and not before the peer's clock has ticked: `delay` (`tcp_tw_reuse_delay`) since its
    /// last one. The caller then ends the wait and counts `TcpExtTWRecycled`.
    #[must_use]
    pub fn reuse(&self, now: Instant, delay: Duration) -> Option<Reuse> {
        let ticked = now.checked_duration_since(self.ts_recent_at).is_some_and(|age| age >= delay);
        (self.timestamps && ticked)
            .then(|| Reuse { iss: self.snd_nxt + REOPEN_DISTANCE, ts_recent: self.ts_recent })
    }

    /// When the wait ends. May move later: the caller asks again before it removes the object, and then counts
    /// `TcpExtTW`.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The connection's name.
    #[must_use]
    pub fn tuple(&self) -> &FourTuple {
        &self.tuple
    }
}

/// A busy server holds tens of thousands of these.
const TIME_WAIT_BYTES_MAX: usize = 128;
const _: () = assert!(size_of::<TimeWait>() <= TIME_WAIT_BYTES_MAX);
