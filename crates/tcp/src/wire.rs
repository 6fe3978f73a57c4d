//! Formats: a TCP header and its options, sequence numbers, the four-tuple, and the arithmetic that
//! goes with each.
//!
//! Above: all other modules but `base`. Below: no module of this crate. RFC 9293 §3.1, RFC 7323,
//! RFC 7413 §4.1.1.

pub mod cookie;
pub mod four_tuple;
pub mod header;
pub mod option;
pub(crate) mod pseudo;
pub mod seq;
