//! Facts that one acknowledgment tells, gathered while the send queue is walked.
//!
//! Above: `send_queue` and `loss::scoreboard` fill it; `loss`, `congestion` and the round-trip
//! estimate read it. Linux: struct tcp_sacktag_state, and the FLAG_* of tcp_ack.
//!
//! Not here: the consequences (`input::ack`, `loss`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    tcb::send_queue::entry::{Entry, EntryFlags, Snapshot},
    wire::seq::SeqNum,
};

/// A transmission, in the order of transmissions: by time, and by sequence number among those of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transmission {
    pub(crate) sent_at: Instant,
    pub(crate) end_seq: SeqNum,
}

impl Transmission {
    /// RFC 8985 §6.2: RACK_sent_after.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.sent_at > other.sent_at
            || (self.sent_at == other.sent_at && self.end_seq.gt(other.end_seq))
    }
}

/// The transmission that a delivery-rate sample rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rated {
    pub(crate) transmission: Transmission,
    /// What its entry remembered when it left.
    pub(crate) snapshot: Snapshot,
    /// The application limited the connection when it left.
    pub(crate) app_limited: bool,
    pub(crate) retransmission: bool,
}

/// See the module head.
#[derive(Clone, Debug)]
pub(crate) struct Acked {
    now: Instant,
    min_rtt: Duration,
    /// Sequence numbers removed from the queue.
    pub(crate) bytes: u32,
    /// Sequence numbers reported by SACK for the first time.
    pub(crate) sacked: u32,
    /// Sequence numbers known to have arrived for the first time, in either way.
    pub(crate) delivered: u32,
    /// When the newest removed entry was sent, if it was sent once only: the RTT sample.
    pub(crate) sent_at: Option<Instant>,
    /// When the newest entry reported by SACK was sent, of those sent once only.
    pub(crate) sacked_sent_at: Option<Instant>,
    /// Something removed had been retransmitted.
    pub(crate) retransmitted: bool,
    /// The transmission that was sent last of those which arrived.
    pub(crate) newest: Option<Transmission>,
    /// The same, of all that arrived for the first time: what the delivery rate is measured by.
    pub(crate) rated: Option<Rated>,
    /// Lowest number that arrived and was sent once only.
    pub(crate) lowest_original: Option<SeqNum>,
    /// TSecr of its segment.
    pub(crate) echo: Option<u32>,
    /// Its segment carried data or another window, so that it is no repetition of an ACK.
    pub(crate) has_news: bool,
    /// It echoes a congestion mark (RFC 3168 §6.1.2).
    pub(crate) marked: bool,
    /// The peer reported data that arrived twice: this range of it.
    pub(crate) duplicate: Option<(SeqNum, SeqNum)>,
}

impl Acked {
    /// Nothing yet. Retransmissions younger than `min_rtt` prove nothing: their original arrived.
    ///
    /// Differs from RFC 8985 §6.2 step 2 as Linux does: timestamps are not asked, because the ACK of a segment out of
    /// order echoes an older one.
    pub(crate) fn new(now: Instant, min_rtt: Option<Duration>) -> Self {
        Self {
            now,
            min_rtt: min_rtt.unwrap_or(Duration::ZERO),
            bytes: 0,
            sacked: 0,
            delivered: 0,
            sent_at: None,
            sacked_sent_at: None,
            retransmitted: false,
            newest: None,
            rated: None,
            lowest_original: None,
            echo: None,
            has_news: false,
            marked: false,
            duplicate: None,
        }
    }

    /// `bytes` of `entry`, up to `end_seq`, arrived for the first time.
    pub(crate) fn deliver(&mut self, entry: &Entry, bytes: u32, end_seq: SeqNum) {
        self.delivered += bytes;
        self.rate(entry, end_seq);
        let original = !entry.flags.contains(EntryFlags::EVER_RETRANSMITTED);
        if original {
            let lowest = self.lowest_original.get_or_insert(entry.seq);
            *lowest = (*lowest).min(entry.seq);
        } else if self.now - entry.sent_at < self.min_rtt {
            return;
        }
        let this = Transmission { sent_at: entry.sent_at, end_seq };
        if self.newest.is_none_or(|newest| this.is_after(&newest)) {
            self.newest = Some(this);
        }
    }

    /// The newest transmission is the sample: it spans the least time, and all of it is known.
    fn rate(&mut self, entry: &Entry, end_seq: SeqNum) {
        let transmission = Transmission { sent_at: entry.sent_at, end_seq };
        if self.rated.is_none_or(|rated| transmission.is_after(&rated.transmission)) {
            self.rated = Some(Rated {
                transmission,
                snapshot: entry.snapshot,
                app_limited: entry.flags.contains(EntryFlags::APP_LIMITED),
                retransmission: entry.flags.contains(EntryFlags::EVER_RETRANSMITTED),
            });
        }
    }
}
