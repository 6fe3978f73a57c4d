//! Calls that send and receive the urgent byte.
//!
//! Above: `stack::socket` (`MSG_OOB`, `SO_OOBINLINE`). RFC 9293 §3.8.5, RFC 6093; Linux:
//! tcp_recv_urg, tcp_mark_urg.
//!
//! Not here: the marks of both directions (`tcb::urgent`), a received urgent pointer
//! (`input::urgent`).

use crate::{
    base::{
        error::{RecvError, SendError},
        state::State,
    },
    cx::Cx,
    tcb::{Tcb, TcbFlags, urgent::UrgentByte},
};

impl Tcb {
    /// Sends `bytes`, the last of which is urgent (`MSG_OOB`), and returns the number of accepted
    /// bytes. If only a part was accepted, its last byte is marked, as in Linux. The caller runs
    /// `output` afterwards.
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

    /// Returns the urgent byte (`recv` with `MSG_OOB`); `None` is the end of the stream. With
    /// `peek` the byte stays.
    ///
    /// # Errors
    ///
    /// [`RecvError::NoUrgentData`] if there is none, it was already read, or it is read in line;
    /// [`RecvError::WouldBlock`] if it was announced and has not arrived.
    pub fn recv_oob(&mut self, peek: bool) -> Result<Option<u8>, RecvError> {
        if self.urgent.inline || !self.has_mark() || self.urgent.byte == UrgentByte::Read {
            return Err(RecvError::NoUrgentData);
        }
        if let UrgentByte::Valid(byte) = self.urgent.byte {
            if !peek {
                self.urgent.byte = UrgentByte::Read;
            }
            return Ok(Some(byte));
        }
        if self.state == State::Close || self.flags.contains(TcbFlags::SHUT_READ) {
            return Ok(None);
        }
        Err(RecvError::WouldBlock)
    }

    /// Sets `SO_OOBINLINE`: the urgent byte is read as part of the stream, and reads still stop
    /// before it.
    pub fn set_oob_inline(&mut self, on: bool) {
        self.urgent.inline = on;
    }

    /// Returns `SO_OOBINLINE`.
    #[must_use]
    pub fn oob_inline(&self) -> bool {
        self.urgent.inline
    }
}
