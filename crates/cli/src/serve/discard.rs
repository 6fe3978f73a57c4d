//! The discard service (RFC 863): reads until the end, and sends nothing.

use std::io::{self, Read as _};

use super::{buffer, meter::Metered};
use crate::endpoint::Stream;

/// Serves one connection.
pub(super) fn serve<S: Stream>(stream: &mut Metered<S>) -> io::Result<()> {
    buffer::with(|buffer| {
        while stream.read(buffer)? > 0 {}
        Ok(())
    })
}
