//! Transmit path, from IP to the device: IP header, link header, queue, device. Each file is one
//! step.
//!
//! Above: connections, resets and ICMP errors, which call [`ip_output`]. Below: devices. Linux:
//! net/ipv4/ip_output.c, net/core/{neighbour,dev}.c, net/sched.
//!
//! A [`Dst`](dst::Dst) has all a packet needs to leave: the link, the neighbor, the transmit
//! queues. `route` creates it.

pub mod bql;
pub mod dst;
mod fragment;
pub(crate) mod gso;
pub(crate) mod ident;
pub mod ip_output;
pub(crate) mod link_output;
pub mod neighbor;
pub(crate) mod packet_dst;
pub mod qdisc;
pub mod tx_queue;
