//! A small static HTTP/1.1 server (RFC 9110, RFC 9112): GET, HEAD, and PUT if uploads are allowed.
//!
//! A connection runs one loop: read a request head, answer it, and repeat while both sides keep the
//! connection. While a head is incomplete, the connection waits without a thread (`clients`). A
//! request that fails before its body was read ends the connection, because the next request cannot
//! be told from the body.
//!
//! Files are opened beneath a directory handle by openat2(2), so that no path and no symbolic link
//! leads out of the directory.
//!
//! Not here: TLS, compression, caching.

mod body;
mod connection;
mod date;
mod error;
mod files;
mod head;
mod pace;
mod response;
mod upload;

use std::{
    io,
    net::Shutdown,
    os::fd::AsFd as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::fs::{Access, AtFlags, accessat};

use self::{
    body::BodyReader,
    connection::Connection,
    error::{Refusal, RequestError},
    files::Root,
    head::{Method, Next, Request},
    response::Response,
};
use super::{clients::Client, meter::Metered, session::Session};
use crate::{endpoint::Stream, sandbox::Files};

/// Idle limit of a connection between two requests.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Time limit for the first request, and for each head from its first byte until it is complete.
const HEAD_MAX: Duration = Duration::from_secs(20);

/// Time limit of one read or write within an exchange.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Limits for reading from a client after its request was refused: a wait for each read, a total
/// time and a number of bytes. Closing a socket with unread input would send a RST, which can
/// overtake the response (RFC 9112 §9.6).
const LINGER_WAIT: Duration = Duration::from_millis(500);
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;

/// The service: a directory and its upload policy.
#[derive(Debug)]
pub(super) struct HttpService {
    root: Root,
    upload: bool,
    /// Largest size of one upload, in bytes.
    upload_max: u64,
}

impl HttpService {
    /// Opens the directory to serve.
    pub(super) fn open(dir: &Path, upload: bool, upload_max: u64) -> io::Result<Self> {
        Ok(Self { root: Root::open(dir)?, upload, upload_max })
    }

    /// The files that requests can access.
    pub(super) fn files(&self) -> Files<'_> {
        Files { directory: Some(self.root.as_fd()), upload: self.upload }
    }

    /// Fails if the permissions of the directory deny access to this process.
    pub(super) fn check_access(&self) -> io::Result<()> {
        let write = if self.upload { Access::WRITE_OK } else { Access::empty() };
        let access = Access::READ_OK | Access::EXEC_OK | write;
        Ok(accessat(&self.root, ".", access, AtFlags::empty())?)
    }

    /// Returns a client for a connection, and the deadline of its first request. `None` if a socket
    /// option cannot be set: the connection has ended.
    pub(super) fn client<S: Stream>(
        self: &Arc<Self>,
        stream: Metered<S>,
        session: Session,
    ) -> Option<(HttpClient<S>, Instant)> {
        let set = set_options(stream.inner());
        let (service, connection) = (Arc::clone(self), Connection::new(stream));
        let client = HttpClient { service, connection, head_deadline: None, outcome: set, session };
        let deadline = Instant::now() + HEAD_MAX;
        client.outcome.is_ok().then_some((client, deadline))
    }

    /// Answers the requests that have been received completely.
    fn serve_requests<S: Stream>(
        &self,
        connection: &mut Connection<S>,
    ) -> Result<After, RequestError> {
        loop {
            let request = match Request::read(connection)? {
                Next::Request(request) => request,
                Next::Wait => return Ok(After::Wait),
                Next::End => return Ok(After::End),
            };
            connection.begin_exchange();
            if !self.serve_request(connection, &request)? {
                return Ok(After::End);
            }
        }
    }

    /// Answers one request; `true` if the connection is kept.
    fn serve_request<S: Stream>(
        &self,
        connection: &mut Connection<S>,
        request: &Request,
    ) -> Result<bool, RequestError> {
        let head = request.method == Method::Head;
        let answered = match request.method {
            Method::Get | Method::Head => self.fetch(connection, request),
            Method::Put if self.upload => self.store(connection, request),
            Method::Put | Method::Other => Err(self.not_allowed().into()),
        };
        match answered {
            Ok(()) => Ok(request.keep_alive),
            Err(RequestError::Refused(refusal)) if head => Err(refusal.without_body().into()),
            // The request has no unread body, so the connection can be kept.
            Err(RequestError::Refused(refusal)) if request.keep_alive && !request.has_body() => {
                Response::refusal(&refusal).keep_alive(true).send(connection, true)?;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn fetch<S: Stream>(
        &self,
        connection: &mut Connection<S>,
        request: &Request,
    ) -> Result<(), RequestError> {
        if request.has_body() {
            return Err(Refusal::new(400, "a GET or HEAD request has no body here").into());
        }
        files::send(&self.root, connection, request)
    }

    fn store<S: Stream>(
        &self,
        connection: &mut Connection<S>,
        request: &Request,
    ) -> Result<(), RequestError> {
        let upload = upload::Upload::begin(&self.root, request, self.upload_max)?;
        if request.expects_continue {
            connection.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let created = upload.receive(&mut BodyReader::new(connection, request.body))?;
        let response = if created { Response::text(201, "stored\n") } else { Response::empty(204) };
        Ok(response.keep_alive(request.keep_alive).send(connection, true)?)
    }

    fn not_allowed(&self) -> Refusal {
        let allow = if self.upload { "GET, HEAD, PUT" } else { "GET, HEAD" };
        Refusal::new(405, "this method is not allowed here").header("Allow", allow)
    }
}

fn set_options<S: Stream>(stream: &S) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL_MAX))?;
    stream.set_write_timeout(Some(STALL_MAX))
}

/// Next step of a connection after its received requests were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Wait,
    End,
}

/// One connection of the service.
#[derive(Debug)]
pub(super) struct HttpClient<S> {
    service: Arc<HttpService>,
    connection: Connection<S>,
    /// Deadline of the incomplete head, set at its first byte.
    head_deadline: Option<Instant>,
    /// Result of the connection, for the log.
    outcome: io::Result<()>,
    session: Session,
}

impl<S: Stream> Client for HttpClient<S> {
    type Stream = S;

    fn stream(&self) -> &S {
        self.connection.stream()
    }

    fn serve(&mut self) -> Option<Instant> {
        let now = Instant::now();
        // Further bytes of an incomplete head do not extend its deadline.
        if self.head_deadline.is_some_and(|at| at <= now) {
            self.expire();
            return None;
        }
        match self.service.serve_requests(&mut self.connection) {
            Ok(After::Wait) if self.connection.buffered().is_empty() => {
                self.head_deadline = None;
                Some(Instant::now() + IDLE_MAX)
            }
            Ok(After::Wait) => {
                Some(*self.head_deadline.get_or_insert_with(|| Instant::now() + HEAD_MAX))
            }
            Ok(After::End) | Err(RequestError::Gone) => None,
            Err(RequestError::Io(error)) => {
                self.outcome = Err(error);
                None
            }
            Err(RequestError::Refused(refusal)) => {
                self.outcome = refuse(&mut self.connection, &refusal);
                None
            }
        }
    }

    fn expire(&mut self) {
        if !self.connection.buffered().is_empty() {
            let refusal = Refusal::new(408, "the request head did not arrive in time");
            self.outcome = refuse(&mut self.connection, &refusal);
        }
    }
}

impl<S> Drop for HttpClient<S> {
    fn drop(&mut self) {
        self.session.end(&self.outcome, self.connection.moved());
    }
}

/// Sends the last response of a connection. An error means that the client does not receive it.
fn refuse<S: Stream>(connection: &mut Connection<S>, refusal: &Refusal) -> io::Result<()> {
    connection.begin_exchange();
    Response::refusal(refusal).send(connection, refusal.shows_body)?;
    // The response was sent, so errors of the client's close are ignored.
    let _ = linger(connection);
    Ok(())
}

/// Closes the local side and reads some of the remaining input, so that the client can read the
/// response.
fn linger<S: Stream>(connection: &mut Connection<S>) -> io::Result<()> {
    connection.stream().shutdown(Shutdown::Write)?;
    connection.stream().set_read_timeout(Some(LINGER_WAIT))?;
    let end = Instant::now() + LINGER_MAX;
    let mut waste = vec![0; 64 * 1024];
    let mut left = LINGER_BYTES;
    while left > 0 && Instant::now() < end {
        match connection.read(&mut waste)? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
