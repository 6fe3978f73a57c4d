//! The connection that the packets of a poll go to, as long as they go to one.
//!
//! Above: the steps of receive. Below: the socket.

use crate::{
    base::counters::Counter,
    cx::Cx,
    header::{
        ip::{self, IpHeader},
        repeat::SeenHeader,
    },
    host::Host,
    socket::connection::TcpSocket,
    transmit::{dst::DstHandle, packet_dst::PacketDst},
};
use pkt::{DropReason, Packet};
use std::cell::Cell;
use sync::epoch::Section;
use tcp::{FourTuple, SegmentHeader};

/// The last four-tuple that a core was asked about: the next packet is most likely of the same flow, and the keyed hash costs more
/// than the comparison, as reading a header costs more than to compare it.
#[derive(Debug, Default)]
pub(crate) struct LastFlow(Option<KnownFlow>);

impl LastFlow {
    /// The hash of `tuple` in the tables of `host`, which must always be the same host.
    #[inline]
    fn hash_of(&mut self, host: &Host, tuple: &FourTuple) -> u32 {
        match &self.0 {
            Some(last) if last.tuple == *tuple => last.hash,
            _ => {
                let hash = host.demux().hash(tuple);
                self.0.insert(KnownFlow { tuple: *tuple, hash, seen: None }).hash
            }
        }
    }
}

/// A four-tuple with its hash, and a header of its packets.
#[derive(Debug)]
struct KnownFlow {
    tuple: FourTuple,
    hash: u32,
    seen: Option<SeenHeader>,
}

impl KnownFlow {
    /// Whether the long way reads `short` from `packet` too, and the tuple. So every run with debug assertions, of a fuzzer above
    /// all, is a test of what is left out.
    fn is_read_from(&self, packet: &Packet, short: &IpHeader) -> bool {
        let linear = packet.linear();
        let ports = linear.get(usize::from(short.header_len)..).and_then(SegmentHeader::ports);
        let (local, remote) = (self.tuple.local, self.tuple.remote);
        ip::parse::<true>(linear, packet.len()) == Ok(*short)
            && (short.src, short.dst) == (remote.ip(), local.ip())
            && ports == Some((remote.port(), local.port()))
    }
}

/// Consecutive packets of one connection in a poll: they share one output, one ACK decision and one wake. As long as the read
/// section of the poll, which keeps the connection.
#[derive(Debug)]
pub(crate) struct Flow<'s> {
    socket: Option<&'s TcpSocket>,
    last_flow: &'s mut LastFlow,
    /// It lives on another core than the one being run.
    foreign: bool,
    /// The packet on its way up is the last of its poll.
    last: bool,
    /// The socket has had its flush, together with that packet.
    flushed: Cell<bool>,
}

impl<'s> Flow<'s> {
    /// None so far.
    pub(crate) const fn new(last_flow: &'s mut LastFlow) -> Self {
        Self { socket: None, last_flow, foreign: false, last: false, flushed: Cell::new(false) }
    }

    /// The hash of `tuple` in the tables of `host`.
    #[inline]
    pub(crate) fn hash(&mut self, host: &Host, tuple: &FourTuple) -> u32 {
        self.last_flow.hash_of(host, tuple)
    }

    /// The header of `packet`, if it repeats that of the last packet of the last flow.
    #[inline]
    pub(crate) fn repeated_header(&self, packet: &Packet) -> Option<IpHeader> {
        let last = self.last_flow.0.as_ref()?;
        let header = last.seen.as_ref()?.repeated_in(packet.linear(), packet.len())?;
        debug_assert!(last.is_read_from(packet, &header), "{header:?} is no header of {last:?}");
        Some(header)
    }

    /// The tuple and the hash of a packet whose header [is repeated](Self::repeated_header).
    #[inline]
    pub(crate) fn repeated_tuple(&self) -> Option<(&FourTuple, u32)> {
        self.last_flow.0.as_ref().map(|last| (&last.tuple, last.hash))
    }

    /// The packet whose tuple was last hashed goes to a connection: others may repeat its `header`, which is in front of it.
    #[inline]
    pub(crate) fn note_header(&mut self, header: &IpHeader, packet: &Packet) {
        if let Some(last) = &mut self.last_flow.0 {
            last.seen = SeenHeader::new(packet.linear(), header);
        }
    }

    /// Is `tuple` the flow of the packet before?
    #[inline]
    pub(crate) fn is(&self, tuple: &FourTuple, over_loopback: bool) -> bool {
        self.socket.is_some_and(|socket| {
            socket.tuple() == tuple && socket.is_over_loopback() == over_loopback
        })
    }

    /// The input route that the current connection remembers for packets from `device`.
    #[inline]
    pub(crate) fn rx_dst(
        &self,
        host: &Host,
        device: u32,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        self.socket?.rx_dst(host, device, rcu)
    }

    /// One more segment for the current connection.
    #[inline]
    pub(crate) fn segment(
        &self,
        host: &Host,
        cx: &mut Cx,
        rcu: &Section<'_>,
        dst: PacketDst<'_>,
        packet: Packet,
    ) {
        match self.socket {
            Some(socket) => {
                if self.foreign {
                    cx.count(Counter::ForeignCorePackets, 1);
                }
                let flushed = socket.segment(host, cx, rcu, dst, packet, self.last);
                self.flushed.set(flushed);
            }
            None => cx.drop_packet(DropReason::TcpNoSocket, packet),
        }
    }

    /// The next packet of the batch goes to `socket`; the socket before it, if another, has had its packets.
    pub(crate) fn follow(&mut self, host: &Host, cx: &mut Cx, socket: &'s TcpSocket) {
        if self.socket.is_some_and(|current| core::ptr::eq(current, socket)) {
            return;
        }
        self.flush(host, cx);
        let here = cx.running().unwrap_or_else(|| socket.core());
        self.foreign = here != socket.core();
        socket.note_incoming(here);
        self.socket = Some(socket);
    }

    /// Output and wake of the socket that received last.
    pub(crate) fn flush(&mut self, host: &Host, cx: &mut Cx) {
        if let Some(socket) = self.socket.take()
            && !self.flushed.replace(false)
        {
            socket.flush(host, cx);
        }
    }

    /// Whether the packet that goes up next is the last of its poll: then its socket is flushed in the same breath.
    pub(crate) const fn set_last(&mut self, last: bool) {
        self.last = last;
    }
}
