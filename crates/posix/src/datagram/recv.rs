//! `recvfrom`, `recvmsg`: takes one datagram, or one report of the error queue.
//!
//! Linux: `udp_recvmsg`, `udpv6_recvmsg`, `ping_recvmsg`, `ip_recv_error`, `ipv6_recv_error`.

use std::{io::IoSliceMut, net::SocketAddr, time::Duration};

use stack::{Cx, Errno, host::Host};

use super::{ControlMessage, Datagram};
use crate::{
    abi::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC},
    step::{Answer, GiveUp, Step},
};

/// Result of a call that receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Result of the call: bytes copied, or with `MSG_TRUNC` the bytes of the datagram.
    pub bytes: usize,
    /// `msg_flags` of recvmsg(2): `MSG_TRUNC` for a datagram that is longer than the buffers,
    /// `MSG_ERRQUEUE`.
    pub flags: i32,
    /// Sender, or the destination of the datagram that a report is about. `None` after `shutdown`.
    pub source: Option<SocketAddr>,
    /// Control messages.
    pub control: Vec<ControlMessage>,
}

/// A call of recv(2), recvfrom(2), recvmsg(2) or read(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvDatagram {
    flags: i32,
}

impl RecvDatagram {
    /// A call with these flags. Unknown flags are ignored, as in Linux.
    #[must_use]
    pub const fn new(flags: i32) -> Self {
        Self { flags }
    }

    const fn has(self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Receives into `bufs`.
    ///
    /// # Errors
    /// `EAGAIN`, the pending error, `EOPNOTSUPP` for urgent data.
    pub fn step(
        self,
        datagram: &Datagram,
        host: &Host,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Answer<ReceivedDatagram> {
        let (socket, wanted, shut) = {
            let inner = datagram.lock()?;
            (inner.socket.clone(), inner.wanted, inner.shut_read)
        };
        if self.has(MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let waits = !datagram.is_nonblocking() && !self.has(MSG_DONTWAIT);
        if self.has(MSG_ERRQUEUE) {
            let report = socket.and_then(|socket| socket.take_report(host, cx));
            let report = report.ok_or(Errno::EAGAIN)?;
            return Ok(Step::Ready(ReceivedDatagram {
                bytes: 0,
                flags: MSG_ERRQUEUE,
                source: Some(report.destination),
                control: vec![ControlMessage::Error(report)],
            }));
        }
        let mut bytes = vec![0; bufs.iter().map(|buf| buf.len()).sum()];
        let received = match &socket {
            Some(socket) => socket.recv(host, cx, &mut bytes, self.has(MSG_PEEK)),
            None => Err(Errno::EAGAIN),
        };
        let received = match received {
            Ok(received) => received,
            // As in Linux, `shutdown` wakes a thread that waits and does not end other calls.
            Err(Errno::EAGAIN) if waits && shut => {
                return Ok(Step::Ready(ReceivedDatagram::default()));
            }
            Err(Errno::EAGAIN) if waits => return Ok(Step::Blocks),
            Err(errno) => return Err(errno),
        };
        let mut rest = &bytes[..received.len];
        for buf in bufs {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
        let is_cut = received.len < received.datagram_len;
        Ok(Step::Ready(ReceivedDatagram {
            bytes: if self.has(MSG_TRUNC) { received.datagram_len } else { received.len },
            flags: if is_cut { MSG_TRUNC } else { 0 },
            source: Some(received.source),
            control: wanted.about(&received),
        }))
    }

    /// Longest sleep (`SO_RCVTIMEO`); `None` is no limit.
    #[must_use]
    pub fn limit(self, datagram: &Datagram) -> Option<Duration> {
        match datagram.socket() {
            Some(socket) => socket.receive_timeout(),
            None => datagram.lock().ok()?.settings.receive_limit(),
        }
    }

    /// Ends the call, which has received nothing.
    #[must_use]
    pub const fn give_up(self, why: GiveUp) -> Errno {
        why.errno(Errno::EAGAIN)
    }
}
