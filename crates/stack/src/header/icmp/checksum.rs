//! Checksum of an ICMP message: over the message, and for IPv6 also over a pseudo-header
//! (RFC 4443 §2.3).

use std::net::IpAddr;

use pkt::{Packet, Sum, checksum};

use super::CHECKSUM_OFFSET;
use crate::header::ip::protocol;

/// Returns the sum of a message, and for IPv6 of its pseudo-header.
pub(crate) fn sum_of<const V4: bool>(src: IpAddr, dst: IpAddr, message: &Packet) -> Sum {
    let sum = message.checksum(0, message.len());
    if V4 {
        return sum;
    }
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut whole = checksum::pseudo_header(src, dst, protocol::ICMPV6, len);
    whole.combine(sum, 0);
    whole
}

/// Writes the checksum of a complete message whose checksum field is linear.
pub(crate) fn fill_checksum<const V4: bool>(src: IpAddr, dst: IpAddr, message: &mut Packet) {
    message.linear_mut()[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].fill(0);
    let sum = sum_of::<V4>(src, dst, message).finish();
    message.linear_mut()[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_be_bytes());
}
