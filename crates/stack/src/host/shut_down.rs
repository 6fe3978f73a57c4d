//! Shutdown of a host: its sockets are stopped, and no new ones can be opened.

use std::{sync::Arc, vec::Vec};

use super::Host;
use crate::cx::Cx;

impl Host {
    /// Stops all sockets: listeners are closed, connections aborted. No socket can be opened from
    /// here on.
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
}
