//! Accepts connections: each one is admitted, counted and logged, or refused with a reason.
//!
//! Above: the accepting threads (`pool`, or one thread for http). Not here: how a connection is
//! served.

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
    peers::{Peers, Permit},
    pool::Service,
};
use crate::{
    endpoint::{Listener, Watch},
    signal::Waker,
};

/// Pause after `accept` failed for lack of memory or descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A listener with its admission limits, and the waker for its permanent failure.
pub(super) struct Acceptor<L> {
    pub(super) listener: L,
    pub(super) peers: Peers,
    pub(super) server: Arc<Server>,
    /// Error that ended accepting. `None` while connections are accepted.
    pub(super) broken: Arc<Mutex<Option<io::Error>>>,
    pub(super) waker: Waker,
}

/// A connection that was accepted and admitted.
pub(super) type Accepted<L> = (<L as Listener>::Stream, SocketAddr, Permit);

impl<L: Listener> Service for Acceptor<L> {
    type Connection = Accepted<L>;

    fn accept(&self) -> io::Result<Accepted<L>> {
        let Self { server, .. } = self;
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    server.totals.connection();
                    if let Some(permit) = self.peers.admit(peer.ip()) {
                        return Ok((stream, peer, permit));
                    }
                    server.refused(peer, "its address has reached the limit of --max-per-peer");
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if concerns_one_connection(&error) => server.log.not_accepted(&error),
                Err(error) if is_shortage(&error) => {
                    self.report_shortage(&error);
                    thread::sleep(ACCEPT_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn serve(&self, (stream, peer, permit): Accepted<L>) {
        self.server.serve(stream, self.server.session(peer, permit));
    }

    fn report_shortage(&self, error: &io::Error) {
        self.server.log.not_accepted(error);
    }

    fn fail(&self, error: io::Error) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.waker.wake();
    }
}

/// Accepts connections of http until accepting fails for good. Blocks while `--max-connections` are
/// served.
pub(super) fn accept_clients<L: Listener, W: Watch<Stream = L::Stream>>(
    acceptor: &Acceptor<L>,
    service: &Arc<HttpService>,
    clients: &Clients<HttpClient<L::Stream>, W>,
) {
    let server = &acceptor.server;
    let error = loop {
        let (stream, peer, permit) = match acceptor.accept() {
            Ok(accepted) => accepted,
            Err(error) => break error,
        };
        let stream = Metered::new(stream, &server.totals);
        if let Some((client, deadline)) = service.client(stream, server.session(peer, permit)) {
            clients.submit(client, deadline);
        }
    };
    acceptor.fail(error);
}

/// Whether the connection ended between its handshake and accept: accept(2) recommends to retry.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .into_iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
