//! Opening a connection: the client's SYN, the server's connection requests, and the unpredictable
//! numbers (initial sequence numbers, ports, cookies).
//!
//! Above: `input`, `output`, the retransmission timer, and `stack::socket`. Below: `segment`.
//! RFC 9293 §3.5 and §3.10.1, RFC 7413, RFC 4987, RFC 6528.

pub(crate) mod active;
pub mod fast_open;
pub mod isn;
pub mod ports;
pub mod request;
pub(crate) mod syn;
pub mod syn_cookie;
