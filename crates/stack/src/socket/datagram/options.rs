//! Options of a datagram socket, with the same table and rules as those of a connection.
//!
//! Linux: `sk_setsockopt`, `do_ip_setsockopt`, `do_ipv6_setsockopt`, `udp_lib_setsockopt`. The
//! options are kept as `SocketSettings`, like those of a listener, and those that softirq context
//! and sends read are copied to atomics.

use super::{DatagramSocket, SocketKind, call::Call};
use crate::{
    base::{errno::Errno, ids::DeviceIndex},
    cx::Cx,
    header::ip::protocol,
    socket::{
        family::Family,
        net::Net,
        options::{
            AF_INET, AF_INET6, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP, MemoryInfo, OptionValue,
            SOL_QUIETLINE, SocketOption, SocketSettings, SocketState,
        },
    },
};

impl DatagramSocket {
    /// Sets an option by Linux's rules.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option of TCP or [`SOL_QUIETLINE`], for one of IPv6 on an IPv4 socket,
    /// for one of UDP on a ping socket and for one that is only read, `EINVAL` for a value that is
    /// not allowed, `EPERM` for a priority above 6, `ENODEV` and `EADDRNOTAVAIL` for an unknown
    /// multicast interface.
    pub fn set_option(
        &self,
        net: &Net,
        cx: &mut Cx,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        if !self.has_level(option) {
            return Err(Errno::ENOPROTOOPT);
        }
        let sysctls = net.sysctls();
        let mut kept = self.kept();
        let mut next = kept.clone();
        next.set_in(SocketState::Datagram, option, value, &sysctls)?;
        match option {
            SocketOption::MulticastInterface => resolve_interface(net, cx, &mut next)?,
            SocketOption::MulticastInterfaceV6 => {
                net.check_device(DeviceIndex(next.datagram.v6.multicast_device))?;
            }
            _ => {}
        }
        self.settings.copy_from(&next);
        self.flags.copy_from(&next);
        let mut call = self.begin_untimed_call(net, cx);
        call.state.rcvbuf = next.tcp.rcvbuf.unwrap_or(call.state.rcvbuf);
        call.state.sndbuf = next.tcp.sndbuf.unwrap_or(call.state.sndbuf);
        call.end(cx);
        *kept = next;
        Ok(())
    }

    /// Returns an option. Reading `SO_ERROR` takes the error.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option that is only set, for one of UDP on a ping socket, and for one
    /// of TCP or [`SOL_QUIETLINE`] on an IPv6 socket; `EOPNOTSUPP` for one of these or of IPv6 on
    /// an IPv4 socket; for `IP_MTU` and `IPV6_MTU`, `ENOTCONN` on an unconnected socket and errors
    /// of the route.
    pub fn option(
        &self,
        net: &Net,
        cx: &mut Cx,
        option: SocketOption,
    ) -> Result<OptionValue, Errno> {
        if !self.has_level(option) {
            return Err(if self.family.is_v6() { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP });
        }
        match option {
            SocketOption::Domain => {
                return Ok(OptionValue::Int(if self.family.is_v6() { AF_INET6 } else { AF_INET }));
            }
            SocketOption::Protocol => return Ok(OptionValue::Int(self.protocol().into())),
            SocketOption::V6Only if self.family.is_v6() => {
                return Ok((self.family == Family::V6Only).into());
            }
            SocketOption::Error => {
                let error = self.take_error(net, cx);
                return Ok(OptionValue::Int(error.map_or(0, Errno::raw)));
            }
            SocketOption::IncomingCpu => {
                return Ok(OptionValue::Int(i32::from(self.incoming_core().0)));
            }
            SocketOption::SendBuffer | SocketOption::ReceiveBuffer | SocketOption::MemoryInfo => {
                return Ok(self.memory_option(net, cx, option));
            }
            SocketOption::PathMtu | SocketOption::PathMtuV6 => {
                let call = self.begin_call(net, cx);
                let mtu = call.path_mtu(cx);
                call.end(cx);
                return mtu.map(OptionValue::from);
            }
            _ => {}
        }
        self.kept().value_in(SocketState::Datagram, option, &net.sysctls())
    }

    /// Returns the memory that the socket holds and may hold (`SO_MEMINFO`).
    pub fn memory_info(&self, net: &Net, cx: &mut Cx) -> MemoryInfo {
        let call = self.begin_untimed_call(net, cx);
        let state = &*call.state;
        let charged = u32::try_from(state.charged_pages).unwrap_or(0);
        let info = MemoryInfo {
            rmem_alloc: state.queue.rmem(),
            rcvbuf: state.rcvbuf,
            wmem_alloc: self.wmem.bytes(),
            sndbuf: state.sndbuf,
            forward_alloc: charged
                .saturating_mul(crate::base::tcp_memory::PAGE_BYTES)
                .saturating_sub(state.queue.rmem()),
            wmem_queued: 0,
            backlog: self.lock.backlog_bytes(),
            drops: state.drops,
        };
        call.end(cx);
        let refused = self.backlog_drops.load(std::sync::atomic::Ordering::Relaxed);
        MemoryInfo { drops: info.drops.wrapping_add(refused), ..info }
    }

    fn memory_option(&self, net: &Net, cx: &mut Cx, option: SocketOption) -> OptionValue {
        let info = self.memory_info(net, cx);
        match option {
            SocketOption::SendBuffer => OptionValue::from(u64::from(info.sndbuf)),
            SocketOption::ReceiveBuffer => OptionValue::from(u64::from(info.rcvbuf)),
            _ => info.into(),
        }
    }
}

impl Call<'_> {
    /// Returns the MTU of the path to the peer.
    fn path_mtu(&self, cx: &Cx) -> Result<u64, Errno> {
        let (net, socket) = (self.net, self.socket);
        let target = self.state.target_at_peer(socket)?;
        let hop = target.lookup.hop(net, cx, socket.flags.broadcast())?;
        Ok(u64::from(hop.mtu))
    }
}

impl DatagramSocket {
    /// Whether the socket has options of the level of `option`.
    fn has_level(&self, option: SocketOption) -> bool {
        match option.level() {
            IPPROTO_TCP | SOL_QUIETLINE => false,
            IPPROTO_IPV6 => self.family.is_v6(),
            IPPROTO_UDP => self.kind == SocketKind::Udp,
            _ => true,
        }
    }

    /// Returns the protocol of the socket's packets, as `SO_PROTOCOL`.
    pub(super) const fn protocol(&self) -> u8 {
        match (self.kind, self.family.is_v6()) {
            (SocketKind::Udp, _) => protocol::UDP,
            (SocketKind::Ping, false) => protocol::ICMP,
            (SocketKind::Ping, true) => protocol::ICMPV6,
        }
    }
}

/// Resolves `IP_MULTICAST_IF`: an index must be that of a device; an address without an index
/// selects the device that has the address, or no device if the address is unspecified.
fn resolve_interface(net: &Net, cx: &Cx, settings: &mut SocketSettings) -> Result<(), Errno> {
    let datagram = &mut settings.datagram;
    let (index, address) = (datagram.v4.multicast_device, datagram.multicast_source);
    if index != 0 {
        return net.check_device(DeviceIndex(index));
    }
    let device = net.multicast_device(cx, address.into()).map_err(|_| Errno::EADDRNOTAVAIL)?;
    datagram.v4.multicast_device = device.map_or(0, |device| device.0);
    Ok(())
}

impl Net {
    /// Fails with `ENODEV` if there is no device with this index.
    pub(super) fn check_device(&self, device: DeviceIndex) -> Result<(), Errno> {
        if device.position() < self.device_count() { Ok(()) } else { Err(Errno::ENODEV) }
    }
}
