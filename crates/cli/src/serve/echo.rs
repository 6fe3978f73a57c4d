//! The echo service (RFC 862): every byte goes back until the peer ends its side.

use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
};

use super::{BUFFER_BYTES, meter::Metered};
use crate::endpoint::Stream;

/// Serves one connection.
pub(super) fn serve<S: Stream>(stream: &mut Metered<'_, S>) -> io::Result<()> {
    stream.inner().set_nodelay(true)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.inner().shutdown(Shutdown::Write),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}
