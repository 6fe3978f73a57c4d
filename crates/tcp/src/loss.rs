//! Loss: detection of lost transmissions, the reaction of the congestion window, and
//! retransmission.
//!
//! Above: `output`, the timers, `input::ack` and `input::icmp`. Below: `segment` transmits,
//! `tcb::send_queue` holds the entries and their marks (lost, SACKed, retransmitted).
//! RFC 5681 §3.2, RFC 6298 §5, RFC 6582, RFC 8985.

pub(crate) mod rack;
pub(crate) mod recovery;
pub(crate) mod retransmit;
pub(crate) mod scoreboard;
pub(crate) mod tlp;
