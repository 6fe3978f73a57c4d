//! Receive path, from the device to the socket: poll, receive offload, link header, IP header,
//! early demux, then the protocol (TCP, UDP, ICMP, IGMP, MLD; ARP beside IP). Each file is one
//! step.
//!
//! Above: a turn of a core (`core::turn`: one pass of its softirq work), which polls the device.
//! Below: sockets, routes, and the transmit side for immediate replies. Linux:
//! net/core/{dev,gro}.c, net/ipv4/{ip_input,tcp_ipv4,udp,icmp,igmp,arp}.c,
//! net/ipv6/{ndisc,udp,icmp,mcast}.c.
//!
//! Both IP versions share one algorithm: their common steps take `const V4: bool`.

pub(crate) mod arp_input;
pub(crate) mod early_demux;
pub mod gro;
pub(crate) mod group_query;
pub(crate) mod icmp_input;
pub mod intercept;
pub(crate) mod ip_input;
pub(crate) mod link_input;
pub(crate) mod napi;
pub(crate) mod ndp_input;
pub(crate) mod reassembly;
pub mod rps;
pub(crate) mod tcp_input;
pub(crate) mod udp_input;
