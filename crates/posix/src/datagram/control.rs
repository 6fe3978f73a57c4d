//! Control messages of recvmsg(2), and the memberships of multicast groups.
//!
//! Linux: `ip_cmsg_recv_offset`, `ip6_datagram_recv_ctl`, `do_ip_setsockopt`, `do_ipv6_setsockopt`.
//! Numbers: include/uapi/linux/in.h, in6.h.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use stack::{
    Cx, Errno,
    base::ids::DeviceIndex,
    host::Host,
    socket::{
        DatagramSocket,
        datagram::{QueuedError, Received},
        options::{IPPROTO_IP, IPPROTO_IPV6},
    },
};

/// A control message of a received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// `IP_PKTINFO`: index of the device, and destination.
    PacketInfo(u32, Ipv4Addr),
    /// `IP_TTL`.
    Ttl(u8),
    /// `IP_TOS`.
    TypeOfService(u8),
    /// `IPV6_PKTINFO`: index of the device, and destination.
    PacketInfoV6(u32, Ipv6Addr),
    /// `IPV6_HOPLIMIT`.
    HopLimit(u8),
    /// `IPV6_TCLASS`.
    TrafficClass(u8),
    /// `UDP_GRO`: payload bytes of each of the joined datagrams.
    Segment(u16),
    /// `IP_RECVERR` or `IPV6_RECVERR`: a report of the error queue (`struct sock_extended_err`).
    Error(QueuedError),
}

/// Control messages that a program has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted(u8);

impl Wanted {
    const PACKET_INFO: u8 = 1;
    const TTL: u8 = 2;
    const TOS: u8 = 4;
    const PACKET_INFO_V6: u8 = 8;
    const HOP_LIMIT: u8 = 16;
    const TRAFFIC_CLASS: u8 = 32;

    /// Sets the option of these numbers, if it selects a control message; `None` otherwise.
    pub(super) fn set(
        &mut self,
        is_v6: bool,
        number: (i32, i32),
        value: &[u8],
    ) -> Option<Result<(), Errno>> {
        let bit = Self::bit(number)?;
        if number.0 == IPPROTO_IPV6 && !is_v6 {
            return Some(Err(Errno::ENOPROTOOPT));
        }
        let Some(on) = int(value) else { return Some(Err(Errno::EINVAL)) };
        if on == 0 {
            self.0 &= !bit
        } else {
            self.0 |= bit
        }
        Some(Ok(()))
    }

    /// Returns whether the control message of these numbers is wanted; `None` for any other option,
    /// and for one that sockets of the family do not have.
    pub(super) fn get(self, is_v6: bool, number: (i32, i32)) -> Option<bool> {
        Self::bit(number).filter(|_| is_v6 || number.0 != IPPROTO_IPV6).map(|bit| self.has(bit))
    }

    /// Returns the bit of the option of these numbers: `IP_PKTINFO`, `IP_RECVTTL`, `IP_RECVTOS`,
    /// `IPV6_RECVPKTINFO`, `IPV6_RECVHOPLIMIT`, `IPV6_RECVTCLASS`.
    const fn bit(number: (i32, i32)) -> Option<u8> {
        match number {
            (IPPROTO_IP, 8) => Some(Self::PACKET_INFO),
            (IPPROTO_IP, 12) => Some(Self::TTL),
            (IPPROTO_IP, 13) => Some(Self::TOS),
            (IPPROTO_IPV6, 49) => Some(Self::PACKET_INFO_V6),
            (IPPROTO_IPV6, 51) => Some(Self::HOP_LIMIT),
            (IPPROTO_IPV6, 66) => Some(Self::TRAFFIC_CLASS),
            _ => None,
        }
    }

    const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Returns the wanted messages about a datagram, in Linux's order.
    pub(super) fn about(self, received: &Received) -> Vec<ControlMessage> {
        let mut messages = Vec::new();
        let (device, tos, ttl) = (received.device.0, received.tos, received.ttl);
        if self.has(Self::PACKET_INFO_V6)
            && let IpAddr::V6(destination) = received.destination
        {
            messages.push(ControlMessage::PacketInfoV6(device, destination));
        }
        match received.destination.to_canonical() {
            IpAddr::V4(destination) => {
                if self.has(Self::PACKET_INFO) {
                    messages.push(ControlMessage::PacketInfo(device, destination));
                }
                if self.has(Self::TTL) {
                    messages.push(ControlMessage::Ttl(ttl));
                }
                if self.has(Self::TOS) {
                    messages.push(ControlMessage::TypeOfService(tos));
                }
            }
            IpAddr::V6(_) => {
                if self.has(Self::HOP_LIMIT) {
                    messages.push(ControlMessage::HopLimit(ttl));
                }
                if self.has(Self::TRAFFIC_CLASS) {
                    messages.push(ControlMessage::TrafficClass(tos));
                }
            }
        }
        messages.extend(received.segment.map(ControlMessage::Segment));
        messages
    }
}

/// Reads an `int`, or a single byte, as options of IP allow.
fn int(value: &[u8]) -> Option<i32> {
    match (value.first_chunk(), value.first()) {
        (Some(bytes), _) => Some(i32::from_ne_bytes(*bytes)),
        (None, first) => first.map(|byte| i32::from(*byte)),
    }
}

/// Whether the numbers are those of an option that joins or leaves a group: `IP_ADD_MEMBERSHIP`,
/// `IP_DROP_MEMBERSHIP`, `IPV6_ADD_MEMBERSHIP`, `IPV6_DROP_MEMBERSHIP`.
pub(super) const fn is_membership(level: i32, number: i32) -> bool {
    matches!((level, number), (IPPROTO_IP, 35 | 36) | (IPPROTO_IPV6, 20 | 21))
}

/// Notes a membership in the list of those that a bound socket takes over, or removes one that was
/// left.
pub(super) fn keep_membership(
    memberships: &mut Vec<((i32, i32), Vec<u8>)>,
    (level, number): (i32, i32),
    value: &[u8],
) {
    match number {
        35 | 20 => memberships.push(((level, number), value.to_vec())),
        _ => {
            let joined = |(of, kept): &((i32, i32), Vec<u8>)| of.0 == level && kept == value;
            if let Some(at) = memberships.iter().position(joined) {
                memberships.remove(at);
            }
        }
    }
}

/// Joins or leaves the group in `value`: a `struct ip_mreq` or `ip_mreqn`, or a `struct ipv6_mreq`.
pub(super) fn change_membership(
    socket: &Arc<DatagramSocket>,
    host: &Host,
    cx: &mut Cx,
    (level, number): (i32, i32),
    value: &[u8],
) -> Result<(), Errno> {
    let v4 = |at: usize| {
        let octets = value.get(at..).and_then(|rest| rest.first_chunk::<4>());
        octets.map(|octets| Ipv4Addr::from(*octets)).ok_or(Errno::EINVAL)
    };
    let index = |at: usize| {
        let bytes = value.get(at..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map(|bytes| u32::from_ne_bytes(*bytes))
    };
    let (group, device) = if level == IPPROTO_IP {
        let (group, interface) = (v4(0)?, v4(4)?);
        let device = match index(8) {
            Some(index) if index != 0 => Some(DeviceIndex(index)),
            _ => host.multicast_device(cx, interface.into())?,
        };
        (IpAddr::V4(group), device)
    } else {
        let octets = value.first_chunk::<16>().ok_or(Errno::EINVAL)?;
        let index = index(16).ok_or(Errno::EINVAL)?;
        (IpAddr::V6(Ipv6Addr::from(*octets)), (index != 0).then_some(DeviceIndex(index)))
    };
    match number {
        35 | 20 => socket.join(host, cx, group, device),
        _ => socket.leave(host, cx, group, device),
    }
}
