//! `recv` without waiting: copies received data from the receive queue to the application's
//! buffers.
//!
//! Above: crate `quietline` (`stream::recv`). Below: `tcp::Tcb::recv`. Linux: `tcp_recvmsg_locked`.
//!
//! A call that only reads sets `only_read`. Such a call changes little, so its end takes the short
//! form of `settle` unless an ACK is due now (`StreamState::settle_call`).
//!
//! Not here: a `recv` that waits (`modes::reader`).

use std::io::IoSliceMut;

use tcp::RecvError;

use super::{Connection, call::Holder};
use crate::{base::errno::Errno, cx::Cx, socket::net::Net};

impl Connection {
    /// Copies received bytes into `buf`; 0 is the end of the stream. `EAGAIN` if nothing has
    /// arrived. `cx.now` may be the time of an earlier call ([`Cx::rest`]).
    pub fn recv(&self, net: &Net, cx: &mut Cx, buf: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let mut call = self.begin_untimed_call(net, cx);
        let received = if buf.is_empty() {
            Ok(0)
        } else {
            let received = recv_step(&mut call.state, cx, buf, peek);
            call.state.only_read = matches!(received, Ok(_) | Err(Errno::EAGAIN));
            received
        };
        call.end(cx);
        received
    }

    /// As [`recv`](Self::recv), into `bufs` one after the other.
    pub fn recv_vectored(
        &self,
        net: &Net,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        let mut call = self.begin_untimed_call(net, cx);
        let received = match bufs.iter().position(|buf| !buf.is_empty()) {
            Some(first) => {
                let received = recv_step(&mut call.state, cx, &mut bufs[first], false);
                call.state.only_read = matches!(received, Ok(_) | Err(Errno::EAGAIN));
                received.map(|copied| {
                    copied + recv_more(&mut call.state, cx, copied, &mut bufs[first + 1..])
                })
            }
            None => Ok(0),
        };
        call.end(cx);
        received
    }

    /// Takes the urgent byte (`MSG_OOB`); `None` is the end of the stream. `EINVAL` if there is no
    /// urgent byte, `EAGAIN` if it was announced and has not arrived. The call waits in neither
    /// case, as in Linux.
    pub fn recv_oob(&self, net: &Net, cx: &mut Cx, peek: bool) -> Result<Option<u8>, Errno> {
        let mut call = self.begin_call(net, cx);
        let received = call.state.tcb.recv_oob(peek).map_err(errno);
        call.end(cx);
        received
    }

    /// Returns whether the next byte to read is the urgent one (`SIOCATMARK`).
    pub fn at_mark(&self, net: &Net, cx: &mut Cx) -> bool {
        self.with_tcb(net, cx, |tcb, _| tcb.at_mark())
    }
}

/// Reads into one buffer.
pub(in crate::socket) fn recv_step(
    state: &mut Holder<'_>,
    cx: &mut Cx,
    buf: &mut [u8],
    peek: bool,
) -> Result<usize, Errno> {
    state.tcb.recv(&mut cx.tcp(), buf, peek).map_err(errno)
}

/// Continues a read, which has copied `copied` bytes, into the following buffers. An error behind
/// the data is left to the next call, because the call that reports an error also clears it. A read
/// stops before urgent data.
pub(in crate::socket) fn recv_more(
    state: &mut Holder<'_>,
    cx: &mut Cx,
    copied: usize,
    bufs: &mut [IoSliceMut<'_>],
) -> usize {
    let mut more = 0;
    for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
        if copied == 0 || state.tcb.readable_bytes() == 0 || state.tcb.at_mark() {
            break;
        }
        more += recv_step(state, cx, buf, false).unwrap_or(0);
    }
    more
}

fn errno(error: RecvError) -> Errno {
    match error {
        RecvError::WouldBlock => Errno::EAGAIN,
        RecvError::NotConnected => Errno::ENOTCONN,
        RecvError::NoUrgentData => Errno::EINVAL,
        RecvError::Connection(error) => error.into(),
    }
}
