//! Transmit steps from IP to the device: IP header, link header, queueing discipline, device. Each
//! step has a file; the other files serve these steps.
//!
//! Above: sockets, resets and ICMP, which call [`ip_output`]. Below: devices. Linux:
//! net/ipv4/ip_output.c, net/core/{neighbour,dev}.c, net/sched.
//!
//! A route entry ([`Dst`](dst::Dst)) holds all that sending a packet needs: the link type, the
//! neighbor and the transmit queues. `route` creates the entries.

pub mod bql;
pub mod dst;
mod fragment;
pub(crate) mod gso;
pub(crate) mod ident;
pub mod ip_output;
pub(crate) mod link_output;
pub(crate) mod ndp_output;
pub mod neighbor;
pub(crate) mod packet_dst;
pub mod qdisc;
pub mod tx_queue;
