//! The link layer: Ethernet frames and ARP.

pub mod arp;
pub mod ethernet;
