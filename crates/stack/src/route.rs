//! Routing: the forwarding table, and the dst entries made from it.
//!
//! Above: receive steps and sockets, which look up routes. Below: `transmit`, whose
//! [`Dst`](crate::transmit::dst::Dst) is an entry. Linux:
//! net/ipv4/{route,fib_trie,fib_semantics}.c.

pub(crate) mod change;
pub(crate) mod exception;
pub mod fib;
pub(crate) mod input;
pub mod lpm;
pub(crate) mod output;
pub mod router;
pub(crate) mod source_address;
pub(crate) mod table;

pub(crate) use router::Path;
