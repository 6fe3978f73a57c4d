//! A resolved path: what a socket needs to send without looking anything up.
//!
//! Made by [`Host::route`](crate::host::Host::route) from the forwarding table, cached on the socket, checked against
//! the host's route generation, what ICMP has reported since (`exception`) and the clock before each use. Linux: `struct dst_entry`, `struct rtable`, `sk_dst_cache`.
//!
//! Not here: the reference-counting modes and layouts of the dst entry; a path is shared through `Arc` and cloned once
//! per connection, never per packet.

use std::{net::IpAddr, sync::Arc};

use pkt::Instant;

use super::exception::Stamp;
use crate::{
    device::{Capabilities, Device, GSO_BYTES_MAX, LinkType},
    neighbour_table::NeighborEntry,
};

/// A resolved path to one destination.
#[derive(Debug)]
pub struct Dst {
    /// Device the packets leave by.
    pub(crate) device: Arc<dyn Device>,
    /// Its link layer, copied from the device's capabilities to spare the dispatch.
    pub(crate) link: LinkType,
    /// The next hop's link address. `None` where the link has none.
    pub(crate) neighbor: Option<Arc<NeighborEntry>>,
    /// Source address for packets that have none yet.
    pub(crate) source: IpAddr,
    /// Largest IP packet in bytes on this path.
    pub(crate) mtu: u32,
    /// Largest superframe the device takes for this address family; 0 when it takes none.
    pub(crate) tso_max_bytes: u32,
    /// The device completes partial checksums.
    pub(crate) tx_checksum: bool,
    /// The device keeps packets after `transmit` returns.
    pub(crate) async_completion: bool,
    /// The host's route generation when this path was resolved.
    pub(crate) generation: u32,
    /// What was known about the destination then.
    pub(crate) exception: Stamp,
    /// When that counts no more (RFC 1191 §6.3); far away without an exception.
    pub(crate) expires: Instant,
    /// TCP segments carry DF (RFC 1191 §3).
    pub(crate) dont_fragment: bool,
}

impl Dst {
    /// What `caps` allow for superframes of this address family.
    pub(crate) const fn tso_limit(caps: &Capabilities, v4: bool) -> u32 {
        let tso = if v4 { caps.tso4 } else { caps.tso6 };
        if tso && caps.tx_checksum { caps.gso_max_bytes } else { 0 }
    }

    /// Largest superframe TCP may make: what the device takes, or what `gso` cuts up where the device takes none. Either
    /// way TCP, the socket lock and the route see one packet for many segments.
    pub(crate) const fn gso_max_bytes(&self) -> u32 {
        if self.tso_max_bytes > 0 { self.tso_max_bytes } else { GSO_BYTES_MAX }
    }
}
