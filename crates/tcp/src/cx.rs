//! Arguments that the caller of the engine provides with its calls: time, packet memory, counters,
//! settings, random numbers, and the list of packets to send.
//!
//! Above: `stack::Cx`, which builds the [`Cx`] of this module for a socket call or a batch of
//! segments. Below: `config` has the settings, `host_queue` describes the connection's packets
//! below TCP.
//!
//! The engine keeps no reference to any argument, reads no clock and owns no pool: two sequences of
//! calls with equal arguments give equal packets.
//!
//! Not here: `stack::Cx`, the state of a thread that executes the stack.

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

/// Arguments that the engine's calls share.
pub struct Cx<'a> {
    /// Time of the call.
    pub now: Instant,
    /// Packet memory of the calling core or thread.
    pub pool: &'a mut Pool,
    /// A counter page of the stack, whose only writer is the thread that runs this call.
    pub counters: &'a Counters,
    /// Segments to transmit, in order, each starting with its TCP header. All belong to the
    /// connection, request or TIME-WAIT socket of this call, or answer a segment that belongs to
    /// none. The caller drains the list before it calls the engine for another connection.
    pub out: &'a mut PacketList,
    /// Packets that a read has emptied and that are freed after the connection is unlocked
    /// (`PacketRecycle::ListAfterUnlock`). The caller drains the list, as it drains `out`.
    pub read: &'a mut PacketList,
    /// Settings of the stack.
    pub config: &'a TcpConfig,
    /// Random numbers.
    pub rng: &'a mut Rng,
    /// Limit on challenge ACKs that all connections of the stack share (RFC 5961).
    pub challenges: &'a ChallengeBudget,
    /// Memory pressure of the stack.
    pub memory: MemoryState,
    /// Whether RPS or RFS may have moved packets of a flow to another core before they reached TCP.
    pub rps_needed: bool,
    /// Packets of this connection below TCP.
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

/// The result of [`input`](crate::input()): the segment is consumed, or returned with a drop
/// reason. TCP passes no segment to a higher protocol.
pub type SegmentVerdict = Verdict<core::convert::Infallible>;
