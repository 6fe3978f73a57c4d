//! Multicast groups: memberships of the host and of each socket.
//!
//! Above: `receive::udp_input`, which filters datagrams by the memberships, and `group_reports`,
//! which reports the groups to routers. Linux: `ip_mc_join_group`, `ip_check_mc_rcu`,
//! `ip_mc_sf_allow`, `ip_mc_source`, `ipv6_sock_mc_join`, `ipv6_chk_mcast_addr`, `inet6_mc_check`,
//! `ip6_mc_source`.
//!
//! The host is a member of a group on a device as long as one socket is, and its source filter
//! (`source_filter`) receives what the filter of one of these sockets receives. Datagrams are
//! filtered in a read section, without a lock.

use std::{net::IpAddr, sync::Arc, vec::Vec};

use sync::{
    RcuCell,
    epoch::{Domain, Section},
};

use super::{
    DatagramSocket,
    source_filter::{SourceChange, SourceFilter},
};
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

/// A membership of a socket, with its source filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    membership: Membership,
    filter: SourceFilter,
}

/// A group of a host.
#[derive(Clone, Debug)]
struct HostGroup {
    membership: Membership,
    /// Filters of the sockets that have joined, in any order.
    filters: Vec<SourceFilter>,
    /// Filter of the host.
    merged: SourceFilter,
}

/// Groups of a host.
#[derive(Debug)]
pub(crate) struct Groups(RcuCell<Vec<HostGroup>>);

impl Groups {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self(RcuCell::new(rcu, Vec::new()))
    }

    /// Returns whether some socket of the host has joined `group` on `device`; on any device if
    /// `device` is loopback.
    pub(crate) fn is_member(&self, device: DeviceIndex, group: IpAddr, rcu: &Section<'_>) -> bool {
        self.0.load(rcu).iter().any(|of| of.membership.covers(device, group))
    }

    /// Returns whether no source filter of the host refuses datagrams of `source` to `group`.
    pub(crate) fn allows(
        &self,
        device: DeviceIndex,
        group: IpAddr,
        source: IpAddr,
        rcu: &Section<'_>,
    ) -> bool {
        let groups = self.0.load(rcu);
        let mut of_group =
            groups.iter().filter(|of| of.membership.covers(device, group)).peekable();
        of_group.peek().is_none() || of_group.any(|of| of.merged.allows(source))
    }

    /// Replaces the filter `before` of one socket by `now`; `None` means no membership. Returns the
    /// filter of the host before and after.
    fn change(
        &self,
        membership: Membership,
        before: Option<&SourceFilter>,
        now: Option<&SourceFilter>,
    ) -> (SourceFilter, SourceFilter) {
        let mut change = (SourceFilter::NONE, SourceFilter::NONE);
        self.0.update(|groups| {
            let mut next = groups.clone();
            let place = next.iter().position(|known| known.membership == membership);
            let place = place.unwrap_or_else(|| {
                let merged = SourceFilter::NONE;
                next.push(HostGroup { membership, filters: Vec::new(), merged });
                next.len() - 1
            });
            let group = &mut next[place];
            change.0.clone_from(&group.merged);
            if let Some(at) = before.and_then(|of| group.filters.iter().position(|is| is == of)) {
                group.filters.swap_remove(at);
            }
            group.filters.extend(now.cloned());
            group.merged = SourceFilter::merged(&group.filters);
            change.1.clone_from(&group.merged);
            next.retain(|group| !group.filters.is_empty());
            next
        });
        change
    }

    /// Returns the groups of a device.
    pub(crate) fn of_device(&self, device: DeviceIndex, rcu: &Section<'_>) -> Vec<IpAddr> {
        let of_device = |of: &&HostGroup| of.membership.device == device;
        self.0.load(rcu).iter().filter(of_device).map(|of| of.membership.group).collect()
    }

    /// Returns the filter of the host for a group on a device, if a socket has joined the group.
    pub(crate) fn filter_of(
        &self,
        membership: Membership,
        rcu: &Section<'_>,
    ) -> Option<SourceFilter> {
        let found = self.0.load(rcu).iter().find(|of| of.membership == membership);
        found.map(|of| of.merged.clone())
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
        self.change_filter(net, cx, membership, |filter| match filter {
            Some(_) => Err(Errno::EADDRINUSE),
            None => Ok(Some(SourceFilter::ALL)),
        })
    }

    /// Changes the source filter of a group on `device`, or if that is `None`, on the device by
    /// which datagrams to the group leave. [`SourceChange::Join`] joins the group for its first
    /// source.
    ///
    /// # Errors
    /// Those of [`join`](Self::join); `EINVAL` for a source of the other family, for a change of
    /// the other kind while the filter has sources, and for a group that the socket has not joined;
    /// `EADDRNOTAVAIL` for a source that is in the filter already or is not in it, `ENOBUFS` above
    /// `igmp_max_msf` or `mld_max_msf` sources.
    pub fn change_source(
        self: &Arc<Self>,
        net: &Net,
        cx: &mut Cx,
        change: SourceChange,
        (group, source): (IpAddr, IpAddr),
        device: Option<DeviceIndex>,
    ) -> Result<(), Errno> {
        if group.is_ipv6() && !self.family.is_v6() {
            return Err(Errno::ENOPROTOOPT);
        }
        if group.is_ipv4() != source.is_ipv4() {
            return Err(Errno::EINVAL);
        }
        let membership = membership(net, cx, group, device)?;
        let sysctls = net.sysctls();
        let max = if group.is_ipv4() { sysctls.igmp_max_msf } else { sysctls.mld_max_msf };
        self.change_filter(net, cx, membership, |filter| {
            let none = (change == SourceChange::Join).then_some(SourceFilter::NONE);
            let mut filter = filter.cloned().or(none).ok_or(Errno::EINVAL)?;
            filter.change(change, source, max)?;
            // Without its last source, a filter in mode INCLUDE is no membership.
            Ok(Some(filter).filter(|filter| *filter != SourceFilter::NONE))
        })
    }

    /// Replaces the filter of a membership by the result of `change`; `None` means no membership.
    fn change_filter(
        &self,
        net: &Net,
        cx: &mut Cx,
        membership: Membership,
        change: impl Fn(Option<&SourceFilter>) -> Result<Option<SourceFilter>, Errno>,
    ) -> Result<(), Errno> {
        let call = self.begin_call(net, cx);
        let mut result = Err(Errno::ENETDOWN);
        if !call.state.closed {
            self.memberships.update(|joined| {
                let mut next = joined.clone();
                let place = joined.iter().position(|of| of.membership == membership);
                let before = place.map(|at| &joined[at].filter);
                result = change(before).and_then(|now| {
                    match (place, &now) {
                        (Some(at), Some(filter)) => next[at].filter.clone_from(filter),
                        (Some(at), None) => drop(next.remove(at)),
                        (None, Some(_)) if joined.len() >= MEMBERSHIPS_MAX => {
                            return Err(Errno::ENOBUFS);
                        }
                        (None, Some(filter)) => {
                            next.push(Joined { membership, filter: filter.clone() });
                        }
                        (None, None) => {}
                    }
                    Ok(net.groups().change(membership, before, now.as_ref()))
                });
                next
            });
        }
        call.end(cx);
        result.map(|(before, now)| net.on_group_changed(cx, membership, &before, &now))
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
            let is_meant = |joined: &Joined| {
                let Membership { device, group: of } = joined.membership;
                of == group && wanted.is_none_or(|wanted| wanted == device)
            };
            if let Some(at) = next.iter().position(is_meant) {
                left = Some(next.remove(at));
            }
            next
        });
        call.end(cx);
        left.ok_or(Errno::EADDRNOTAVAIL)?.end(net, cx);
        Ok(())
    }

    /// Leaves every group, because the socket is closed.
    pub(super) fn leave_all(&self, net: &Net, cx: &mut Cx) {
        let mut left = Vec::new();
        self.memberships.update(|joined| {
            left.clone_from(joined);
            Vec::new()
        });
        for joined in left {
            joined.end(net, cx);
        }
    }

    /// Returns whether the socket receives datagrams of `source` to a group of the host: if it has
    /// joined the group, its filter decides; otherwise `IP_MULTICAST_ALL` does.
    pub(crate) fn takes_group(
        &self,
        device: DeviceIndex,
        (group, source): (IpAddr, IpAddr),
        rcu: &Section<'_>,
    ) -> bool {
        let joined = self.memberships.load(rcu);
        let mut of_group =
            joined.iter().filter(|of| of.membership.covers(device, group)).peekable();
        match of_group.peek() {
            Some(_) => of_group.any(|of| of.filter.allows(source)),
            None => self.flags.multicast_all(group.is_ipv4()),
        }
    }
}

impl Joined {
    /// Ends the membership, which the socket has removed from its list.
    fn end(&self, net: &Net, cx: &mut Cx) {
        let (before, now) = net.groups().change(self.membership, Some(&self.filter), None);
        net.on_group_changed(cx, self.membership, &before, &now);
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
