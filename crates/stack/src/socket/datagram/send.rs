//! Sends datagrams: passes them from the application's buffer to the device, in the calling thread.
//!
//! Above: crate `quietline`. Below: `route::router`, which finds the route entry, and
//! `transmit::ip_output`. Linux: `udp_sendmsg`, `udpv6_sendmsg`, `ping_v4_sendmsg`,
//! `ping_v6_sendmsg`.
//!
//! One call sends a batch of messages. Consecutive messages to one destination share the lookups,
//! and get their headers together (`Path`). Packets of consecutive messages with the same route
//! entry (dst), link addresses and transmit queue reach the device as one list. The payload is
//! copied once, into packet memory; if the device completes no checksums, the same pass computes
//! that of a UDP datagram. A connected socket caches its route entry. An unconnected socket caches
//! the entry of a destination that the first messages of two consecutive calls name, and otherwise
//! finds the entry in a read section, without a shared write.
//!
//! A datagram that is longer than the path MTU is sent in fragments, or refused with `EMSGSIZE` if
//! `IP_MTU_DISCOVER` forbids fragments (`may_fragment`) or `UDP_SEGMENT` has cut the message.
//!
//! If the device takes superframes of datagrams, a message with `UDP_SEGMENT` leaves as one packet.
//! Differs from Linux: consecutive messages of one call that have one size do, too. For other
//! devices, `UDP_SEGMENT` cuts the payload here and not in software segmentation.

use std::net::{IpAddr, SocketAddr};

use pkt::{PacketList, Sum, checksum};
use sync::epoch::Section;
use tcp::FourTuple;

use super::{
    DatagramDst, DatagramSocket, SocketKind,
    build::{Checks, OpenPacket, check_echo, datagram, echo},
    call::Call,
    target::Target,
};
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{DeviceIndex, LOOPBACK},
    },
    cx::Cx,
    device::QueueId,
    header::{
        icmp,
        ip::{IPV4_HEADER_LEN, IPV6_HEADER_LEN},
        udp::UDP_HEADER_LEN,
    },
    socket::{net::Net, wmem::Wmem},
    transmit::{
        dst::{DstHandle, DstTail, RouteKind},
        ip_output::{self, IpFields, MtuDiscover, Sender},
        link_output::{self, LinkAddresses},
    },
};

/// Largest number of datagrams into which one message is cut (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 128;

/// Largest number of bytes that a length field of IP or UDP expresses.
const LENGTH_MAX: usize = 65_535;

/// Values of one message that replace those of the socket (control messages of `sendmsg`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendControl {
    /// Source address (`IP_PKTINFO`, `IPV6_PKTINFO`), which must be an address of this host.
    pub source: Option<IpAddr>,
    /// Device for a multicast or broadcast destination, and scope of a link-local one
    /// (`IP_PKTINFO`, `IPV6_PKTINFO`).
    pub device: Option<DeviceIndex>,
    /// Type of service or traffic class, with the ECN bits (`IP_TOS`, `IPV6_TCLASS`).
    pub tos: Option<u8>,
    /// TTL or hop limit (`IP_TTL`, `IPV6_HOPLIMIT`).
    pub ttl: Option<u8>,
    /// Payload bytes of each datagram into which the message is cut (`UDP_SEGMENT`).
    pub segment: Option<u16>,
}

/// One message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendMessage<'a> {
    /// Payload.
    pub payload: &'a [u8],
    /// Destination; `None` is the peer of a connected socket.
    pub to: Option<SocketAddr>,
    /// Values that replace those of the socket.
    pub control: SendControl,
}

impl<'a> SendMessage<'a> {
    /// Returns a message to the peer of a connected socket.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        let control =
            SendControl { source: None, device: None, tos: None, ttl: None, segment: None };
        Self { payload, to: None, control }
    }

    /// Returns a message to `to`.
    #[must_use]
    pub const fn to(payload: &'a [u8], to: SocketAddr) -> Self {
        Self { to: Some(to), ..Self::new(payload) }
    }
}

impl DatagramSocket {
    /// Sends messages in order until one fails, and returns the number of messages sent: at least
    /// one, unless `messages` is empty. An error is returned only if the first message fails.
    ///
    /// # Errors
    /// A pending error of an earlier datagram; `EDESTADDRREQ` without a destination, `EMSGSIZE` for
    /// a datagram above 65,507 bytes (65,527 over IPv6), or above the path MTU if it may not be
    /// fragmented, `EAGAIN` if the send buffer is full, `EACCES` for a broadcast address without
    /// `SO_BROADCAST`, `EINVAL` for port 0, for too many segments, for a link-local address without
    /// its scope and for a message of a ping socket that is no echo request, `ENOBUFS` without
    /// memory, `EAFNOSUPPORT` for an IPv6 address on an IPv4 socket or from an IPv4 address,
    /// `ENETUNREACH` for an IPv4 address with `IPV6_V6ONLY` or from an IPv6 address, `ENETDOWN` for
    /// a closed socket, and errors of the route.
    pub fn send_batch(
        &self,
        net: &Net,
        cx: &mut Cx,
        messages: &[SendMessage<'_>],
    ) -> Result<usize, Errno> {
        let mut call = self.begin_call(net, cx);
        let sent = call.send_all(cx, messages);
        call.end(cx);
        sent
    }

    /// Sends one message.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch).
    pub fn send(&self, net: &Net, cx: &mut Cx, message: &SendMessage<'_>) -> Result<(), Errno> {
        self.send_batch(net, cx, core::slice::from_ref(message)).map(drop)
    }
}

/// Packets of consecutive messages with one route entry, not yet passed to the device.
struct TxBatch<'p> {
    /// Datagrams of one path that leave as one packet, and to which the next message is added if it
    /// has their size.
    open: Option<OpenPacket>,
    list: PacketList,
    dst: Option<(DstHandle<'p>, Option<LinkAddresses>, QueueId)>,
}

/// Way of a message to the device. The next message takes it, too, if it has the same destination
/// and control values, so that the steps that depend on these run once for both.
struct Path<'p> {
    to: Option<SocketAddr>,
    control: SendControl,
    dst: DstHandle<'p>,
    tuple: FourTuple,
    hash: u32,
    fields: IpFields,
    checks: Checks,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    frame: Option<LinkAddresses>,
    queue: QueueId,
    /// Whether packets are sent one by one: copies of them reach this host, too.
    is_shared: bool,
    /// Whether datagrams of one size may leave as one packet.
    joins: bool,
    /// Whether the destination is the peer of the connected socket.
    is_peer: bool,
}

impl Path<'_> {
    #[inline]
    fn is_for(&self, message: &SendMessage<'_>) -> bool {
        self.to == message.to && self.control == message.control
    }

    const fn is_v4(&self) -> bool {
        self.tuple.is_ipv4()
    }
}

impl Call<'_> {
    fn send_all(&mut self, cx: &mut Cx, messages: &[SendMessage<'_>]) -> Result<usize, Errno> {
        if let Some(error) = self.state.error.take() {
            return Err(error);
        }
        if self.state.closed {
            return Err(Errno::ENETDOWN);
        }
        let Some(first) = messages.first() else { return Ok(0) };
        let reader = cx.reader();
        let rcu = reader.pin();
        let target = self.target(cx, first)?;
        // The route entry is taken out of the socket, so that the socket's state can change while
        // packets refer to the entry.
        let cached = self.take_dst(cx, &target)?;
        let sent = match self.path_to(cx, first, &target, cached.as_ref(), &rcu) {
            Ok(path) => self.send_along(cx, messages, path, cached.as_ref(), &rcu),
            Err(errno) => Err(errno),
        };
        self.state.dst = cached;
        sent
    }

    /// Sends messages, the first of which takes `path`.
    fn send_along<'p>(
        &mut self,
        cx: &mut Cx,
        messages: &[SendMessage<'_>],
        mut path: Path<'p>,
        cached: Option<&'p DatagramDst>,
        rcu: &'p Section<'_>,
    ) -> Result<usize, Errno>
    where
        Self: 'p,
    {
        let mut batch = TxBatch { open: None, list: PacketList::new(), dst: None };
        let mut sent = 0;
        let mut result = Ok(());
        for message in messages {
            if !path.is_for(message) {
                self.hand_down(cx, &path, &mut batch);
                let next = self.target(cx, message);
                let next = next.and_then(|to| self.path_to(cx, message, &to, cached, rcu));
                match next {
                    Ok(next) => path = next,
                    Err(errno) => {
                        result = Err(errno);
                        break;
                    }
                }
            }
            result = self.send_one(cx, message, &path, &mut batch);
            if result.is_err() {
                break;
            }
            sent += 1;
        }
        self.hand_down(cx, &path, &mut batch);
        batch.flush(cx);
        match result {
            Err(errno) if sent == 0 => Err(errno),
            _ => Ok(sent),
        }
    }

    #[inline]
    fn target(&self, cx: &Cx, message: &SendMessage<'_>) -> Result<Target, Errno> {
        self.state.target(self.socket, self.net, cx, message.to, &message.control)
    }

    /// Returns the route entry that the socket caches for `target`, looked up again if it is stale.
    /// An unconnected socket caches the entry of a destination from the second consecutive call on.
    fn take_dst(&mut self, cx: &Cx, target: &Target) -> Result<Option<DatagramDst>, Errno> {
        let (net, socket) = (self.net, self.socket);
        let state = &mut *self.state;
        let Target { remote, lookup } = target;
        if let Some(cached) = state.dst.take()
            && cached.lookup == *lookup
            && net.is_current(cx, &cached.dst)
        {
            cx.count(Counter::DstHit, 1);
            return Ok(Some(cached));
        }
        cx.count(Counter::DstMiss, 1);
        let is_peer = state.remote.is_some_and(|peer| peer.ip() == remote.ip());
        let is_again = state.last_lookup.as_ref() == Some(lookup);
        state.last_lookup = Some(*lookup);
        if !(is_peer || is_again) {
            return Ok(None);
        }
        let hop = lookup.hop(net, cx, socket.flags.broadcast())?;
        let dst = net.dst_of_hop(cx, &hop, socket.core)?;
        Ok(Some(DatagramDst { lookup: *lookup, dst }))
    }

    /// Returns the path of `message`, whose destination is `target`.
    fn path_to<'p>(
        &mut self,
        cx: &Cx,
        message: &SendMessage<'_>,
        target: &Target,
        cached: Option<&'p DatagramDst>,
        rcu: &'p Section<'_>,
    ) -> Result<Path<'p>, Errno>
    where
        Self: 'p,
    {
        let socket = self.socket;
        let dst = self.dst_to(cx, target, cached, rcu)?;
        let v4 = target.remote.is_ipv4();
        let source = target.lookup.source.unwrap_or_else(|| dst.cold().source);
        let local = SocketAddr::new(source, self.state.local.port());
        let tuple = FourTuple { local, remote: target.remote };
        let hash = self.hash_of(&tuple);
        let kind = dst.tail().kind;
        // Over IPv6 a checksum is mandatory (RFC 8200 §8.1).
        let checks = if v4 && socket.flags.no_check() {
            Checks::Nothing
        } else if dst.sums_payload {
            Checks::Here
        } else {
            Checks::Device
        };
        let is_shared = matches!(kind, RouteKind::Broadcast | RouteKind::Multicast);
        Ok(Path {
            to: message.to,
            control: message.control,
            tuple,
            hash,
            fields: self.fields(&message.control, kind, v4),
            checks,
            pseudo: checksum::pseudo_header(source, target.remote.ip(), socket.protocol(), 0),
            frame: if is_shared { None } else { link_output::addresses(&dst) },
            queue: dst.tx.pick_queue(cx, socket.core, hash),
            is_shared,
            joins: dst.uso && checks == Checks::Device && socket.kind == SocketKind::Udp,
            // A counter shared by several peers would tell one peer how many datagrams the others
            // got (`transmit::ident`), so only datagrams to the connected peer use the socket's
            // counter. Other datagrams need no identification with DF, and get a random one
            // without.
            is_peer: self.state.remote == Some(tuple.remote),
            dst,
        })
    }

    /// Returns the hash of `tuple`, which is most likely the four-tuple of the previous call.
    #[inline]
    fn hash_of(&mut self, tuple: &FourTuple) -> u32 {
        match &self.state.last_flow {
            Some((known, hash)) if known == tuple => *hash,
            _ => {
                let hash = self.net.demux().hash(tuple);
                self.state.last_flow.insert((*tuple, hash)).1
            }
        }
    }

    /// Makes the packets of one message, in `cx.out`, and passes them on if they cannot wait for
    /// those of the next message.
    fn send_one<'p>(
        &mut self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        path: &Path<'p>,
        batch: &mut TxBatch<'p>,
    ) -> Result<(), Errno> {
        let v4 = path.is_v4();
        self.check_room(cx, v4)?;
        if path.joins && self.add_to_open(cx, message, path, batch)? {
            self.state.sent_unpolled += message.payload.len();
            return Ok(());
        }
        let made = match self.socket.kind {
            SocketKind::Udp => self.make_datagrams(cx, message, path),
            SocketKind::Ping => {
                let mtu = if self.may_fragment(v4) { u32::MAX } else { path.dst.mtu };
                make_echo(cx, message, mtu, &path.tuple, path.hash)
            }
        };
        let mut made = made.inspect_err(|errno| {
            if *errno == Errno::ENOBUFS {
                self.count_refused(cx, v4);
            }
        })?;
        self.state.sent_unpolled += message.payload.len();
        self.close_open(cx, path, batch);
        // `segment_size` allows a datagram above the MTU only if it is the whole message.
        if made.len() == 1 && made.bytes() > room_in(path.dst.mtu, v4) {
            self.hand_down(cx, path, batch);
            batch.flush(cx);
            cx.out.append(&mut made);
            self.hand_down_long(cx, path);
            return Ok(());
        }
        cx.out.append(&mut made);
        // The next message has room only if these packets are charged.
        if path.is_shared || path.dst.completes {
            self.hand_down(cx, path, batch);
        }
        Ok(())
    }

    /// Adds the datagrams of a message to the open packet, or begins a new one. Returns false for a
    /// message that must be sent as single packets: an empty one, one that is longer than the MTU,
    /// and one whose packet cannot wait for the next message and has one datagram.
    #[inline]
    fn add_to_open<'p>(
        &mut self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        path: &Path<'p>,
        batch: &mut TxBatch<'p>,
    ) -> Result<bool, Errno> {
        let (v4, len) = (path.is_v4(), message.payload.len());
        let size = self.segment_size(message, &path.dst, v4)?;
        let waits = !path.is_shared && !path.dst.completes;
        if size == 0 || size + UDP_HEADER_LEN > room_in(path.dst.mtu, v4) || (size == len && !waits)
        {
            return Ok(false);
        }
        let segs = len.div_ceil(size);
        if !batch.open.as_ref().is_some_and(|open| open.has_room(size, len, segs)) {
            self.close_open(cx, path, batch);
            batch.open = OpenPacket::new(cx, size);
        }
        let added = batch.open.as_mut().is_some_and(|open| open.add(cx, message.payload, segs));
        if !added {
            self.close_open(cx, path, batch);
            self.count_refused(cx, v4);
            return Err(Errno::ENOBUFS);
        }
        cx.count(Counter::UdpOutDatagrams.of_version(v4), segs as u64);
        if !waits {
            self.hand_down(cx, path, batch);
        }
        Ok(true)
    }

    /// Moves the open packet to `cx.out`.
    #[inline]
    fn close_open(&self, cx: &mut Cx, path: &Path<'_>, batch: &mut TxBatch<'_>) {
        let Some(open) = batch.open.take() else { return };
        let ports = (path.tuple.local.port(), path.tuple.remote.port());
        match open.finish(ports, path.pseudo, path.hash) {
            Ok(packet) => cx.out.push_back(packet),
            Err(empty) => cx.pool.free(empty),
        }
    }

    /// Makes the datagrams of one message.
    fn make_datagrams(
        &self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        path: &Path<'_>,
    ) -> Result<PacketList, Errno> {
        let v4 = path.is_v4();
        let size = self.segment_size(message, &path.dst, v4)?;
        let mut made = PacketList::new();
        let mut chunks = message.payload.chunks(size.max(1));
        let first = chunks.next().unwrap_or_default();
        for payload in core::iter::once(first).chain(chunks) {
            let (ports, sums) =
                ((path.tuple.local.port(), path.tuple.remote.port()), (path.checks, path.pseudo));
            let Some(mut packet) = datagram(cx, payload, ports, sums) else {
                made.free_all(&mut cx.pool);
                return Err(Errno::ENOBUFS);
            };
            packet.meta_mut().flow_hash = path.hash;
            made.push_back(packet);
        }
        cx.count(Counter::UdpOutDatagrams.of_version(v4), made.len() as u64);
        Ok(made)
    }

    /// Fails with `EAGAIN` if packets in devices fill the send buffer.
    fn check_room(&self, cx: &Cx, v4: bool) -> Result<(), Errno> {
        let (wmem, limit) = (&self.socket.wmem, self.state.sndbuf.saturating_sub(1));
        if wmem.bytes() > limit && wmem.throttle(cx.sysctls().tsq_protocol, limit) {
            self.count_refused(cx, v4);
            self.socket.note_full();
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Counts a send that failed for lack of memory or of space in the send buffer.
    fn count_refused(&self, cx: &Cx, v4: bool) {
        if self.socket.kind == SocketKind::Udp {
            cx.count(Counter::UdpSndbufErrors.of_version(v4), 1);
        }
    }

    fn dst_to<'p>(
        &self,
        cx: &Cx,
        target: &Target,
        cached: Option<&'p DatagramDst>,
        rcu: &'p Section<'_>,
    ) -> Result<DstHandle<'p>, Errno>
    where
        Self: 'p,
    {
        if let Some(cached) = cached
            && cached.lookup == target.lookup
        {
            return Ok(cached.dst.dst.handle());
        }
        let (net, socket) = (self.net, self.socket);
        let hop = target.lookup.hop(net, cx, socket.flags.broadcast())?;
        net.output_routes().entry(net, cx, &hop, socket.core, rcu)
    }

    /// Returns the payload bytes of each datagram of a message.
    fn segment_size(
        &self,
        message: &SendMessage<'_>,
        dst: &DstHandle<'_>,
        v4: bool,
    ) -> Result<usize, Errno> {
        let len = message.payload.len();
        let segment = message.control.segment.unwrap_or_else(|| self.socket.flags.segment());
        let segment = usize::from(segment);
        let size = if segment == 0 || segment >= len { len } else { segment };
        let (room, max) = (room_in(dst.mtu, v4), room_in(u32::MAX, v4));
        let is_long = size + UDP_HEADER_LEN > room && (size < len || !self.may_fragment(v4));
        if is_long || len + UDP_HEADER_LEN > max {
            return Err(Errno::EMSGSIZE);
        }
        if size > 0 && len.div_ceil(size) > SEGMENTS_MAX {
            return Err(Errno::EINVAL);
        }
        Ok(size)
    }

    /// Whether datagrams that are longer than the path MTU are sent in fragments. Linux:
    /// `ip_sk_ignore_df`, `ip6_sk_ignore_df`.
    fn may_fragment(&self, v4: bool) -> bool {
        let discover = self.socket.settings.packet_fields(v4).mtu_discover;
        !matches!(discover, Some(MtuDiscover::Do | MtuDiscover::Probe | MtuDiscover::Interface))
    }

    /// Adds headers to the packets in `cx.out`, and adds the packets to the batch.
    fn hand_down<'p>(&mut self, cx: &mut Cx, path: &Path<'p>, batch: &mut TxBatch<'p>) {
        self.close_open(cx, path, batch);
        if cx.out.is_empty() {
            return;
        }
        let socket = self.socket;
        let Path { dst, tuple, fields, frame, queue, .. } = *path;
        if dst.completes {
            let list = core::mem::take(&mut cx.out);
            cx.out = Wmem::charge_all(&socket.wmem, list);
        }
        let ids = path.is_peer.then_some(&mut self.state.ip_id);
        let sender = Sender { tuple: &tuple, protocol: socket.protocol(), fields, ids };
        if path.is_shared {
            batch.flush(cx);
            let list = core::mem::take(&mut cx.out);
            let list = ip_output::add_headers(cx, dst, sender, None, list);
            self.output(cx, &dst, queue, list, (tuple.remote.ip(), fields));
            return;
        }
        batch.switch_to(cx, dst, frame, queue);
        let list = core::mem::take(&mut cx.out);
        batch.list.append(&mut ip_output::add_headers(cx, dst, sender, frame, list));
    }

    /// Sends the datagram in `cx.out`, which is longer than the MTU, in fragments. Fragments need
    /// an identification that is not reused soon, so the counters of `transmit::ident` supply it.
    #[cold]
    fn hand_down_long(&self, cx: &mut Cx, path: &Path<'_>) {
        let Path { dst, tuple, fields, queue, .. } = *path;
        let (src, to, protocol) = (tuple.local.ip(), tuple.remote.ip(), self.socket.protocol());
        let mut id = self.net.ip_ids().next(src, to, protocol, cx.now, &mut cx.rng);
        let cut = IpFields { mtu_discover: Some(MtuDiscover::Dont), ..fields };
        let sender = Sender { tuple: &tuple, protocol, fields: cut, ids: Some(&mut id) };
        let mut list = PacketList::new();
        ip_output::add_headers_and_cut(cx, &dst, sender, &mut list);
        if dst.completes {
            list = Wmem::charge_all(&self.socket.wmem, list);
        }
        self.output(cx, &dst, queue, list, (to, cut));
    }

    /// Returns the IP header fields of a message whose route has this kind.
    fn fields(&self, control: &SendControl, kind: RouteKind, v4: bool) -> IpFields {
        let mut fields = self.socket.settings.packet_fields(v4);
        if let Some(tos) = control.tos {
            fields.tos = tos;
        }
        let multicast = || self.socket.flags.multicast_hops(v4);
        let default = (kind == RouteKind::Multicast).then(multicast);
        IpFields { ttl: control.ttl.or(default).or(fields.ttl), ..fields }
    }

    /// Passes IP packets to `to` with these header fields to the link layer. Those to a group or
    /// broadcast address are also delivered to this host, if it is to receive them (`loops_back`).
    fn output(
        &self,
        cx: &mut Cx,
        dst: &DstHandle<'_>,
        queue: QueueId,
        mut list: PacketList,
        (to, fields): (IpAddr, IpFields),
    ) {
        let kind = dst.tail().kind;
        if matches!(kind, RouteKind::Broadcast | RouteKind::Multicast) {
            count_group(cx, kind, to.is_ipv4(), &list);
            if loops_back(self.net, cx, self.socket, dst.tail(), to) {
                loop_back(self.net, cx, &mut list);
            }
            if kind == RouteKind::Multicast && stays_here(to, fields) {
                while let Some(packet) = list.pop_front() {
                    cx.pool.free(packet);
                }
                return;
            }
        }
        let _ = link_output::output(cx, dst, queue, &mut list);
    }
}

/// Counts packets to a multicast or broadcast address. The packets include their IP header.
fn count_group(cx: &Cx, kind: RouteKind, v4: bool, list: &PacketList) {
    let (packets, octets) = match kind {
        RouteKind::Broadcast => (Counter::IpExtOutBcastPkts, Counter::IpExtOutBcastOctets),
        _ => (Counter::IpExtOutMcastPkts, Counter::IpExtOutMcastOctets),
    };
    cx.count(packets.of_version(v4), list.len() as u64);
    cx.count(octets.of_version(v4), list.bytes() as u64);
}

/// Whether a datagram to `group` never leaves this host: with a TTL or hop limit of zero, and to an
/// IPv6 group whose scope is the interface (RFC 4291 §2.7). Linux: `ip_mc_output`,
/// `ip6_finish_output2`.
const fn stays_here(group: IpAddr, fields: IpFields) -> bool {
    let of_interface = match group {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.octets()[1] & 0x0f <= 1,
    };
    of_interface || matches!(fields.ttl, Some(0))
}

/// Returns the largest number of bytes after the IP header of a packet with this MTU. The length
/// field of IPv4 includes the IP header.
fn room_in(mtu: u32, v4: bool) -> usize {
    let header = if v4 { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
    let max = if v4 { LENGTH_MAX - IPV4_HEADER_LEN } else { LENGTH_MAX };
    (mtu as usize).saturating_sub(header).min(max)
}

/// Makes the echo request of one message, which fits a packet of `mtu` bytes.
fn make_echo(
    cx: &mut Cx,
    message: &SendMessage<'_>,
    mtu: u32,
    tuple: &FourTuple,
    hash: u32,
) -> Result<PacketList, Errno> {
    let v4 = tuple.is_ipv4();
    check_echo(message.payload, v4)?;
    if message.payload.len() > room_in(mtu, v4) {
        return Err(Errno::EMSGSIZE);
    }
    let packet = echo(cx, message.payload, tuple, hash).ok_or(Errno::ENOBUFS)?;
    cx.count(Counter::IcmpOutMsgs.of_version(v4), 1);
    let kind = message.payload[0];
    let counter =
        if v4 { icmp::out_counter::<true>(kind) } else { icmp::out_counter::<false>(kind) };
    if let Some(counter) = counter {
        cx.count(counter, 1);
    }
    let mut made = PacketList::new();
    made.push_back(packet);
    Ok(made)
}

/// Whether sockets of this host get copies of a datagram to a group or broadcast address that
/// leaves by the device of the route entry `tail`. A group needs a member on the device, and the
/// option of the sender. Linux: `ip_mc_output`, `ip6_finish_output2`.
fn loops_back(net: &Net, cx: &Cx, socket: &DatagramSocket, tail: &DstTail, group: IpAddr) -> bool {
    if net.is_loopback_device(tail.device) {
        return false;
    }
    let is_member = || net.is_member(&cx.reader().pin(), tail.device, group);
    tail.kind == RouteKind::Broadcast
        || (socket.flags.multicast_loop(group.is_ipv4()) && is_member())
}

/// Delivers copies of packets to a multicast or broadcast address to the sockets of this host.
/// Linux: `dev_loopback_xmit`.
fn loop_back(net: &Net, cx: &mut Cx, list: &mut PacketList) {
    let mut copies = PacketList::new();
    let mut packets = core::mem::take(list);
    while let Some(packet) = packets.pop_front() {
        copies.extend(packet.clone_apart(&mut cx.pool));
        list.push_back(packet);
    }
    let _ = net.tx(LOOPBACK).xmit(cx, QueueId(0), &mut copies);
}

impl<'p> TxBatch<'p> {
    /// Transmits the batch, unless the next packets have the same route entry, link addresses and
    /// queue.
    fn switch_to(
        &mut self,
        cx: &mut Cx,
        dst: DstHandle<'p>,
        frame: Option<LinkAddresses>,
        queue: QueueId,
    ) {
        let same = self.dst.as_ref().is_some_and(|(before, link, from)| {
            core::ptr::eq(before.tail(), dst.tail()) && *link == frame && *from == queue
        });
        if !same {
            self.flush(cx);
            self.dst = Some((dst, frame, queue));
        }
    }

    fn flush(&mut self, cx: &mut Cx) {
        if let Some((dst, frame, queue)) = self.dst.take()
            && !self.list.is_empty()
        {
            let _ = ip_output::pass_on(cx, &dst, frame, queue, &mut self.list);
        }
    }
}
