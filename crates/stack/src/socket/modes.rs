//! Steps of a connection that a setting adds: the prequeue with its readers (`net.quietline.rx_context`), and the input route that a
//! connection remembers (`net.quietline.rx_dst_mode`).
//!
//! Above: the connection, which tests one field and goes on where a mode is off. Not here: how packets leave receive offload
//! (`receive::gro`), the order of steps of TCP Small Queues (`connection::wmem`).

pub(crate) mod prequeue;
pub(crate) mod reader;
pub(crate) mod rx_dst;
