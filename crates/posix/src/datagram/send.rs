//! `send`, `sendto`, `sendmsg`: sends one message.
//!
//! Linux: `udp_sendmsg`, `udpv6_sendmsg`, `ping_v4_sendmsg`, `ping_v6_sendmsg`.

use std::{io::IoSlice, net::SocketAddr, time::Duration};

use stack::{
    Cx, Errno,
    host::Host,
    socket::datagram::{SendControl, SendMessage},
};

use super::Datagram;
use crate::{
    abi::{MSG_DONTWAIT, MSG_MORE, MSG_OOB},
    step::{Answer, GiveUp, Step},
};

/// A call of send(2), sendto(2), sendmsg(2) or write(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct SendDatagram {
    flags: i32,
    to: Option<SocketAddr>,
    control: SendControl,
}

impl SendDatagram {
    /// A call with these flags, to an address or to the peer. Unknown flags are ignored, as in
    /// Linux.
    #[must_use]
    pub const fn new(flags: i32, to: Option<SocketAddr>, control: SendControl) -> Self {
        Self { flags, to, control }
    }

    const fn has(self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Sends the bytes of `bufs` as one message, and returns their number.
    ///
    /// # Errors
    /// `EPIPE` after a shutdown, `EAGAIN`, `EOPNOTSUPP` for urgent data over IPv4 and for
    /// `MSG_MORE`, which Linux supports; those of [`DatagramSocket::send_batch`].
    ///
    /// [`DatagramSocket::send_batch`]: stack::socket::DatagramSocket::send_batch
    pub fn step(
        self,
        datagram: &Datagram,
        host: &Host,
        cx: &mut Cx,
        bufs: &[IoSlice<'_>],
    ) -> Answer<usize> {
        let socket = {
            let mut inner = datagram.lock()?;
            // Linux ignores the flag over IPv6.
            if self.has(MSG_MORE) || (self.has(MSG_OOB) && !datagram.is_v6) {
                return Err(Errno::EOPNOTSUPP);
            }
            if inner.shut_write {
                return Err(Errno::EPIPE);
            }
            datagram.bound(&mut inner, host, cx)?
        };
        let payload: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let message = SendMessage { payload: &payload, to: self.to, control: self.control };
        match socket.send(host, cx, &message) {
            Ok(()) => Ok(Step::Ready(payload.len())),
            Err(Errno::EAGAIN) if !datagram.is_nonblocking() && !self.has(MSG_DONTWAIT) => {
                Ok(Step::Blocks)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Longest sleep (`SO_SNDTIMEO`); `None` is no limit.
    #[must_use]
    pub fn limit(self, datagram: &Datagram) -> Option<Duration> {
        match datagram.socket() {
            Some(socket) => socket.send_timeout(),
            None => datagram.lock().ok()?.settings.send_limit(),
        }
    }

    /// Ends the call, which has sent nothing.
    #[must_use]
    pub const fn give_up(self, why: GiveUp) -> Errno {
        why.errno(Errno::EAGAIN)
    }
}
