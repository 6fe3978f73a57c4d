//! Optional processing steps of a connection, each controlled by a setting: the prequeue with its
//! readers (`net.quietline.rx_context`), and the input route entry (dst) that a socket caches
//! (`net.quietline.rx_dst_mode`).
//!
//! Above: the connection. With the prequeue off, the connection only tests that there is no reader.
//! Not here: the settings of receive offload (`receive::gro`) and of TCP Small Queues (`wmem`).

pub(crate) mod prequeue;
pub(crate) mod reader;
pub(crate) mod rx_dst;
