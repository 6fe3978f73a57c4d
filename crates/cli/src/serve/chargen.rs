//! The chargen service (RFC 864): sends rotating lines of printable characters until the peer
//! closes.

use std::io::{self, ErrorKind, Write as _};

use super::meter::Metered;
use crate::endpoint::Stream;

/// Printable ASCII from the space to the tilde.
const CHARACTERS: u8 = b'~' - b' ' + 1;
/// Characters of a line, without its CR LF.
const LINE_CHARACTERS: u8 = 72;

/// Serves one connection. `zero_copy`: the pattern is written to packet memory once for the
/// connection, and every send refers to it.
pub(super) fn serve<S: Stream>(stream: &mut Metered<S>, zero_copy: bool) -> io::Result<()> {
    match send(stream, zero_copy) {
        // RFC 864 ends only when the peer closes the connection.
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}

/// Sends until a write fails.
fn send<S: Stream>(stream: &mut Metered<S>, zero_copy: bool) -> io::Result<()> {
    let pattern = pattern();
    if zero_copy {
        let prepared = stream.inner().prepare(&pattern)?;
        loop {
            stream.send_prepared(&prepared, pattern.len())?;
        }
    }
    loop {
        stream.write_all(&pattern)?;
    }
}

/// Periods of the pattern in one write: 189,810 bytes, the payload of about three superframes, or
/// of one larger superframe (BIG TCP).
const PERIODS: usize = 27;

/// Returns the 95 lines of the pattern's period, repeated so that each write is worth its system
/// call.
fn pattern() -> Vec<u8> {
    (0..CHARACTERS).cycle().take(usize::from(CHARACTERS) * PERIODS).flat_map(line).collect()
}

fn line(first: u8) -> impl Iterator<Item = u8> {
    (first..first + LINE_CHARACTERS).map(|index| b' ' + index % CHARACTERS).chain(*b"\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_rotate_by_one_character() {
        let pattern = pattern();
        let lines: Vec<&[u8]> = pattern.chunks(74).collect();
        assert!(lines[0].starts_with(b" !\"#") && lines[0].ends_with(b"fg\r\n"));
        assert!(lines[1].starts_with(b"!\"#$") && lines[1].ends_with(b"gh\r\n"));
        assert!(lines[94].starts_with(b"~ !\""));
        assert_eq!(lines[95], lines[0]);
        assert_eq!(pattern.len(), 74 * 95 * PERIODS);
    }
}
