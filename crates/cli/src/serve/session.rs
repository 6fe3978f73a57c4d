//! Log and counters of one connection, while it is served.
//!
//! The owner reports the result: the thread that serves the connection (`Server::serve`), or its
//! client (`http`).

use std::{io, net::SocketAddr, sync::Arc, time::Instant};

use super::{log::Log, meter::Totals, peers::Permit};

/// A connection that is being served.
#[derive(Debug)]
pub(super) struct Session {
    totals: Arc<Totals>,
    log: Arc<Log>,
    peer: SocketAddr,
    opened: Instant,
    /// Permit of the connection, released when the session is dropped.
    _permit: Permit,
}

impl Session {
    /// Starts the session of a connection.
    pub(super) fn begin(
        totals: &Arc<Totals>,
        log: &Arc<Log>,
        peer: SocketAddr,
        permit: Permit,
    ) -> Self {
        log.opened(peer);
        let (totals, log) = (Arc::clone(totals), Arc::clone(log));
        Self { totals, log, peer, opened: Instant::now(), _permit: permit }
    }

    /// Ends the session. `moved`: bytes received and sent. An error concerns only this connection,
    /// so it is counted and logged but not returned.
    pub(super) fn end(&self, outcome: &io::Result<()>, moved: (u64, u64)) {
        // Connections that break because the server ends have not failed.
        if outcome.is_err() && !self.log.is_ending() {
            self.totals.failed();
        }
        self.log.closed(self.peer, outcome, self.opened.elapsed(), moved);
    }
}
