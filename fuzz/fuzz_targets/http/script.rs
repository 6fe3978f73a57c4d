//! A socket whose peer sends the bytes of a fuzz input, in the pieces that the input determines.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    time::Duration,
};

use crate::endpoint::Stream;

/// A socket with the script of its peer.
#[derive(Debug)]
pub(crate) struct Script {
    bytes: Vec<u8>,
    at: usize,
    /// Lengths of the pieces, used cyclically. Empty: all bytes in one piece.
    cuts: Vec<u8>,
    piece: usize,
    /// Whether no byte has arrived since the last piece was read.
    waits: bool,
}

impl Script {
    /// Makes a socket whose peer sends `bytes` and closes its side.
    pub(crate) fn new(bytes: &[u8], cuts: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), at: 0, cuts: cuts.to_vec(), piece: 0, waits: false }
    }
}

impl Read for Script {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes[self.at..];
        let piece = match self.cuts.get(self.piece % self.cuts.len().max(1)) {
            Some(cut) => usize::from(*cut) + 1,
            None => rest.len(),
        };
        self.piece += 1;
        let count = piece.min(rest.len()).min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Script {
    type Prepared = ();

    fn prepare(&self, _: &[u8]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn send_prepared(&mut self, (): &(), _: usize) -> io::Result<usize> {
        Err(ErrorKind::Unsupported.into())
    }

    fn try_clone(&self) -> io::Result<Self> {
        Err(ErrorKind::Unsupported.into())
    }

    /// Returns `WouldBlock` once before each piece, unless all bytes arrive in one.
    fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.waits = !self.waits && !self.cuts.is_empty();
        if self.waits { Err(ErrorKind::WouldBlock.into()) } else { self.read(into) }
    }

    fn shutdown(&self, _: Shutdown) -> io::Result<()> {
        Ok(())
    }

    fn set_nodelay(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn set_read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn wait_on_close(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
