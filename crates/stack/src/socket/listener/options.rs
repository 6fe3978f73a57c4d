//! Options of a new listener, and the options that its connections inherit.

use std::time::Duration;

use sync::epoch::Section;
use tcp::SocketOptions;

use super::{
    super::{
        BusyPoll,
        options::{OptionValue, SocketOption, SocketSettings},
    },
    Listener,
};
use crate::{
    base::{errno::Errno, ids::CoreId},
    cx::Cx,
    host::Host,
    socket::connection::TcpSocket,
    sysctl::FastOpenKey,
    transmit::ip_output::IpFields,
};

/// Default number of connections that may wait for `accept`, as in `std::net`.
pub const BACKLOG_DEFAULT: u32 = 128;

/// Options of a new listener, as set by socket calls before `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Maximum number of connections that wait for `accept`, at most `net.core.somaxconn`. Default
    /// 128, as `std::net`.
    pub backlog: u32,
    /// `SO_REUSEADDR`: remaining connections of an earlier listener do not block the port. Default
    /// on, as `std::net`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: listeners that all set it share the port, and connections are distributed
    /// among them by flow. Default off.
    pub reuse_port: bool,
    /// `SO_INCOMING_CPU`: in a group that shares a port, connections of this core go to this
    /// listener first. Default none.
    pub incoming_core: Option<CoreId>,
    /// `SO_RCVTIMEO`; `None` is unlimited.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`; `None` is unlimited.
    pub send_timeout: Option<Duration>,
    /// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`.
    pub busy_poll: BusyPoll,
    /// `IP_TOS` and `IP_TTL`.
    pub ip: IpFields,
    /// Maximum connections of one source address with this listener, including half-open ones and
    /// those that wait for `accept`; further SYNs are dropped. 0 is no limit, the default. Each
    /// listener of a shared port has its own counts.
    pub max_per_source: u32,
    /// `TCP_FASTOPEN`: maximum connections whose data is read before their handshake has completed
    /// (RFC 7413). Only for applications that may execute a request twice, because the network may
    /// duplicate a SYN. Default 0: none. `net.ipv4.tcp_fastopen` must allow it too.
    pub fast_open: u32,
    /// `TCP_FASTOPEN_NO_COOKIE`: data is also read from a SYN without a cookie. Packets with forged
    /// addresses can then make the application work. Default off.
    pub fast_open_no_cookie: bool,
    /// `TCP_FASTOPEN_KEY`: key of this listener's cookies in place of the host's key. Default none.
    pub fast_open_key: Option<FastOpenKey>,
    /// Options that every connection starts with.
    pub options: SocketOptions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            backlog: BACKLOG_DEFAULT,
            reuse_address: true,
            reuse_port: false,
            incoming_core: None,
            receive_timeout: None,
            send_timeout: None,
            busy_poll: BusyPoll::default(),
            ip: IpFields::default(),
            max_per_source: 0,
            fast_open: 0,
            fast_open_no_cookie: false,
            fast_open_key: None,
            options: SocketOptions::default(),
        }
    }
}

impl Listener {
    /// Sets an option; connections whose handshake completes from now on start with it.
    ///
    /// # Errors
    /// As [`SocketSettings::set`].
    pub fn set_option(
        &self,
        host: &Host,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        let sysctls = host.sysctls();
        let mut result = Ok(());
        self.settings.update(|settings| {
            let mut next = settings.clone();
            result = next.set(option, value, &sysctls);
            // Under the lock of `settings`: the later of two calls determines both values.
            self.source_limit.set_max(next.max_per_source);
            next
        });
        result
    }

    /// Reads an option.
    ///
    /// # Errors
    /// As [`SocketSettings::get`].
    pub fn option(&self, host: &Host, cx: &Cx, option: SocketOption) -> Result<OptionValue, Errno> {
        self.settings(&cx.reader().pin()).get(option, &host.sysctls())
    }

    /// Returns the current options.
    pub(crate) fn settings<'s>(&'s self, rcu: &'s Section<'_>) -> &'s SocketSettings {
        self.settings.load(rcu)
    }

    /// Returns the maximum time that `accept` waits (`SO_RCVTIMEO`); `None` is unlimited.
    #[must_use]
    pub fn receive_timeout(&self, cx: &Cx) -> Option<Duration> {
        self.settings(&cx.reader().pin()).receive_timeout
    }

    /// Returns the busy polling options of a thread that waits in `accept`.
    #[must_use]
    pub fn busy_poll(&self, cx: &Cx) -> BusyPoll {
        self.settings(&cx.reader().pin()).busy_poll
    }

    /// Applies the inherited options other than the engine's to a new connection.
    pub(in crate::socket) fn settle_options(&self, cx: &Cx, socket: &TcpSocket) {
        let reader = cx.reader();
        let rcu = reader.pin();
        let settings = self.settings(&rcu);
        socket.settings().set_receive_timeout(settings.receive_timeout);
        socket.settings().set_send_timeout(settings.send_timeout);
        socket.settings().set_busy_poll(settings.busy_poll);
        socket.settings().set_ip_fields(settings.ip);
    }
}
