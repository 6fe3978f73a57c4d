//! Receive path, from the device to the socket: poll, receive offload, link header, IP header,
//! early demux, TCP or ICMP. Each file is one step.
//!
//! Above: a core's turn, which polls the device. Below: sockets, routes, and the transmit side for
//! immediate replies. Linux: net/core/{dev,gro}.c, net/ipv4/{ip_input,tcp_ipv4,icmp,arp}.c.
//!
//! Both IP versions share one algorithm: each step takes `const V4: bool`. Not implemented: IPv6
//! input.

pub(crate) mod arp_input;
pub(crate) mod early_demux;
pub mod gro;
pub(crate) mod icmp_input;
pub(crate) mod ip_input;
pub(crate) mod link_input;
pub(crate) mod napi;
pub(crate) mod reassembly;
pub mod rps;
pub(crate) mod tcp_input;
