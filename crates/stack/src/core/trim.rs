//! What connections keep for later (`net.quietline.skb_recycle`), or hold while memory is scarce, and that has to go, a few connections in
//! each turn.
//!
//! Above: [`turn`](super::turn). Below: `Host::relieve_streams`. Linux has no counterpart: its sockets look at the pressure
//! when they are next used, and idle ones never.
//!
//! Not here: who wants it (`tcp_memory`), what a connection gives up (`tcp::Tcb::relieve`).

use sync::rcu_map::Place;

use crate::{cx::Cx, host::Host};

/// A walk over all connections, by the core that was the first to hear that it is wanted.
#[derive(Debug, Default)]
pub(super) struct TrimWalk {
    /// Where the next turn goes on; `None` when nobody wants it.
    at: Option<Place>,
    /// It was wanted anew since it began: those that it has passed may keep something by now.
    again: bool,
}

impl TrimWalk {
    /// Goes on, or begins when it is `wanted`. True when another turn is needed.
    pub(super) fn step(&mut self, wanted: bool, host: &Host, cx: &mut Cx) -> bool {
        if wanted {
            self.again = self.at.is_some();
            self.at = Some(self.at.unwrap_or_default());
        }
        let Some(from) = self.at else { return false };
        self.at = host.relieve_streams(cx, from);
        if self.at.is_none() && core::mem::take(&mut self.again) {
            self.at = Some(Place::default());
        }
        self.at.is_some()
    }
}
