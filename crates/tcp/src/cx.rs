//! Arguments that a caller lends to every call: time, packet memory, counters, settings, chance,
//! and the list of packets to send.
//!
//! Above: `stack::Cx`, which builds one of these around a socket call or a batch of segments.
//! Below: `config` has the settings, `host_queue` the packets of a connection below TCP.
//!
//! The engine keeps no reference to any of it, reads no clock and owns no pool: two runs with equal
//! arguments give equal packets.
//!
//! Not here: the running context of the stack (`stack::cx`).

pub mod config;
pub(crate) mod host_queue;

use core::fmt;

use pkt::{Instant, PacketList, Pool, Verdict};

use crate::{
    base::{
        challenge::ChallengeBudget,
        counters::{Counter, Counters},
        memory::MemoryState,
        rng::Rng,
    },
    cx::{config::TcpConfig, host_queue::HostQueue},
};

/// Arguments every engine call shares.
pub struct Cx<'a> {
    /// The moment this call happens at.
    pub now: Instant,
    /// Packet memory of the core or thread that runs.
    pub pool: &'a mut Pool,
    /// Counter page of the stack; its single writer is whoever runs this call.
    pub counters: &'a Counters,
    /// Segments to transmit, TCP header in front, in order. All belong to the connection (or mini socket) of this
    /// call: the caller drains the list before it enters another one.
    pub out: &'a mut PacketList,
    /// Packets that a read has emptied and that are to be freed after the connection was let go
    /// (`PacketRecycle::ListAfterUnlock`): as with `out`, the caller empties it.
    pub read: &'a mut PacketList,
    /// Settings of the stack.
    pub config: &'a TcpConfig,
    /// Seeded chance.
    pub rng: &'a mut Rng,
    /// What all connections of the stack share of RFC 5961's limit.
    pub challenges: &'a ChallengeBudget,
    /// How scarce the stack's memory for connections is.
    pub memory: MemoryState,
    /// Packets of a flow may change core before they come here (RPS, RFS).
    pub rps_needed: bool,
    /// What the connection of this call has below TCP.
    pub host_queue: HostQueue,
}

impl Cx<'_> {
    /// Adds one to a counter.
    pub(crate) fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }
}

impl fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Answer of every function that takes a segment: it is consumed, or dropped with a reason and given back. Nothing
/// passes TCP upwards.
pub type SegmentVerdict = Verdict<core::convert::Infallible>;
