//! Urgent data (RFC 9293 §3.8.5, RFC 6093).

use std::io;

use stack::{Readiness, socket::options::SocketOption};

use super::{Shared, TcpStream};
use crate::clock::with_cx;

impl TcpStream {
    /// Sends `buf`, the last byte of which is urgent (`MSG_OOB`), and answers how many bytes were taken. RFC 6093 advises
    /// new applications against it: only the newest mark is kept, and middleboxes may clear it.
    ///
    /// # Errors
    /// As send(2).
    pub fn send_oob(&self, buf: &[u8]) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::WRITE, || with_cx(|cx| socket.send_oob(stack.host(), cx, buf)))
    }

    /// Takes the urgent byte (`MSG_OOB`) and answers 1, or 0 at the end of the stream. Never waits: `Readiness::PRI` says
    /// when there is one.
    ///
    /// # Errors
    /// `InvalidInput` when there is no urgent byte, it was taken, or it is read in line; `WouldBlock` when it was announced
    /// and has not come.
    pub fn recv_oob(&self, buf: &mut [u8]) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        let byte = with_cx(|cx| socket.recv_oob(stack.host(), cx, buf.is_empty()))?;
        match (byte, buf.first_mut()) {
            (Some(byte), Some(first)) => {
                *first = byte;
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    /// Whether the next byte to read is the urgent one (`sockatmark`, `SIOCATMARK`): a read stops before it.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn sockatmark(&self) -> io::Result<bool> {
        let Shared { stack, socket, .. } = &*self.shared;
        Ok(with_cx(|cx| socket.at_mark(stack.host(), cx)))
    }

    /// Leaves urgent data in the stream (`SO_OOBINLINE`), as RFC 6093 advises those who must use it.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_oob_inline(&self, inline: bool) -> io::Result<()> {
        self.set_option(SocketOption::OobInline, inline)
    }

    /// Whether urgent data is left in the stream.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn oob_inline(&self) -> io::Result<bool> {
        Ok(self.option(SocketOption::OobInline)?.as_int() != Some(0))
    }
}
