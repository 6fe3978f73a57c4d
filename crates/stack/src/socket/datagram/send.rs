//! Sends datagrams: passes them from the application's buffer to the device, in the calling thread.
//!
//! Above: crate `quietline`. Below: `route::router`, which finds the route entry, and
//! `transmit::ip_output`. Linux: `udp_sendmsg`, `udp_send_skb`.
//!
//! One call sends a batch of messages. Packets of consecutive messages with the same route entry
//! (dst), link addresses and transmit queue reach the device as one list. The payload is copied
//! once, into packet memory; if the device completes no checksums, the same pass computes the sum.
//! A connected socket caches its route entry. An unconnected socket caches the entry of a
//! destination that the first messages of two consecutive calls name, and otherwise finds the entry
//! in a read section, without a shared write.
//!
//! A datagram that is longer than the path MTU is sent in fragments, or refused with `EMSGSIZE` if
//! `IP_MTU_DISCOVER` asks for DF.
//!
//! Differs from Linux: `UDP_SEGMENT` cuts the payload here, not at the device.

use std::net::{IpAddr, SocketAddr};

use pkt::{Packet, PacketList, Sum, TxChecksum, checksum};
use sync::epoch::Section;
use tcp::FourTuple;

use super::{DatagramDst, DatagramSocket, bind::this_host, call::Call};
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{DeviceIndex, LOOPBACK},
    },
    cx::Cx,
    device::QueueId,
    header::{
        ip::{IPV4_HEADER_LEN, protocol},
        udp::{CHECKSUM_OFFSET, UDP_HEADER_LEN, UdpHeader},
    },
    socket::{net::Net, wmem::Wmem},
    transmit::{
        dst::{DstHandle, RouteKind},
        ip_output::{self, IpFields, MtuDiscover, Sender},
        link_output::{self, LinkAddresses},
    },
};

/// Largest number of datagrams into which one message is cut (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 128;

/// Largest payload of an IPv4 datagram.
const PAYLOAD_BYTES_MAX: usize = 65_535 - IPV4_HEADER_LEN - UDP_HEADER_LEN;

/// Values of one message that replace those of the socket (control messages of `sendmsg`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendControl {
    /// Source address (`IP_PKTINFO`), which must be an address of this host.
    pub source: Option<IpAddr>,
    /// Device for a multicast or limited broadcast destination (`IP_PKTINFO`, `IP_MULTICAST_IF`).
    pub device: Option<DeviceIndex>,
    /// Type of service with the ECN bits (`IP_TOS`).
    pub tos: Option<u8>,
    /// TTL (`IP_TTL`).
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
    /// a datagram above 65,507 bytes, or above the path MTU if it may not be fragmented, `EAGAIN`
    /// if the send buffer is full, `EACCES` for a broadcast address without `SO_BROADCAST`,
    /// `EINVAL` for port 0 and for too many segments,
    /// `ENOBUFS` without memory, `EAFNOSUPPORT` for another family, `ENETDOWN` for a closed socket,
    /// and errors of the route.
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

/// Destination of a message, and its source address unless the route determines it.
struct Destination {
    remote: SocketAddr,
    source: Option<IpAddr>,
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
        let destination = self.destination(message)?;
        let (net, socket) = (self.net, self.socket);
        let state = &mut *self.state;
        let remote = destination.remote.ip();
        if let Some(cached) = state.dst.take() {
            let fits = cached.remote == remote && cached.source == destination.source;
            if fits && net.is_current(cx, &cached.dst) {
                cx.count(Counter::DstHit, 1);
                return Ok(Some(cached));
            }
        }
        cx.count(Counter::DstMiss, 1);
        let is_peer = state.remote.is_some_and(|peer| peer.ip() == remote);
        let is_again = state.last_remote == Some(remote);
        state.last_remote = Some(remote);
        if message.control.device.is_some() || !(is_peer || is_again) {
            return Ok(None);
        }
        let hop =
            net.datagram_hop(cx, remote, destination.source, socket.flags.broadcast(), None)?;
        let dst = net.dst_of_hop(cx, &hop, socket.core)?;
        Ok(Some(DatagramDst { remote, source: destination.source, dst }))
    }

    fn destination(&self, message: &SendMessage<'_>) -> Result<Destination, Errno> {
        let state = &*self.state;
        let remote = message.to.or(state.remote).ok_or(Errno::EDESTADDRREQ)?;
        if remote.is_ipv6() != state.local.is_ipv6() {
            return Err(Errno::EAFNOSUPPORT);
        }
        if remote.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let remote = SocketAddr::new(this_host(remote.ip()), remote.port());
        Ok(Destination { remote, source: message.control.source.or(state.source) })
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
        let destination = self.destination(message)?;
        self.check_room(cx)?;
        let dst = self.dst_to(cx, message, &destination, cached, rcu)?;
        let size = self.segment_size(message, &dst)?;
        let source = destination.source.unwrap_or_else(|| dst.cold().source);
        let local = SocketAddr::new(source, self.state.local.port());
        let tuple = FourTuple { local, remote: destination.remote };
        let hash = self.net.demux().hash(&tuple);
        let checks = if self.socket.flags.no_check() {
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
            let Some(packet) = datagram(cx, payload, &tuple, hash, checks) else {
                ip_output::discard_output(cx);
                cx.count(Counter::UdpSndbufErrors, 1);
                return Err(Errno::ENOBUFS);
            };
            cx.out.push_back(packet);
            count += 1;
        }
        cx.count(Counter::UdpOutDatagrams, count);
        self.state.sent_unpolled += message.payload.len();
        self.hand_down(cx, message, dst, &tuple, hash, batch);
        Ok(())
    }

    /// Fails with `EAGAIN` if packets in devices fill the send buffer.
    fn check_room(&self, cx: &Cx) -> Result<(), Errno> {
        let (wmem, limit) = (&self.socket.wmem, self.state.sndbuf.saturating_sub(1));
        if wmem.bytes() > limit && wmem.throttle(cx.sysctls().tsq_protocol, limit) {
            cx.count(Counter::UdpSndbufErrors, 1);
            self.socket.note_full();
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    fn dst_to<'p>(
        &self,
        cx: &Cx,
        message: &SendMessage<'_>,
        to: &Destination,
        cached: Option<&'p DatagramDst>,
        rcu: &'p Section<'_>,
    ) -> Result<DstHandle<'p>, Errno>
    where
        Self: 'p,
    {
        let remote = to.remote.ip();
        if let Some(cached) = cached
            && cached.remote == remote
            && cached.source == to.source
            && message.control.device.is_none()
        {
            return Ok(cached.dst.dst.handle());
        }
        let (net, socket) = (self.net, self.socket);
        let broadcast = socket.flags.broadcast();
        let device = message.control.device;
        let hop = net.datagram_hop(cx, remote, to.source, broadcast, device)?;
        net.output_routes().entry(net, cx, &hop, socket.core, rcu)
    }

    /// Returns the payload bytes of each datagram of a message.
    fn segment_size(&self, message: &SendMessage<'_>, dst: &DstHandle<'_>) -> Result<usize, Errno> {
        let len = message.payload.len();
        let segment = message.control.segment.unwrap_or_else(|| self.socket.flags.segment());
        let segment = usize::from(segment);
        let size = if segment == 0 || segment >= len { len } else { segment };
        let room = (dst.mtu as usize).saturating_sub(IPV4_HEADER_LEN + UDP_HEADER_LEN);
        let is_refused = size > room && (size < len || !self.may_fragment());
        if is_refused || len > PAYLOAD_BYTES_MAX {
            return Err(Errno::EMSGSIZE);
        }
        if size > 0 && len.div_ceil(size) > SEGMENTS_MAX {
            return Err(Errno::EINVAL);
        }
        Ok(size)
    }

    /// Whether datagrams that are longer than the path MTU are sent in fragments. Linux:
    /// `ip_sk_ignore_df`.
    fn may_fragment(&self) -> bool {
        let discover = self.socket.settings.ip_fields().mtu_discover;
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
        if cx.out.len() == 1 && cx.out.bytes() + IPV4_HEADER_LEN > dst.mtu as usize {
            batch.flush(cx);
            return self.hand_down_long(cx, message, &dst, tuple, hash);
        }
        let socket = self.socket;
        if dst.completes {
            Wmem::charge_all(&socket.wmem, &mut cx.out);
        }
        let kind = dst.tail().kind;
        let fields = self.fields(message, kind);
        // A counter shared by several peers would tell one peer how many datagrams the others got
        // (`transmit::ident`), so only datagrams to the connected peer use the socket's counter.
        // Other datagrams need no identification with DF, and get a random one without.
        let is_peer = self.state.remote == Some(tuple.remote);
        let ids = is_peer.then_some(&mut self.state.ip_id);
        let sender = Sender { tuple, protocol: protocol::UDP, fields, ids };
        let queue = dst.tx.pick_queue(cx, socket.core, hash);
        if matches!(kind, RouteKind::Broadcast | RouteKind::Multicast) {
            batch.flush(cx);
            let mut list = PacketList::new();
            ip_output::add_headers(cx, dst, sender, None, &mut list);
            self.output(cx, &dst, queue, list);
            return;
        }
        let frame = link_output::addresses(&dst);
        batch.switch_to(cx, dst, frame, queue);
        ip_output::add_headers(cx, dst, sender, frame, &mut batch.list);
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
        let (src, to) = (tuple.local.ip(), tuple.remote.ip());
        let mut id = self.net.ip_ids().next(src, to, protocol::UDP, cx.now, &mut cx.rng);
        let fields = self.fields(message, dst.tail().kind);
        let fields = IpFields { mtu_discover: Some(MtuDiscover::Dont), ..fields };
        let sender = Sender { tuple, protocol: protocol::UDP, fields, ids: Some(&mut id) };
        let queue = dst.tx.pick_queue(cx, self.socket.core, hash);
        let mut list = PacketList::new();
        ip_output::add_headers_and_cut(cx, dst, sender, &mut list);
        if dst.completes {
            Wmem::charge_all(&self.socket.wmem, &mut list);
        }
        self.output(cx, dst, queue, list);
    }

    /// Returns the IP header fields of a message whose route has this kind.
    fn fields(&self, message: &SendMessage<'_>, kind: RouteKind) -> IpFields {
        let mut fields = self.socket.settings.ip_fields();
        fields.tos = message.control.tos.unwrap_or(fields.tos);
        if kind == RouteKind::Multicast {
            fields.ttl = Some(self.socket.flags.multicast_ttl());
        }
        fields.ttl = message.control.ttl.or(fields.ttl);
        fields
    }

    /// Passes IP packets to the link layer. Those to a group are also delivered to this host.
    fn output(&self, cx: &mut Cx, dst: &DstHandle<'_>, queue: QueueId, mut list: PacketList) {
        let kind = dst.tail().kind;
        if matches!(kind, RouteKind::Broadcast | RouteKind::Multicast) {
            count_group(cx, kind, &list);
            let loops = kind == RouteKind::Broadcast || self.socket.flags.multicast_loop();
            if loops && !self.net.is_loopback_device(dst.tail().device) {
                loop_back(self.net, cx, &mut list);
            }
        }
        let _ = link_output::output(cx, dst, queue, &mut list);
    }
}

/// Counts packets to a multicast or broadcast address. The packets include their IP header.
fn count_group(cx: &Cx, kind: RouteKind, list: &PacketList) {
    let (packets, octets) = match kind {
        RouteKind::Broadcast => (Counter::IpExtOutBcastPkts, Counter::IpExtOutBcastOctets),
        _ => (Counter::IpExtOutMcastPkts, Counter::IpExtOutMcastOctets),
    };
    cx.count(packets, list.len() as u64);
    cx.count(octets, list.bytes() as u64);
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

/// Place where the checksum of a datagram is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Nowhere: the field is zero (`SO_NO_CHECK`).
    Nothing,
    /// While the payload is copied.
    Here,
    /// In the device.
    Device,
}

/// Makes the packet of one datagram, without an IP header. `None` if there is no memory.
fn datagram(
    cx: &mut Cx,
    payload: &[u8],
    tuple: &FourTuple,
    hash: u32,
    checks: Checks,
) -> Option<Packet> {
    let mut packet = cx.pool.alloc()?;
    let (taken, sum) = if checks == Checks::Here {
        packet.append_and_sum(&mut cx.pool, payload)
    } else {
        (packet.append(&mut cx.pool, payload), Sum::ZERO)
    };
    if taken < payload.len() {
        cx.pool.free(packet);
        return None;
    }
    let len =
        u16::try_from(UDP_HEADER_LEN + payload.len()).expect("`segment_size` bounds the payload");
    let (src_port, dst_port) = (tuple.local.port(), tuple.remote.port());
    let header = UdpHeader { src_port, dst_port, len, checksum: 0 };
    let bytes = packet.push(UDP_HEADER_LEN);
    header.emit(bytes);
    let pseudo = || {
        checksum::pseudo_header(tuple.local.ip(), tuple.remote.ip(), protocol::UDP, u32::from(len))
    };
    let field = usize::from(CHECKSUM_OFFSET);
    match checks {
        Checks::Nothing => {}
        Checks::Here => {
            let mut whole = pseudo();
            whole.add_bytes(bytes);
            whole.combine(sum, UDP_HEADER_LEN);
            // A field of zero means that there is no checksum (RFC 768).
            let value = match whole.finish() {
                0 => 0xffff,
                value => value,
            };
            bytes[field..].copy_from_slice(&value.to_be_bytes());
        }
        Checks::Device => {
            bytes[field..].copy_from_slice(&pseudo().fold().to_be_bytes());
            packet.meta_mut().tx_checksum =
                TxChecksum::Partial { start: 0, offset: CHECKSUM_OFFSET };
        }
    }
    packet.meta_mut().flow_hash = hash;
    Some(packet)
}
