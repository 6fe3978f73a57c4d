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
        datagram::{QueuedError, Received, SourceChange},
        options::{IPPROTO_IP, IPPROTO_IPV6},
    },
};

use crate::abi::{AF_INET, AF_INET6};

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

/// Change of a membership that an option asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Join,
    Leave,
    Source(SourceChange),
}

/// Layout of the value of an option that changes a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// `struct ip_mreq` or `ip_mreqn`, or `struct ipv6_mreq`.
    Group,
    /// `struct ip_mreq_source`.
    SourceV4,
    /// `struct group_req`, or `struct group_source_req`.
    Any,
}

/// Returns the change that the option asks for, and the layout of its value; `None` for an option
/// of another kind.
const fn change_of(level: i32, number: i32) -> Option<(Change, Layout)> {
    let change = match (level, number) {
        (IPPROTO_IP, 35) | (IPPROTO_IPV6, 20) => (Change::Join, Layout::Group),
        (IPPROTO_IP, 36) | (IPPROTO_IPV6, 21) => (Change::Leave, Layout::Group),
        (IPPROTO_IP, 37) => (Change::Source(SourceChange::Unblock), Layout::SourceV4),
        (IPPROTO_IP, 38) => (Change::Source(SourceChange::Block), Layout::SourceV4),
        (IPPROTO_IP, 39) => (Change::Source(SourceChange::Join), Layout::SourceV4),
        (IPPROTO_IP, 40) => (Change::Source(SourceChange::Leave), Layout::SourceV4),
        (IPPROTO_IP | IPPROTO_IPV6, 42) => (Change::Join, Layout::Any),
        (IPPROTO_IP | IPPROTO_IPV6, 45) => (Change::Leave, Layout::Any),
        (IPPROTO_IP | IPPROTO_IPV6, 43) => (Change::Source(SourceChange::Block), Layout::Any),
        (IPPROTO_IP | IPPROTO_IPV6, 44) => (Change::Source(SourceChange::Unblock), Layout::Any),
        (IPPROTO_IP | IPPROTO_IPV6, 46) => (Change::Source(SourceChange::Join), Layout::Any),
        (IPPROTO_IP | IPPROTO_IPV6, 47) => (Change::Source(SourceChange::Leave), Layout::Any),
        _ => return None,
    };
    Some(change)
}

/// Whether the numbers are those of an option that changes the membership of a group or its source
/// filter: `IP_ADD_MEMBERSHIP`, `IPV6_ADD_MEMBERSHIP`, `IP_ADD_SOURCE_MEMBERSHIP`,
/// `IP_BLOCK_SOURCE`, `MCAST_JOIN_GROUP`, `MCAST_JOIN_SOURCE_GROUP`, `MCAST_BLOCK_SOURCE` and their
/// opposites.
pub(super) const fn is_membership(level: i32, number: i32) -> bool {
    change_of(level, number).is_some()
}

/// Notes the change of a membership, for the bound socket to repeat. A plain join is removed from
/// the list by its leave; other changes are repeated in order.
pub(super) fn keep_membership(
    memberships: &mut Vec<((i32, i32), Vec<u8>)>,
    (level, number): (i32, i32),
    value: &[u8],
) {
    let joined = |(of, kept): &((i32, i32), Vec<u8>)| {
        let is_join = matches!(change_of(of.0, of.1), Some((Change::Join, _)));
        is_join && of.0 == level && kept == value
    };
    let is_leave = matches!(change_of(level, number), Some((Change::Leave, _)));
    match memberships.iter().position(joined) {
        // A filter that was changed in between ends with its membership.
        Some(at) if is_leave && at + 1 == memberships.len() => drop(memberships.remove(at)),
        _ => memberships.push(((level, number), value.to_vec())),
    }
}

/// Joins or leaves the group in `value`, or changes its source filter.
pub(super) fn change_membership(
    socket: &Arc<DatagramSocket>,
    host: &Host,
    cx: &mut Cx,
    (level, number): (i32, i32),
    value: &[u8],
) -> Result<(), Errno> {
    let (change, layout) = change_of(level, number).ok_or(Errno::ENOPROTOOPT)?;
    let index = |at: usize| {
        let bytes = value.get(at..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map(|bytes| u32::from_ne_bytes(*bytes))
    };
    let of_index = |index: u32| (index != 0).then_some(DeviceIndex(index));
    let (group, source, device) = match layout {
        Layout::Group if level == IPPROTO_IP => {
            let (group, interface) = (v4_at(value, 0)?, v4_at(value, 4)?);
            let device = match index(8) {
                Some(index) if index != 0 => of_index(index),
                _ => host.multicast_device(cx, interface)?,
            };
            (group, None, device)
        }
        Layout::Group => (v6_at(value, 0)?, None, of_index(index(16).ok_or(Errno::EINVAL)?)),
        Layout::SourceV4 => {
            let device = host.multicast_device(cx, v4_at(value, 4)?)?;
            (v4_at(value, 0)?, Some(v4_at(value, 8)?), device)
        }
        Layout::Any => {
            let family = if level == IPPROTO_IP { AF_INET } else { AF_INET6 };
            let has_source = matches!(change, Change::Source(_));
            let source = if has_source { Some(storage_at(value, SOURCE, family)?) } else { None };
            let device = of_index(index(0).ok_or(Errno::EINVAL)?);
            (storage_at(value, GROUP, family)?, source, device)
        }
    };
    match (change, source) {
        (Change::Join, _) => socket.join(host, cx, group, device),
        (Change::Leave, _) => socket.leave(host, cx, group, device),
        (Change::Source(change), source) => {
            let source = source.ok_or(Errno::EINVAL)?;
            socket.change_source(host, cx, change, (group, source), device)
        }
    }
}

/// Offsets of the two addresses in `struct group_source_req`.
const GROUP: usize = 8;
const SOURCE: usize = GROUP + 128;

fn v4_at(value: &[u8], at: usize) -> Result<IpAddr, Errno> {
    let octets = value.get(at..).and_then(|rest| rest.first_chunk::<4>());
    octets.map(|octets| Ipv4Addr::from(*octets).into()).ok_or(Errno::EINVAL)
}

fn v6_at(value: &[u8], at: usize) -> Result<IpAddr, Errno> {
    let octets = value.get(at..).and_then(|rest| rest.first_chunk::<16>());
    octets.map(|octets| Ipv6Addr::from(*octets).into()).ok_or(Errno::EINVAL)
}

/// Reads the address in a `struct sockaddr_storage`, which must have this family.
fn storage_at(value: &[u8], at: usize, family: i32) -> Result<IpAddr, Errno> {
    let bytes = value.get(at..).and_then(|rest| rest.first_chunk::<2>());
    let found = bytes.map(|bytes| i32::from(u16::from_ne_bytes(*bytes))).ok_or(Errno::EINVAL)?;
    if found != family {
        return Err(Errno::EADDRNOTAVAIL);
    }
    if family == AF_INET { v4_at(value, at + 4) } else { v6_at(value, at + 8) }
}
