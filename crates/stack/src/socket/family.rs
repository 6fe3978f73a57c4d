//! Address family of a socket, and the addresses that its application sees.
//!
//! Above: `connect`, `listen`, the calls of datagram sockets that name or return an address. Below:
//! the tables of sockets, which hold canonical addresses only (`canonical`).
//! RFC 3493 §3.7 and §5.3; Linux: `ipv6_only_sock`, `ipv6_mapped`.
//!
//! An IPv6 socket reaches IPv4 peers by v4-mapped addresses (::ffff:192.0.2.1). Inside the stack
//! such a connection **is** an IPv4 connection: its four-tuple holds IPv4 addresses, so that it has
//! one hash and one entry, independent of the socket's family. The family is kept beside the tuple
//! and read only where an address is given to the application.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::base::errno::Errno;

/// Family of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Family {
    /// `AF_INET`.
    #[default]
    V4,
    /// `AF_INET6`, for peers of both families.
    Dual,
    /// `AF_INET6` with `IPV6_V6ONLY`.
    V6Only,
}

impl Family {
    /// Returns the family of a socket with this address. `v6_only` is the option `IPV6_V6ONLY`.
    pub(crate) const fn of(address: SocketAddr, v6_only: bool) -> Self {
        match (address, v6_only) {
            (SocketAddr::V4(_), _) => Self::V4,
            (SocketAddr::V6(_), false) => Self::Dual,
            (SocketAddr::V6(_), true) => Self::V6Only,
        }
    }

    /// Whether the socket is one of `AF_INET6`.
    #[inline]
    pub(crate) const fn is_v6(self) -> bool {
        !matches!(self, Self::V4)
    }

    /// Returns the address that the application sees for an end of a connection.
    pub(crate) fn present(self, end: SocketAddr) -> SocketAddr {
        match end {
            SocketAddr::V4(v4) => SocketAddr::new(self.present_ip(IpAddr::V4(*v4.ip())), v4.port()),
            SocketAddr::V6(_) => end,
        }
    }

    /// Returns the address that the application sees for `ip`.
    #[inline]
    pub(crate) fn present_ip(self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(ip) if self.is_v6() => IpAddr::V6(ip.to_ipv6_mapped()),
            ip => ip,
        }
    }

    /// Returns the destination `to` in the form that the tables use ([`canonical`]). As in Linux,
    /// the unspecified address stands for this host.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for an IPv6 address on an `AF_INET` socket, `ENETUNREACH` for an IPv4 address
    /// with `IPV6_V6ONLY`; those of [`canonical`].
    #[inline]
    pub(crate) fn destination(self, to: SocketAddr) -> Result<SocketAddr, Errno> {
        if to.is_ipv6() && !self.is_v6() {
            return Err(Errno::EAFNOSUPPORT);
        }
        let mut to = canonical(to)?;
        if to.ip().is_unspecified() {
            to.set_ip(match to.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        if to.is_ipv4() && self == Self::V6Only {
            return Err(Errno::ENETUNREACH);
        }
        Ok(to)
    }
}

/// Whether an address means nothing without the link on which it is valid (RFC 4007 §6): link-local
/// unicast addresses, and multicast groups of this interface or link. Linux:
/// `__ipv6_addr_needs_scope_id`.
pub(crate) const fn needs_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || (ip.is_multicast() && matches!(ip.octets()[1] & 0x0f, 1 | 2))
}

/// Returns the form of `end` that the tables use: a v4-mapped address becomes an IPv4 address, only
/// a link-local unicast address keeps its scope, and the flow label is removed.
///
/// # Errors
/// `EINVAL` for a link-local address without its scope, as in Linux.
pub(crate) fn canonical(end: SocketAddr) -> Result<SocketAddr, Errno> {
    let SocketAddr::V6(v6) = end else { return Ok(end) };
    if let Some(ip) = v6.ip().to_ipv4_mapped() {
        return Ok(SocketAddr::new(IpAddr::V4(ip), v6.port()));
    }
    let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
    if scope == 0 && v6.ip().is_unicast_link_local() {
        return Err(Errno::EINVAL);
    }
    Ok(SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> SocketAddr {
        text.parse().expect("the text is an address")
    }

    #[test]
    fn a_v4_mapped_address_becomes_an_ipv4_address_and_back() {
        assert_eq!(canonical(end("[::ffff:192.0.2.1]:80")), Ok(end("192.0.2.1:80")));
        assert_eq!(canonical(end("192.0.2.1:80")), Ok(end("192.0.2.1:80")));
        for family in [Family::Dual, Family::V6Only] {
            assert_eq!(family.present(end("192.0.2.1:80")), end("[::ffff:192.0.2.1]:80"));
            assert_eq!(family.present(end("[2001:db8::1]:80")), end("[2001:db8::1]:80"));
        }
        assert_eq!(Family::V4.present(end("192.0.2.1:80")), end("192.0.2.1:80"));
    }

    #[test]
    fn a_destination_belongs_to_the_family_of_its_socket() {
        let to = |family: Family, text: &str| family.destination(end(text));
        assert_eq!(to(Family::V4, "[2001:db8::1]:80"), Err(Errno::EAFNOSUPPORT));
        assert_eq!(to(Family::V4, "[::ffff:192.0.2.1]:80"), Err(Errno::EAFNOSUPPORT));
        assert_eq!(to(Family::V6Only, "[::ffff:192.0.2.1]:80"), Err(Errno::ENETUNREACH));
        for text in ["192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
            assert_eq!(to(Family::Dual, text), Ok(end("192.0.2.1:80")));
        }
        assert_eq!(to(Family::Dual, "[::]:80"), Ok(end("[::1]:80")));
        assert_eq!(to(Family::Dual, "[::ffff:0.0.0.0]:80"), Ok(end("127.0.0.1:80")));
        assert_eq!(to(Family::V4, "0.0.0.0:80"), Ok(end("127.0.0.1:80")));
    }

    #[test]
    fn link_local_addresses_and_groups_need_a_scope() {
        let needs = |text: &str| needs_scope(text.parse().expect("an address"));
        assert!(["fe80::1", "ff02::1", "ff01::5", "ff12::9"].into_iter().all(needs));
        assert!(!["2001:db8::1", "::1", "ff05::1", "ff0e::9"].into_iter().any(needs));
    }

    #[test]
    fn only_a_link_local_address_keeps_its_scope_and_it_needs_one() {
        assert_eq!(canonical(end("[fe80::1%3]:80")), Ok(end("[fe80::1%3]:80")));
        assert_eq!(canonical(end("[fe80::1]:80")), Err(Errno::EINVAL));
        assert_eq!(canonical(end("[2001:db8::1%3]:80")), Ok(end("[2001:db8::1]:80")));
        let labeled = SocketAddrV6::new("2001:db8::1".parse().unwrap(), 80, 7, 0);
        assert_eq!(canonical(SocketAddr::V6(labeled)), Ok(end("[2001:db8::1]:80")));
    }
}
