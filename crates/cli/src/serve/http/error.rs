//! How a request can go wrong.

use std::io;

/// Why a request was not served.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The client gets an answer that says no.
    Refused(Refusal),
    /// The client went away between two requests: the ordinary end.
    Gone,
    /// The connection broke, or the file under the answer did: nothing more can be said on it.
    Io(io::Error),
}

/// An answer that says no.
#[derive(Debug)]
pub(super) struct Refusal {
    /// HTTP status, 3xx to 5xx.
    pub(super) status: u16,
    /// One sentence for the person who reads it.
    pub(super) reason: String,
    /// One more header line.
    pub(super) header: Option<(&'static str, String)>,
    /// Whether the sentence is sent: not to HEAD.
    pub(super) shows_body: bool,
}

impl Refusal {
    /// A refusal with a status and a sentence.
    pub(super) fn new(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), header: None, shows_body: true }
    }

    /// Adds a header line.
    pub(super) fn header(self, name: &'static str, value: impl Into<String>) -> Self {
        Self { header: Some((name, value.into())), ..self }
    }

    /// The same as an answer to HEAD.
    pub(super) fn without_body(self) -> Self {
        Self { shows_body: false, ..self }
    }

    /// What a file system error means to a client. The error's text stays here: it may hold paths.
    pub(super) fn from_file_error(error: &io::Error) -> Self {
        use rustix::io::Errno;
        let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
        if is(Errno::NOENT) || is(Errno::NOTDIR) {
            Self::new(404, "there is no such file")
        } else if is(Errno::XDEV) || is(Errno::LOOP) || is(Errno::ACCESS) || is(Errno::PERM) {
            Self::new(403, "this path is not served")
        } else if is(Errno::NAMETOOLONG) {
            Self::new(414, "the path is too long")
        } else if is(Errno::ISDIR) || is(Errno::EXIST) {
            Self::new(409, "there is a directory of this name")
        } else if is(Errno::NOSPC) || is(Errno::DQUOT) {
            Self::new(507, "there is no space left")
        } else {
            Self::new(500, "the file system failed")
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
