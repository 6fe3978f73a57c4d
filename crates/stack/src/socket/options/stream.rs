//! Options of a connection: the same names and rules, stored in its `Tcb` and its socket.
//!
//! Linux: `sk_setsockopt`, `do_tcp_setsockopt` on a socket that is not in TCP_CLOSE or TCP_LISTEN.

use super::{
    Access, OptionValue, SocketOption, check,
    settings::{AF_INET, AF_INET6, SOCK_STREAM},
    tcp_info,
};
use crate::{
    base::errno::Errno, cx::Cx, host::Host, socket::TcpSocket, transmit::ip_output::IpFields,
};

impl TcpSocket {
    /// Sets an option by Linux's rules.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a read-only option, `EINVAL` for a value that is invalid or comes too
    /// late, `ENOENT` for an unknown congestion control. An error changes nothing.
    pub fn set_option(
        &self,
        host: &Host,
        cx: &mut Cx,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        use SocketOption as O;
        if option.access() == Access::Read {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = &*value.in_form_of(option)?;
        match option {
            O::ReceiveTimeout => self.settings().set_receive_timeout(check::time(value)?),
            O::SendTimeout => self.settings().set_send_timeout(check::time(value)?),
            O::BusyPoll | O::PreferBusyPoll | O::BusyPollBudget => {
                let busy = check::busy_poll(self.busy_poll(), option, value)?;
                self.settings().set_busy_poll(busy);
            }
            // As in Linux, only listeners use it for selection.
            O::IncomingCpu => drop(check::int(value)?),
            O::ReuseAddress => self.settings().set_reuse_address(check::flag(value)?),
            O::ReusePort => self.settings().set_reuse_port(check::flag(value)?),
            O::TypeOfService => {
                let tos = check::tos(value)?;
                let priority = check::priority_of_tos(tos);
                let fields = IpFields { tos, priority, ..self.settings().ip_fields() };
                self.settings().set_ip_fields(fields);
            }
            O::Priority => {
                let priority = check::priority(value)?;
                self.settings().set_ip_fields(IpFields { priority, ..self.settings().ip_fields() });
            }
            O::TimeToLive => {
                let ttl = check::ttl(value)?;
                self.settings().set_ip_fields(IpFields { ttl, ..self.settings().ip_fields() });
            }
            O::MtuDiscover => {
                let mtu_discover = check::mtu_discover(value)?;
                let fields = IpFields { mtu_discover, ..self.settings().ip_fields() };
                self.settings().set_ip_fields(fields);
            }
            _ => return self.set_engine_option(host, cx, option, value),
        }
        Ok(())
    }

    fn set_engine_option(
        &self,
        host: &Host,
        cx: &mut Cx,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        use SocketOption as O;
        let limits = match option {
            O::SendBuffer | O::SendBufferForce => {
                check::sndbuf(option, value, cx.sysctls_of(host))?
            }
            O::ReceiveBuffer | O::ReceiveBufferForce => {
                check::rcvbuf(option, value, cx.sysctls_of(host))?
            }
            _ => 0,
        };
        self.with_tcb(host, cx, |tcb, cx| {
            match option {
                O::SendBuffer | O::SendBufferForce => tcb.set_sndbuf(limits),
                O::ReceiveBuffer | O::ReceiveBufferForce => tcb.set_rcvbuf(limits),
                O::KeepAlive => {
                    let times = check::flag(value)?.then(|| tcb.keepalive_times());
                    tcb.set_keepalive(cx, times);
                }
                O::OobInline => tcb.set_oob_inline(check::flag(value)?),
                O::ReceiveLowWater => tcb.set_rcvlowat(cx, check::rcvlowat(value)?),
                O::Linger => tcb.set_linger(check::linger(value)?),
                O::NoDelay => tcb.set_nodelay(check::flag(value)?),
                O::MaxSegment => {
                    if let Some(bytes) = check::maxseg(value)? {
                        tcb.set_maxseg(bytes);
                    }
                }
                O::Cork => tcb.set_cork(check::flag(value)?),
                O::KeepIdle | O::KeepInterval | O::KeepCount => {
                    let times = check::keepalive_times(tcb.keepalive_times(), option, value)?;
                    tcb.set_keepalive_times(cx, times);
                }
                O::Linger2 => tcb.set_linger2(check::linger2(value)?),
                // These options apply to a listener or to connect, and have no effect afterwards.
                O::DeferAccept
                | O::FastOpen
                | O::FastOpenConnect
                | O::FastOpenKey
                | O::FastOpenNoCookie
                | O::MaxPerSource => return Err(Errno::EINVAL),
                O::WindowClamp => {
                    tcb.set_window_clamp(check::window_clamp(value)?.ok_or(Errno::EINVAL)?);
                }
                O::QuickAck => tcb.set_quickack(check::flag(value)?),
                O::Congestion => tcb.set_congestion(check::congestion(value)?),
                O::MaxPacingRate => tcb.set_max_pacing_rate(check::max_pacing_rate(value)?),
                O::UserTimeout => tcb.set_user_timeout(check::user_timeout(value)?),
                O::IdleTimeout => tcb.set_idle_timeout(cx, check::idle_timeout(value)?),
                O::NotSentLowWater => match check::notsent_lowat(value)? {
                    Some(bytes) => tcb.set_notsent_lowat(bytes),
                    None => tcb.reset_notsent_lowat(cx.config.tcp_notsent_lowat),
                },
                O::ReceiveError => tcb.set_receive_error(check::flag(value)?),
                O::SynCount => tcb.set_syn_retries(check::syn_retries(value)?),
                O::RtoMax => tcb.set_rto_max(check::rto_max(value)?),
                O::ThinLinearTimeouts => {
                    tcb.set_thin_linear_timeouts(check::switch(value)?);
                }
                _ => return Err(Errno::ENOPROTOOPT),
            }
            Ok(())
        })
    }

    /// Reads an option. Reading `SO_ERROR` clears the error.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a write-only option.
    pub fn option(
        &self,
        host: &Host,
        cx: &mut Cx,
        option: SocketOption,
    ) -> Result<OptionValue, Errno> {
        use SocketOption as O;
        Ok(match option {
            O::ReuseAddress => self.settings().reuse_address().into(),
            O::ReusePort => self.settings().reuse_port().into(),
            O::Type => OptionValue::Int(SOCK_STREAM),
            O::Error => OptionValue::Int(self.take_error(host, cx).map_or(0, Errno::raw)),
            O::ReceiveLowWater => check::show(u64::from(self.rcvlowat())),
            O::SendLowWater => OptionValue::Int(1),
            O::ReceiveTimeout => OptionValue::Time(self.settings().receive_timeout()),
            O::SendTimeout => OptionValue::Time(self.settings().send_timeout()),
            O::AcceptConnections => false.into(),
            O::Protocol => OptionValue::Int(super::IPPROTO_TCP),
            O::Domain => OptionValue::Int(if self.local().is_ipv4() { AF_INET } else { AF_INET6 }),
            O::IncomingCpu => OptionValue::Int(i32::from(self.incoming_core().0)),
            O::BusyPoll | O::PreferBusyPoll | O::BusyPollBudget => {
                return check::show_busy_poll(self.busy_poll(), option, cx.sysctls_of(host));
            }
            O::MemoryInfo => self.memory_info(host, cx).into(),
            O::TypeOfService => OptionValue::Int(i32::from(self.settings().ip_fields().tos)),
            O::Priority => OptionValue::Int(i32::from(self.settings().ip_fields().priority)),
            O::TimeToLive => {
                let default = cx.sysctls_of(host).ip_default_ttl;
                OptionValue::Int(i32::from(self.settings().ip_fields().ttl.unwrap_or(default)))
            }
            O::FastOpenKey => check::show_fast_open_key(None, cx.sysctls_of(host)),
            O::MtuDiscover => {
                let discover = self.settings().ip_fields().mtu_discover;
                check::show_mtu_discover(discover, cx.sysctls_of(host))
            }
            O::SendBufferForce | O::ReceiveBufferForce => return Err(Errno::ENOPROTOOPT),
            _ => return self.engine_option(host, cx, option),
        })
    }

    fn engine_option(
        &self,
        host: &Host,
        cx: &mut Cx,
        option: SocketOption,
    ) -> Result<OptionValue, Errno> {
        use SocketOption as O;
        match option {
            O::KeepIdle | O::KeepInterval | O::KeepCount => {
                let times = self.with_tcb(host, cx, |tcb, _| tcb.keepalive_times());
                return Ok(check::show_keepalive(times, option, cx.sysctls_of(host)));
            }
            O::Linger2 => {
                let linger2 = self.with_tcb(host, cx, |tcb, _| tcb.linger2());
                return Ok(check::show_linger2(linger2, cx.sysctls_of(host)));
            }
            _ => {}
        }
        self.with_tcb(host, cx, |tcb, cx| {
            Ok(match option {
                O::SendBuffer => check::show(u64::from(tcb.sndbuf())),
                O::ReceiveBuffer => check::show(u64::from(tcb.rcvbuf())),
                O::KeepAlive => tcb.keepalive().into(),
                O::Linger => OptionValue::Linger(tcb.linger()),
                O::OobInline => tcb.oob_inline().into(),
                O::Info => {
                    let info = tcb.info_at(cx.now);
                    OptionValue::Bytes(tcp_info::encode(&info))
                }
                O::NoDelay => tcb.nodelay().into(),
                O::MaxSegment => check::show(u64::from(tcb.mss())),
                O::Cork => tcb.cork().into(),
                O::DeferAccept
                | O::FastOpen
                | O::FastOpenConnect
                | O::FastOpenNoCookie
                | O::MaxPerSource => OptionValue::Int(0),
                O::WindowClamp => check::show(u64::from(tcb.window_clamp())),
                O::QuickAck => tcb.quickack().into(),
                O::Congestion => tcb.congestion().name().into(),
                O::MaxPacingRate => check::show_max_pacing_rate(tcb.max_pacing_rate()),
                O::UserTimeout => check::show_user_timeout(tcb.user_timeout()),
                O::IdleTimeout => check::show_idle_timeout(tcb.idle_timeout(), cx.config),
                O::NotSentLowWater => {
                    OptionValue::Int(tcb.notsent_lowat().unwrap_or(0).cast_signed())
                }
                O::SynCount => {
                    check::show(u64::from(tcb.syn_retries().unwrap_or(cx.config.tcp_syn_retries)))
                }
                O::RtoMax => check::show_ms(tcb.rto_max()),
                O::ThinLinearTimeouts => tcb.thin_linear_timeouts().into(),
                O::ReceiveError => tcb.receive_error().into(),
                O::PathMtu => check::show(u64::from(tcb.path_mtu())),
                _ => return Err(Errno::ENOPROTOOPT),
            })
        })
    }
}
