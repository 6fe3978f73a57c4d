//! The discard service (RFC 863): reads to the end, answers nothing.

use std::io::{self, Read as _};

use super::{BUFFER_BYTES, meter::Metered};
use crate::endpoint::Stream;

/// Serves one connection.
pub(super) fn serve<S: Stream>(stream: &mut Metered<'_, S>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}
