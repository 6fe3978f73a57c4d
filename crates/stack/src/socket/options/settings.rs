//! Options of a socket without a connection: fresh, bound or listening.
//!
//! Linux keeps them in the same `struct sock` that becomes the connection. Here the connection is
//! created from them, and a listener's options are copied into each accepted connection, as
//! `sk_clone` does.

use core::time::Duration;
use std::net::SocketAddr;

use tcp::State;

use super::{Access, MemoryInfo, OptionValue, SocketOption, check, tcp_info};
use crate::{
    base::{errno::Errno, ids::CoreId},
    socket::{BusyPoll, ConnectOptions, ListenOptions},
    sysctl::{FastOpenKey, Sysctls},
    transmit::ip_output::IpFields,
};

/// `SOCK_STREAM`.
pub(super) const SOCK_STREAM: i32 = 1;
/// `AF_INET`.
pub(super) const AF_INET: i32 = 2;
/// `AF_INET6`.
pub(super) const AF_INET6: i32 = 10;
/// `TCP_MSS_DEFAULT`: the value of `TCP_MAXSEG` before there is a connection.
const MSS_DEFAULT: u64 = 536;

/// Options that an application has set on a socket before it has a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketSettings {
    /// Options of the TCP engine.
    pub tcp: tcp::SocketOptions,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `SO_RCVTIMEO`; `None` is unlimited.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`; `None` is unlimited.
    pub send_timeout: Option<Duration>,
    /// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`.
    pub busy_poll: BusyPoll,
    /// `IP_TOS`, `IP_TTL`, `SO_PRIORITY`.
    pub ip: IpFields,
    /// `SO_INCOMING_CPU`: of listeners that share a port, this one prefers the connections of this
    /// core.
    pub incoming_core: Option<CoreId>,
    /// `QUIETLINE_MAX_PER_SOURCE`: maximum connections of one source address with a listener; 0 is
    /// no limit.
    pub max_per_source: u32,
    /// `TCP_FASTOPEN`: maximum connections of a listener that are open before their handshake has
    /// completed.
    pub fast_open: u32,
    /// `TCP_FASTOPEN_CONNECT`: the first write is sent with the SYN if a cookie is known.
    pub fast_open_connect: bool,
    /// `TCP_FASTOPEN_NO_COOKIE`: data in a SYN needs no cookie.
    pub fast_open_no_cookie: bool,
    /// `TCP_FASTOPEN_KEY`: key of a listener's cookies in place of the host's key.
    pub fast_open_key: Option<FastOpenKey>,
    /// Whether the socket is for IPv6.
    pub ipv6: bool,
    /// Whether the socket listens.
    pub listening: bool,
}

impl SocketSettings {
    /// Converts the options of a new listener.
    pub(in crate::socket) fn of_listener(options: &ListenOptions, local: SocketAddr) -> Self {
        Self {
            tcp: options.options.clone(),
            reuse_address: options.reuse_address,
            reuse_port: options.reuse_port,
            receive_timeout: options.receive_timeout,
            send_timeout: options.send_timeout,
            busy_poll: options.busy_poll,
            ip: options.ip,
            incoming_core: options.incoming_core,
            max_per_source: options.max_per_source,
            fast_open: options.fast_open,
            fast_open_connect: false,
            fast_open_no_cookie: options.fast_open_no_cookie,
            fast_open_key: options.fast_open_key,
            ipv6: local.is_ipv6(),
            listening: true,
        }
    }

    /// Converts to the options of `listen`.
    #[must_use]
    pub fn listen_options(&self, backlog: u32) -> ListenOptions {
        ListenOptions {
            backlog,
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            incoming_core: self.incoming_core,
            receive_timeout: self.receive_timeout,
            send_timeout: self.send_timeout,
            busy_poll: self.busy_poll,
            ip: self.ip,
            max_per_source: self.max_per_source,
            fast_open: self.fast_open,
            fast_open_no_cookie: self.fast_open_no_cookie,
            fast_open_key: self.fast_open_key,
            options: self.tcp.clone(),
        }
    }

    /// Converts to the options of `connect`, with the local address that the application has bound,
    /// if any.
    #[must_use]
    pub fn connect_options(&self, local: Option<SocketAddr>) -> ConnectOptions {
        ConnectOptions {
            local,
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            receive_timeout: self.receive_timeout,
            send_timeout: self.send_timeout,
            busy_poll: self.busy_poll,
            ip: self.ip,
            fast_open: self.fast_open_connect,
            fast_open_no_cookie: self.fast_open_no_cookie,
            options: self.tcp.clone(),
        }
    }

    /// Sets an option by Linux's rules.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a read-only option, `EINVAL` for an invalid value, `ENOENT` for an unknown
    /// congestion control. An error changes nothing.
    pub fn set(
        &mut self,
        option: SocketOption,
        value: &OptionValue,
        sysctls: &Sysctls,
    ) -> Result<(), Errno> {
        use SocketOption as O;
        if option.access() == Access::Read {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = &*value.in_form_of(option)?;
        let tcp = &mut self.tcp;
        match option {
            O::ReuseAddress => self.reuse_address = check::flag(value)?,
            O::ReusePort => self.reuse_port = check::flag(value)?,
            O::SendBuffer | O::SendBufferForce => {
                tcp.sndbuf = Some(check::sndbuf(option, value, sysctls)?);
            }
            O::ReceiveBuffer | O::ReceiveBufferForce => {
                tcp.rcvbuf = Some(check::rcvbuf(option, value, sysctls)?);
            }
            O::KeepAlive => tcp.keepalive = check::flag(value)?,
            O::OobInline => tcp.oob_inline = check::flag(value)?,
            O::ReceiveLowWater => tcp.rcvlowat = Some(check::rcvlowat(value)?),
            O::Linger => tcp.linger = check::linger(value)?,
            O::ReceiveTimeout => self.receive_timeout = check::time(value)?,
            O::SendTimeout => self.send_timeout = check::time(value)?,
            O::NoDelay => tcp.nodelay = check::flag(value)?,
            O::MaxSegment => tcp.maxseg = check::maxseg(value)?,
            O::Cork => tcp.cork = check::flag(value)?,
            O::KeepIdle | O::KeepInterval | O::KeepCount => {
                tcp.keepalive_times = check::keepalive_times(tcp.keepalive_times, option, value)?;
            }
            O::Linger2 => tcp.linger2 = check::linger2(value)?,
            O::DeferAccept => tcp.defer_accept = check::defer_accept(value)?,
            O::WindowClamp => match check::window_clamp(value)? {
                None if self.listening => return Err(Errno::EINVAL),
                clamp => tcp.window_clamp = clamp,
            },
            O::QuickAck => tcp.pingpong = !check::flag(value)?,
            O::Congestion => tcp.congestion = Some(check::congestion(value)?),
            O::UserTimeout => tcp.user_timeout = check::user_timeout(value)?,
            O::MaxPacingRate => tcp.max_pacing_rate = check::max_pacing_rate(value)?,
            O::FastOpen | O::FastOpenConnect | O::FastOpenKey | O::FastOpenNoCookie => {
                return self.set_fast_open(option, value, sysctls);
            }
            O::NotSentLowWater => tcp.notsent_lowat = check::notsent_lowat(value)?,
            O::SynCount => tcp.syn_retries = check::syn_retries(value)?,
            O::RtoMax => tcp.rto_max = Some(check::rto_max(value)?),
            O::ThinLinearTimeouts => tcp.thin_linear_timeouts = check::switch(value)?,
            O::MaxPerSource | O::IdleTimeout => self.set_limit(option, value)?,
            O::TypeOfService | O::Priority | O::TimeToLive => self.set_ip(option, value)?,
            O::BusyPoll | O::PreferBusyPoll | O::BusyPollBudget => {
                self.busy_poll = check::busy_poll(self.busy_poll, option, value)?;
            }
            O::MtuDiscover => self.ip.mtu_discover = check::mtu_discover(value)?,
            O::ReceiveError => tcp.receive_error = check::flag(value)?,
            O::IncomingCpu => self.incoming_core = check::core(value)?,
            O::Type
            | O::Error
            | O::SendLowWater
            | O::AcceptConnections
            | O::Protocol
            | O::Domain
            | O::PathMtu
            | O::Info
            | O::MemoryInfo => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    fn set_fast_open(
        &mut self,
        option: SocketOption,
        value: &OptionValue,
        sysctls: &Sysctls,
    ) -> Result<(), Errno> {
        match option {
            SocketOption::FastOpen => self.fast_open = check::queue_length(value)?,
            SocketOption::FastOpenKey => self.fast_open_key = Some(check::fast_open_key(value)?),
            SocketOption::FastOpenNoCookie => self.fast_open_no_cookie = check::switch(value)?,
            _ => {
                let on = check::fast_open_connect(value, sysctls)?;
                if self.listening {
                    return Err(Errno::EINVAL);
                }
                self.fast_open_connect = on;
            }
        }
        Ok(())
    }

    /// Sets a limit that Linux does not have ([`SOL_QUIETLINE`](super::SOL_QUIETLINE)).
    fn set_limit(&mut self, option: SocketOption, value: &OptionValue) -> Result<(), Errno> {
        if option == SocketOption::MaxPerSource {
            self.max_per_source = check::queue_length(value)?;
        } else {
            self.tcp.idle_timeout = check::idle_timeout(value)?;
        }
        Ok(())
    }

    fn limit(&self, option: SocketOption, sysctls: &Sysctls) -> OptionValue {
        if option == SocketOption::MaxPerSource {
            check::show(u64::from(self.max_per_source))
        } else {
            check::show_idle_timeout(self.tcp.idle_timeout, &sysctls.tcp)
        }
    }

    fn set_ip(&mut self, option: SocketOption, value: &OptionValue) -> Result<(), Errno> {
        match option {
            SocketOption::Priority => self.ip.priority = check::priority(value)?,
            SocketOption::TimeToLive => self.ip.ttl = check::ttl(value)?,
            _ => {
                self.ip.tos = check::tos(value)?;
                self.ip.priority = check::priority_of_tos(self.ip.tos);
            }
        }
        Ok(())
    }

    fn ip(&self, option: SocketOption, sysctls: &Sysctls) -> OptionValue {
        let IpFields { tos, ttl, priority, .. } = self.ip;
        OptionValue::Int(i32::from(match option {
            SocketOption::Priority => priority,
            SocketOption::TimeToLive => ttl.unwrap_or(sysctls.ip_default_ttl),
            _ => tos,
        }))
    }

    /// Reads an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a write-only option.
    pub fn get(&self, option: SocketOption, sysctls: &Sysctls) -> Result<OptionValue, Errno> {
        use SocketOption as O;
        let tcp = &self.tcp;
        Ok(match option {
            O::ReuseAddress => self.reuse_address.into(),
            O::ReusePort => self.reuse_port.into(),
            O::Type => OptionValue::Int(SOCK_STREAM),
            O::Error => OptionValue::Int(0),
            O::SendBuffer => {
                check::show(u64::from(tcp.sndbuf.unwrap_or(sysctls.tcp.tcp_wmem.default)))
            }
            O::ReceiveBuffer => {
                check::show(u64::from(tcp.rcvbuf.unwrap_or(sysctls.tcp.tcp_rmem.default)))
            }
            O::KeepAlive => tcp.keepalive.into(),
            O::Linger => OptionValue::Linger(tcp.linger),
            O::OobInline => tcp.oob_inline.into(),
            O::ReceiveLowWater => check::show(u64::from(tcp.rcvlowat.unwrap_or(1))),
            O::SendLowWater => OptionValue::Int(1),
            O::ReceiveTimeout => OptionValue::Time(self.receive_timeout),
            O::SendTimeout => OptionValue::Time(self.send_timeout),
            O::AcceptConnections => self.listening.into(),
            O::Protocol => OptionValue::Int(super::IPPROTO_TCP),
            O::Domain => OptionValue::Int(if self.ipv6 { AF_INET6 } else { AF_INET }),
            O::IncomingCpu => {
                OptionValue::Int(self.incoming_core.map_or(-1, |core| i32::from(core.0)))
            }
            O::MemoryInfo => MemoryInfo::of_none(tcp, sysctls).into(),
            O::Info => {
                let state = if self.listening { State::Listen } else { State::Close };
                OptionValue::Bytes(tcp_info::without_connection(state))
            }
            O::NoDelay => tcp.nodelay.into(),
            O::MaxSegment => check::show(tcp.maxseg.map_or(MSS_DEFAULT, u64::from)),
            O::Cork => tcp.cork.into(),
            O::KeepIdle | O::KeepInterval | O::KeepCount => {
                check::show_keepalive(tcp.keepalive_times, option, sysctls)
            }
            O::Linger2 => check::show_linger2(tcp.linger2, sysctls),
            O::DeferAccept => check::show(tcp.defer_accept.map_or(0, |time| time.as_secs())),
            O::WindowClamp => check::show(u64::from(tcp.window_clamp.unwrap_or(0))),
            O::QuickAck => (!tcp.pingpong).into(),
            O::Congestion => {
                tcp.congestion.unwrap_or(sysctls.tcp.tcp_congestion_control).name().into()
            }
            O::MaxPacingRate => check::show_max_pacing_rate(tcp.max_pacing_rate),
            O::UserTimeout => check::show_user_timeout(tcp.user_timeout),
            O::FastOpen => check::show(u64::from(self.fast_open)),
            O::FastOpenConnect => self.fast_open_connect.into(),
            O::FastOpenKey => check::show_fast_open_key(self.fast_open_key, sysctls),
            O::FastOpenNoCookie => self.fast_open_no_cookie.into(),
            O::NotSentLowWater => OptionValue::Int(tcp.notsent_lowat.unwrap_or(0).cast_signed()),
            O::SynCount => {
                check::show(u64::from(tcp.syn_retries.unwrap_or(sysctls.tcp.tcp_syn_retries)))
            }
            O::RtoMax => check::show_ms(tcp.rto_max.unwrap_or(sysctls.tcp.tcp_rto_max)),
            O::ThinLinearTimeouts => tcp.thin_linear_timeouts.into(),
            O::MaxPerSource | O::IdleTimeout => self.limit(option, sysctls),
            O::TypeOfService | O::Priority | O::TimeToLive => self.ip(option, sysctls),
            O::BusyPoll | O::PreferBusyPoll | O::BusyPollBudget => {
                return check::show_busy_poll(self.busy_poll, option, sysctls);
            }
            O::MtuDiscover => check::show_mtu_discover(self.ip.mtu_discover, sysctls),
            O::ReceiveError => tcp.receive_error.into(),
            O::PathMtu => return Err(Errno::ENOTCONN),
            O::SendBufferForce | O::ReceiveBufferForce => return Err(Errno::ENOPROTOOPT),
        })
    }
}
