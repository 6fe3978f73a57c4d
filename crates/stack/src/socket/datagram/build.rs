//! Packets of sent messages, without an IP header: UDP datagrams and echo requests.
//!
//! Above: `send`; UDP sessions (`flows::session`). Linux: `udp_send_skb`, `udp_v6_send_skb`,
//! `ping_v4_push_pending_frames`, `ping_v6_sendmsg`.

use pkt::{Gso, GsoKind, Packet, Sum, TxChecksum};
use tcp::FourTuple;

use crate::{
    base::errno::Errno,
    cx::Cx,
    header::{
        icmp::{ICMP_HEADER_LEN, IcmpMessage, checksum::fill_checksum},
        udp::{CHECKSUM_OFFSET, UDP_HEADER_LEN, UdpHeader},
    },
};

/// Place where the checksum of a datagram is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::socket) enum Checks {
    /// Nowhere: the field is zero (`SO_NO_CHECK`).
    Nothing,
    /// While the payload is copied.
    Here,
    /// In the device.
    Device,
}

/// Makes the packet of one UDP datagram. `pseudo` is the sum of the pseudo-header without the
/// length. `None` if there is no memory.
#[inline]
pub(in crate::socket) fn datagram(
    cx: &mut Cx,
    payload: &[u8],
    (src_port, dst_port): (u16, u16),
    (checks, mut pseudo): (Checks, Sum),
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
    pseudo.add_u16(len);
    let header = UdpHeader { src_port, dst_port, len, checksum: 0 };
    let bytes = packet.push(UDP_HEADER_LEN);
    header.emit(bytes);
    let field = usize::from(CHECKSUM_OFFSET);
    match checks {
        Checks::Nothing => {}
        Checks::Here => {
            let mut whole = pseudo;
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
            bytes[field..].copy_from_slice(&pseudo.fold().to_be_bytes());
            packet.meta_mut().tx_checksum =
                TxChecksum::Partial { start: 0, offset: CHECKSUM_OFFSET };
        }
    }
    Some(packet)
}

/// Largest number of datagrams that leave as one packet, except by `UDP_SEGMENT`: what any receiver
/// of the kernel accepts (`UDP_MAX_SEGMENTS` before Linux 6.9).
const JOINED_MAX: usize = 64;

/// Largest payload of datagrams that leave as one packet: that of one datagram over IPv4.
const JOINED_BYTES_MAX: usize = 65_507;

/// Datagrams of one size, except for a shorter last one, that leave as one packet.
pub(super) struct OpenPacket {
    packet: Packet,
    size: usize,
    segs: usize,
}

impl OpenPacket {
    /// Returns a packet without datagrams. `None` if there is no memory.
    #[inline]
    pub(super) fn new(cx: &mut Cx, size: usize) -> Option<Self> {
        Some(Self { packet: cx.pool.alloc()?, size, segs: 0 })
    }

    /// Whether `segs` more datagrams of `size` bytes, the last of which may be shorter, may be
    /// added: `len` bytes together.
    #[inline]
    pub(super) fn has_room(&self, size: usize, len: usize, segs: usize) -> bool {
        let has_size = size == self.size || (segs == 1 && size < self.size);
        has_size
            && self.packet.len() == self.size * self.segs
            && self.segs + segs <= JOINED_MAX
            && self.packet.len() + len <= JOINED_BYTES_MAX
    }

    /// Adds the payload of `segs` datagrams. Returns false, and adds nothing, if there is no
    /// memory.
    #[inline]
    pub(super) fn add(&mut self, cx: &mut Cx, payload: &[u8], segs: usize) -> bool {
        let before = self.packet.len();
        if self.packet.append(&mut cx.pool, payload) < payload.len() {
            self.packet.truncate(before);
            return false;
        }
        self.segs += segs;
        true
    }

    /// Adds the UDP header, whose checksum is left to the device.
    ///
    /// # Errors
    /// The packet, if it has no datagrams.
    #[inline]
    pub(super) fn finish(
        self,
        (src_port, dst_port): (u16, u16),
        mut pseudo: Sum,
        hash: u32,
    ) -> Result<Packet, Packet> {
        let Self { mut packet, size, segs } = self;
        if segs == 0 {
            return Err(packet);
        }
        let len = u16::try_from(UDP_HEADER_LEN + packet.len()).expect("the payload is bounded");
        pseudo.add_u16(len);
        let header = UdpHeader { src_port, dst_port, len, checksum: pseudo.fold() };
        header.emit(packet.push(UDP_HEADER_LEN));
        let meta = packet.meta_mut();
        meta.tx_checksum = TxChecksum::Partial { start: 0, offset: CHECKSUM_OFFSET };
        meta.flow_hash = hash;
        if segs > 1 {
            let size = u16::try_from(size).expect("a datagram fits the MTU");
            let segs = u16::try_from(segs).expect("`segment_size` bounds the number");
            meta.gso = Gso { kind: GsoKind::Udp, size, segs, ..Gso::default() };
        }
        Ok(packet)
    }
}

/// Checks a message that the application sends by a ping socket.
///
/// # Errors
/// `EINVAL` for a message that is shorter than its header or is no echo request with code 0.
pub(super) fn check_echo(message: &[u8], v4: bool) -> Result<(), Errno> {
    let parsed = match v4 {
        true => IcmpMessage::parse::<true>(message),
        false => IcmpMessage::parse::<false>(message),
    };
    // Byte 1 is the code, which is zero.
    match (parsed, message.get(1)) {
        (Ok(IcmpMessage::EchoRequest { .. }), Some(0)) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// Makes the packet of one echo request from the application's message: the socket's port becomes
/// the identifier, and the checksum is computed. `None` if there is no memory.
pub(super) fn echo(cx: &mut Cx, message: &[u8], tuple: &FourTuple, hash: u32) -> Option<Packet> {
    let mut packet = cx.pool.alloc()?;
    let taken = packet.append(&mut cx.pool, message);
    if taken < message.len() || !packet.require_linear(ICMP_HEADER_LEN) {
        cx.pool.free(packet);
        return None;
    }
    packet.linear_mut()[4..6].copy_from_slice(&tuple.local.port().to_be_bytes());
    let (src, dst) = (tuple.local.ip(), tuple.remote.ip());
    if tuple.is_ipv4() {
        fill_checksum::<true>(src, dst, &mut packet);
    } else {
        fill_checksum::<false>(src, dst, &mut packet);
    }
    let meta = packet.meta_mut();
    meta.tx_checksum = TxChecksum::Done;
    meta.flow_hash = hash;
    Some(packet)
}
