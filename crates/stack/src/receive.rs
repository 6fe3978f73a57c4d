//! The way of a packet from the device to its socket: poll, receive offload, link header, IP header, early demux, TCP or ICMP.
//! Each file is one hop.
//!
//! Above: a turn of a core, which polls. Below: sockets, routes, the transmit side for what is answered at once. Linux:
//! net/core/{dev,gro}.c, net/ipv4/{ip_input,tcp_ipv4,icmp,arp}.c.
//!
//! IP is one algorithm for both versions: a step takes `const V4: bool`. Not here: reassembly of fragments, which are dropped with
//! a counted reason, and IPv6 input.

pub(crate) mod arp_input;
pub(crate) mod early_demux;
pub(crate) mod flow;
pub mod gro;
pub(crate) mod icmp_input;
pub(crate) mod ip_input;
pub(crate) mod link_input;
pub(crate) mod napi;
pub mod rps;
pub(crate) mod tcp_input;
