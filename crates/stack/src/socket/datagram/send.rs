//! Sends datagrams: passes them from the application's buffer to the device, in the calling thread.
//!
//! Above: crate `quietline`. Below: `route::router`, which finds the route entry, and
//! `transmit::ip_output`. Linux: `udp_sendmsg`, `udpv6_sendmsg`, `ping_v4_sendmsg`,
//! `ping_v6_sendmsg`.
//!
//! One call sends a batch of messages. Packets of consecutive messages with the same route entry
//! (dst), link addresses and transmit queue reach the device as one list. The payload is copied
//! once, into packet memory; if the device completes no checksums, the same pass computes that of a
//! UDP datagram. A connected socket caches its route entry. An unconnected socket caches the entry
//! of a destination that the first messages of two consecutive calls name, and otherwise finds the
//! entry in a read section, without a shared write.
//!
//! A datagram that is longer than the path MTU is sent in fragments, or refused with `EMSGSIZE` if
//! `IP_MTU_DISCOVER` forbids fragments (`may_fragment`) or `UDP_SEGMENT` has cut the message.
//!
//! Differs from Linux: `UDP_SEGMENT` cuts the payload here, not at the device.

use std::net::{IpAddr, SocketAddr};

use pkt::PacketList;
use sync::epoch::Section;
use tcp::FourTuple;

use super::{
    DatagramDst, DatagramSocket, SocketKind,
    build::{Checks, check_echo, datagram, echo},
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
    list: PacketList,
    dst: Option<(DstHandle<'p>, Option<LinkAddresses>, QueueId)>,
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
        // The route entry is taken out of the socket, so that the socket's state can change while
        // packets refer to the entry.
        let cached = self.take_dst(cx, first)?;
        let mut batch = TxBatch { list: PacketList::new(), dst: None };
        let mut sent = 0;
        let mut result = Ok(());
        for message in messages {
            result = self.send_one(cx, message, cached.as_ref(), &rcu, &mut batch);
            if result.is_err() {
                break;
            }
            sent += 1;
        }
        batch.flush(cx);
        drop(batch);
        self.state.dst = cached;
        match result {
            Err(errno) if sent == 0 => Err(errno),
            _ => Ok(sent),
        }
    }

    /// Returns the route entry that the socket caches for the destination of `message`, looked up
    /// again if it is stale. An unconnected socket caches the entry of a destination from the
    /// second consecutive call on.
    fn take_dst(
        &mut self,
        cx: &Cx,
        message: &SendMessage<'_>,
    ) -> Result<Option<DatagramDst>, Errno> {
        let (net, socket) = (self.net, self.socket);
        let state = &mut *self.state;
        let Target { remote, lookup } =
            state.target(socket, net, cx, message.to, &message.control)?;
        if let Some(cached) = state.dst.take()
            && cached.lookup == lookup
            && net.is_current(cx, &cached.dst)
        {
            cx.count(Counter::DstHit, 1);
            return Ok(Some(cached));
        }
        cx.count(Counter::DstMiss, 1);
        let is_peer = state.remote.is_some_and(|peer| peer.ip() == remote.ip());
        let is_again = state.last_lookup == Some(lookup);
        state.last_lookup = Some(lookup);
        if !(is_peer || is_again) {
            return Ok(None);
        }
        let hop = lookup.hop(net, cx, socket.flags.broadcast())?;
        let dst = net.dst_of_hop(cx, &hop, socket.core)?;
        Ok(Some(DatagramDst { lookup, dst }))
    }

    /// Makes the packets of one message and adds them to the batch.
    fn send_one<'p>(
        &mut self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        cached: Option<&'p DatagramDst>,
        rcu: &'p Section<'_>,
        batch: &mut TxBatch<'p>,
    ) -> Result<(), Errno>
    where
        Self: 'p,
    {
        let (net, socket) = (self.net, self.socket);
        let target = self.state.target(socket, net, cx, message.to, &message.control)?;
        let v4 = target.remote.is_ipv4();
        self.check_room(cx, v4)?;
        let dst = self.dst_to(cx, &target, cached, rcu)?;
        let source = target.lookup.source.unwrap_or_else(|| dst.cold().source);
        let local = SocketAddr::new(source, self.state.local.port());
        let tuple = FourTuple { local, remote: target.remote };
        let hash = net.demux().hash(&tuple);
        let made = match socket.kind {
            SocketKind::Udp => self.make_datagrams(cx, message, &dst, &tuple, hash),
            SocketKind::Ping => {
                let mtu = if self.may_fragment(v4) { u32::MAX } else { dst.mtu };
                make_echo(cx, message, mtu, &tuple, hash)
            }
        };
        made.inspect_err(|errno| {
            ip_output::discard_output(cx);
            if *errno == Errno::ENOBUFS {
                self.count_refused(cx, v4);
                cx.count(Counter::IpOutDiscards.of_version(v4), 1);
            }
        })?;
        self.state.sent_unpolled += message.payload.len();
        self.hand_down(cx, message, dst, &tuple, hash, batch);
        Ok(())
    }

    /// Makes the datagrams of one message, in `cx.out`.
    fn make_datagrams(
        &self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        dst: &DstHandle<'_>,
        tuple: &FourTuple,
        hash: u32,
    ) -> Result<(), Errno> {
        let v4 = tuple.is_ipv4();
        let size = self.segment_size(message, dst, v4)?;
        // Over IPv6 a checksum is mandatory (RFC 8200 §8.1).
        let checks = if v4 && self.socket.flags.no_check() {
            Checks::Nothing
        } else if dst.sums_payload {
            Checks::Here
        } else {
            Checks::Device
        };
        let mut chunks = message.payload.chunks(size.max(1));
        let first = chunks.next().unwrap_or_default();
        let mut count = 0;
        for payload in core::iter::once(first).chain(chunks) {
            let packet = datagram(cx, payload, tuple, hash, checks).ok_or(Errno::ENOBUFS)?;
            cx.out.push_back(packet);
            count += 1;
        }
        cx.count(Counter::UdpOutDatagrams.of_version(v4), count);
        Ok(())
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
    fn hand_down<'p>(
        &mut self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        dst: DstHandle<'p>,
        tuple: &FourTuple,
        hash: u32,
        batch: &mut TxBatch<'p>,
    ) {
        // `segment_size` allows a datagram above the MTU only if it is the whole message.
        let max = room_in(dst.mtu, tuple.is_ipv4());
        if cx.out.len() == 1 && cx.out.bytes() > max {
            batch.flush(cx);
            return self.hand_down_long(cx, message, &dst, tuple, hash);
        }
        let socket = self.socket;
        if dst.completes {
            let list = core::mem::take(&mut cx.out);
            cx.out = Wmem::charge_all(&socket.wmem, list);
        }
        let kind = dst.tail().kind;
        let fields = self.fields(message, kind, tuple.is_ipv4());
        // A counter shared by several peers would tell one peer how many datagrams the others got
        // (`transmit::ident`), so only datagrams to the connected peer use the socket's counter.
        // Other datagrams need no identification with DF, and get a random one without.
        let is_peer = self.state.remote == Some(tuple.remote);
        let ids = is_peer.then_some(&mut self.state.ip_id);
        let sender = Sender { tuple, protocol: socket.protocol(), fields, ids };
        let queue = dst.tx.pick_queue(cx, socket.core, hash);
        if matches!(kind, RouteKind::Broadcast | RouteKind::Multicast) {
            batch.flush(cx);
            let list = core::mem::take(&mut cx.out);
            let list = ip_output::add_headers(cx, dst, sender, None, list);
            self.output(cx, &dst, queue, list, (tuple.remote.ip(), fields));
            return;
        }
        let frame = link_output::addresses(&dst);
        batch.switch_to(cx, dst, frame, queue);
        let list = core::mem::take(&mut cx.out);
        batch.list.append(&mut ip_output::add_headers(cx, dst, sender, frame, list));
    }

    /// Sends the datagram in `cx.out`, which is longer than the MTU, in fragments. Fragments need
    /// an identification that is not reused soon, so the counters of `transmit::ident` supply it.
    #[cold]
    fn hand_down_long(
        &self,
        cx: &mut Cx,
        message: &SendMessage<'_>,
        dst: &DstHandle<'_>,
        tuple: &FourTuple,
        hash: u32,
    ) {
        let (src, to, protocol) = (tuple.local.ip(), tuple.remote.ip(), self.socket.protocol());
        let mut id = self.net.ip_ids().next(src, to, protocol, cx.now, &mut cx.rng);
        let fields = self.fields(message, dst.tail().kind, tuple.is_ipv4());
        let fields = IpFields { mtu_discover: Some(MtuDiscover::Dont), ..fields };
        let sender = Sender { tuple, protocol, fields, ids: Some(&mut id) };
        let queue = dst.tx.pick_queue(cx, self.socket.core, hash);
        let mut list = PacketList::new();
        ip_output::add_headers_and_cut(cx, dst, sender, &mut list);
        if dst.completes {
            list = Wmem::charge_all(&self.socket.wmem, list);
        }
        self.output(cx, dst, queue, list, (to, fields));
    }

    /// Returns the IP header fields of a message whose route has this kind.
    fn fields(&self, message: &SendMessage<'_>, kind: RouteKind, v4: bool) -> IpFields {
        let mut fields = self.socket.settings.packet_fields(v4);
        if let Some(tos) = message.control.tos {
            fields.tos = tos;
        }
        let multicast = || self.socket.flags.multicast_hops(v4);
        let default = (kind == RouteKind::Multicast).then(multicast);
        IpFields { ttl: message.control.ttl.or(default).or(fields.ttl), ..fields }
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

/// Makes the echo request of one message, which fits a packet of `mtu` bytes, in `cx.out`.
fn make_echo(
    cx: &mut Cx,
    message: &SendMessage<'_>,
    mtu: u32,
    tuple: &FourTuple,
    hash: u32,
) -> Result<(), Errno> {
    let v4 = tuple.is_ipv4();
    check_echo(message.payload, v4)?;
    if message.payload.len() > room_in(mtu, v4) {
        return Err(Errno::EMSGSIZE);
    }
    let packet = echo(cx, message.payload, tuple, hash).ok_or(Errno::ENOBUFS)?;
    cx.out.push_back(packet);
    cx.count(Counter::IcmpOutMsgs.of_version(v4), 1);
    let kind = message.payload[0];
    let counter =
        if v4 { icmp::out_counter::<true>(kind) } else { icmp::out_counter::<false>(kind) };
    if let Some(counter) = counter {
        cx.count(counter, 1);
    }
    Ok(())
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
