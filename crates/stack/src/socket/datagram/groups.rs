//! Multicast groups: memberships of the host and of each socket.
//!
//! Above: `receive::udp_input`, which filters datagrams by the memberships, and `group_reports`,
//! which reports the groups to routers. Linux: `ip_mc_join_group`, `ip_check_mc_rcu`,
//! `ip_mc_sf_allow`, `ipv6_sock_mc_join`, `ipv6_chk_mcast_addr`, `inet6_mc_check`.
//!
//! The host is a member of a group on a device as long as one socket is. Datagrams are filtered in
//! a read section, without a lock.

use std::{net::IpAddr, sync::Arc, vec::Vec};

use sync::{
    RcuCell,
    epoch::{Domain, Section},
};

use super::DatagramSocket;
use crate::{
    base::{
        errno::Errno,
        ids::{DeviceIndex, LOOPBACK},
    },
    cx::Cx,
    socket::net::Net,
    transmit::dst::RouteKind,
};

/// Largest number of groups, of both IP versions together, that a socket joins: the default of
/// Linux's `net.ipv4.igmp_max_memberships`.
const MEMBERSHIPS_MAX: usize = 20;

/// A multicast group on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) device: DeviceIndex,
    pub(crate) group: IpAddr,
}

impl Membership {
    /// Returns whether a datagram to `group` that arrived on `device` belongs to the membership.
    /// Loopback matches every device, because copies of this host's datagrams arrive on loopback.
    fn covers(&self, device: DeviceIndex, group: IpAddr) -> bool {
        self.group == group && (self.device == device || device == LOOPBACK)
    }
}

/// Groups of a host, each with the number of sockets that have joined it.
#[derive(Debug)]
pub(crate) struct Groups(RcuCell<Vec<(Membership, usize)>>);

impl Groups {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self(RcuCell::new(rcu, Vec::new()))
    }

    /// Returns whether some socket of the host has joined `group` on `device`; on any device if
    /// `device` is loopback.
    pub(crate) fn is_member(&self, device: DeviceIndex, group: IpAddr, rcu: &Section<'_>) -> bool {
        self.0.load(rcu).iter().any(|(membership, _)| membership.covers(device, group))
    }

    /// Counts one more socket of a group; returns whether it is the first.
    fn add(&self, membership: Membership) -> bool {
        let mut first = true;
        self.0.update(|groups| {
            let mut next = groups.clone();
            match next.iter_mut().find(|(known, _)| *known == membership) {
                Some((_, sockets)) => {
                    *sockets += 1;
                    first = false;
                }
                None => next.push((membership, 1)),
            }
            next
        });
        first
    }

    /// Counts one socket less; returns whether it was the last.
    fn remove(&self, membership: Membership) -> bool {
        let mut last = false;
        self.0.update(|groups| {
            let mut next = groups.clone();
            if let Some((_, sockets)) = next.iter_mut().find(|(known, _)| *known == membership) {
                *sockets -= 1;
                last = *sockets == 0;
            }
            next.retain(|(_, sockets)| *sockets > 0);
            next
        });
        last
    }

    /// Returns the groups of a device.
    pub(crate) fn of_device(&self, device: DeviceIndex, rcu: &Section<'_>) -> Vec<IpAddr> {
        let of_device = |(membership, _): &&(Membership, usize)| membership.device == device;
        self.0.load(rcu).iter().filter(of_device).map(|(membership, _)| membership.group).collect()
    }
}

impl DatagramSocket {
    /// Joins a multicast group on `device`, or if that is `None`, on the device by which datagrams
    /// to the group leave.
    ///
    /// # Errors
    /// `EINVAL` for an address that is not a multicast group, `EADDRINUSE` if the socket is a
    /// member already, `ENOBUFS` above 20 groups, `ENODEV` if there is no such device or no route
    /// to the group, as in Linux; `ENOPROTOOPT` for an IPv6 group on an IPv4 socket, `ENETDOWN` for
    /// a closed socket.
    pub fn join(
        self: &Arc<Self>,
        net: &Net,
        cx: &mut Cx,
        group: IpAddr,
        device: Option<DeviceIndex>,
    ) -> Result<(), Errno> {
        if group.is_ipv6() && !self.family.is_v6() {
            return Err(Errno::ENOPROTOOPT);
        }
        let membership = membership(net, cx, group, device)?;
        let call = self.begin_call(net, cx);
        let mut result = Ok(());
        if call.state.closed {
            result = Err(Errno::ENETDOWN);
        } else {
            self.memberships.update(|joined| {
                let mut next = joined.clone();
                if joined.contains(&membership) {
                    result = Err(Errno::EADDRINUSE);
                } else if joined.len() >= MEMBERSHIPS_MAX {
                    result = Err(Errno::ENOBUFS);
                } else {
                    next.push(membership);
                }
                next
            });
        }
        let first = result.is_ok() && net.groups().add(membership);
        call.end(cx);
        if first {
            net.on_group_joined(cx, membership);
        }
        result
    }

    /// Leaves a multicast group: on `device`, or if that is `None`, on the first device with a
    /// membership.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave(
        &self,
        net: &Net,
        cx: &mut Cx,
        group: IpAddr,
        device: Option<DeviceIndex>,
    ) -> Result<(), Errno> {
        let wanted = device;
        let mut left = None;
        let call = self.begin_call(net, cx);
        self.memberships.update(|joined| {
            let mut next = joined.clone();
            let is_meant = |membership: &Membership| {
                membership.group == group && wanted.is_none_or(|device| device == membership.device)
            };
            if let Some(at) = next.iter().position(is_meant) {
                left = Some(next.remove(at));
            }
            next
        });
        call.end(cx);
        let membership = left.ok_or(Errno::EADDRNOTAVAIL)?;
        if net.groups().remove(membership) {
            net.on_group_left(cx, membership);
        }
        Ok(())
    }

    /// Leaves every group, because the socket is closed.
    pub(super) fn leave_all(&self, net: &Net, cx: &mut Cx) {
        let mut left = Vec::new();
        self.memberships.update(|joined| {
            left.clone_from(joined);
            Vec::new()
        });
        for membership in left {
            if net.groups().remove(membership) {
                net.on_group_left(cx, membership);
            }
        }
    }

    /// Returns whether the socket receives datagrams to a group of the host: with
    /// `IP_MULTICAST_ALL` to any group, otherwise only to a group that the socket has joined.
    pub(crate) fn takes_group(
        &self,
        device: DeviceIndex,
        group: IpAddr,
        rcu: &Section<'_>,
    ) -> bool {
        let joined = self.memberships.load(rcu);
        self.flags.multicast_all(group.is_ipv4())
            || joined.iter().any(|membership| membership.covers(device, group))
    }
}

/// Returns the membership for a group on `device`, or on the device by which datagrams to the group
/// leave.
fn membership(
    net: &Net,
    cx: &mut Cx,
    group: IpAddr,
    device: Option<DeviceIndex>,
) -> Result<Membership, Errno> {
    if !group.is_multicast() {
        return Err(Errno::EINVAL);
    }
    if let Some(device) = device {
        net.check_device(device)?;
        return Ok(Membership { device, group });
    }
    let entered = cx.enter(net);
    let hop = net.datagram_hop(cx, group, None, false, None);
    cx.leave(entered);
    match hop {
        Ok(hop) => Ok(Membership { device: hop.index, group }),
        Err(_) => Err(Errno::ENODEV),
    }
}

impl Net {
    /// Returns the device with the address `interface`; `None` for the unspecified address, which
    /// stands for any device.
    ///
    /// # Errors
    /// `ENODEV` if no device has the address.
    pub fn multicast_device(
        &self,
        cx: &Cx,
        interface: IpAddr,
    ) -> Result<Option<DeviceIndex>, Errno> {
        if interface.is_unspecified() {
            return Ok(None);
        }
        let reader = cx.reader();
        let rcu = reader.pin();
        let route = self.fib(&rcu).lookup(interface).ok_or(Errno::ENODEV)?;
        if route.kind == RouteKind::Local { Ok(Some(route.device)) } else { Err(Errno::ENODEV) }
    }
}
