//! A small static HTTP/1.1 server (RFC 9110, RFC 9112): GET, HEAD, and PUT when uploads are allowed.
//!
//! One connection is one loop: read a head, answer it, and again while both sides keep the connection. A
//! request that fails before its body was read ends the connection, because what follows on it cannot be
//! told from the body.
//!
//! Files are opened beneath a directory handle by openat2(2), so no path and no symbolic link leads out of it.
//!
//! Not here: TLS, compression, caching.

mod body;
mod connection;
mod date;
mod error;
mod files;
mod head;
mod response;
mod upload;

use std::{io, net::Shutdown, path::Path, time::Duration};

use self::{
    body::BodyReader,
    connection::Connection,
    error::{Refusal, Trouble},
    files::Root,
    head::{Method, Request},
    response::Response,
};
use super::meter::Metered;
use crate::endpoint::Stream;

/// A client that sends nothing for this long loses its connection, in the middle of a request or between two.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long and how much is still read from a client whose request was refused: closing with unread input
/// would send a RST that can overtake the answer (RFC 9112 §9.6).
const LINGER_WAIT: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 4 << 20;

/// The service: a directory and what may be done with it.
#[derive(Debug)]
pub(super) struct HttpService {
    root: Root,
    upload: bool,
}

impl HttpService {
    /// Opens the directory to serve.
    pub(super) fn open(dir: &Path, upload: bool) -> io::Result<Self> {
        Ok(Self { root: Root::open(dir)?, upload })
    }

    /// Serves one connection to its end.
    pub(super) fn serve<S: Stream>(&self, stream: &mut Metered<'_, S>) -> io::Result<()> {
        stream.inner().set_nodelay(true)?;
        stream.inner().set_read_timeout(Some(IDLE_MAX))?;
        stream.inner().set_write_timeout(Some(IDLE_MAX))?;
        let mut connection = Connection::new(stream);
        loop {
            match self.serve_request(&mut connection) {
                Ok(true) => {}
                Ok(false) | Err(Trouble::Gone) => break,
                Err(Trouble::Refused(refusal)) => {
                    Response::refusal(&refusal).send(&mut connection, refusal.shows_body)?;
                    linger(&mut connection)?;
                    break;
                }
                Err(Trouble::Io(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers one request; `true` if the connection is kept.
    fn serve_request<S: Stream>(
        &self,
        connection: &mut Connection<'_, '_, S>,
    ) -> Result<bool, Trouble> {
        let Some(request) = Request::read(connection)? else {
            return Ok(false);
        };
        let head = request.method == Method::Head;
        let answered = match request.method {
            Method::Get | Method::Head => self.fetch(connection, &request),
            Method::Put if self.upload => self.store(connection, &request),
            Method::Put | Method::Other => Err(self.not_allowed().into()),
        };
        match answered {
            Ok(()) => Ok(request.keep_alive),
            Err(Trouble::Refused(refusal)) if head => Err(refusal.without_body().into()),
            // Nothing of the request is left unread, so the connection can go on.
            Err(Trouble::Refused(refusal)) if request.keep_alive && !request.has_body() => {
                Response::refusal(&refusal).keep_alive(true).send(connection, true)?;
                Ok(true)
            }
            Err(trouble) => Err(trouble),
        }
    }

    fn fetch<S: Stream>(
        &self,
        connection: &mut Connection<'_, '_, S>,
        request: &Request,
    ) -> Result<(), Trouble> {
        if request.has_body() {
            return Err(Refusal::new(400, "a GET or HEAD request has no body here").into());
        }
        files::send(&self.root, connection, request)
    }

    fn store<S: Stream>(
        &self,
        connection: &mut Connection<'_, '_, S>,
        request: &Request,
    ) -> Result<(), Trouble> {
        let upload = upload::Upload::begin(&self.root, request)?;
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

/// Ends our side and reads a little of what the client still sends, so that it gets to read the answer.
fn linger<S: Stream>(connection: &mut Connection<'_, '_, S>) -> io::Result<()> {
    connection.stream().shutdown(Shutdown::Write)?;
    connection.stream().set_read_timeout(Some(LINGER_WAIT))?;
    let mut waste = vec![0; 64 * 1024];
    let mut left = LINGER_BYTES;
    while left > 0 {
        match connection.read(&mut waste)? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
