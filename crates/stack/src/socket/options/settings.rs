//! Options of a stream socket without a connection (fresh, bound or listening), and of a datagram
//! socket.
//!
//! Linux keeps these options in the `struct sock` that becomes the connection. Here a connection is
//! created with the options of its socket, and the options of a listener are copied to each of its
//! connections, as `sk_clone` does.
//!
//! Not here: the options themselves and the typed setters (`table.rs`).

use core::time::Duration;
use std::net::{Ipv4Addr, SocketAddr};

use super::{Access, OptionValue, SocketOption, SocketState};
use crate::{
    base::{errno::Errno, ids::CoreId},
    socket::{BusyPoll, demux::BindFlags, family::Family},
    sysctl::{FastOpenKey, Sysctls},
    transmit::ip_output::{IpFields, Ipv6Fields},
};

/// Options of a socket that has no connection yet, with Linux's defaults.
///
/// A stream socket without a connection (fresh, bound or listening) and a datagram socket keep
/// their options in this type. [`ConnectOptions`](crate::socket::ConnectOptions) and
/// [`ListenOptions`](crate::socket::ListenOptions) contain such settings, and every connection of a
/// listener starts with those of the listener. [`set`](Self::set) changes an option by Linux's
/// rules and errors. The typed setters cannot fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "settings do nothing until a socket connects or listens with them"]
pub struct SocketSettings {
    /// Options that the engine of a connection keeps.
    pub(in crate::socket) tcp: tcp::SocketOptions,
    /// `SO_REUSEADDR`.
    pub(in crate::socket) reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub(in crate::socket) reuse_port: bool,
    /// `IPV6_V6ONLY`; `None` is the host's setting.
    pub(in crate::socket) v6_only: Option<bool>,
    /// `SO_RCVTIMEO`; `None` is no limit.
    pub(in crate::socket) receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`; `None` is no limit.
    pub(in crate::socket) send_timeout: Option<Duration>,
    /// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`.
    pub(in crate::socket) busy_poll: BusyPoll,
    /// `IP_TOS`, `IP_TTL`, `IP_MTU_DISCOVER`, `SO_PRIORITY`.
    pub(in crate::socket) ip: IpFields,
    /// `IPV6_TCLASS`, `IPV6_UNICAST_HOPS`, `IPV6_MTU_DISCOVER`, `IPV6_AUTOFLOWLABEL`.
    pub(in crate::socket) ipv6: Ipv6Fields,
    /// `SO_INCOMING_CPU`.
    pub(in crate::socket) incoming_core: Option<CoreId>,
    /// `QUIETLINE_MAX_PER_SOURCE`; 0 is no limit.
    pub(in crate::socket) max_per_source: u32,
    /// `TCP_FASTOPEN`.
    pub(in crate::socket) fast_open: u32,
    /// `TCP_FASTOPEN_CONNECT`.
    pub(in crate::socket) fast_open_connect: bool,
    /// `TCP_FASTOPEN_NO_COOKIE`.
    pub(in crate::socket) fast_open_no_cookie: bool,
    /// `TCP_FASTOPEN_KEY`; `None` is the host's key.
    pub(in crate::socket) fast_open_key: Option<FastOpenKey>,
    /// Options that only datagram sockets have.
    pub(in crate::socket) datagram: DatagramSettings,
}

/// Options that only datagram sockets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::socket) struct DatagramSettings {
    /// `SO_BROADCAST`.
    pub(in crate::socket) broadcast: bool,
    /// `SO_NO_CHECK`.
    pub(in crate::socket) no_check: bool,
    /// Options for IPv4 datagrams. `IP_RECVERR` is an option of TCP, too, and is in
    /// `SocketSettings::tcp` instead.
    pub(in crate::socket) v4: VersionSettings,
    /// Options for IPv6 datagrams.
    pub(in crate::socket) v6: VersionSettings,
    /// Source address of datagrams to IPv4 groups (`IP_MULTICAST_IF`); 0.0.0.0 is none.
    pub(in crate::socket) multicast_source: Ipv4Addr,
    /// `UDP_SEGMENT`; 0 is off.
    pub(in crate::socket) segment: u16,
    /// `UDP_GRO`.
    pub(in crate::socket) gro: bool,
}

/// Options of datagram sockets that IPv4 and IPv6 have under separate numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::socket) struct VersionSettings {
    /// `IP_RECVERR`, `IPV6_RECVERR`.
    pub(in crate::socket) receive_error: bool,
    /// `IP_MULTICAST_TTL`, `IPV6_MULTICAST_HOPS`.
    pub(in crate::socket) multicast_hops: u8,
    /// `IP_MULTICAST_LOOP`, `IPV6_MULTICAST_LOOP`.
    pub(in crate::socket) multicast_loop: bool,
    /// `IP_MULTICAST_ALL`, `IPV6_MULTICAST_ALL`.
    pub(in crate::socket) multicast_all: bool,
    /// Index of the device of `IP_MULTICAST_IF`, `IPV6_MULTICAST_IF`; 0 is none.
    pub(in crate::socket) multicast_device: u32,
}

impl Default for VersionSettings {
    fn default() -> Self {
        Self {
            receive_error: false,
            multicast_hops: 1,
            multicast_loop: true,
            multicast_all: true,
            multicast_device: 0,
        }
    }
}

impl Default for DatagramSettings {
    fn default() -> Self {
        Self {
            broadcast: false,
            no_check: false,
            v4: VersionSettings::default(),
            v6: VersionSettings::default(),
            multicast_source: Ipv4Addr::UNSPECIFIED,
            segment: 0,
            gro: false,
        }
    }
}

impl SocketSettings {
    /// Sets an option by Linux's rules.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option that is only read, `EINVAL` for a value that is not allowed and
    /// for an option of datagram sockets, `ENOENT` for an unknown congestion control, `EPERM` for a
    /// priority above 6, `EOPNOTSUPP` for `TCP_FASTOPEN_CONNECT` if `net.ipv4.tcp_fastopen` does
    /// not allow clients. The settings do not change then.
    pub fn set(
        &mut self,
        option: SocketOption,
        value: &OptionValue,
        sysctls: &Sysctls,
    ) -> Result<(), Errno> {
        self.set_in(SocketState::Fresh, option, value, sysctls)
    }

    /// Sets an option like [`set`](Self::set), for a socket in `state`.
    pub(in crate::socket) fn set_in(
        &mut self,
        state: SocketState,
        option: SocketOption,
        value: &OptionValue,
        sysctls: &Sysctls,
    ) -> Result<(), Errno> {
        if option.access() == Access::Read {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = value.in_form_of(option)?;
        option.keep(state, self, &value, sysctls)
    }

    /// Returns an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option that is only set, `ENOTCONN` for `IP_MTU` and `IPV6_MTU`.
    pub fn get(&self, option: SocketOption, sysctls: &Sysctls) -> Result<OptionValue, Errno> {
        self.value_in(SocketState::Fresh, option, sysctls)
    }

    /// Returns an option like [`get`](Self::get), for a socket in `state`.
    pub(in crate::socket) fn value_in(
        &self,
        state: SocketState,
        option: SocketOption,
        sysctls: &Sysctls,
    ) -> Result<OptionValue, Errno> {
        option.kept(state, self, sysctls)
    }

    /// Returns the longest wait of a call that receives or accepts (`SO_RCVTIMEO`); `None` is no
    /// limit.
    #[must_use]
    pub const fn receive_limit(&self) -> Option<Duration> {
        self.receive_timeout
    }

    /// Returns the longest wait of a call that sends or connects (`SO_SNDTIMEO`); `None` is no
    /// limit.
    #[must_use]
    pub const fn send_limit(&self) -> Option<Duration> {
        self.send_timeout
    }

    /// Returns the options that decide which other sockets may share the port of a socket whose
    /// address, local or remote, is of the family of `address`.
    pub(in crate::socket) fn bind_flags(
        &self,
        address: SocketAddr,
        sysctls: &Sysctls,
    ) -> BindFlags {
        BindFlags {
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            family: Family::of(address, self.v6_only.unwrap_or(sysctls.bindv6only)),
        }
    }
}
