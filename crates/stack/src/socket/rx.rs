//! Arguments that all receive steps share ([`Rx`]), and batching: consecutive packets of one
//! connection, or consecutive datagrams of one socket, are flushed together.
//!
//! Above: the steps of the receive path, from the poll of a device queue to the connection. Below:
//! the connection.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use pkt::{DropReason, Packet, PacketList};
use sync::epoch::Section;
use tcp::{FourTuple, SegmentHeader};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::{
        ip::{self, IpHeader},
        repeat::SeenHeader,
    },
    socket::{DatagramSocket, connection::Connection, demux::Entry, net::Net},
    transmit::{dst::DstHandle, packet_dst::PacketDst},
};

/// Arguments of every receive step, from the poll of a queue to the connection.
pub(crate) struct Rx<'a, 's> {
    pub(crate) net: &'s Net,
    pub(crate) cx: &'a mut Cx,
    /// Read section of the poll. Table entries found for one packet remain valid for the following
    /// packets of the poll.
    pub(crate) rcu: &'s Section<'s>,
    /// Connection of the previous packet, if any ("current connection" below).
    pub(crate) flow: Flow<'s>,
    /// Datagrams not yet delivered.
    datagrams: Option<Datagrams<'s>>,
    /// Connected datagram socket of the last flow, if early demux has found it in this poll and has
    /// [noted](Flow::note_header) the header of its datagram.
    connected: Option<&'s DatagramSocket>,
}

/// Consecutive datagrams of one socket. They are delivered together.
#[derive(Debug)]
struct Datagrams<'s> {
    socket: &'s DatagramSocket,
    list: PacketList,
}

impl<'a, 's> Rx<'a, 's> {
    /// Creates the arguments of one poll. `last_flow` is that of the core that polls.
    #[inline]
    pub(crate) const fn new(
        net: &'s Net,
        cx: &'a mut Cx,
        rcu: &'s Section<'s>,
        last_flow: &'s mut LastFlow,
    ) -> Self {
        let flow = Flow::new(last_flow);
        Self { net, cx, rcu, flow, datagrams: None, connected: None }
    }

    /// Returns the hash of `tuple` in the tables of the host.
    #[inline]
    pub(crate) fn hash(&mut self, tuple: &FourTuple) -> u32 {
        self.flow.last_flow.hash_of(self.net, tuple)
    }

    /// Returns the table entry of the four-tuple `tuple`, whose hash is `hash`.
    #[inline]
    pub(crate) fn established(&self, tuple: &FourTuple, hash: u32) -> Option<&'s Entry> {
        self.net.demux().established(hash, tuple, self.rcu)
    }

    /// Returns the input route entry (dst) that the current connection caches, if it is valid for
    /// packets from `device`.
    #[inline]
    pub(crate) fn rx_dst(&self, device: DeviceIndex) -> Option<DstHandle<'s>> {
        self.flow.socket?.rx_dst(self.net, device, self.rcu)
    }

    /// Returns whether `device` may bring segments of the current connection
    /// ([`Connection::may_come_by`]).
    pub(crate) fn may_come_by(&self, device: DeviceIndex) -> bool {
        self.flow.socket.is_some_and(|socket| socket.may_come_by(device))
    }

    /// Delivers one more segment to the current connection.
    #[inline]
    pub(crate) fn segment(&mut self, dst: PacketDst<'_>, packet: Packet) {
        match self.flow.socket {
            Some(socket) => {
                if self.flow.foreign {
                    self.cx.count(Counter::ForeignCorePackets, 1);
                }
                self.flow.flushed = socket.segment(self, dst, packet);
            }
            None => self.cx.drop_packet(DropReason::TcpNoSocket, packet),
        }
    }

    /// Makes `socket` the current connection. If it was not current, first flushes the previous
    /// connection and the collected datagrams ([`flush`](Self::flush)).
    pub(crate) fn switch_to(&mut self, socket: &'s Connection) {
        if self.flow.socket.is_some_and(|current| core::ptr::eq(current, socket)) {
            return;
        }
        self.flush();
        let here = self.cx.running().unwrap_or_else(|| socket.core());
        self.flow.foreign = here != socket.core();
        socket.note_incoming(here);
        self.flow.socket = Some(socket);
    }

    /// Returns the connected socket of a datagram. Its four-tuple is `tuple`, or that of the last
    /// flow if its header repeats the one that was noted last.
    #[inline]
    pub(crate) fn connected<const V4: bool>(
        &mut self,
        header: &IpHeader,
        repeats: bool,
        packet: &Packet,
        tuple: impl FnOnce() -> Option<FourTuple>,
    ) -> Option<&'s DatagramSocket> {
        // A header of UDP is noted only here, so that the socket is that of the last flow.
        if repeats && self.connected.is_some() {
            return self.connected;
        }
        let tuple = tuple()?;
        let hash = self.hash(&tuple);
        let found = self.net.datagrams().connected(hash, &tuple, self.rcu)?;
        self.flow.note_header::<V4>(header, packet);
        self.connected = Some(found);
        self.connected
    }

    /// Adds a datagram, whose headers were removed, for `socket`. The datagram is delivered by the
    /// next [`flush`](Self::flush), or when a datagram of another socket follows.
    #[inline]
    pub(crate) fn datagram(&mut self, socket: &'s DatagramSocket, packet: Packet) {
        if !self.is_current_datagram_socket(socket) {
            self.deliver_datagrams();
            if let Some(here) = self.cx.running() {
                socket.note_incoming(here);
            }
        }
        let none = || Datagrams { socket, list: PacketList::new() };
        self.datagrams.get_or_insert_with(none).list.push_back(packet);
    }

    /// Whether the last datagram was for `socket`.
    #[inline]
    pub(crate) fn is_current_datagram_socket(&self, socket: &DatagramSocket) -> bool {
        self.datagrams.as_ref().is_some_and(|current| core::ptr::eq(current.socket, socket))
    }

    #[inline]
    fn deliver_datagrams(&mut self) {
        if let Some(datagrams) = self.datagrams.take() {
            deliver(self.cx, datagrams);
        }
    }

    /// Delivers the collected datagrams. Sends the output of the current connection and wakes its
    /// waiting threads, unless this was done with its last packet.
    pub(crate) fn flush(&mut self) {
        self.deliver_datagrams();
        if let Some(socket) = self.flow.socket.take()
            && !core::mem::take(&mut self.flow.flushed)
        {
            socket.flush(self.net, self.cx);
        }
    }
}

/// Delivers datagrams. Out of line, because a poll of segments has none.
#[inline(never)]
fn deliver(cx: &mut Cx, mut datagrams: Datagrams<'_>) {
    datagrams.socket.deliver(cx, &mut datagrams.list);
}

/// Returns the four-tuple of a packet received by `device`. `ports` are the source port and the
/// destination port.
#[inline]
pub(crate) fn tuple_of<const V4: bool>(
    header: &IpHeader,
    device: DeviceIndex,
    ports: (u16, u16),
) -> FourTuple {
    let (src_port, dst_port) = ports;
    if V4 {
        let local = SocketAddr::new(header.dst, dst_port);
        return FourTuple { local, remote: SocketAddr::new(header.src, src_port) };
    }
    FourTuple {
        local: scoped(header.dst, dst_port, device),
        remote: scoped(header.src, src_port, device),
    }
}

/// Returns one end (address and port) of a connection over `device`. A link-local address gets the
/// index of `device` as its scope (RFC 4007), because the same address on another link is another
/// host.
pub(crate) const fn scoped(ip: IpAddr, port: u16, device: DeviceIndex) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, device.0))
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// Last four-tuple looked up on this core. The next packet most likely belongs to the same flow,
/// and comparing costs less than the keyed hash or parsing the header.
#[derive(Debug, Default)]
pub(crate) struct LastFlow(Option<KnownFlow>);

impl LastFlow {
    /// Returns the hash of `tuple` in the tables of `net`. All calls must pass the same host.
    #[inline]
    fn hash_of(&mut self, net: &Net, tuple: &FourTuple) -> u32 {
        match &self.0 {
            Some(last) if last.tuple == *tuple => last.hash,
            _ => {
                let hash = net.demux().hash(tuple);
                self.0.insert(KnownFlow { tuple: *tuple, hash, seen: None }).hash
            }
        }
    }
}

/// Four-tuple with its hash, and the headers of its previous packet.
#[derive(Debug)]
pub(crate) struct KnownFlow {
    pub(crate) tuple: FourTuple,
    pub(crate) hash: u32,
    seen: Option<SeenHeader>,
}

impl KnownFlow {
    /// Whether a complete parse of `packet` yields the header `short` and this four-tuple. A debug
    /// assertion calls it, so that all tests and fuzzers check [`Flow::repeated_header`].
    fn is_read_from<const V4: bool>(&self, packet: &Packet, short: &IpHeader) -> bool {
        let linear = packet.linear();
        let ports = linear.get(usize::from(short.header_len)..).and_then(SegmentHeader::ports);
        let (local, remote) = (self.tuple.local, self.tuple.remote);
        ip::parse::<V4>(linear, packet.len()) == Ok(*short)
            && (short.src, short.dst) == (remote.ip(), local.ip())
            && ports == Some((remote.port(), local.port()))
    }
}

/// Consecutive packets of one connection in a poll. They cause one output (besides resets and
/// duplicate ACKs), one decision about an ACK and one wake-up. The read section of the poll keeps
/// the connection alive.
#[derive(Debug)]
pub(crate) struct Flow<'s> {
    socket: Option<&'s Connection>,
    last_flow: &'s mut LastFlow,
    /// True if the connection belongs to another core than the running one.
    foreign: bool,
    /// True if the current packet is the last of its poll.
    last: bool,
    /// True if the delivery of the previous packet has flushed the connection.
    flushed: bool,
}

impl<'s> Flow<'s> {
    /// Creates a flow without a connection.
    const fn new(last_flow: &'s mut LastFlow) -> Self {
        Self { socket: None, last_flow, foreign: false, last: false, flushed: false }
    }

    /// Returns the IP header of `packet`, if the headers of `packet` match those of the previous
    /// packet of the last flow, a connection or a connected datagram socket.
    #[inline]
    pub(crate) fn repeated_header<const V4: bool>(&self, packet: &Packet) -> Option<IpHeader> {
        let last = self.last_flow.0.as_ref()?;
        let header = last.seen.as_ref()?.repeated_in::<V4>(packet.linear(), packet.len())?;
        debug_assert!(
            last.is_read_from::<V4>(packet, &header),
            "{header:?} is no header of {last:?}"
        );
        Some(header)
    }

    /// Returns the flow of a packet with a [repeated header](Self::repeated_header).
    #[inline]
    pub(crate) const fn repeated(&self) -> Option<&KnownFlow> {
        self.last_flow.0.as_ref()
    }

    /// Remembers `header`, the header of `packet`, for comparison with the following packets. The
    /// four-tuple of `packet` is the one that was hashed last.
    #[inline]
    pub(crate) fn note_header<const V4: bool>(&mut self, header: &IpHeader, packet: &Packet) {
        if let Some(last) = &mut self.last_flow.0 {
            last.seen = SeenHeader::new::<V4>(packet.linear(), header);
        }
    }

    /// Whether the current connection has this four-tuple, over loopback or not as given.
    #[inline]
    pub(crate) fn is(&self, tuple: &FourTuple, over_loopback: bool) -> bool {
        self.socket.is_some_and(|socket| {
            socket.tuple() == tuple && socket.is_over_loopback() == over_loopback
        })
    }

    /// Notes whether the next packet is the last of its poll. The delivery of the last packet
    /// flushes its connection, unless a thread owns the connection.
    pub(crate) const fn set_last(&mut self, last: bool) {
        self.last = last;
    }

    /// Whether the current packet is the last of its poll.
    pub(crate) const fn is_last(&self) -> bool {
        self.last
    }
}
