//! Packets of sent messages, without an IP header: UDP datagrams and echo requests.
//!
//! Above: `send`; UDP sessions (`flows::session`). Linux: `udp_send_skb`, `udp_v6_send_skb`,
//! `ping_v4_push_pending_frames`, `ping_v6_sendmsg`.

use pkt::{Packet, Sum, TxChecksum, checksum};
use tcp::FourTuple;

use crate::{
    base::errno::Errno,
    cx::Cx,
    header::{
        icmp::{ICMP_HEADER_LEN, IcmpMessage, checksum::fill_checksum},
        ip::protocol,
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

/// Makes the packet of one UDP datagram. `None` if there is no memory.
pub(in crate::socket) fn datagram(
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
