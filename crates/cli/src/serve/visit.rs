//! One connection in the log and the totals of its server, from when it is served to its end.
//!
//! A thread that serves it (`Server::serve`) or the client it has become (`http`) tells how it ended.

use std::{io, net::SocketAddr, sync::Arc, time::Instant};

use super::{log::Log, meter::Totals, peers::Place};

/// One connection that is being served.
#[derive(Debug)]
pub(super) struct Visit {
    totals: Arc<Totals>,
    log: Arc<Log>,
    peer: SocketAddr,
    opened: Instant,
    /// Given up at the connection's end.
    _place: Place,
}

impl Visit {
    /// A connection is served from here on.
    pub(super) fn begin(
        totals: &Arc<Totals>,
        log: &Arc<Log>,
        peer: SocketAddr,
        place: Place,
    ) -> Self {
        log.opened(peer);
        let (totals, log) = (Arc::clone(totals), Arc::clone(log));
        Self { totals, log, peer, opened: Instant::now(), _place: place }
    }

    /// The connection has ended. `moved`: bytes received and sent. What goes wrong on a connection is the peer's business alone,
    /// so the error ends here.
    pub(super) fn end(&self, outcome: &io::Result<()>, moved: (u64, u64)) {
        // What the end of the server breaks has not failed.
        if outcome.is_err() && !self.log.is_ending() {
            self.totals.failed();
        }
        self.log.closed(self.peer, outcome, self.opened.elapsed(), moved);
    }
}
