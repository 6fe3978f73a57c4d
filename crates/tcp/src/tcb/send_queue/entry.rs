//! One entry of the send queue: a run of sequence numbers that is transmitted as one packet, and
//! its history.
//!
//! Above: `send_queue` keeps them in order; `acked` and `delivery_rate` read them. Linux: struct
//! tcp_skb_cb.
//!
//! Not here: the sums over all entries (`send_queue`), which changes a mark may make (`marks`).

use bitflags::bitflags;
use pkt::{Instant, Packet};

use crate::wire::seq::SeqNum;

bitflags! {
    /// What is known about one queued entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EntryFlags: u8 {
        /// The FIN follows the entry's data and takes one sequence number.
        const FIN = 1;
        /// The application ended a write here: the segment carries PSH.
        const PSH = 1 << 1;
        /// Considered lost since its last transmission was counted.
        const LOST = 1 << 2;
        /// Retransmitted, and that copy is taken to be in flight (Linux `TCPCB_SACKED_RETRANS`).
        const RETRANSMITTED = 1 << 3;
        /// Retransmitted at least once: gives no RTT sample (Karn's rule).
        const EVER_RETRANSMITTED = 1 << 4;
        /// Reported by SACK: the peer holds it, but may still drop it (RFC 2018 §8).
        const SACKED = 1 << 5;
        /// The application limited the connection when it was last transmitted.
        const APP_LIMITED = 1 << 6;
        /// A record ends here (`MSG_EOR`): no later byte shares its packet.
        const END_OF_RECORD = 1 << 7;
    }
}

/// A run of sequence numbers that is transmitted as one packet.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The payload; `None` for a lone FIN.
    pub(crate) packet: Option<Packet>,
    /// First sequence number.
    pub(crate) seq: SeqNum,
    /// Bytes of payload.
    pub(crate) len: u32,
    /// What `wmem_queued` was charged for it.
    pub(super) charge: u32,
    /// Retransmissions of any part of it.
    pub(crate) retransmits: u8,
    /// What is known about it.
    pub(crate) flags: EntryFlags,
    /// Its last transmission.
    pub(crate) sent_at: Instant,
    /// The connection at that moment, for the delivery rate.
    pub(crate) snapshot: Snapshot,
}

/// One line each: a window of superframes is a few dozen, a window of small segments thousands.
const _: () = assert!(size_of::<Entry>() <= 64);

impl Entry {
    /// Sequence numbers it takes: payload and FIN.
    pub(crate) fn seq_len(&self) -> u32 {
        self.len + u32::from(self.flags.contains(EntryFlags::FIN))
    }

    /// First sequence number after it.
    pub(crate) fn end_seq(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// Nothing more is added to it.
    pub(crate) const fn is_closed(&self) -> bool {
        self.flags.intersects(EntryFlags::FIN.union(EntryFlags::END_OF_RECORD))
    }
}

/// The state of the connection when an entry was last transmitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    /// P.delivered.
    pub(crate) delivered: u64,
    /// P.delivered_time.
    pub(crate) delivered_at: Instant,
    /// P.first_sent_time: when the transmission left that began this flight's send interval.
    pub(crate) first_sent_at: Instant,
    /// P.tx_in_flight: bytes in flight, this entry included.
    pub(crate) in_flight: u32,
    /// P.lost: [`SendQueue::lost_total`](crate::tcb::send_queue::SendQueue::lost_total) at that moment.
    pub(crate) lost: u32,
}
