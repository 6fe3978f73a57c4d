//! `getsockopt` and `setsockopt`: bytes to the stack's own table of options, and back.
//!
//! Linux: net/socket.c. What an option means, what it allows and how it looks in memory is `stack::socket::options`.
//!
//! Not here: `TCP_INQ`, which is about control messages and so about this library.

use std::os::fd::RawFd;

use libc::IPPROTO_TCP;
use stack::{
    Errno,
    socket::options::{OptionValue, SocketOption},
};

use crate::{
    runtime::Runtime,
    socket::{Kind, Socket},
};

/// `TCP_INQ`, which the libc crate does not name.
const TCP_INQ: i32 = 36;
/// `TCP_CC_INFO` likewise: an algorithm without figures of its own answers no bytes.
const TCP_CC_INFO: i32 = 26;
/// Bytes of packetdrill's `struct _tcp_info`.
const TCP_INFO_BYTES: usize = 280;
/// Room for any value there is.
const VALUE_BYTES_MAX: usize = 512;

impl Runtime {
    pub(crate) fn setsockopt(
        &self,
        fd: RawFd,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket_mut(fd)?;
            if (level, name) == (IPPROTO_TCP, TCP_INQ) {
                let bytes = value.first_chunk().ok_or(Errno::EINVAL)?;
                socket.inq = i32::from_ne_bytes(*bytes) != 0;
                return Ok(());
            }
            let option = SocketOption::from_number(level, name).ok_or(Errno::ENOPROTOOPT)?;
            let value = OptionValue::decode(option, value)?;
            note_timeouts(socket, option, &value);
            match &socket.kind {
                Kind::Fresh => socket.settings.set(option, &value, &host.sysctls()),
                Kind::Listening(listener) => listener.set_option(host, option, &value),
                Kind::Stream(stream) => stream.set_option(host, cx, option, &value),
            }
        })
    }

    pub(crate) fn getsockopt(&self, fd: RawFd, level: i32, name: i32) -> Result<Vec<u8>, Errno> {
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket(fd)?;
            if (level, name) == (IPPROTO_TCP, TCP_CC_INFO) {
                return Ok(Vec::new());
            }
            let option = SocketOption::from_number(level, name).ok_or(Errno::ENOPROTOOPT)?;
            let value = match &socket.kind {
                Kind::Fresh => socket.settings.get(option, &host.sysctls())?,
                Kind::Listening(listener) => listener.option(host, cx, option)?,
                Kind::Stream(stream) => stream.option(host, cx, option)?,
            };
            let mut bytes = vec![0; VALUE_BYTES_MAX];
            let len = value.encode(option, &mut bytes);
            // packetdrill refuses a `tcp_info` shorter than its own, which is longer than any kernel's: zeros follow.
            bytes.truncate(if option == SocketOption::Info { TCP_INFO_BYTES } else { len });
            Ok(bytes)
        })
    }
}

/// How long calls may wait is asked without the stack.
fn note_timeouts(socket: &mut Socket, option: SocketOption, value: &OptionValue) {
    let OptionValue::Time(limit) = value else { return };
    match option {
        SocketOption::ReceiveTimeout => socket.receive_timeout = *limit,
        SocketOption::SendTimeout => socket.send_timeout = *limit,
        _ => {}
    }
}
