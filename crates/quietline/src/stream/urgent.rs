//! Urgent data (RFC 9293 §3.8.5, RFC 6093).

use std::io;

use stack::{Readiness, socket::options::SocketOption};

use super::{Shared, TcpStream};
use crate::clock::with_cx;

impl TcpStream {
    /// Sends `buf`, whose last byte is urgent (`MSG_OOB`), and returns the number of bytes taken.
    /// RFC 6093 advises new applications against urgent data: only the newest urgent pointer is
    /// kept, and middleboxes may clear it.
    ///
    /// # Errors
    /// As send(2).
    pub fn send_oob(&self, buf: &[u8]) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::WRITE, || with_cx(|cx| socket.send_oob(stack.host(), cx, buf)))
    }

    /// Takes the urgent byte (`MSG_OOB`) and returns 1, or 0 at the end of the stream. Never waits:
    /// `Readiness::PRI` announces an urgent byte.
    ///
    /// # Errors
    /// `InvalidInput` if there is no urgent byte, if it was taken already, or if urgent data is
    /// read in line; `WouldBlock` if the byte was announced and has not arrived yet.
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

    /// Returns whether the next byte to read is the urgent one (`sockatmark`, `SIOCATMARK`). A read
    /// stops before that byte.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn sockatmark(&self) -> io::Result<bool> {
        let Shared { stack, socket, .. } = &*self.shared;
        Ok(with_cx(|cx| socket.at_mark(stack.host(), cx)))
    }

    /// Leaves urgent data in the stream (`SO_OOBINLINE`), as RFC 6093 advises applications that
    /// must use it.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_oob_inline(&self, inline: bool) -> io::Result<()> {
        self.set_option(SocketOption::OobInline, inline)
    }

    /// Returns whether urgent data is left in the stream.
    ///
    /// # Errors
    /// None for a stream.
    pub fn oob_inline(&self) -> io::Result<bool> {
        Ok(self.option(SocketOption::OobInline)?.as_int() != Some(0))
    }
}
