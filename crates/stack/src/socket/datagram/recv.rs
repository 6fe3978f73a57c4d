//! Receives datagrams: takes them from the receive queue and copies them to the application's
//! buffers.
//!
//! Above: crate `quietline`. Linux: `udp_recvmsg`, `__skb_recv_udp`.
//!
//! A receive takes datagrams under the lock and copies them after it has released the lock, so that
//! the copy delays neither softirq context nor other readers. A peek copies under the lock. Source,
//! destination, TOS and TTL are read from the headers in front of the payload.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pkt::{Packet, PacketList};

use super::{DatagramSocket, call::Call};
use crate::{
    base::{counters::Counter, errno::Errno, ids::DeviceIndex},
    cx::Cx,
    header::udp::UdpHeader,
    socket::net::Net,
};

/// Description of a received datagram (control messages of `recvmsg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes copied into the buffer.
    pub len: usize,
    /// Bytes of the datagram, or of the joined datagrams. If the buffer was too short, this is more
    /// than `len`, and the rest is lost (`MSG_TRUNC`).
    pub datagram_len: usize,
    /// Sender.
    pub source: SocketAddr,
    /// Destination address: that of this host, of a multicast group or of a broadcast
    /// (`IP_PKTINFO`).
    pub destination: IpAddr,
    /// Device that received the datagram (`IP_PKTINFO`); 0 is loopback.
    pub device: DeviceIndex,
    /// Type of service with the ECN bits (`IP_RECVTOS`).
    pub tos: u8,
    /// TTL (`IP_RECVTTL`).
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
    /// also by the shutdown of the host or the loss of its address.
    pub fn recv(
        &self,
        net: &Net,
        cx: &mut Cx,
        buf: &mut [u8],
        peek: bool,
    ) -> Result<Received, Errno> {
        let mut call = self.begin_untimed_call(net, cx);
        let taken = call.take();
        if peek {
            let received = taken.map(|packet| {
                let received = copy(&packet, buf);
                call.state.queue.put_back(packet);
                received
            });
            call.end(cx);
            return received;
        }
        call.state.uncharge(cx);
        call.end(cx);
        let packet = taken?;
        let received = copy(&packet, buf);
        cx.pool.free(packet);
        net.count_received(cx, &received);
        Ok(received)
    }

    /// Receives waiting datagrams into the buffers in order, as many as there are buffers, and
    /// returns their number: at least one, unless `messages` is empty.
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
        let mut failed = None;
        while list.len() < messages.len() {
            match call.take() {
                Ok(packet) => list.push_back(packet),
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
        let count = list.len();
        if let (0, Some(errno)) = (count, failed) {
            return Err(errno);
        }
        for message in messages.iter_mut().take(count) {
            let Some(packet) = list.pop_front() else { break };
            let received = copy(&packet, message.buf);
            cx.pool.free(packet);
            net.count_received(cx, &received);
            message.received = Some(received);
        }
        Ok(count)
    }
}

impl Net {
    /// Counts the datagrams of one receive, several if they were joined.
    fn count_received(&self, cx: &mut Cx, received: &Received) {
        let datagrams = match received.segment {
            Some(size) => received.datagram_len.div_ceil(usize::from(size)),
            None => 1,
        };
        let entered = cx.enter(self);
        cx.count(Counter::UdpInDatagrams, datagrams as u64);
        cx.leave(entered);
    }
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

/// Copies the payload, and returns the description of the datagram from its headers.
fn copy(packet: &Packet, buf: &mut [u8]) -> Received {
    let len = packet.copy_to(0, buf);
    let ip = packet.network_header();
    let address = |at: usize| -> IpAddr {
        let octets = ip.get(at..).and_then(|rest| rest.first_chunk::<4>());
        IpAddr::V4(octets.map_or(Ipv4Addr::UNSPECIFIED, |octets| Ipv4Addr::from(*octets)))
    };
    let port = UdpHeader::ports(packet.transport_header()).map_or(0, |(source, _)| source);
    let gso = packet.meta().gso;
    Received {
        len,
        datagram_len: packet.len(),
        source: SocketAddr::new(address(12), port),
        destination: address(16),
        device: DeviceIndex(packet.meta().rx_device),
        tos: ip.get(1).copied().unwrap_or_default(),
        ttl: ip.get(8).copied().unwrap_or_default(),
        segment: (gso.segs > 1).then_some(gso.size),
    }
}
