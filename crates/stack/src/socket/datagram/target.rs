//! Destination of a datagram: from the address that the application names to the arguments of the
//! route lookup.
//!
//! Above: `bind` and `send`. Below: `family`, which translates addresses, and `route::router`.
//! Linux: the first part of `udp_sendmsg`, `udpv6_sendmsg`, `ping_v4_sendmsg`, `ping_v6_sendmsg`
//! and `ip6_datagram_connect`.
//!
//! A link-local address needs a device: the scope in the address, else the device of the message
//! (`IPV6_PKTINFO`), else that of `bind` or an earlier `connect`. A datagram to a group leaves by
//! the device of the message, the scope of the group, the device of `bind` or `connect`, or that of
//! `IP_MULTICAST_IF` and `IPV6_MULTICAST_IF`; without any of these, the routes select a device.
//!
//! Differs from Linux: a link-local unicast destination without a device is `EINVAL` for every
//! call; Linux sends by the first device with such a route.

use std::net::{IpAddr, SocketAddr};

use super::{DatagramSocket, DatagramState, SendControl, SocketKind};
use crate::{
    base::{errno::Errno, ids::DeviceIndex},
    cx::Cx,
    route::router::{Destination, Hop},
    socket::{connection::connect::unscoped, family::needs_scope, net::Net},
};

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Address and port, in the form that the tables use.
    pub(super) remote: SocketAddr,
    /// Arguments of the route lookup.
    pub(super) lookup: Lookup,
}

/// Arguments of the route lookup of a datagram: two datagrams with equal ones take the same route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) to: Destination,
    /// Source address; `None` if the route determines it.
    pub(super) source: Option<IpAddr>,
    /// Device by which a datagram to a group or an IPv4 broadcast address leaves; `None` if the
    /// routes select it. Ignored for other destinations.
    pub(super) device: Option<DeviceIndex>,
}

impl Lookup {
    /// Looks up the hop. `broadcast` is true if the socket may send to broadcast addresses.
    pub(super) fn hop(&self, net: &Net, cx: &Cx, broadcast: bool) -> Result<Hop, Errno> {
        net.datagram_hop(cx, self.to, self.source, broadcast, self.device)
    }
}

/// Returns the device that the scope of an address selects, for an address that needs one.
pub(super) fn scope_of(end: SocketAddr) -> Option<DeviceIndex> {
    match end {
        SocketAddr::V6(end) if end.scope_id() != 0 && needs_scope(*end.ip()) => {
            Some(DeviceIndex(end.scope_id()))
        }
        _ => None,
    }
}

/// Adds `device` as the scope to a link-local unicast address without a scope.
fn with_scope(mut end: SocketAddr, device: Option<DeviceIndex>) -> SocketAddr {
    if let (SocketAddr::V6(end), Some(device)) = (&mut end, device)
        && end.scope_id() == 0
        && end.ip().is_unicast_link_local()
    {
        end.set_scope_id(device.0);
    }
    end
}

impl DatagramState {
    /// Returns the destination of a datagram to `to`, or for `None` to the peer.
    ///
    /// # Errors
    /// `EDESTADDRREQ` without a destination, `ENETUNREACH` for an IPv4 destination from an IPv6
    /// address, `EAFNOSUPPORT` for the opposite, `EINVAL` for port 0 of UDP; those of
    /// `Family::destination`.
    #[inline]
    pub(super) fn target(
        &self,
        socket: &DatagramSocket,
        net: &Net,
        cx: &Cx,
        to: Option<SocketAddr>,
        control: &SendControl,
    ) -> Result<Target, Errno> {
        let target = match to {
            Some(to) => self.target_at(socket, net, cx, to, control)?,
            // The peer is in the form of the tables already.
            None => {
                let remote = self.remote.ok_or(Errno::EDESTADDRREQ)?;
                self.route_to(socket, remote, self.device, control)?
            }
        };
        if target.remote.port() == 0 && socket.kind == SocketKind::Udp {
            return Err(Errno::EINVAL);
        }
        Ok(target)
    }

    /// Returns the target of datagrams to the peer.
    ///
    /// # Errors
    /// `ENOTCONN` without a peer.
    pub(super) fn target_at_peer(&self, socket: &DatagramSocket) -> Result<Target, Errno> {
        let remote = self.remote.ok_or(Errno::ENOTCONN)?;
        self.route_to(socket, remote, self.device, &SendControl::default())
    }

    /// Returns the destination `to`, whose port may be 0.
    pub(super) fn target_at(
        &self,
        socket: &DatagramSocket,
        net: &Net,
        cx: &Cx,
        to: SocketAddr,
        control: &SendControl,
    ) -> Result<Target, Errno> {
        let named = control.device.or_else(|| scope_of(to)).or(self.device);
        let mut remote = socket.family.destination(with_scope(to, named))?;
        if socket.kind == SocketKind::Ping {
            remote.set_port(0);
        }
        if matches!(remote, SocketAddr::V6(end) if end.scope_id() != 0)
            && net.is_local_end(cx, remote)
        {
            // A packet over loopback arrives on no link, so its addresses have no scope.
            remote = unscoped(remote);
        }
        self.route_to(socket, remote, named, control)
    }

    /// Returns the target for `remote`, which is in the form of the tables. `named` is the device
    /// that the application has named for this datagram or for the socket.
    fn route_to(
        &self,
        socket: &DatagramSocket,
        remote: SocketAddr,
        named: Option<DeviceIndex>,
        control: &SendControl,
    ) -> Result<Target, Errno> {
        let mut source = control.source.map(|ip| ip.to_canonical()).or(self.source);
        let mut device = None;
        if !matches!(remote.ip(), IpAddr::V6(ip) if !ip.is_multicast()) {
            device = control.device.or(named);
        }
        if remote.ip().is_multicast() {
            let (interface, address) = socket.flags.multicast_interface(remote.is_ipv4());
            device = device.or(interface);
            source = source.or(address);
        }
        // No route leads from an address of one family to one of the other.
        match source {
            Some(IpAddr::V4(_)) if remote.is_ipv6() => return Err(Errno::EAFNOSUPPORT),
            Some(IpAddr::V6(_)) if remote.is_ipv4() => return Err(Errno::ENETUNREACH),
            _ => {}
        }
        Ok(Target { remote, lookup: Lookup { to: remote.into(), source, device } })
    }
}
