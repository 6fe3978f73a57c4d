//! ICMP, for both IP versions: the messages as values.

pub mod header;
