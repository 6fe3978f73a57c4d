//! Where connections come in: what is accepted is admitted, counted and logged, or refused with a reason.
//!
//! Above: the threads that accept (`pool`), and the one that does for http. Not here: how a connection is served.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use super::{
    Server,
    clients::Clients,
    http::{HttpClient, HttpService},
    meter::Metered,
    peers::{Peers, Place},
    pool::Service,
};
use crate::{
    endpoint::{Listener, Watch},
    signal::Waker,
};

/// How long to stay away from `accept` after it failed for lack of memory or descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Where connections come in, and whom to tell when no more can.
pub(super) struct Door<L> {
    pub(super) listener: L,
    pub(super) peers: Peers,
    pub(super) server: Arc<Server>,
    /// Why no more can, once that is so.
    pub(super) broken: Arc<Mutex<Option<io::Error>>>,
    pub(super) waker: Waker,
}

/// A connection that was accepted and admitted.
pub(super) type Accepted<L> = (<L as Listener>::Stream, SocketAddr, Place);

impl<L: Listener> Service for Door<L> {
    type Connection = Accepted<L>;

    fn accept(&self) -> io::Result<Accepted<L>> {
        let Self { server, .. } = self;
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    server.totals.connection();
                    if let Some(place) = self.peers.admit(peer.ip()) {
                        return Ok((stream, peer, place));
                    }
                    server.refused(peer, "its address has as many as --max-per-peer allows");
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if concerns_one_connection(&error) => server.log.not_accepted(&error),
                Err(error) if is_shortage(&error) => {
                    self.is_short(&error);
                    thread::sleep(ACCEPT_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn serve(&self, (stream, peer, place): Accepted<L>) {
        self.server.serve(stream, self.server.visit(peer, place));
    }

    fn is_short(&self, error: &io::Error) {
        self.server.log.not_accepted(error);
    }

    fn fail(&self, error: io::Error) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.waker.wake();
    }
}

/// Accepts connections of http for ever, while as many as may be are not served yet.
pub(super) fn accept_clients<L: Listener, W: Watch<Stream = L::Stream>>(
    door: &Door<L>,
    service: &Arc<HttpService>,
    clients: &Clients<HttpClient<L::Stream>, W>,
) {
    let server = &door.server;
    let error = loop {
        let (stream, peer, place) = match door.accept() {
            Ok(accepted) => accepted,
            Err(error) => break error,
        };
        let stream = Metered::new(stream, &server.totals);
        if let Some((client, deadline)) = service.client(stream, server.visit(peer, place)) {
            clients.submit(client, deadline);
        }
    };
    door.fail(error);
}

/// The connection died between handshake and accept: accept(2) says to try again.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .into_iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
