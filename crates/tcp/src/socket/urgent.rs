//! Calls that send and take the urgent byte.
//!
//! Above: `stack::socket` (`MSG_OOB`, `SO_OOBINLINE`). RFC 9293 §3.8.5, RFC 6093; Linux:
//! tcp_recv_urg, tcp_mark_urg.
//!
//! Not here: the marks of both directions (`tcb::urgent`), a pointer that arrives
//! (`input::urgent`).

use crate::{
    base::{
        error::{RecvError, SendError},
        state::State,
    },
    cx::Cx,
    tcb::{Tcb, TcbFlags, urgent::Byte},
};

impl Tcb {
    /// Sends `bytes`, the last of which is urgent (`MSG_OOB`), and answers how many were taken. When not all were, the
    /// last one taken is marked, as in Linux. The caller runs `output` after it.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send_oob(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Result<usize, SendError> {
        let sent = self.send(cx, &[bytes], false)?;
        if sent > 0 {
            self.urgent.snd_up = self.send_queue.write_seq();
            self.flags |= TcbFlags::URGENT_OUT;
        }
        Ok(sent)
    }

    /// The urgent byte (`recv` with `MSG_OOB`); `None` is the end of the stream. With `peek` it stays.
    ///
    /// # Errors
    ///
    /// [`RecvError::NoUrgentData`] when there is none, it was read, or it is read in line; [`RecvError::WouldBlock`] when
    /// it was announced and has not come; [`RecvError::NotConnected`].
    pub fn recv_oob(&mut self, peek: bool) -> Result<Option<u8>, RecvError> {
        if self.urgent.inline || !self.has_mark() || self.urgent.byte == Byte::Read {
            return Err(RecvError::NoUrgentData);
        }
        if let Byte::Valid(byte) = self.urgent.byte {
            if !peek {
                self.urgent.byte = Byte::Read;
            }
            return Ok(Some(byte));
        }
        if self.state == State::Close || self.flags.contains(TcbFlags::SHUT_READ) {
            return Ok(None);
        }
        Err(RecvError::WouldBlock)
    }

    /// `SO_OOBINLINE`: the urgent byte is read with the stream, which still stops before it.
    pub fn set_oob_inline(&mut self, on: bool) {
        self.urgent.inline = on;
    }

    /// `SO_OOBINLINE`.
    #[must_use]
    pub fn oob_inline(&self) -> bool {
        self.urgent.inline
    }
}
