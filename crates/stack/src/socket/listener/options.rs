//! What a listener is made with, and what its connections inherit.

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

/// Connections that may wait for `accept` unless the caller says otherwise: what `std::net` asks for.
pub const BACKLOG_DEFAULT: u32 = 128;

/// How a listener is to be made: what the socket calls set before `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may wait for `accept`, at most `net.core.somaxconn`. Default 128, as `std::net`.
    pub backlog: u32,
    /// `SO_REUSEADDR`: connections that are left of an earlier listener do not keep the port. Default on, as
    /// `std::net`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: listeners that all set it share the port, and connections are spread over them by their flow.
    /// Default off.
    pub reuse_port: bool,
    /// `SO_INCOMING_CPU`: in a group that shares a port, connections of this core come here first. Default none.
    pub incoming_core: Option<CoreId>,
    /// `SO_RCVTIMEO`; `None` waits for ever.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`; `None` waits for ever.
    pub send_timeout: Option<Duration>,
    /// `SO_BUSY_POLL` and its companions.
    pub busy_poll: BusyPoll,
    /// `IP_TOS` and `IP_TTL`.
    pub ip: IpFields,
    /// Connections that one source address may have with this listener, half-open ones and those that wait for `accept` included:
    /// a SYN beyond them is dropped. 0 is no limit, the default. Each listener of a port that is shared counts its own.
    pub max_per_source: u32,
    /// `TCP_FASTOPEN`: connections whose data is read before their handshake has ended (RFC 7413). Only for applications
    /// that may carry a request out twice: the network may repeat a SYN. Default 0: none. `net.ipv4.tcp_fastopen` has to
    /// allow it, too.
    pub fast_open: u32,
    /// `TCP_FASTOPEN_NO_COOKIE`: data is read from a SYN without a cookie, too. Anybody may then make the application work by
    /// packets of a forged address. Default off.
    pub fast_open_no_cookie: bool,
    /// `TCP_FASTOPEN_KEY`: makes this listener's cookies in place of the host's key. Default none.
    pub fast_open_key: Option<FastOpenKey>,
    /// What every connection starts with.
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
    /// Sets an option; connections whose handshake ends from here on begin with it.
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
            // Under the lock of `settings`: of two calls the later one decides both.
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

    /// The options at this moment.
    pub(crate) fn settings<'s>(&'s self, rcu: &'s Section<'_>) -> &'s SocketSettings {
        self.settings.load(rcu)
    }

    /// How long `accept` waits (`SO_RCVTIMEO`); `None` for ever.
    #[must_use]
    pub fn receive_timeout(&self, cx: &Cx) -> Option<Duration> {
        self.settings(&cx.reader().pin()).receive_timeout
    }

    /// How a thread polls that waits in `accept`.
    #[must_use]
    pub fn busy_poll(&self, cx: &Cx) -> BusyPoll {
        self.settings(&cx.reader().pin()).busy_poll
    }

    /// What a connection inherits besides the engine's options.
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
