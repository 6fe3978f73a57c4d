//! Options of a datagram socket, with the same table and rules as those of a connection.
//!
//! Linux: `sk_setsockopt`, `do_ip_setsockopt`, `udp_lib_setsockopt`. The options are kept as
//! `SocketSettings`, like those of a listener, and those that softirq context and sends read are
//! copied to atomics.

use super::{DatagramSocket, call::Call};
use crate::{
    base::errno::Errno,
    cx::Cx,
    socket::{
        net::Net,
        options::{
            IPPROTO_IPV6, IPPROTO_TCP, MemoryInfo, OptionValue, SOL_QUIETLINE, SocketOption,
            SocketState,
        },
    },
};

impl DatagramSocket {
    /// Sets an option by Linux's rules.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option of IPv6, TCP or [`SOL_QUIETLINE`] and for one that is only read,
    /// `EINVAL` for a value that is not allowed, `EPERM` for a priority above 6.
    pub fn set_option(
        &self,
        net: &Net,
        cx: &mut Cx,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        check_level(option)?;
        let sysctls = net.sysctls();
        let mut kept = self.kept();
        let mut next = kept.clone();
        next.set_in(SocketState::Datagram, option, value, &sysctls)?;
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
    /// `ENOPROTOOPT` for an option of IPv6, TCP or [`SOL_QUIETLINE`] and for one that is only set,
    /// `ENOTCONN` for `IP_MTU` of an unconnected socket.
    pub fn option(
        &self,
        net: &Net,
        cx: &mut Cx,
        option: SocketOption,
    ) -> Result<OptionValue, Errno> {
        check_level(option)?;
        match option {
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
            SocketOption::PathMtu => {
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
        let remote = self.state.remote.ok_or(Errno::ENOTCONN)?;
        let broadcast = self.socket.flags.broadcast();
        let hop = self.net.datagram_hop(cx, remote.ip(), self.state.source, broadcast, None)?;
        Ok(u64::from(hop.mtu))
    }
}

/// Fails with `ENOPROTOOPT` for an option of a level that datagram sockets do not have.
fn check_level(option: SocketOption) -> Result<(), Errno> {
    match option.level() {
        IPPROTO_IPV6 | IPPROTO_TCP | SOL_QUIETLINE => Err(Errno::ENOPROTOOPT),
        _ => Ok(()),
    }
}
