//! Reading and setting the options of a connection. Their values are in its `Tcb` and its socket.
//!
//! Linux: `sk_setsockopt`, `do_tcp_setsockopt` on a socket that is not in TCP_CLOSE or TCP_LISTEN.

use super::{Access, OptionValue, SocketOption};
use crate::{base::errno::Errno, cx::Cx, socket::Connection, socket::net::Net};

impl Connection {
    /// Sets an option by Linux's rules.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a read-only option and for one of IPv6 on an IPv4 socket, `EINVAL` for a
    /// value that is not allowed and for an option that cannot be set on a connection
    /// ([`SocketOption::settable_in`]), `ENOENT` for an unknown congestion control, `EPERM` for a
    /// priority above 6. After an error, the connection is unchanged.
    pub fn set_option(
        &self,
        net: &Net,
        cx: &mut Cx,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        option.check_set(self.local().is_ipv6())?;
        if option.access() == Access::Read {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = value.in_form_of(option)?;
        option.store(self, net, cx, &value)
    }

    /// Returns an option. Reading `SO_ERROR` clears the error.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a write-only option, `EOPNOTSUPP` for one of IPv6 on an IPv4 socket.
    pub fn option(
        &self,
        net: &Net,
        cx: &mut Cx,
        option: SocketOption,
    ) -> Result<OptionValue, Errno> {
        option.check_get(self.local().is_ipv6())?;
        option.load(self, net, cx)
    }
}
