//! `getsockopt` and `setsockopt`, by level and number or by the stack's own names.
//!
//! Linux: net/socket.c, net/core/sock.c. The meaning of an option, its bounds and its layout in
//! memory is `stack::socket::options`.
//!
//! Here: `TCP_INQ`, which belongs to `recvmsg`, and `TCP_CC_INFO`.

use stack::{
    Cx, Errno,
    host::Host,
    socket::options::{IPPROTO_IP, IPPROTO_TCP, OptionValue, SOL_SOCKET, SocketOption},
};

use crate::{
    abi::{AF_INET, AF_INET6, TCP_CC_INFO, TCP_INQ},
    socket::{Open as _, Socket, State},
};

impl Socket {
    /// Sets an option from its bytes, as setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option, `EINVAL` for a value that is too short or not allowed;
    /// those of the option.
    pub fn setsockopt(
        &self,
        host: &Host,
        cx: &mut Cx,
        (level, number): (i32, i32),
        value: &[u8],
    ) -> Result<(), Errno> {
        if (level, number) == (IPPROTO_TCP, TCP_INQ) {
            let mut inner = self.lock().open()?;
            inner.inq = match value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)) {
                Some(on @ 0..=1) => on != 0,
                _ => return Err(Errno::EINVAL),
            };
            return Ok(());
        }
        let option = SocketOption::from_number(level, number).ok_or(Errno::ENOPROTOOPT)?;
        option.check_set(self.lock().is_v6)?;
        self.set_option(host, cx, option, &OptionValue::decode(option, value)?)
    }

    /// Writes the value of an option into `room`, as getsockopt(2). Returns the bytes written: a
    /// value is cut to the room.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option, and `EOPNOTSUPP` for any of a level that an IPv4 socket
    /// does not have; those of the option.
    pub fn getsockopt(
        &self,
        host: &Host,
        cx: &mut Cx,
        (level, number): (i32, i32),
        room: &mut [u8],
    ) -> Result<usize, Errno> {
        match (level, number) {
            (IPPROTO_TCP, TCP_INQ) => {
                let value = i32::from(self.lock().open()?.inq).to_ne_bytes();
                let len = room.len().min(value.len());
                room[..len].copy_from_slice(&value[..len]);
                return Ok(len);
            }
            // An algorithm without figures of its own answers no byte.
            (IPPROTO_TCP, TCP_CC_INFO) => return Ok(0),
            _ => {}
        }
        let unknown = unknown_to_get(self.lock().is_v6, level, IPPROTO_TCP);
        let option = SocketOption::from_number(level, number).ok_or(unknown)?;
        option.check_get(self.lock().is_v6)?;
        Ok(self.option(host, cx, option)?.encode(option, room))
    }

    /// Sets an option.
    ///
    /// # Errors
    /// Those of [`SocketSettings::set`](stack::socket::options::SocketSettings::set).
    pub fn set_option(
        &self,
        host: &Host,
        cx: &mut Cx,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        let mut inner = self.lock().open()?;
        match &inner.state {
            State::Listening(listener) => listener.set_option(host, option, value)?,
            State::Stream(stream, _) => stream.set_option(host, cx, option, value)?,
            _ => return inner.settings.set(option, value, &host.sysctls()),
        }
        // The option outlives the connection. One that only a connection has is not kept.
        let _ = inner.settings.set(option, value, &host.sysctls());
        Ok(())
    }

    /// Returns an option. `SO_ERROR` takes the pending error.
    ///
    /// # Errors
    /// Those of [`SocketSettings::get`](stack::socket::options::SocketSettings::get).
    pub fn option(
        &self,
        host: &Host,
        cx: &mut Cx,
        option: SocketOption,
    ) -> Result<OptionValue, Errno> {
        let mut inner = self.lock().open()?;
        if option == SocketOption::Domain {
            // The family is that of socket(2), whatever the addresses are.
            return Ok(OptionValue::Int(if inner.is_v6 { AF_INET6 } else { AF_INET }));
        }
        match &inner.state {
            State::Listening(listener) => listener.option(host, cx, option),
            State::Stream(stream, _) => stream.option(host, cx, option),
            _ if option == SocketOption::Error => {
                Ok(OptionValue::Int(inner.error.take().map_or(0, Errno::raw)))
            }
            _ => inner.settings.get(option, &host.sysctls()),
        }
    }
}

/// Returns the error of getsockopt(2) for an unknown option. In Linux, IPv4 sockets have another
/// error for levels other than those of sockets, IP and their own protocol (`ip_getsockopt`).
pub(crate) const fn unknown_to_get(is_v6: bool, level: i32, protocol: i32) -> Errno {
    let is_own = matches!(level, SOL_SOCKET | IPPROTO_IP) || level == protocol;
    if is_v6 || is_own { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP }
}
