//! The end of a host: its sockets are stopped, and nothing is opened any more.

use std::{sync::Arc, vec::Vec};

use super::Host;
use crate::{base::errno::Errno, cx::Cx};

impl Host {
    /// Stops all sockets: listeners are closed, connections aborted. Nothing is opened from here on.
    pub fn shut_down(&self, cx: &mut Cx) {
        if !self.down.begin() {
            return;
        }
        let mut listeners = Vec::new();
        {
            let reader = cx.reader();
            let rcu = reader.pin();
            self.demux.for_each_listener(&rcu, |listener| listeners.push(Arc::clone(listener)));
        }
        let streams = self.streams(cx);
        for listener in listeners {
            listener.close(self, cx);
        }
        for socket in streams {
            socket.abort(self, cx);
        }
        cx.do_softirq();
    }

    /// Whether `shut_down` has been called.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.is_down()
    }

    /// `ENETDOWN` once the host is shut down. A thread that opens a socket calls this after it has registered the socket: either
    /// `shut_down` finds the socket in the tables, or the thread closes it.
    pub(crate) fn check_up(&self) -> Result<(), Errno> {
        if self.down.check_up() { Ok(()) } else { Err(Errno::ENETDOWN) }
    }
}
