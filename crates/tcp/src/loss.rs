//! Loss: which transmissions count as lost, what follows for the window, and sending again.
//!
//! Above: `output`, the timers, `input::ack` and `input::icmp`. Below: `segment` sends, `tcb` has
//! the marks. RFC 5681 §3.2, RFC 6298 §5, RFC 6582, RFC 8985.

pub(crate) mod rack;
pub(crate) mod recovery;
pub(crate) mod retransmit;
pub(crate) mod scoreboard;
pub(crate) mod tlp;
