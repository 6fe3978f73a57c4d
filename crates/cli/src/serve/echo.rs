//! The echo service (RFC 862): sends every byte back until the peer closes its side.

use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
};

use super::{buffer, meter::Metered};
use crate::endpoint::Stream;

/// Serves one connection.
pub(super) fn serve<S: Stream>(stream: &mut Metered<S>) -> io::Result<()> {
    stream.inner().set_nodelay(true)?;
    buffer::with(|buffer| {
        loop {
            match stream.read(buffer)? {
                0 => return stream.inner().shutdown(Shutdown::Write),
                count => stream.write_all(&buffer[..count])?,
            }
        }
    })
}
