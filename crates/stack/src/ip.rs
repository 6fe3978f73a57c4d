//! The Internet layer, one algorithm for both versions: every step takes `const V4: bool`.
//!
//! Below: `link`. Above: TCP sockets and ICMP. Linux: net/ipv4/ip_input.c, ip_output.c, icmp.c.
//!
//! Not here: fragmentation and reassembly (fragments are dropped with a counted reason), IPv6 input.

mod early_demux;
mod ecn;
pub mod header;
mod icmp;
mod ident;
mod input;
mod list;
pub mod option;
mod output;
mod repeat;
mod reset;
mod tcp_input;

pub(crate) use ecn::set_ce;
pub(crate) use icmp::IcmpLimiter;
pub(crate) use ident::IpIds;
pub(crate) use list::ListInput;
pub use output::{IpFields, MtuDiscover};
pub(crate) use output::{Sender, discard_output, discard_unroutable, output, output_as};
pub use repeat::SeenHeader;
