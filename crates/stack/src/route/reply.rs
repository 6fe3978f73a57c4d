//! Paths of answers that no socket sends: resets, SYN-ACKs and cookies, ACKs of TIME-WAIT remnants.
//!
//! Such answers come as fast as a stranger asks for them, each to another address. Their paths differ by the next hop
//! and by what ICMP has taught, so a few paths serve them all, found without a lock, a reference count or an allocation. Linux: the nexthop's
//! cached `rtable` (`nhc_rth_input`, `nhc_pcpu_rth_output`).
//!
//! Not here: paths of connections, which each keep their own.

use std::{net::IpAddr, sync::Arc, vec::Vec};

use sync::{
    RcuMap,
    epoch::{Domain, Section},
};

use super::Dst;
use crate::{
    errno::Errno,
    host::{Hop, Host},
};

/// Paths kept. Each keeps its neighbour from being collected, hence well below `gc_thresh3`; a flood from many addresses of
/// one link passes through here as it passes through the neighbour table.
const PATHS_MAX: usize = 64;

/// What makes a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: u32,
    next_hop: IpAddr,
    source: IpAddr,
    mtu: u32,
    dont_fragment: bool,
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct ReplyPaths {
    paths: RcuMap<Key, Arc<Dst>>,
}

impl ReplyPaths {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self { paths: RcuMap::new(rcu, PATHS_MAX) }
    }

    /// The path of `hop`, made if there is none.
    pub(crate) fn path<'s>(
        &'s self,
        host: &Host,
        hop: &Hop,
        rcu: &'s Section<'_>,
    ) -> Result<&'s Dst, Errno> {
        let Hop { index: device, next_hop, source, mtu, dont_fragment, .. } = *hop;
        let key = Key { device, next_hop, source, mtu, dont_fragment };
        let hash = hash(next_hop);
        if let Some(dst) = self.paths.lookup(hash, &key, rcu)
            && dst.generation == host.route_generation()
        {
            return Ok(&**dst);
        }
        let dst = host.make_dst(hop)?;
        if self.paths.len() >= PATHS_MAX {
            self.clear(rcu);
        }
        self.paths.insert_or_replace(hash, key, dst);
        // Another core may have cleared the table since: the peer repeats what is not answered.
        self.paths.lookup(hash, &key, rcu).map(|dst| &**dst).ok_or(Errno::ENOBUFS)
    }

    fn clear(&self, rcu: &Section<'_>) {
        let mut keys = Vec::with_capacity(PATHS_MAX);
        self.paths.for_each(rcu, |key, _| keys.push(*key));
        for key in keys {
            self.paths.remove(hash(key.next_hop), &key);
        }
    }
}

/// Whoever aims many next hops at one bucket has aimed [`PATHS_MAX`] at it.
#[expect(clippy::cast_possible_truncation, reason = "the halves are folded on purpose")]
fn hash(next_hop: IpAddr) -> u32 {
    let bits = match next_hop {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ (ip.to_bits() >> 64)) as u64,
    };
    let mixed = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
