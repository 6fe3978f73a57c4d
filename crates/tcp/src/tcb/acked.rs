//! Facts about one acknowledgment, gathered while the send queue is traversed.
//!
//! Above: `input::ack` and `loss::scoreboard` write the facts, as `send_queue` does; `loss`,
//! `delivery_rate` and the RTT sample of `input::ack` read them. Linux: struct tcp_sacktag_state,
//! and the FLAG_* of tcp_ack.
//!
//! Not here: the consequences (`input::ack`, `loss`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    tcb::send_queue::entry::{Entry, EntryFlags, Snapshot},
    wire::seq::SeqNum,
};

/// A transmission. Transmissions are ordered by time, and by sequence number if sent at the same
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transmission {
    pub(crate) sent_at: Instant,
    pub(crate) end_seq: SeqNum,
}

impl Transmission {
    /// Returns whether this transmission is later than `other` (RACK_sent_after of RFC 8985 §6.2).
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.sent_at > other.sent_at
            || (self.sent_at == other.sent_at && self.end_seq.gt(other.end_seq))
    }
}

/// The transmission on which a delivery-rate sample is based.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rated {
    pub(crate) transmission: Transmission,
    /// Snapshot that the queue entry took at this transmission.
    pub(crate) snapshot: Snapshot,
    /// Whether the application limited the connection at this transmission.
    pub(crate) app_limited: bool,
    pub(crate) retransmission: bool,
}

/// Facts about one acknowledgment.
#[derive(Clone, Debug)]
pub(crate) struct Acked {
    now: Instant,
    min_rtt: Duration,
    /// Sequence numbers removed from the queue.
    pub(crate) bytes: u32,
    /// Sequence numbers reported by SACK for the first time.
    pub(crate) sacked: u32,
    /// Sequence numbers newly known to have arrived, by acknowledgment or SACK.
    pub(crate) delivered: u32,
    /// Time when the last removed entry was sent, of those that SACK had not reported: the RTT
    /// sample. `None` if that entry was retransmitted.
    pub(crate) sent_at: Option<Instant>,
    /// Time when the newest entry that SACK newly reported was sent, of those sent only once.
    pub(crate) sacked_sent_at: Option<Instant>,
    /// Whether a removed entry had been retransmitted.
    pub(crate) retransmitted: bool,
    /// Latest of the transmissions that arrived, without retransmissions that cannot have arrived
    /// yet.
    pub(crate) newest: Option<Transmission>,
    /// Latest of all transmissions that newly arrived, for the delivery rate.
    pub(crate) rated: Option<Rated>,
    /// Lowest sequence number that arrived and was sent only once.
    pub(crate) lowest_original: Option<SeqNum>,
    /// TSecr of the ACK's segment.
    pub(crate) echo: Option<u32>,
    /// Whether the segment carried data or a FIN, changed the window, or was overtaken by later
    /// ACKs, so that it is no duplicate ACK (Linux: `FLAG_NOT_DUP`).
    pub(crate) not_duplicate: bool,
    /// Whether the ACK echoes a congestion mark (RFC 3168 §6.1.2).
    pub(crate) marked: bool,
    /// Range that the peer reported as arrived twice.
    pub(crate) duplicate: Option<(SeqNum, SeqNum)>,
}

impl Acked {
    /// Returns an empty record. An acknowledged retransmission that is younger than `min_rtt`
    /// cannot have arrived yet: its original has arrived.
    ///
    /// Differs from RFC 8985 §6.2 step 2 as Linux does: timestamps are not used, because the ACK of
    /// an out-of-order segment echoes the timestamp of an older segment.
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
            not_duplicate: false,
            marked: false,
            duplicate: None,
        }
    }

    /// Records that `bytes` of `entry`, up to `end_seq`, newly arrived.
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

    /// Bases the delivery-rate sample on the newest transmission, whose interval is the shortest.
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
