//! Errors of HTTP requests.

use std::io;

/// Reason why a request was not served.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The request is refused: the client receives an error response.
    Refused(Refusal),
    /// The client closed the connection between two requests: the ordinary end.
    Gone,
    /// The connection failed, or the served file did: no response can be sent.
    Io(io::Error),
}

/// An error response.
#[derive(Debug)]
pub(super) struct Refusal {
    /// HTTP status, 3xx to 5xx.
    pub(super) status: u16,
    /// One sentence for the reader of the response.
    pub(super) reason: String,
    /// An additional header line.
    pub(super) header: Option<(&'static str, String)>,
    /// Whether the sentence is sent. A response to HEAD has no body.
    pub(super) shows_body: bool,
}

impl Refusal {
    /// Creates a refusal with a status and a sentence.
    pub(super) fn new(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), header: None, shows_body: true }
    }

    /// Adds a header line.
    pub(super) fn header(self, name: &'static str, value: impl Into<String>) -> Self {
        Self { header: Some((name, value.into())), ..self }
    }

    /// Returns the same refusal as a response to HEAD.
    pub(super) fn without_body(self) -> Self {
        Self { shows_body: false, ..self }
    }

    /// Maps a file system error to a response. The error's text is not sent, because it may contain
    /// paths.
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
            Self::new(409, "a directory of this name exists")
        } else if is(Errno::NOSPC) || is(Errno::DQUOT) {
            Self::new(507, "there is no space left")
        } else {
            Self::new(500, "the file system failed")
        }
    }
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
