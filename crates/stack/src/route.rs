//! Routing: the forwarding table, whose rows are routes, and the route entries (dst) made from it,
//! which packets and sockets use.
//!
//! Above: receive steps and sockets, which look up routes. Below: `transmit`, which defines the
//! type of a route entry, [`Dst`](crate::transmit::dst::Dst). Linux:
//! net/ipv4/{route,fib_trie,fib_semantics}.c; net/ipv6/{route,addrconf}.c.

pub(crate) mod change;
pub(crate) mod exception;
pub mod fib;
pub(crate) mod input;
pub mod lpm;
pub(crate) mod output;
pub mod router;
pub(crate) mod source_address;
pub(crate) mod table;

pub(crate) use router::CachedDst;
