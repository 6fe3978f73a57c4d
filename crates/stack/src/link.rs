//! The link layer: Ethernet frames and ARP in, and the step that puts a link header in front of what leaves.
//!
//! Below: devices. Above: `ip::input`, `ip::output`. Linux: `__netif_receive_skb_core`, net/ipv4/arp.c,
//! `neigh_hh_output`.

pub mod arp;
mod arp_input;
pub mod ethernet;
mod input;
mod output;

pub(crate) use input::{input, input_list, strip};
pub(crate) use output::{addresses, frame, is_resolved, output, send_arp};

