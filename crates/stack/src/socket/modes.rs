//! Steps of a connection that a setting adds: the prequeue with its readers
//! (`net.quietline.rx_context`), and the input route cached by a connection
//! (`net.quietline.rx_dst_mode`).
//!
//! Above: the connection, which tests one field and continues if a mode is off. Not here: delivery
//! of packets from receive offload (`receive::gro`), the step order of TCP Small Queues
//! (`wmem`).

pub(crate) mod prequeue;
pub(crate) mod reader;
pub(crate) mod rx_dst;
