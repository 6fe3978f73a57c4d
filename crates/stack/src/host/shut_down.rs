//! The end of a host: its sockets are stopped, and nothing is opened any more.

use std::{
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    vec::Vec,
};

use super::Host;
use crate::{base::errno::Errno, cx::Cx};

impl Host {
    /// Stops all sockets: listeners are closed, connections aborted. Nothing is opened from here on.
    pub fn shut_down(&self, cx: &mut Cx) {
        if self.down.swap(true, Ordering::SeqCst) {
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
        self.down.load(Ordering::Acquire)
    }

    /// `ENETDOWN` once the host is shut down. Whoever opens something asks after it has registered it: then either
    /// `shut_down` finds it in the tables, or it finds out here.
    pub(crate) fn check_up(&self) -> Result<(), Errno> {
        // The registration before the look at `down`; `shut_down` sets it before it looks at the tables.
        fence(Ordering::SeqCst);
        if self.is_down() { Err(Errno::ENETDOWN) } else { Ok(()) }
    }
}
