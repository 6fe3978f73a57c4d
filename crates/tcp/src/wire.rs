//! Formats and their arithmetic: the TCP header, its options, the Fast Open cookie, the
//! pseudo-header, sequence numbers, and the four-tuple.
//!
//! Above: all modules of this crate except `base`. Below: no module of this crate. RFC 9293 §3.1,
//! RFC 7323, RFC 7413 §4.1.1.

pub mod cookie;
pub mod four_tuple;
pub mod header;
pub mod option;
pub(crate) mod pseudo;
pub mod seq;
