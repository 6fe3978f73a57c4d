//! Options of a listener, and the options that its connections inherit.

use std::time::Duration;

use sync::epoch::Section;

use super::{
    super::{
        BusyPoll,
        options::{OptionValue, SocketOption, SocketSettings, SocketState, domain_of},
    },
    Listener,
};
use crate::{base::errno::Errno, cx::Cx, socket::connection::Connection, socket::net::Net};

/// Default number of connections that may wait for `accept`, as in `std::net`.
pub const BACKLOG_DEFAULT: u32 = 128;

/// Options of a listener: its backlog and its settings.
///
/// `ListenOptions` has every setter of [`SocketSettings`]. Every accepted connection starts with
/// the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until a socket listens with them"]
pub struct ListenOptions {
    /// Number of connections that may wait for `accept`, at most `net.core.somaxconn`. Default 128,
    /// as in `std::net`.
    pub backlog: u32,
    /// Options of the listener and initial options of its connections. By default `SO_REUSEADDR` is
    /// on, as in `std::net`, and all other options are as in [`SocketSettings::default`].
    pub settings: SocketSettings,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let settings = SocketSettings::default().reuse_address(true);
        Self { backlog: BACKLOG_DEFAULT, settings }
    }
}

impl ListenOptions {
    /// Sets the number of connections that may wait for `accept`, at most `net.core.somaxconn`.
    pub const fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }
}

impl Listener {
    /// Sets an option. Connections that the listener creates later start with the option.
    ///
    /// # Errors
    /// As [`SocketSettings::set`]; `ENOPROTOOPT` for an option of IPv6 on an IPv4 address.
    pub fn set_option(
        &self,
        net: &Net,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        option.check_set(self.local().is_ipv6())?;
        let sysctls = net.sysctls();
        let mut result = Ok(());
        self.settings.update(|settings| {
            let mut next = settings.clone();
            result = next.set_in(SocketState::Listening, option, value, &sysctls);
            // Set under the lock of `settings`, so that both values are those of the same call if
            // two threads set options at the same time.
            self.source_limit.set_max(next.max_per_source);
            next
        });
        result
    }

    /// Reads an option.
    ///
    /// # Errors
    /// As [`SocketSettings::get`]; `EOPNOTSUPP` for an option of IPv6 on an IPv4 address.
    pub fn option(&self, net: &Net, cx: &Cx, option: SocketOption) -> Result<OptionValue, Errno> {
        option.check_get(self.local().is_ipv6())?;
        if option == SocketOption::Domain {
            return Ok(domain_of(self.local()));
        }
        self.settings(&cx.reader().pin()).value_in(SocketState::Listening, option, &net.sysctls())
    }

    /// Returns the current options.
    pub(crate) fn settings<'s>(&'s self, rcu: &'s Section<'_>) -> &'s SocketSettings {
        self.settings.load(rcu)
    }

    /// Returns the longest wait of `accept` (`SO_RCVTIMEO`); `None` is no limit.
    #[must_use]
    pub fn receive_timeout(&self, cx: &Cx) -> Option<Duration> {
        self.settings(&cx.reader().pin()).receive_timeout
    }

    /// Returns the busy polling options of threads that wait in `accept`.
    #[must_use]
    pub fn busy_poll(&self, cx: &Cx) -> BusyPoll {
        self.settings(&cx.reader().pin()).busy_poll
    }

    /// Sets the options that `socket` inherits, except those of the engine (crate `tcp`), which its
    /// `Tcb` already has.
    pub(in crate::socket) fn settle_options(&self, cx: &Cx, socket: &Connection) {
        let reader = cx.reader();
        let rcu = reader.pin();
        socket.settings().inherit(self.settings(&rcu));
    }
}
