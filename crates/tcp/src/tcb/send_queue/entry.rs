//! One entry of the send queue: a range of sequence numbers that is transmitted as one packet, and
//! its history.
//!
//! Above: `send_queue` keeps the entries in order; `acked` and `delivery_rate` read them. Linux:
//! struct tcp_skb_cb.
//!
//! Not here: the sums over all entries (`send_queue`), the permitted changes of marks (`marks`).

use bitflags::bitflags;
use pkt::{Instant, Packet};

use crate::wire::seq::SeqNum;

bitflags! {
    /// Marks of one queued entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EntryFlags: u8 {
        /// The FIN follows the entry's data and takes one sequence number.
        const FIN = 1;
        /// The segment carries PSH, usually because the application ended a write after this data.
        const PSH = 1 << 1;
        /// The last transmission is considered lost.
        const LOST = 1 << 2;
        /// Retransmitted, and the copy is assumed to be in flight (Linux `TCPCB_SACKED_RETRANS`).
        const RETRANSMITTED = 1 << 3;
        /// Retransmitted at least once: its transmission time gives no RTT sample (Karn's
        /// algorithm).
        const EVER_RETRANSMITTED = 1 << 4;
        /// Reported by SACK: the peer has the data, but may still discard it (RFC 2018 §8).
        const SACKED = 1 << 5;
        /// The application limited the connection at the last transmission.
        const APP_LIMITED = 1 << 6;
        /// A record ends after this data (`MSG_EOR`): later data goes into another packet.
        const END_OF_RECORD = 1 << 7;
    }
}

/// A range of sequence numbers that is transmitted as one packet.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Payload; `None` for a FIN without data.
    pub(crate) packet: Option<Packet>,
    /// First sequence number.
    pub(crate) seq: SeqNum,
    /// Bytes of payload.
    pub(crate) len: u32,
    /// Memory charged to `wmem_queued`.
    pub(super) charge: u32,
    /// Number of retransmissions of this range, alone or as part of a larger entry.
    pub(crate) retransmits: u8,
    /// Marks.
    pub(crate) flags: EntryFlags,
    /// Time of the last transmission.
    pub(crate) sent_at: Instant,
    /// State of the connection at that time, for the delivery rate.
    pub(crate) snapshot: Snapshot,
}

/// An entry fits into one cache line, because a window may consist of thousands of entries. (If the
/// packets are superframes, that is, several segments in one packet, such a window has only a few
/// dozen entries.)
const _: () = assert!(size_of::<Entry>() <= 64);

impl Entry {
    /// Returns the sequence numbers that the entry occupies: payload and FIN.
    pub(crate) fn seq_len(&self) -> u32 {
        self.len + u32::from(self.flags.contains(EntryFlags::FIN))
    }

    /// Returns the first sequence number after the entry.
    pub(crate) fn end_seq(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// Whether no more data may be appended.
    pub(crate) const fn is_closed(&self) -> bool {
        self.flags.intersects(EntryFlags::FIN.union(EntryFlags::END_OF_RECORD))
    }
}

/// The state of the connection when an entry was last transmitted. Each comment begins with the
/// name in draft-cheng-iccrg-delivery-rate-estimation or in BBR's draft, where P is the packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    /// P.delivered: bytes that the connection had delivered before that transmission.
    pub(crate) delivered: u64,
    /// P.delivered_time: time of the last delivery before that transmission, or of the transmission
    /// that started the flight.
    pub(crate) delivered_at: Instant,
    /// P.first_sent_time: time of the transmission that began the send interval.
    pub(crate) first_sent_at: Instant,
    /// P.tx_in_flight: bytes in flight, this entry included.
    pub(crate) in_flight: u32,
    /// P.lost: [`SendQueue::lost_total`](crate::tcb::send_queue::SendQueue::lost_total) at that
    /// time.
    pub(crate) lost: u32,
}
