//! Receives datagrams: takes them from the receive queue and copies them to the application's
//! buffers.
//!
//! Above: crate `quietline`. Linux: `udp_recvmsg`, `udpv6_recvmsg`, `ping_recvmsg`,
//! `__skb_recv_udp`.
//!
//! A receive takes datagrams under the lock and copies them after it has released the lock, so that
//! the copy delays neither softirq context nor other readers. A peek copies under the lock, and so
//! does a receive without `UDP_GRO` that takes datagrams of a packet that has several. Source,
//! destination, TOS and TTL are read from the headers in front of the payload. An IPv6 socket gets
//! the addresses of an IPv4 datagram as v4-mapped addresses.

use std::net::{IpAddr, SocketAddr};

use pkt::{Packet, PacketList};

use super::{
    DatagramSocket, SocketKind,
    call::Call,
    queue::{remove_first, segments},
};
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{DeviceIndex, LOOPBACK},
    },
    cx::Cx,
    header::{
        ip::{self, Visible},
        udp::UdpHeader,
    },
    socket::{net::Net, rx::scoped},
};

/// Description of a received datagram (control messages of `recvmsg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes copied into the buffer.
    pub len: usize,
    /// Bytes of the datagram, or of the joined datagrams. If the buffer was too short, this is more
    /// than `len`, and the rest is lost (`MSG_TRUNC`).
    pub datagram_len: usize,
    /// Sender. A link-local address has the device as its scope.
    pub source: SocketAddr,
    /// Destination address: that of this host, of a multicast group or of a broadcast
    /// (`IP_PKTINFO`, `IPV6_RECVPKTINFO`).
    pub destination: IpAddr,
    /// Device that received the datagram (`IP_PKTINFO`, `IPV6_RECVPKTINFO`); 0 is loopback.
    pub device: DeviceIndex,
    /// Type of service or traffic class, with the ECN bits (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
    pub tos: u8,
    /// TTL or hop limit (`IP_RECVTTL`, `IPV6_RECVHOPLIMIT`).
    pub ttl: u8,
    /// Payload bytes of each joined datagram, except the last, which may be shorter (`UDP_GRO`).
    /// `None` for a single datagram.
    pub segment: Option<u16>,
}

/// Buffer for one datagram of a batch.
#[derive(Debug)]
pub struct ReceiveMessage<'a> {
    /// Buffer.
    pub buf: &'a mut [u8],
    /// Description of the datagram in the buffer; `None` until one was received.
    pub received: Option<Received>,
}

impl<'a> ReceiveMessage<'a> {
    /// Returns an empty message with this buffer.
    #[must_use]
    pub const fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, received: None }
    }
}

impl DatagramSocket {
    /// Receives one datagram. With `peek`, the datagram stays in the queue.
    ///
    /// # Errors
    /// The pending error; `EAGAIN` if no datagram waits, `ENETDOWN` once the socket was closed,
    /// also by the shutdown of the host or the loss of the socket's address.
    pub fn recv(
        &self,
        net: &Net,
        cx: &mut Cx,
        buf: &mut [u8],
        peek: bool,
    ) -> Result<Received, Errno> {
        let mut call = self.begin_untimed_call(net, cx);
        let packet = match call.take() {
            Ok(packet) => packet,
            Err(errno) => {
                call.end(cx);
                return Err(errno);
            }
        };
        let mut counts = [0; 2];
        if peek || self.is_divided(&packet) {
            let mut message = [ReceiveMessage::new(buf)];
            let rest = match peek {
                true => {
                    self.copy_divided(net, cx, &packet, &mut message);
                    Some(packet)
                }
                false => self.hand_over_divided(net, cx, packet, &mut message, &mut counts).1,
            };
            if let Some(rest) = rest {
                call.state.queue.put_back(rest);
            }
            call.state.uncharge(cx);
            call.end(cx);
            self.count(net, cx, counts);
            let [ReceiveMessage { received, .. }] = message;
            return received.ok_or(Errno::EAGAIN);
        }
        call.state.uncharge(cx);
        call.end(cx);
        let received = self.hand_over(net, cx, packet, buf, &mut counts);
        self.count(net, cx, counts);
        Ok(received)
    }

    /// Receives waiting datagrams into the buffers in order, at most as many as there are buffers,
    /// and returns their number: at least one, unless `messages` is empty.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_batch(
        &self,
        net: &Net,
        cx: &mut Cx,
        messages: &mut [ReceiveMessage<'_>],
    ) -> Result<usize, Errno> {
        if messages.is_empty() {
            return Ok(0);
        }
        let mut call = self.begin_untimed_call(net, cx);
        let mut list = PacketList::new();
        let (mut filled, mut failed, mut counts) = (0, None, [0; 2]);
        while filled < messages.len() {
            match call.take() {
                Ok(packet) if self.is_divided(&packet) => {
                    let free = &mut messages[filled..];
                    let (count, rest) = self.hand_over_divided(net, cx, packet, free, &mut counts);
                    filled += count;
                    if let Some(rest) = rest {
                        call.state.queue.put_back(rest);
                    }
                }
                Ok(packet) => {
                    messages[filled].received = None;
                    filled += 1;
                    list.push_back(packet);
                }
                Err(errno) => {
                    failed = Some(errno);
                    break;
                }
            }
            // A pending error is left to the next call.
            if call.state.error.is_some() {
                break;
            }
        }
        call.state.uncharge(cx);
        call.end(cx);
        if let (0, Some(errno)) = (filled, failed) {
            return Err(errno);
        }
        // The messages of divided packets are complete.
        for message in messages[..filled].iter_mut().filter(|message| message.received.is_none()) {
            let Some(packet) = list.pop_front() else { break };
            let received = self.hand_over(net, cx, packet, message.buf, &mut counts);
            message.received = Some(received);
        }
        self.count(net, cx, counts);
        Ok(filled)
    }

    /// Whether the datagrams of `packet` are received one by one, although it has several.
    #[inline]
    fn is_divided(&self, packet: &Packet) -> bool {
        packet.meta().gso.segs > 1 && !self.flags.gro()
    }

    /// Copies the first datagrams of a packet into messages, and returns their number: all of a
    /// divided packet for which there are messages, otherwise one.
    fn copy_divided(
        &self,
        net: &Net,
        cx: &Cx,
        packet: &Packet,
        messages: &mut [ReceiveMessage<'_>],
    ) -> usize {
        let (size, segs) = match self.is_divided(packet) {
            true => segments(packet),
            false => (packet.len(), 1),
        };
        let described = self.describe(net, cx, packet);
        let segment = described.segment.filter(|_| segs == 1);
        let mut count = 0;
        for message in messages.iter_mut().take(usize::from(segs)) {
            let at = count * size;
            let datagram_len = size.min(packet.len() - at);
            let room = message.buf.len().min(datagram_len);
            let len = packet.copy_to(at, &mut message.buf[..room]);
            message.received = Some(Received { len, datagram_len, segment, ..described });
            count += 1;
        }
        count
    }

    /// Copies the first datagrams of a divided packet into messages. Returns their number, and the
    /// packet with the rest, or frees it.
    fn hand_over_divided(
        &self,
        net: &Net,
        cx: &mut Cx,
        mut packet: Packet,
        messages: &mut [ReceiveMessage<'_>],
        counts: &mut [u64; 2],
    ) -> (usize, Option<Packet>) {
        let count = self.copy_divided(net, cx, &packet, messages);
        counts[usize::from(!ip::is_v4(packet.network_header()))] += count as u64;
        if count < usize::from(segments(&packet).1) {
            remove_first(&mut packet, count);
            return (count, Some(packet));
        }
        cx.pool.free(packet);
        (count, None)
    }

    /// Copies a datagram that was taken from the queue, and frees its packet. Adds the number of
    /// datagrams, several if they were joined, to that of its IP version in `counts`: IPv4, IPv6.
    #[inline]
    fn hand_over(
        &self,
        net: &Net,
        cx: &mut Cx,
        packet: Packet,
        buf: &mut [u8],
        counts: &mut [u64; 2],
    ) -> Received {
        let received = self.copy(net, cx, &packet, buf);
        let datagrams = match received.segment {
            Some(size) => received.datagram_len.div_ceil(usize::from(size)),
            None => 1,
        };
        counts[usize::from(!ip::is_v4(packet.network_header()))] += datagrams as u64;
        cx.pool.free(packet);
        received
    }

    /// Counts received datagrams of IPv4 and IPv6.
    #[inline]
    fn count(&self, net: &Net, cx: &mut Cx, counts: [u64; 2]) {
        if self.kind == SocketKind::Udp {
            let entered = cx.enter(net);
            for (count, v4) in counts.into_iter().zip([true, false]) {
                if count != 0 {
                    cx.count(Counter::UdpInDatagrams.of_version(v4), count);
                }
            }
            cx.leave(entered);
        }
    }

    /// Copies the payload, and returns the description of the datagram.
    #[inline]
    fn copy(&self, net: &Net, cx: &Cx, packet: &Packet, buf: &mut [u8]) -> Received {
        let len = packet.copy_to(0, buf);
        Received { len, ..self.describe(net, cx, packet) }
    }

    /// Returns the description of a datagram from its headers, of which nothing was copied yet.
    #[inline]
    fn describe(&self, net: &Net, cx: &Cx, packet: &Packet) -> Received {
        let ip = Visible::read(packet.network_header());
        let port = match self.kind {
            SocketKind::Udp => {
                UdpHeader::ports(packet.transport_header()).map_or(0, |(from, _)| from)
            }
            SocketKind::Ping => 0,
        };
        let device = DeviceIndex(packet.meta().rx_device);
        let gso = packet.meta().gso;
        Received {
            len: 0,
            datagram_len: packet.len(),
            source: self.family.present(scoped(ip.src, port, link_of(net, cx, ip.src, device))),
            destination: self.family.present_ip(ip.dst),
            device,
            tos: ip.traffic_class,
            ttl: ip.hop_limit,
            segment: (gso.segs > 1).then_some(gso.size),
        }
    }
}

/// Returns the device that is the scope of the sender `src`: the one that received the datagram.
/// For a datagram over loopback it is the one that has the address, so that a reply to the sender
/// has a scope, as in Linux (`ipv6_rcv`).
fn link_of(net: &Net, cx: &Cx, src: IpAddr, device: DeviceIndex) -> DeviceIndex {
    let is_link_local = matches!(src, IpAddr::V6(src) if src.is_unicast_link_local());
    if device != LOOPBACK || !is_link_local {
        return device;
    }
    net.fib(&cx.reader().pin()).lookup(src).map_or(device, |route| route.device)
}

impl Call<'_> {
    fn take(&mut self) -> Result<Packet, Errno> {
        let state = &mut *self.state;
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        match state.queue.pop() {
            Some(packet) => Ok(packet),
            None if state.closed => Err(Errno::ENETDOWN),
            None => Err(Errno::EAGAIN),
        }
    }
}
