//! Opening a connection: the SYN of a client, the requests of a server, the numbers that an outsider must not guess.
//!
//! Above: `input` and `stack::socket`. Below: `segment`. RFC 9293 §3.5 and §3.10.1, RFC 7413, RFC 4987.

pub(crate) mod active;
