//! Memory regions of a connection and its parts (`base::memory_map`).

use std::{sync::Arc, vec::Vec};

use super::Connection;
use crate::{
    base::memory_map::{Region, regions},
    cx::Cx,
    socket::net::Net,
};

impl Connection {
    /// Returns the regions of this connection. The part of `Connection.lock` outside of
    /// `StreamState` is the lock's word and its lists.
    pub fn memory_map(self: &Arc<Self>, net: &Net, cx: &mut Cx) -> Vec<Region> {
        let mut map =
            vec![Region::of("Connection", &**self), Region::references("Connection", self)];
        map.push(Region::references("Wmem", &self.wmem));
        map.extend(regions!("Connection", self, [name, incoming, wmem, rx_dst]));
        map.extend(regions!("Connection", self, [published, lock, backlog_drops, read_packets]));
        map.extend(regions!("Connection", self, [icmp, settings, readers, writers]));
        map.push(Region::of("Wmem", &*self.wmem));
        let call = self.begin_call(net, cx);
        let state = &*call.state;
        map.push(Region::of("StreamState", state));
        map.extend(regions!("StreamState", state, [dst, prequeue]));
        map.push(Region::of("Tcb", &*state.tcb));
        map.extend(state.tcb.queue_memory().iter().map(|(name, range)| Region::range(name, range)));
        call.end(cx);
        map
    }
}
